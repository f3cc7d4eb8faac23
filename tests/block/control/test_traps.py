"""Tests of the traps that Control raises, and of its handling of the core's traps."""

import random

import pytest

from hw.isa.enums import Trap
from tests.block.control.models import NEVER
from tests.block.control.testbench import ControlTestbench, block, delay, halt, issue, small, spin, trap


async def trapped(bench: ControlTestbench) -> dict[str, int]:
    """Wait for a trap and return its record."""
    await bench.until("STATUS", lambda status: status & 2)
    assert await bench.read("IRQ_STATUS") & 2
    return await bench.trap_record()


async def resume_and_run(bench: ControlTestbench, opcode: int = 0) -> None:
    """Resume and check that the next macro-instruction completes."""
    tail = await bench.read("RING_TAIL")
    assert tail == bench.enqueued
    number = bench.place(opcode)
    await bench.ring()
    await bench.cycles(60)
    assert await bench.read("RING_TAIL") == tail
    await bench.resume()
    await bench.until("RING_TAIL", lambda value: value == tail + 1)
    assert bench.record(number)["trap"] == 0
    assert await bench.read("STATUS") & 2 == 0


async def machine(bench: ControlTestbench, **programs: list[int]) -> None:
    """Set up a machine: opcode 0 runs a program that only halts, and opcode N runs the program `pN`."""
    await bench.begin()
    for i, words in enumerate(([halt()], *programs.values())):
        await bench.program(i, words)
        await bench.bind(i, i)


def test_dispatch_traps():
    async def host(bench: ControlTestbench) -> None:
        await machine(bench)
        good = bench.place(0)
        bad = bench.place(0, tag=33, magic=0x4C)
        await bench.ring()
        record = await trapped(bench)
        header = bench.memory.words(bench.slot(bad), 1)[0]
        assert record == {
            "cause": Trap.BAD_MACRO,
            "pc": 0,
            "segment": 255,
            "tag": 33,
            "macro": bad,
            "address": header,
            "count": 1,
        }
        assert bench.record(good)["trap"] == 0
        assert bench.record(bad) | {"begin": 0, "end": 0} == {
            "trap": Trap.BAD_MACRO,
            "program": 255,
            "candidate": 0,
            "done": 1,
            "sequence": bad,
            "begin": 0,
            "end": 0,
            "steps": 0,
        }
        await resume_and_run(bench)
        cases = [
            ({"opcode": 0, "count": 49}, Trap.BAD_MACRO, 255, None),
            ({"opcode": 1}, Trap.UNBOUND, 255, 1),
            ({"opcode": 8}, Trap.UNBOUND, 255, 8),
            ({"opcode": 255}, Trap.UNBOUND, 255, 255),
            ({"opcode": 5}, Trap.SEGMENT_INVALID, 3, 3),
            ({"opcode": 6}, Trap.SEGMENT_INVALID, 200, 200),
            ({"opcode": 7}, Trap.UNBOUND, 255, 7),
        ]
        await bench.bind(5, 3)
        await bench.bind(6, 200)
        for candidate in range(4):
            await bench.entry(28 + candidate, 0, compare=1, selector=64, value=1)
        await bench.write("DISPATCH_COMMIT", 1)
        for arguments, cause, segment, address in cases:
            number = bench.place(operands=[0], tag=5, **arguments)
            if address is None:
                address = bench.memory.words(bench.slot(number), 1)[0]
            await bench.ring()
            record = await trapped(bench)
            assert record | {"count": 0} == {
                "cause": cause,
                "pc": 0,
                "segment": segment,
                "tag": 5,
                "macro": number,
                "address": address,
                "count": 0,
            }
            assert (bench.record(number)["trap"], bench.record(number)["program"]) == (cause, 255)
            await resume_and_run(bench)
        assert bench.events["traps"] == 8
        assert bench.events["dispatch_first"] + bench.events["dispatch_other"] == 9

    ControlTestbench().run(host)


def test_core_trap_is_exact():
    """Commands issued before the trap complete; the record of the trapping macro-instruction holds the cause."""

    async def host(bench: ControlTestbench) -> None:
        await machine(
            bench,
            p1=[issue(0, 120), halt()],
            p2=[issue(3, 60), halt()],
            p3=[issue(1, 200), trap(9, 0xABCD1234)],
            p4=[issue(2, NEVER), halt()],
        )
        for opcode in (1, 2, 3):
            bench.place(opcode, tag=opcode)
        await bench.ring()
        record = await trapped(bench)
        assert record == {
            "cause": 9,
            "pc": 1,
            "segment": 3,
            "tag": 3,
            "macro": 2,
            "address": 0xABCD1234,
            "count": 1,
        }
        assert [bench.record(i)["trap"] for i in range(3)] == [0, 0, 9]
        assert bench.record(2)["steps"] == 2
        assert bench.record(2)["end"] - bench.record(2)["begin"] >= 200
        await resume_and_run(bench)
        # If a command never starts, its own macro-instruction gets the cause, not the following one.
        first = bench.place(4)
        bench.place(2)
        bench.place(3, tag=7)
        await bench.ring()
        record = await trapped(bench)
        assert (record["cause"], record["macro"], record["tag"]) == (9, first + 2, 7)
        assert [bench.record(first + i)["trap"] for i in range(3)] == [9, 0, 9]
        assert all(not queue for queue in bench.units.queues)
        await resume_and_run(bench)

    ControlTestbench().run(host)


