"""Configurations for tests of the counters, and reads from a collector."""

from collections.abc import Awaitable, Callable

from amaranth.sim import SimulatorContext

from hw.config import MlaConfig
from hw.counters.collector import Collector


def config_of(late: int) -> MlaConfig:
    """Return a configuration with four tags, pipelined or not."""
    return MlaConfig(tags=4, serial_commands=late, fuse_rate=8 if late else 1, pipelined=late)


async def read(
    ctx: SimulatorContext, dut: Collector, tag: int, index: int, step: Callable[[], Awaitable]
) -> int:
    """Read a counter of a tag from the collector; `step` advances the simulation by one cycle."""
    ctx.set(dut.select_counter, index)
    ctx.set(dut.select_tag, tag)
    ctx.set(dut.read, 1)
    for _ in range(3000):
        await step()
        if ctx.get(dut.read_done):
            value = ctx.get(dut.value)
            ctx.set(dut.read, 0)
            await step()
            return value
    raise AssertionError("no answer")
