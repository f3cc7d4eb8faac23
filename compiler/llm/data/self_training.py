"""Measured answers of the model: rollouts for GRPO, and self-training (expert iteration)."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from compiler.llm.data.collect import Devices, MeasureHarness
from compiler.llm.data.held_out import TRAINING, is_held_out, is_validation
from compiler.llm.data.trajectories import Trajectory, TrajectoryStep, changed_fields
from compiler.llm.generate.candidate_pool import CostReranker
from compiler.llm.generate.requests import Edits, LmRequest, Schedules
from compiler.llm.generate.sampler import SampledAnswer, draw
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.layer_prompt import Ask, Programs, subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.generators.generator import GeneratorTask
from hw.errors import InputError

#: Fraction of prompts about the static compiler's schedule (other prompts are about the best known schedule), and
#: fraction of prompts that request program edits if a program can be edited.
_STATIC_SHARE, _EDITS_SHARE = 0.6, 0.35
#: Maximum cost ratio, and cost ratio of answers that cannot be measured.
MAX_COST_RATIO = 3.0
_TOKENS = frozenset(LANGUAGE.tokens)


@dataclass(frozen=True)
class RolloutGroup:
    """Answers to one prompt with their costs.

    Parameters
    ----------
    ask : Ask
        Type of the requested answers.
    prompt : list of str
        Tokens of the prompt.
    answers : list of list of str
        Tokens of each answer.
    costs : list of float
        Cycles of each answer relative to the starting point, at most MAX_COST_RATIO.
    """

    ask: Ask
    prompt: list[str]
    answers: list[list[str]]
    costs: list[float]

    def as_json(self) -> dict[str, Any]:
        """Return the group as a JSON object."""
        return {
            "ask": self.ask.value,
            "question": self.prompt,
            "answers": self.answers,
            "costs": self.costs,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "RolloutGroup":
        """Parse a group from a JSON object as returned by `as_json`.

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
            raise InputError(f"not a group of answers with costs: {error}") from None
        tokens = [group.prompt, *group.answers]
        if not group.answers or not all(each and set(each) <= _TOKENS for each in tokens):
            raise InputError("a prompt and its answers must consist of tokens of the model's vocabulary")
        if len(group.answers) != len(group.costs) or not all(
            0 < cost <= MAX_COST_RATIO for cost in group.costs
        ):
            raise InputError(
                f"{len(group.answers)} answers need the same number of costs, each at most {MAX_COST_RATIO:g}"
            )
        return group


def roll_out(
    devices: Devices, trajectory: Trajectory, model: Gpt, count: int, rng: random.Random
) -> RolloutGroup | None:
    """Sample and measure answers about one layer or program of a network.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    trajectory : Trajectory
        Trajectory of the network; `is_usable` must be true for it.
    model : Gpt
        Language model to sample from.
    count : int
        Number of answers.
    rng : random.Random
        Random generator for the choice of the prompt.

    Returns
    -------
    RolloutGroup or None
        Measured answers; None if no prompt is possible, or the recorded cost of the network is not reproduced.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    try:
        harness = MeasureHarness(devices, trajectory.machine, trajectory.point)
        task = task_of(harness, trajectory, 0 if rng.random() < _STATIC_SHARE else best_of(trajectory), rng)
        request = None if task is None else _request(task, rng)
        if task is None or request is None or request.grammar is None:
            return None
        prompt = request.prompt(profile=model.profile)
    except (InputError, ValueError):  # measured with another compiler version, or a size without a token
        return None
    generator = np.random.default_rng(rng.getrandbits(64))
    try:
        answers = draw(model, LANGUAGE, prompt, request.grammar, count, generator)
    except ValueError:  # the prompt exceeds the context
        return None
    whole = [each for each in answers if each.complete]
    costs = _costs(harness, task, request, whole)
    return RolloutGroup(request.ask, prompt, [list(each.tokens) for each in whole], costs) if whole else None


def _request(task: GeneratorTask, rng: random.Random) -> LmRequest | None:
    """Return a request about the layer or a program of the task; None if neither is possible."""
    if rng.random() < _EDITS_SHARE:
        programs = Programs(task)
        if programs.programs:
            return Edits(programs, rng.choice(programs.programs))
    subjects = subjects_of(task)
    return Schedules(task, *next(iter(subjects.items()))) if subjects else None


def _costs(
    harness: MeasureHarness, task: GeneratorTask, request: LmRequest, answers: Sequence[SampledAnswer]
) -> list[float]:
    """Return the cost of each answer relative to the task's current schedule; identical programs are measured once."""
    known = {task.network.digest: 1.0}
    return [_cost(harness, task, request, each.tokens, known) for each in answers]


