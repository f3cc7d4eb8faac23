"""Tests of Control: registers, ring, dispatch and completion records."""

import pytest

from hw.bus.register_map import CONFIG_FIELDS, ID, REGISTERS
from hw.isa.enums import Compare
from tests.block.control.testbench import ControlTestbench, delay, halt, issue, operand, small


@pytest.mark.parametrize("changes", ({}, {"n": 8, "fuse_rate": 8, "serial_commands": 1, "pipelined": 1}))
def test_registers(changes: dict[str, int]):
    async def host(bench: ControlTestbench) -> None:
        assert await bench.read("ID") == ID
        assert await bench.read("ISA_VERSION") == 1
        for name in CONFIG_FIELDS:
            assert await bench.read(f"CONFIG_{name.upper()}") == getattr(bench.config, name)
        for register in REGISTERS:
            _, response = await bench.access(register.name)
            assert response == 0
        for address in (0x00C, 0x07C, 0x0B4, 0x0DC, 0x130, 0x150, 0x174, 0x18C, 0x200, 0xFFFC):
            assert (await bench.access(address))[1] == 2
            assert await bench.write(address, 1) == 2
        assert await bench.write("STEP_LIMIT", 0xDEADBEEF) == 0
        assert await bench.write("STEP_LIMIT", 5, strobe=7) == 2
        assert await bench.read("STEP_LIMIT") == 0xDEADBEEF
        assert await bench.write("RING_BASE", 0x123456FF) == 0
        assert await bench.read("RING_BASE") == 0x12345600
        assert await bench.write("ID", 5) == 0
        assert await bench.read("ID") == ID
        for w in range(8):
            await bench.write(f"WINDOW{w}_BASE", 0x1000 + w)
            await bench.write(f"WINDOW{w}_PERM", 3)
            inside = w < bench.config.windows
            assert await bench.read(f"WINDOW{w}_LAST") == 0
            assert await bench.read(f"WINDOW{w}_BASE") == (0x1000 + w if inside else 0)
            assert await bench.read(f"WINDOW{w}_PERM") == (3 if inside else 0)
        low = await bench.read("CYCLE_LO")
        assert 0 < low < await bench.read("CYCLE_LO")
        assert await bench.read("CYCLE_HI") == 0

    ControlTestbench(small(**changes)).run(host)


def test_counter_read_waits_for_collector():
    async def host(bench: ControlTestbench) -> None:
        ctx, dut = bench.ctx, bench.dut
        await bench.cycles(1)
        ctx.set(dut.counter_done, 0)
        await bench.write("COUNTER_SELECT", 0x50007)
        assert ctx.get(dut.counter_select) == 0x50007
        ctx.set(dut.s_axil_araddr, 0x164)
        ctx.set(dut.s_axil_arvalid, 1)
        ctx.set(dut.s_axil_rready, 1)
        await ctx.tick().until(dut.counter_read)
        ctx.set(dut.s_axil_arvalid, 0)
        for _ in range(5):
            await ctx.tick()
            assert not ctx.get(dut.s_axil_rvalid)
        ctx.set(dut.counter_value, 0x123456789ABCDEF0)
        ctx.set(dut.counter_done, 1)
        await ctx.tick()
        ctx.set(dut.counter_done, 0)
        ctx.set(dut.counter_value, 0)
        (value,) = await ctx.tick().sample(dut.s_axil_rdata).until(dut.s_axil_rvalid)
        ctx.set(dut.s_axil_rready, 0)
        assert value == 0x9ABCDEF0
        assert await bench.read("COUNTER_HI") == 0x12345678
        assert ctx.get(dut.counter_read) == 0

    ControlTestbench().run(host)


