"""Code generation for convolutions and for matrix products with constant weights."""

from collections.abc import Hashable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import (
    BlockedLayout,
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TileStep,
)
from compiler.commands.tile_buffers import (
    BufferRotation,
    CodegenContext,
    ColumnStrip,
    KeptTileBuffers,
    SharedRows,
    column_strips,
    pieces,
    row_groups,
)
from compiler.layers.conv.input_layout import (
    Im2colLayout,
    can_pack_pixels,
    can_share_rows,
    layout_of,
    pack_pixels,
    row_phases,
    share_rows,
    shared_rows,
    strip_depth,
    strips_of,
)
from compiler.layers.conv.layer import ConvLayer, lower_block_dense, lower_dense
from compiler.layers.conv.tile_model import conv_tile_model
from compiler.layers.conv.tiles import (
    ConvCut,
    ConvImage,
    RowGroups,
    Rows,
    TilePart,
    split_first_tile,
    split_last_tile,
)
from compiler.layers.conv.tilings import conv_tilings
from compiler.layers.depthwise import lower_convolution
from compiler.layers.epilogue import Epilogue, parameters
from compiler.layers.layer_kind import BYTES, CONVOLUTION, INTEGERS, ElementTypes, LayerKind, Lowering
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Unit


def pack_weights(config: MlaConfig, weights: NDArray, block_channels: int | None = None) -> NDArray[np.uint8]:
    """Pack weights (out_c, kernel_h, kernel_w, in_c) as [block][kernel row][kernel column][in_c][N].

    `block_channels` is the number of output channels of a block, at most N; None: N.
    """
    n, (out_c, *inner) = config.n, weights.shape
    size = block_channels or n
    blocks = ceil_div(out_c, size)
    padded = np.zeros((blocks * size, *inner), np.uint8)
    padded[:out_c] = weights.view(np.uint8)
    wide = np.zeros((blocks, n, *inner), np.uint8)
    wide[:, :size] = padded.reshape(blocks, size, *inner)
    return np.ascontiguousarray(wide.transpose(0, 2, 3, 4, 1))


