"""Explicit and random edits of the command sequence of a program."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.semaphores import Issued, reach
from cosim.semantics.bounding_box import BoundingBox
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_STAGE, LOAD_WORD, MATRIX_WORD, UNIT_FIELDS
from hw.isa.enums import Unit

#: Maximum number of commands that one edit splits; maximum distance that a command moves.
MAX_RUN, MAX_STEPS = 8, 16
#: Maximum number of dimensions along which a command may be split.
MAX_DIMS = 3


class EditError(ValueError):
    """Raised for an edit that a sequence of commands does not allow."""


@dataclass(frozen=True)
class Split:
    """Split of adjacent commands into two parts each; first parts move ahead of earlier second parts if allowed.

    Parameters
    ----------
    at : int
        Index of the first command; counted from the end if negative.
    run : int
        Number of commands to split, 1..MAX_RUN.
    dim : int
        Index of the dimension to split, outermost first; for a command with fewer dimensions, the innermost is split.
    eighths : int
        Size of the first part in eighths of the dimension, 1..7.
    """

    at: int
    run: int = 1
    dim: int = 0
    eighths: int = 4


@dataclass(frozen=True)
class Move:
    """Move of a command to a later or earlier position.

    Parameters
    ----------
    at : int
        Index of the command; counted from the end if negative.
    steps : int
        Number of commands to move past, -MAX_STEPS..MAX_STEPS except 0; positive values move the command later.
    """

    at: int
    steps: int


Edit = Split | Move


def apply_edits(config: MlaConfig, commands: Sequence[Issued], edits: Sequence[Edit]) -> list[Issued]:
    """Apply edits to a sequence of commands, in order.

    Raises
    ------
    EditError
        An index is out of range, there is nothing to split, or a command would move past one that must precede or
        follow it.
    """
    out = list(commands)
    for edit in edits:
        at = resolve_index(edit.at, len(out))
        out = (
            _split(config, out, at, edit) if isinstance(edit, Split) else _moved(config, out, at, edit.steps)
        )
    return out


def resolve_index(at: int, count: int) -> int:
    """Convert a possibly negative index to a non-negative one; raise EditError if it is out of range."""
    if not -count <= at < count:
        raise EditError(f"index {at} is out of range for {count} commands")
    return at % count


def move_range(config: MlaConfig, commands: Sequence[Issued], at: int) -> range:
    """Return the range of steps by which a command may move: negative for earlier, positive for later positions."""
    early = 0
    while (
        at + early > 0
        and early > -MAX_STEPS
        and not must_precede(config, commands[at + early - 1], commands[at])
    ):
        early -= 1
    late = 0
    while (
        at + late + 1 < len(commands)
        and late < MAX_STEPS
        and not must_precede(config, commands[at], commands[at + late + 1])
    ):
        late += 1
    return range(early, late + 1)


def _split(config: MlaConfig, commands: list[Issued], at: int, edit: Split) -> list[Issued]:
    if not 1 <= edit.run <= MAX_RUN or not 0 <= edit.dim < MAX_DIMS or not 1 <= edit.eighths <= 7:
        raise EditError(f"invalid edit {edit}")
    made: list[Issued] = []
    seconds: list[Issued] = []
    for command in commands[at : at + edit.run]:
        parts = _parts(config, command, edit)
        if parts is None:
            made.append(command)
            continue
        index = len(made)
        while index and made[index - 1] in seconds and not must_precede(config, made[index - 1], parts[0]):
            index -= 1
        made.insert(index, parts[0])
        made.append(parts[1])
        seconds.append(parts[1])
    if not seconds:
        raise EditError(f"no command in {at}..{at + edit.run - 1} can be split")
    return [*commands[:at], *made, *commands[at + edit.run :]]


def _parts(config: MlaConfig, command: Issued, edit: Split) -> tuple[Issued, Issued] | None:
    """Split a command; return None if it cannot be split."""
    dims = dims_of(command, config.n)[:MAX_DIMS]
    if not dims:
        return None
    try:
        return split(command, dims[min(edit.dim, len(dims) - 1)], edit.eighths)
    except ValueError as error:
        raise EditError(str(error)) from None


def _moved(config: MlaConfig, commands: list[Issued], at: int, steps: int) -> list[Issued]:
    if not steps or steps not in move_range(config, commands, at):
        raise EditError(f"the command at {at} cannot move by {steps}")
    out = list(commands)
    out.insert(at + steps, out.pop(at))
    return out


def must_precede(config: MlaConfig, first: Issued, second: Issued) -> bool:
    """Return True if `first` must be issued before `second`."""
    if first.layer != second.layer:
        return True  # counter tags change in program order
    if first.unit == second.unit == Unit.MATRIX and (_streams(first) or _streams(second)):
        return True  # line buffers carry state from one command to the next
    each = [footprint_of(config, command) for command in (first, second)]
    return any((a.write or b.write) and a.meets(b) for a in each[0] for b in each[1])


def _streams(command: Issued) -> bool:
    return bool(MATRIX_WORD.unpack(get(command, "word"))["dw"])


def footprint_of(config: MlaConfig, command: Issued) -> Sequence[BoundingBox]:
    """Return the memory regions that a command accesses; cached in the command."""
    if not command.reach:
        command.reach = reach(config, command)
    return command.reach


#: Fraction of random edits that are splits and not moves; fraction of indices near the start or the end.
_SPLIT_FRACTION, _NEAR_END_FRACTION = 0.7, 0.5
#: Average distance of indices near the start or the end.
_MEAN_DISTANCE = 4.0
#: Choices of random splits; repeated values are more likely.
_RUNS, _EIGHTHS, _DIMS = (1, 1, 2, 3, 4, 5, 6), (1, 2, 4, 4, 6, 7), (0, 0, 0, 1, MAX_DIMS - 1)
#: Maximum number of random edits tried.
_MAX_ATTEMPTS = 40


def draw_edits(
    config: MlaConfig, commands: Sequence[Issued], rng: random.Random
) -> tuple[Edit, list[Issued]] | None:
    """Return a random edit and the edited commands; None if no allowed edit was found."""
    for _ in range(_MAX_ATTEMPTS if commands else 0):
        at = _draw_index(len(commands), rng)
        if rng.random() < _SPLIT_FRACTION:
            edit: Edit = Split(at, rng.choice(_RUNS), rng.choice(_DIMS), rng.choice(_EIGHTHS))
        else:
            free = [step for step in move_range(config, commands, at % len(commands)) if step]
            if not free:
                continue
            edit = Move(at, rng.choice(free))
        try:
            return edit, apply_edits(config, commands, [edit])
        except EditError:
            continue
    return None


def _draw_index(count: int, rng: random.Random) -> int:
    """Return a random index, counted from the nearer end."""
    if rng.random() < _NEAR_END_FRACTION:
        near = min(int(rng.expovariate(1 / _MEAN_DISTANCE)), count - 1)
        return near if rng.random() < 0.5 else -1 - near
    at = rng.randrange(count)
    return at if at < count / 2 else at - count


#: Index of each field within the fields of its unit.
_INDEX = {unit: {item.name: at for at, item in enumerate(UNIT_FIELDS[unit])} for unit in Unit}


@dataclass(frozen=True)
class Dim:
    """Dimension along which a command can be split.

    Parameters
    ----------
    count : str
        Name of the field that holds the size of the dimension.
    moves : tuple of (str, str or int)
        Fields that are offset in the second part, each with the offset per step: a number, or the name of a field.
    grain : int
        Granularity: the size of the first part is a multiple of this number.
    first, second : tuple of (str, int)
        Fields that get new values in the first and in the second part, with these values.
    """

    count: str
    moves: tuple[tuple[str, str | int], ...]
    grain: int = 1
    first: tuple[tuple[str, int], ...] = ()
    second: tuple[tuple[str, int], ...] = ()


def get(command: Issued, name: str) -> int:
    """Return the value of a command's field."""
    return command.values[_INDEX[command.unit][name]]