def _cost(
    harness: MeasureHarness,
    task: GeneratorTask,
    request: LmRequest,
    tokens: Sequence[str],
    known: dict[str, float],
) -> float:
    try:
        schedule: Schedule = request.candidate(tokens).schedule
        network = harness.prepared.network(schedule)
    except (InputError, ValueError):
        return MAX_COST_RATIO
    if network.digest not in known:
        found = harness.measure(network)
        known[network.digest] = (
            MAX_COST_RATIO if found is None else min(found.cycles / task.measured.cycles, MAX_COST_RATIO)
        )
    return known[network.digest]


#: Fraction of prompts about the static compiler's schedule in self-training; others are about the best known schedule.
_SELF_TRAINING_STATIC_SHARE = 0.5


@dataclass(frozen=True)
class SamplingOptions:
    """Parameters for sampling answers from a model.

    Parameters
    ----------
    model : Gpt
        Language model to sample from.
    answers : int
        Number of measured answers per prompt.
    temperature : float
        Sampling temperature, as in `draw`.
    drawn : int
        Number of sampled answers, of which the cost model selects the `answers` most promising ones; if `drawn` does
        not exceed `answers`, all sampled answers are measured.
    prompts : int
        Number of prompts per network; prompts after the first start from the best known schedule.
    """

    model: Gpt
    answers: int
    temperature: float = 1.0
    drawn: int = 0
    prompts: int = 1


def is_usable(trajectory: Trajectory) -> bool:
    """Return whether a network belongs to the training set."""
    return (
        trajectory.machine in TRAINING and not is_validation(trajectory) and not is_held_out(trajectory.point)
    )


def networks_of_round(
    trajectories: Sequence[Trajectory], number: int, count: int, seed: int
) -> list[Trajectory]:
    """Return the networks of a round; rounds cycle through all usable networks.

    Parameters
    ----------
    trajectories : sequence of Trajectory
        Trajectories of the whole corpus.
    number : int
        Number of the round, starting at 1.
    count : int
        Maximum number of networks.
    seed : int
        Random seed for the order of the networks.

    Raises
    ------
    InputError
        No network is usable.
    """
    usable = sorted(
        filter(is_usable, trajectories), key=lambda trajectory: (trajectory.machine, trajectory.index)
    )
    if not usable:
        raise InputError(f"none of {len(trajectories)} networks are usable for training")
    random.Random(seed).shuffle(usable)
    first = (number - 1) * count
    return [usable[index % len(usable)] for index in range(first, first + min(count, len(usable)))]


