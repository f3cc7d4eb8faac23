"""Formats of constant weights: pairs of int4 for wide mode, two of four for sparse mode, and packed loads.

All replace commands and the data that they read, after the steps of a layer have been generated.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.layers.conv.layer import MIN_SAVED_BEATS, WORTHWHILE
from compiler.util.tiles import ceil_div
from cosim.semantics.packed_weights import pack, packed_bytes
from cosim.semantics.sparse_weights import is_sparse, pack_sparse
from hw.config import MlaConfig
from hw.isa.commands import LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Unit

#: Maximum number of lines of a constant that may differ in length, so that loads of them are not a loop of a program.
_MAX_LENGTHS = 64
#: Maximum number of sizes of loads of a constant that are in loops of a program.
_MAX_SIZES = 8
#: Number of groups of a constant, at equal distances, whose widths decide whether all of it is examined.
_SAMPLE = 512
#: Maximum number of packed loads that replace a load which leaves gaps between what it writes, if each writes less than
#: `_LONG_PIECE` beats.
_MAX_PIECES = 8
_LONG_PIECE = 64


class _Lines(NamedTuple):
    """Bytes of a buffer in DRAM that a load reads, in the order in which it writes them without a gap.

    `parts` is a number of equal parts, their distance in the buffer, and the number of zeros after each part.
    """

    start: int
    length: int
    steps: tuple[tuple[int, int], ...]
    parts: tuple[int, int, int] = (1, 0, 0)

    @property
    def size(self) -> int:
        size = self.length
        for count, _ in self.steps:
            size *= count
        return (size + self.parts[2]) * self.parts[0]

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes."""
        count, distance, zeros = self.parts
        starts = self.start + np.arange(count) * distance
        for times, apart in self.steps:
            starts = (starts[:, None] + np.arange(times) * apart).reshape(-1)
        parts = data[starts[:, None] + np.arange(self.length)].reshape(count, -1)
        return np.pad(parts, ((0, 0), (0, zeros))).reshape(-1)


class _Format(NamedTuple):
    """Format in which one tile of the array replaces two adjacent tiles of the reduction dimension.

    `mode` is the bit of the mode word of MATRIX; `fits` and `pack` test and convert pairs of tiles, of shape (pair, 2 *
    N, N).
    """

    mode: str
    fits: Callable[[NDArray[np.int8]], bool]
    pack: Callable[[NDArray[np.int8]], NDArray[np.uint8]]


def _fits_int4(pairs: NDArray[np.int8]) -> bool:
    return bool(pairs.min() >= -8 and pairs.max() <= 7)


def _pack_int4(pairs: NDArray[np.int8]) -> NDArray[np.uint8]:
    low, high = np.split(pairs, 2, axis=1)
    return ((low & 15) | (high << 4)).view(np.uint8)


#: Formats, best first.
_FORMATS = (
    _Format("wide", _fits_int4, _pack_int4),
    _Format("sparse", lambda pairs: is_sparse(pairs.swapaxes(1, 2)), pack_sparse),
)


