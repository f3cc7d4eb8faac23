"""Tokens of program edits, with encoding and decoding."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiler.codegen.semaphores import Issued
from compiler.llm.tokens.integer_tokens import decode_number, encode_number
from compiler.llm.tokens.schedule_delta import END
from compiler.tuning.edits.edit import MAX_DIMS, Edit, Move, Split, dims_of, resolve_index

SPLIT, MOVE = "split at", "move at"
#: Edit tokens; the end token is shared with other answers.
TOKENS = (SPLIT, MOVE)
#: Maximum number of edits per answer.
MAX_EDITS = 8


def encode_edits(edits: Sequence[Edit]) -> list[str]:
    """Encode edits as tokens, followed by the end token.

    Raises
    ------
    ValueError
        A number cannot be expressed as tokens.
    """
    return [*(token for edit in edits for token in _encode_edit(edit)), END]


def decode_edits(tokens: Sequence[str]) -> tuple[Edit, ...]:
    """Decode edits; inverse of `encode_edits`.

    Raises
    ------
    ValueError
        The tokens are not valid edits.
    """
    rest, out = iter(tokens), []
    while (token := next(rest, None)) != END:
        out.append(_edit(token, rest))
    if (more := next(rest, None)) is not None:
        raise ValueError(f"{more!r} follows the end token")
    return tuple(out)


def edit_of(head: str, numbers: Sequence[int]) -> Edit:
    """Return the edit with the given type and numbers."""
    return Split(*numbers) if head == SPLIT else Move(*numbers)


def index_from_nearer_end(at: int, count: int) -> int:
    """Return an index relative to the nearer end of a program: negative in the second half."""
    at = resolve_index(at, count)
    return at if at < count / 2 else at - count


def canonical(edit: Edit, commands: Sequence[Issued], n: int) -> Edit:
    """Return the canonical form of an edit.

    Of all equivalent edits, the canonical edit has an index relative to the nearer end of the program, a run that ends
    within the program, and a dimension that the commands have.

    Parameters
    ----------
    edit : Edit
        Edit that the commands allow.
    commands : sequence of Issued
        Commands in issue order.
    n : int
        Array size (number of lanes).
    """
    at = resolve_index(edit.at, len(commands))
    if isinstance(edit, Move):
        return replace(edit, at=index_from_nearer_end(at, len(commands)))
    run = commands[at : at + edit.run]
    dims = max(len(dims_of(command, n)[:MAX_DIMS]) for command in run)
    return Split(index_from_nearer_end(at, len(commands)), len(run), min(edit.dim, dims - 1), edit.eighths)


def _encode_edit(edit: Edit) -> list[str]:
    if isinstance(edit, Move):
        return [MOVE, *encode_number(edit.at), *encode_number(edit.steps)]
    numbers = (edit.at, edit.run, edit.dim, edit.eighths)
    return [SPLIT, *(token for number in numbers for token in encode_number(number))]


def _edit(head: str | None, rest: Iterator[str]) -> Edit:
    if head not in TOKENS:
        raise ValueError(f"{head!r} is not an edit")
    return edit_of(head, [decode_number(rest) for _ in range(4 if head == SPLIT else 2)])