def test_deadlock():
    async def host(bench: ControlTestbench) -> None:
        await machine(
            bench,
            p1=[issue(1, 50), delay(2), block()],
            p2=[issue(2, NEVER), issue(0, 5), halt()],
            p3=[issue(0, 5), halt()],
            p4=[delay(100), block()],
        )
        number = bench.place(1, tag=11)
        await bench.ring()
        record = await trapped(bench)
        assert record == {
            "cause": Trap.DEADLOCK,
            "pc": 2,
            "segment": 1,
            "tag": 11,
            "macro": number,
            "address": 0,
            "count": 1,
        }
        assert bench.record(number)["trap"] == Trap.DEADLOCK
        await resume_and_run(bench)
        # If no program runs and the ring is empty, the oldest incomplete macro-instruction gets the cause.
        bench.place(3)
        oldest = bench.place(2, tag=12)
        bench.place(3)
        bench.place(2)
        await bench.ring()
        record = await trapped(bench)
        assert record == {
            "cause": Trap.DEADLOCK,
            "pc": 0,
            "segment": 2,
            "tag": 12,
            "macro": oldest,
            "address": 0,
            "count": 2,
        }
        assert [bench.record(oldest + i)["trap"] for i in (-1, 0, 1, 2)] == [
            0,
            Trap.DEADLOCK,
            0,
            Trap.DEADLOCK,
        ]
        await resume_and_run(bench)
        # A deadlock is reported only when the ring is empty or 8 macro-instructions are in flight.
        oldest = bench.place(2)
        for _ in range(9):
            bench.place(3)
        await bench.ring()
        record = await trapped(bench)
        assert (record["cause"], record["macro"]) == (Trap.DEADLOCK, oldest)
        assert await bench.read("RING_TAIL") == oldest + 8
        await bench.resume()
        await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
        assert [bench.record(oldest + i)["trap"] for i in range(10)] == [Trap.DEADLOCK] + [0] * 9
        # Waiting for a busy unit is not a deadlock.
        bench.place(4)
        bench.place(0)
        await bench.ring()
        assert (await trapped(bench))["cause"] == Trap.DEADLOCK
        await bench.resume()
        await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)

    ControlTestbench().run(host)


def test_no_deadlock_while_disabled():
    async def host(bench: ControlTestbench) -> None:
        await machine(bench, p1=[issue(0, NEVER), halt()])
        bench.place(1)
        await bench.ring()
        await bench.until("STATUS", lambda status: not status & 4)
        await bench.write("CONTROL", 0)
        bench.place(1)
        await bench.ring()
        await bench.cycles(100)
        assert await bench.read("STATUS") & 2 == 0
        await bench.write("CONTROL", 1)
        assert (await trapped(bench))["cause"] == Trap.DEADLOCK

    ControlTestbench(latency=40).run(host)


def test_watchdog():
    async def host(bench: ControlTestbench) -> None:
        await machine(
            bench, p1=[issue(1, 2000), spin()], p2=[issue(0, 700), halt()], p3=[issue(0, 3000), trap(9)]
        )
        await bench.write("WATCHDOG", 300)
        bench.units.holding = 25
        number = bench.place(1, tag=4)
        await bench.ring()
        start = bench.now
        record = await trapped(bench)
        assert 300 <= bench.now - start < 480
        assert record == {
            "cause": Trap.WATCHDOG,
            "pc": 1,
            "segment": 1,
            "tag": 4,
            "macro": number,
            "address": 0,
            "count": 1,
        }
        assert bench.record(number)["trap"] == Trap.WATCHDOG
        assert bench.ctx.get(bench.dut.abort) == 0
        await resume_and_run(bench)
        number = bench.place(2)  # the program has halted, but its command exceeds the limit
        await bench.ring()
        record = await trapped(bench)
        assert record == {
            "cause": Trap.WATCHDOG,
            "pc": 0,
            "segment": 255,
            "tag": 0,
            "macro": number,
            "address": 0,
            "count": 2,
        }
        await resume_and_run(bench)
        number = bench.place(3)  # an exact trap that waits too long
        await bench.ring()
        assert (await trapped(bench))["cause"] == Trap.WATCHDOG
        assert bench.record(number)["trap"] == Trap.WATCHDOG
        await resume_and_run(bench)
        await bench.write("WATCHDOG", 0)
        bench.place(2)
        await bench.ring()
        await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
        # The limit applies to single macro-instructions, not to the sum of their durations.
        await bench.write("WATCHDOG", 300)
        for _ in range(5):
            bench.place(0)
        await bench.ring()
        await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
        assert await bench.read("TRAP_COUNT") == 3

    ControlTestbench().run(host)


