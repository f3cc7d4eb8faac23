"""Derives training examples from measured trajectories."""

from collections.abc import Iterator
from pathlib import Path

from compiler.llm.data.edit_examples import edit_examples
from compiler.llm.data.example import Example
from compiler.llm.data.journal import read
from compiler.llm.data.prompts import TrajectoryPrompts
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.tokens.layer_prompt import PromptSubject
from compiler.llm.tokens.schedule_delta import changes_words


def texts(count: int) -> list[list[str]]:
    """Return the tokens of `count` prompts with answers, from networks spread over the corpus."""
    walks = read(CORPUS)
    out: list[list[str]] = []
    for walk in walks[:: max(len(walks) // (2 * count), 1)]:
        found = next(examples(walk), None)
        if found is not None:
            out.append([*found.question(best=True), *found.answer])
        if len(out) == count:
            break
    return out


CORPUS = Path(__file__).with_name("schedules.xz")


def examples(walk: Trajectory) -> Iterator[Example]:
    """Yield the examples of schedules, and of edits and whole programs if a program was edited."""
    subjects = TrajectoryPrompts(walk)
    yield from _of_schedules(walk, subjects)
    if walk.edited is not None:
        yield from edit_examples(walk.edited, subjects)


def _of_schedules(walk: Trajectory, subjects: TrajectoryPrompts) -> Iterator[Example]:
    """Yield one example per pair of steps that differ in one layer with its own cycle counter in the first step."""
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
    walk: Trajectory,
    subjects: TrajectoryPrompts,
    subject: PromptSubject,
    pair: tuple[int, int],
    layer: int,
    least: int,
) -> Example | None:
    now, other = (walk.steps[each] for each in pair)
    try:
        answer = changes_words(subjects.schedules(pair[1])[layer], subject.schedule)
    except ValueError:  # a value that the words do not reach
        return None
    ratio = 1 + (other.cycles - now.cycles) / now.layers[layer]
    return Example(subject, tuple(answer), ratio, other.cycles == least) if ratio > 0 else None