def extend(
    devices: Devices, trajectory: Trajectory, options: SamplingOptions, rng: random.Random
) -> Trajectory:
    """Extend a trajectory with measured answers of the model about its layers.

    The trajectory is unchanged if no answer is new, or if recorded cycles are not reproduced, since cycles of different
    compiler versions must not be mixed.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    trajectory : Trajectory
        Trajectory of the network; `is_usable` must be true for it.
    options : SamplingOptions
        Sampling parameters and model.
    rng : random.Random
        Random generator for the choice of layers and answers.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    try:
        harness = MeasureHarness(devices, trajectory.machine, trajectory.point)
        base = 0 if rng.random() < _SELF_TRAINING_STATIC_SHARE else best_of(trajectory)
        for _ in range(options.prompts):
            task = task_of(harness, trajectory, base, rng)
            if task is not None:
                trajectory = replace(
                    trajectory,
                    steps=[*trajectory.steps, *_measured(harness, trajectory, base, task, options, rng)],
                )
            base = best_of(trajectory)
    except InputError:  # measured with another compiler version
        return trajectory
    return trajectory


def best_of(trajectory: Trajectory) -> int:
    """Return the index of the fastest step of a trajectory."""
    costs = [step.cycles for step in trajectory.steps]
    return costs.index(min(costs))


def _measured(
    harness: MeasureHarness,
    trajectory: Trajectory,
    base: int,
    task: GeneratorTask,
    options: SamplingOptions,
    rng: random.Random,
) -> Iterator[TrajectoryStep]:
    """Yield a trajectory step for each measured answer about the task's layer; step `base` has the task's schedule."""
    (name,) = task.layers
    layer = harness.names.index(name)
    for schedule in _answers(task, dict(_tried(trajectory, base, layer)), options, rng):
        whole = task.with_layers({name: schedule}, "", "").schedule
        measured = harness.measure(harness.prepared.network(whole))
        if measured is not None:
            yield harness.step(base, layer, changed_fields(schedule, task.schedule.layers[name]), measured)


def task_of(
    harness: MeasureHarness, trajectory: Trajectory, base: int, rng: random.Random
) -> GeneratorTask | None:
    """Return a task for a random layer under the schedule of a step; None if the step's cycles are not reproduced."""
    layers = trajectory.schedules(base)
    if len(layers) != len(harness.names):
        return None
    schedule = Schedule(harness.first.schedule.fusions, dict(zip(harness.names, layers, strict=True)))
    measured = harness.measure(harness.prepared.network(schedule))
    step = trajectory.steps[base]
    own = [number for number, cycles in step.layers.items() if cycles]
    if measured is None or measured.cycles != step.cycles or not own:
        return None
    name = harness.names[rng.choice(own)]
    return GeneratorTask(harness.prepared, harness.machine.conditions, schedule, (name,), measured)


def _tried(trajectory: Trajectory, base: int, layer: int) -> Iterator[tuple[LayerSchedule, int]]:
    """Yield measured schedules of a layer with the network's cycles, if all other layers are as in step `base`."""

    def others(schedules: list[LayerSchedule]) -> list[LayerSchedule]:
        return [*schedules[:layer], *schedules[layer + 1 :]]

    wanted = others(trajectory.schedules(base))
    for number, step in enumerate(trajectory.steps):
        schedules = trajectory.schedules(number)
        if others(schedules) == wanted:
            yield schedules[layer], step.cycles


def _answers(
    task: GeneratorTask, tried: Mapping[LayerSchedule, int], options: SamplingOptions, rng: random.Random
) -> list[LayerSchedule]:
    """Return distinct unmeasured schedules of the layer, sampled from the model."""
    ((name, subject),) = subjects_of(task).items()
    ranked = options.drawn > options.answers
    request = Schedules(task, name, subject, fitting=not ranked, known=options.model.known)
    request.tried |= set(tried)
    count = max(options.drawn, options.answers)
    generator = np.random.default_rng(rng.getrandbits(64))
    try:
        prompt, grammar = request.prompt(profile=options.model.profile), request.grammar
        answers = draw(options.model, LANGUAGE, prompt, grammar, count, generator, options.temperature)
    except ValueError:  # a size without a token, or the prompt exceeds the context
        return []
    found = list(dict.fromkeys(request.meaning(each.tokens) for each in answers if each.complete))
    return list(islice(_promising(request, found, tried), options.answers)) if ranked and found else found


def _promising(
    request: Schedules, schedules: Sequence[LayerSchedule], tried: Mapping[LayerSchedule, int]
) -> Iterator[LayerSchedule]:
    """Yield new schedules with distinct programs, best predictions first; the cost model learns from `tried`."""
    ranking, task, name = CostReranker(), request.task, request.about
    for schedule, cycles in tried.items():
        ranking.learn(task, name, schedule, cycles)
    gains = [promise.gain for promise in ranking.predict(task, name, schedules)]
    seen = {None, *map(request.digest, tried)}
    for number in sorted(range(len(schedules)), key=lambda number: -gains[number]):
        digest = request.digest(schedules[number])
        if digest not in seen:
            seen.add(digest)
            yield schedules[number]