@pytest.mark.parametrize("name", ["load", "store"])
def test_unit_bus_error(name: str):
    async def host(bench: ControlTestbench) -> None:
        await machine(bench, p1=[issue(0, 500), issue(3, 500), delay(500), halt()], p2=[issue(1, 4), halt()])
        bench.units.holding = 40
        first = bench.place(2)
        number = bench.place(1, tag=6)
        waiting = bench.place(2)
        await bench.ring()
        await bench.until("RING_TAIL", lambda tail: tail == first + 1)
        await bench.cycles(60)
        error = getattr(bench.dut, f"{name}_error")
        bench.ctx.set(error, {"valid": 1, "address": 0x4567})
        await bench.cycles(1)
        bench.ctx.set(error, {"valid": 0, "address": 0})
        record = await trapped(bench)
        cause = Trap.BUS_READ if name == "load" else Trap.BUS_WRITE
        assert record == {
            "cause": cause,
            "pc": 2,
            "segment": 1,
            "tag": 6,
            "macro": number,
            "address": 0x4567,
            "count": 1,
        }
        assert [bench.record(first + i)["trap"] for i in range(2)] == [0, cause]
        assert await bench.read("RING_TAIL") == waiting
        await bench.resume()
        await bench.until("RING_TAIL", lambda tail: tail == waiting + 1)
        assert bench.record(waiting)["trap"] == 0

    ControlTestbench().run(host)


@pytest.mark.parametrize(("n", "bus"), [(4, 4), (16, 16), (32, 32), (16, 32)])
def test_bus_errors_of_control(n: int, bus: int):
    async def host(bench: ControlTestbench) -> None:
        await machine(bench)
        number = bench.place(0, list(range(10)), tag=3)
        slot = bench.slot(number)
        bench.memory.bad_reads = {slot + 64 // bus * bus}  # a beat that holds an operand
        await bench.ring()
        record = await trapped(bench)
        assert record == {
            "cause": Trap.BUS_READ,
            "pc": 0,
            "segment": 255,
            "tag": 3,
            "macro": number,
            "address": slot,
            "count": 1,
        }
        assert bench.record(number)["trap"] == Trap.BUS_READ
        await resume_and_run(bench)
        number = bench.place(0, [1])
        slot = bench.slot(number)
        bench.memory.bad_reads = {slot + 96}  # a beat that is not used
        await bench.ring()
        await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
        number = bench.place(0, [1])
        slot = bench.slot(number)
        bench.memory.bad_reads = {slot}
        await bench.ring()
        assert (await trapped(bench))["cause"] == Trap.BUS_READ
        await resume_and_run(bench)
        number = bench.place(0)
        bench.memory.bad_writes = {bench.slot(number) + 16 // bus * bus}
        await bench.ring()
        record = await trapped(bench)
        assert (record["cause"], record["address"]) == (Trap.BUS_WRITE, bench.slot(number) + 16)
        bench.memory.bad_writes = set()
        await resume_and_run(bench)

    ControlTestbench(small(n, bus_bytes=bus)).run(host)


def test_random_stream():
    """For random programs of all kinds, each macro-instruction gets its record, in order, with the expected cause."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def host(bench: ControlTestbench) -> None:
        await machine(
            bench,
            p1=[issue(0, 20), issue(1, 35), halt()],
            p2=[issue(3, 70), delay(9), issue(3, 1), halt()],
            p3=[issue(2, 15), trap(8, 77)],
            p4=[issue(2, 40), block()],
            p5=[delay(30), halt()],
        )
        cause = {0: 0, 1: 0, 2: 0, 3: 8, 4: Trap.DEADLOCK, 5: 0, 6: Trap.UNBOUND}
        bench.memory.stall = 2
        for _ in range(25):
            batch = []
            for _ in range(rng.randrange(1, 12)):
                opcode = rng.choices(range(7), (4, 4, 4, 1, 1, 4, 1))[0]
                batch.append((bench.place(opcode, list(range(rng.randrange(49)))), cause[opcode]))
                bench.memory.latency = rng.randrange(2, 40)
            await bench.ring()
            while await bench.read("RING_TAIL") != bench.enqueued or await bench.read("STATUS") & 2:
                if await bench.read("STATUS") & 2:
                    await bench.resume()
            for number, expected in batch:
                record = bench.record(number)
                assert (record["sequence"], record["trap"], record["done"]) == (number & 0x7FF, expected, 1)
        traps = sum(1 for run in bench.core.log if run["segment"] in (3, 4))
        assert await bench.read("TRAP_COUNT") >= traps

    ControlTestbench().run(host)
