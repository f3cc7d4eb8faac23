"""Edits of micro-programs, which split and move commands, do not change the results."""

import random
from dataclasses import replace

import pytest

from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.tuning.calibration.calibration_networks import (
    CalibrationNetwork,
    CalibrationOp,
    chains,
    singles,
)
from compiler.tuning.constraints import Constraints
from compiler.tuning.edits.edit import Edit, EditError, Move, Split, apply_edits, dims_of, move_range
from compiler.tuning.edits.editable_programs import apply_program_edits, unroll_all
from compiler.tuning.measure.equivalence import EquivalenceChecker, Verdict
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.tuner import tune
from hw.config import MlaConfig, load_target
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.enums import Unit
from hw.isa.program import Program
from tests.support.seeds import random_seed


@pytest.fixture
def seed() -> int:
    """Return MLA_SEED or, if it is unset, a random seed; print it."""
    return random_seed()


POINTS = {
    "conv": CalibrationNetwork((9, 9, 12), (CalibrationOp("conv", 20, 3),)),
    "wide conv": CalibrationNetwork((6, 6, 40), (CalibrationOp("conv", 24),)),
    "depthwise": CalibrationNetwork((9, 9, 20), (CalibrationOp("depthwise", 0, 3),)),
    "dense": CalibrationNetwork((5, 1, 40), (CalibrationOp("dense", 24),)),
    "add": CalibrationNetwork((9, 9, 12), (CalibrationOp("add"),)),
    "max_pool": CalibrationNetwork((8, 8, 12), (CalibrationOp("max_pool", 0, 2, 2),)),
    "transpose": CalibrationNetwork((6, 7, 12), (CalibrationOp("transpose"),)),
    "softmax": CalibrationNetwork((5, 6, 12), (CalibrationOp("softmax"),)),
    "norm": CalibrationNetwork((5, 5, 12), (CalibrationOp("norm"),)),
    "mean": CalibrationNetwork((6, 6, 12), (CalibrationOp("mean"),)),
    "matmul": CalibrationNetwork((6, 6, 12), (CalibrationOp("matmul", 10),)),
    "chain": CalibrationNetwork(
        (9, 9, 8), (CalibrationOp("conv", 12, 3), CalibrationOp("tanh"), CalibrationOp("conv", 8))
    ),
}


def prepared(point: CalibrationNetwork, target: str = "n4") -> ModelCompiler:
    return ModelCompiler(point.graph(5), load_target(target), CompileOptions(rounding="reference"))


def own_programs(network: CompiledNetwork) -> list[Program]:
    return [program for code in network.codes for program in code.programs]


def with_programs(made: ModelCompiler, network: CompiledNetwork, programs: list[Program]) -> CompiledNetwork:
    """Return the network with the given programs replaced by their texts."""
    texts = {
        old.name: ProgramText(digest_of(old), program_text(new))
        for old, new in zip(own_programs(network), programs, strict=True)
    }
    return made.network(replace(network.schedule, programs=texts))


def random_edit(rng: random.Random, config: MlaConfig, commands: list) -> Edit:
    """Return a random edit that the commands allow."""
    while True:
        at = rng.randrange(-len(commands), len(commands))
        if rng.random() < 0.7:
            edit: Edit = Split(at, rng.randint(1, 6), rng.randrange(3), rng.randint(1, 7))
        else:
            steps = [step for step in move_range(config, commands, at % len(commands)) if step]
            edit = Move(at, rng.choice(steps or [1]))
        try:
            apply_edits(config, commands, [edit])
        except EditError:
            continue
        return edit


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_unrolled_programs_regenerate_identically(target: str, seed: int) -> None:
    rng, found = random.Random(seed), 0
    for points in (list(POINTS.values()), singles(16, rng), chains(16, rng)):
        for point, _ in zip(points, range(12), strict=False):
            try:
                network = prepared(point, target).network()
            except InputError:  # operator without a form for this machine
                continue
            programs = own_programs(network)
            known = unroll_all(programs)
            assert known is not None
            made = apply_program_edits(network.config, known, {})
            assert [each.words for each in made] == [each.words for each in programs]
            found += 1
    assert found >= 20


@pytest.mark.parametrize("name", POINTS)
def test_edited_programs_are_equivalent(name: str, seed: int) -> None:
    rng = random.Random(f"{seed} {name}")
    made = prepared(POINTS[name])
    network = made.network()
    sameness = EquivalenceChecker(made)
    known = unroll_all(own_programs(network))
    assert known is not None
    for number in range(3):
        edits: dict[str, list[Edit]] = {}
        for each in known:
            mine = edits[each.name] = []
            for _ in range(rng.randint(1, 6)):
                mine.append(
                    random_edit(rng, network.config, apply_edits(network.config, each.commands, mine))
                )
        changed = with_programs(made, network, apply_program_edits(network.config, known, edits))
        assert sameness.check(changed, number) == Verdict(), edits


