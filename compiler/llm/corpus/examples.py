"""What the language model is shown: a layer as it is, what is wanted, and an answer that has given just that."""

from collections.abc import Iterator

from compiler.llm.changes import changes_words
from compiler.llm.corpus.example import Example
from compiler.llm.corpus.subjects import Subjects
from compiler.llm.corpus.variants import edit_examples
from compiler.llm.corpus.walk import Walk
from compiler.llm.describe import Subject


def examples(walk: Walk) -> Iterator[Example]:
    """Of schedules; and, if a program of the walk was edited, of edits and of whole programs."""
    subjects = Subjects(walk)
    yield from _of_schedules(walk, subjects)
    if walk.edited is not None:
        yield from edit_examples(walk.edited, subjects)


def _of_schedules(walk: Walk, subjects: Subjects) -> Iterator[Example]:
    """Each pair of steps that differ in one layer only, if that layer is counted by itself in the first of them."""
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
    walk: Walk, subjects: Subjects, subject: Subject, pair: tuple[int, int], layer: int, least: int
) -> Example | None:
    now, other = (walk.steps[each] for each in pair)
    try:
        answer = changes_words(subjects.schedules(pair[1])[layer], subject.schedule)
    except ValueError:  # a value that the words do not reach
        return None
    ratio = 1 + (other.cycles - now.cycles) / now.layers[layer]
    return Example(subject, tuple(answer), ratio, other.cycles == least) if ratio > 0 else None
