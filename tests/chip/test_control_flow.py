"""Corner cases of control flow in whole programs: registers, loops, calls, a full ring, a stopped dispatcher."""

import numpy as np
import pytest

from cosim.dram import DramFault
from cosim.programs import Candidate
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS
from hw.config import load_target
from hw.isa.assembler import assemble
from hw.isa.enums import Compare, Trap
from hw.isa.macro_instruction import SLOT_BYTES
from tests.chip.conftest import ALIVE, Machine

#: DRAM latency; a number of cycles in which a macro-instruction ends at this latency.
LATENCY, STEPS = 4, 110
DEPTH = load_target("n4").loop_depth


def _traps(machine: Machine, text: str) -> list[Trap]:
    """Run a program once and return the causes of its traps."""
    machine.load(text)
    machine.driver.enqueue(1)
    causes = [Trap(report.cause) for report in machine.driver.run(200_000, resume=True)]
    machine.assert_alive()
    return causes


def test_more_lines_than_outstanding_reads(machine: Machine) -> None:
    """LOAD is correct if the memory is so slow that the limit of outstanding reads is reached."""
    lines, apart = 512, 64
    device, driver = machine.driver.device, machine.driver
    if isinstance(device, RtlDevice):
        device.set_dram_timing(2000)
    image = np.random.default_rng(1).integers(0, 256, (lines, apart), np.uint8)
    machine.load(
        f"set load.dram, op0\nset load.len, 4\nset load.y_count, {lines}\nset load.dram_y, {apart}\n"
        "set load.dst_y, 4\nissue load\nhalt"
    )
    driver.enqueue(1, [driver.put(image)])
    assert driver.run() == []
    assert device.read_sp(0, 4 * lines).tobytes() == image[:, :4].tobytes()


def test_every_scalar_register(machine: Machine) -> None:
    """Each register keeps the value written to it until all are summed; register 0 stays zero."""
    writes = [f"add r{i}, r0, {i}" for i in range(32)]
    sums = [f"add r1, r1, r{i}" for i in range(2, 32)]
    text = "\n".join(
        [*writes, *sums, f"add r2, r0, {sum(range(32))}", "beq r1, r2, good", "trap 1", "good: halt"]
    )
    assert _traps(machine, text) == []


def test_loops_that_end_together(machine: Machine) -> None:
    heads = [f"loop {trips}, end" for trips in (2, 3, 2, 3)[:DEPTH]]
    text = "\n".join(
        [*heads, "add r1, r1, 1", "end: add r2, r0, 36", "beq r1, r2, good", "trap 1", "good: halt"]
    )
    assert _traps(machine, text) == []


@pytest.mark.parametrize("level", range(DEPTH))
def test_break_leaves_innermost_loop(machine: Machine, level: int) -> None:
    """At each depth, a break leaves the innermost loop, and the enclosing loops continue."""
    opens = [f"loop 2, end{i}" for i in range(level + 1)]
    ends = [f"end{i}: add r3, r3, 1" for i in reversed(range(level + 1))]
    text = "\n".join(
        [
            *opens,
            "add r1, r1, 1",
            f"break out{level}",
            "add r2, r2, 1",
            ends[0],
            f"out{level}: add r4, r4, 1",
            *ends[1:],
            f"add r5, r0, {2**level}",
            "bne r1, r5, bad",
            "bne r2, r0, bad",
            "bne r4, r5, bad",
            "halt",
            "bad: trap 1",
        ]
    )
    assert _traps(machine, text) == []


def test_too_many_nested_loops(machine: Machine) -> None:
    text = "\n".join([*("loop 2, end" for _ in range(DEPTH + 1)), "add r1, r1, 1", "end: halt"])
    assert _traps(machine, text) == [Trap.LOOP_STACK]


def test_endless_recursion(machine: Machine) -> None:
    assert _traps(machine, "again: call again\nhalt") == [Trap.CALL_STACK]


def test_endless_recursion_across_segments(machine: Machine) -> None:
    machine.driver.programs.load(assemble("callp 9, 0\nret", "calls itself"), 9, pin=True)
    assert _traps(machine, "callp 9, 0\nhalt") == [Trap.CALL_STACK]


def test_full_ring(machine: Machine) -> None:
    """Three times as many macro-instructions as can be in flight are enqueued, and each has its effect."""
    driver = machine.driver
    machine.load("add r1, r1, 1\nhalt")
    address = driver.put(np.zeros(64 * 24, np.uint8))
    for i in range(24):
        driver.enqueue(machine.ALIVE_OPCODE if i % 3 else 1, [address + 64 * i], tag=i % 4)
    assert driver.run() == []
    written = driver.fetch(address, (24, 64), np.uint8)
    assert [bool((row[:8] == 0x5A).all()) for row in written] == [bool(i % 3) for i in range(24)]


@pytest.mark.parametrize("beat", [0, 3])
def test_bus_error_in_ring_slot(rtl: RtlDevice, beat: int) -> None:
    machine = Machine(rtl)
    driver = machine.driver
    machine.load("halt")
    slot = driver.get("RING_BASE")
    at = slot + beat * rtl.config.n
    rtl.set_dram_faults([DramFault(at, at + 1, on_write=False)])
    driver.enqueue(1, [1] * 20)
    (report,) = driver.run(200_000, resume=True)
    assert (report.cause, report.segment, report.address) == (Trap.BUS_READ, 0xFF, slot)
    rtl.set_dram_faults([])
    machine.assert_alive()


