"""Tests of segments of the instruction store: use of all segments, rejected operations, failed or aborted checks."""

import numpy as np
import pytest

from cosim.device import Device
from cosim.dram import DramFault
from cosim.programs import Candidate
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS
from hw.config import load_target
from hw.control.layouts import LoaderError, SegmentOp
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.enums import SegmentState, Trap
from hw.isa.program import Program
from tests.chip.conftest import DRAM_BYTES, Machine

OPEN, CHECK, FREE, PIN = (int(op) for op in (SegmentOp.OPEN, SegmentOp.CHECK, SegmentOp.FREE, SegmentOp.PIN))
#: Segments set up by `_prepare`.
VALID, OPENED, RUNNING = 1, 2, 3


@pytest.mark.parametrize("dma", [False, True])
def test_all_segments_load_pin_and_run(device: Device, dma: bool) -> None:
    _use_every_segment(device, dma)


def test_all_segments_of_n16() -> None:
    with RtlDevice(load_target("n16"), DRAM_BYTES) as device:
        _use_every_segment(device, dma=True)


def _use_every_segment(device: Device, dma: bool) -> None:
    machine = Machine(device)
    driver = machine.driver
    for segment in range(1, device.config.segments):
        driver.programs.load(assemble("ret", f"program {segment}"), segment, dma=dma, pin=True)
        driver.set("SEG_SELECT", segment)
        assert driver.get("SEG_STATUS") == SegmentState.VALID | 0x8 | driver.get("SEG_STATUS") & 0x10
    driver.programs.unload(0)
    calls = "\n".join(f"callp {segment}, 0" for segment in range(1, device.config.segments))
    driver.load(assemble(f"{calls}\nhalt", "all"), opcode=1)
    driver.enqueue(1)
    assert driver.run() == []


def _prepare(machine: Machine) -> None:
    """Set up a valid segment, an open segment, and a segment whose program runs for a long time."""
    driver = machine.driver
    for segment in (VALID, OPENED):
        driver.programs.load(assemble("halt", f"program {segment}"), segment)
    words = driver.get("SEG_BASE")
    driver.set("WIS_ADDRESS", words)
    driver.set("WIS_DATA_HI", 0)  # writing a word reopens a segment
    assert driver.programs.segment_state(OPENED) == SegmentState.OPEN
    busy = assemble("loop 30000, end\nadd r1, r1, 1\nend: halt", "busy")
    driver.programs.load(busy, RUNNING)


@pytest.mark.parametrize(
    ("segment", "base", "length", "command", "error"),
    [
        (99, 512, 1, OPEN, LoaderError.RANGE),
        (4, 4096, 1, OPEN, LoaderError.RANGE),
        (4, 512, 0, OPEN, LoaderError.RANGE),
        (4, 2047, 2, OPEN, LoaderError.RANGE),
        (4, 0, 1, OPEN, LoaderError.OVERLAP),
        (4, 512, 1, OPEN, LoaderError.NONE),
        (99, 0, 0, CHECK, LoaderError.RANGE),
        (VALID, 0, 0, CHECK, LoaderError.NOT_OPEN),
        (99, 0, 0, FREE, LoaderError.RANGE),
        (VALID, 0, 0, FREE, LoaderError.NONE),
        (99, 0, 0, PIN, LoaderError.RANGE),
        (OPENED, 0, 0, PIN, LoaderError.NOT_OPEN),
        (VALID, 0, 0, PIN, LoaderError.NONE),
    ],
)
def test_segment_commands(
    machine: Machine, segment: int, base: int, length: int, command: int, error: LoaderError
) -> None:
    _prepare(machine)
    driver = machine.driver
    for name, value in (("SEG_SELECT", segment), ("SEG_BASE", base), ("SEG_LENGTH", length)):
        driver.set(name, value)
    driver.set("SEG_COMMAND", command)
    assert driver.get("LOADER_ERROR") == error
    machine.assert_alive()


@pytest.mark.parametrize(
    ("segment", "length", "error"),
    [(99, 1, LoaderError.RANGE), (VALID, 1, LoaderError.NOT_OPEN), (OPENED, 7, LoaderError.RANGE)],
)
def test_loader_commands(machine: Machine, segment: int, length: int, error: LoaderError) -> None:
    _prepare(machine)
    driver = machine.driver
    driver.set("SEG_SELECT", segment)
    driver.set("SEG_LENGTH", length)
    driver.set("LOADER_COMMAND", 1)
    assert driver.get("LOADER_ERROR") == error
    machine.assert_alive()


@pytest.mark.parametrize(("beyond", "error"), [(0, LoaderError.RANGE), (-1, LoaderError.NOT_OPEN)])
def test_words_outside_segments(machine: Machine, beyond: int, error: LoaderError) -> None:
    machine.driver.set("WIS_ADDRESS", machine.driver.config.wis_words + beyond)
    machine.driver.set("WIS_DATA_HI", 0)
    assert machine.driver.get("LOADER_ERROR") == error
    machine.assert_alive()


@pytest.mark.parametrize("command", [OPEN, FREE])
def test_running_segment_cannot_be_opened_or_freed(rtl: RtlDevice, command: int) -> None:
    machine = Machine(rtl)
    _prepare(machine)
    driver = machine.driver
    driver.programs.bind(1, [Candidate(RUNNING)])
    driver.enqueue(1, doorbell=True)
    rtl.run_cycles(2000)
    for name, value in (
        ("SEG_SELECT", RUNNING),
        ("SEG_BASE", 512),
        ("SEG_LENGTH", 1),
        ("SEG_COMMAND", command),
    ):
        driver.set(name, value)
    assert driver.get("LOADER_ERROR") == LoaderError.IN_USE
    assert driver.get("TRAP_CAUSE") == Trap.WIS_IN_USE
    driver.set("IRQ_STATUS", 15)
    assert driver.run() == []
    machine.assert_alive()


