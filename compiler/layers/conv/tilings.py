"""Tilings of convolutions with their tile model and estimated cycles."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from compiler.commands.tile_buffers import SharedRows, row_groups
from compiler.layers.base import Addend, Drain
from compiler.layers.conv.input_layout import (
    Im2colLayout,
    can_fold,
    can_pack_pixels,
    can_share_rows,
    gather_cycles,
    pack_pixels,
    passes_per_pixel,
    reads_rows,
    row_phases,
    shared_rows,
    source_columns,
    strips_of,
    window_passes,
)
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tiles import TilePart, first_tile_rows, last_tile_parts
from compiler.layers.tile_pipeline import (
    MAX_SIMULATED_TILES,
    RATE_TILES,
    PipelineTile,
    TileLoad,
    TilePipeline,
    first_result,
    lines,
    repeated_pipeline,
)
from compiler.layers.tiling_context import (
    BUS_OVERHEAD,
    PREFETCH_STEPS,
    TILE_CYCLES,
    LayerContext,
    TilingContext,
    Tilings,
    images,
    input_rows,
    param_blocks_per_buffer,
    strip_images,
    strip_widths,
    sum_buffers,
)
from compiler.schedule.schedule import ALL_COLUMNS, LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.isa.enums import DTYPE_BYTES, Dtype

#: Beats of the parameters of a block of channels, with a scale per channel and with a common scale.
_PARAMETERS, _BIASES = 9.0, 4.0
#: Factor by which FUSE is slower if biases are read from the scratchpad.
_COMMON_SCALE_SLOWDOWN = 4


#: Maximum number of pieces of image rows that are loaded before the rest of their tile.
_MAX_EARLY_PIECES = 1 << 16


class _Cut:
    """Tile sizes and counts of a convolution."""

    def __init__(self, layer: ConvLayer, s: LayerSchedule, context: LayerContext):
        n, (self.x, self.y) = context.config.n, images(layer)
        out_c, self.kernel_h, kernel_w, self.in_c = layer.weights.shape
        self.layer, self.context, self.s, self.n = layer, context, s, n
        self.grouped = layer.groups_are_blocks(n)
        #: Number of groups that are processed one after the other, and output channels of a block.
        self.groups, self.lanes = (1, layer.group_outputs) if self.grouped else (layer.groups, n)
        out_c //= self.groups
        self.stride, stride_w = layer.strides
        if s.pixels_per_pass > 1 and can_pack_pixels(layer, s.pixels_per_pass):
            out_c *= s.pixels_per_pass
            kernel_w += (s.pixels_per_pass - 1) * stride_w
            self.y = replace(self.y, w=self.y.w // s.pixels_per_pass, c=self.y.c * s.pixels_per_pass)
            stride_w *= s.pixels_per_pass
        reach = (kernel_w - 1) * layer.dilations[1] + 1
        #: Bytes of an image row of input and output.
        self.x_row, self.y_row = self.x.w * self.x.c, self.y.w * self.y.c
        self.strips, self.x, self.y = strip_images(self.x, self.y, s.strip_width, stride_w, reach)
        #: Number of images that are processed one after the other; each strip of an image of the batch counts as one.
        self.images = layer.batch * self.strips
        self.taps, self.out_c = self.kernel_h * kernel_w, out_c
        self.layout = Im2colLayout.PIXELS
        both = Im2colLayout.GATHERED if s.fold_kernel_width else Im2colLayout.STRIPS
        if s.im2col and can_fold(layer, context.x_on_chip, both):
            self.layout = both
        elif s.fold_kernel_width and can_fold(layer, context.x_on_chip, Im2colLayout.ROWS):
            self.layout = Im2colLayout.ROWS
        whole = self.y.w if self.strips == 1 else 0
        packs = s.pixels_per_pass > 1 and can_pack_pixels(layer, s.pixels_per_pass)
        packed = pack_pixels(layer, s.pixels_per_pass) if packs else layer
        #: Convolution whose kernels the strips of pixels contain, and output columns per strip.
        self.wide, self.strip_pixels = strips_of(packed, self.layout, whole, n)
        deep = {Im2colLayout.PIXELS: 1, Im2colLayout.ROWS: kernel_w}.get(self.layout, self.taps)
        self.kernel_w, self.blocks, self.k_blocks = (
            kernel_w,
            ceil_div(out_c, self.lanes),
            ceil_div(self.in_c * deep, n),
        )
        self.again = self.taps // deep  # number of passes over each block of the reduction dimension
        self.packed = packed
        #: Passes over image rows.
        self.row_passes = window_passes(packed, Im2colLayout.ROWS, kernel_w, n)
        #: Output columns whose strips FUSE gathers, and of the others, those that are loaded and those for which MATRIX
        #: reads image rows.
        self.gathered, self.loaded, self.direct = _shares(
            layer, self.layout, s.width, self.y.w, context.x_on_chip, n
        )
        #: True if the strips of a part of the columns are gathered at a time.
        self.divided = self.strips > 1 or self.gathered < self.y.w
        self.rows_per_load = min(s.rows_per_load, self.y.h)
        self.rows, self.columns = min(s.rows, self.rows_per_load), min(s.columns, self.blocks)
        self.depth = self.k_blocks
        if self.layout == Im2colLayout.PIXELS and not self.grouped:
            self.depth = min(s.depth, self.k_blocks)
        self.parts = ceil_div(self.k_blocks, self.depth)
        #: Blocks of the outputs beyond whole blocks.
        self.shared = SharedRows(1, (out_c - 1) % n + 1, n)
        shares = can_share_rows(context.y_on_chip, self.blocks, self.columns, s.split_last_tile)
        if self.parts == 1 and not s.stream_channel_blocks and shares:
            self.shared = shared_rows(packed, self.layout, self.wide.weights.shape[2], n)
        #: Number of pieces of the channels of an image row that are loaded separately.
        self.windows = ceil_div(self.blocks, self.columns) if self.grouped else self.parts
        self.size = DTYPE_BYTES[layer.drain.dtype]
        #: True if the last tile is drained in parts.
        self.split_last = s.split_last_tile
        #: Number of image rows that fill the array.
        self.few = ceil_div(n, self.y.w)
        #: Bus beats of image rows that were loaded before the rest of their piece.
        self.early: dict[tuple[int, ...], float] = {}
        #: FUSE cycles per pixel and channel block.
        self.drain_rate = self.size * (
            _COMMON_SCALE_SLOWDOWN if s.common_scale and layer.drain.common_scale else 1
        )

    def image(self, rows: int, part: int, block: int) -> float:
        """Return the bus beats for loading the input of `rows` output rows.

        `part` is the index of a range of input channels, `block` the first block of output channels of the tile.
        """
        if self.context.x_on_chip:
            return 0.0
        n, x, least = self.n, self.x, self.context.line_beats
        if self.layout == Im2colLayout.STRIPS:
            count = self.y.w // self.strip_pixels * ((rows - 1) * self.stride + self.kernel_h)
            return count * max((self.wide.weights.shape[2] * x.c + n - 1) / n, least)
        reach = (self.kernel_h - 1) * self.layer.dilations[0] + 1
        count = input_rows(rows, self.stride, reach, x.h)
        if self.loaded:
            strips = self.loaded // self.strip_pixels * ((rows - 1) * self.stride + self.kernel_h)
            beats = strips * max((self.wide.weights.shape[2] * x.c + n - 1) / n + _SHORT_LINE_BEATS, least)
            width = source_columns(self.wide, x, self.gathered // self.strip_pixels)
            return beats + lines(count, width * x.c, self.x_row, n, least)
        if self.layout == Im2colLayout.ROWS:
            if self.strips > 1:
                return lines(count, x.w * x.c, self.x_row, n, least)
            return count * (x.w + self.layer.pads[1] + self.layer.pads[3]) * x.c / n
        width = min(self.depth * n, self.in_c - part * self.depth * n)
        if self.grouped:
            width = min(self.columns * self.in_c, x.c - block * self.in_c)
        if self.strips > 1 and width == x.c:
            return lines(count, x.w * x.c, self.x_row, n, least)
        return lines(count * x.w, width, x.c, n, least)

    def gathers(self, rows: int) -> float:
        """Return the cycles in which FUSE gathers the inputs of `rows` output rows."""
        if self.layout != Im2colLayout.GATHERED:
            return 0.0
        again = max(self.kernel_h - self.stride, 0) / self.rows_per_load
        y, strips = replace(self.y, w=self.y.w // self.strip_pixels), self.gathered // self.strip_pixels
        inside = strips if strips < y.w or self.strips > 1 else None
        return gather_cycles(self.wide, self.x, y, rows * (self.stride + again), self.n, inside)

    def shared_of(self, block: int, blocks: int) -> SharedRows | None:
        """Return the blocks of outputs of several rows in place of the last of some blocks, if any."""
        return self.shared if self.shared.rows > 1 and block + blocks == self.blocks else None

    def passes(self, rows: int, depth: int, block: int, blocks: int) -> float:
        """Return the cycles of MATRIX for `rows` rows and some blocks of outputs, with `depth` blocks of inputs."""
        shared = self.shared_of(block, blocks)
        whole = blocks - (shared is not None)
        cycles = whole * self._passes(rows, self.again * depth, self.row_passes)
        for _, groups, size in row_groups(rows, shared.rows) if shared else ():
            for block_of in shared.blocks_of(size) if shared else ():
                over = (
                    window_passes(self.packed, layout, self.wide.weights.shape[2], self.n, block_of.rows)
                    for layout in (self.layout, Im2colLayout.ROWS)
                )
                cycles += self._passes(groups, *over, least=self.n + _SHIFT_CYCLES)
        return cycles

    def _passes(self, groups: int, strips: int, rows: int, least: int = 0) -> float:
        """Return the cycles of MATRIX for groups of rows with some passes over strips, or over image rows.

        Each pass takes at least `least` cycles, or N.
        """
        least = max(least, self.n)
        cycles = strips * max(groups * (self.y.w - self.direct), least)
        return cycles + (self.direct > 0) * rows * max(groups * self.direct, least)

    def drains(self, rows: int, block: int, blocks: int) -> tuple[float, int]:
        """Return the cycles and the number of commands in which FUSE drains `rows` rows of some blocks of outputs."""
        shared = self.shared_of(block, blocks)
        if shared is None:
            return rows * self.y.w * blocks * self.drain_rate, 1
        points, commands = rows * (blocks - 1), int(blocks > 1)
        for _, groups, size in row_groups(rows, shared.rows):
            segments = sum(len(each.segments) for each in shared.blocks_of(size))
            points += groups * segments
            at_once = blocks > 1 and len(shared.blocks) == 1 and not self.context.y_on_chip
            commands += 1 if at_once else segments
        return points * self.y.w * self.drain_rate, commands

    def out(self, pixels: int, block: int, columns: int) -> float:
        """Return the bus beats for storing the results of some channel blocks."""
        width = min(columns * self.lanes, self.out_c - block * self.lanes)
        if self.strips > 1 and width == self.y.c:
            return lines(pixels // self.y.w, self.y.w * width * self.size, self.y_row * self.size, self.n)
        return lines(pixels, width * self.size, self.y.c * self.size, self.n)


def conv_tile_model(layer: ConvLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a convolution, with tiles of output rows, channel blocks and partial sums.

    A convolution that is cut by phases is represented by its largest phase, repeated for each phase.
    """
    if phases := row_phases(context.config, layer):
        return repeated_pipeline(lambda: conv_tile_model(phases[0].layer, s, context), len(phases))
    cut = _Cut(layer, s, context)
    row_tiles = cut.images * sum(
        ceil_div(min(cut.rows_per_load, cut.y.h - first), cut.rows)
        for first in range(0, cut.y.h, cut.rows_per_load)
    )
    groups = ceil_div(cut.blocks, cut.columns)
    buffers = {
        "x": max(1, min(s.x_buffers, cut.images * ceil_div(cut.y.h, cut.rows_per_load) * cut.windows)),
        "w": max(1, min(s.w_buffers, groups * cut.parts)),
        "p": s.param_buffers,
        "r": s.y_buffers,
        "t": 1,
        "f": _MAX_EARLY_PIECES,
    }
    ends = [_Tile(cut, (0, 0, 0), 0, cut.rows, 0, first=True, last=row_tiles * groups == 1)]
    if row_tiles * groups > 1:
        rows = ((cut.y.h - 1) % cut.rows_per_load) % cut.rows + 1
        block = (groups - 1) * cut.columns
        ends.append(_Tile(cut, (0, 0, 0), 0, rows, block, first=False, last=True))
    # The inputs of the first load are gathered before the first tile.
    saved, whole = -cut.gathers(cut.rows_per_load), (row_tiles * groups - len(ends)) * cut.parts
    if s.split_last_tile and cut.groups * (whole + sum(tile.steps for tile in ends)) > MAX_SIMULATED_TILES:
        drained = ends[-1].parts()[-1]  # the last tile is extrapolated, and its parts are not simulated
        points = ends[-1].rows * ends[-1].columns - drained.rows * drained.blocks
        saved, cut.split_last = saved + points * cut.y.w * cut.drain_rate, False
    steps = cut.groups * (whole + sum(tile.steps for tile in ends))
    period = cut.parts * (groups if s.order == "rows" else 1)
    array = sum(
        sum(
            cut.passes(min(cut.rows, high - row), cut.k_blocks, block, min(cut.columns, cut.blocks - block))
            for block in range(0, cut.blocks, cut.columns)
        )
        for first in range(0, cut.y.h, cut.rows_per_load)
        for high in [min(cut.rows_per_load, cut.y.h - first)]
        for row in range(0, high, cut.rows)
    )
    array = float(cut.groups * cut.images * array)
    return TilePipeline(
        _conv_tiles(cut),
        steps,
        buffers,
        s.acc_buffers,
        s.y_buffers,
        saved,
        period if period <= RATE_TILES else cut.parts,
        array,
        first_result(layer.drain),
    )