def widen_products(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Let MATRIX multiply in wide or sparse mode wherever all weights of a constant and the addresses permit it.

    Two adjacent tiles of the reduction dimension become one: a tile of pairs of int4 if all weights fit int4, or a
    sparse tile if at most two of each four consecutive weights are not 0. Products then need half the cycles, and
    weights a half or five eighths of the bytes. Activations must begin at multiples of 2N. If a row of factors follows
    each tile, those of both tiles must be equal.

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
    formats = [each for each in _FORMATS if getattr(config, each.mode)]
    if not formats:
        return list(steps)
    sources, readers = uses(steps)
    changed: dict[int, list[Command]] = {}
    for constant in dict.fromkeys(each for found in sources.values() for each in found):
        pairs = _pairs(config.n, constant, sources, readers)
        used = next((each for each in formats if pairs and each.fits(pairs.weights)), None)
        if pairs and used:
            packed = np.concatenate([used.pack(pairs.weights), pairs.factors], axis=1)
            changed |= _widened(constant, used.mode, packed, pairs.size, sources, readers)
    return with_commands(steps, changed)


Sources = dict[CircularBuffer, set[CircularBuffer]]
Readers = dict[CircularBuffer, list[Command]]


def uses(steps: Sequence[TileStep]) -> tuple[Sources, Readers]:
    """Return the buffers from which each buffer is loaded, and the commands that read each buffer."""
    sources: Sources = defaultdict(set)
    readers: Readers = defaultdict(list)
    for step in steps:
        for command in step.commands():
            if command.unit == Unit.LOAD:
                sources[command.target[0]] |= {ref.buffer for ref in command.reads()}
            for ref in command.reads():
                readers[ref.buffer].append(command)
    return sources, readers


def _tiles(constant: CircularBuffer, sources: Sources) -> list[CircularBuffer]:
    """Return the buffers that a constant is loaded to."""
    return [buffer for buffer, found in sources.items() if constant in found]


class _Pairs(NamedTuple):
    """Pairs of tiles: weights of shape (pair, 2 * N, N), and factors of shape (pair, 0 or 1, N)."""

    weights: NDArray[np.int8]
    factors: NDArray[np.uint8]

    @property
    def size(self) -> int:
        """Bytes of a pair, whose tiles each have factors of their own."""
        n = self.weights.shape[2]
        return 2 * n * (n + self.factors.shape[1])


def _pairs(
    n: int,
    constant: CircularBuffer,
    sources: Sources,
    readers: Readers,
) -> _Pairs | None:
    """Return the weights of a constant as pairs of tiles; None if a command that reads them cannot be replaced."""
    data, tiles = constant.data, _tiles(constant, sources)
    products = [command for buffer in tiles for command in readers[buffer]]
    rows = {n + word_of(command)["scaled"] for command in products if command.unit == Unit.MATRIX}
    if constant.memory != BufferMemory.DRAM or data is None or not data.size or len(rows) != 1:
        return None
    tile = rows.pop()
    pair = 2 * tile * n
    if (
        data.size % pair
        or any(sources[buffer] != {constant} or buffer.size % pair for buffer in tiles)
        or not all(_may_widen(command, n) for command in products)
        or not all(
            command.unit == Unit.LOAD
            and number_of(command, "word") == 0
            and _in_pairs(command, _LOAD_DISTANCES, pair)
            for command in readers[constant]
        )
    ):
        return None
    both = data.reshape(-1, 2, tile, n)
    factors, others = both[:, 0, n:], both[:, 1, n:]
    if (factors != others).any():
        return None
    return _Pairs(both[:, :, :n].reshape(-1, 2 * n, n).view(np.int8), factors)


def _widened(
    constant: CircularBuffer,
    mode: str,
    packed: NDArray[np.uint8],
    pair: int,
    sources: Sources,
    readers: Readers,
) -> dict[int, list[Command]]:
    """Return the commands in a mode by the identity of those that they replace.

    `packed` has the bytes of each tile, as rows of N bytes, which replace `pair` bytes.
    """
    rows, n = packed.shape[1:]
    tile = rows * n
    tiles = _tiles(constant, sources)
    buffers = {
        each: replace(each, size=each.size // pair * tile, **values)
        for each, values in (
            (constant, {"data": packed.reshape(-1), "transferred": None}),
            *((buffer, {}) for buffer in tiles),
        )
    }
    changed = {
        id(command): [_resized(command, _LOAD_DISTANCES, buffers, pair, tile)]
        for command in readers[constant]
    }
    for command in (command for buffer in tiles for command in readers[buffer]):
        wide = _resized(command, _WEIGHT_DISTANCES, buffers, pair, tile)
        word = MATRIX_WORD.pack(**{**word_of(command), mode: 1})
        wide.fields.update(word=word, ic_count=number_of(command, "ic_count", 1) // 2, a_ic=2 * n, w_ic=tile)
        image = command.fields["a_base"]
        assert isinstance(image, BufferRef)
        image.buffer.wide = True
        changed[id(command)] = [wide]
    return changed


#: Distances between weights, in bytes: of loads and of products.
_LOAD_DISTANCES = ("len", "dram_y", "dram_z", "dst_y", "dst_z")
_WEIGHT_DISTANCES = ("w_kx", "w_ky", "w_oc")
#: Counts of the loops whose distances between activations must be multiples of 2N.
_ACTIVATION_LOOPS = {"a_u": ("y_count", "ky_count"), "a_v": ("x_count", "kx_count"), "a_oc": ("oc_count",)}


def number_of(command: Command, name: str, default: int = 0) -> int:
    """Return the value of a field that is not an address."""
    value = command.fields.get(name, default)
    assert isinstance(value, int)
    return value


def word_of(command: Command) -> Mapping[str, int]:
    """Return the fields of the mode word of a MATRIX command."""
    return _fields_of(number_of(command, "word", MATRIX_WORD.pack()))


@lru_cache(maxsize=1 << 12)
def _fields_of(word: int) -> Mapping[str, int]:
    return MATRIX_WORD.unpack(word)


def _may_widen(command: Command, n: int) -> bool:
    """Return True if a command is a product of whole tiles, in pairs, with activations at multiples of 2N."""
    image, numbers = command.fields.get("a_base"), command.fields
    if command.unit != Unit.MATRIX or not isinstance(image, BufferRef):
        return False
    word = word_of(command)
    tile = (n + word["scaled"]) * n
    places = [image.offset] + [image.buffer.size] * (image.buffer.depth > 1)
    places += [number_of(command, name) for name in _ACTIVATION_LOOPS if name in numbers]
    return (
        not any(word[name] for name in ("dw", "w_transpose", "w_unsigned", "wide", "sparse"))
        and image.buffer.memory == BufferMemory.SP
        and number_of(command, "w_zp") == 0
        and number_of(command, "ic_count", 1) % 2 == 0
        and (number_of(command, "a_ic"), number_of(command, "w_ic"), number_of(command, "w_row"))
        == (n, tile, n)
        and all(number_of(command, name) in (0, n) for name in ("k_rows", "k_tail"))
        and not any(place % (2 * n) for place in places)
        and _in_pairs(command, _WEIGHT_DISTANCES, 2 * tile)
    )


def _in_pairs(command: Command, distances: Sequence[str], pair: int) -> bool:
    """Return True if a command reads and writes weights in whole pairs of tiles."""
    refs = [command.fields[name] for name in ("dram", "dst", "w_base") if name in command.fields]
    offsets = [ref.offset for ref in refs if isinstance(ref, BufferRef)]
    return not any(value % pair for value in (*offsets, *(number_of(command, name) for name in distances)))


def _resized(
    command: Command,
    distances: Sequence[str],
    buffers: dict[CircularBuffer, CircularBuffer],
    pair: int,
    tile: int,
) -> Command:
    """Return a command on buffers in which `tile` bytes replace each `pair` bytes."""
    fields = dict(command.fields)
    for name, value in fields.items():
        if isinstance(value, BufferRef) and value.buffer in buffers:
            fields[name] = replace(value, buffer=buffers[value.buffer], offset=value.offset // pair * tile)
        elif name in distances:
            fields[name] = number_of(command, name) // pair * tile
    return Command(command.unit, command.layer, fields)


def with_commands(steps: Sequence[TileStep], changed: dict[int, list[Command]]) -> list[TileStep]:
    """Return steps with other commands in place of some, by the identity of those that are replaced."""
    return [
        replace(
            step,
            unit_cycles=None,
            loads=[each for command in step.loads for each in changed.get(id(command), [command])],
            matrix=[each for command in step.matrix for each in changed.get(id(command), [command])],
        )
        if any(id(command) in changed for command in step.commands())
        else step
        for step in steps
    ]


def may_pack(config: MlaConfig, data: NDArray[np.uint8]) -> bool:
    """Return False if a sample of a constant shows that its loads are not worth packing."""
    group = 2 * config.n
    groups = data[: data.size // group * group].reshape(-1, group)
    sample = groups[:: ceil_div(len(groups), _SAMPLE) or 1].reshape(-1)
    return bool(config.packed_loads) and packed_bytes(sample, config.n) <= WORTHWHILE * sample.size


def pack_loads(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Replace loads of constants by loads of packed weights wherever these read fewer bytes.

    If a constant has many loads, those of equal size read lines of equal length, at equal distances, so that loops of a
    program still advance through them; shorter lines are padded.

    The parameters and the result are those of `widen_products`.
    """
    loads: dict[CircularBuffer, list[Command]] = defaultdict(list)
    writers: Counter[tuple[CircularBuffer, int]] = Counter()
    for step in steps:
        for command in step.commands():
            writers[command.write().buffer, command.write().index] += 1
            for ref in command.reads():
                if ref.buffer.memory == BufferMemory.DRAM and ref.buffer.data is not None:
                    loads[ref.buffer].append(command)
    packed: dict[int, list[Command]] = {}
    for buffer, commands in loads.items():
        packed |= _packed(config, buffer, commands, writers)
    return with_commands(steps, packed)


def _packed(
    config: MlaConfig,
    buffer: CircularBuffer,
    commands: Sequence[Command],
    writers: Mapping[tuple[CircularBuffer, int], int],
) -> dict[int, list[Command]]:
    """Return the packed loads by the identity of the loads that they replace; none if it is not worthwhile.

    `writers` has the number of commands that write each tile.
    """
    n, data = config.n, buffer.data
    assert data is not None
    if not may_pack(config, data):
        return {}
    pieces = [
        _pieces(command, n, alone=writers[command.write().buffer, command.write().index] == 1)
        for command in commands
    ]
    known: dict[_Lines, NDArray[np.uint8]] = {}
    for found in pieces:
        if not found:
            return {}
        for each, _ in found:
            if each not in known:
                known[each] = pack(each.read(data), n)
    lengths = {each: ceil_div(line.size, n) * n for each, line in known.items()}
    if len(known) > _MAX_LENGTHS and len({each.size for each in known}) <= _MAX_SIZES:
        longest: dict[int, int] = {}
        for each, length in lengths.items():
            longest[each.size] = max(longest.get(each.size, 0), length)
        lengths = {each: longest[each.size] for each in known}
    size, length = sum(each.size for each in known), sum(lengths.values())
    if length > WORTHWHILE * size or size - length < MIN_SAVED_BEATS * n * len(known):
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
        id(command): [
            Command(
                Unit.LOAD,
                command.layer,
                {
                    "word": word,
                    "dram": BufferRef(target, 0, places[each]),
                    "dst": written,
                    "len": lengths[each],
                    "z_count": each.size // (2 * n),
                    "dst_z": 2 * n,
                },
            )
            for each, written in found
        ]
        for command, found in zip(commands, pieces, strict=True)
    }


def _pieces(command: Command, n: int, *, alone: bool) -> list[tuple[_Lines, BufferRef]]:
    """Return what a load reads, in pieces that it writes without gaps, and where; nothing if it cannot be packed.

    If the load is `alone`, that is, if no other command writes its tile, short gaps may be filled with zeros.
    """
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
        return []
    length = size = numbers.get("len", 1)
    steps: list[tuple[int, int]] = []
    # Number of pieces, and the distances between them in DRAM and in the scratchpad.
    count, apart, gap = 1, 0, 0
    for axis in "yz":
        times, distance = numbers.get(f"{axis}_count", 1), numbers.get(f"dst_{axis}", 0)
        if count > 1 and times > 1:
            return []
        if times > 1 and distance != size:
            count, apart, gap = times, numbers.get(f"dram_{axis}", 0), distance
        else:
            steps.append((times, numbers.get(f"dram_{axis}", 0)))
            size *= times
    start, order = source.resolve(0), tuple(reversed(steps))
    if alone and size < gap <= 2 * size and target.offset + count * gap <= target.buffer.size:
        found = [(_Lines(start, length, order, (count, apart, gap - size)), target)]
    elif count > _MAX_PIECES and size < _LONG_PIECE * n:
        return []
    else:
        found = [
            (_Lines(start + number * apart, length, order), target.plus(number * gap))
            for number in range(count)
        ]
    if gap % n or any(lines.size % (2 * n) or lines.size // (2 * n) >= 1 << 16 for lines, _ in found):
        return []
    return found
