"""Rollouts for GRPO: groups of answers to the same prompt with their measured costs.

Unlike `self_training`, which measures promising answers only, every answer is measured, so that the unaided model
improves.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.self_training import best_of, task_of
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.decode.sampler import SampledAnswer, draw
from compiler.llm.generate.requests import Edits, LmRequest, Schedules
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.layer_prompt import Programs, subjects_of
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.schedule.schedule import Schedule
from compiler.tuning.generators.task import GeneratorTask
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
