"""Tilings of convolutions with their estimated cycles."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from compiler.commands.tile_buffers import SharedRows, row_groups
from compiler.layers.conv.input_layout import (
    Im2colLayout,
    can_fold,
    can_pack_pixels,
    can_share_rows,
    gather_cycles,
    pack_pixels,
    passes_per_pixel,
    plane_beats,
    reads_rows,
    row_phases,
    shared_rows,
    source_columns,
    strips_of,
    window_passes,
)
from compiler.layers.conv.layer import NO_FORMAT, ConvLayer
from compiler.layers.conv.tile_model import GATHERED_X_BUFFERS, columns_by_source, summand_bytes
from compiler.layers.tile_pipeline import (
    lines,
)
from compiler.layers.tiling_context import (
    BUS_OVERHEAD,
    PREFETCH_STEPS,
    TILE_CYCLES,
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
from hw.isa.enums import DTYPE_BYTES

#: Outer loop, and True if all weights stay in the scratchpad.
_ORDERS = (("rows", True), ("rows", False), ("channels", False))
#: Ratio of an estimate to the array's cycles at which no further tilings are tried.
_SUFFICIENT_RATIO = 1.1
#: Cycles by which a tile of weights is delayed if few rows hide its load, since reads of activations have priority.
_WEIGHT_DELAY_CYCLES = 2
#: Cycles per tile in which MATRIX waits for one of two buffers of sums if FUSE gathers strips between draining them.
_SUM_WAIT_CYCLES = 25
#: Cycles of FUSE for each of several commands that drain outputs beyond whole blocks, if it also gathers strips.
_SEGMENT_CYCLES = 60
#: Cycles of a tile that do not overlap with other work.
_TILE_OVERHEAD_CYCLES = 8
#: Number of the best tilings that are also tried with split sums.
_SPLIT_CANDIDATES = 4
#: Transfer time, in memory latencies, below which a tile of weights counts as small.
_MAX_SMALL_LOAD_LATENCIES = 4
#: Additional buffers of weights if tiles of weights that are zero are not loaded, so that loads have different lengths.
_UNEQUAL_LOAD_BUFFERS = 2
#: Minimum size of a first tile's input, in blocks of N beats, for which loading in parts is worthwhile.
_MIN_SPLIT_INPUT_BLOCKS = 3
#: Shares of the strips of whole rows, in eighths, that FUSE gathers if LOAD loads the others.
_GATHERED_EIGHTHS = (4, 5, 6)
#: Ratio of the cycles in which FUSE gathers and drains all pixels to those of the array from which FUSE is relieved.
_MIN_FUSE_SHARE = 0.75
#: Maximum ratio of the cycles of the array or of FUSE with which pixels are packed to those of fewer pixels per pass:
#: packing also relieves FUSE from gathering strips.
_MAX_PACKED_CYCLES = 1.05
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
        self.taps, self.summands = self.kernel_h * self.kernel_w, len(layer.summands)
        self.gathered, self.loaded, self.direct = columns_by_source(
            layer, layout, gathered, self.y.w, context.x_on_chip, n
        )
        self.passes = window_passes(layer, layout, self.kernel_w, n)
        #: Blocks of the outputs beyond whole blocks.
        self.shared = shared_rows(layer, layout, self.wide.weights.shape[2], n)
        self.reach = (self.kernel_h - 1) * layer.dilations[0] + 1
        padding = 0
        if layout in (Im2colLayout.ROWS, Im2colLayout.GATHERED) and self.strips == 1:
            columns = ceil_div(self.y.w, self.strip_pixels) * self.strip_pixels
            padding = max((columns - 1) * layer.strides[1] + self.kernel_w - self.x.w, layer.pads[1])
        self.pitch = self.x.w + padding
        self.k_blocks = ceil_div(self.in_c, n)
        #: Work that the formats of the weights need; depths are even if MATRIX joins tiles.
        self.weights = NO_FORMAT
        if layout == Im2colLayout.PIXELS:
            self.weights = layer.weight_work(context.config, depth=self.k_blocks, packed=True)
        # This saves five bus beats per block of channels and costs three additional FUSE cycles per pixel and block.
        self.common_scale = self.images * self.y.h * self.y.w == 1 and layer.drain.common_scale

    def image(self, rows_per_load: int, part: float, columns: int) -> tuple[int, float]:
        """Return the size in bytes of the image rows of one load, and the bus beats for loading them.

        `part` is the share of the input channels, `columns` the number of blocks of output channels of a tile.
        """
        stride, n = self.layer.strides[0], self.n
        line = self.wide.weights.shape[2] * self.x.c
        count = ceil_div(self.y.w, self.strip_pixels) * ((rows_per_load - 1) * stride + self.kernel_h)
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
        if self.layer.planes:
            return size, part * plane_beats(rows, self.x.w, channels, n)
        if part == 1.0:
            if channels < self.x.c:  # only the channels of some groups are loaded
                return size, lines(rows * self.x.w, channels, self.x.c, n)
            if self.loaded:
                line = channels * source_columns(
                    self.wide, self.x, ceil_div(self.gathered, self.strip_pixels)
                )
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
        passes *= self.weights.products
        array = passes * max(self.images * self.y.h * self.y.w, self.context.config.tile_cycles)
        rows = self.blocks * self.summands * self.taps * self.in_c
        enough = _SUFFICIENT_RATIO * self.groups * max(array, self.weights.beats(rows, rows))
        depths = [self.k_blocks]
        if self.layout == Im2colLayout.PIXELS and not self.grouped:
            depths = cuts(self.k_blocks)
        if self.in_c % (2 * self.n) == 0 and self.layer.joins_any_tiles(self.context.config):
            depths = [
                depth for depth in depths if depth % 2 == 0
            ]  # wide and sparse mode join pairs of blocks
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
        width = self.summands * self.wide.weights.shape[2]
        taps, more = self.kernel_h * width, shared.more_rows(self.kernel_h, layer.strides[0]) * width
        w_bytes = (tile.columns * taps + more) * layer.stored_rows(min(tile.depth * n, self.in_c), n) * n
        part_depth = layer.stored_rows(self.in_c, n) / ceil_div(self.k_blocks, tile.depth)
        w_beats = self.weights.beats(w_bytes / n, (tile.columns * taps + more) * part_depth)
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
            y = replace(self.y, w=ceil_div(self.y.w, self.strip_pixels))
            high = height / steps_per_load
            if context.x_on_chip:
                each = gather_cycles(self.wide, self.x, y, high, n)
            else:
                divided = self.strips > 1 or self.gathered < self.y.w
                inside = ceil_div(self.gathered, self.strip_pixels)
                each = gather_cycles(self.wide, self.x, y, high, n, inside, divided=divided)
            gathers = row_loads * steps_per_load * each
        x_buffers = min(2, row_loads * parts)
        if self.layout == Im2colLayout.GATHERED and (self.strips > 1 or self.gathered < self.y.w):
            room = (context.free - w_bytes * w_least - y_bytes) // x_bytes
            x_buffers = max(x_buffers, min(GATHERED_X_BUFFERS, row_loads, room))
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
            load, turn = w_beats * context.beat, array / (w_times * w_tiles)
            around = load + turn + context.latency
            # Small tiles need an additional buffer, because units delay one another.
            wanted = ceil(around / max(load, turn)) + (load < _MAX_SMALL_LOAD_LATENCIES * context.latency)
            wanted += _UNEQUAL_LOAD_BUFFERS * (self.weights.density < 1)
            w_buffers = max(min(wanted, _MAX_WEIGHT_BUFFERS, w_tiles, int(left // w_bytes)), w_least)
            w_stream = w_times * w_tiles * around / w_buffers
        again = (not whole and not kept) or (tile.order == "channels" and row_loads * parts > x_buffers)
        again &= not self.grouped
        x_times = groups if again else 1
        groups_of_rows, rows = ceil_div(tile.rows, shared.rows), self.blocks * self.summands * self.taps
        drain = pixels * (self.blocks - 1) + tiles * self.y.w * groups_of_rows * shared.segments
        bus = (
            w_beats * n / w_bytes * w_times * rows * layer.stored_rows(self.in_c, n)
            + x_times * row_loads * x_beats / part
        )
        if not context.y_on_chip:
            bus += drain * size
        if layer.planes:  # results are stored while LOAD transposes pixels
            rows = input_rows(tile.rows_per_load, layer.strides[0], self.reach, self.x.h)
            both = plane_beats(rows, self.x.w, self.in_c, n, rows * self.x.w) * row_loads
            bus -= min(
                x_times * (row_loads * x_beats / part - both), 0 if context.y_on_chip else drain * size
            )
        x_stream = 0.0
        if x_buffers < row_loads * parts and not context.x_on_chip:
            side = parts if whole or kept else 1  # parts of an image in buffers at the same time
            loads = x_times * row_loads * parts / side
            around = x_beats * side * context.beat + array / loads + context.latency
            x_stream = loads * around / (x_buffers / side)
        part_in, part_array = (w_beats + x_beats) * context.beat, array / steps
        start = part_in + (parts - 1) * max(part_in - part_array, 0)
        issue = TILE_CYCLES * (2 if gathers else 1)
        first_gather = 0.0 if self.gathered < self.y.w else gathers / row_loads
        cycles = max(
            array,
            bus * context.beat * BUS_OVERHEAD,
            drain + gathers - first_gather,
            steps * issue,
            w_stream,
            x_stream,
        )
        cycles += gathers / row_loads
        if gathers and len(shared.blocks) > 1:
            cycles += tiles * groups * shared.segments * _SEGMENT_CYCLES
        if gathers and sum_buffers(context, sums) == 2:
            cycles += tiles * _SUM_WAIT_CYCLES
        cycles += self._end(tile) + start + tiles * groups * _TILE_OVERHEAD_CYCLES + (steps - tiles * groups)
        cycles += context.neighbour_cycles * (tile.rows / self.y.h if tile.order == "rows" else 1)
        if self.weights.density < 1:
            cycles += layer.split_cycles(n, tiles)
        # FUSE gathers the pixels of the next strips of columns before MATRIX needs them.
        all_ahead = self.layout == Im2colLayout.GATHERED and self.strips > 1 and self.gathered >= self.y.w
        cycles += (
            0
            if context.x_on_chip or all_ahead
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
        return self.weights.products * tiles * cycles

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
        least = self.context.config.tile_cycles * self.weights.entry + (self.layer.factors is not None)
        return max(rows, least) + (_WEIGHT_DELAY_CYCLES if rows < 2 * self.n else 0)


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
        if layer.strides[0] > 1:
            strips = y.w // pixels
            yield from ((ALL_COLUMNS, strips * share // 8 * pixels) for share in _GATHERED_EIGHTHS)
        return
    widths = sorted({ceil_div(y.w, ceil_div(y.w, size * n // 4)) for size in (1, 2, 3, 4)})
    if drain + each <= array and (by_rows or layer.strides[0] > 1):
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

    Each takes fewer blocks of outputs per pixel than the numbers before it, and hardly more cycles of the array or of
    FUSE, whichever takes more.
    """
    n, out_c, least, fewest = context.config.n, layer.weights.shape[0], 0.0, 0.0
    columns = layer.shapes[layer.y].w
    for pixels in range(1, n + 1):
        # Packed pixels beyond the end of a row are computed in vain.
        share = ceil_div(columns, pixels) / columns
        blocks = ceil_div(pixels * out_c, n) * share
        if pixels > 1 and (blocks >= fewest or not can_pack_pixels(layer, pixels, on_chip=context.y_on_chip)):
            continue
        wide = pack_pixels(layer, pixels) if pixels > 1 else layer
        passes = min(
            passes_per_pixel(wide, layout, wide.weights.shape[2], n)
            for layout in Im2colLayout
            if layout == Im2colLayout.PIXELS or can_fold(wide, context.x_on_chip, layout)
        )
        cycles = max(passes * share, blocks)
        if pixels == 1 or cycles <= _MAX_PACKED_CYCLES * least:
            yield pixels
            least, fewest = min(cycles, least) if pixels > 1 else cycles, blocks


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
