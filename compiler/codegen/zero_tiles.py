"""Skipping of weights that are zero: products of tiles of constants without those that are zero.

As those of `weight_formats`, the changes replace commands and the data that they read, after the steps of a layer have
been generated.
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

from compiler.codegen.weight_formats import (
    MIN_SAVED_BEATS,
    WORTHWHILE,
    Readers,
    Sources,
    number_of,
    uses,
    with_commands,
    word_of,
)
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
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD
from hw.isa.enums import Unit

#: Minimum number of cycles that each additional command for products without tiles that are zero must save. It doubles
#: until the additional commands of a constant need at most a share of the instruction store: at first half of it, with
#: which programs usually stay there; then 1.5 stores, since the commands also save the cycles of loading them again.
_MIN_SAVED_CYCLES = 12
_COMMAND_WORDS, _DOUBLED = 4, 8
_RESIDENT_STORES, _MAX_STORES = 0.5, 1.5


def skip_zero_tiles(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Let MATRIX skip tiles of constant weights that are zero, and LOAD the bytes of these tiles.

    A product is split into products of boxes of its tiles, where each additional command must save cycles. Sums to
    which no tile contributes are set to zero by the product with one tile. Weights are stored without the tiles that
    no product reads.

    The parameters and the result are those of `widen_products`.
    """
    sources, readers = uses(steps)
    changed: dict[int, list[Command]] = {}
    for constant in dict.fromkeys(each for found in sources.values() for each in found):
        data = constant.data
        if constant.memory == BufferMemory.DRAM and data is not None and _has_zeros(config.n, data):
            weights = _tiled_weights(config, constant, sources, readers)
            if weights is not None:
                changed |= weights.commands(steps)
    return with_commands(steps, changed)


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
    config: MlaConfig, constant: CircularBuffer, sources: Sources, readers: Readers
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
    rows = {n + n // 4 * word_of(command)["sparse"] for command in products}
    return _TiledWeights(config, constant, loads, products, n * rows.pop()) if len(rows) == 1 else None


def _may_split(command: Command, n: int) -> bool:
    """Return True if a command is a product with whole rows of weights."""
    if command.unit != Unit.MATRIX:
        return False
    word = word_of(command)
    weights = command.fields.get("w_base")
    distances = [number_of(command, f"w_{dim}") for dim in _TILE_DIMS]
    return (
        not any(word[name] for name in ("dw", "w_transpose", "scaled", "shift8"))
        and isinstance(weights, BufferRef)
        and isinstance(command.fields.get("acc_base"), BufferRef)
        and isinstance(command.fields.get("a_base"), BufferRef)
        and number_of(command, "w_row") == n
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
    tile : int
        Bytes of a tile.
    """

    config: MlaConfig
    constant: CircularBuffer
    loads: dict[Tile, Command]
    products: list[Command]
    tile: int
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
            if words <= (_MAX_STORES if doubled else _RESIDENT_STORES) * self.config.wis_words:
                break
        else:
            return {}
        before = after = 0
        for command in self.products:
            tiles = sum(prod(high - low for low, high in box.ranges) for box in boxes[id(command)])
            before += cycles(command, self.config)
            after += tiles * self._tile_cycles(command)
        if after > WORTHWHILE * before:
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
        numbers = [number_of(command, name, 1) for name in names]
        numbers += [
            number_of(command, name) for name in ("k_rows", "k_tail", *(f"w_{d}" for d in _TILE_DIMS))
        ]
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
            out = np.zeros(weights.buffer.size + self.tile, np.uint8)
            length = number_of(load, "len", 1)
            for z, y in product(range(number_of(load, "z_count", 1)), range(number_of(load, "y_count", 1))):
                start = source.resolve(0) + z * number_of(load, "dram_z") + y * number_of(load, "dram_y")
                at = target.offset + z * number_of(load, "dst_z") + y * number_of(load, "dst_y")
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
            out = out[..., None] + np.arange(number_of(command, f"{dim}_count", 1)) * number_of(
                command, f"w_{dim}"
            )
        return out

    def _nonzero(self, command: Command) -> NDArray[np.bool_]:
        """Return which tiles of a product are not zero, with the dimensions `_TILE_DIMS`.

        Those of weights with a zero point count as not zero.
        """
        key = self._key(command)
        if key not in self.known:
            n, weights = self.config.n, command.fields["w_base"]
            assert isinstance(weights, BufferRef)
            content = self._content(weights)
            rows = np.concatenate([[0], np.cumsum(content.reshape(-1, n).any(1))])
            first = self._offsets(command) // n
            whole = number_of(command, "k_rows") or n
            count = np.full(first.shape, whole)
            count[..., -1] = number_of(command, "k_tail") or whole
            with_zero_point = number_of(command, "w_zp") != 0
            self.known[key] = (rows[first + count] > rows[first]) | with_zero_point
        return self.known[key]

    def _tile_cycles(self, command: Command) -> int:
        """Return the cycles of MATRIX for a tile of a product."""
        distances = [number_of(command, name) for name in ("w_row", *(f"w_{dim}" for dim in _TILE_DIMS))]
        rows = number_of(command, "x_count", 1) * number_of(command, "y_count", 1)
        # Tiles that are zero need few bytes in packed loads, and otherwise as many as other tiles.
        load = 0 if self.config.packed_loads else self.config.n
        more = self.tile // self.config.n - self.config.n
        return max(rows, load, tile_cycles(distances, self.config, more))

    def _places(self, boxes: dict[int, list[_Box]]) -> "_Places | None":
        """Return where the tiles that products read are stored without gaps; None if all stay where they are."""
        places = _Places(self.tile)
        for command in self.products:
            weights = command.fields["w_base"]
            assert isinstance(weights, BufferRef)
            key, offsets = self._source(weights), self._offsets(command)
            if not all(places.put(key, box.of(offsets)) for box in boxes[id(command)]):
                return None
        loads = {self._source(BufferRef(*tile)): load for tile, load in self.loads.items()}
        names = ("len", "y_count", "z_count")
        size = sum(prod(number_of(load, name, 1) for name in names) for load in loads.values())
        if size - places.size < MIN_SAVED_BEATS * self.config.n * len(loads):
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
        if places is None or not used:
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
        fields, number = dict(command.fields), number_of
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
        fields |= {
            "word": MATRIX_WORD.pack(**{**word_of(command), "accumulate": int(not box.first)}),
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
            word = word_of(command)
            names = [("x_count", "acc_x"), ("y_count", "acc_y")]
            shape = [
                (number_of(command, a, 1), number_of(command, a, 1) > 1 and number_of(command, b))
                for a, b in names
            ]
            for block in range(len(nonzero[id(command)])):
                key = sums.index, sums.offset + block * number_of(command, "acc_oc"), *shape
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
