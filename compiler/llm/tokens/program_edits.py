"""Edits of a program's commands as words."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiler.codegen.semaphores import Issued
from compiler.llm.tokens.integer_tokens import number_words, take_number
from compiler.llm.tokens.schedule_delta import END
from compiler.tuning.edits.edit import MOST_DIMS, Edit, Move, Split, place_of
from compiler.tuning.edits.split import dims_of

SPLIT, MOVE = "split at", "move at"
#: All but the end, which answers have in common.
WORDS = (SPLIT, MOVE)
#: Edits of an answer, at most.
MOST = 8


def edits_words(edits: Sequence[Edit]) -> list[str]:
    """Each edit, and the end.

    Raises
    ------
    ValueError
        A number has no words.
    """
    return [*(word for edit in edits for word in _edit_words(edit)), END]


def edits_of(words: Sequence[str]) -> tuple[Edit, ...]:
    """The edits that `edits_words` gives these words for.

    Raises
    ------
    ValueError
        They are no edits.
    """
    rest, out = iter(words), []
    while (word := next(rest, None)) != END:
        out.append(_edit(word, rest))
    if (more := next(rest, None)) is not None:
        raise ValueError(f"{more!r} follows the end")
    return tuple(out)


def edit_of(head: str, numbers: Sequence[int]) -> Edit:
    """The edit with these numbers."""
    return Split(*numbers) if head == SPLIT else Move(*numbers)


def nearer(at: int, count: int) -> int:
    """A place among so many, counted from the nearer end."""
    at = place_of(at, count)
    return at if at < count / 2 else at - count


def plain(edit: Edit, commands: Sequence[Issued], n: int) -> Edit:
    """The one of all edits that do the same to commands which says no more than it must.

    Its place is counted from the nearer end, a run ends with the program, a dimension is one that there is.

    Parameters
    ----------
    edit : Edit
        One that the commands allow.
    commands : sequence of Issued
        In order.
    n : int
        Lanes.
    """
    at = place_of(edit.at, len(commands))
    if isinstance(edit, Move):
        return replace(edit, at=nearer(at, len(commands)))
    run = commands[at : at + edit.run]
    dims = max(len(dims_of(command, n)[:MOST_DIMS]) for command in run)
    return Split(nearer(at, len(commands)), len(run), min(edit.dim, dims - 1), edit.eighths)


def _edit_words(edit: Edit) -> list[str]:
    if isinstance(edit, Move):
        return [MOVE, *number_words(edit.at), *number_words(edit.steps)]
    numbers = (edit.at, edit.run, edit.dim, edit.eighths)
    return [SPLIT, *(word for number in numbers for word in number_words(number))]


def _edit(head: str | None, rest: Iterator[str]) -> Edit:
    if head not in WORDS:
        raise ValueError(f"{head!r} is no edit")
    return edit_of(head, [take_number(rest) for _ in range(4 if head == SPLIT else 2)])
