"""The model's own answers measured: rollouts for GRPO, and self-training (expert iteration)."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from compiler.llm.data.held_out import TRAINING, is_held_out, is_judged
from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import Trajectory, TrajectoryStep, different
from compiler.llm.decode.sampler import SampledAnswer, draw
from compiler.llm.generate.candidate_pool import CostReranker
from compiler.llm.generate.requests import Edits, LmRequest, Schedules
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.layer_prompt import Programs, subjects_of
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.generators.generator import GeneratorTask
from hw.errors import InputError

#: Fraction of prompts about the static compiler's schedule (the others are about the best known one), and fraction
#: of prompts that ask for program edits where a program can be edited.
_FIRST, _EDITS = 0.6, 0.35
#: Maximum cost ratio; answers that cannot be measured get this cost.
WORST = 3.0
_WORDS = frozenset(LANGUAGE.words)


@dataclass(frozen=True)
class RolloutGroup:
    """Answers to one prompt with their costs.

    Parameters
    ----------
    ask : Ask
        Type of answer requested.
    question : list of str
        Tokens of the prompt.
    answers : list of list of str
        Tokens of each answer.
    costs : list of float
        Cycles of each answer relative to the starting point, at most WORST.
    """

    ask: Ask
    question: list[str]
    answers: list[list[str]]
    costs: list[float]

    def as_json(self) -> dict[str, Any]:
        """Return the group as a JSON object."""
        return {
            "ask": self.ask.value,
            "question": self.question,
            "answers": self.answers,
            "costs": self.costs,
        }

    @staticmethod
    def of(data: Mapping[str, Any]) -> "RolloutGroup":
        """Parse a group from the JSON object of `as_json`.

        Raises
        ------
        InputError
            The object is not a valid group.
        """
        try:
            group = RolloutGroup(
                Ask(data["ask"]),
                list(data["question"]),
                [list(each) for each in data["answers"]],
                [float(each) for each in data["costs"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"no answers with their costs: {error}") from None
        words = [group.question, *group.answers]
        if not group.answers or not all(each and set(each) <= _WORDS for each in words):
            raise InputError("answers and their question must have words, of the model's language")
        if len(group.answers) != len(group.costs) or not all(0 < cost <= WORST for cost in group.costs):
            raise InputError(f"{len(group.answers)} answers must have as many costs, up to {WORST:g}")
        return group


def rolled_out(
    devices: Devices, walk: Trajectory, model: Gpt, count: int, rng: random.Random
) -> RolloutGroup | None:
    """Sample and measure answers about one layer or program of a network.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    walk : Trajectory
        Network for which `compiler.llm.data.self_training.may_be_asked` is true.
    model : Gpt
        Language model to sample from.
    count : int
        Number of answers.
    rng : random.Random
        Random generator for the choice of the prompt.

    Returns
    -------
    RolloutGroup or None
        None if no prompt is possible, or the recorded cost of the network is not reproduced.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    try:
        rig = MeasureHarness(devices, walk.machine, walk.point)
        task = task_of(rig, walk, 0 if rng.random() < _FIRST else best_of(walk), rng)
        request = None if task is None else _request(task, rng)
        if task is None or request is None or request.grammar is None:
            return None
        question = request.question(profile=model.profile)
    except (InputError, ValueError):  # by a compiler that has changed since; a size without words
        return None
    chance = np.random.default_rng(rng.getrandbits(64))
    try:
        answers = draw(model, LANGUAGE, question, request.grammar, count, chance)
    except ValueError:  # more words than there is room for
        return None
    whole = [each for each in answers if each.complete]
    costs = _costs(rig, task, request, whole)
    return RolloutGroup(request.ask, question, [list(each.words) for each in whole], costs) if whole else None


def _request(task: GeneratorTask, rng: random.Random) -> LmRequest | None:
    """Return a request about the layer of the task, or about a program of it."""
    if rng.random() < _EDITS:
        programs = Programs(task)
        if programs.pieces:
            return Edits(programs, rng.choice(programs.pieces))
    subjects = subjects_of(task)
    return Schedules(task, *next(iter(subjects.items()))) if subjects else None


def _costs(
    rig: MeasureHarness, task: GeneratorTask, request: LmRequest, answers: Sequence[SampledAnswer]
) -> list[float]:
    """Return the cost of answers relative to the task; identical programs are measured once."""
    known = {task.network.digest: 1.0}
    return [_cost(rig, task, request, each.words, known) for each in answers]