def _conv_tiles(cut: _Cut) -> Iterator[PipelineTile]:
    for group in range(cut.groups):
        for first, last, (number, load_row, row, block) in _with_ends(_order(cut)):
            rows = min(cut.rows, min(load_row + cut.rows_per_load, cut.y.h) - row)
            yield from _Tile(cut, (group, number, load_row), row, rows, block, first=first, last=last).work()


_Place = tuple[int, int, int, int]


def _with_ends(places: Iterator[_Place]) -> Iterator[tuple[bool, bool, _Place]]:
    """Yield each place with flags that are True for the first and for the last one."""
    now, first = next(places), True
    for following in places:
        yield first, False, now
        now, first = following, False
    yield first, True, now


def _order(cut: _Cut) -> Iterator[_Place]:
    row_groups = [
        (number, load_row, row)
        for number in range(cut.images)
        for load_row in range(0, cut.y.h, cut.rows_per_load)
        for row in range(load_row, min(load_row + cut.rows_per_load, cut.y.h), cut.rows)
    ]
    blocks = range(0, cut.blocks, cut.columns)
    if cut.s.order == "rows":
        return ((*load_row, block) for load_row in row_groups for block in blocks)
    return ((*load_row, block) for block in blocks for load_row in row_groups)


class _Tile:
    """Tile of a convolution as work of the units; `key` identifies the channel group, the image and its loaded rows."""

    def __init__(
        self,
        cut: _Cut,
        key: tuple[int, int, int],
        row: int,
        rows: int,
        block: int,
        *,
        first: bool,
        last: bool,
    ):
        self.cut, self.key, self.row, self.rows, self.block = cut, key, row, rows, block
        self.first, self.beginning, self.end = first and cut.s.split_first_tile, first, last
        self.columns = min(cut.columns, cut.blocks - block)

    @property
    def last(self) -> bool:
        """True if the tile is drained in parts."""
        return self.end and self.cut.split_last

    def parts(self) -> list[TilePart]:
        """Return the parts with separate sums, each of which is drained as a whole."""
        whole = TilePart(0, self.rows, self.block, self.columns, self.rows)
        return last_tile_parts(whole, self.cut.few) if self.last else [whole]

    def _pieces(self, part: TilePart, k: int) -> list[int]:
        if not self.first or k:
            return [part.rows]
        shared = self.cut.shared_of(part.block, part.blocks)
        return first_tile_rows(part.rows, self.cut.few, shared.rows if shared else 1)

    @property
    def steps(self) -> int:
        """Number of MATRIX commands."""
        parts = self.parts()
        first = sum(len(self._pieces(part, 0)) for part in parts)
        return first + (self.cut.parts - 1) * len(parts)

    def work(self) -> Iterator[PipelineTile]:
        """Yield the work of each MATRIX command, in the order of the code generator."""
        cut, parts = self.cut, self.parts()
        work = [(k, part) for k in range(cut.parts) for part in parts]
        if not self.beginning and cut.s.w_buffers >= cut.parts and cut.s.x_buffers >= cut.parts:
            work = [(k, part) for part in parts for k in range(cut.parts)]
        for k, part in work:
            done, end = part.start, part.start + part.rows
            for rows in self._pieces(part, k):
                done += rows
                drained = part.rows if done == end and k == cut.parts - 1 else 0
                yield self._step(k, part, rows, done, drained)

    def _step(self, k: int, part: TilePart, rows: int, until: int, drained: int) -> PipelineTile:
        """Return the work for some rows of a part, up to row `until` of the tile, which drains `drained` rows."""
        cut, layer, s, n = self.cut, self.cut.layer, self.cut.s, self.cut.n
        depth = min(cut.depth, cut.k_blocks - k * cut.depth)
        deep = min(depth * n, cut.in_c - k * cut.depth * n) if cut.parts > 1 else cut.in_c
        loads, shared, commands = self._image(k, until), cut.shared_of(part.block, part.blocks), 0
        taps = self.columns * cut.taps
        if self.block + self.columns == cut.blocks:
            taps += cut.shared.more_rows(cut.kernel_h, cut.stride) * cut.taps // cut.kernel_h
        loads.append(("w", (self.key[0], self.block, k), float(taps * deep)))
        fuse = store = gathers = 0.0
        if drained:
            pixels = drained * cut.y.w
            beats = cut.out(pixels, part.block, part.blocks)
            place = (*self.key[:2], self.row + part.start, part.block)
            loads += with_drain(layer.drain, s, cut.context, place, cut.blocks, beats)
            fuse, commands = cut.drains(drained, part.block, part.blocks)
            fuse += (commands - 1) * _DRAIN_COMMAND_CYCLES
            gathers = cut.gathers(drained) if part.block == 0 else 0.0
            if not cut.divided or s.x_buffers < _GATHERED_X_BUFFERS:
                fuse, gathers = fuse + gathers, 0.0
            store = 0.0 if cut.context.y_on_chip else beats
        return PipelineTile(
            tuple(loads),
            cut.passes(rows, depth, part.block, part.blocks),
            fuse,
            store,
            cut.strip_pixels * (1 + (len(shared.blocks) if shared else 0))
            + commands
            + (drained > 0) * (not cut.context.y_on_chip),
            self.last,
            gathers,
        )

    def _image(self, k: int, until: int) -> list[TileLoad]:
        """Return the loads of the image; a first tile that is split loads only the rows up to `until`."""
        cut, key = self.cut, (*self.key, self.block if self.cut.grouped else k)
        if cut.context.x_on_chip:
            return []
        high = min(cut.rows_per_load, cut.y.h - self.key[2])
        if self.first and until < high:
            early, cut.early[key] = cut.early.get(key, 0.0), cut.image(until, k, self.block)
            return [("f", (*key, until), max(cut.early[key] - early, 0.0))]
        return [("x", key, cut.image(high, k, self.block) - cut.early.pop(key, 0.0))]


