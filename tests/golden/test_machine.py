"""Tests of the golden model through the driver: traps, records, counters, instruction store, rejected operations."""

import numpy as np
import pytest

from cosim.device import DeviceTimeoutError, RegisterError
from cosim.dram import DramFault
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import Candidate
from cosim.status import TrapError
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.enums import Compare, SegmentState, Trap

CONFIG = MlaConfig(n=4, sp_bytes=4096, acc_bytes=4096, wis_words=256, segments=4, queue_depth=2, tags=4)
COPY = """
  set load.dram, op0
  set load.dst, op1
  set load.len, op2
  issue load, signal(store:0)
  set store.src, op1
  set store.dram, op3
  set store.len, op2
  issue store, wait(load:0)
  halt
"""


@pytest.fixture
def driver() -> Driver:
    return Driver(GoldenDevice(CONFIG, 1 << 16), 8)


def start(driver: Driver, text: str, tag: int = 0) -> int:
    driver.load(assemble(text), opcode=1)
    return driver.enqueue(1, tag=tag)


def trap_of(driver: Driver, text: str) -> tuple[Trap, int, int]:
    start(driver, text)
    with pytest.raises(TrapError) as error:
        driver.run()
    report = error.value.report
    driver.resume()
    return Trap(report.cause), report.pc, report.address


def test_copy_and_records(driver: Driver) -> None:
    data = np.arange(100, dtype=np.uint8)
    source, target = driver.put(data), driver.memory.alloc(100)
    segment = driver.load(assemble(COPY), opcode=2)
    number = driver.enqueue(2, [source, 32, 100, target], tag=3)
    driver.run()
    assert np.array_equal(driver.fetch(target, (100,), np.uint8), data)
    record = driver.completion(number)
    assert record and (record.trap, record.program, record.sequence, record.micros) == (0, segment, 0, 9)
    counters = driver.counters.by_tag(architectural=True)
    assert counters[3]["load_bytes"] == counters[3]["store_bytes"] == 100
    assert counters[3]["micro_config"] == 6 and counters[3]["micro_issue"] == 2
    assert counters[3]["load_commands"] == counters[3]["macros"] == counters[3]["dispatch_first"] == 1
    assert driver.counters.totals()["wis_words"] == 9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trap 7", (Trap.SOFTWARE, 0, 7)),
        ("add r1, 1\n.word 0", (Trap.ILLEGAL_INSTRUCTION, 1, 0)),
        ("add r1, 1", (Trap.PC_RANGE, 1, 0)),
        ("ret", (Trap.CALL_STACK, 0, 0)),
        ("x: call x", (Trap.CALL_STACK, 0, 0)),
        ("add r1, op0", (Trap.BAD_OPERAND, 0, 64)),
        ("callp 2, 0", (Trap.SEGMENT_INVALID, 0, 0)),
        ("wait load:0", (Trap.DEADLOCK, 0, 0)),
        ("issue matrix, wait(load:1)\nfence matrix", (Trap.DEADLOCK, 1, 0)),
        ("set load.len, 0\nissue load", (Trap.BAD_COMMAND, 1, 0)),
        ("set load.word, fill=1\nset load.dst, 4095\nset load.len, 2\nissue load", (Trap.SP_BOUNDS, 3, 4096)),
        ("set matrix.acc_base, 256\nissue matrix", (Trap.ACC_BOUNDS, 1, 256)),
        ("set fuse.src, requant=slot\nset fuse.p_base, 64\nissue fuse", (Trap.SLOT_BOUNDS, 2, 64)),
        ("set store.dram, 5\nissue store", (Trap.DRAM_WINDOW, 1, 5)),
    ],
)
def test_traps(driver: Driver, text: str, expected: tuple[Trap, int, int]) -> None:
    assert trap_of(driver, text) == expected
    number = driver.enqueue(1)  # the machine continues without a reset, and the same program traps again
    assert driver.run(resume=True)[0].macro == number


def test_deadlock_without_a_program(driver: Driver) -> None:
    assert trap_of(driver, "issue matrix, wait(store:3)\nhalt") == (Trap.DEADLOCK, 0, 0)
    record = driver.completion(0)
    assert record and record.trap == Trap.DEADLOCK


def test_earlier_commands_finish_before_a_trap(driver: Driver) -> None:
    first = start(
        driver, "set load.word, fill=1 fill_value=9\nset load.dst, 8\nset load.len, 3\nissue load\nhalt"
    )
    driver.load(assemble("trap 1"), opcode=2)
    second = driver.enqueue(2, tag=2)
    traps = driver.run(resume=True)
    assert [(t.cause, t.macro, t.tag) for t in traps] == [(Trap.SOFTWARE, second, 2)]
    assert driver.device.read_sp(8, 3).tolist() == [9, 9, 9]
    records = [driver.completion(n) for n in (first, second)]
    assert [r.trap for r in records if r] == [0, Trap.SOFTWARE]


def test_step_limit_watchdog_and_timeout(driver: Driver) -> None:
    driver.set("STEP_LIMIT", 50)
    assert trap_of(driver, "x: add r1, r1, 1\nbeq r0, r0, x") == (Trap.STEP_LIMIT, 0, 0)
    driver.set("STEP_LIMIT", 0)
    driver.enqueue(1)
    with pytest.raises(DeviceTimeoutError, match="has not completed"):
        driver.run(1000)
    driver.set("WATCHDOG", 500)
    assert Trap(driver.run(resume=True)[0].cause) == Trap.WATCHDOG


