"""Tests of the training examples made from edited programs, and of how often each kind of example is drawn."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from compiler.llm.assembly.tokenizer import decode_program, encode_program
from compiler.llm.data.examples import Example, examples
from compiler.llm.data.held_out import MACHINES
from compiler.llm.data.trajectories import (
    EditTrajectory,
    EditVariant,
    Trajectory,
    TrajectoryStep,
    non_default,
)
from compiler.llm.tokens.layer_prompt import Ask
from compiler.llm.tokens.program_tokens import decode_edits, summary_tokens
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.dataset import TokenizedExample, batches, tokenize
from compiler.pipeline import ModelCompiler
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.edit import apply_edits, draw_edits
from compiler.tuning.edits.editable_programs import apply_program_edits, unroll_all
from compiler.tuning.edits.rewrites import unroll
from hw.isa.counters import CAUSES
from hw.isa.micro_instruction import MicroOp, decode
from hw.isa.program import Program

POINT = CalibrationNetwork((6, 6, 8), (CalibrationOp("max_pool", 0, 3, 3),))
#: Base of each variant in the tree of edits; cycles of each variant.
BASES, CYCLES = (-1, 0, 1, 0, 2), (100, 90, 95, 110, 80)


@pytest.fixture(scope="module")
def trajectory() -> Trajectory:
    """Return a trajectory of a pool with a single program that is edited at random."""
    machine = MACHINES["usual"]
    prepared = ModelCompiler(POINT.graph(), machine.conditions.config, machine.options)
    network = prepared.network()
    (layer,) = network.schedule.layers.values()
    ((program,),) = (code.programs for code in network.codes)
    (start,) = unroll_all([program]) or []
    rng, variants, commands = random.Random(4), [], [list(start.commands)]
    for number, (base, cycles) in enumerate(zip(BASES, CYCLES, strict=True)):
        where = [cycles] + [0] * (len(CAUSES) - 1)
        found = None if base < 0 else draw_edits(network.config, commands[base], rng)
        variants.append(EditVariant(base, found and found[0], cycles, where))
        if number:
            assert found
            commands.append(found[1])
    step = TrajectoryStep(-1, -1, {}, 100, {0: 100}, {0: [100] + [0] * (len(CAUSES) - 1)})
    return Trajectory(
        "usual", 1, POINT, [non_default(layer)], [step], EditTrajectory(0, program.name, variants)
    )


@pytest.fixture(scope="module")
def found(trajectory: Trajectory) -> list[Example]:
    return list(examples(trajectory))


def issued(program: Program) -> list[tuple]:
    """Return the commands of a program, with their semaphores."""
    found = unroll(program)
    assert found
    return [(each.unit, each.values, each.region, each.wait, each.signal) for each in found.commands]


def test_examples_lead_from_each_variant_to_its_descendants(
    trajectory: Trajectory, found: list[Example]
) -> None:
    pairs = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 4), (2, 4)]
    of_edits = [each for each in found if each.ask is Ask.EDITS]
    known = [each for each in of_edits if each.known]
    assert [each.ratio for each in known] == pytest.approx([CYCLES[b] / CYCLES[a] for a, b in pairs])
    assert [each.best for each in known] == [b == 4 for _, b in pairs]
    # Examples that start from the compiled program are repeated without its cost.
    assert [each.answer for each in of_edits if not each.known] == [each.answer for each in known[:4]]
    costs = [sum(each.subject.where.values()) for each in known]
    assert costs == [CYCLES[a] for a, _ in pairs]
    for each in of_edits:
        prompt = each.prompt()
        LANGUAGE.encode([*prompt, *each.answer])
        assert prompt[-3:-1] == [Ask.EDITS, prompt[-2]] and ("cause useful" in prompt) == each.known


def test_answers_give_the_variants(trajectory: Trajectory, found: list[Example]) -> None:
    """The edits of each answer, applied to the compiled program, give the expected variant."""
    assert trajectory.edited
    machine = MACHINES["usual"]
    config = machine.conditions.config
    network = ModelCompiler(POINT.graph(), config, machine.options).network()
    known = unroll_all(network.codes[0].programs) or []
    (start,) = known
    wanted = []
    for number in range(len(BASES)):
        edits = trajectory.edited.edits(number)
        commands = apply_edits(config, start.commands, edits)
        (program,) = apply_program_edits(config, known, {start.name: edits})
        wanted.append((summary_tokens(commands, config.n), commands, program))
    for each in found:
        now = sum(each.subject.where.values())
        assert list(each.summary) == wanted[CYCLES.index(now)][0]
        if each.ask is Ask.EDITS and each.subject.where["useful"] == CYCLES[0]:
            made = apply_edits(config, start.commands, decode_edits(each.answer))
            target = CYCLES.index(round(each.ratio * CYCLES[0]))
            assert [c.values for c in made] == [c.values for c in wanted[target][1]]
        if each.ask is Ask.PROGRAM:
            compiled = wanted[CYCLES.index(round(each.ratio * now))][2]
            made = decode_program(each.answer, compiled.name)
            assert not any(decode(word)["opcode"] == MicroOp.LOOP for word in made.words)
            assert issued(made) == issued(compiled)
            assert encode_program(decode_program(each.answer, "x")) == list(each.answer)
    # Examples lead to the best variant, to the program itself, and to variants one edit away.
    programs = [each for each in found if each.ask is Ask.PROGRAM]
    best = min(CYCLES)
    assert [each.ratio for each in programs if each.best] == pytest.approx(
        [best / cycles for cycles in CYCLES]
    )
    assert len(programs) == (1 + 2 + 1) + (1 + 1 + 1) + (1 + 1) + (1 + 1) + 1


def test_invalid_edits_give_no_examples(trajectory: Trajectory) -> None:
    assert trajectory.edited
    other = replace(trajectory, edited=replace(trajectory.edited, program="another"))
    assert {each.ask for each in examples(other)} <= {Ask.SCHEDULE}
    first, second = trajectory.edited.variants[:2]
    assert second.edit
    gone = replace(trajectory.edited, variants=[first, replace(second, edit=replace(second.edit, at=1000))])
    assert {each.ask for each in examples(replace(trajectory, edited=gone))} <= {Ask.SCHEDULE}


def test_no_examples_of_layers_whose_cycles_are_counted_under_another_tag(trajectory: Trajectory) -> None:
    """A softmax within a unit of attention has no cycles of its own, to which a ratio could relate."""
    assert trajectory.edited
    first, *others = trajectory.edited.variants
    fused = replace(trajectory.edited, variants=[replace(first, cycles=0), *others])
    assert not list(examples(replace(trajectory, edited=fused)))
    (step,) = trajectory.steps
    second = replace(step, base=0, layer=0, changes={"rows": 1}, cycles=90, layers={0: 90})
    pair = replace(trajectory, steps=[step, second], edited=None)
    assert {each.ask for each in examples(pair)} == {Ask.SCHEDULE}
    # The layer that has cycles of its own still gives examples, the other one does not.
    shared = replace(pair, steps=[replace(step, layers={0: 0}), second])
    assert len(list(examples(shared))) < len(list(examples(pair)))
    assert not list(examples(replace(pair, steps=[replace(each, layers={0: 0}) for each in pair.steps])))


def test_ratio_of_example_kinds(found: list[Example]) -> None:
    """Kinds are drawn in the ratio 4:2:1, whatever the number of examples and networks of each kind."""
    one = {ask: TokenizedExample((number, number), 1, ask) for number, ask in enumerate(Ask)}
    groups = [[one[Ask.SCHEDULE]]] * 9 + [[one[Ask.EDITS]] * 40, [one[Ask.PROGRAM]] * 5]
    drawn_ = batches(groups, 50, 1000, random.Random(1))
    seen = Counter(int(word) for _ in range(64) for word in next(drawn_).tokens[:, 0])
    assert sum(seen.values()) == 3200
    for (_, number), share in zip(sorted((n, n) for n in seen), (4, 2, 1), strict=True):
        assert abs(seen[number] / 3200 - share / 7) < 0.04
    assert {tokenize(each, best=True).ask for each in found} == {Ask.EDITS, Ask.PROGRAM}
