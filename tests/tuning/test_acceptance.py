"""Acceptance of programs given as text: equivalent ones are proved, and ones that are wrong for few inputs refused."""

import random

import numpy as np
import pytest

from compiler.runtime.program_text import program_text
from compiler.tuning.measure.equivalence import (
    GOLDEN_INPUTS,
    PARAMETER_INPUTS,
    EquivalenceChecker,
    PlainPrograms,
    _Acceptance,
)
from compiler.tuning.measure.golden_inputs import PATTERNS, TensorForm, covering_inputs, golden_inputs
from cosim.golden.batch import BatchMemories
from tests.support.cheating_programs import (
    LAYERS,
    WIDE_LAYERS,
    CheatingPrograms,
    divided_maximum,
    guarded,
    other_elements,
    without_low_half,
)
from tests.support.seeds import random_seed

#: Number of changed programs of each layer, of refused ones that are tried again, and of these attempts.
CHANGES, TRIED_AGAIN, RETRIES = 10, 1, 2


@pytest.fixture
def seed() -> int:
    """Return MLA_SEED or, if it is unset, a random seed; print it."""
    return random_seed()


@pytest.mark.parametrize("layer", LAYERS)
def test_changed_programs_are_refused(layer: str, seed: int) -> None:
    rng = random.Random(f"{seed} {layer}")
    programs = CheatingPrograms(layer)
    checker, found = EquivalenceChecker(programs.prepared), 0
    for cheat in programs.cheats(rng, CHANGES):
        found += programs.refusal(checker, cheat, rng, RETRIES if found < TRIED_AGAIN else 0) is not None


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.startswith("softmax")])
def test_softmax_without_the_low_half_is_refused(layer: str, seed: int) -> None:
    rng, programs = random.Random(seed), CheatingPrograms(layer, inputs=60)
    checker = EquivalenceChecker(programs.prepared)
    for name, texts in without_low_half(programs):
        cheat = programs.cheat(name, texts)
        assert cheat is not None and 0 < cheat.wrong < 0.9, name
        assert "writes wrong values" in (programs.refusal(checker, cheat, rng, 5) or ""), name


@pytest.mark.parametrize("layer", [*LAYERS, *WIDE_LAYERS])
def test_programs_that_read_other_elements_are_refused(layer: str) -> None:
    """Programs that omit, repeat or exchange elements are refused, although many are right for all but a few inputs."""
    programs, found = CheatingPrograms(layer, inputs=1), 0
    checker = EquivalenceChecker(programs.prepared)
    every = list(programs.changes(other_elements))
    for name, texts in every if layer != "softmax 1x1x1000" else every[:3]:
        cheat = programs.cheat(name, texts)
        if cheat is not None:  # safe
            assert checker.check(cheat.network).difference is not None, name
            found += 1
    assert found


