"""Reuse of results for regions of an image: only what depends on changed pixels is computed again.

The image is divided into blocks of rows and columns, and a *window* is a rectangle of blocks. One program compares the
image with its copy, block by block, and selects the smallest window that contains all blocks with differences. The
first layers of the network then compute only the results that depend on the window. These results are stored over the
ones of the previous sample, which remain in DRAM, and the other layers run as usual.

The first layers are cut into groups of consecutive layers. Each group is a subroutine, which reads and writes a
rectangle of tensors in DRAM; all windows of one size share it, since registers contain the addresses. Tensors in DRAM
have a border of zero points, so that padding does not need other subroutines at the edges of the image.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.ir.tensor import Tensor
from hw.config import MlaConfig

#: Indices from the first to before the second, on one axis of an image.
Span = tuple[int, int]
#: Spans of rows and of columns.
Rect = tuple[Span, Span]

_IMAGE_RANK = 4
_AXES = (0, 1)
#: Operators with windows of rows and columns, with the dimension of the weights that is the height of the window.
_WINDOW_DIMENSIONS = {"conv2d": 1, "depthwise_conv2d": 0, "max_pool2d": None, "avg_pool2d": None}
#: Windowed operators whose padding is equal to elements with the zero point.
_ZERO_PADDED = ("conv2d", "depthwise_conv2d")
#: Estimated cycles of a subroutine besides those of its layers: waiting, latency of DRAM, fill of the units.
_GROUP_CYCLES = 200
#: Estimated cycles of each layer of a subroutine besides those of its elements.
_LAYER_CYCLES = 30
#: Estimated cycles of counting the differences of a block besides one per row of the accumulator.
_BLOCK_CYCLES = 50
#: Largest number of blocks of rows and of columns, of windows, and of layers of a group.
_MAX_ROW_BLOCKS, _MAX_COLUMN_BLOCKS, _MAX_WINDOWS, _MAX_LAYERS = 12, 12, 56, 4
#: Shares of the rows and columns of the image that change, for which the windows are chosen.
_CHANGED = (1 / 8, 1 / 4)
#: Relative frequency of changes of the whole image.
_ALL_CHANGES = 0.05


def window_of(graph: Graph, node: Node, axis: int) -> tuple[int, int, int, int]:
    """Return the size of a node's window on an axis, its stride, and the padding before and after the image."""
    if node.op not in _WINDOW_DIMENSIONS:
        return 1, 1, 0, 0
    dimension = _WINDOW_DIMENSIONS[node.op]
    if dimension is None:
        size = node.attributes["kernel"][axis]
    else:
        size = graph.tensors[node.inputs[1]].shape[dimension + axis]
        size = (size - 1) * node.attributes["dilations"][axis] + 1
    pads = node.attributes["pads"]
    return size, node.attributes["strides"][axis], pads[axis], pads[axis + 2]


def sliceable(graph: Graph, node: Node) -> bool:
    """Return True if each pixel of a node's result depends only on constants and on some pixels of its operands."""
    out = [graph.tensors[name] for name in node.outputs]
    if len(out) != 1 or node.bodies or len(out[0].shape) != _IMAGE_RANK or out[0].shape[0] != 1:
        return False
    operands = graph.ins(node)
    if node.op in _WINDOW_DIMENSIONS:
        return all(each.constant for each in operands[1:])
    if not (OPS[node.op].elementwise or OPS[node.op].table):
        return False
    return all(
        set(each.shape[-3:-1]) <= {1} if each.constant else each.shape[:3] == out[0].shape[:3]
        for each in operands
    )


