"""Formats of constant weights that need fewer than eight bits: pairs of int4 for wide mode, and packed loads.

Both replace commands and the data that they read, after the steps of a layer have been generated.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.util.tiles import ceil_div
from cosim.semantics.packed_weights import pack, packed_bytes
from hw.config import MlaConfig
from hw.isa.commands import LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Unit

#: Maximum share of the bytes of a buffer's loads that packed loads may read; above it, packing is not worthwhile.
_WORTHWHILE = 0.97
#: Minimum number of bus beats that a packed load must save on average, since its data arrive a few cycles later.
_MIN_SAVED_BEATS = 6
#: Maximum number of lines of a constant that may differ in length, so that loads of them are not a loop of a program.
_MAX_LENGTHS = 64
#: Number of groups of a constant whose widths decide whether all of it is examined.
_SAMPLE = 512


class _Lines(NamedTuple):
    """Bytes of a buffer in DRAM that a load reads, in the order in which it writes them without a gap."""

    start: int
    length: int
    steps: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        size = self.length
        for count, _ in self.steps:
            size *= count
        return size

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes."""
        starts = np.array([self.start])
        for count, distance in self.steps:
            starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
        return data[starts[:, None] + np.arange(self.length)].reshape(-1)


def widen_products(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Let MATRIX multiply in wide mode wherever all weights of a constant fit int4 and the addresses permit it.

    Two adjacent tiles of the reduction dimension become one tile of pairs of int4, so that weights need half the bytes
    and products half the cycles. Activations must begin at multiples of 2N. If a row of factors follows each tile, both
    rows must be equal.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    steps : sequence of TileStep
        Steps of a layer.

    Returns
    -------
    list of TileStep
        Steps of the layer; those that do not change are the same objects.
    """
    if not config.wide:
        return list(steps)
    sources: dict[CircularBuffer, set[CircularBuffer]] = defaultdict(set)
    readers: dict[CircularBuffer, list[Command]] = defaultdict(list)
    for step in steps:
        for command in step.commands():
            if command.unit == Unit.LOAD:
                sources[command.target[0]] |= {ref.buffer for ref in command.reads()}
            for ref in command.reads():
                readers[ref.buffer].append(command)
    changed: dict[int, Command] = {}
    found = dict.fromkeys(each for of_target in sources.values() for each in of_target)
    constants = [each for each in found if each.memory == BufferMemory.DRAM and each.data is not None]
    for constant in constants:
        changed |= _widened(config.n, constant, sources, readers)
    return _with_commands(steps, changed)


def _widened(
    n: int,
    constant: CircularBuffer,
    sources: dict[CircularBuffer, set[CircularBuffer]],
    readers: dict[CircularBuffer, list[Command]],
) -> dict[int, Command]:
    """Return the commands in wide mode by the identity of those that they replace; none if one cannot be replaced."""
    data = constant.data
    assert data is not None
    tiles = [buffer for buffer, found in sources.items() if constant in found]
    products = [command for buffer in tiles for command in readers[buffer]]
    rows = {n + _word(command)["scaled"] for command in products if command.unit == Unit.MATRIX}
    if len(rows) != 1:
        return {}
    tile = rows.pop() * n
    pair = 2 * tile
    if (
        not data.size
        or data.size % pair
        or any(sources[buffer] != {constant} or buffer.size % pair for buffer in tiles)
        or not products
        or not all(_may_widen(command, n) for command in products)
        or not all(
            command.unit == Unit.LOAD
            and _number(command, "word") == 0
            and _in_pairs(command, _LOAD_DISTANCES, pair)
            for command in readers[constant]
        )
    ):
        return {}
    weights = data.view(np.int8).reshape(-1, tile // n, n)[:, :n]
    low, high = data.view(np.int8).reshape(-1, 2, tile // n, n).transpose(1, 0, 2, 3)
    if weights.min() < -8 or weights.max() > 7 or (low[:, n:] != high[:, n:]).any():
        return {}
    nibbles = np.concatenate([(low[:, :n] & 15) | (high[:, :n] << 4), low[:, n:]], axis=1)
    halves = {
        constant: replace(
            constant, size=constant.size // 2, data=nibbles.view(np.uint8).reshape(-1), transferred=None
        ),
        **{buffer: replace(buffer, size=buffer.size // 2) for buffer in tiles},
    }
    changed = {id(command): _halved(command, _LOAD_DISTANCES, halves) for command in readers[constant]}
    for command in products:
        wide = _halved(command, _WEIGHT_DISTANCES, halves)
        word = MATRIX_WORD.pack(**_word(command) | {"wide": 1})
        wide.fields.update(word=word, ic_count=_number(command, "ic_count", 1) // 2, a_ic=2 * n, w_ic=tile)
        image = command.fields["a_base"]
        assert isinstance(image, BufferRef)
        image.buffer.wide = True
        changed[id(command)] = wide
    return changed


#: Distances between weights, in bytes: of loads and of products.
_LOAD_DISTANCES = ("len", "dram_y", "dram_z", "dst_y", "dst_z")
_WEIGHT_DISTANCES = ("w_kx", "w_ky", "w_oc")
#: Counts of the loops whose distances between activations must be multiples of 2N.
_ACTIVATION_LOOPS = {"a_u": ("y_count", "ky_count"), "a_v": ("x_count", "kx_count"), "a_oc": ("oc_count",)}


def _number(command: Command, name: str, default: int = 0) -> int:
    value = command.fields.get(name, default)
    assert isinstance(value, int)
    return value


def _word(command: Command) -> dict[str, int]:
    return MATRIX_WORD.unpack(_number(command, "word", MATRIX_WORD.pack()))


def _may_widen(command: Command, n: int) -> bool:
    """Return True if a command is a product of whole tiles, in pairs, with activations at multiples of 2N."""
    image, numbers = command.fields.get("a_base"), command.fields
    if command.unit != Unit.MATRIX or not isinstance(image, BufferRef):
        return False
    word = _word(command)
    tile = (n + word["scaled"]) * n
    places = [image.offset] + [image.buffer.size] * (image.buffer.depth > 1)
    places += [_number(command, name) for name in _ACTIVATION_LOOPS if name in numbers]
    return (
        not any(word[name] for name in ("dw", "w_transpose", "w_unsigned", "wide"))
        and image.buffer.memory == BufferMemory.SP
        and _number(command, "w_zp") == 0
        and _number(command, "ic_count", 1) % 2 == 0
        and (_number(command, "a_ic"), _number(command, "w_ic"), _number(command, "w_row")) == (n, tile, n)
        and all(_number(command, name) in (0, n) for name in ("k_rows", "k_tail"))
        and not any(place % (2 * n) for place in places)
        and _in_pairs(command, _WEIGHT_DISTANCES, 2 * tile)
    )


def _in_pairs(command: Command, distances: Sequence[str], pair: int) -> bool:
    """Return True if a command reads and writes weights in whole pairs of tiles."""
    refs = [command.fields[name] for name in ("dram", "dst", "w_base") if name in command.fields]
    offsets = [ref.offset for ref in refs if isinstance(ref, BufferRef)]
    return not any(value % pair for value in (*offsets, *(_number(command, name) for name in distances)))


def _halved(
    command: Command, distances: Sequence[str], halves: dict[CircularBuffer, CircularBuffer]
) -> Command:
    """Return a command on buffers of half the size."""
    fields = dict(command.fields)
    for name, value in fields.items():
        if isinstance(value, BufferRef) and value.buffer in halves:
            fields[name] = replace(value, buffer=halves[value.buffer], offset=value.offset // 2)
        elif name in distances:
            fields[name] = _number(command, name) // 2
    return Command(command.unit, command.layer, fields)


def _with_commands(steps: Sequence[TileStep], changed: dict[int, Command]) -> list[TileStep]:
    """Return steps with other commands in place of some, by the identity of those that are replaced."""
    return [
        replace(
            step,
            unit_cycles=None,
            loads=[changed.get(id(command), command) for command in step.loads],
            matrix=[changed.get(id(command), command) for command in step.matrix],
        )
        if any(id(command) in changed for command in step.commands())
        else step
        for step in steps
    ]


def may_pack(config: MlaConfig, data: NDArray[np.uint8]) -> bool:
    """Return False if the first bytes of a constant show that its loads are not worth packing."""
    group = 2 * config.n
    first = data[: min(data.size // group, _SAMPLE) * group]
    return bool(config.packed_loads) and packed_bytes(first, config.n) <= _WORTHWHILE * first.size


def pack_loads(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Replace loads of constants by loads of packed weights wherever these read fewer bytes.

    If a constant has many loads, those of equal size read lines of equal length, at equal distances, so that loops of a
    program still advance through them; shorter lines are padded.

    The parameters and the result are those of `widen_products`.
    """
    loads: dict[CircularBuffer, list[Command]] = defaultdict(list)
    for step in steps:
        for command in step.commands():
            for ref in command.reads():
                if ref.buffer.memory == BufferMemory.DRAM and ref.buffer.data is not None:
                    loads[ref.buffer].append(command)
    packed: dict[int, Command] = {}
    for buffer, commands in loads.items():
        packed |= _packed(config, buffer, commands)
    return _with_commands(steps, packed)


def _packed(config: MlaConfig, buffer: CircularBuffer, commands: Sequence[Command]) -> dict[int, Command]:
    """Return the packed loads by the identity of the loads that they replace; none if it is not worthwhile."""
    n, data = config.n, buffer.data
    assert data is not None
    if not may_pack(config, data):
        return {}
    lines = [_lines(command, n) for command in commands]
    known: dict[_Lines, NDArray[np.uint8]] = {}
    for each in lines:
        if each is None:
            return {}
        if each not in known:
            known[each] = pack(each.read(data), n)
    lengths = {each: ceil_div(line.size, n) * n for each, line in known.items()}
    if len(known) > _MAX_LENGTHS:
        longest: dict[int, int] = {}
        for each, length in lengths.items():
            longest[each.size] = max(longest.get(each.size, 0), length)
        lengths = {each: longest[each.size] for each in known}
    size, length = sum(each.size for each in known), sum(lengths.values())
    if length > _WORTHWHILE * size or size - length < _MIN_SAVED_BEATS * n * len(known):
        return {}
    places, at = {}, 0
    for each in sorted(known, key=lambda each: (each.size, each.start)):
        places[each] = at
        at += lengths[each]
    contents = np.zeros(at, np.uint8)
    for each, line in known.items():
        contents[places[each] : places[each] + line.size] = line
    target = CircularBuffer(BufferMemory.DRAM, buffer.name, at, data=contents, family=buffer.family)
    word = LOAD_WORD.pack(packed=1)
    return {
        id(command): Command(
            Unit.LOAD,
            command.layer,
            {
                "word": word,
                "dram": BufferRef(target, 0, places[each]),
                "dst": command.fields["dst"],
                "len": lengths[each],
                "z_count": each.size // (2 * n),
                "dst_z": 2 * n,
            },
        )
        for command, each in zip(commands, lines, strict=True)
        if each is not None
    }


def _lines(command: Command, n: int) -> _Lines | None:
    """Return what a load reads; None if it cannot be packed."""
    fields = dict(command.fields)
    source, target = fields.pop("dram", None), fields.pop("dst", None)
    numbers = {name: value for name, value in fields.items() if isinstance(value, int)}
    if (
        command.unit != Unit.LOAD
        or not isinstance(source, BufferRef)
        or not isinstance(target, BufferRef)
        or target.buffer.memory != BufferMemory.SP
        or len(numbers) != len(fields)
        or numbers.get("word", 0) != 0
        or target.buffer.size % n
        or target.offset % n
    ):
        return None
    length = size = numbers.get("len", 1)
    steps = []
    for axis in "yz":
        count = numbers.get(f"{axis}_count", 1)
        if count > 1 and numbers.get(f"dst_{axis}", 0) != size:
            return None
        steps.append((count, numbers.get(f"dram_{axis}", 0)))
        size *= count
    if size % (2 * n) or size // (2 * n) >= 1 << 16:
        return None
    return _Lines(source.resolve(0), length, tuple(reversed(steps)))