def test_bus_errors_trap(driver: Driver) -> None:
    source, target = driver.put(np.zeros(64, np.uint8)), driver.memory.alloc(64)
    driver.load(assemble(COPY), opcode=2)
    for start_, cause in ((source, Trap.BUS_READ), (target, Trap.BUS_WRITE)):
        driver.device.set_dram_faults([DramFault(start_, start_ + 1)])
        driver.enqueue(2, [source, 0, 64, target])
        assert Trap(driver.run(resume=True)[0].cause) == cause
    driver.device.set_dram_faults([])
    driver.enqueue(2, [source, 0, 64, target])
    assert driver.run(resume=True) == []


def test_guards_choose_the_program(driver: Driver) -> None:
    small, large = driver.load(assemble("halt")), driver.load(assemble("add r1, 1\nhalt"))
    driver.programs.bind(5, [Candidate(small, Compare.LT, 64, 10), Candidate(large)])
    numbers = [driver.enqueue(5, [v]) for v in (3, -1, 10)]
    driver.run()
    records = [driver.completion(n) for n in numbers]
    assert [(r.program, r.candidate) for r in records if r] == [(small, 0), (small, 0), (large, 1)]
    totals = driver.counters.totals()
    assert (totals["dispatch_first"], totals["dispatch_other"]) == (2, 1)


def test_code_in_use_is_protected(driver: Driver) -> None:
    start(driver, "loop 100, end\nadd r1, 1\nend: halt")
    driver.doorbell()
    driver.device.run_cycles(10)
    driver.set("SEG_SELECT", 0)
    assert driver.get("SEG_STATUS") >> 4 & 1
    driver.set("WIS_ADDRESS", 1)
    driver.set("WIS_DATA_HI", 0)
    assert driver.get("LOADER_ERROR") == 1
    assert Trap(driver.trap().cause) == Trap.WIS_IN_USE
    assert driver.get("WIS_ADDRESS") == 2
    driver.set("IRQ_STATUS", 15)
    assert driver.run() == []  # the program continues undisturbed
    driver.set("WIS_ADDRESS", 1)
    driver.set("WIS_DATA_HI", 0)
    assert driver.programs.segment_state(0) == SegmentState.OPEN


def test_rebinding_takes_effect_between_dispatches(driver: Driver) -> None:
    one, two = driver.load(assemble("halt")), driver.load(assemble("halt"), dma=True)
    driver.programs.bind(3, [Candidate(one)])
    first = driver.enqueue(3)
    driver.run()
    driver.programs.bind(3, [Candidate(two)], commit=False)
    second = driver.enqueue(3)
    driver.run()
    driver.set("DISPATCH_COMMIT", 1)
    third = driver.enqueue(3)
    driver.run()
    programs = [record.program for n in (first, second, third) if (record := driver.completion(n))]
    assert programs == [one, one, two]


def test_queue_depth_is_exact(driver: Driver) -> None:
    fill = "set load.word, fill=1\nissue load, wait(load:0)\n"
    assert trap_of(driver, fill + "issue load\nissue load\nhalt")[:2] == (Trap.DEADLOCK, 3)
    assert trap_of(driver, fill + "issue load\nwait store:0")[:2] == (Trap.DEADLOCK, 3)


def test_clear_messages(driver: Driver) -> None:
    halt = assemble("halt")
    with pytest.raises(InputError, match="CRC"):
        driver.programs.load(halt, crc=1)
    with pytest.raises(InputError, match="CRC"):
        driver.programs.load(halt, crc=1, dma=True)
    with pytest.raises(InputError, match="too long"):
        driver.load(assemble("add r1, 1\n" * 300))
    with pytest.raises(InputError, match="DRAM of 65536 bytes is too small"):
        driver.put(np.zeros(1 << 17, np.uint8))
    with pytest.raises(InputError, match="at most 48 operands"):
        driver.enqueue(1, [0] * 49)
    with pytest.raises(InputError, match="ring of 8 slots is full"):
        for _ in range(9):
            driver.enqueue(1)
    with pytest.raises(InputError, match="opcode must be"):
        driver.programs.bind(99, [])
    with pytest.raises(RegisterError):
        driver.device.read_reg(0x3FC)
    with pytest.raises(InputError, match="power of two"):
        Driver(GoldenDevice(CONFIG, 1 << 16), 3)


def test_trap_message_names_the_instruction(driver: Driver) -> None:
    start(driver, "add r1, 1\ntrap 5", tag=2)
    with pytest.raises(
        TrapError, match=r"SOFTWARE in macro-instruction 0 \(tag 2\), segment 0 word 1 `trap 5`"
    ):
        driver.run()


def test_pinned_code_can_be_called(driver: Driver) -> None:
    library = driver.load(assemble("add r1, 5\nret"), pin=True)
    start(
        driver,
        f"callp {library}, 0\nset load.word, fill=1 fill_value=3\nset load.dst, r1, 2\nissue load\nhalt",
    )
    assert driver.run() == []
    assert driver.device.read_sp(7, 1).tolist() == [3]
    with pytest.raises(InputError, match="pinned"):
        driver.programs.unload(library)


def test_loops_that_end_together(driver: Driver) -> None:
    number = start(driver, "loop 3, end\nloop 2, end\nadd r1, r1, 1\nend: halt")
    driver.run()
    record = driver.completion(number)
    assert record and record.micros == 1 + 3 * (1 + 2) + 1