def affected(graph: Graph, node: Node, axis: int, span: Span) -> Span:
    """Return the rows (or columns) of a node's result that depend on some rows of its operand."""
    size, stride, before, _ = window_of(graph, node, axis)
    first, end = -(-(span[0] + before - size + 1) // stride), (span[1] - 1 + before) // stride + 1
    return max(first, 0), min(end, graph.out(node).shape[1 + axis])


def _hull(spans: Iterable[Span]) -> Span:
    """Return the smallest span that contains others."""
    known = list(spans)
    return min(first for first, _ in known), max(end for _, end in known)


@dataclass(frozen=True, eq=False)
class AxisTile:
    """Rows (or columns) that a group of layers computes and reads.

    Parameters
    ----------
    made : dict
        Span of each tensor that the group computes.
    read : dict
        Span of the operands of each node, by the node's name.
    pads : dict
        Padding before and after the operand of each node, by the node's name.
    """

    made: dict[str, Span] = field(default_factory=dict)
    read: dict[str, Span] = field(default_factory=dict)
    pads: dict[str, Span] = field(default_factory=dict)

    @property
    def key(self) -> tuple:
        """Key that two tiles of a group share if the same program computes both."""
        sizes = tuple(end - first for first, end in (*self.made.values(), *self.read.values()))
        return sizes, tuple(self.pads.values())


@dataclass(frozen=True, eq=False)
class RegionPlan:
    """Windows and groups of layers.

    Parameters
    ----------
    blocks : (int, int)
        Height and width of a block in pixels.
    sizes : list of (int, int)
        Sizes of windows in blocks, from the smallest. Windows of the last size together cover the image.
    groups : list of range
        Groups of layers, as ranges of indices of `RegionPlanner.first`.
    bands : bool
        True to compare whole rows of blocks and then whole columns of blocks, False to compare single blocks.
    cycles : float
        Estimated cycles in the mean of the expected changes.
    """

    blocks: tuple[int, int]
    sizes: list[tuple[int, int]]
    groups: list[range]
    bands: bool
    cycles: float


@dataclass(frozen=True, eq=False)
class RegionPlanner:
    """Choice of blocks, windows and groups for a stage, by estimated cycles.

    Parameters
    ----------
    graph : Graph
        Graph of the stage.
    layers : sequence of tuple of str
        Names of the nodes of each layer, in order.
    cycles : sequence of float
        Estimated cycles of each layer.
    config : MlaConfig
        Configuration of the target machine.
    """

    graph: Graph
    layers: Sequence[tuple[str, ...]]
    cycles: Sequence[float]
    config: MlaConfig

    @cached_property
    def image(self) -> Tensor | None:
        """Largest input that is an image of 8-bit pixels; None if there is none."""
        images = [
            tensor
            for tensor in (self.graph.tensors[name] for name in self.graph.inputs)
            if len(tensor.shape) == _IMAGE_RANK and tensor.shape[0] == 1 and min(tensor.shape[1:3]) > 1
        ]
        return max(images, key=lambda tensor: tensor.bytes, default=None)

    @cached_property
    def first(self) -> list[int]:
        """Indices of the first layers, whose results depend on the image alone, pixel by pixel."""
        known, found = {self.image.name} if self.image else set[str](), list[int]()
        for number, names in enumerate(self.layers):
            nodes = [self.graph.nodes[name] for name in names]
            made = {name for node in nodes for name in node.outputs}
            read = {t.name for node in nodes for t in self.graph.ins(node) if not t.constant} - made
            # Only layers with windows can read and write rows that are not contiguous in DRAM.
            if (
                read
                and read <= known
                and all(sliceable(self.graph, node) for node in nodes)
                and any(node.op in _WINDOW_DIMENSIONS for node in nodes)
            ):
                known |= made
                found.append(number)
        return found

    def nodes(self, group: Iterable[int]) -> list[Node]:
        """Return the nodes of some of the first layers."""
        return [self.graph.nodes[name] for index in group for name in self.layers[self.first[index]]]

    def results(self, group: range) -> list[str]:
        """Return the results of a group that nodes outside of it read, or that the stage writes."""
        nodes = self.nodes(group)
        inside = {node.name for node in nodes}
        return [
            node.outputs[0]
            for node in nodes
            if node.outputs[0] in self.graph.outputs
            or any(user.name not in inside for user in self.graph.consumers(node.outputs[0]))
        ]

    def border(self, name: str) -> tuple[Span, Span]:
        """Return the border of a tensor in DRAM before and after its rows, and before and after its columns."""
        tensor, inside = self.graph.tensors[name], {node.name for node in self._first_nodes}
        users = self.graph.consumers(name)
        if tensor.dtype not in ("int8", "uint8") or name in self.graph.outputs:
            return (0, 0), (0, 0)
        windows = [node for node in users if node.op in _WINDOW_DIMENSIONS]
        padded = [node for node in windows if any(node.attributes["pads"])]
        if any(node.name not in inside for node in users) or any(n.op not in _ZERO_PADDED for n in padded):
            return (0, 0), (0, 0)
        each = [[window_of(self.graph, node, axis)[2:] for node in windows] for axis in _AXES]
        rows, columns = (
            (max((b for b, _ in pads), default=0), max((a for _, a in pads), default=0)) for pads in each
        )
        return rows, columns

    @cached_property
    def _spans(self) -> dict[tuple[int, int, int], list[dict[str, Span]]]:
        """Known results of `spans`."""
        return {}

    @cached_property
    def _first_nodes(self) -> list[Node]:
        """Nodes of the first layers."""
        return self.nodes(range(len(self.first)))

    def spans(self, axis: int, count: int, block: int) -> list[dict[str, Span]]:
        """Return what each window of `count` blocks affects: a span of the image and of each of the first results.

        The spans of one tensor have the same size for all windows.
        """
        assert self.image is not None
        key = axis, count, block
        if key in self._spans:
            return self._spans[key]
        total = self.image.shape[1 + axis]
        found = []
        for start in range(-(-total // block) - count + 1):
            spans = {self.image.name: (start * block, min((start + count) * block, total))}
            for node in self._first_nodes:
                read = [spans[t.name] for t in self.graph.ins(node) if not t.constant]
                spans[node.outputs[0]] = _hull(affected(self.graph, node, axis, span) for span in read)
            found.append(spans)
        sizes = {name: max(spans[name][1] - spans[name][0] for spans in found) for name in found[0]}
        out = []
        for spans in found:
            starts = {
                name: min(spans[name][0], self.graph.tensors[name].shape[1 + axis] - size)
                for name, size in sizes.items()
            }
            out.append({name: (start, start + sizes[name]) for name, start in starts.items()})
        self._spans[key] = out
        return out

    def covering(self, axis: int, count: int, block: int) -> list[dict[str, Span]]:
        """Return the spans of windows of `count` blocks that together contain all rows (or columns) of all results.

        The result is empty if some rows of a result do not depend on the image.
        """
        spans = self.spans(axis, count, block)
        found = [spans[min(start, len(spans) - 1)] for start in range(0, len(spans) - 1 + count, count)]
        for name in found[0]:
            covered = {index for each in found for index in range(*each[name])}
            if len(covered) < self.graph.tensors[name].shape[1 + axis]:
                return []
        return found

    def tile(self, group: range, axis: int, spans: Mapping[str, Span]) -> AxisTile | None:
        """Return the rows (or columns) that a group computes and reads; None if it cannot compute only these.

        Parameters
        ----------
        group : range
            Group of layers.
        axis : int
            0 for rows, 1 for columns.
        spans : mapping
            Span of each result of the group that must be computed.
        """
        nodes, found = self.nodes(group), AxisTile()
        made = {node.outputs[0] for node in nodes}
        needed = {name: [spans[name]] for name in self.results(group)}
        for node in reversed(nodes):
            (out,) = node.outputs
            first, end = found.made[out] = _hull(needed[out])
            size, stride, before, _ = window_of(self.graph, node, axis)
            low, high = first * stride - before, (end - 1) * stride - before + size
            read = {tensor.name for tensor in self.graph.ins(node) if not tensor.constant}
            borders = [(0, 0) if name in made else self.border(name)[axis] for name in read]
            ahead, behind = (min(border[side] for border in borders) for side in (0, 1))
            limit = self.graph.tensors[node.inputs[0]].shape[1 + axis]
            span = max(low, -ahead), min(high, limit + behind)
            if span[0] >= span[1]:
                return None
            found.read[node.name], found.pads[node.name] = span, (span[0] - low, high - span[1])
            for name in read & made:
                needed.setdefault(name, []).append(span)
        for node in nodes:
            if any(name in made and found.made[name] != found.read[node.name] for name in node.inputs):
                return None
        return found

    def share(self, number: int, spans: Sequence[Mapping[str, Span]]) -> float:
        """Return the share of the results of one of the first layers that is in some spans of rows and columns."""
        out, share = self.graph.nodes[self.layers[self.first[number]][-1]].outputs[0], 1.0
        for axis, each in enumerate(spans):
            share *= (each[out][1] - each[out][0]) / self.graph.tensors[out].shape[1 + axis]
        return share

    def plan(self, count: int, price: float, *, whole: bool) -> RegionPlan | None:
        """Return the blocks, windows and groups with the least estimated cycles; None if all layers run as usual.

        Parameters
        ----------
        count : int
            Largest number of sizes of windows, besides the whole image.
        price : float
            Cycles that the program of a layer for windows of one size costs for its room in the instruction store.
        whole : bool
            True to compute the whole image at once if no window suffices; False to compute it window by window.
        """
        if self.image is None or not self.first:
            return None
        blocks = self._blocks
        sizes = self._sizes(blocks, count)
        if whole and sizes:
            sizes.append((-(-self.image.shape[1] // blocks[0]), -(-self.image.shape[2] // blocks[1])))
        if not sizes or any(not self.covering(axis, sizes[-1][axis], blocks[axis]) for axis in _AXES):
            return None
        groups, cycles = self._groups(blocks, sizes, price)
        if not groups:
            return None
        bands = self._comparison_cycles(blocks, bands=True) < self._comparison_cycles(blocks, bands=False)
        return RegionPlan(blocks, sizes, groups, bands, cycles + self.comparison_cycles(blocks))

    @cached_property
    def _blocks(self) -> tuple[int, int]:
        """Height and width of blocks with the least estimated cycles, if there are windows of all sizes."""
        assert self.image is not None
        grids = [
            (height, width)
            for height in {-(-self.image.shape[1] // count) for count in range(1, _MAX_ROW_BLOCKS + 1)}
            for width in {-(-self.image.shape[2] // count) for count in range(1, _MAX_COLUMN_BLOCKS + 1)}
        ]
        return min(grids, key=lambda grid: (self._grid_cycles(grid), grid))

    def comparison_cycles(self, blocks: tuple[int, int]) -> float:
        """Return the estimated cycles of comparing the image."""
        return min(self._comparison_cycles(blocks, bands=bands) for bands in (False, True))

    def _comparison_cycles(self, blocks: tuple[int, int], *, bands: bool) -> float:
        """Return the estimated cycles of comparing the image, by bands of rows and of columns or by blocks."""
        assert self.image is not None
        n, (_, rows, columns, _) = self.config.n, self.image.shape
        pixel, load = self.image.bytes // (rows * columns), 2 * self.image.bytes / n
        heights, widths = (
            [min(size, total - first) for first in range(0, total, size)]
            for size, total in zip(blocks, (rows, columns), strict=True)
        )

        def cycles(height: int, width: int) -> float:
            """Return the cycles of a block: MATRIX takes two per point, and FUSE one and those of the settling."""
            points = height * -(-width * pixel // n)
            return max(2 * points, points + _BLOCK_CYCLES)

        if not bands:
            by_row = [sum(cycles(height, width) for width in widths) for height in heights]
            return max(load * heights[0] / rows + sum(by_row), load + by_row[-1])
        if 2 * self.image.bytes > self.config.sp_bytes:
            return inf
        return (
            load + sum(cycles(each, columns) for each in heights) + sum(cycles(rows, each) for each in widths)
        )

    def _changed_blocks(self, axis: int, block: int) -> dict[int, float]:
        """Return the probability that the expected changes are in a given number of adjacent blocks."""
        assert self.image is not None
        total, found = self.image.shape[1 + axis], dict[int, float]()
        for share in _CHANGED:
            size = max(round(total * share), 1)
            starts = range(total - size + 1)
            for start in starts:
                count = (start + size - 1) // block - start // block + 1
                found[count] = found.get(count, 0.0) + 1 / len(starts) / len(_CHANGED)
        return found

    def _window_cycles(self, blocks: tuple[int, int]) -> dict[tuple[int, int], float]:
        """Return the estimated cycles of the first layers for each size of windows."""
        spans = [
            {
                count: self.spans(axis, count, block)[0]
                for count in range(1, -(-self.image.shape[1 + axis] // block) + 1)  # type: ignore[union-attr]
            }
            for axis, block in enumerate(blocks)
        ]
        return {
            (rows, columns): sum(
                self.cycles[layer] * self.share(number, (spans[0][rows], spans[1][columns]))
                for number, layer in enumerate(self.first)
            )
            for rows in spans[0]
            for columns in spans[1]
        }

    def _chances(self, blocks: tuple[int, int]) -> dict[tuple[int, int], float]:
        """Return the probability of each size of the smallest rectangle of blocks with all expected changes."""
        rows, columns = (self._changed_blocks(axis, block) for axis, block in enumerate(blocks))
        return {(a, b): p * q for a, p in rows.items() for b, q in columns.items()}

    def _grid_cycles(self, blocks: tuple[int, int]) -> float:
        """Return the estimated cycles of comparing and of the first layers, if there are windows of all sizes."""
        cycles = self._window_cycles(blocks)
        return self.comparison_cycles(blocks) + sum(
            p * cycles[size] for size, p in self._chances(blocks).items()
        )

    def _sizes(self, blocks: tuple[int, int], count: int) -> list[tuple[int, int]]:
        """Return up to `count` sizes of windows, chosen one after the other for the largest saving, and the whole."""
        cycles, chances = self._window_cycles(blocks), self._chances(blocks)
        whole = max(cycles)
        chosen = [whole]

        def expected(sizes: Sequence[tuple[int, int]]) -> float:
            return sum(
                p * min(cycles[size] for size in sizes if size[0] >= box[0] and size[1] >= box[1])
                for box, p in chances.items()
            )

        def positions(size: tuple[int, int]) -> int:
            return (whole[0] - size[0] + 1) * (whole[1] - size[1] + 1)

        while len(chosen) <= count:
            room = _MAX_WINDOWS - sum(map(positions, chosen))
            options = [size for size in cycles if size not in chosen and positions(size) <= room]
            best = min(options, key=lambda size: (expected([*chosen, size]), size), default=None)
            if best is None or expected([*chosen, best]) >= expected(chosen):
                break
            chosen.append(best)
        return sorted(chosen[1:], key=lambda size: cycles[size])

    def _groups(
        self, blocks: tuple[int, int], sizes: Sequence[tuple[int, int]], price: float
    ) -> tuple[list[range], float]:
        """Return the groups of layers with the least estimated cycles of all layers, and these cycles."""
        chances = self._chances(blocks)
        whole = max(self._window_cycles(blocks))
        weights = dict.fromkeys(sizes, 0.0)
        every = len(self.covering(0, sizes[-1][0], blocks[0])) * len(
            self.covering(1, sizes[-1][1], blocks[1])
        )
        for box, chance in [*chances.items(), (whole, _ALL_CHANGES)]:
            fits = next((s for s in sizes if s[0] >= box[0] and s[1] >= box[1]), None)
            weights[fits or sizes[-1]] += chance if fits else chance * every
        spans = {size: [self.spans(axis, size[axis], blocks[axis]) for axis in _AXES] for size in sizes}
        best: list[tuple[float, list[range]]] = [(0.0, [])]
        for end in range(1, len(self.first) + 1):
            options = []
            for start in range(max(end - _MAX_LAYERS, 0), end):
                group = range(start, end)
                cost = sum(weights[size] * self._group_cycles(group, spans[size]) for size in sizes)
                cost += price * len(group) * len(sizes)
                options.append((best[start][0] + cost, [*best[start][1], group]))
            best.append(min(options, key=lambda option: option[0]))
        usual = sum(self.cycles)
        ends = [
            (cost + usual - sum(self.cycles[self.first[i]] for i in range(end)), groups)
            for end, (cost, groups) in enumerate(best)
        ]
        cost, groups = min(ends, key=lambda option: option[0])
        return groups, cost - price * len(sizes) * sum(map(len, groups))

    def _group_cycles(self, group: range, spans: Sequence[Sequence[Mapping[str, Span]]]) -> float:
        """Return the estimated cycles of a group for the windows with given spans; infinite if it is impossible."""
        tiles = [[self.tile(group, axis, each) for each in spans[axis]] for axis in _AXES]
        if any(tile is None for each in tiles for tile in each):
            return inf
        middle = [each[len(each) // 2] for each in tiles]
        made = [tile.made if tile else {} for tile in middle]
        return _GROUP_CYCLES + sum(
            _LAYER_CYCLES + self.cycles[self.first[number]] * self.share(number, made) for number in group
        )