@pytest.mark.parametrize(("n", "bus"), [(4, 4), (8, 8), (16, 16), (32, 32), (16, 32)])
def test_macro_instructions(n: int, bus: int):
    """Operands, tags, interrupts, records and the wrap-around of the ring are correct at every bus width."""

    async def host(bench: ControlTestbench) -> None:
        await bench.begin()
        await bench.program(1, [operand(0), operand(2), issue(0, 30), issue(3, 5), halt()])
        await bench.program(2, [operand(47), delay(3), halt()])
        await bench.program(3, [halt()])
        for opcode, segment in ((1, 1), (2, 2), (7, 3)):
            await bench.bind(opcode, segment)
        expected = []
        for i in range(24):
            opcode, count = ((1, 3), (2, 48), (7, 0))[i % 3]
            operands = [(i << 16) + 0x1234 * k for k in range(count)]
            number = bench.place(opcode, operands, tag=i, irq=int(i == 20))
            assert number == i
            expected.append((opcode, operands))
            if i % 5 == 4 or i == 23:
                assert await bench.read("IRQ_STATUS") & 1 == 0
                await bench.ring()
                await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
        assert await bench.read("IRQ_STATUS") & 1 == 1
        assert bench.ctx.get(bench.dut.irq) == 0
        await bench.write("IRQ_ENABLE", 1)
        await bench.cycles(2)
        assert bench.ctx.get(bench.dut.irq) == 1
        await bench.write("IRQ_STATUS", 1)
        await bench.cycles(2)
        assert bench.ctx.get(bench.dut.irq) == 0
        assert await bench.read("STATUS") == 1
        assert len(bench.core.log) == 24
        for i, (run, (opcode, operands)) in enumerate(zip(bench.core.log, expected, strict=True)):
            segment = {1: 1, 2: 2, 7: 3}[opcode]
            assert (run["segment"], run["tag"], run["macro"], run["operands"]) == (
                segment,
                i,
                i,
                len(operands),
            )
            assert (
                run["operands_read"] == {1: [operands[0], operands[2]], 2: operands[47:], 3: []}[segment]
                if operands
                else True
            )
            if i >= 8:
                record = bench.record(i)
                assert (
                    record["trap"] == 0
                    and record["program"] == segment
                    and record["candidate"] == 0
                    and record["done"] == 1
                )
                assert record["sequence"] == i and record["steps"] == {1: 5, 2: 3, 3: 1}[segment]
                assert record["end"] > record["begin"]
                if segment == 1:
                    assert record["end"] - record["begin"] >= 30
        # Only the records were written.
        for i in range(8, 24):
            slot = bench.slot(i)
            assert bench.memory.bytes[slot + 4 : slot + 16] == bytes([0xA5]) * 12
            assert bench.memory.bytes[slot + 32 + 4 * len(expected[i][1]) : slot + 256] == bytes([0xA5]) * (
                224 - 4 * len(expected[i][1])
            )
        assert bench.events["dispatch_first"] == 24
        assert bench.events["dispatch_other"] == 0

    ControlTestbench(small(n, bus_bytes=bus)).run(host)


def test_dispatch_latency():
    """The cycles from doorbell to request and start, from end to next start, and from end to record are limited."""

    async def host(bench: ControlTestbench) -> None:
        await bench.begin()
        await bench.program(0, [issue(1, 40), delay(60), halt()])
        await bench.bind(0, 0)
        for _ in range(6):
            bench.place(0, [1, 2, 3])
        ctx, dut = bench.ctx, bench.dut
        await bench.ring()
        rung = bench.now
        await bench.until("RING_TAIL", lambda tail: tail == 6)
        assert bench.fetch.requests[0][0] - rung <= 3
        first = bench.core.log[0]
        # Three beats of 16 bytes hold the header and three operands.
        assert first["begin"] - bench.fetch.requests[0][0] <= bench.memory.latency + 3 + 7
        assert first["begin"] - rung <= bench.memory.latency + 25
        for before, after in zip(bench.core.log, bench.core.log[1:], strict=False):
            assert after["begin"] - before["end"] <= 6
        for run, time in zip(bench.core.log, bench.records.times, strict=True):
            assert time - run["end"] <= 5
        assert ctx.get(dut.status) == 1

    ControlTestbench(latency=40).run(host)


