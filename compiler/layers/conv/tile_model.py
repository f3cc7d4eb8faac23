"""Tile model of convolutions: loads, cycles of MATRIX and FUSE, and stores of each tile of a schedule."""

from collections.abc import Iterator
from dataclasses import replace

from compiler.commands.tile_buffers import SharedRows, row_groups
from compiler.layers.base import Addend, Drain
from compiler.layers.conv.input_layout import (
    SHORT_LINE_BEATS,
    Im2colLayout,
    can_fold,
    can_pack_pixels,
    can_share_rows,
    gather_cycles,
    pack_pixels,
    plane_beats,
    reads_rows,
    row_phases,
    shared_rows,
    source_columns,
    strips_of,
    window_passes,
)
from compiler.layers.conv.layer import NO_FORMAT, ConvLayer
from compiler.layers.conv.tiles import TilePart, first_tile_rows, last_tile_parts
from compiler.layers.tile_pipeline import (
    MAX_SIMULATED_TILES,
    RATE_TILES,
    PipelineTile,
    TileLoad,
    TilePipeline,
    first_result,
    line_beats,
    lines,
    repeated_pipeline,
)
from compiler.layers.tiling_context import (
    LayerContext,
    TilingContext,
    images,
    input_rows,
    strip_images,
)
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.isa.enums import DTYPE_BYTES, Dtype

#: Beats of the parameters of a block of channels, with a scale per channel and with a common scale.
_PARAMETERS, _BIASES = 9.0, 4.0
#: Factor by which FUSE is slower if biases are read from the scratchpad.
_COMMON_SCALE_SLOWDOWN = 4


#: Maximum number of pieces of image rows that are loaded before the rest of their tile.
_MAX_EARLY_PIECES = 1 << 16
#: As `SHORT_LINE_BEATS`, if all strips are loaded; measured with six bytes per line.
_STRIP_LINE_BEATS = 0.2
#: Cycles in addition to N that a pass over groups of rows takes at least, because its weights arrive.
SHIFT_CYCLES = 5
#: Cycles of FUSE between two commands that drain sums of a tile.
DRAIN_COMMAND_CYCLES = 15
#: As `DRAIN_COMMAND_CYCLES`, if several blocks have outputs of several rows and FUSE also gathers strips: 28 outputs of
#: 64x64x4 take 22,754 cycles, with the other constant 26,103.
_DRAIN_BESIDE_GATHER = 60
#: Buffers for gathered strips of a part of the columns, so that FUSE need not wait for MATRIX between draining sums and
#: gathering strips.
GATHERED_X_BUFFERS = 3