def test_every_dimension_can_be_split(seed: int) -> None:
    """Commands can be split along each of their dimensions, in the middle and at both ends."""
    seen: set[tuple[Unit, str]] = set()
    for name, point in POINTS.items():
        made = prepared(point)
        network = made.network()
        known = unroll_all(own_programs(network))
        assert known is not None
        ways: dict[tuple[Unit, str], tuple[str, int, int]] = {}
        for program in known:
            for at, command in enumerate(program.commands):
                for number, dim in enumerate(dims_of(command, network.config.n)[:3]):
                    ways.setdefault((command.unit, dim.count), (program.name, at, number))
        for key, (program, at, number) in ways.items():
            if key in seen:
                continue
            seen.add(key)
            for eighths in (1, 4, 7):
                changed = apply_program_edits(
                    network.config, known, {program: [Split(at, 1, number, eighths)]}
                )
                assert (
                    EquivalenceChecker(made).check(with_programs(made, network, changed)).difference is None
                ), (
                    name,
                    key,
                )
    assert {(unit, count) for unit, count in seen} >= {
        (Unit.LOAD, "y_count"),
        (Unit.LOAD, "z_count"),
        (Unit.LOAD, "len"),
        (Unit.STORE, "y_count"),
        (Unit.STORE, "len"),
        (Unit.MATRIX, "oc_count"),
        (Unit.MATRIX, "y_count"),
        (Unit.MATRIX, "x_count"),
        (Unit.FUSE, "n_count"),
        (Unit.FUSE, "y_count"),
        (Unit.FUSE, "x_count"),
    }, seen


def test_invalid_edits_are_rejected() -> None:
    made = prepared(POINTS["chain"])
    config = made.config
    known = unroll_all(own_programs(made.network()))
    assert known is not None
    commands = known[0].commands
    count = len(commands)
    for edit, words in (
        (Split(count), f"index {count} is out of range for {count} commands"),
        (Move(-count - 1, 1), f"index {-count - 1} is out of range for {count} commands"),
        (Split(0, 9), "invalid edit"),
        (Split(0, 1, 3), "invalid edit"),
        (Split(0, 1, 0, 8), "invalid edit"),
        (Move(0, 0), "the command at 0 cannot move by 0"),
        (Move(0, 99), "the command at 0 cannot move by 99"),
    ):
        with pytest.raises(EditError, match=words):
            apply_edits(config, commands, [edit])
    matrix = next(at for at, command in enumerate(commands) if command.unit == Unit.MATRIX)
    drain = next(at for at, command in enumerate(commands) if command.unit == Unit.FUSE)
    with pytest.raises(EditError, match="cannot move"):  # would drain the sums before they are computed
        apply_edits(config, commands, [Move(matrix, drain - matrix)])


@pytest.mark.parametrize(
    "line",
    [
        "sub r1, r1, 1",
        "set load.len, op0",
        "add r1, op0, 0",
        "issue store, signal(seq:0)",
        "clear load",
    ],
)
def test_unsupported_programs_are_not_unrolled(line: str) -> None:
    plain = "set store.dram, op0\nissue store\nhalt"
    assert unroll_all([assemble(plain, "plain")]) is not None
    assert unroll_all([assemble(plain.replace("issue", f"{line}\nissue"), "other")]) is None
    assert unroll_all([assemble("set store.len, 16\nissue store\nhalt", "absolute")]) is None


def test_inner_fences_are_reported_and_dropped() -> None:
    """The regenerated semaphores order commands that depend on each other, so inner fences are dropped and reported."""
    plain = "set store.dram, op0\nissue store\nissue store\nhalt"
    fenced = plain.replace("issue store\nissue", "issue store\nfence load\nissue")
    (one,), (other,) = (unroll_all([assemble(text, "plain")]) or [] for text in (plain, fenced))
    assert (one.fenced, other.fenced) == (False, True)
    assert [each.values for each in one.commands] == [each.values for each in other.commands]


@pytest.mark.parametrize("name", ["add", "chain"])
def test_search_continues_with_edits(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.tuning.search.program_edit_search._DEFAULT_PATIENCE", 2)
    place, options = HardwareProfile(load_target("n4")), CompileOptions(rounding="reference")
    with Measurer(POINTS[name].graph(5), place, options, devices=1) as measurer:
        found = tune(measurer, "edits", 24, seed=seed)
        forbidden = tune(
            measurer, "edits", 8, seed=seed, constraints=Constraints(frozenset({"micro-program"}))
        )
    results = [trial.result for trial in found.trials]
    assert all(isinstance(result, Measurement) and result.exact for result in results)
    edited_ones = [trial for trial in found.trials if trial.schedule.programs]
    assert len(edited_ones) >= 12
    cycles = [result.cycles for result in results if isinstance(result, Measurement)]
    assert found.best.cost == min(found.baseline.cycles, *cycles)
    assert not any(trial.schedule.programs for trial in forbidden.trials)
