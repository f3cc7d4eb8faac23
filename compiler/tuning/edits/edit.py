"""Edits of a program's sequence of commands, given or drawn at random."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.semaphores import Issued, reach
from cosim.semantics.bounding_box import BoundingBox
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_STAGE, LOAD_WORD, MATRIX_WORD, UNIT_FIELDS
from hw.isa.enums import Unit

#: Commands that are split together, at most, and places that one moves, at most.
MAX_RUN, MAX_STEPS = 8, 16
#: Dimensions that one may be split along, at most.
MAX_DIMS = 3


class EditError(ValueError):
    """An edit that a sequence of commands does not allow."""


@dataclass(frozen=True)
class Split:
    """Neighbours that become two commands each; first parts go in front of the second parts of others where they may.

    Parameters
    ----------
    at : int
        Place of the first of them; counted from the end if negative.
    run : int
        How many, 1..MAX_RUN.
    dim : int
        Which of the dimensions that a command goes along, from the outermost in; the innermost if it has fewer.
    eighths : int
        How much of it is done by the first part, 1..7.
    """

    at: int
    run: int = 1
    dim: int = 0
    eighths: int = 4


@dataclass(frozen=True)
class Move:
    """A command that is issued so many places later, or earlier if that is negative.

    Parameters
    ----------
    at : int
        Its place; counted from the end if negative.
    steps : int
        Not 0, -MAX_STEPS..MAX_STEPS.
    """

    at: int
    steps: int


Edit = Split | Move


def apply_edits(config: MlaConfig, commands: Sequence[Issued], edits: Sequence[Edit]) -> list[Issued]:
    """The commands after some edits, one after the other.

    Raises
    ------
    EditError
        There is no such place, nothing to split, or a command would pass one that it must not.
    """
    out = list(commands)
    for edit in edits:
        at = resolve_index(edit.at, len(out))
        out = (
            _split(config, out, at, edit) if isinstance(edit, Split) else _moved(config, out, at, edit.steps)
        )
    return out


def resolve_index(at: int, count: int) -> int:
    """A place counted from the front; EditError: there is none."""
    if not -count <= at < count:
        raise EditError(f"there are {count} commands, none at {at}")
    return at % count


def move_range(config: MlaConfig, commands: Sequence[Issued], at: int) -> range:
    """How far a command may move: from that many steps earlier (not positive) up to that many later."""
    early = 0
    while (
        at + early > 0 and early > -MAX_STEPS and not ordered(config, commands[at + early - 1], commands[at])
    ):
        early -= 1
    late = 0
    while (
        at + late + 1 < len(commands)
        and late < MAX_STEPS
        and not ordered(config, commands[at], commands[at + late + 1])
    ):
        late += 1
    return range(early, late + 1)


def _split(config: MlaConfig, commands: list[Issued], at: int, edit: Split) -> list[Issued]:
    if not 1 <= edit.run <= MAX_RUN or not 0 <= edit.dim < MAX_DIMS or not 1 <= edit.eighths <= 7:
        raise EditError(f"{edit} is none that can be made")
    made: list[Issued] = []
    seconds: list[Issued] = []
    for command in commands[at : at + edit.run]:
        parts = _parts(config, command, edit)
        if parts is None:
            made.append(command)
            continue
        place = len(made)
        while place and made[place - 1] in seconds and not ordered(config, made[place - 1], parts[0]):
            place -= 1
        made.insert(place, parts[0])
        made.append(parts[1])
        seconds.append(parts[1])
    if not seconds:
        raise EditError(f"no command in {at}..{at + edit.run - 1} has two steps")
    return [*commands[:at], *made, *commands[at + edit.run :]]


def _parts(config: MlaConfig, command: Issued, edit: Split) -> tuple[Issued, Issued] | None:
    """Of a command that has more than one step."""
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


def ordered(config: MlaConfig, first: Issued, second: Issued) -> bool:
    """Whether one command must be issued before the other."""
    if first.layer != second.layer:
        return True  # a change of tag is put away by the counters: that of a command stays where it is
    if first.unit == second.unit == Unit.MATRIX and (_streams(first) or _streams(second)):
        return True  # what line buffers hold goes on from one command to the next
    each = [footprint_of(config, command) for command in (first, second)]
    return any((a.write or b.write) and a.meets(b) for a in each[0] for b in each[1])


def _streams(command: Issued) -> bool:
    return bool(MATRIX_WORD.unpack(get(command, "word"))["dw"])


def footprint_of(config: MlaConfig, command: Issued) -> list[BoundingBox]:
    """What a command touches; found out once."""
    if not command.reach:
        command.reach = reach(config, command)
    return command.reach


#: Part of the edits that split; the others move. Part of the places that lie near the beginning or the end.
_SPLITS, _NEAR = 0.7, 0.5
#: How near, on the average.
_DISTANCE = 4.0
#: Commands split together, and eighths: the more often they stand here the likelier.
_RUNS, _EIGHTHS, _DIMS = (1, 1, 2, 3, 4, 5, 6), (1, 2, 4, 4, 6, 7), (0, 0, 0, 1, MAX_DIMS - 1)
_PATIENCE = 40


def draw_edits(
    config: MlaConfig, commands: Sequence[Issued], rng: random.Random
) -> tuple[Edit, list[Issued]] | None:
    """An edit, and the commands after it; None: none was found that is allowed."""
    for _ in range(_PATIENCE if commands else 0):
        at = _place(len(commands), rng)
        if rng.random() < _SPLITS:
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


def _place(count: int, rng: random.Random) -> int:
    """Counted from the nearer end."""
    if rng.random() < _NEAR:
        near = min(int(rng.expovariate(1 / _DISTANCE)), count - 1)
        return near if rng.random() < 0.5 else -1 - near
    at = rng.randrange(count)
    return at if at < count / 2 else at - count


#: Where each field stands among its unit's.
_INDEX = {unit: {item.name: at for at, item in enumerate(UNIT_FIELDS[unit])} for unit in Unit}


@dataclass(frozen=True)
class Dim:
    """A dimension that a command can be split along.

    Parameters
    ----------
    count : str
        The field that says how far it goes.
    moves : tuple of (str, str or int)
        Fields that are greater in the second part, and by what for each step: another field, or a number.
    grain : int
        Parts are so many steps, or a multiple of them.
    first, second : tuple of (str, int)
        Fields that have other values in one of the parts.
    """

    count: str
    moves: tuple[tuple[str, str | int], ...]
    grain: int = 1
    first: tuple[tuple[str, int], ...] = ()
    second: tuple[tuple[str, int], ...] = ()


def get(command: Issued, name: str) -> int:
    """A field of a command."""
    return command.values[_INDEX[command.unit][name]]


def put(command: Issued, **fields: int) -> Issued:
    """A command with other values in some fields, and without semaphores.

    Raises
    ------
    ValueError
        A field cannot have its value.
    """
    values = list(command.values)
    for name, value in fields.items():
        at = _INDEX[command.unit][name]
        values[at] = UNIT_FIELDS[command.unit][at].check(value, f"{command.unit.name.lower()}.")
    return Issued(command.unit, command.layer, tuple(values), command.region)


def dims_of(command: Issued, n: int) -> list[Dim]:
    """Dimensions along which a command can be split, the outermost first; `n` lanes."""
    ways = (_load, _matrix, _fuse, _store)[command.unit](command, n)
    return [dim for dim in ways if get(command, dim.count) > dim.grain]


def split(command: Issued, dim: Dim, eighths: int) -> tuple[Issued, Issued]:
    """The command's first steps along a dimension, about so many eighths of them, and the others.

    Raises
    ------
    ValueError
        A field cannot have the value that it needs.
    """
    count = get(command, dim.count)
    here = max(round(count * eighths / 8 / dim.grain), 1) * dim.grain
    if here >= count:
        here = (count - 1) // dim.grain * dim.grain
    moved: dict[str, int] = {}
    for name, step in dim.moves:
        by = here * (step if isinstance(step, int) else get(command, step))
        moved[name] = moved.get(name, get(command, name)) + by
    first = put(command, **{dim.count: here}, **dict(dim.first))
    return first, put(command, **{dim.count: count - here}, **moved, **dict(dim.second))


def _load(command: Issued, n: int) -> Iterator[Dim]:
    word = LOAD_WORD.unpack(get(command, "word"))
    yield Dim("z_count", (("dram", "dram_z"), ("dst", "dst_z")))
    if not word["transpose"]:
        yield Dim("y_count", (("dram", "dram_y"), ("dst", "dst_y")))
        yield Dim("len", (("dram", 1), ("dst", 2 if word["int4"] else 1)), grain=n)


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
