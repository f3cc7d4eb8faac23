"""Tests of segments: host operations, loader, checks, and rejected accesses to segments in use."""

import random
import struct

import pytest

from hw.isa.enums import Trap
from tests.block.control.testbench import IMAGES, ControlTestbench, crc, delay, halt, small

FREE, OPEN, CHECKING, VALID, FAILED = range(5)
IN_USE, RANGE, NOT_OPEN, CRC, BUS, OVERLAP = range(1, 7)
PINNED, USED = 8, 16


async def command(bench: ControlTestbench, segment: int, number: int) -> int:
    await bench.write("SEG_SELECT", segment)
    await bench.write("SEG_COMMAND", number)
    return await bench.read("LOADER_ERROR")


async def state(bench: ControlTestbench, segment: int) -> int:
    await bench.write("SEG_SELECT", segment)
    return await bench.read("SEG_STATUS")


async def load(
    bench: ControlTestbench,
    segment: int,
    words: list[int],
    *,
    source: int = IMAGES,
    length: int | None = None,
    good: bool = True,
) -> int:
    """Start a DMA load, and return the value of LOADER_ERROR directly after the start."""
    struct.pack_into(f"<{len(words)}Q", bench.memory.bytes, source, *words)
    for name, value in (
        ("SEG_SELECT", segment),
        ("SEG_LENGTH", len(words) if length is None else length),
        ("LOADER_SOURCE", source),
        ("SEG_CRC", crc(words) ^ (not good)),
        ("LOADER_COMMAND", 1),
    ):
        await bench.write(name, value)
    return await bench.read("LOADER_ERROR")


def test_segment_commands_reject_bad_ranges_and_states():
    async def host(bench: ControlTestbench) -> None:
        words = [halt(i) for i in range(10)]
        assert await bench.open(8, 10, 0) == RANGE
        assert await bench.open(0xFFFFFFFF, 10, 0) == RANGE
        assert await bench.open(1, 0, 0) == RANGE
        assert await bench.open(1, 10, 247) == RANGE
        assert await bench.open(1, 0xFFFFFFFF, 2) == RANGE
        assert await bench.open(1, 16384, 0) == RANGE
        assert await state(bench, 1) == FREE
        assert await bench.read("IRQ_STATUS") == 8
        await bench.write("IRQ_STATUS", 8)
        assert await bench.read("IRQ_STATUS") == 0
        assert await bench.open(1, 10, 246) == 0
        assert await state(bench, 1) == OPEN
        assert await bench.open(2, 1, 255) == OVERLAP
        assert await bench.open(2, 247, 0) == OVERLAP
        assert await bench.open(2, 246, 0) == 0
        assert await bench.open(1, 8, 248) == 0  # a segment may be moved within its own range
        assert await bench.open(1, 10, 246) == 0
        assert await command(bench, 2, 3) == 0
        assert await state(bench, 2) == FREE
        assert await command(bench, 2, 2) == NOT_OPEN
        assert await command(bench, 1, 4) == NOT_OPEN
        await bench.put_words(246, words)
        assert await bench.read("WIS_ADDRESS") == 256
        await bench.write("WIS_DATA_HI", 0)
        assert await bench.read("LOADER_ERROR") == RANGE
        await bench.put_words(3, [0])
        assert await bench.read("LOADER_ERROR") == NOT_OPEN
        assert await bench.check(1, crc(words) ^ 1) == FAILED
        assert await bench.read("LOADER_ERROR") == CRC
        assert await bench.read("IRQ_STATUS") == 12
        assert await bench.check(1, crc(words)) == VALID
        assert await bench.read("LOADER_ERROR") == 0
        assert await command(bench, 1, 2) == NOT_OPEN
        await bench.put_words(250, [5])
        assert await state(bench, 1) == OPEN
        assert await bench.check(1, crc(words)) == FAILED
        words[4] = 5
        assert await bench.check(1, crc(words)) == VALID
        assert await command(bench, 1, 4) == 0
        assert await state(bench, 1) == VALID | PINNED | USED
        assert await bench.read("TRAP_COUNT") == 0
        assert await command(bench, 1, 3) == IN_USE
        record = await bench.trap_record()
        assert record == {
            "cause": Trap.WIS_IN_USE,
            "pc": 0,
            "segment": 1,
            "tag": 0,
            "macro": 0,
            "address": 246,
            "count": 1,
        }
        assert await command(bench, 1, 7) == IN_USE  # an unknown command has no effect
        assert bench.events["wis_words"] == 11
        assert bench.events["wis_loads"] == 2
        assert bench.events["traps"] == 1

    ControlTestbench().run(host)