def summand_bytes(drain: Drain, context: TilingContext, rows: int) -> int:
    """Return the size of the buffers for `rows` rows of N elements of the epilogue's second summand."""
    if drain.residual is None:
        return 0
    if isinstance(drain.residual, Addend):
        here = context.on_chip(drain.residual.tensor)
        return 0 if here else rows * context.config.n * DTYPE_BYTES[Dtype.I32]
    return 0 if context.y_on_chip else rows * context.config.n * DTYPE_BYTES[drain.dtype]


def with_drain(
    drain: Drain, s: LayerSchedule, context: LayerContext, key: tuple, blocks: int, beats: float
) -> list[tuple[str, object, float]]:
    """Return the loads that the epilogue of a tile needs: parameters, lookup table and residual."""
    slots = max(1, min(s.param_blocks, blocks))
    group, block = key[0], key[-1]
    many = min(slots, blocks - block // slots * slots)
    each = _BIASES if s.common_scale and drain.common_scale else _PARAMETERS
    loads: list[tuple[str, object, float]] = [("p", (group, block // slots), many * each)]
    if drain.table is not None:
        loads.append(("t", 0, 2.0 * len(drain.table) / context.config.n))
    if drain.residual is not None and not context.on_chip(drain.residual.tensor):
        wide = DTYPE_BYTES[Dtype.I32] / DTYPE_BYTES[drain.dtype] if isinstance(drain.residual, Addend) else 1
        loads.append(("r", key, beats * wide))
    return loads


#: Outer loop, and True if all weights stay in the scratchpad.
_ORDERS = (("rows", True), ("rows", False), ("channels", False))
#: Ratio of an estimate to the array's cycles at which no further tilings are tried.
_SUFFICIENT_RATIO = 1.1
#: Cycles by which a tile of weights is delayed if few rows hide its load, since reads of activations have priority.
_WEIGHT_DELAY_CYCLES = 2
#: Cycles in addition to N that a pass over groups of rows takes at least, because its weights arrive.
_SHIFT_CYCLES = 5
#: Cycles per tile in which MATRIX waits for one of two buffers of sums if FUSE gathers strips between draining them.
_SUM_WAIT_CYCLES = 25
#: Beats by which a line of a strip delays the bus in addition to its own, measured with nine bytes per line.
_SHORT_LINE_BEATS = 0.5
#: Cycles of FUSE between two commands that drain sums of a tile.
_DRAIN_COMMAND_CYCLES = 15
#: Cycles of a tile that do not overlap with other work.
_TILE_OVERHEAD_CYCLES = 8
#: Number of the best tilings that are also tried with split sums.
_SPLIT_CANDIDATES = 4
#: Transfer time, in memory latencies, below which a tile of weights counts as small.
_MAX_SMALL_LOAD_LATENCIES = 4
#: Minimum size of a first tile's input, in blocks of N beats, for which loading in parts is worthwhile.
_MIN_SPLIT_INPUT_BLOCKS = 3
#: Buffers for gathered strips of a part of the columns, so that FUSE need not wait for MATRIX between draining sums and
#: gathering strips.
_GATHERED_X_BUFFERS = 3
#: Shares of the strips of whole rows, in eighths, that FUSE gathers if LOAD loads the others.
_GATHERED_EIGHTHS = (4, 5, 6)
#: Ratio of the cycles in which FUSE gathers and drains all pixels to those of the array from which FUSE is relieved.
_MIN_FUSE_SHARE = 0.75
#: Number of strip widths that fit, beginning with the largest, from which the best is chosen.
_FITTING_WIDTHS = 4
#: Minimum number of result tiles for draining the last one in parts, and maximum number of weight tiles in flight.
_SPLIT_Y_BUFFERS, _MAX_WEIGHT_BUFFERS = 4, 8


@dataclass(frozen=True)
class ConvTile:
    """Tile of a convolution: blocks of input channels and of output channels, output rows, and output rows per load."""

    depth: int
    columns: int
    rows: int
    rows_per_load: int
    order: str
    resident: bool


#: Estimated cycles, schedule and tile.
_Found = tuple[float, LayerSchedule, ConvTile]


def _shares(
    layer: ConvLayer, layout: Im2colLayout, gathered: int, columns: int, on_chip: bool, n: int
) -> tuple[int, int, int]:
    """Return the output columns of gathered strips and of others: of loaded strips, and those without strips."""
    if layout != Im2colLayout.GATHERED or gathered >= columns:
        return columns, 0, 0
    rest = columns - gathered
    return (gathered, 0, rest) if reads_rows(layer, on_chip, n) else (gathered, rest, 0)


class ConvTiler:
    """Generator of the tilings of a convolution whose image has a given layout.

    If the strips of pixels are gathered, `gathered` is the number of output columns whose strips are.
    """

    def __init__(
        self,
        context: TilingContext,
        layer: ConvLayer,
        layout: Im2colLayout,
        pixels_per_pass: int,
        width: int = ALL_COLUMNS,
        gathered: int = ALL_COLUMNS,
    ):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.layout, self.pixels_per_pass, n = layout, pixels_per_pass, context.config.n
        self.width = width
        _, self.kernel_h, self.kernel_w, self.in_c = layer.weights.shape
        x, y = images(layer)
        across = (self.kernel_w - 1) * layer.dilations[1] + 1
        self.strips, self.x, self.y = strip_images(x, y, width, layer.strides[1], across)
        #: Number of images that are processed one after the other; each strip of an image of the batch counts as one.
        self.images, self.x_row, self.y_row = layer.batch * self.strips, x.w * x.c, y.w * y.c
        self.grouped = layer.groups_are_blocks(n)
        #: Number of groups that are processed one after the other.
        self.groups = 1 if self.grouped else layer.groups
        self.blocks = layer.groups if self.grouped else ceil_div(layer.group_outputs, n)
        #: Convolution whose kernels the strips contain, and output columns per strip.
        self.wide, self.strip_pixels = strips_of(layer, layout, self.y.w if self.strips == 1 else 0, n)
        self.taps = self.kernel_h * self.kernel_w
        self.gathered, self.loaded, self.direct = _shares(
            layer, layout, gathered, self.y.w, context.x_on_chip, n
        )
        self.passes = window_passes(layer, layout, self.kernel_w, n)
        #: Blocks of the outputs beyond whole blocks.
        self.shared = shared_rows(layer, layout, self.wide.weights.shape[2], n)
        self.reach = (self.kernel_h - 1) * layer.dilations[0] + 1
        padding = layer.pads[1] + layer.pads[3] if layout == Im2colLayout.ROWS and self.strips == 1 else 0
        self.pitch = self.x.w + padding
        self.k_blocks = ceil_div(self.in_c, n)
        # This saves five bus beats per block of channels and costs three additional FUSE cycles per pixel and block.
        self.common_scale = self.images * self.y.h * self.y.w == 1 and layer.drain.common_scale

    def image(self, rows_per_load: int, part: float, columns: int) -> tuple[int, float]:
        """Return the size in bytes of the image rows of one load, and the bus beats for loading them.

        `part` is the share of the input channels, `columns` the number of blocks of output channels of a tile.
        """
        stride, n = self.layer.strides[0], self.n
        line = self.wide.weights.shape[2] * self.x.c
        count = self.y.w // self.strip_pixels * ((rows_per_load - 1) * stride + self.kernel_h)
        gathered = count * line + n if self.layout == Im2colLayout.GATHERED else 0
        if self.context.x_on_chip:
            return gathered, 0
        if self.layout == Im2colLayout.STRIPS:
            return count * line + n, count * (line + n - 1) / n
        strips = count / self.y.w * self.loaded * (line + n - 1) / n
        rows = input_rows(rows_per_load, stride, self.reach, self.x.h)
        channels = min(columns * self.in_c, self.x.c) if self.grouped else self.in_c
        line = self.pitch * channels
        size = int(rows * line * part) + n + gathered
        if part == 1.0:
            if channels < self.x.c:  # only the channels of some groups are loaded
                return size, lines(rows * self.x.w, channels, self.x.c, n)
            if self.loaded:
                line = channels * source_columns(self.wide, self.x, self.gathered // self.strip_pixels)
                return size, lines(rows, line, self.x_row, n) + strips
            if self.strips > 1:
                return size, lines(rows, line, self.x_row, n)
            return size, (size - gathered) / n + strips
        astride = 0 if self.x.c % n == 0 else n - 1  # pieces of pixels begin anywhere in a beat
        return size, rows * self.x.w * (self.x.c * part + astride) / n

    def tilings(self) -> Tilings:
        """Yield tilings with complete sums, and with partial sums if complete sums do not fit or delay the array."""
        passes = passes_per_pixel(self.layer, self.layout, self.wide.weights.shape[2], self.n)
        passes *= self.blocks / ceil_div(self.layer.group_outputs, self.n)  # of all groups that are blocks
        array = passes * max(self.images * self.y.h * self.y.w, self.n)
        enough = _SUFFICIENT_RATIO * self.groups * max(array, self.blocks * self.taps * self.in_c)
        depths = [self.k_blocks]
        if self.layout == Im2colLayout.PIXELS and not self.grouped:
            depths = cuts(self.k_blocks)
        for depth in depths:
            found = self._estimated(self._tiles(depth))
            yield from ((cycles, schedule) for cycles, schedule, _ in found)
            if min((cycles for cycles, _, _ in found), default=enough) < enough:
                if depth == self.k_blocks and self._starts_from_dram:
                    yield from self._split_sums(found, depths[1:])
                return

    @property
    def _starts_from_dram(self) -> bool:
        """True if the array must wait until the first tile is loaded from DRAM."""
        return self.context.alone and not self.context.x_on_chip

    def _split_sums(self, found: list[_Found], depths: list[int]) -> Tilings:
        """Yield the best tilings with partial sums, with which the array can start on a part of the first tile."""
        best = sorted(found, key=lambda each: each[0])[:_SPLIT_CANDIDATES]
        tiles = [replace(tile, depth=depth) for _, _, tile in best for depth in depths]
        yield from ((cycles, schedule) for cycles, schedule, _ in self._estimated(tiles))

    def _estimated(self, tiles: list[ConvTile]) -> list[_Found]:
        return [(*tiling, tile) for tile in tiles if (tiling := self._tiling(tile))]

    def _tiles(self, depth: int) -> list[ConvTile]:
        slots = self.context.config.param_slots - self._shared_slots
        most = min(self.blocks, max(slots // 2, 1))
        if self.strips > 1 and self.layout == Im2colLayout.GATHERED:
            # The results of a part of the columns are stored in lines of whole pixels, and few rows are gathered twice.
            return [
                ConvTile(depth, most, rows, rows, order, resident)
                for rows in self._rows()
                for order, resident in _ORDERS
            ]
        whole = self.context.x_on_chip and self.layout != Im2colLayout.GATHERED
        return [
            ConvTile(depth, columns, rows, rows_per_load, order, resident)
            for columns, rows in product(cuts(most), self._rows())
            for rows_per_load, (order, resident) in product(_rows_per_load(rows, self.y.h, whole), _ORDERS)
        ]

    @property
    def _shared_slots(self) -> int:
        """Number of parameter slots for blocks of outputs of several rows."""
        return len(self.shared.blocks) if self.shared.rows > 1 else 0

    def _rows(self) -> list[int]:
        """Return candidate numbers of rows of a tile: the whole image, and groups of rows that share a block."""
        shared = self.shared.rows
        return sorted(
            {min(ceil_div(rows, shared) * shared, self.y.h) for rows in cuts(self.y.h)}, reverse=True
        )

    def _tiling(self, tile: ConvTile) -> tuple[float, LayerSchedule] | None:
        """Return the estimated cycles and the schedule of a tile; None if it does not fit."""
        context, layer, n = self.context, self.layer, self.n
        tiles, groups = self.images * ceil_div(self.y.h, tile.rows), ceil_div(self.blocks, tile.columns)
        whole, size = tile.depth == self.k_blocks, DTYPE_BYTES[layer.drain.dtype]
        shared = self.shared
        shares = can_share_rows(context.y_on_chip, self.blocks, tile.columns, context.split_last_tile)
        if not whole or not shares:
            shared = SharedRows(1, n, n)
        pixels = self.images * self.y.h * self.y.w
        drained = tile.rows * self.y.w * tile.columns
        sums = self.y.w * shared.sum_rows(tile.rows, tile.columns, self.blocks)
        row_loads = self.images * ceil_div(self.y.h, tile.rows_per_load)
        if self.grouped:  # each tile of channels loads its own inputs
            if (
                tile.order == "rows"
                and groups > 1
                and tile.rows_per_load > tile.rows
                and not context.x_on_chip
            ):
                return None
            row_loads *= groups
        if sums * (2 if context.consecutive else min(2, tiles * groups)) > context.acc_rows:
            return None
        part = 1.0 if whole else tile.depth * n / self.in_c
        taps = self.kernel_h * self.wide.weights.shape[2]
        more = shared.more_rows(self.kernel_h, layer.strides[0]) * self.wide.weights.shape[2]
        w_bytes = (tile.columns * taps + more) * min(tile.depth * n, self.in_c) * n
        x_bytes, x_beats = self.image(tile.rows_per_load, part, tile.columns)
        y_buffers = _SPLIT_Y_BUFFERS if context.split_last_tile and not context.y_on_chip else 2
        y_bytes = 0 if context.y_on_chip else y_buffers * drained * n * size
        y_bytes += summand_bytes(layer.drain, context, y_buffers * drained)
        w_tiles = groups * (1 if whole else ceil_div(self.in_c, tile.depth * n))
        parts = 1 if whole else w_tiles // groups
        steps = tiles * groups * parts
        array = self.images * self._array(tile.rows, shared)
        x_tiles = parts * (row_loads if tile.order == "channels" else 1)
        w_least = w_tiles if tile.resident else min(2, w_tiles)
        kept = not whole and w_bytes * w_least + x_bytes * x_tiles + y_bytes <= context.free
        gathers = 0.0
        if self.layout == Im2colLayout.GATHERED:
            height = (tile.rows_per_load - 1) * layer.strides[0] + self.kernel_h
            steps_per_load = ceil_div(tile.rows_per_load, tile.rows)
            y, strips = replace(self.y, w=self.y.w // self.strip_pixels), self.gathered // self.strip_pixels
            inside = strips if strips < y.w or self.strips > 1 else None
            each = gather_cycles(self.wide, self.x, y, height / steps_per_load, n, inside)
            gathers = row_loads * steps_per_load * each
        x_buffers = min(2, row_loads * parts)
        if self.layout == Im2colLayout.GATHERED and (self.strips > 1 or self.gathered < self.y.w):
            room = (context.free - w_bytes * w_least - y_bytes) // x_bytes
            x_buffers = max(x_buffers, min(_GATHERED_X_BUFFERS, row_loads, room))
        if kept:
            room = (context.free - w_bytes * w_least - y_bytes) // max(x_bytes, 1)
            x_buffers = max(x_tiles, min(2 * parts, row_loads * parts, room // parts * parts))
        left = context.free - x_bytes * x_buffers - y_bytes
        if w_bytes * w_least > left:
            return None
        w_buffers = w_least
        w_times = tiles if (tile.order == "rows" or not whole) and w_buffers < w_tiles else 1
        w_stream = 0.0
        if w_buffers < w_tiles:  # the load of each tile of weights has a latency, but several loads overlap
            load, turn = w_bytes / n * context.beat, array / (w_times * w_tiles)
            around = load + turn + context.latency
            # Small tiles need an additional buffer, because units delay one another.
            wanted = ceil(around / max(load, turn)) + (load < _MAX_SMALL_LOAD_LATENCIES * context.latency)
            w_buffers = max(min(wanted, _MAX_WEIGHT_BUFFERS, w_tiles, int(left // w_bytes)), w_least)
            w_stream = w_times * w_tiles * around / w_buffers
        again = (not whole and not kept) or (tile.order == "channels" and row_loads * parts > x_buffers)
        again &= not self.grouped
        x_times = groups if again else 1
        groups_of_rows = ceil_div(tile.rows, shared.rows)
        drain = pixels * (self.blocks - 1) + tiles * self.y.w * groups_of_rows * shared.segments
        bus = w_times * self.blocks * self.taps * self.in_c + x_times * row_loads * x_beats / part
        bus += 0 if context.y_on_chip else drain * size
        x_stream = 0.0
        if x_buffers < row_loads * parts and not context.x_on_chip:
            side = parts if whole or kept else 1  # parts of an image in buffers at the same time
            loads = x_times * row_loads * parts / side
            around = x_beats * side * context.beat + array / loads + context.latency
            x_stream = loads * around / (x_buffers / side)
        part_in, part_array = (w_bytes / n + x_beats) * context.beat, array / steps
        start = part_in + (parts - 1) * max(part_in - part_array, 0)
        issue = TILE_CYCLES * (2 if gathers else 1)
        cycles = max(
            array, bus * context.beat * BUS_OVERHEAD, drain + gathers, steps * issue, w_stream, x_stream
        )
        cycles += gathers / row_loads
        if gathers and sum_buffers(context, sums) == 2:
            cycles += tiles * _SUM_WAIT_CYCLES
        cycles += self._end(tile) + start + tiles * groups * _TILE_OVERHEAD_CYCLES + (steps - tiles * groups)
        cycles += context.neighbour_cycles * (tile.rows / self.y.h if tile.order == "rows" else 1)
        cycles += (
            0
            if context.x_on_chip
            else row_loads * (20 if self.layout == Im2colLayout.PIXELS else TILE_CYCLES)
        )
        return cycles * self.groups, LayerSchedule(
            rows=tile.rows,
            rows_per_load=tile.rows_per_load,
            width=self.gathered if self.gathered < self.y.w else ALL_COLUMNS,
            strip_width=self.width,
            columns=tile.columns,
            depth=tile.depth if self.layout == Im2colLayout.PIXELS else tile.depth * self.taps,
            order=tile.order,
            param_blocks=param_blocks_per_buffer(context.config, self.blocks, tile.columns),
            param_buffers=2 if 2 * tile.columns + self._shared_slots <= context.config.param_slots else 1,
            w_buffers=w_buffers,
            x_buffers=x_buffers,
            y_buffers=y_buffers,
            acc_buffers=sum_buffers(context, sums),
            prefetch=PREFETCH_STEPS,
            fold_kernel_width=self.layout in (Im2colLayout.ROWS, Im2colLayout.GATHERED),
            im2col=self.layout in (Im2colLayout.STRIPS, Im2colLayout.GATHERED),
            pixels_per_pass=self.pixels_per_pass,
            on_chip=context.y_on_chip,
            split_last_tile=context.split_last_tile,
            common_scale=self.common_scale,
            split_first_tile=self._starts_from_dram
            and self.layout != Im2colLayout.GATHERED
            and x_beats >= _MIN_SPLIT_INPUT_BLOCKS * n,
        )

    def _array(self, rows: int, shared: SharedRows) -> float:
        """Return the cycles of the array for all blocks of an image whose tiles have `rows` rows."""
        layer, n, width, blocks = self.layer, self.n, self.wide.weights.shape[2], self.blocks
        tiles = ceil_div(self.y.h, rows)
        high = self.y.h / tiles
        runs = [(float(blocks - (shared.rows > 1)), high, 1)]
        if shared.rows > 1:
            runs += [
                (1.0, float(groups), block.rows)
                for _, groups, size in row_groups(ceil(high), shared.rows)
                for block in shared.blocks_of(size)
            ]
        cycles = 0.0
        for many, groups, size in runs:
            passes = window_passes(layer, self.layout, width, n, size) if size > 1 else self.passes
            cycles += many * passes * self._pass(groups * (self.y.w - self.direct))
            if self.direct:
                passes = window_passes(layer, Im2colLayout.ROWS, width, n, size)
                cycles += many * passes * self._pass(groups * self.direct)
        return tiles * cycles

    def _end(self, tile: ConvTile) -> float:
        """Return the cycles that the first tile waits for the previous layer, or that draining the last tile takes.

        If the last tile is split, all its blocks except the last are drained while the last block is computed.
        """
        sums = tile.rows * self.y.w
        if not self.context.split_last_tile or self.context.x_on_chip:
            return sums * tile.columns
        return min(sums, 2 * self.n) + max(2 * (tile.columns - 1) - self.passes, 0) * sums

    def _pass(self, rows: float) -> float:
        """Return the cycles of a pass of `rows` rows through one tile of weights."""
        return max(rows, self.n) + (_WEIGHT_DELAY_CYCLES if rows < 2 * self.n else 0)


def _rows_per_load(rows: int, height: int, whole: bool) -> list[int]:
    """Return candidate numbers of rows per load: the rows of a few tiles, or all rows; only all rows if `whole`."""
    if whole:
        return [height]
    return sorted({min(rows * times, height) for times in (1, 2, 4, 8)} | {height})


def conv_tilings(context: TilingContext, layer: ConvLayer) -> Tilings:
    """Yield the tilings of a convolution, or of a matrix product with constant weights.

    An image is split into strips of columns only if no tiling with whole rows fits. Groups with more outputs than a
    block have separate buffers, and two consecutive groups are active at the same time. Each group therefore gets half
    of the memory if a tiling, with whole rows or with strips, fits.
    """
    contexts, phases = [context], row_phases(context.config, layer)
    if phases:  # two consecutive phases are active at the same time, like two groups
        half = replace(context, free=context.free // 2, acc_rows=context.acc_rows // 2)
        for cycles, schedule in conv_tilings(half, phases[0].layer):
            yield cycles * len(phases), schedule
        return
    if layer.groups > 1 and not layer.groups_are_blocks(context.config.n):
        context = replace(context, consecutive=True)
        contexts = [replace(context, free=context.free // 2), context]
    for each, split in product(contexts, (False, True)):
        fits = False
        for tiling in _tilings(each, layer, split=split):
            fits = True
            yield tiling
        if fits:
            return


def _tilings(context: TilingContext, layer: ConvLayer, *, split: bool) -> Tilings:
    """Yield the tilings with whole image rows or, if `split`, with strips of some widths that fit."""
    for pixels_per_pass in pixel_packings(context, layer):
        wide = pack_pixels(layer, pixels_per_pass) if pixels_per_pass > 1 else layer
        widths = [ALL_COLUMNS]
        if split:
            widths = strip_widths(images(wide)[1].w, context.acc_rows // 2, context.config.n)
        for layout in _layouts(context, wide):
            fitting = 0
            for width in widths:
                fits = False
                for tiling in ConvTiler(context, wide, layout, pixels_per_pass, width).tilings():
                    fits = True
                    yield tiling
                fitting += fits
                if fitting == _FITTING_WIDTHS:
                    break
            if layout == Im2colLayout.GATHERED and not split:
                for width, gathered in _divided_gathers(context, wide):
                    yield from ConvTiler(context, wide, layout, pixels_per_pass, width, gathered).tilings()


def _divided_gathers(context: TilingContext, layer: ConvLayer) -> Iterator[tuple[int, int]]:
    """Yield widths of strips of columns, and of these columns, the numbers whose pixels FUSE gathers.

    FUSE is relieved if it takes about as long as the array. Strips of columns, unlike strips of rows, share no gathered
    pixels. Whole rows are divided if several output columns share a strip.
    """
    n, (out_c, _, kernel_w, in_c), y = context.config.n, layer.weights.shape, images(layer)[1]
    wide, pixels = strips_of(layer, Im2colLayout.GATHERED, y.w, n)
    drain, each = ceil_div(out_c, n), layer.strides[0] * ceil_div(wide.weights.shape[2] * in_c, n) / pixels
    array = passes_per_pixel(layer, Im2colLayout.GATHERED, wide.weights.shape[2], n)
    if drain + each < _MIN_FUSE_SHARE * array:
        return
    by_rows = reads_rows(layer, context.x_on_chip, n)
    if pixels > 1:
        if layer.strides[0] > 1 and not by_rows:
            strips = y.w // pixels
            yield from ((ALL_COLUMNS, strips * share // 8 * pixels) for share in _GATHERED_EIGHTHS)
        return
    widths = sorted({ceil_div(y.w, ceil_div(y.w, size * n // 4)) for size in (1, 2, 3, 4)})
    if by_rows and drain + each <= array:
        yield from ((width, width) for width in widths)
        return
    more = passes_per_pixel(layer, Im2colLayout.ROWS, kernel_w, n) - array if by_rows else 0
    rest = max(drain + each - array, 0) / (more + each)
    if not by_rows:  # at most as many are loaded as the bus can load while FUSE copies the others
        line = layer.strides[0] * (kernel_w * in_c + n - 1) / n
        image = layer.strides[0] * layer.strides[1] * in_c / n
        store = 0 if context.y_on_chip else out_c * DTYPE_BYTES[layer.drain.dtype] / n
        rest = min(rest, max(drain + each - store - image, 0) / (each + line))
    for width in widths:
        least = int(width * rest)
        for others in range(max(least, 1), min(least + 3, width)):
            yield width, width - others


def pixel_packings(context: TilingContext, layer: ConvLayer) -> Iterator[int]:
    """Yield the numbers of adjacent output pixels that may be computed as one.

    Each takes fewer blocks of outputs per pixel than the numbers before it, and at most as many cycles of the array or
    of FUSE, whichever takes more.
    """
    n, out_c, least, fewest = context.config.n, layer.weights.shape[0], 0.0, 0.0
    for pixels in range(1, n + 1):
        blocks = ceil_div(pixels * out_c, n) / pixels
        if pixels > 1 and (blocks >= fewest or not can_pack_pixels(layer, pixels)):
            continue
        wide = pack_pixels(layer, pixels) if pixels > 1 else layer
        passes = min(
            passes_per_pixel(wide, layout, wide.weights.shape[2], n)
            for layout in Im2colLayout
            if layout == Im2colLayout.PIXELS or can_fold(wide, context.x_on_chip, layout)
        )
        cycles = max(passes / pixels, blocks)
        if pixels == 1 or cycles <= least:
            yield pixels
            least, fewest = cycles, blocks


def _layouts(context: TilingContext, layer: ConvLayer) -> list[Im2colLayout]:
    """Return the usable layouts of the image, omitting any that does not need fewer passes than those before it."""
    layouts: list[Im2colLayout] = []
    passes: dict[Im2colLayout, float] = {}
    for layout in Im2colLayout:
        if layout != Im2colLayout.PIXELS and not can_fold(layer, context.x_on_chip, layout):
            continue
        width = strips_of(layer, layout, images(layer)[1].w, context.config.n)[0].weights.shape[2]
        passes[layout] = passes_per_pixel(layer, layout, width, context.config.n)
        # Loaded and gathered strips need the same passes, but different units.
        others = [each for each in layouts if layout != Im2colLayout.GATHERED or each != Im2colLayout.STRIPS]
        if all(passes[layout] < passes[each] for each in others):
            layouts.append(layout)
    return layouts
