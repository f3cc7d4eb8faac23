"""Every trap can be provoked on all devices; the machine continues with the next macro-instruction without a reset."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from cosim.dram import DramFault
from cosim.rtl.rtl_device import RtlDevice
from cosim.status import TrapReport
from hw.bus.register_map import ADDRESS
from hw.isa.assembler import assemble
from hw.isa.enums import EXACT_TRAPS, Trap
from tests.chip.conftest import Machine

#: For each cause: program, index of the trapping word, and recorded address or value.
PROGRAMS: dict[Trap, tuple[str, int, int]] = {
    Trap.ILLEGAL_INSTRUCTION: ("add r1, 1\n.word 0\nhalt", 1, 0),
    Trap.PC_RANGE: ("add r1, 1\nadd r1, 2", 2, 0),
    Trap.LOOP_STACK: ("break 0", 0, 0),
    Trap.CALL_STACK: ("ret", 0, 0),
    Trap.BAD_OPERAND: ("add r1, op3\nhalt", 0, 67),
    Trap.BAD_COMMAND: ("set load.len, 0\nissue load\nhalt", 1, 0),
    Trap.SP_BOUNDS: (
        "set load.word, fill=1\nset load.dst, 65530\nset load.len, 8\nissue load\nhalt",
        3,
        65537,
    ),
    Trap.ACC_BOUNDS: ("set matrix.acc_base, 1024\nissue matrix\nhalt", 1, 1024),
    Trap.SLOT_BOUNDS: (
        "set load.word, space=param\nset load.dst, 4096\nset load.dram, op0\nset load.len, 8\nissue load\nhalt",
        4,
        4103,
    ),
    Trap.DRAM_WINDOW: ("set load.dram, 16\nset load.len, 8\nissue load\nhalt", 2, 16),
    Trap.DEADLOCK: ("add r1, 1\nwait matrix:2\nhalt", 1, 0),
    Trap.STEP_LIMIT: ("again: add r1, r1, 1\nbeq r0, r0, again", 0, 0),
    Trap.SOFTWARE: ("trap 42", 0, 42),
}


def _run_to_trap(machine: Machine) -> TrapReport:
    (report,) = machine.driver.run(200_000, resume=True)
    return report


@pytest.mark.parametrize("cause", PROGRAMS, ids=lambda cause: cause.name)
def test_trap_of_a_program(machine: Machine, cause: Trap) -> None:
    text, pc, address = PROGRAMS[cause]
    segment = machine.load(text)
    machine.driver.set("STEP_LIMIT", 1000)
    buffer = machine.driver.put(np.zeros(64, np.uint8))
    number = machine.driver.enqueue(1, [buffer], tag=3)
    report = _run_to_trap(machine)
    assert (report.cause, report.pc, report.segment, report.tag, report.macro) == (
        cause,
        pc,
        segment,
        3,
        number,
    )
    assert report.address == address, report
    record = machine.driver.completion(number)
    assert record is not None and record.trap == cause
    machine.assert_alive()


@pytest.mark.parametrize(
    "fields",
    ["load.len, 0", "fuse.lanes, 31", "matrix.x_count, 0", "fuse.u_y, 2047\nset fuse.y_count, 4000"],
    ids=["zero bytes", "too many lanes", "zero rows", "coordinates too large"],
)
def test_bad_command_variants(machine: Machine, fields: str) -> None:
    machine.load(f"set {fields}\nissue {fields.partition('.')[0]}\nhalt")
    machine.driver.enqueue(1)
    report = _run_to_trap(machine)
    assert (report.cause, report.address) == (Trap.BAD_COMMAND, 0), report
    machine.assert_alive()


def _unbound(machine: Machine) -> None:
    machine.driver.enqueue(5)


def _segment_invalid(machine: Machine) -> None:
    machine.driver.programs.unload(machine.load("halt", opcode=2))
    machine.driver.enqueue(2)


def _bad_macro(machine: Machine) -> None:
    machine.driver.enqueue_words([0x12345678], [])


@pytest.mark.parametrize(
    ("provoke", "cause"),
    [
        (_unbound, Trap.UNBOUND),
        (_segment_invalid, Trap.SEGMENT_INVALID),
        (_bad_macro, Trap.BAD_MACRO),
    ],
)
def test_trap_of_dispatch(machine: Machine, provoke: Callable[[Machine], None], cause: Trap) -> None:
    provoke(machine)
    assert _run_to_trap(machine).cause == cause
    machine.assert_alive()


def test_every_exact_trap_is_provoked() -> None:
    assert set(PROGRAMS) | {Trap.UNBOUND, Trap.SEGMENT_INVALID, Trap.BAD_MACRO} == set(EXACT_TRAPS)


def test_watchdog_stops_endless_loop(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    machine.load("again: beq r0, r0, again")
    machine.driver.set("WATCHDOG", 3000)
    machine.driver.enqueue(1)
    assert _run_to_trap(machine).cause == Trap.WATCHDOG
    machine.assert_alive()


@pytest.mark.parametrize("response", ["SLVERR", "DECERR"])
def test_bus_error_of_load(rtl: RtlDevice, response: Literal["SLVERR", "DECERR"]) -> None:
    machine = Machine(rtl)
    machine.load(
        "set load.dram, op0\nset load.len, 256\nset load.y_count, 4\nset load.dram_y, 256\nset load.dst_y, 256\n"
        "issue load\nfence load\nhalt"
    )
    buffer = machine.driver.put(np.zeros(1024, np.uint8))
    rtl.set_dram_faults([DramFault(buffer + 512, buffer + 516, response)])
    machine.driver.enqueue(1, [buffer])
    report = _run_to_trap(machine)
    assert (report.cause, report.address) == (Trap.BUS_READ, buffer + 512)
    rtl.set_dram_faults([])
    machine.assert_alive()


@pytest.mark.parametrize("response", ["SLVERR", "DECERR"])
def test_bus_error_of_store(rtl: RtlDevice, response: Literal["SLVERR", "DECERR"]) -> None:
    machine = Machine(rtl)
    machine.load("set store.dram, op0\nset store.len, 1024\nissue store\nfence store\nhalt")
    buffer = machine.driver.put(np.zeros(1024, np.uint8))
    rtl.set_dram_faults([DramFault(buffer + 600, buffer + 604, response)])
    machine.driver.enqueue(1, [buffer])
    assert _run_to_trap(machine).cause == Trap.BUS_WRITE
    rtl.set_dram_faults([])
    machine.assert_alive()


def test_write_into_running_program_traps_without_effect(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    segment = machine.load(
        "loop 20000, end\nadd r1, r1, 1\nend: set store.dram, op0\nset store.len, 4\nissue store\nhalt"
    )
    buffer = machine.driver.put(np.full(4, 7, np.uint8))
    rtl.write_sp(0, np.arange(4, dtype=np.uint8))
    number = machine.driver.enqueue(1, [buffer], doorbell=True)
    rtl.run_cycles(2000)
    base = machine.driver.programs.base(segment)
    rtl.write_regs([(ADDRESS["WIS_ADDRESS"], base), (ADDRESS["WIS_DATA_LO"], 0), (ADDRESS["WIS_DATA_HI"], 0)])
    rtl.run_cycles(50)
    assert machine.driver.get("TRAP_CAUSE") == Trap.WIS_IN_USE
    machine.driver.set("IRQ_STATUS", machine.driver.get("IRQ_STATUS"))
    machine.driver.run()
    record = machine.driver.completion(number)
    assert record is not None and record.trap == Trap.NONE
    assert (machine.driver.fetch(buffer, (4,), np.uint8) == np.arange(4)).all()
    machine.assert_alive()


def test_bus_error_replaces_pending_trap(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    machine.load("set load.dram, op0\nset load.len, 1024\nissue load\ntrap 42")
    buffer = machine.driver.put(np.zeros(1024, np.uint8))
    rtl.set_dram_faults([DramFault(buffer + 600, buffer + 604)])
    machine.driver.enqueue(1, [buffer])
    assert _run_to_trap(machine).cause == Trap.BUS_READ
    rtl.set_dram_faults([])
    machine.assert_alive()


def test_deadlock_after_halt(machine: Machine) -> None:
    segment = machine.load("set load.word, fill=1\nset load.len, 8\nissue load, wait(matrix:0)\nhalt")
    number = machine.driver.enqueue(1, tag=2)
    report = _run_to_trap(machine)
    assert (report.cause, report.pc, report.segment, report.tag, report.macro) == (
        Trap.DEADLOCK,
        0,
        segment,
        2,
        number,
    )
    machine.assert_alive()


def test_rejected_write_keeps_record_of_pending_trap(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    pinned = machine.driver.programs.load(assemble("ret", "pinned"), pin=True)
    machine.load("trap 42")
    machine.driver.set("IRQ_STATUS", 15)
    machine.driver.enqueue(1, doorbell=True)
    assert rtl.wait_irq(100_000)
    assert machine.driver.get("TRAP_CAUSE") == Trap.SOFTWARE
    for address in (machine.driver.programs.base(pinned), 0xFFFF):
        machine.driver.set("WIS_ADDRESS", address)
        machine.driver.set("WIS_DATA_HI", 0)
    rtl.run_cycles(50)
    assert machine.driver.get("TRAP_COUNT") == 2
    assert _run_to_trap(machine).cause == Trap.SOFTWARE
    machine.assert_alive()


def test_i32_residual_is_rejected(machine: Machine) -> None:
    machine.load("set fuse.stage, residual=1 r_dtype=i32\nissue fuse\nhalt")
    machine.driver.enqueue(1)
    assert _run_to_trap(machine).cause == Trap.BAD_COMMAND
    machine.assert_alive()