def test_guards():
    """Guards are evaluated in order on operands and statistics; guards on undefined selectors never hold."""
    cases = [
        (Compare.EQ, 64, 5, 5, True),
        (Compare.EQ, 64, 5, 6, False),
        (Compare.NE, 65, 5, 6, True),
        (Compare.NE, 65, 6, 6, False),
        (Compare.LT, 64, 0xFFFFFFFF, 0, True),
        (Compare.LT, 64, 0, 0, False),
        (Compare.LTU, 64, 0xFFFFFFFF, 0, False),
        (Compare.LTU, 64, 3, 0x80000000, True),
        (Compare.GE, 64, 0x7FFFFFFF, 0x80000000, True),
        (Compare.GE, 64, 0x80000000, 0x7FFFFFFF, False),
        (Compare.GEU, 64, 0x80000000, 0x7FFFFFFF, True),
        (Compare.GEU, 64, 7, 7, True),
        (Compare.NE, 66, 0, 1, False),
        (Compare.NE, 3, 0, 1, False),
        (Compare.NE, 127, 0, 1, False),
        (Compare.NE, 137, 0, 1, False),
        (Compare.EQ, 133, 0, 16, True),
        (Compare.EQ, 134, 0, 2, True),
        (Compare.EQ, 135, 0, 9, True),
        (Compare.EQ, 128, 0, 101, True),
        (Compare.EQ, 129, 0, 102, True),
        (Compare.EQ, 130, 0, 103, True),
        (Compare.LT, 131, 0, 105, True),
        (Compare.EQ, 132, 0, 105, True),
        (Compare.EQ, 136, 0, 106, True),
        (Compare.ALWAYS, 3, 0, 1, True),
    ]

    async def host(bench: ControlTestbench) -> None:
        await bench.begin()
        await bench.program(4, [halt(), halt()])
        await bench.program(5, [halt()])
        bench.ctx.set(
            bench.dut.statistics,
            {
                "fuse_rows": 101,
                "fuse_zeros": 102,
                "fuse_min": 103,
                "fuse_max": 104,
                "matrix_zeros": 105,
                "cycle": 106,
            },
        )
        for i, (compare, selector, operand_value, value, holds) in enumerate(cases):
            position = i % 3
            for candidate in range(4):
                await bench.entry(4 + candidate, 4, valid=0)
            await bench.entry(4 + position, 4, compare=int(compare), selector=selector, value=value)
            await bench.entry(4 + 3, 5)
            await bench.write("DISPATCH_COMMIT", 1)
            number = bench.place(1, [operand_value] * 2, tag=9)
            await bench.ring()
            await bench.until("RING_TAIL", lambda tail: tail == bench.enqueued)
            record = bench.record(number)
            assert (record["program"], record["candidate"]) == ((4, position) if holds else (5, 3)), cases[i]
        assert bench.events["dispatch_first"] + bench.events["dispatch_other"] == len(cases)

    ControlTestbench().run(host)


def test_completion_order_of_outlived_programs():
    """When programs halt before their commands have retired, completion records are still complete and in order."""

    async def host(bench: ControlTestbench) -> None:
        await bench.begin()
        await bench.program(0, [issue(0, 300), issue(1, 3), halt()])
        await bench.program(1, [issue(1, 1), issue(2, 2), issue(1, 1), halt()])
        await bench.program(2, [halt()])
        for opcode in range(3):
            await bench.bind(opcode, opcode)
        for i in range(16):
            bench.place(0 if i == 0 else 1 + i % 2)
        await bench.ring()
        await bench.cycles(250)
        assert await bench.read("RING_TAIL") == 0
        assert len(bench.core.log) == 8
        await bench.until("RING_TAIL", lambda tail: tail == 16)
        records = [bench.record(i) for i in range(16)]
        assert [r["sequence"] for r in records] == list(range(16))
        assert records[0]["end"] - records[0]["begin"] >= 300
        for i in range(1, 8):  # each record has the cycle of its own last command
            assert records[i]["end"] - records[i]["begin"] < 40

    ControlTestbench().run(host)