@pytest.mark.parametrize("serial", [0, 1])
@pytest.mark.parametrize(("n", "bus"), [(4, 4), (8, 8), (16, 16), (32, 32), (16, 32)])
def test_loader(n: int, bus: int, serial: int):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def host(bench: ControlTestbench) -> None:
        base = 0
        for segment, length in enumerate((1, 2, 33, 100)):
            words = [rng.getrandbits(64) for _ in range(length)]
            assert await bench.open(segment, length, base) == 0
            source = IMAGES + 64 * rng.randrange(256)
            assert await load(bench, segment, words, source=source, length=length + 1) == RANGE
            assert await load(bench, segment, words, source=source) == 0
            assert await bench.read("STATUS") & 8
            await bench.until("STATUS", lambda status: not status & 8)
            assert await state(bench, segment) == VALID
            assert await bench.read("IRQ_STATUS") & 4
            await bench.write("IRQ_STATUS", 15)
            for i, word in enumerate(words):
                assert await fetched(bench, base + i) == word
            base += length
        assert bench.events["wis_words"] == 136
        assert bench.events["wis_loads"] == 4
        # The first load has a wrong CRC, the next ones a bus error in each beat of a burst, the last one no error.
        words = [rng.getrandbits(64) for _ in range(20)]
        assert await bench.open(5, 20, 200) == 0
        assert await load(bench, 5, words, good=False) == 0
        await bench.until("STATUS", lambda status: not status & 8)
        assert await bench.read("LOADER_ERROR") == CRC
        assert await state(bench, 5) == FAILED
        for beat in rng.sample(range(160 // bus), min(6, 160 // bus)):
            bench.memory.bad_reads = {IMAGES + beat * bus}
            await bench.write("IRQ_STATUS", 15)
            assert await load(bench, 5, words) == 0
            await bench.until("STATUS", lambda status: not status & 8)
            assert await bench.read("LOADER_ERROR") == BUS
            assert await bench.read("IRQ_STATUS") == 12
            assert await state(bench, 5) == FAILED
            assert not bench.loader.queue
        bench.memory.bad_reads = set()
        assert await load(bench, 5, words) == 0
        await bench.until("STATUS", lambda status: not status & 8)
        assert await state(bench, 5) == VALID

    ControlTestbench(small(n, bus_bytes=bus, serial_commands=serial), latency=25).run(host)


async def fetched(bench: ControlTestbench, address: int) -> int:
    """Return a word as the core would fetch it."""
    ctx, dut = bench.ctx, bench.dut
    ctx.set(dut.fetch_addr, address)
    ctx.set(dut.fetch_en, 1)
    await ctx.tick()
    value = ctx.get(dut.fetch_data)
    ctx.set(dut.fetch_en, 0)
    return value


def test_busy_loader():
    """Commands and writes to a segment that is being loaded or checked are rejected; other segments are unaffected."""

    async def host(bench: ControlTestbench) -> None:
        words = [halt(i) for i in range(120)]
        await bench.begin()
        assert await bench.open(1, 120, 0) == 0
        assert await bench.open(2, 20, 130) == 0
        await bench.put_words(130, words[:20])
        assert await load(bench, 1, words) == 0
        assert await command(bench, 1, 1) == IN_USE
        assert await command(bench, 1, 3) == IN_USE
        assert await command(bench, 2, 2) == IN_USE
        assert await load(bench, 2, words[:20], source=IMAGES + 0x1000) == IN_USE
        assert await bench.read("TRAP_COUNT") == 0
        assert await state(bench, 1) == OPEN
        await bench.put_words(140, [7])
        await bench.until("SEG_STATUS", lambda status: status == CHECKING)
        await bench.write("IRQ_STATUS", 15)
        await bench.put_words(131, [8])  # writes to another segment do not disturb the check
        assert await bench.read("SEG_STATUS") == CHECKING
        await bench.put_words(119, [words[119]])
        assert await bench.read("SEG_STATUS") == OPEN
        assert await bench.read("STATUS") & 8 == 0
        assert await bench.read("IRQ_STATUS") == 4
        assert await bench.check(1, crc(words)) == VALID
        words[1], words[10] = 8, 7
        assert await bench.check(2, crc(words[:20])) == VALID

    ControlTestbench(latency=60).run(host)


def test_write_at_end_of_check():
    """A write in any cycle around the end of a check leaves the segment OPEN or turns it from VALID back to OPEN."""

    async def host(bench: ControlTestbench) -> None:
        words = [halt(i) for i in range(12)]
        assert await bench.open(3, 12, 40) == 0
        await bench.put_words(40, words)
        for wait in range(26):
            await bench.write("SEG_CRC", crc(words))
            await bench.write("WIS_ADDRESS", 51)
            await bench.write("SEG_COMMAND", 2)
            await bench.cycles(wait)
            await bench.write("WIS_DATA_HI", wait)
            assert await bench.read("LOADER_ERROR") == 0
            assert await bench.read("SEG_STATUS") == OPEN
            await bench.cycles(40)
            assert await bench.read("SEG_STATUS") == OPEN
            assert await bench.read("STATUS") & 8 == 0
            words[11] = wait << 32 | words[11] & 0xFFFFFFFF
        assert await bench.check(3, crc(words)) == VALID

    ControlTestbench().run(host)


def test_running_segment_cannot_be_changed():
    """Writes into the running program are rejected and do not affect the program."""

    async def host(bench: ControlTestbench) -> None:
        await bench.begin()
        body = [delay(400), halt()]
        await bench.program(1, body)
        await bench.program(2, [halt()])
        await bench.bind(0, 1)
        await bench.bind(1, 2)
        await bench.write("IRQ_ENABLE", 2)
        number = bench.place(0)
        bench.place(1)
        await bench.ring()
        await bench.until("STATUS", lambda status: status & 4)
        assert await state(bench, 1) == VALID | USED
        for attempt, address in (((1, 1), 0), ((1, 3), 0)):
            await bench.write("IRQ_STATUS", 15)
            if attempt[1] == 1:
                assert await bench.open(1, 2, 0) == IN_USE
            else:
                assert await command(bench, *attempt) == IN_USE
            assert (await bench.trap_record())["address"] == address
        await bench.put_words(1, [0])
        assert await bench.read("LOADER_ERROR") == IN_USE
        record = await bench.trap_record()
        assert record == {
            "cause": Trap.WIS_IN_USE,
            "pc": 0,
            "segment": 1,
            "tag": 0,
            "macro": 0,
            "address": 1,
            "count": 3,
        }
        assert await bench.read("IRQ_STATUS") == 2 | 8
        assert bench.ctx.get(bench.dut.irq) == 1
        assert await bench.read("STATUS") & 6 == 4  # the program still runs, without a trap
        await bench.put_words(2, [halt()])  # other segments may be changed
        assert await state(bench, 2) == OPEN
        assert await bench.check(2, crc([halt()])) == VALID
        await bench.until("RING_TAIL", lambda tail: tail == 2)
        assert bench.record(number)["trap"] == 0
        assert bench.core.log[0]["words"] == body
        assert await command(bench, 1, 3) == 0

    ControlTestbench().run(host)


def test_rebinding_under_load():
    """With 100 rebinds at random times under load, each macro-instruction runs one program once, the old or the new."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def host(bench: ControlTestbench) -> None:
        await bench.begin()
        await bench.write("IRQ_ENABLE", 0)
        lengths = 5
        versions = {0: 0}

        async def make(segment: int, version: int) -> None:
            words = [delay(rng.randrange(1, 12)) | version << 48 for _ in range(lengths - 1)] + [
                halt(version)
            ]
            base = segment * lengths
            assert await bench.open(segment, lengths, base) == 0
            if version % 2:
                await bench.put_words(base, words)
                assert await bench.check(segment, crc(words)) & 7 == VALID
            else:
                assert await load(bench, segment, words) == 0
                await bench.until("STATUS", lambda status: not status & 8)
                assert (await bench.read("SEG_STATUS")) & 7 == VALID
            versions[segment] = version

        await make(0, 0)
        await bench.bind(3, 0)
        current, commits = 0, []
        for version in range(1, 101):
            while bench.enqueued - await bench.read("RING_TAIL") < 8:
                for _ in range(4):
                    bench.place(3, [version])
                await bench.ring()
            segment = 1 - current
            # The program before the last one may still be running; wait for its end.
            while (await state(bench, segment)) & USED:
                pass
            await make(segment, version)
            await bench.cycles(rng.randrange(8))
            before = len(bench.core.log)
            await bench.bind(3, segment)
            commits.append((before, len(bench.core.log), version))
            current = segment
        await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
        log = bench.core.log
        assert [run["macro"] for run in log] == list(range(bench.enqueued))
        seen = [{word >> 48 for word in run["words"]} for run in log]
        assert all(
            len(versions) == 1 and len(run["words"]) == lengths
            for versions, run in zip(seen, log, strict=True)
        )
        order = [next(iter(versions)) for versions in seen]
        assert order == sorted(order)
        for before, after, version in commits:
            assert all(v < version for v in order[:before])
            assert all(v >= version for v in order[after + 1 :])
        assert order[-1] == 100
        assert bench.events["wis_loads"] == 101
        assert await bench.read("TRAP_COUNT") == 0

    ControlTestbench().run(host)
