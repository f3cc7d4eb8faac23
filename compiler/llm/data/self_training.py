"""The model's own answers, measured: further steps of walks, so that they are examples like any other.

Only schedules are asked for. Answers of another kind (edits of programs) would be asked for beside `_answers`, and be
measured by the same Rig.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from compiler.llm.data.held_out import is_held_out, is_judged
from compiler.llm.data.machines import TRAINING
from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import Trajectory, TrajectoryStep, different
from compiler.llm.decode.sampler import draw
from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.reranker import CostReranker
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.generators.task import GeneratorTask
from hw.errors import InputError

#: Part of the questions that are about the static compiler's schedule; the others are about the best that is known.
_FIRST = 0.5


@dataclass(frozen=True)
class Asking:
    """How the model is asked.

    Parameters
    ----------
    model : Gpt
        Which.
    answers : int
        Of each question.
    temperature : float
        Of the answers, as for `draw`.
    drawn : int
        Answers of which those are measured that the performance model, with what is known of the network, expects most
        of; if there are no more than are measured, it has no say.
    turns : int
        Questions about a network: those after the first are about the best that is known then.
    """

    model: Gpt
    answers: int
    temperature: float = 1.0
    drawn: int = 0
    turns: int = 1


def may_be_asked(walk: Trajectory) -> bool:
    """Whether a network is one that is shown in training: no other one is to be learnt from."""
    return walk.machine in TRAINING and not is_judged(walk) and not is_held_out(walk.point)


def chosen(walks: Sequence[Trajectory], number: int, count: int, seed: int) -> list[Trajectory]:
    """Networks of a round, of those that may be asked about: others in each, until all have had their turn.

    Parameters
    ----------
    walks : sequence of Walk
        All there are.
    number : int
        Of the round, from 1 on.
    count : int
        So many, or all.
    seed : int
        Of their order.

    Raises
    ------
    InputError
        There are none.
    """
    usable = sorted(filter(may_be_asked, walks), key=lambda walk: (walk.machine, walk.index))
    if not usable:
        raise InputError(f"none of {len(walks)} networks may be learnt from")
    random.Random(seed).shuffle(usable)
    first = (number - 1) * count
    return [usable[place % len(usable)] for place in range(first, first + min(count, len(usable)))]


def enlarged(devices: Devices, walk: Trajectory, asking: Asking, rng: random.Random) -> Trajectory:
    """A walk with what the model's answers about one of its layers cost, as further steps.

    It is left as it is if nothing new is answered, or if its schedules cost something else than they did: cycles of two
    compilers do not go together.

    Parameters
    ----------
    devices : Devices
        Who measures.
    walk : Walk
        A network that `may_be_asked`.
    asking : Asking
        The model.
    rng : random.Random
        Chance.

    Raises
    ------
    WorkError
        A simulator died.
    """
    try:
        rig = MeasureHarness(devices, walk.machine, walk.point)
        base = 0 if rng.random() < _FIRST else best_of(walk)
        for _ in range(asking.turns):
            task = task_of(rig, walk, base, rng)
            if task is not None:
                walk = replace(walk, steps=[*walk.steps, *_measured(rig, walk, base, task, asking, rng)])
            base = best_of(walk)
    except InputError:  # by a compiler that has changed since
        return walk
    return walk


def best_of(walk: Trajectory) -> int:
    """Number of the step that cost least."""
    costs = [step.cycles for step in walk.steps]
    return costs.index(min(costs))


def _measured(
    rig: MeasureHarness, walk: Trajectory, base: int, task: GeneratorTask, asking: Asking, rng: random.Random
) -> Iterator[TrajectoryStep]:
    """What answers about a layer under the schedule of a step cost."""
    (name,) = task.layers
    layer = rig.names.index(name)
    for schedule in _answers(task, dict(_tried(walk, base, layer)), asking, rng):
        whole = task.with_layers({name: schedule}, "", "").schedule
        measured = rig.measured(rig.prepared.network(whole))
        if measured is not None:
            yield rig.step(base, layer, different(schedule, task.schedule.layers[name]), measured)


def task_of(rig: MeasureHarness, walk: Trajectory, base: int, rng: random.Random) -> GeneratorTask | None:
    """One layer, drawn, under the schedule of a step; None: that costs something else today, or has none by itself."""
    layers = walk.schedules(base)
    if len(layers) != len(rig.names):
        return None
    schedule = Schedule(rig.first.schedule.fusions, dict(zip(rig.names, layers, strict=True)))
    measured = rig.measured(rig.prepared.network(schedule))
    step = walk.steps[base]
    alone = [number for number, cycles in step.layers.items() if cycles]
    if measured is None or measured.cycles != step.cycles or not alone:
        return None
    name = rig.names[rng.choice(alone)]
    return GeneratorTask(rig.prepared, rig.machine.conditions, schedule, (name,), measured)


def _tried(walk: Trajectory, base: int, layer: int) -> Iterator[tuple[LayerSchedule, int]]:
    """Schedules of a layer that were measured with all other layers as they are in a step, and their cycles."""

    def others(schedules: list[LayerSchedule]) -> list[LayerSchedule]:
        return [*schedules[:layer], *schedules[layer + 1 :]]

    wanted = others(walk.schedules(base))
    for number, step in enumerate(walk.steps):
        schedules = walk.schedules(number)
        if others(schedules) == wanted:
            yield schedules[layer], step.cycles


def _answers(
    task: GeneratorTask, tried: Mapping[LayerSchedule, int], asking: Asking, rng: random.Random
) -> list[LayerSchedule]:
    """Schedules of the layer that were not measured yet, as the model would have them, each once."""
    ((name, subject),) = subjects_of(task).items()
    ranked = asking.drawn > asking.answers
    request = Schedules(task, name, subject, fitting=not ranked)
    request.tried |= set(tried)
    count = max(asking.drawn, asking.answers)
    chance = np.random.default_rng(rng.getrandbits(64))
    try:
        question, grammar = request.question(profile=asking.model.profile), request.grammar
        answers = draw(asking.model, LANGUAGE, question, grammar, count, chance, asking.temperature)
    except ValueError:  # a size without words, or more words than there is room for
        return []
    found = list(dict.fromkeys(request.meaning(each.words) for each in answers if each.complete))
    return list(islice(_promising(request, found, tried), asking.answers)) if ranked and found else found


def _promising(
    request: Schedules, schedules: Sequence[LayerSchedule], tried: Mapping[LayerSchedule, int]
) -> Iterator[LayerSchedule]:
    """Those first that the performance model expects most of, with what was measured; each comes to other programs."""
    ranking, task, name = CostReranker(), request.task, request.about
    for schedule, cycles in tried.items():
        ranking.learn(task, name, schedule, cycles)
    gains = [promise.gain for promise in ranking.promises(task, name, schedules)]
    seen = {None, *map(request.digest, tried)}
    for number in sorted(range(len(schedules)), key=lambda number: -gains[number]):
        digest = request.digest(schedules[number])
        if digest not in seen:
            seen.add(digest)
            yield schedules[number]
