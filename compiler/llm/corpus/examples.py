"""What the language model is shown: a layer as it is, what is wanted, and a schedule that has given just that."""

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.llm.changes import changes_words
from compiler.llm.corpus.machines import MACHINES
from compiler.llm.corpus.walk import Walk
from compiler.llm.describe import BEST, Subject, want_of
from compiler.pipeline import Prepared
from compiler.schedule.heuristic import spots_of
from compiler.schedule.schedule import LayerSchedule
from hw.isa.counters import CAUSES


@dataclass(frozen=True)
class Example:
    """A question and an answer.

    Parameters
    ----------
    subject : Subject
        The layer as it is.
    answer : tuple of str
        What to change, in words.
    ratio : float
        Cycles with it over those there are.
    best : bool
        Nothing that was measured gives fewer.
    """

    subject: Subject
    answer: tuple[str, ...]
    ratio: float
    best: bool

    def question(self, *, profile: bool = True, want: bool = True, best: bool = False) -> list[str]:
        """Words in front of the answer; without `want`, the best is asked for whatever the answer gives."""
        return self.subject.words(BEST if best or not want else want_of(self.ratio), profile=profile)


def examples(walk: Walk) -> Iterator[Example]:
    """Each pair of steps that differ in one layer only, if that layer is counted by itself in the first of them."""
    subjects = _Subjects(walk)
    family: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(walk.steps):
        if step.base >= 0:
            family.setdefault((step.base, step.layer), [step.base]).append(number)
    for (_, layer), members in family.items():
        least = min(walk.steps[member].cycles for member in members)
        for now in members:
            subject = subjects.of(now, layer)
            if subject is not None:
                for other in members:
                    made = _example(walk, subjects, subject, (now, other), layer, least)
                    if made is not None:
                        yield made


def _example(
    walk: Walk, subjects: "_Subjects", subject: Subject, pair: tuple[int, int], layer: int, least: int
) -> Example | None:
    now, other = (walk.steps[each] for each in pair)
    try:
        answer = changes_words(subjects.schedules(pair[1])[layer], subject.schedule)
    except ValueError:  # a value that the words do not reach
        return None
    ratio = 1 + (other.cycles - now.cycles) / now.layers[layer]
    return Example(subject, tuple(answer), ratio, other.cycles == least) if ratio > 0 else None


class _Subjects:
    """The layers of a walk under its steps."""

    def __init__(self, walk: Walk):
        machine = MACHINES[walk.machine]
        prepared = Prepared(walk.point.graph(), machine.conditions.config, machine.options)
        (stage,) = prepared.lowered(prepared.fusions)
        self.walk, self.layers = walk, stage.layers
        self.spots = spots_of(prepared.config, stage, machine.conditions.dram)
        self._schedules: dict[int, list[LayerSchedule]] = {}

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Those of all layers in a step."""
        if number not in self._schedules:
            self._schedules[number] = self.walk.schedules(number)
        return self._schedules[number]

    def of(self, number: int, layer: int) -> Subject | None:
        """A layer in a step; None: it was not counted by itself there, or has a size without words."""
        step = self.walk.steps[number]
        if not step.layers.get(layer):
            return None
        where: dict[str, int] = dict(zip(CAUSES, step.where[layer], strict=True))
        subject = Subject(self.layers[layer], self.spots[layer], self.schedules(number)[layer], where)
        try:
            subject.words(BEST)
        except ValueError:
            return None
        return subject
