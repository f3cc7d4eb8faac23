"""Formats of constant weights: pairs of int4 for wide mode, tiles without those that are zero, and packed loads.

All replace commands and the data that they read, after the steps of a layer have been generated.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    Fields,
    Tile,
    TileStep,
    cycles,
    tile_cycles,
)
from compiler.util.tiles import ceil_div
from cosim.semantics.packed_weights import pack, packed_bytes
from hw.config import MlaConfig
from hw.isa.commands import LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Unit

#: Maximum share of the bytes of a buffer's loads that packed loads may read, and of the cycles of products without
#: tiles that are zero; above it, the change is not worthwhile.
_WORTHWHILE = 0.97
#: Minimum number of cycles that each additional command for products without tiles that are zero must save. It doubles
#: until the additional commands of a constant need at most 1.5 instruction stores.
_MIN_SAVED_CYCLES = 12
_COMMAND_WORDS, _MAX_STORES, _DOUBLED = 4, 1.5, 8
#: Minimum number of bus beats that a packed load must save on average, since its data arrive a few cycles later.
_MIN_SAVED_BEATS = 6
#: Maximum number of lines of a constant that may differ in length, so that loads of them are not a loop of a program.
_MAX_LENGTHS = 64
#: Maximum number of sizes of loads of a constant that are in loops of a program.
_MAX_SIZES = 8
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
    and products half the cycles. Activations must begin at multiples of 2N.

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
    sources, readers = _uses(steps)
    changed: dict[int, list[Command]] = {}
    constants = dict.fromkeys(each for found in sources.values() for each in found if _fits_int4(each))
    for constant in constants:
        changed |= _widened(config.n, constant, sources, readers)
    return _with_commands(steps, changed)


_Sources = dict[CircularBuffer, set[CircularBuffer]]
_Readers = dict[CircularBuffer, list[Command]]


def _uses(steps: Sequence[TileStep]) -> tuple[_Sources, _Readers]:
    """Return the buffers from which each buffer is loaded, and the commands that read each buffer."""
    sources: _Sources = defaultdict(set)
    readers: _Readers = defaultdict(list)
    for step in steps:
        for command in step.commands():
            if command.unit == Unit.LOAD:
                sources[command.target[0]] |= {ref.buffer for ref in command.reads()}
            for ref in command.reads():
                readers[ref.buffer].append(command)
    return sources, readers


def _fits_int4(buffer: CircularBuffer) -> bool:
    if buffer.memory != BufferMemory.DRAM or buffer.data is None:
        return False
    values = buffer.data.view(np.int8)
    return bool(values.size) and values.min() >= -8 and values.max() <= 7


def _widened(
    n: int,
    constant: CircularBuffer,
    sources: _Sources,
    readers: _Readers,
) -> dict[int, list[Command]]:
    """Return the commands in wide mode by the identity of those that they replace; none if one cannot be replaced."""
    data, pair = constant.data, 2 * n * n
    assert data is not None
    tiles = [buffer for buffer, found in sources.items() if constant in found]
    products = [command for buffer in tiles for command in readers[buffer]]
    if (
        data.size % pair
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
    low, high = data.view(np.int8).reshape(-1, 2, n, n).transpose(1, 0, 2, 3)
    nibbles = ((low & 15) | (high << 4)).astype(np.uint8).reshape(-1)
    halves = {
        constant: replace(constant, size=constant.size // 2, data=nibbles, transferred=None),
        **{buffer: replace(buffer, size=buffer.size // 2) for buffer in tiles},
    }
    changed = {id(command): [_halved(command, _LOAD_DISTANCES, halves)] for command in readers[constant]}
    for command in products:
        wide = _halved(command, _WEIGHT_DISTANCES, halves)
        word = command.fields["word"]
        assert isinstance(word, int)
        word = MATRIX_WORD.pack(**MATRIX_WORD.unpack(word) | {"wide": 1})
        wide.fields.update(word=word, ic_count=_number(command, "ic_count", 1) // 2, a_ic=2 * n, w_ic=n * n)
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


def _number(command: Command, name: str, default: int = 0) -> int:
    value = command.fields.get(name, default)
    assert isinstance(value, int)
    return value


def _may_widen(command: Command, n: int) -> bool:
    """Return True if a command is a product of whole tiles, in pairs, with activations at multiples of 2N."""
    image, numbers = command.fields.get("a_base"), command.fields
    if command.unit != Unit.MATRIX or not isinstance(image, BufferRef):
        return False
    word = MATRIX_WORD.unpack(_number(command, "word", MATRIX_WORD.pack()))
    places = [image.offset] + [image.buffer.size] * (image.buffer.depth > 1)
    places += [_number(command, name) for name in _ACTIVATION_LOOPS if name in numbers]
    return (
        not any(word[name] for name in ("dw", "w_transpose", "w_unsigned", "wide", "scaled"))
        and image.buffer.memory == BufferMemory.SP
        and _number(command, "w_zp") == 0
        and _number(command, "ic_count", 1) % 2 == 0
        and (_number(command, "a_ic"), _number(command, "w_ic"), _number(command, "w_row")) == (n, n * n, n)
        and all(_number(command, name) in (0, n) for name in ("k_rows", "k_tail"))
        and not any(place % (2 * n) for place in places)
        and _in_pairs(command, _WEIGHT_DISTANCES, 2 * n * n)
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


def _with_commands(steps: Sequence[TileStep], changed: dict[int, list[Command]]) -> list[TileStep]:
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


def skip_zero_tiles(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Let MATRIX skip tiles of constant weights that are zero, and LOAD the bytes of these tiles.

    A product is split into products of boxes of its tiles, where each additional command must save cycles. Sums to
    which no tile contributes are set to zero by the product with one tile. Weights are stored without the tiles that
    no product reads.

    The parameters and the result are those of `widen_products`.
    """
    sources, readers = _uses(steps)
    changed: dict[int, list[Command]] = {}
    for constant in dict.fromkeys(each for found in sources.values() for each in found):
        data = constant.data
        if constant.memory == BufferMemory.DRAM and data is not None and _has_zeros(config.n, data):
            weights = _tiled_weights(config, constant, sources, readers)
            if weights is not None:
                changed |= weights.commands(steps)
    return _with_commands(steps, changed)


