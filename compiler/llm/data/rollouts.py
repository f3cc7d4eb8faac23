"""Groups of the model's answers: many to the same question, each with what it costs, to be compared with each other.

Unlike `own`, which chooses what is worth measuring, everything that is answered is measured: what the model says
without any help is what gets better.
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

#: Part of the questions that are about the static compiler's schedule, the others are about the best that is known;
#: and of those that ask for edits of a program, where one can be edited.
_FIRST, _EDITS = 0.6, 0.35
#: What an answer costs at most, over what it is to improve on; one that cannot be measured costs as much.
WORST = 3.0
_WORDS = frozenset(LANGUAGE.words)


@dataclass(frozen=True)
class RolloutGroup:
    """Answers to a question.

    Parameters
    ----------
    ask : Ask
        Which kind of answer was wanted.
    question : list of str
        Its words.
    answers : list of list of str
        The words of each answer.
    costs : list of float
        Cycles of each, over those of what it is to improve on; WORST at most.
    """

    ask: Ask
    question: list[str]
    answers: list[list[str]]
    costs: list[float]

    def as_json(self) -> dict[str, Any]:
        """As text and numbers."""
        return {
            "ask": self.ask.value,
            "question": self.question,
            "answers": self.answers,
            "costs": self.costs,
        }

    @staticmethod
    def of(data: Mapping[str, Any]) -> "RolloutGroup":
        """From what `as_json` gives.

        Raises
        ------
        InputError
            It is something else.
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
    """So many answers about one layer or program of a network, measured.

    Parameters
    ----------
    devices : Devices
        Who measures.
    walk : Walk
        A network that `compiler.llm.data.self_training.may_be_asked`.
    model : Gpt
        Who is asked.
    count : int
        Answers.
    rng : random.Random
        Chance.

    Returns
    -------
    Group or None
        None: there is nothing to ask, or the network costs something else than it did.

    Raises
    ------
    WorkError
        A simulator died.
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
    """One about the task's layer, or about a program of it."""
    if rng.random() < _EDITS:
        programs = Programs(task)
        if programs.pieces:
            return Edits(programs, rng.choice(programs.pieces))
    subjects = subjects_of(task)
    return Schedules(task, *next(iter(subjects.items()))) if subjects else None


def _costs(
    rig: MeasureHarness, task: GeneratorTask, request: LmRequest, answers: Sequence[SampledAnswer]
) -> list[float]:
    """What answers cost over what the task does; programs that are the same are measured once."""
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