def with_factors(
    config: MlaConfig, packed: NDArray[np.uint8], factors: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return packed weights of a product with a row of N factors after each tile.

    `factors` has the shape (out_c, tiles).
    """
    n, tiles = config.n, factors.shape[1]
    wide = np.zeros((ceil_div(len(factors), n) * n, tiles), np.uint8)
    wide[: len(factors)] = factors
    blocks = packed.reshape(len(wide) // n, -1, n)
    ends = np.minimum(np.arange(1, tiles + 1) * n, blocks.shape[1])
    return np.insert(blocks, ends, wide.reshape(-1, n, tiles).transpose(0, 2, 1), axis=1).reshape(-1)


class ConvSteps:
    """Code generator for one channel group of a convolution, or for all groups if these are blocks.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ConvLayer
        Layer to generate code for.
    group : int
        Index of the channel group.
    """

    def __init__(self, context: CodegenContext, layer: ConvLayer, group: int):
        self.context, self.layer, self.group = context, layer, group
        self.config, schedule = context.config, context.schedule
        self.images = context.layouts[layer.y].parts(layer.batch)
        self.x, self.y = context.layouts[layer.x], self.images[0]
        out_c, self.kernel_h, self.kernel_w, self.in_c = layer.weights.shape
        n = self.config.n
        #: True if each channel block is a group with its own range of inputs.
        self.grouped = layer.groups_are_blocks(n)
        self.out_c = out_c if self.grouped else layer.group_outputs
        self.block_channels = layer.group_outputs if self.grouped else n
        self.layout = layout_of(layer, schedule, self.x)
        wide, _ = strips_of(layer, self.layout, self.y.w if schedule.strip_width >= self.y.w else 0, n)
        self.wide, self.weights = wide, wide.weights
        taps = {Im2colLayout.PIXELS: self.in_c, Im2colLayout.ROWS: self.kernel_w * self.in_c}
        self.reduction = taps.get(self.layout, strip_depth(layer, self.weights.shape[2]))
        self.blocks = ceil_div(self.out_c, self.block_channels)
        self.k_blocks = ceil_div(self.reduction, n)
        self.rows_per_load = min(schedule.rows_per_load, self.y.h)
        self.rows = min(schedule.rows, self.rows_per_load)
        self.columns = min(schedule.columns, self.blocks)
        self.strips = column_strips(
            self.y.w,
            schedule.strip_width,
            layer.strides[1],
            layer.pads[1],
            (self.kernel_w - 1) * layer.dilations[1] + 1,
            self.x.w,
        )
        self.width = max(strip.count for strip in self.strips)
        self.k_size = min(schedule.depth, self.k_blocks)
        if self.grouped or self.layout != Im2colLayout.PIXELS:
            self.k_size = self.k_blocks
        #: Blocks of the channels beyond whole blocks.
        self.shared = SharedRows(1, (self.out_c - 1) % n + 1, n)
        shares = can_share_rows(self.y.on_chip, self.blocks, self.columns, schedule.split_last_tile)
        if self.k_size == self.k_blocks and not self.y.streamed and shares:
            self.shared = shared_rows(layer, self.layout, self.weights.shape[2], n)
        self._allocate_buffers()

    def _allocate_buffers(self) -> None:
        layer, schedule, n = self.layer, self.context.schedule, self.config.n
        name = layer.name if layer.groups == 1 or self.grouped else f"{layer.name}.{self.group}"
        part = slice(self.group * self.out_c, (self.group + 1) * self.out_c)
        drain = layer.drain.part(part)
        summands = [self._packed(weights[part]) for weights, _ in self.wide.summands]
        if layer.factors is not None:
            summands = [with_factors(self.config, packed, layer.factors) for packed in summands]
        taps = self.kernel_h * self.weights.shape[2]
        self.w_block = taps * layer.stored_rows(self.in_c, n) * n
        #: Bytes from tile to tile of the weights of a block.
        self.w_tile = layer.stored_rows(n, n) * n
        #: Bytes of the weights of each block of the channels beyond whole blocks.
        self.w_shared = [self.w_block]
        if self.shared.rows > 1:
            whole = layer.with_summands([weights for weights, _ in self.wide.summands])
            last, of_shared = share_rows(whole, self.shared)
            self.p_shared = parameters(self.context, f"{name}.shared", of_shared, len(last))
            self.w_shared = [weights[0][0].size * n for weights in last]
            before = (self.blocks - 1) * self.w_block
            summands = [
                np.concatenate([packed[:before], *(self._packed(weights[number]) for weights in last)])
                for number, packed in enumerate(summands)
            ]
        k_pieces = ceil_div(self.k_blocks, self.k_size)
        self.w_part = self.w_block if k_pieces == 1 else taps * self.k_size * self.w_tile
        tiles = ceil_div(self.blocks, self.columns) * k_pieces
        size = self.columns * self.w_part + sum(self.w_shared) - self.w_block + self._weight_padding()
        kept = min(schedule.kept_weights, tiles)
        #: Buffers of the tiles of each summand of the weights, whose formats may differ.
        self.w: list[KeptTileBuffers] = []
        for packed, suffix in zip(summands, ("", ".correction"), strict=False):
            stored = self.context.constant(f"{name}.weights{suffix}", packed)
            w_buffer = CircularBuffer(
                BufferMemory.SP, f"{name}.w{suffix}", size, min(schedule.w_buffers, tiles)
            )
            load = partial(self._load_w, stored)
            self.w.append(KeptTileBuffers(w_buffer, load, kept, tiles, self._number_of))
        self.p = parameters(self.context, name, drain.padded(self.block_channels, n), self.columns)
        tiles = layer.batch * len(self.strips) * ceil_div(self.y.h, self.rows)
        self.acc = BufferRotation(
            BufferMemory.ACC,
            f"{name}.acc",
            self.width * self.shared.sum_rows(self.rows, self.columns, self.blocks),
            min(schedule.acc_buffers, ceil_div(self.blocks, self.columns) * tiles),
        )
        excess = max(-depth % n for depth in self._depths)
        cut = ConvCut(self.k_blocks, self.k_size, self.rows_per_load, excess)
        self.image = ConvImage(
            self.context, layer, name, self.group, self.layout, cut, self.strips, self.columns
        )
        self.drain = Epilogue(
            self.context,
            name,
            drain,
            self.images,
            self.rows,
            self.columns,
            self.group * self.out_c,
            self.width,
            self.block_channels,
        )

    def _packed(self, weights: NDArray) -> NDArray[np.uint8]:
        return pack_weights(self.config, np.ascontiguousarray(weights), self.block_channels).reshape(-1)

    def _depth(self, rows: int) -> int:
        """Return the size of the reduction dimension of a block of outputs of `rows` adjacent rows."""
        if self.layout in (Im2colLayout.PIXELS, Im2colLayout.ROWS):
            return self.reduction
        height = self.kernel_h + (rows - 1) * self.layer.strides[0]
        return strip_depth(self.layer, self.weights.shape[2], height)

    @property
    def _depths(self) -> list[int]:
        """Sizes of the reduction dimension of blocks of outputs of one row, of two rows and so on."""
        most = max(block.rows for block in self.shared.blocks)
        return [self._depth(rows) for rows in range(1, most + 1)]

    def _shared(self, part: TilePart) -> SharedRows | None:
        """Return the blocks of channels of several rows in place of the last block of a part of a tile, if any."""
        has_last = part.block + part.blocks == self.blocks
        return self.shared if self.shared.rows > 1 and has_last else None

    def _weight_padding(self) -> int:
        """Return the bytes of padding after a tile of weights.

        The bounding box of a tile covers whole blocks of rows. Without padding, it would overlap the next tile, and
        MATRIX would wait for that tile as well.
        """
        n, depths = self.config.n, self._depths
        if depths[-1] <= n or self.k_size < self.k_blocks:
            return 0
        return max(-depth % n for depth in depths) * n

    def _number_of(self, key: Hashable) -> int:
        """Return the number of a tile of weights."""
        block, k = key  # type: ignore[misc]
        return block // self.columns * ceil_div(self.k_blocks, self.k_size) + k // self.k_size

    def _load_w(self, stored: CircularBuffer, key: Hashable, address: BufferRef) -> list[Command]:
        block, k = key  # type: ignore[misc]
        n = self.config.n
        count = min(self.columns, self.blocks - block)
        if self.k_size == self.k_blocks:
            return [
                self.context.command(
                    Unit.LOAD,
                    dram=BufferRef(stored, 0, block * self.w_block),
                    dst=address,
                    len=count * self.w_block
                    + (block + count == self.blocks) * (sum(self.w_shared) - self.w_block),
                )
            ]
        taps = self.kernel_h * self.kernel_w
        length = self.layer.stored_rows(min(self.k_size * n, self.in_c - k * n), n) * n
        return [
            self.context.command(
                Unit.LOAD,
                dram=BufferRef(stored, 0, block * self.w_block + k * self.w_tile),
                dst=address,
                len=length,
                y_count=taps,
                dram_y=self.w_block // taps,
                dst_y=self.k_size * self.w_tile,
                z_count=count,
                dram_z=self.w_block,
                dst_z=self.w_part,
            )
        ]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles in the schedule's order."""
        row_groups = [
            (number, strip, load_rows, start + first, rows)
            for number in range(self.layer.batch)
            for strip in self.strips
            for load_rows in pieces(self.y.h, self.rows_per_load)
            for start in [load_rows[0]]
            for first, rows in pieces(load_rows[1], self.rows)
        ]
        blocks = list(pieces(self.blocks, self.columns))
        if self.context.schedule.order == "rows":
            tiles = [(load_rows, block) for load_rows in row_groups for block in blocks]
        else:
            tiles = [(load_rows, block) for block in blocks for load_rows in row_groups]
        steps, gathers, firsts = [], [], []
        for number, (load_rows, block) in enumerate(tiles):
            before = self.image.loads
            steps.append(self._tile(*load_rows, *block, first=not number, last=number == len(tiles) - 1))
            gathers.append(self.image.gathers)
            firsts += [number] if self.image.loads > before else []
            self.image.gathers = []
        return _ahead(steps, gathers, firsts, self.image.depth - 1)

    def _tile(
        self,
        number: int,
        strip: ColumnStrip,
        load_rows: Rows,
        start: int,
        rows: int,
        block: int,
        blocks: int,
        *,
        first: bool,
        last: bool,
    ) -> list[TileStep]:
        """Generate the steps of a tile: sums for each piece of the reduction dimension, and the drain of each part."""
        self.image.select(number, strip)
        self.drain.select(number, strip.first, strip.count)
        tile = TilePart(start, rows, block, blocks, rows)
        self.image.load_partially = self.context.schedule.split_first_tile and first
        splits = self.context.schedule.split_first_tile and self.layout != Im2colLayout.GATHERED
        schedule, k_pieces = self.context.schedule, list(pieces(self.k_blocks, self.k_size))
        few = ceil_div(self.config.n, strip.count)
        name = f"{self.layer.name}.{self.group}"
        parts = (
            split_last_tile(tile, name, few, strip.count)
            if schedule.split_last_tile and last
            else [(tile, self.acc.next())]
        )
        work = [(k, *part) for k in k_pieces for part in parts]
        if not first and self._all_resident(
            len(k_pieces)
        ):  # the whole input is loaded, so that parts computed early can be drained early
            work = [(k, *part) for part in parts for k in k_pieces]
        out = []
        for (k, k_count), part, acc in work:
            pieced, shared = [part], self._shared(part)
            if splits and first and k == 0:
                pieced = split_first_tile(part, few, shared.rows if shared else 1)
            for piece in pieced:
                step, above = TileStep(block=block), piece.start - part.start
                step.matrix += self._matrix(step, acc, above, load_rows, piece, block, k, k_count)
                out.append(step)
            if k + k_count == self.k_blocks:
                whole = part.blocks > (shared is not None)
                how = self.p.fields(part.block, out[-1]) if whole else {}
                of_shared = [
                    self.p_shared.fields(number, out[-1])
                    for number in range(len(shared.blocks) if shared else 0)
                ]
                self.drain.add(
                    out[-1], acc, how, part.start, part.rows, part.block, part.blocks, shared, of_shared
                )
        return out

    def _all_resident(self, k_pieces: int) -> bool:
        """Return True if all pieces of a tile's weights and image are in the scratchpad at the same time."""
        return self.w[0].buffer.depth >= k_pieces and self.image.depth >= k_pieces

    def _matrix(
        self,
        step: TileStep,
        acc: BufferRef,
        above: int,
        load_rows: Rows,
        part: TilePart,
        block: int,
        k: int,
        k_count: int,
    ) -> list[Command]:
        """Return the MATRIX commands for some rows of a part of a tile, for each summand of the weights.

        Parameters
        ----------
        acc, above : BufferRef, int
            Sums of the part of the tile, and number of its rows before these rows.
        part : TilePart
            Rows and blocks for which the commands are returned.
        block : int
            First block of the tile's weights.
        k, k_count : int
            First block of the reduction dimension, and number of these blocks.
        """
        layer, n, width = self.layer, self.config.n, self.image.y.w
        acc_oc = part.pitch * width
        last_k = k + k_count == self.k_blocks
        common: dict[str, int | BufferRef] = {
            "a_zp": layer.x_zp,
            "ic_count": k_count,
            "k_tail": (self.reduction - 1) % n + 1 if last_k else 0,
            "oc_count": part.blocks,
            "n_cols": self.block_channels,
            "n_tail": (
                (self.out_c - 1) % self.block_channels + 1 if part.block + part.blocks == self.blocks else 0
            ),
            "a_ic": n,
            "a_oc": self.in_c if self.grouped else 0,
            "w_row": n,
            "w_ic": self.w_tile,
            "w_oc": self.w_part,
            "acc_x": 1,
            "acc_oc": acc_oc,
        }
        shared = self._shared(part)
        whole = replace(part, blocks=part.blocks - 1) if shared else part
        commands = []
        for summand, (buffers, (_, zero)) in enumerate(zip(self.w, layer.summands, strict=True)):
            weights = buffers.get((block, k), step).plus((part.block - block) * self.w_part)
            fields = common | {
                "word": MATRIX_WORD.pack(
                    accumulate=int(k > 0 or summand > 0),
                    a_unsigned=int(layer.shapes[layer.x].dtype == Dtype.U8),
                    w_unsigned=int(layer.weights.dtype == np.uint8),
                    scaled=int(layer.factors is not None),
                ),
                "w_zp": zero,
                "w_base": weights,
            }
            if whole.blocks:
                if shared:
                    fields["n_tail"] = 0
                commands += [
                    fields
                    | {"oc_count": whole.blocks, "acc_base": acc.plus(above * width + walk.column)}
                    | walk.fields
                    for walk in self.image.get(step, load_rows, whole, block, k)
                ]
            if shared:
                last = {
                    "w_base": weights.plus(whole.blocks * self.w_part),
                    "acc_base": acc.plus(whole.blocks * acc_oc),
                }
                commands += self._shared_rows(step, fields | last, above, load_rows, part, block, shared)
        return [self.context.command(Unit.MATRIX, **each) for each in commands]

    def _shared_rows(
        self,
        step: TileStep,
        fields: dict[str, int | BufferRef],
        above: int,
        load_rows: Rows,
        part: TilePart,
        block: int,
        shared: SharedRows,
    ) -> list[dict[str, int | BufferRef]]:
        """Return the fields of the MATRIX commands for blocks of channels of several rows; see `_matrix`.

        `fields` has the addresses of the weights and sums of the first of these blocks.
        """
        out, n, width = [], self.config.n, self.image.y.w
        weights, sums = fields["w_base"], fields["acc_base"]
        assert isinstance(weights, BufferRef) and isinstance(sums, BufferRef)
        for first, count, size in row_groups(part.rows, shared.rows):
            group = (above + first) // shared.rows * len(shared.blocks)
            for number, shared_block in enumerate(shared.blocks_of(size)):
                start = part.start + first + shared_block.top
                groups = RowGroups(start, count, shared.rows, shared_block.rows)
                depth = self._depth(shared_block.rows)
                of_block = {
                    "w_base": weights.plus(sum(self.w_shared[:number])),
                    "ic_count": ceil_div(depth, n),
                    "k_tail": (depth - 1) % n + 1,
                    "oc_count": 1,
                    "n_tail": shared_block.lanes,
                }
                for walk in self.image.get(step, load_rows, part, block, 0, groups):
                    sum_of = sums.plus((group + number) * width + walk.column)
                    places = {"acc_base": sum_of, "acc_y": len(shared.blocks) * width}
                    out.append(fields | of_block | walk.fields | places)
        return out


def _ahead(
    tiles: list[list[TileStep]], gathers: list[list[TileStep]], firsts: list[int], ahead: int
) -> list[TileStep]:
    """Return all steps in order; the inputs of a load are gathered during the tiles of the load `ahead` loads before.

    Parameters
    ----------
    tiles : list of lists of TileStep
        Steps of each tile.
    gathers : list of lists of TileStep
        For each tile, the steps that gather its inputs; empty if it needs none, or if an earlier tile has the same
        inputs.
    firsts : list of int
        First tile of each load.
    """
    before: list[list[TileStep]] = [[] for _ in tiles]
    if ahead and gathers[0]:  # weights and parameters precede the inputs of the second load
        for step in tiles[0]:
            gathers[0][-1].loads += step.loads
            step.loads = []
    for load, tile in enumerate(firsts):
        begin = firsts[max(load - ahead, 0)]
        end = firsts[min(max(load - ahead + 1, 0), load)]
        for number, step in enumerate(gathers[tile]):
            before[begin + number * (end - begin) // len(gathers[tile])].append(step)
    return [step for first, rest in zip(before, tiles, strict=True) for step in (*first, *rest)]


def conv_steps(context: CodegenContext, layer: ConvLayer) -> list[TileStep]:
    """Generate the steps of a convolution, phase by phase; groups with several channel blocks follow one another."""
    groups = 1 if layer.groups_are_blocks(context.config.n) else layer.groups
    y, pixels = context.layouts[layer.y], context.schedule.pixels_per_pass
    if pixels > 1 and can_pack_pixels(layer, pixels, on_chip=y.on_chip):
        width = ceil_div(y.w, pixels)
        if y.pixel == y.c * DTYPE_BYTES[layer.drain.dtype]:
            layer, pixel = pack_pixels(layer, pixels), y.pixel * pixels
            wide = replace(y, w=width, c=y.c * pixels, pixel=pixel)
            if y.w % pixels:
                wide = BlockedLayout(
                    y.buffer,
                    y.h,
                    width,
                    y.c * pixels,
                    pixel,
                    width * pixel,
                    image=y,
                    pixels=(1, pixels),
                    first=(0, 0),
                    step=1,
                )
            context = replace(context, layouts=context.layouts | {layer.y: wide})
        else:  # the pixels of a part of another tensor are not adjacent; as many sums as planned fit
            s = context.schedule
            tiles = y.h // min(s.rows, y.h) * ceil_div(width, min(s.strip_width, width))
            s = replace(s, strip_width=min(s.strip_width, width), acc_buffers=min(s.acc_buffers, tiles))
            context = replace(context, schedule=s)
    parts = [
        (replace(context, layouts=phase.layouts(context.layouts)), phase.layer)
        for phase in row_phases(context.config, layer)
    ] or [(context, layer)]
    return [step for part in parts for group in range(groups) for step in ConvSteps(*part, group).steps()]


KIND = LayerKind(
    name="conv",
    layer=ConvLayer,
    lowerings={
        "conv2d": Lowering(
            lower_convolution, CONVOLUTION, strided_input=True, strided_output=True, epilogue=True
        ),
        "dense": Lowering(lower_dense, CONVOLUTION, strided_output=True, epilogue=True),
        "block_dense": Lowering(
            lower_block_dense,
            ElementTypes((BYTES, BYTES, ("uint8", "float32"), ("int32", "float32")), INTEGERS),
            strided_output=True,
            epilogue=True,
        ),
    },
    tilings=conv_tilings,
    tile_model=conv_tile_model,
    steps=conv_steps,
)
