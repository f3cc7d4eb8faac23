"""Tokens about micro-programs: summaries of command streams in prompts, and edits in answers.

A summary lists units, and extents along the dimensions in which commands can be split.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.semaphores import Issued
from compiler.llm.tokens.integer_tokens import decode_number, encode_number
from compiler.llm.tokens.schedule_delta import END
from compiler.tuning.edits.edit import MAX_DIMS, Edit, Move, Split, dims_of, get, resolve_index
from hw.isa.enums import Unit

SUMMARY, TIMES, MORE = "outline", "times", "more"
#: Separator before the commands of another layer.
LAYER = "layer"
_UNITS = {unit: unit.name.lower() for unit in Unit}
#: Summary tokens except `LAYER`, which is also a prompt token.
SUMMARY_TOKENS = (SUMMARY, TIMES, MORE, *_UNITS.values())
#: Maximum number of tokens for each end of the program, and maximum number of commands of a repeated group.
_MAX_END_TOKENS, _MAX_PERIOD = 48, 12
#: Tokens needed to describe a repetition.
_REPETITION_TOKENS = 3
SPLIT, MOVE = "split at", "move at"
#: Edit tokens; the end token is shared with other answers.
EDIT_TOKENS = (SPLIT, MOVE)
#: Maximum number of edits per answer.
MAX_EDITS = 8

_Tokens = tuple[str, ...]


@dataclass(frozen=True)
class _Group:
    """Group of consecutive commands: command count and tokens."""

    commands: int
    tokens: _Tokens


def summary_tokens(commands: Sequence[Issued], n: int) -> list[str]:
    """Return the summary tokens of commands: the number of commands, then all commands or those near both ends.

    `times 3 2` precedes two commands that are repeated three times; `more 40` replaces forty omitted commands.

    Parameters
    ----------
    commands : sequence of Issued
        Commands in issue order.
    n : int
        Array size (number of lanes).
    """
    groups = _groups(_each(commands, n))
    front, back = _ends(groups)
    left = len(commands) - sum(group.commands for group in (*front, *back))
    more = [MORE, *encode_number(left)] if left else []
    front_tokens = [token for group in front for token in group.tokens]
    return [
        SUMMARY,
        *encode_number(len(commands)),
        *front_tokens,
        *more,
        *(token for group in back for token in group.tokens),
    ]


def _each(commands: Sequence[Issued], n: int) -> list[_Tokens]:
    """Return the tokens of each command."""
    known: dict[tuple, _Tokens] = {}
    out = []
    tag = commands[0].layer if commands else 0
    for command in commands:
        key = command.unit, command.values
        if key not in known:
            sizes = (-(-get(command, dim.count) // dim.grain) for dim in dims_of(command, n)[:MAX_DIMS])
            known[key] = (_UNITS[command.unit], *(token for size in sizes for token in encode_number(size)))
        out.append((LAYER, *known[key]) if command.layer != tag else known[key])
        tag = command.layer
    return out


def _groups(each: Sequence[_Tokens]) -> list[_Group]:
    """Return groups of commands; at each position, the repetition that saves the most tokens forms one group."""
    out, at = [], 0
    while at < len(each):
        _, period, times = max(_repeats(each, at))
        tokens = tuple(token for one in each[at : at + period] for token in one)
        if times > 1:
            tokens = (TIMES, *encode_number(times), *encode_number(period), *tokens)
        out.append(_Group(period * times, tokens))
        at += period * times
    return out


def _repeats(each: Sequence[_Tokens], at: int) -> list[tuple[int, int, int]]:
    """Return (saved tokens, period, repeat count) for each repetition that starts at position `at`."""
    found = [(0, 1, 1)]
    for period in range(1, _MAX_PERIOD + 1):
        end = at + period
        while end < len(each) and each[end] == each[end - period]:
            end += 1
        times = (end - at) // period
        if times > 1:
            saved = (times - 1) * sum(map(len, each[at : at + period])) - _REPETITION_TOKENS
            if saved > 0:
                found.append((saved, period, times))
    return found


def _ends(groups: Sequence[_Group]) -> tuple[list[_Group], list[_Group]]:
    """Return the first and the last groups within the token limit; if all groups fit, all are in the first list."""
    if sum(len(group.tokens) for group in groups) <= 2 * _MAX_END_TOKENS:
        return list(groups), []
    front = _first(groups)
    back = _first(groups[: len(front) - 1 if front else None : -1])
    return front, back[::-1]


def _first(groups: Sequence[_Group]) -> list[_Group]:
    out, tokens = [], 0
    for group in groups:
        tokens += len(group.tokens)
        if tokens > _MAX_END_TOKENS:
            break
        out.append(group)
    return out


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
    if head not in EDIT_TOKENS:
        raise ValueError(f"{head!r} is not an edit")
    return edit_of(head, [decode_number(rest) for _ in range(4 if head == SPLIT else 2)])
