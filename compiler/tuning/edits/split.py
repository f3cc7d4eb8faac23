"""One command as two, which do the same one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.codegen.semaphores import Issued
from hw.isa.commands import FUSE_DIMS, FUSE_STAGE, LOAD_WORD, MATRIX_WORD, UNIT_FIELDS
from hw.isa.enums import Unit

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
