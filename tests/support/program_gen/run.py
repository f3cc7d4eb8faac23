"""Execution of a case on a device, and comparison of the outcomes on two devices."""

from dataclasses import dataclass

import numpy as np

from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import Candidate
from cosim.status import TrapReport
from hw.errors import WorkError
from hw.isa.counters import CAUSES
from hw.isa.enums import Compare
from hw.isa.macro_instruction import HEADER, MAGIC, SLOT_BYTES
from tests.support.program_gen.generator import (
    DATA,
    DRAM_BYTES,
    IMAGES,
    RING_SLOTS,
    STEP_LIMIT,
    TAGS,
    Case,
    initial_dram,
    initial_memories,
)
from tests.support.program_gen.items import Stop
from tests.support.program_gen.shrink import listing, shrink

_UNBOUND_OPCODE = 200
#: Limit of cycles, far above the cycles of any case, at which a hang is detected.
_TIMEOUT = 400_000


@dataclass
class Outcome:
    """State that must be equal on all devices."""

    sp: np.ndarray
    acc: np.ndarray
    dram: np.ndarray
    traps: list[TrapReport]
    completions: list[tuple]
    counters: dict[int, dict[str, int]]


def execute(device: Device, case: Case) -> Outcome:
    """Reset a device, run a case on it and collect the outcome."""
    device.reset()
    device.dram[:DRAM_BYTES] = initial_dram(case)
    sp, acc = initial_memories(case)
    device.write_sp(0, sp)
    device.write_acc(0, acc)
    driver = Driver(device, RING_SLOTS)
    driver.set_window(0, DATA, IMAGES - DATA)
    driver.set("STEP_LIMIT", STEP_LIMIT)
    driver.memory.alloc(IMAGES - DATA, 64, "data of the case")
    library, programs = case.render()
    driver.programs.load(library, pin=True)
    segments = [driver.programs.load(program, dma=case.dma) for program in programs]
    numbers = _enqueue(driver, case, segments)
    traps = driver.run(_TIMEOUT, resume=True)
    records = [driver.completion(number) for number in numbers]
    _account(driver, max((record.cycles for record in records if record), default=0))
    dram = device.dram[:DRAM_BYTES].copy()
    slots = dram[: RING_SLOTS * SLOT_BYTES].view("<u4").reshape(RING_SLOTS, -1)
    slots[:, 5:7] = 0  # cycles differ between devices
    return Outcome(
        device.read_sp(0, case.config.sp_bytes),
        device.read_acc(0, case.config.acc_rows),
        dram,
        traps,
        [(r.trap, r.program, r.candidate, r.sequence, r.micros) if r else () for r in records],
        driver.counters.by_tag(range(TAGS), architectural=True),
    )


def _account(driver: Driver, least: int) -> None:
    """Raise an error if the counted cycles are not the sum of the causes of all tags, or are out of bounds.

    The lower bound `least` is the recorded duration of the longest macro-instruction. The golden model counts no
    cycles.
    """
    if isinstance(driver.device, GoldenDevice):
        return
    read, tags = driver.counters.read, range(TAGS)
    counted = sum(read("cycles", tag) for tag in tags)
    caused = sum(read(f"cause_{cause}", tag) for tag in tags for cause in CAUSES)
    if caused != counted:
        raise WorkError(f"the causes sum to {caused} cycles, not to the {counted} counted")
    if not least <= counted <= driver.device.cycle:
        raise WorkError(f"{counted} cycles counted: {least} for one program, {driver.device.cycle} in all")


def _enqueue(driver: Driver, case: Case, segments: list[int]) -> list[int]:
    """Bind one opcode for each macro-instruction and enqueue all macro-instructions before the doorbell."""
    numbers = []
    free = case.config.segments - 1
    for index, macro in enumerate(case.macros):
        if macro.header is not None:
            numbers.append(driver.enqueue_words([macro.header], macro.operands))
            continue
        opcode = _UNBOUND_OPCODE if macro.unbound else index
        if not macro.unbound:
            decoys = [
                Candidate(segments[0], Compare(compare), selector, value)
                for compare, selector, value in macro.decoys
                if not holds(case, macro.operands, macro.tag, compare, selector, value)
            ]
            target = Candidate(free if macro.invalid else segments[macro.program])
            driver.programs.bind(opcode, [*decoys[: case.config.candidates - 1], target], commit=False)
        header = HEADER.pack(opcode=opcode, operands=len(macro.operands), tag=macro.tag, magic=MAGIC)
        numbers.append(driver.enqueue_words([header], macro.operands))
    driver.set("DISPATCH_COMMIT", 1)
    return numbers


def holds(case: Case, operands: list[int], tag: int, compare: int, selector: int, value: int) -> bool:
    """Return True if a guard holds for the given operands and tag, according to its definition."""
    if 64 <= selector < 64 + len(operands):
        x = operands[selector - 64]
    elif selector in (133, 134, 135):
        x = (case.config.n, len(operands), tag)[selector - 133]
    else:
        return False
    signed_x, signed_v = (w - (1 << 32) if w >> 31 else w for w in (x, value))
    return {
        Compare.EQ: x == value,
        Compare.NE: x != value,
        Compare.LT: signed_x < signed_v,
        Compare.GE: signed_x >= signed_v,
        Compare.LTU: x < value,
        Compare.GEU: x >= value,
    }[Compare(compare)]


def difference(a: Outcome, b: Outcome) -> str:
    """Return a description of the first difference between two outcomes; empty if they are equal."""
    if a.traps != b.traps:
        return f"traps: {[str(t) for t in a.traps]} against {[str(t) for t in b.traps]}"
    if a.completions != b.completions:
        return f"completions: {a.completions} against {b.completions}"
    for name in ("sp", "acc", "dram"):
        left, right = getattr(a, name), getattr(b, name)
        if not np.array_equal(left, right):
            where = np.argwhere(left != right)
            at = tuple(int(i) for i in where[0])
            return f"{name}: {len(where)} differ, the first at {at}: {left[at]} against {right[at]}"
    for tag, row in a.counters.items():
        for name, value in row.items():
            if value != b.counters[tag][name]:
                return f"counter {name} of tag {tag}: {value} against {b.counters[tag][name]}"
    return ""


def check(device: Device, model: Device, case: Case, shrink_runs: int = 150) -> None:
    """Assert that a device and the model give the same outcome; shrink a failing case and print it with its seed."""
    expected = execute(model, case)
    _assert_stops(case, expected)
    found = _found(device, case, expected)
    if not found:
        return
    small = shrink(case, lambda variant: bool(_found(device, variant, execute(model, variant))), shrink_runs)
    left = _found(device, small, execute(model, small))
    raise AssertionError(f"n={case.config.n} seed={case.seed}: {found}\nshrunk: {left}\n{listing(small)}")


def _assert_stops(case: Case, outcome: Outcome) -> None:
    """Assert that every program with a `Stop` traps; otherwise the commands after the `Stop` would run unordered."""
    for macro, completion in zip(case.macros, outcome.completions, strict=True):
        stops = any(isinstance(item, Stop) for item in case.programs[macro.program].body)
        if stops and not completion[0]:
            raise AssertionError(f"n={case.config.n} seed={case.seed}: program {macro.program} did not trap")


def _found(device: Device, case: Case, expected: Outcome) -> str:
    """Return the first difference from the expected outcome; an error of the device counts as a difference."""
    try:
        return difference(expected, execute(device, case))
    except WorkError as error:
        return f"{type(error).__name__}: {error}"