def test_consecutive_rejections_are_all_counted(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    _prepare(machine)
    driver = machine.driver
    driver.programs.bind(1, [Candidate(RUNNING)])
    driver.enqueue(1, doorbell=True)
    rtl.run_cycles(2000)
    driver.set("SEG_SELECT", RUNNING)
    rtl.write_regs([(ADDRESS["SEG_COMMAND"], FREE)] * 3)
    assert driver.get("TRAP_COUNT") == 3
    driver.set("IRQ_STATUS", 15)
    assert driver.run() == []


def test_wrong_crc_fails_segment(machine: Machine) -> None:
    program = assemble("halt", "halt")
    for dma in (False, True):
        with pytest.raises(InputError, match="CRC"):
            machine.driver.programs.load(program, 5, crc=program.crc ^ 1, dma=dma)
        assert machine.driver.programs.segment_state(5) == SegmentState.FAILED
    machine.driver.programs.load(program, 5)
    machine.assert_alive()


def _ready_to_load(machine: Machine, words: int) -> tuple[Program, int]:
    """Open segment 5 and put its image into DRAM; return the program and the image's address."""
    driver = machine.driver
    program = Program("image", tuple(assemble("halt", "halt").words) * words)
    source = driver.put(np.frombuffer(program.image, np.uint8))
    for name, value in (
        ("SEG_SELECT", 5),
        ("SEG_BASE", 1024),
        ("SEG_LENGTH", words),
        ("SEG_COMMAND", OPEN),
        ("SEG_CRC", program.crc),
        ("LOADER_SOURCE", source),
    ):
        driver.set(name, value)
    return program, source


def test_bus_error_fails_segment(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    _, source = _ready_to_load(machine, 300)
    rtl.set_dram_faults([DramFault(source + 1024, source + 1028)])
    machine.driver.set("LOADER_COMMAND", 1)
    rtl.run_cycles(5000)
    assert machine.driver.get("LOADER_ERROR") == LoaderError.BUS
    assert machine.driver.programs.segment_state(5) == SegmentState.FAILED
    rtl.set_dram_faults([])
    machine.assert_alive()


def test_commands_during_load_are_rejected(rtl: RtlDevice) -> None:
    machine = Machine(rtl)
    _prepare(machine)
    _ready_to_load(machine, 500)
    driver = machine.driver
    driver.set("LOADER_COMMAND", 1)
    errors = []
    for segment, command in ((5, OPEN), (5, FREE), (OPENED, CHECK)):
        driver.set("SEG_SELECT", segment)
        driver.set("SEG_COMMAND", command)
        errors.append(driver.get("LOADER_ERROR"))
    driver.set("SEG_LENGTH", 1)
    driver.set("LOADER_COMMAND", 1)
    errors.append(driver.get("LOADER_ERROR"))
    assert driver.get("STATUS") & 8, "the load ended before the last refusal"
    assert errors == [LoaderError.IN_USE] * 4
    rtl.run_cycles(5000)
    assert driver.programs.segment_state(5) == SegmentState.VALID
    machine.assert_alive()


@pytest.mark.parametrize("words", [1, 20])
def test_write_during_check_aborts_it(rtl: RtlDevice, words: int) -> None:
    machine = Machine(rtl)
    driver = machine.driver
    for delay in range(12 + words):
        program, _ = _ready_to_load(machine, words)
        rtl.write_regs([(ADDRESS["WIS_ADDRESS"], 1024)])
        for word in program.words:
            rtl.write_regs(
                [(ADDRESS["WIS_DATA_LO"], word & 0xFFFFFFFF), (ADDRESS["WIS_DATA_HI"], word >> 32)]
            )
        rtl.write_regs([(ADDRESS["WIS_ADDRESS"], 1024), (ADDRESS["SEG_COMMAND"], CHECK)])
        rtl.write_regs([(ADDRESS["WIS_DATA_HI"], program.words[0] >> 32)], delay)
        rtl.run_cycles(200)
        assert not driver.get("STATUS") & 8
        state = driver.programs.segment_state(5)
        assert state == SegmentState.OPEN, f"a write {delay} cycles after the check left {state.name}"
        driver.set("SEG_COMMAND", FREE)
    machine.assert_alive()


def test_write_at_end_of_load(rtl: RtlDevice) -> None:
    """A write before the check is rejected; a write during or after the check leaves the segment OPEN."""
    machine = Machine(rtl)
    driver = machine.driver
    rtl.set_dram_timing(1)
    states = []
    for delay in range(60):
        program, _ = _ready_to_load(machine, 2)
        driver.set("WIS_ADDRESS", 1024)
        driver.set("WIS_DATA_LO", program.words[0] & 0xFFFFFFFF)
        rtl.write_regs([(ADDRESS["LOADER_COMMAND"], 1)])
        rtl.write_regs([(ADDRESS["WIS_DATA_HI"], program.words[0] >> 32)], delay)
        rtl.run_cycles(300)
        assert not driver.get("STATUS") & 8, delay
        states.append(driver.programs.segment_state(5))
        driver.set("SEG_COMMAND", FREE)
    first = states.index(SegmentState.OPEN)
    assert set(states[:first]) <= {SegmentState.VALID} and set(states[first:]) == {SegmentState.OPEN}, states
    assert first > 0
    machine.assert_alive()


def test_dma_load_between_macro_instructions(machine: Machine) -> None:
    """A program can be loaded by DMA when the loader's read directly follows reads of the ring."""
    for number in range(3):
        machine.assert_alive()
        machine.driver.programs.load(assemble("halt", f"program {number}"), 5, dma=True)
    machine.assert_alive()
