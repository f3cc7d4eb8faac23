"""Acceptance of programs given as text: equivalent ones are proved, and ones that are wrong for few inputs refused."""

import os
import random

import numpy as np
import pytest

from compiler.runtime.program_text import program_text
from compiler.tuning.measure.equivalence import (
    GOLDEN_INPUTS,
    PARAMETER_INPUTS,
    EquivalenceChecker,
    PlainPrograms,
)
from compiler.tuning.measure.golden_inputs import PATTERNS, TensorForm, golden_inputs
from cosim.golden.batch import BatchMemories
from tests.support.cheating_programs import (
    LAYERS,
    CheatingPrograms,
    guarded,
    without_low_half,
)

#: Number of changed programs of each layer, of refused ones that are tried again, and of these attempts.
CHANGES, TRIED_AGAIN, RETRIES = 10, 1, 2


@pytest.fixture
def seed() -> int:
    """Return MLA_SEED or, if it is unset, a random seed; print it."""
    seed = int(os.environ.get("MLA_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"MLA_SEED={seed}")
    return seed


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


def test_programs_that_depend_on_data_are_refused() -> None:
    programs = CheatingPrograms("tanh")
    (own,) = programs.programs
    network = programs.with_texts({own.name: guarded(program_text(own), "fuse_max", 77)})
    verdict = EquivalenceChecker(programs.prepared).check(network)
    assert "must not depend on data" in (verdict.difference or "")


def test_dead_instructions_before_a_loop_do_not_change_the_form(seed: int) -> None:
    """The program sums to accumulators that nothing has written, and dead instructions move its loops."""
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
