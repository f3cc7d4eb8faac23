"""The CRC of a segment equals zlib's, even after a cancelled run."""

import random
import zlib

import pytest

from hw.control.segment_checker import SegmentChecker
from tests.support.testbench import Testbench


@pytest.mark.parametrize("slow", [0, 1])
def test_crc(slow: int) -> None:
    """Each run reads exactly its own words, even after a run that was cancelled at a random time."""
    dut, rng = SegmentChecker(slow), random.Random(slow)
    memory = [rng.getrandbits(64) for _ in range(32)]

    async def store(ctx) -> None:
        while True:
            enabled, address = ctx.get(dut.check_en), ctx.get(dut.check_addr)
            await ctx.tick()
            if enabled:
                ctx.set(dut.check_data, memory[address])

    async def bench(ctx) -> None:
        for _ in range(12):
            for cancelled in (True, False):
                base = rng.randrange(16)
                length = rng.randrange(1, 16)
                ctx.set(dut.base, base)
                ctx.set(dut.length, length)
                ctx.set(dut.start, 1)
                await ctx.tick()
                ctx.set(dut.start, 0)
                if cancelled:
                    for _ in range(rng.randrange(12)):
                        await ctx.tick()
                    ctx.set(dut.cancel, 1)
                    await ctx.tick()
                    ctx.set(dut.cancel, 0)
                    for _ in range(2):
                        await ctx.tick()
                    continue
                for _ in range(200):
                    if ctx.get(dut.done):
                        break
                    await ctx.tick()
                image = b"".join(word.to_bytes(8, "little") for word in memory[base : base + length])
                assert ctx.get(dut.done)
                assert ctx.get(dut.crc) == zlib.crc32(image), f"seed {slow}"
                await ctx.tick()

    Testbench(dut).simulate(bench, background=[store])