def put(command: Issued, **fields: int) -> Issued:
    """Return a command with some fields replaced, and without semaphores.

    Raises
    ------
    ValueError
        A value is out of its field's range.
    """
    values = list(command.values)
    for name, value in fields.items():
        at = _INDEX[command.unit][name]
        values[at] = UNIT_FIELDS[command.unit][at].check(value, f"{command.unit.name.lower()}.")
    return Issued(command.unit, command.layer, tuple(values), command.region)


def dims_of(command: Issued, n: int) -> list[Dim]:
    """Return the dimensions along which a command can be split, outermost first; `n` is the number of lanes."""
    dims = (_load, _matrix, _fuse, _store)[command.unit](command, n)
    return [dim for dim in dims if get(command, dim.count) > dim.grain]


def split(command: Issued, dim: Dim, eighths: int) -> tuple[Issued, Issued]:
    """Split a command along a dimension; the first part covers about `eighths` / 8 of the dimension.

    Raises
    ------
    ValueError
        A value is out of its field's range.
    """
    count = get(command, dim.count)
    first_count = max(round(count * eighths / 8 / dim.grain), 1) * dim.grain
    if first_count >= count:
        first_count = (count - 1) // dim.grain * dim.grain
    moved: dict[str, int] = {}
    for name, step in dim.moves:
        offset = first_count * (step if isinstance(step, int) else get(command, step))
        moved[name] = moved.get(name, get(command, name)) + offset
    first = put(command, **{dim.count: first_count}, **dict(dim.first))
    return first, put(command, **{dim.count: count - first_count}, **moved, **dict(dim.second))