def _cost(
    rig: MeasureHarness,
    task: GeneratorTask,
    request: LmRequest,
    words: Sequence[str],
    known: dict[str, float],
) -> float:
    try:
        schedule: Schedule = request.candidate(words).schedule
        network = rig.prepared.network(schedule)
    except (InputError, ValueError):
        return WORST
    if network.digest not in known:
        found = rig.measured(network)
        known[network.digest] = WORST if found is None else min(found.cycles / task.measured.cycles, WORST)
    return known[network.digest]


#: Fraction of prompts about the static compiler's schedule; the others are about the best known one.
_SELF_TRAINING_FIRST = 0.5


@dataclass(frozen=True)
class Asking:
    """Sampling parameters.

    Parameters
    ----------
    model : Gpt
        Language model to sample from.
    answers : int
        Number of measured answers per prompt.
    temperature : float
        Sampling temperature, see `draw`.
    drawn : int
        Number of sampled answers, of which the cost model selects the most promising `answers`; no selection takes
        place if it is not larger than `answers`.
    turns : int
        Number of prompts per network; those after the first start from the best known schedule.
    """

    model: Gpt
    answers: int
    temperature: float = 1.0
    drawn: int = 0
    turns: int = 1


def may_be_asked(walk: Trajectory) -> bool:
    """Return whether a network belongs to the training set."""
    return walk.machine in TRAINING and not is_judged(walk) and not is_held_out(walk.point)


def chosen(walks: Sequence[Trajectory], number: int, count: int, seed: int) -> list[Trajectory]:
    """Return the networks of a round; rounds cycle through all usable networks.

    Parameters
    ----------
    walks : sequence of Trajectory
        Trajectories of the whole corpus.
    number : int
        Number of the round, starting at 1.
    count : int
        Maximum number of networks.
    seed : int
        Random seed of their order.

    Raises
    ------
    InputError
        No network is usable.
    """
    usable = sorted(filter(may_be_asked, walks), key=lambda walk: (walk.machine, walk.index))
    if not usable:
        raise InputError(f"none of {len(walks)} networks may be learnt from")
    random.Random(seed).shuffle(usable)
    first = (number - 1) * count
    return [usable[place % len(usable)] for place in range(first, first + min(count, len(usable)))]


def enlarged(devices: Devices, walk: Trajectory, asking: Asking, rng: random.Random) -> Trajectory:
    """Extend a trajectory with the measured answers of the model about one of its layers.

    The trajectory is unchanged if there is no new answer, or if recorded cycles are not reproduced: cycles of different
    compiler versions must not be mixed.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    walk : Trajectory
        Network for which `may_be_asked` is true.
    asking : Asking
        Sampling parameters and model.
    rng : random.Random
        Random generator for the choice of layers and answers.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    try:
        rig = MeasureHarness(devices, walk.machine, walk.point)
        base = 0 if rng.random() < _SELF_TRAINING_FIRST else best_of(walk)
        for _ in range(asking.turns):
            task = task_of(rig, walk, base, rng)
            if task is not None:
                walk = replace(walk, steps=[*walk.steps, *_measured(rig, walk, base, task, asking, rng)])
            base = best_of(walk)
    except InputError:  # by a compiler that has changed since
        return walk
    return walk


def best_of(walk: Trajectory) -> int:
    """Return the number of the fastest step."""
    costs = [step.cycles for step in walk.steps]
    return costs.index(min(costs))


def _measured(
    rig: MeasureHarness, walk: Trajectory, base: int, task: GeneratorTask, asking: Asking, rng: random.Random
) -> Iterator[TrajectoryStep]:
    """Yield the measured answers about a layer under the schedule of a step."""
    (name,) = task.layers
    layer = rig.names.index(name)
    for schedule in _answers(task, dict(_tried(walk, base, layer)), asking, rng):
        whole = task.with_layers({name: schedule}, "", "").schedule
        measured = rig.measured(rig.prepared.network(whole))
        if measured is not None:
            yield rig.step(base, layer, different(schedule, task.schedule.layers[name]), measured)


def task_of(rig: MeasureHarness, walk: Trajectory, base: int, rng: random.Random) -> GeneratorTask | None:
    """Return a task for a random layer under the schedule of a step; None if its cycles differ or are not its own."""
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
    """Yield the measured schedules of a layer, with all other layers as in a step, and their cycles."""

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
    """Return distinct unmeasured schedules of the layer, sampled from the model."""
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
    """Yield schedules by predicted cost, given the measured ones; each leads to a different program."""
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