def test_bus_error_in_completion_record(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    driver = machine.driver
    machine.load("halt")
    slot = driver.get("RING_BASE")
    rtl.set_dram_faults([DramFault(slot, slot + SLOT_BYTES, on_read=False)])
    driver.enqueue(1, doorbell=True)
    rtl.run_cycles(3000)  # the error arrives after the completion that the driver waits for
    (report,) = driver.run(200_000, resume=True)
    assert report.cause == Trap.BUS_WRITE
    rtl.set_dram_faults([])
    machine.assert_alive()


class GuardedMachine:
    """A machine with guarded candidates: the last guard of opcode 2 holds, and all other guards fail."""

    def __init__(self, machine: Machine):
        self.machine, self.driver = machine, machine.driver
        programs = self.driver.programs
        segment = programs.load(assemble(ALIVE, "guarded"))
        operand, tag = 65, 135
        self.never = [
            Candidate(segment, Compare.EQ, operand, 1),
            Candidate(segment, Compare.LT, operand, 0),
            Candidate(segment, Compare.NE, tag, 1),
        ]
        self.holds = Candidate(segment, Compare.EQ, tag, 1)
        programs.bind(2, [*self.never, self.holds])
        programs.bind(3, [*self.never, self.never[0]])
        self.address = self.driver.put(np.zeros(64, np.uint8))


@pytest.fixture
def guarded(rtl: RtlDevice) -> GuardedMachine:
    """Return a guarded machine with a fast memory."""
    result = GuardedMachine(Machine(rtl))
    rtl.set_dram_timing(LATENCY)
    return result


def test_dispatch_stopped_at_every_cycle(rtl: RtlDevice, guarded: GuardedMachine) -> None:
    """If dispatch is stopped `delay` cycles after the doorbell and resumed later, each call runs exactly once."""
    driver, address = guarded.driver, guarded.address
    for delay in range(STEPS):
        rtl.dram[address : address + 64] = 0
        for i in range(2):
            driver.enqueue(2, [address + 8 * i, 0], tag=1)
        before = driver.get("RING_TAIL")
        driver.doorbell()
        rtl.write_regs([(ADDRESS["CONTROL"], 2)], delay)
        rtl.run_cycles(200)
        rtl.write_regs([(ADDRESS["CONTROL"], 3)])
        assert driver.run(200_000) == [], delay
        assert driver.get("RING_TAIL") == before + 2
        assert (driver.fetch(address, (16,), np.uint8) == 0x5A).all(), delay
    guarded.machine.assert_alive()


def test_commit_at_every_cycle_of_dispatch(rtl: RtlDevice, guarded: GuardedMachine) -> None:
    """A commit during dispatch is atomic: a mix of the old table's guards and the new table's would trap."""
    driver, address = guarded.driver, guarded.address
    for delay in range(STEPS):
        rtl.dram[address : address + 8] = 0
        driver.programs.bind(2, [*guarded.never, guarded.holds])
        driver.programs.bind(2, [guarded.holds], commit=False)
        driver.enqueue(2, [address, 0], tag=1)
        driver.doorbell()
        rtl.write_regs([(ADDRESS["DISPATCH_COMMIT"], 1)], delay)
        assert driver.run(200_000) == [], delay
        assert (driver.fetch(address, (8,), np.uint8) == 0x5A).all(), delay
    guarded.machine.assert_alive()


def test_unbound_trap_if_no_guard_holds(machine: Machine) -> None:
    GuardedMachine(machine)
    machine.driver.enqueue(3, [0, 0], tag=1)
    (report,) = machine.driver.run(200_000, resume=True)
    assert report.cause == Trap.UNBOUND
    machine.assert_alive()


def test_watchdog_at_every_cycle(guarded: GuardedMachine) -> None:
    """The watchdog expires for every limit below the duration of a macro-instruction, and for no higher limit."""
    driver = guarded.driver
    expired = []
    for limit in range(5, STEPS):
        driver.set("WATCHDOG", limit)
        for _ in range(2):
            driver.enqueue(2, [guarded.address, 0], tag=1)
        causes = {report.cause for report in driver.run(200_000, resume=True)}
        assert causes <= {Trap.WATCHDOG}, limit
        expired.append(bool(causes))
        driver.set("WATCHDOG", 0)
        guarded.machine.assert_alive()
    enough = expired.index(False)
    assert enough > 0 and not any(expired[enough:]), expired


@pytest.mark.parametrize("count", [255, 256, 257, 512])
def test_command_counters_wrap_around(rtl: RtlDevice, count: int) -> None:
    """The machine waits for all commands even if their number is a multiple of the range of the command counter."""
    machine, size = Machine(rtl), 8
    driver = machine.driver
    machine.load(
        f"""
        set load.word, fill=1 fill_value=0x5a
        set load.len, {size}
        issue load, signal(store:0)
        set store.len, {size}
        add r1, op0, 0
        set store.dram, r1
        issue store, wait(load:0)
        loop {count - 1}, end
        add r1, r1, {size}
        set store.dram, r1
        issue store
        end: halt
        """
    )
    address = driver.put(np.zeros(count * size, np.uint8))
    rtl.set_dram_timing(LATENCY, 1 / 8)  # a store takes longer than all instructions after it
    driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))  # clear the interrupts that loading raised
    driver.enqueue(1, [address], irq=True, doorbell=True)
    assert rtl.wait_irq(1_000_000) and not driver.get("STATUS") & 2, driver.trap()
    assert (driver.fetch(address, (count * size,), np.uint8) == 0x5A).all()
