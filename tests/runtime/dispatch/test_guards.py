"""Tests of guards: their comparisons, a device's selection of a program, and the validation of guarded programs."""

from collections.abc import Iterator

import numpy as np
import pytest

from compiler.codegen.dispatch_guard import Guard, GuardedProgram, at_most, equal
from compiler.codegen.split_programs import ProgramPart, candidates
from compiler.validate import MacroCall, ValidationError, validate
from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import Candidate
from cosim.rtl.rtl_device import RtlDevice
from cosim.status import NO_SEGMENT
from hw.config import load_target
from hw.isa.assembler import assemble
from hw.isa.enums import Compare, Trap
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, STATISTIC_BASE, Statistic

CONFIG = load_target("n4")
COMPARES = [compare for compare in Compare if compare != Compare.ALWAYS]
#: Words for which signed and unsigned comparisons differ.
EDGES = (0, 1, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
ZEROS = 3


@pytest.fixture(scope="module", params=["golden", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Yield the golden model or the RTL."""
    with (RtlDevice if request.param == "rtl" else GoldenDevice)(CONFIG, 1 << 18) as made:
        yield made


def test_text_and_truth_of_guards() -> None:
    assert str(at_most(3, 4)) == "op3 <u 5" and str(equal(Statistic.FUSE_MAX, -128)) == "%fuse_max == -128"
    assert at_most(0, 4).holds(4) and not at_most(0, 4).holds(5) and not at_most(0, 4).holds(-1)
    assert equal(Statistic.FUSE_MAX, -128).holds(-128)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((Compare.ALWAYS, OPERAND_BASE, 0), "must compare"),
        ((Compare.EQ, 3, 0), "an operand or a statistic, not selector 3"),
        ((Compare.EQ, OPERAND_BASE + MAX_OPERANDS, 0), "an operand or a statistic"),
        ((Compare.EQ, STATISTIC_BASE + len(Statistic), 0), "an operand or a statistic"),
        ((Compare.EQ, OPERAND_BASE, -1), "a word of 32 bits, not -1"),
        ((Compare.EQ, OPERAND_BASE, 1 << 32), "a word of 32 bits"),
    ],
)
def test_invalid_guards_are_rejected(fields: tuple[Compare, int, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Guard(*fields)


def _random_guard(rng: np.random.Generator) -> Guard:
    selector = rng.choice(
        [OPERAND_BASE, OPERAND_BASE + 1, OPERAND_BASE + 7, STATISTIC_BASE + Statistic.FUSE_ZEROS]
    )
    return Guard(COMPARES[rng.integers(len(COMPARES))], int(selector), int(rng.choice([*EDGES, ZEROS])))


def _expected(guards: list[Guard], operands: list[int]) -> int | None:
    """Return the index of the first guard that holds; guards on operand 7, which does not exist, never hold."""
    for number, guard in enumerate(guards):
        index = guard.operand
        word = ZEROS if index is None else operands[index] if index < len(operands) else None
        if word is not None and guard.holds(word):
            return number
    return None


def test_first_guard_that_holds_selects_the_program(rng: np.random.Generator, device: Device) -> None:
    """The first guard that holds selects the program; if none holds, the last, unguarded one runs or the machine
    traps.
    """
    device.reset()
    driver = Driver(device)
    # From here on, %fuse_zeros is ZEROS.
    driver.load(
        assemble(f"set fuse.x_count, 1\nset fuse.lanes, {ZEROS}\nissue fuse\nfence fuse\nhalt"), opcode=0
    )
    device.write_acc(0, np.zeros((1, CONFIG.n), np.int32))
    segments = [driver.load(assemble("halt" + "\nhalt" * i)) for i in range(CONFIG.candidates)]
    driver.enqueue(0)
    driver.run()
    for _ in range(40):
        guards = [_random_guard(rng) for _ in range(CONFIG.candidates - 1)]
        always = bool(rng.integers(2))
        part = ProgramPart(
            assemble("halt"), (), tuple(GuardedProgram(guard, assemble("halt")) for guard in guards)
        )
        entries = candidates(part, segments)
        driver.programs.bind(1, entries if always else entries[:-1])
        operands = [int(word) for word in rng.choice(EDGES, 2)]
        number = driver.enqueue(1, operands)
        traps = driver.run(resume=True)
        wanted = _expected(guards, operands)
        wanted = len(guards) if wanted is None and always else wanted
        record = driver.completion(number)
        assert record is not None
        if wanted is None:
            assert [trap.cause for trap in traps] == [Trap.UNBOUND] and record.program == NO_SEGMENT
        else:
            assert (traps, record.candidate, record.program) == ([], wanted, segments[wanted])


@pytest.mark.parametrize("selector", [OPERAND_BASE, STATISTIC_BASE + Statistic.FUSE_MAX])
def test_cycles_of_guards(selector: int) -> None:
    """A program starts 4 cycles after the previous one, plus 4 for each guard that fails and 3 for one that holds."""
    with RtlDevice(CONFIG, 1 << 18) as device:
        driver = Driver(device)
        driver.load(
            assemble("loop 200, end\nadd r1, r1, 1\nend: halt"), opcode=0
        )  # the next instruction has been fetched
        segment = driver.load(assemble("halt"))
        fails, holds = (Candidate(segment, compare, selector, 77) for compare in (Compare.EQ, Compare.NE))
        for failed in range(CONFIG.candidates):
            for last, more in ((Candidate(segment), 0), (holds, 3)):
                driver.programs.bind(1, [*[fails] * failed, last])
                before, number = driver.enqueue(0, [1]), driver.enqueue(1, [1])
                driver.run()
                ended, began = driver.completion(before), driver.completion(number)
                assert ended is not None and began is not None
                assert began.started - ended.retired == 4 + 4 * failed + more


HALT = assemble("halt", "main")
BAD = assemble("set load.dram, op0\nset load.len, 8\nissue load\nfence load\nhalt", "bad")
COUNT = "issue fuse\n{}halt"


def _proof(*calls: MacroCall, text: str | None = None, kind: str = "") -> int:
    if text is None:
        return validate(CONFIG, calls, [(0x1000, 0x1FFF, 3)]).paths
    with pytest.raises(ValidationError) as refused:
        validate(CONFIG, calls, [(0x1000, 0x1FFF, 3)])
    assert refused.value.kind == kind and text in str(refused.value)
    return 0


def test_every_selectable_program_is_validated() -> None:
    guarded = (GuardedProgram(at_most(1, 4), BAD),)
    assert _proof(MacroCall(HALT, (0x1000, 4), instead=guarded)) == 1
    assert _proof(MacroCall(HALT, (0, 5), instead=guarded)) == 1  # the guard does not hold
    _proof(MacroCall(HALT, (0, 4), instead=guarded), kind="window", text="program 'bad', instruction 2")
    _proof(MacroCall(HALT, (0, None), instead=guarded), kind="window", text="program 'bad', instruction 2")
    assert _proof(MacroCall(HALT, (0x1000, None), instead=guarded)) == 2
    assert _proof(MacroCall(HALT, (0,), instead=guarded)) == 1  # a guard on a missing operand


def test_programs_after_a_guard_that_always_holds_are_ignored() -> None:
    both = (GuardedProgram(at_most(1, 4), HALT), GuardedProgram(at_most(1, 9), BAD))
    assert _proof(MacroCall(BAD, (0, 3), instead=both)) == 1
    _proof(MacroCall(HALT, (0, 5), instead=both), kind="window", text="'bad'")
    _proof(MacroCall(BAD, (0, 10), instead=(both[0],)), kind="window", text="'bad'")


def test_unknown_operand_is_not_a_valid_address() -> None:
    _proof(MacroCall(BAD, (None,)), kind="statistics", text="instruction 2")


def test_guards_on_statistics() -> None:
    guarded = (GuardedProgram(equal(Statistic.FUSE_ZEROS, 4), assemble("trap 1", "short")),)
    count, main = assemble(COUNT.format("fence fuse\n"), "count"), MacroCall(HALT, instead=guarded)
    _proof(MacroCall(count), main, kind="trap", text="program 'short'")
    guarded = (GuardedProgram(equal(Statistic.FUSE_ZEROS, 4), assemble("tag 1\nhalt", "short")),)
    assert _proof(MacroCall(count), MacroCall(HALT, instead=guarded)) == 2
    _proof(
        MacroCall(assemble(COUNT.format(""), "count")),
        MacroCall(HALT, instead=guarded),
        kind="race",
        text="fence fuse",
    )
    clock = (GuardedProgram(Guard(Compare.LT, STATISTIC_BASE + Statistic.CYCLE, 99), HALT),)
    _proof(MacroCall(HALT, instead=clock), kind="statistics", text="%cycle")


def test_paths_merge_at_a_fence() -> None:
    """Paths merge at a fence; without merging, forty calls of two programs each would give too many paths."""
    program = assemble("fence load, matrix, fuse, store\nissue fuse\nfence fuse\nhalt", "either")
    guarded = (GuardedProgram(equal(Statistic.FUSE_ZEROS, 4), program),)
    assert _proof(*[MacroCall(program, instead=guarded)] * 40) < 100


def test_too_many_guarded_programs_are_rejected() -> None:
    many = (GuardedProgram(at_most(0, 1), HALT),) * CONFIG.candidates
    _proof(MacroCall(HALT, (1,), instead=many), kind="size", text="at most 4 candidates, not 5")