def _load(command: Issued, n: int) -> Iterator[Dim]:
    word = LOAD_WORD.unpack(get(command, "word"))
    if not word["packed"]:
        yield Dim("z_count", (("dram", "dram_z"), ("dst", "dst_z")))
    if not word["transpose"]:
        yield Dim("y_count", (("dram", "dram_y"), ("dst", "dst_y")))
    if not word["transpose"] and not word["packed"]:
        yield Dim("len", (("dram", 1), ("dst", 1)), grain=n)


def _store(_: Issued, n: int) -> Iterator[Dim]:
    yield Dim("z_count", (("dram", "dram_z"), ("src", "src_z")))
    yield Dim("y_count", (("dram", "dram_y"), ("src", "src_y")))
    yield Dim("len", (("dram", 1), ("src", 1)), grain=n)


def _matrix(command: Issued, _: int) -> Iterator[Dim]:
    word = MATRIX_WORD.unpack(get(command, "word"))
    outer = Dim(
        "oc_count", (("a_base", "a_oc"), ("w_base", "w_oc"), ("acc_base", "acc_oc")), first=(("n_tail", 0),)
    )
    if word["dw"]:
        if not word["keep"]:
            yield outer
        return
    yield outer
    yield Dim("y_count", (("u0", "u_y"), ("acc_base", "acc_y")))
    yield Dim("x_count", (("v0", "v_x"), ("acc_base", "acc_x")))
    more = (("word", MATRIX_WORD.pack(**word | {"accumulate": 1, "shift8": 0})),)
    inner = (("w_base", "w_ic"), ("a_base", "a_ic"))
    yield Dim("ic_count", inner, first=(("k_tail", 0),), second=more)
    yield Dim("ky_count", (("u0", "u_ky"), ("w_base", "w_ky")), second=more)


def _fuse(command: Issued, _: int) -> Iterator[Dim]:
    streams = ("b", "r", "d")
    own = {
        "n": (("a_base", "a_n"), ("p_base", "p_n")),
        "y": (("u0", "u_y"),),
        "x": (("v0", "v_x"), ("p_base", "p_x")),
    }
    last = FUSE_STAGE.unpack(get(command, "stage"))["tail_dim"]
    for name, moves in own.items():
        dim = Dim(f"{name}_count", (*moves, *((f"{each}_base", f"{each}_{name}") for each in streams)))
        tail = FUSE_DIMS[last] if last < len(FUSE_DIMS) else None
        yield replace(dim, first=(("lanes_tail", get(command, "lanes")),)) if tail == name else dim