def columns_by_source(
    layer: ConvLayer, layout: Im2colLayout, gathered: int, columns: int, on_chip: bool, n: int
) -> tuple[int, int, int]:
    """Return the output columns of gathered strips and of others: of loaded strips, and those without strips."""
    if layout != Im2colLayout.GATHERED or gathered >= columns:
        return columns, 0, 0
    rest = columns - gathered
    return (gathered, 0, rest) if reads_rows(layer, on_chip, n) else (gathered, rest, 0)


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
        packs = s.pixels_per_pass > 1 and can_pack_pixels(layer, s.pixels_per_pass, on_chip=context.y_on_chip)
        if packs:
            out_c *= s.pixels_per_pass
            kernel_w += (s.pixels_per_pass - 1) * stride_w
            width = ceil_div(self.y.w, s.pixels_per_pass)
            self.y = replace(self.y, w=width, c=self.y.c * s.pixels_per_pass)
            stride_w *= s.pixels_per_pass
        reach = (kernel_w - 1) * layer.dilations[1] + 1
        #: Bytes of an image row of input and output.
        self.x_row, self.y_row = self.x.w * self.x.c, self.y.w * self.y.c
        #: Distance in bytes between stored rows, which may be shorter than those that are computed.
        stored = images(layer)[1]
        self.stored_row = stored.w * stored.c * DTYPE_BYTES[layer.drain.dtype]
        self.strips, self.x, self.y = strip_images(self.x, self.y, s.strip_width, stride_w, reach)
        #: Number of images that are processed one after the other; each strip of an image of the batch counts as one.
        self.images = layer.batch * self.strips
        self.taps, self.out_c = self.kernel_h * kernel_w, out_c
        #: Number of summands of the weights, by each of which the inputs are multiplied.
        self.summands = len(layer.summands)
        self.layout = Im2colLayout.PIXELS
        both = Im2colLayout.GATHERED if s.fold_kernel_width else Im2colLayout.STRIPS
        if s.im2col and can_fold(layer, context.x_on_chip, both):
            self.layout = both
        elif s.fold_kernel_width and can_fold(layer, context.x_on_chip, Im2colLayout.ROWS):
            self.layout = Im2colLayout.ROWS
        whole = self.y.w if self.strips == 1 else 0
        packed = pack_pixels(layer, s.pixels_per_pass) if packs else layer
        #: Convolution whose kernels the strips of pixels contain, and output columns per strip.
        self.wide, self.strip_pixels = strips_of(packed, self.layout, whole, n)
        deep = {Im2colLayout.PIXELS: 1, Im2colLayout.ROWS: kernel_w}.get(self.layout, self.taps)
        self.kernel_w, self.blocks, self.k_blocks = (
            kernel_w,
            ceil_div(out_c, self.lanes),
            ceil_div(self.in_c * deep, n),
        )
        #: Number of passes over each block of the reduction dimension.
        self.again = self.summands * self.taps // deep
        self.packed = packed
        #: Passes over image rows.
        self.row_passes = window_passes(packed, Im2colLayout.ROWS, kernel_w, n)
        #: Output columns whose strips FUSE gathers, and of the others, those that are loaded and those for which MATRIX
        #: reads image rows.
        self.gathered, self.loaded, self.direct = columns_by_source(
            packed, self.layout, s.width, self.y.w, context.x_on_chip, n
        )
        #: True if the strips of a part of the columns are gathered at a time.
        self.divided = self.strips > 1 or self.gathered < self.y.w
        self.rows_per_load = min(s.rows_per_load, self.y.h)
        self.rows, self.columns = min(s.rows, self.rows_per_load), min(s.columns, self.blocks)
        self.depth = self.k_blocks
        if self.layout == Im2colLayout.PIXELS and not self.grouped:
            self.depth = min(s.depth, self.k_blocks)
        self.parts = ceil_div(self.k_blocks, self.depth)
        #: Work that the formats of the weights need.
        self.weights = NO_FORMAT
        if self.layout == Im2colLayout.PIXELS:
            self.weights = layer.weight_work(context.config, depth=self.depth, packed=s.packed_weights)
        #: Mean rows of a block's weights in a load.
        self.mean_depth = layer.stored_rows(self.in_c, n) / self.parts
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

    def image(self, rows: int, part: int, block: int, *, first: bool = False) -> float:
        """Return the bus beats for loading the input of `rows` output rows.

        `part` is the index of a range of input channels, `block` the first block of output channels of the tile. The
        `first` input is loaded before there are results.
        """
        if self.context.x_on_chip:
            return 0.0
        n, x, least = self.n, self.x, self.context.line_beats
        if self.layout == Im2colLayout.STRIPS:
            count = ceil_div(self.y.w, self.strip_pixels) * ((rows - 1) * self.stride + self.kernel_h)
            return count * max((self.wide.weights.shape[2] * x.c + n - 1) / n + _STRIP_LINE_BEATS, least)
        reach = (self.kernel_h - 1) * self.layer.dilations[0] + 1
        count = input_rows(rows, self.stride, reach, x.h)
        if self.layer.planes:
            stores = 0.0 if self.context.y_on_chip or first else rows * self.y.w * self.y.c * self.size / n
            return plane_beats(count, x.w, self.in_c, n, stores)
        if self.loaded:
            strips = ceil_div(self.loaded, self.strip_pixels) * ((rows - 1) * self.stride + self.kernel_h)
            beats = strips * max((self.wide.weights.shape[2] * x.c + n - 1) / n + SHORT_LINE_BEATS, least)
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
        y = replace(self.y, w=ceil_div(self.y.w, self.strip_pixels))
        height = rows * (self.stride + again)
        if self.context.x_on_chip:
            return gather_cycles(self.wide, self.x, y, height, self.n)
        inside = ceil_div(self.gathered, self.strip_pixels)
        return gather_cycles(self.wide, self.x, y, height, self.n, inside, divided=self.divided)

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
                cycles += self._passes(groups, *over, least=self.n + SHIFT_CYCLES)
        return cycles

    def _passes(self, groups: int, strips: int, rows: int, least: float = 0) -> float:
        """Return the cycles of MATRIX for groups of rows with some passes over strips, or over image rows.

        Each pass takes at least `least` cycles, or those of a tile of weights.
        """
        entry = self.context.config.tile_cycles * self.weights.entry + (self.layer.factors is not None)
        least = max(least, entry)
        cycles = self.weights.products * strips * max(groups * (self.y.w - self.direct), least)
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
        if width == self.y.c:
            return lines(pixels, width * self.size, self.y.c * self.size, self.n)
        return line_beats(pixels, width * self.size, (self.y.c * self.size, self.stored_row), self.n)


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
    saved = -cut.gathers(cut.rows_per_load)
    if cut.weights.density < 1:
        saved -= layer.split_cycles(cut.n, row_tiles)
    whole = (row_tiles * groups - len(ends)) * cut.parts
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
        deep = layer.stored_rows(deep, n)
        loads, shared, commands = self._image(k, until), cut.shared_of(part.block, part.blocks), 0
        taps = self.columns * cut.taps * cut.summands
        if self.block + self.columns == cut.blocks:
            more = cut.shared.more_rows(cut.kernel_h, cut.stride) * cut.taps // cut.kernel_h
            taps += more * cut.summands
        loads.append(
            ("w", (self.key[0], self.block, k), cut.weights.beats(taps * deep, taps * cut.mean_depth))
        )
        fuse = store = gathers = 0.0
        if drained:
            pixels = drained * cut.y.w
            beats = cut.out(pixels, part.block, part.blocks)
            place = (*self.key[:2], self.row + part.start, part.block)
            loads += with_drain(layer.drain, s, cut.context, place, cut.blocks, beats)
            fuse, commands = cut.drains(drained, part.block, part.blocks)
            beside = cut.layout == Im2colLayout.GATHERED and len(cut.shared.blocks) > 1
            each = _DRAIN_BESIDE_GATHER if beside else DRAIN_COMMAND_CYCLES
            fuse += (commands - 1) * each
            # The inputs of the first load are gathered before the first tile, the others during tiles of other loads.
            follows = self.key[1] + 1 < cut.images or self.key[2] + cut.rows_per_load < cut.y.h
            follows |= cut.gathered < cut.y.w  # FUSE then waits for loaded strips, too
            gathers = cut.gathers(drained) if part.block == 0 and follows else 0.0
            if s.x_buffers < (GATHERED_X_BUFFERS if cut.divided else 2):
                fuse, gathers = fuse + gathers, 0.0
            store = 0.0 if cut.context.y_on_chip else beats
        return PipelineTile(
            tuple(loads),
            cut.passes(rows, depth, part.block, part.blocks),
            fuse,
            store,
            cut.summands * cut.strip_pixels * (1 + (len(shared.blocks) if shared else 0))
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
            early, cut.early[key] = cut.early.get(key, 0.0), cut.image(until, k, self.block, first=True)
            return [("f", (*key, until), max(cut.early[key] - early, 0.0))]
        beats = cut.image(high, k, self.block, first=self.key == (0, 0, 0))
        return [("x", key, max(beats - cut.early.pop(key, 0.0), 0.0))]


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