def _has_zeros(n: int, data: NDArray[np.uint8]) -> bool:
    """Return True if as many rows of weights are zero as a tile has."""
    rows = data[: data.size // n * n].view(np.uint32).reshape(-1, n // 4)
    return int(np.count_nonzero(~rows.any(1))) >= n


#: Dimensions of the loop over tiles of a MATRIX command, in the order in which boxes of tiles are joined.
_TILE_DIMS = ("oc", "ky", "kx", "ic")
#: Fields with the rows and columns of the last tiles in a dimension; 0 for the same as of the others.
_TAILS = {"oc": "n_tail", "ic": "k_tail"}


class _Box(NamedTuple):
    """Box of tiles of a product: (start, end) in each of `_TILE_DIMS`, and True if its products are the first sums."""

    ranges: tuple[tuple[int, int], ...]
    first: bool

    def of(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the part of an array with the dimensions `_TILE_DIMS`."""
        return values[tuple(slice(*each) for each in self.ranges)]


def _tiled_weights(
    config: MlaConfig, constant: CircularBuffer, sources: _Sources, readers: _Readers
) -> "_TiledWeights | None":
    """Return a constant whose loads and products may change; None if one of these cannot be changed."""
    n = config.n
    buffers = [buffer for buffer, found in sources.items() if constant in found]
    products = [command for buffer in buffers for command in readers[buffer]]
    if any(sources[buffer] != {constant} or buffer.size % n for buffer in buffers) or not products:
        return None
    if not all(_may_split(command, n) for command in products):
        return None
    loads: dict[Tile, Command] = {}
    for command in readers[constant]:
        target = command.fields.get("dst")
        numbers = {key: value for key, value in command.fields.items() if key not in ("dram", "dst")}
        if command.unit != Unit.LOAD or not isinstance(target, BufferRef) or numbers.get("word", 0) != 0:
            return None
        if (target.buffer, target.index) in loads or target.buffer.memory != BufferMemory.SP:
            return None
        if not all(isinstance(value, int) for value in numbers.values()):
            return None
        loads[target.buffer, target.index] = command
    return _TiledWeights(config, constant, loads, products)


def _may_split(command: Command, n: int) -> bool:
    """Return True if a command is a product with whole rows of weights without a zero point."""
    if command.unit != Unit.MATRIX:
        return False
    word = MATRIX_WORD.unpack(_number(command, "word", MATRIX_WORD.pack()))
    weights = command.fields.get("w_base")
    distances = [_number(command, f"w_{dim}") for dim in _TILE_DIMS]
    return (
        not any(word[name] for name in ("dw", "w_transpose", "scaled", "shift8"))
        and isinstance(weights, BufferRef)
        and isinstance(command.fields.get("acc_base"), BufferRef)
        and isinstance(command.fields.get("a_base"), BufferRef)
        and _number(command, "w_zp") == 0
        and _number(command, "w_row") == n
        and not any(each % n for each in (*distances, weights.offset))
    )


@dataclass(eq=False)
class _TiledWeights:
    """Constant weights of products that read them in tiles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    constant : CircularBuffer
        Weights in DRAM.
    loads : dict of (buffer, index) to Command
        Load of each tile of a buffer in the scratchpad.
    products : list of Command
        All commands that read these buffers.
    """

    config: MlaConfig
    constant: CircularBuffer
    loads: dict[Tile, Command]
    products: list[Command]
    contents: dict[tuple, NDArray[np.uint8]] = field(default_factory=dict)
    known: dict[tuple, NDArray[np.bool_]] = field(default_factory=dict)

    def commands(self, steps: Sequence[TileStep]) -> dict[int, list[Command]]:
        """Return the commands by the identity of those that they replace; none if it is not worthwhile."""
        nonzero = {id(command): self._nonzero(command) for command in self.products}
        if all(mask.all() for mask in nonzero.values()):
            return {}
        cost: dict[tuple, int] = defaultdict(
            int
        )  # so that all products with the same tiles skip the same ones
        for command in self.products:
            cost[self._key(command)] = max(cost[self._key(command)], self._tile_cycles(command))
        sums = _first_sums(steps, nonzero)
        for doubled in range(_DOUBLED):
            boxes = self._boxes(nonzero, sums, cost, _MIN_SAVED_CYCLES << doubled)
            words = _COMMAND_WORDS * (sum(map(len, boxes.values())) - len(self.products))
            if words <= _MAX_STORES * self.config.wis_words:
                break
        else:
            return {}
        before = after = 0
        for command in self.products:
            tiles = sum(prod(high - low for low, high in box.ranges) for box in boxes[id(command)])
            before += cycles(command, self.config)
            after += tiles * self._tile_cycles(command)
        if after > _WORTHWHILE * before:
            return {}
        places = self._places(boxes)
        changed, buffers = self._loads(boxes, places)
        for command in self.products:
            changed[id(command)] = [self._part(command, box, places, buffers) for box in boxes[id(command)]]
        return changed

    def _boxes(
        self,
        nonzero: dict[int, NDArray[np.bool_]],
        sums: dict[int, NDArray[np.int8]],
        cost: dict[tuple, int],
        least: int,
    ) -> dict[int, list[_Box]]:
        """Return the boxes of tiles of each product, each of which saves `least` cycles; see `_groups`."""
        out: dict[int, list[_Box]] = {}
        count = 0
        for command in self.products:
            out[id(command)] = found = []
            groups = _groups(nonzero[id(command)], sums[id(command)], cost[self._key(command)], least)
            for number, group in enumerate(groups, count):
                # A program does not set the size again for a box of the same size as the one before.
                order = group.boxes[::-1] if number % 2 else group.boxes
                found += [_Box((group.blocks, *each), group.first and each is order[0]) for each in order]
            count += len(groups)
        return out

    def _key(self, command: Command) -> tuple:
        """Return a key that is equal for products with the same tiles."""
        weights = command.fields["w_base"]
        assert isinstance(weights, BufferRef)
        names = [f"{dim}_count" for dim in _TILE_DIMS]
        numbers = [_number(command, name, 1) for name in names]
        numbers += [_number(command, name) for name in ("k_rows", "k_tail", *(f"w_{d}" for d in _TILE_DIMS))]
        return self._source(weights), weights.offset, *numbers

    def _source(self, weights: BufferRef) -> tuple:
        """Return a key that is equal for tiles of buffers with the same contents."""
        load = self.loads[weights.buffer, weights.index]
        source, target = load.fields["dram"], load.fields["dst"]
        assert isinstance(source, BufferRef) and isinstance(target, BufferRef)
        numbers = sorted(item for item in load.fields.items() if item[0] not in ("dram", "dst"))
        return source.resolve(0), target.offset, target.buffer.size, *numbers

    def _content(self, weights: BufferRef) -> NDArray[np.uint8]:
        """Return the bytes of a tile of a buffer, followed by zeros."""
        key = self._source(weights)
        if key not in self.contents:
            load, data = self.loads[weights.buffer, weights.index], self.constant.data
            assert data is not None
            source, target = load.fields["dram"], load.fields["dst"]
            assert isinstance(source, BufferRef) and isinstance(target, BufferRef)
            out = np.zeros(weights.buffer.size + self.config.n**2, np.uint8)
            length = _number(load, "len", 1)
            for z, y in product(range(_number(load, "z_count", 1)), range(_number(load, "y_count", 1))):
                start = source.resolve(0) + z * _number(load, "dram_z") + y * _number(load, "dram_y")
                at = target.offset + z * _number(load, "dst_z") + y * _number(load, "dst_y")
                out[at : at + length] = data[start : start + length]
            self.contents[key] = out
        return self.contents[key]

    @staticmethod
    def _offsets(command: Command) -> NDArray[np.int64]:
        """Return the offset of each tile in its buffer, with the dimensions `_TILE_DIMS`."""
        weights = command.fields["w_base"]
        assert isinstance(weights, BufferRef)
        out = np.array(weights.offset)
        for dim in _TILE_DIMS:
            out = out[..., None] + np.arange(_number(command, f"{dim}_count", 1)) * _number(
                command, f"w_{dim}"
            )
        return out

    def _nonzero(self, command: Command) -> NDArray[np.bool_]:
        """Return which tiles of a product are not zero, with the dimensions `_TILE_DIMS`."""
        key = self._key(command)
        if key not in self.known:
            n, weights = self.config.n, command.fields["w_base"]
            assert isinstance(weights, BufferRef)
            content = self._content(weights)
            rows = np.concatenate([[0], np.cumsum(content.reshape(-1, n).any(1))])
            first = self._offsets(command) // n
            whole = _number(command, "k_rows") or n
            count = np.full(first.shape, whole)
            count[..., -1] = _number(command, "k_tail") or whole
            self.known[key] = rows[first + count] > rows[first]
        return self.known[key]

    def _tile_cycles(self, command: Command) -> int:
        """Return the cycles of MATRIX for a tile of a product."""
        distances = [_number(command, name) for name in ("w_row", *(f"w_{dim}" for dim in _TILE_DIMS))]
        rows = _number(command, "x_count", 1) * _number(command, "y_count", 1)
        # Tiles that are zero need few bytes in packed loads, and otherwise as many as other tiles.
        load = 0 if self.config.packed_loads else self.config.n
        return max(rows, load, tile_cycles(distances, self.config))

    def _places(self, boxes: dict[int, list[_Box]]) -> "_Places | None":
        """Return where the tiles that products read are stored without gaps; None if all stay where they are."""
        places = _Places(self.config.n**2)
        for command in self.products:
            weights = command.fields["w_base"]
            assert isinstance(weights, BufferRef)
            key, offsets = self._source(weights), self._offsets(command)
            if not all(places.put(key, box.of(offsets)) for box in boxes[id(command)]):
                return None
        loads = {self._source(BufferRef(*tile)): load for tile, load in self.loads.items()}
        names = ("len", "y_count", "z_count")
        size = sum(prod(_number(load, name, 1) for name in names) for load in loads.values())
        if size - places.size < _MIN_SAVED_BEATS * self.config.n * len(loads):
            return None
        return places

    def _loads(
        self, boxes: dict[int, list[_Box]], places: "_Places | None"
    ) -> tuple[dict[int, list[Command]], dict[CircularBuffer, CircularBuffer]]:
        """Return the loads by the identity of those that they replace, and the buffers that they fill.

        Tiles of buffers that no product reads are not loaded.
        """
        read = [command.fields["w_base"] for command in self.products if boxes[id(command)]]
        used = {(each.buffer, each.index) for each in read if isinstance(each, BufferRef)}
        changed: dict[int, list[Command]] = {
            id(load): [] for tile, load in self.loads.items() if tile not in used
        }
        if places is None:
            return changed, {}
        sources = {tile: self._source(BufferRef(*tile)) for tile in self.loads if tile in used}
        contents: list[NDArray[np.uint8]] = []
        starts: dict[tuple, int] = {}
        for tile, key in sources.items():
            if key not in starts:
                starts[key] = sum(each.size for each in contents)
                contents.append(places.collect(key, self._content(BufferRef(*tile))))
        constant = replace(self.constant, size=places.size, data=np.concatenate(contents), transferred=None)
        sizes: dict[CircularBuffer, int] = defaultdict(int)
        for (buffer, _), key in sources.items():
            sizes[buffer] = max(sizes[buffer], places.size_of(key))
        tiles: dict[CircularBuffer, int] = defaultdict(int)
        for buffer, index in self.loads:
            tiles[buffer] = max(tiles[buffer], index + 1)
        buffers = {
            buffer: replace(
                buffer,
                size=size,
                # Loads of fewer bytes must be further ahead to hide the latency of the memory.
                depth=buffer.depth
                if buffer.kept
                else max(min(buffer.total // size, tiles[buffer]), buffer.depth),
            )
            for buffer, size in sizes.items()
        }
        for (buffer, index), key in sources.items():
            load = self.loads[buffer, index]
            fields: Fields = {
                "dram": BufferRef(constant, 0, starts[key]),
                "dst": BufferRef(buffers[buffer], index),
                "len": places.size_of(key),
            }
            changed[id(load)] = [Command(Unit.LOAD, load.layer, fields)]
        return changed, buffers

    def _part(
        self,
        command: Command,
        box: _Box,
        places: "_Places | None",
        buffers: dict[CircularBuffer, CircularBuffer],
    ) -> Command:
        """Return the command for a box of the tiles of a product."""
        fields, number = dict(command.fields), _number
        weights, sums, image = (fields[name] for name in ("w_base", "acc_base", "a_base"))
        assert isinstance(weights, BufferRef) and isinstance(sums, BufferRef) and isinstance(image, BufferRef)
        offsets = box.of(self._offsets(command))
        if places is not None:
            offsets = places.of(self._source(weights), offsets)
        for axis, (dim, count) in enumerate(zip(_TILE_DIMS, offsets.shape, strict=True)):
            if dim in _TAILS and box.ranges[axis][1] < number(command, f"{dim}_count", 1):
                fields[_TAILS[dim]] = 0
            fields[f"{dim}_count"] = count
            if count > 1:
                fields[f"w_{dim}"] = int(np.diff(offsets, axis=axis).flat[0])
        (oc, _), (ky, _), (kx, _), (ic, _) = box.ranges
        word = MATRIX_WORD.unpack(number(command, "word", MATRIX_WORD.pack()))
        fields |= {
            "word": MATRIX_WORD.pack(**word | {"accumulate": int(not box.first)}),
            "w_base": BufferRef(
                buffers.get(weights.buffer, weights.buffer), weights.index, int(offsets.flat[0])
            ),
            "acc_base": sums.plus(oc * number(command, "acc_oc")),
            "a_base": image.plus(oc * number(command, "a_oc") + ic * number(command, "a_ic")),
            "u0": number(command, "u0") + ky * number(command, "u_ky", 1),
            "v0": number(command, "v0") + kx * number(command, "v_kx", 1),
        }
        return Command(Unit.MATRIX, command.layer, fields)


class _Places:
    """Places of the tiles of weights that products read, without those that no product reads.

    Parameters
    ----------
    tile : int
        Bytes of a tile.
    """

    def __init__(self, tile: int):
        self.tile = tile
        #: Number of each tile by its offset, for each source of a tile of a buffer.
        self.numbers: dict[tuple, dict[int, int]] = defaultdict(dict)

    def put(self, key: tuple, offsets: NDArray[np.int64]) -> bool:
        """Add tiles with the dimensions `_TILE_DIMS`; return False if no distances describe their places."""
        numbers, each = self.numbers[key], offsets.reshape(-1).tolist()
        if not any(offset in numbers for offset in each):
            numbers |= {offset: len(numbers) + i for i, offset in enumerate(each)}
        if not all(offset in numbers for offset in each):
            return False
        places = self.of(key, offsets)
        for axis in range(places.ndim):
            steps = np.diff(places, axis=axis)
            if steps.size and (steps != steps.flat[0]).any():
                return False
        return True

    def of(self, key: tuple, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of tiles in bytes."""
        numbers = self.numbers[key]
        return (
            np.array([numbers[each] for each in offsets.reshape(-1).tolist()]).reshape(offsets.shape)
            * self.tile
        )

    def collect(self, key: tuple, content: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the tiles of a source, whose bytes are given."""
        starts = np.array(list(self.numbers[key]))
        return content[starts[:, None] + np.arange(self.tile)].reshape(-1)

    def size_of(self, key: tuple) -> int:
        """Return the bytes of the tiles of a source."""
        return len(self.numbers[key]) * self.tile

    @property
    def size(self) -> int:
        """Bytes of the tiles of all sources."""
        return sum(map(self.size_of, list(self.numbers)))


#: What the product with the tiles of a block of outputs does with its sums: it adds to them, it is the first one, or it
#: is the first one of sums to which no tile contributes.
_ADDS, _FIRST, _EMPTY = range(3)


def _first_sums(
    steps: Sequence[TileStep], nonzero: dict[int, NDArray[np.bool_]]
) -> dict[int, NDArray[np.int8]]:
    """Return for each product and block of outputs `_ADDS`, `_FIRST` or `_EMPTY`.

    Parameters
    ----------
    steps : sequence of TileStep
        Steps of a layer.
    nonzero : dict
        Which tiles of each product are not zero, with the dimensions `_TILE_DIMS`, by identity of the command.
    """
    out = {each: np.full(len(mask), _ADDS, np.int8) for each, mask in nonzero.items()}
    contributes = {
        each: np.logical_or.reduce(mask.reshape(len(mask), -1), 1) for each, mask in nonzero.items()
    }
    chains: dict[CircularBuffer, dict[tuple, list[tuple[int, int]]]] = defaultdict(dict)

    def end(chain: Sequence[tuple[int, int]]) -> None:
        """Choose the product that is the first one of those with the same sums."""
        for number, block in chain:
            if contributes[number][block]:
                out[number][block] = _FIRST
                return
        number, block = chain[0]
        out[number][block] = _EMPTY

    for step in steps:
        for command in step.matrix:
            known, sums = chains[command.target[0]], command.write()
            if id(command) not in nonzero:
                while known:
                    end(known.popitem()[1])
                continue
            word = MATRIX_WORD.unpack(_number(command, "word", MATRIX_WORD.pack()))
            names = [("x_count", "acc_x"), ("y_count", "acc_y")]
            shape = [
                (_number(command, a, 1), _number(command, a, 1) > 1 and _number(command, b)) for a, b in names
            ]
            for block in range(len(nonzero[id(command)])):
                key = sums.index, sums.offset + block * _number(command, "acc_oc"), *shape
                if not word["accumulate"]:
                    if key in known:
                        end(known[key])
                    known[key] = [(id(command), block)]
                elif key in known:
                    known[key].append((id(command), block))
                else:  # the sums of products with other rows
                    while known:
                        end(known.popitem()[1])
        for command in (*step.fuse, *step.stores):
            for ref in command.refs():
                known = chains[ref.buffer]
                while known:
                    end(known.popitem()[1])
    for known in chains.values():
        for chain in known.values():
            end(chain)
    return out


_Ranges = tuple[tuple[int, int], ...]


class _Group(NamedTuple):
    """Blocks of outputs (start, end), the boxes of `_TILE_DIMS[1:]` of each by size, and True for their first sums."""

    blocks: tuple[int, int]
    boxes: list[_Ranges]
    first: bool


def _groups(nonzero: NDArray[np.bool_], sums: NDArray[np.int8], cost: int, least: int) -> list[_Group]:
    """Return disjoint boxes that cover the tiles of a product that are not zero.

    Parameters
    ----------
    nonzero : bool array
        Tiles that are not zero, with the dimensions `_TILE_DIMS`.
    sums : int8 array
        `_ADDS`, `_FIRST` or `_EMPTY` for each block of outputs.
    cost, least : int
        Cycles of a tile, and those that an additional box must save.
    """
    groups: list[tuple[int, int, NDArray[np.bool_]]] = []
    for block, mask in enumerate(nonzero):
        if sums[block] == _EMPTY:
            mask = np.zeros_like(mask)
            mask[0, 0, 0] = True
        if not mask.any():
            continue
        if groups and groups[-1][1] == block and (sums[block - 1] == _ADDS) == (sums[block] == _ADDS):
            first, _, before = groups[-1]
            joined, count = before | mask, block - first
            apart = _cost(before, count * cost, least) + _cost(mask, cost, least)
            if _cost(joined, (count + 1) * cost, least) <= apart:
                groups[-1] = first, block + 1, joined
                continue
        groups.append((block, block + 1, mask))
    out = []
    for low, high, mask in groups:
        boxes = _cover(mask.tobytes(), mask.shape, (high - low) * cost, least)
        out.append(_Group((low, high), sorted(boxes, key=_sizes), sums[low] != _ADDS))
    return out


def _sizes(ranges: _Ranges) -> list[int]:
    return [high - low for low, high in ranges]


def _cost(mask: NDArray[np.bool_], cost: int, least: int) -> int:
    """Return the cycles of the boxes that cover the tiles of a mask, where each box is a command."""
    boxes = _cover(mask.tobytes(), mask.shape, cost, least)
    return sum(cost * prod(high - low for low, high in box) + least for box in boxes)


@lru_cache(maxsize=1 << 16)
def _cover(mask: bytes, shape: tuple[int, ...], cost: int, least: int) -> tuple[_Ranges, ...]:
    """Return disjoint boxes with few cycles that cover the elements of a mask.

    Parameters
    ----------
    mask, shape : bytes, tuple of int
        Elements, and dimensions.
    cost, least : int
        Cycles of an element, and those that each box takes in addition.
    """
    array = np.frombuffer(mask, np.bool_).reshape(shape)
    if len(shape) == 1:
        found = np.flatnonzero(array)
        if not found.size:
            return ()
        breaks = (np.diff(found) - 1) * cost > least
        starts, ends = found[np.concatenate([[True], breaks])], found[np.concatenate([breaks, [True]])]
        return tuple(((int(start), int(end) + 1),) for start, end in zip(starts, ends, strict=True))
    best: list[tuple[int, tuple[_Ranges, ...]]] = [(0, ())]
    for end in range(1, shape[0] + 1):
        options = []
        for start in range(end):
            part, times = np.logical_or.reduce(array[start:end]), end - start
            boxes = _cover(part.tobytes(), part.shape, times * cost, least)
            before, others = best[start]
            options.append(
                (
                    before + _cost(part, times * cost, least),
                    (*others, *(((start, end), *box) for box in boxes)),
                )
            )
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


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
    packed: dict[int, list[Command]] = {}
    for buffer, commands in loads.items():
        packed |= _packed(config, buffer, commands)
    return _with_commands(steps, packed)


def _packed(
    config: MlaConfig, buffer: CircularBuffer, commands: Sequence[Command]
) -> dict[int, list[Command]]:
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
    if len(known) > _MAX_LENGTHS and len({each.size for each in known}) <= _MAX_SIZES:
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
        id(command): [
            Command(
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
        ]
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