@pytest.mark.parametrize("step", ["_other_elements", "test"])
def test_elements_and_inputs_each_find_a_maximum_without_the_first_block(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either step alone refuses a softmax of 1000 classes whose maximum omits the first block, with every seed."""
    owner: type = _Acceptance if step == "_other_elements" else PlainPrograms
    monkeypatch.setattr(owner, step, lambda *_: None if step == "_other_elements" else ())
    monkeypatch.setattr(PlainPrograms, "input_count", lambda *_: 0)
    programs = CheatingPrograms("softmax 1x1x1000", inputs=1)
    name, texts = next(each for each in programs.changes(other_elements) if "first wx" in each[0])
    cheat = programs.cheat(name, texts)
    assert cheat is not None
    for seed in range(4):
        difference = EquivalenceChecker(programs.prepared, seed).check(cheat.network).difference or ""
        assert "other elements" in difference or "writes wrong values" in difference


def test_a_divided_maximum_is_accepted_if_it_is_complete() -> None:
    programs = CheatingPrograms("softmax 1x1x200", inputs=1)
    checker = EquivalenceChecker(programs.prepared)
    for name, texts, right in divided_maximum(programs):
        cheat = programs.cheat(name, texts)
        assert cheat is not None
        verdict = checker.check(cheat.network)
        assert (verdict.difference is None) == right, (name, verdict)
        assert not right or verdict.inputs > GOLDEN_INPUTS + PARAMETER_INPUTS


def test_programs_that_depend_on_data_are_refused() -> None:
    programs = CheatingPrograms("tanh")
    (own,) = programs.programs
    network = programs.with_texts({own.name: guarded(program_text(own), "fuse_max", 77)})
    verdict = EquivalenceChecker(programs.prepared).check(network)
    assert "must not depend on data" in (verdict.difference or "")


def test_dead_instructions_before_a_loop_do_not_change_the_form(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program sums to accumulators that nothing has written, and dead instructions move its loops."""
    monkeypatch.setattr(
        _Acceptance, "_other_elements", lambda *_: None
    )  # only tests refuse it, and count its form
    rng, programs = random.Random(seed), CheatingPrograms("conv", "n4", inputs=1)
    name, texts = next(each for each in programs.changes() if each[0].endswith("matrix accumulate = 1"))
    cheat = programs.cheat(name, texts)
    assert cheat is not None
    checker = EquivalenceChecker(programs.prepared)
    assert "writes wrong values" in (programs.refusal(checker, cheat, rng, 4) or ""), name


def test_refusals_of_other_checkers_are_known() -> None:
    programs = CheatingPrograms("softmax 1x1x12", inputs=1)
    name, texts = next(without_low_half(programs))
    cheat = programs.cheat(name, texts)
    assert cheat is not None
    first = EquivalenceChecker(programs.prepared).check(cheat.network)
    assert first.difference is not None
    again = EquivalenceChecker(programs.prepared, seed=1).check(
        cheat.network, 3, {first.form: first.difference}
    )
    assert again.form == first.form and "refused before" in (again.difference or "")


@pytest.mark.parametrize("layer", LAYERS)
def test_batches_compute_what_the_golden_model_computes(layer: str) -> None:
    """Commands executed on several copies of the memories at a time give the results of single executions."""
    programs = CheatingPrograms(layer, inputs=1)
    plain = PlainPrograms(programs.prepared, programs.network.schedule, 0)
    first = [(0, number) for number in range(len(plain.network.codes[0].parts))]
    runs = [plain.observe(plain.network, [number], False, first[:1]) for number in range(3)]
    (stage,) = runs[0].stages
    start = stage.base + stage.code.image.size
    memories = BatchMemories(plain.network.config, runs[0].images[0, 0], len(runs), start)
    for number, run in enumerate(runs):
        memories.dram[number] = run.images[0, 0].dram[start:]
    for place in first:
        memories.run(runs[0].commands[place])
    for number, run in enumerate(runs):
        for tensor in stage.stage.outputs:
            begin = stage.address(tensor.name, 0) - start
            (wanted,) = [each.data for each in run.snapshots if each.tensor == tensor.name]
            np.testing.assert_array_equal(memories.dram[number, begin : begin + tensor.bytes], wanted)


def test_golden_inputs_reach_the_range_of_each_tensor() -> None:
    rng = np.random.default_rng(1)
    forms = [
        TensorForm(shape, low, high, rng.integers(low, high, shape, np.int64))
        for shape, low, high in (
            ((3, 4, 5), -128, 127),
            ((1, 1, 1), 0, 255),
            ((1, 7, 2), -(1 << 15), (1 << 15) - 1),
        )
    ]
    inputs = golden_inputs([1], forms, GOLDEN_INPUTS)
    assert GOLDEN_INPUTS + PARAMETER_INPUTS >= 100 and len(PATTERNS) <= GOLDEN_INPUTS == len(inputs)
    for at, form in enumerate(forms):
        every = np.stack([each[at] for each in inputs])
        assert every.min() == form.low and every.max() == form.high
        assert len(np.unique(every, axis=0)) > GOLDEN_INPUTS / 3
    for mine, again in zip(inputs, golden_inputs([1], forms, GOLDEN_INPUTS), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, again, strict=True))


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("shape", [(1, 1, 12), (1, 1, 200), (4, 4, 24), (6, 6, 20), (5, 1, 40), (32, 32, 16)])
def test_covering_inputs_have_an_extreme_in_each_block_row_and_column(
    shape: tuple[int, int, int], lanes: int
) -> None:
    form = TensorForm(shape, -128, 127, np.zeros(shape, np.int64))
    every = np.stack([each for (each,) in covering_inputs([1], [form], lanes)])
    height, width, channels = shape
    starts = range(0, channels, lanes)
    for end in (form.low, form.high):
        extreme = every == end
        alone = extreme & (extreme.sum(axis=3, keepdims=True) == 1)
        for start in starts:
            assert alone[..., start : start + lanes].any(axis=(0, 3)).all()
        if end == form.high:
            assert alone.any(axis=(0, 1, 2)).all()
        if height * width > 1:
            single = extreme & (extreme.sum(axis=(1, 2), keepdims=True) == 1)
            for start in starts:
                mine = single[..., start : start + lanes].any(axis=(0, 3))
                assert mine.any(axis=0).all() and mine.any(axis=1).all()
