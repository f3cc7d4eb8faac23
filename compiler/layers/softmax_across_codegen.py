"""Code generation of a softmax over a dimension before others (`compiler.layers.softmax_across`)."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import (
    BufferRotation,
    CodegenContext,
    Tables,
    TileBuffers,
    pieces,
    tile_buffers,
)
from compiler.kernel_library.reduce import softmax_tables
from compiler.layers.softmax_across import (
    DIFFERENCES,
    FACTOR_BITS,
    GUESS,
    IN_TRANSIT,
    MAXIMA,
    MAXIMA_PARTS,
    MULTIPLIER_BITS,
    ONE_OPERAND,
    PAIR,
    PRODUCT_SHIFT,
    RECIPROCAL_BITS,
    ROUND_TRIP,
    SEGMENT_BITS,
    SLOTS,
    WORK_ROWS,
    Reciprocals,
    SeriesReciprocals,
    SquareReciprocals,
    across_reciprocals,
    across_tiling,
    few_columns,
    few_passes,
)
from compiler.util.scaling import bytes_word, quantize_multiplier
from compiler.util.tiles import ceil_div
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Space, Unit

if TYPE_CHECKING:
    from compiler.layers.softmax import SoftmaxLayer

_Fields = dict[str, int | BufferRef]

#: Tile whose maxima have been computed: address of its elements, distance between columns, and address of the maxima.
_Begun = tuple[BufferRef, int, BufferRef]


class _TiledSteps:
    """Tiles of a softmax over the columns of images, and the buffers of their elements and results."""

    def __init__(self, context: CodegenContext, layer: "SoftmaxLayer", least: int, *, separate: bool = False):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        shape, name, s = layer.shapes[layer.x], layer.name, context.schedule
        self.columns, self.channels = shape.w, shape.c
        tiling = across_tiling(layer, self.n, s.rows)
        self.tiles = list(tiling.tiles())
        images, channels = tiling.size
        #: Maximum number of rows of N channels of a tile.
        self.rows = images * ceil_div(channels, self.n)
        size = images * self.columns * channels
        count = min(max(s.x_buffers, least), len(self.tiles))
        self.loaded = tile_buffers(f"{name}.x", size + self.n, count, self._load, separate=separate)
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, s.y_buffers)

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        image, channel, images, width = self.tiles[key]  # type: ignore[index]
        source = self.x.element(image * self.columns * self.channels + channel, 1)
        lines = self._lines(images, width, "dst")
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def _lines(self, images: int, width: int, side: str) -> dict[str, int]:
        """Return the LOAD or STORE fields of a tile, whose columns are contiguous in the scratchpad."""
        if width == self.channels:
            return {"len": images * self.columns * width}
        return {"len": width, "y_count": self.columns, "dram_y": self.channels, f"{side}_y": width}

    def _elements(self, step: TileStep, number: int) -> tuple[BufferRef, int]:
        """Return the address of the elements of a tile, and the distance between columns; add their load to a step."""
        image, channel, _, width = self.tiles[number]
        if self.x.on_chip:
            return self.x.element(image * self.columns * self.channels + channel, 1), self.channels
        return self.loaded.get(number, step), width

    def _made(self, number: int) -> tuple[BufferRef, BufferRef, int]:
        """Return the addresses of the results of a tile in y and in the scratchpad, and the distance of its columns."""
        image, channel, _, width = self.tiles[number]
        target = self.y.element(image * self.columns * self.channels + channel, 1)
        return (target, target, self.channels) if self.y.on_chip else (target, self.out.next(), width)

    def _store(self, step: TileStep, number: int, target: BufferRef, source: BufferRef) -> None:
        """Add the store of the results of a tile to a step, unless they stay in the scratchpad."""
        if not self.y.on_chip:
            *_, images, width = self.tiles[number]
            lines = self._lines(images, width, "src")
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=source, **lines))


class TwoElementSteps(_TiledSteps):
    """Code generator of a softmax over two columns, a logistic function of the difference of the elements.

    The differences of a tile are computed before the results of the tile before it, so that no pass waits for them. A
    table has 256 entries, but there are 511 differences: a result is the sum of a function of the differences that are
    not negative and of a function of the others.
    """

    def __init__(self, context: CodegenContext, layer: "SoftmaxLayer"):
        super().__init__(context, layer, PAIR)
        self.differences = BufferRotation(BufferMemory.ACC, f"{layer.name}.rows", self.rows, DIFFERENCES)
        differences = np.arange(-255, 256)
        exact = 1 / (1 + np.exp(-layer.scale * differences.astype(np.float64)))
        results = np.clip(np.rint(exact / layer.step) + layer.y_zp, *layer.clip)
        halves = np.zeros((PAIR, 256), np.int64)
        halves[0, differences[255:]] = results[255:]
        halves[1, differences[:255] & 255] = results[:255] - results[255]
        self.tables = Tables(context, layer.name, halves.reshape(-1).astype(np.int16))

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        out = [TileStep()]
        ready = self._differences(out[0], 0)
        for number in range(len(self.tiles)):
            if len(self.tiles) > 1:
                out.append(TileStep())
            current = ready
            if number + 1 < len(self.tiles):
                ready = self._differences(out[-1], number + 1)
            self._results(out[-1], number, current)
        return out

    def _differences(self, step: TileStep, number: int) -> BufferRef:
        """Add the differences of the elements of a tile to a step; return their address in the accumulator."""
        x, pitch = self._elements(step, number)
        *_, images, width = self.tiles[number]
        dtype, to, of_image = (
            self.layer.shapes[self.layer.x].dtype,
            self.differences.next(),
            ceil_div(width, self.n),
        )
        source = FUSE_SRC.pack(a_src=1, a_dtype=dtype, b_src=BSource.SP, b_dtype=dtype, op=Op.SUB)
        counts = {"n_count": images, "y_count": of_image, "u_y": 1}
        steps = {
            "a_n": PAIR * pitch,
            "a_u": self.n,
            "b_n": PAIR * pitch,
            "b_y": self.n,
            "d_n": of_image,
            "d_y": 1,
        }
        bases = {"a_base": x, "b_base": x.plus(pitch), "d_base": to}
        step.fuse.append(self.context.command(Unit.FUSE, **counts, **steps, **bases, src=source))
        return to

    def _results(self, step: TileStep, number: int, differences: BufferRef) -> None:
        """Add the results of a tile to a step: for both columns the first parts, then the sums with the second ones."""
        *_, images, width = self.tiles[number]
        of_image, dtype = ceil_div(width, self.n), self.layer.shapes[self.layer.y].dtype
        target, y, pitch = self._made(number)
        low, high = self.layer.clip
        for half in range(PAIR):
            stage = {"table": 1, "d_dst": 1, "d_dtype": dtype, "tail_dim": FUSE_DIMS.index("y")}
            stage |= {"residual": 1, "r_dtype": dtype, "r_raw": 1} if half else {}
            word = self.tables.word(step, half, **stage)
            for column in range(PAIR):
                to = y.plus(column * pitch)
                fields: _Fields = {"a_base": differences, "a_n": of_image, "a_u": 1, "u_y": 1}
                fields |= {"mult": -1 if column else 1, "shifts": bytes_word(_SAME)}
                fields |= {"clip_lo": -255, "clip_hi": 0} if half else {"clip_lo": 0, "clip_hi": 255}
                fields |= {"d_base": to, "d_n": PAIR * pitch, "d_y": self.n}
                if half:
                    fields |= {"r_base": to, "r_n": PAIR * pitch, "r_y": self.n}
                    fields |= {"x_mult": 1, "r_mult": 1, "o_mult": 1, "r_shifts": bytes_word(0, 0, _SAME)}
                    fields |= {"r_lo": low, "r_hi": high}
                step.fuse.append(
                    self.context.command(
                        Unit.FUSE,
                        src=FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.SINGLE),
                        stage=word,
                        n_count=images,
                        y_count=of_image,
                        lanes_tail=(width - 1) % self.n + 1,
                        **fields,
                    )
                )
        self._store(step, number, target, y)


#: Exponent with which a multiplier of 1 leaves a value unchanged.
_SAME = 31


class _Last(NamedTuple):
    """Last command of reciprocals, a difference of two rows of the accumulator, or a sum of products.

    Parameters
    ----------
    rows : (BufferRef, BufferRef)
        Addresses of the rows.
    fields : dict
        Fields of the command.
    products : bool
        True for the sum of the products of two rows, of which the first one is given, with the second row.
    """

    rows: tuple[BufferRef, BufferRef]
    fields: dict[str, int]
    products: bool = False


#: Cycles that a command waits for the results of the one before it. Results of the previous tile, too, fill such gaps
#: if they would not wait for their multipliers, which pass through DRAM; cycles per row of the commands before the
#: first results.
_GAP_CYCLES, _OF_ROW = 50, 6
#: Bits by which the reciprocals of a wide table are rounded to become factors.
_NEAR_BITS = 15


class AcrossSteps(_TiledSteps):
    """Code generator of a softmax over the columns of images; a lane is a row of the softmax.

    Each tile takes three passes: maxima, sums of exponentials, and results. The reciprocals of the sums are stored, and
    loaded to parameter slots as multipliers of the results. The maxima of the next tile, and if these are few the
    results of the previous one, are computed in parts between the commands that compute reciprocals, each of which
    waits for the results of the previous one.
    """

    def __init__(self, context: CodegenContext, layer: "SoftmaxLayer"):
        few = few_columns(layer)
        self.paired = few and not context.schedule.interleave and not context.layouts[layer.x].on_chip
        super().__init__(context, layer, MAXIMA, separate=self.paired)
        name, rows = layer.name, self.rows
        self.maxima = BufferRotation(BufferMemory.ACC, f"{name}.rows", rows, MAXIMA)
        self.reciprocals, self.factor, self.exponent = across_reciprocals(layer)
        count = WORK_ROWS
        if isinstance(self.reciprocals, SquareReciprocals):  # of which one command reads both factors
            self.factors = BufferRotation(BufferMemory.ACC, f"{name}.factors", 2 * rows, 1).next()
            count = WORK_ROWS - 2
        work = BufferRotation(BufferMemory.ACC, f"{name}.sums", rows, count)
        self.work = [work.next() for _ in range(count)]
        self.found = BufferRotation(BufferMemory.SP, f"{name}.reciprocals", 4 * self.n * rows, 2)
        self.passed = BufferRotation(BufferMemory.DRAM, f"{name}.passed", 4 * self.n * rows, IN_TRANSIT)
        #: Parts of the results of a tile, each of which has its own parameter slots.
        self.parts = SLOTS if few else 1
        held = max(
            count * many for at in range(len(self.tiles)) for _, _, count, many in self._parts(at, self.parts)
        )
        depth = max(min(SLOTS, context.config.param_slots // held), 1)
        self.slots = BufferRotation(BufferMemory.SLOT, f"{name}.slots", held, depth)
        exponentials = softmax_tables(layer.scale, self.columns).reshape(-1)
        self.tables = Tables(context, name, np.concatenate([exponentials, self.reciprocals.table]))
        if self.paired:
            count = self.rows * few_passes(layer, paired=True)
            self.differences = BufferRotation(BufferMemory.ACC, f"{name}.pairs", count, 2)
            signs = context.constant(f"{name}.signs", np.repeat(np.array([-1, 1], np.int8), self.n))
            self.signs = TileBuffers(
                CircularBuffer(BufferMemory.SP, f"{name}.signs", signs.size),
                lambda _, address: [
                    context.command(Unit.LOAD, dram=BufferRef(signs), dst=address, len=signs.size)
                ],
            )

    def _few_steps(self) -> list[TileStep]:
        """Generate the steps of all tiles of a softmax over few columns.

        Between the commands of a tile that wait for one another, the maxima of the next tile and results of a previous
        tile are computed.
        """
        out, last = [TileStep()], list[tuple[int, _Begun, BufferRef]]()
        begun, ready = self._begin(out[0], 0, 1)
        out[0].fuse += begun
        self.tables.word(out[0], table=1, table_wide=1)
        self.tables.word(out[0], GUESS, table=1, table_wide=1)
        for number in range(len(self.tiles)):
            out.append(TileStep())
            step, now, between = out[-1], ready, list[Command | None]()
            if number + 1 < len(self.tiles):
                begun, ready = self._begin(step, number + 1, MAXIMA_PARTS)
                between += begun
            if number == 0:  # the elements of the next tile are being loaded
                between = [None] * MAXIMA_PARTS + between
                for slots in self.slots.buffers:
                    self._fill(step, slots)
            for each in last:
                between += self._results(step, *each, self.parts)
            last = [(number, now, self._multipliers(step, number, now, between))]
        out.append(TileStep())
        out[-1].fuse += self._results(out[-1], *last[0], self.parts)
        return out

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        if isinstance(self.reciprocals, SquareReciprocals):
            return self._few_steps()
        out = [TileStep()]
        begun, ready = self._begin(out[0], 0, 1)
        out[0].fuse += begun
        last: tuple[int, _Begun, BufferRef] | None = None
        gaps = self.reciprocals.commands
        work = self.rows * self.columns
        spread = work < gaps * _GAP_CYCLES and work + _OF_ROW * self.rows >= ROUND_TRIP
        for number in range(len(self.tiles)):
            if number:
                out.append(TileStep())
            step, now, between = out[-1], ready, list[Command]()
            both = spread and last is not None
            if number + 1 < len(self.tiles):
                between, ready = self._begin(step, number + 1, ceil_div(gaps, 2) if both else gaps)
            if last is not None and both:
                between += self._results(step, *last, max(gaps - len(between), 1))
            passed = self._multipliers(step, number, now, between)
            if last is not None and not both:
                out.append(TileStep())
                out[-1].fuse += self._results(out[-1], *last, 1)
            last = number, now, passed
        assert last is not None
        out.append(TileStep())
        out[-1].fuse += self._results(out[-1], *last, 1)
        return out

    def _parts(self, number: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the first image and row of N channels, and the number of images and rows, of at most `count` parts of a
        tile.
        """
        *_, images, width = self.tiles[number]
        of_image = ceil_div(width, self.n)
        total = images if images > 1 else of_image
        for start, size in pieces(total, ceil_div(total, count)):
            yield (start, 0, size, of_image) if images > 1 else (0, start, 1, size)

    def _begin(self, step: TileStep, number: int, parts: int) -> tuple[list[Command], _Begun]:
        """Return the commands that compute the maxima of a tile, in parts, and the tile; `step` loads it."""
        x, pitch = self._elements(step, number)
        maxima, of_image, n = self.maxima.next(), ceil_div(self.tiles[number][-1], self.n), self.n
        if self.paired:
            return self._pairs(step, number, parts, x, pitch, maxima), (x, pitch, maxima)
        stage = FUSE_STAGE.pack(reduce=Reduce.MAX)
        source = FUSE_SRC.pack(a_src=1, a_dtype=self.layer.shapes[self.layer.x].dtype)
        out = []
        for image, row, images, rows in self._parts(number, parts):
            first = x.plus(image * self.columns * pitch + row * n)
            walk = self._reduction(first, pitch, images, rows) | {"d_n": of_image}
            to = maxima.plus(image * of_image + row)
            out.append(self.context.command(Unit.FUSE, **walk, src=source, stage=stage, d_base=to))
        return out, (x, pitch, maxima)

    def _pairs(
        self, step: TileStep, number: int, parts: int, x: BufferRef, pitch: int, maxima: BufferRef
    ) -> list[Command]:
        """Return the commands that compute the maxima of a tile from pairs of elements, whose differences are positive
        where the second element is the larger one; a smallest element follows an odd number of them.
        """
        *_, images, width = self.tiles[number]
        of_image, n, pairs = ceil_div(width, self.n), self.n, ceil_div(self.columns, 2)
        dtype, to = self.layer.shapes[self.layer.x].dtype, self.differences.next()
        unsigned = dtype == Dtype.U8
        step.matrix.append(
            self.context.command(
                Unit.MATRIX,
                word=MATRIX_WORD.pack(dw=1, taps=2, groups=1, a_unsigned=int(unsigned)),
                a_base=x,
                a_zp=0 if unsigned else -128,
                a_oc=self.columns * pitch,
                a_u=n,
                a_v=pitch,
                v_lim=self.columns,
                w_base=self.signs.get(0, step),
                w_row=n,
                oc_count=images,
                x_count=2 * pairs,
                acc_base=to,
                acc_oc=of_image,
                acc_y=1,
                acc_x=self.rows,
                dw_lead=1,
                dw_len=of_image * 2 * pairs,
                dw_sx=2,
                dw_sy=1,
                dw_out_w=pairs,
            )
        )
        out = []
        for image, row, count, rows in self._parts(number, parts):
            at = image * of_image + row
            fields: _Fields = {"n_count": count, "y_count": rows, "wx_count": pairs, "a_base": to.plus(at)}
            fields |= {
                "a_n": of_image,
                "a_u": 1,
                "a_v": self.rows,
                "d_base": maxima.plus(at),
                "d_n": of_image,
            }
            fields |= {"r_base": x.plus(image * self.columns * pitch + row * n), "r_n": self.columns * pitch}
            fields |= {"r_y": n, "r_wx": 2 * pitch, "d_y": 1, "clip_lo": 0, "clip_hi": 255}
            fields |= {"x_mult": 1, "r_mult": 1, "o_mult": 1, "r_shifts": bytes_word(0, 0, _SAME)}
            stage = FUSE_STAGE.pack(reduce=Reduce.MAX, residual=1, r_raw=1, r_dtype=dtype)
            out.append(self.context.command(Unit.FUSE, **fields, src=FUSE_SRC.pack(), stage=stage))
        return out

    def _reduction(self, x: BufferRef, pitch: int, images: int, rows: int) -> _Fields:
        """Return the walk of a reduction over the columns of rows of N channels of some images."""
        counts = {"n_count": images, "y_count": rows, "wx_count": self.columns}
        steps = {"a_n": self.columns * pitch, "a_u": self.n, "u_y": 1, "a_v": pitch, "v_wx": 1, "d_y": 1}
        return counts | steps | {"a_base": x}

    def _less(self) -> int:
        """Return the first half of the fuse word that subtracts the maxima from the elements."""
        dtype = self.layer.shapes[self.layer.x].dtype
        return FUSE_SRC.pack(a_src=1, a_dtype=dtype, b_src=BSource.ACC, op=Op.SUB)

    def _multipliers(
        self, step: TileStep, number: int, tile: _Begun, between: Sequence[Command | None]
    ) -> BufferRef:
        """Add the sums of a tile and their reciprocals to a step, with other commands, or None, between them; return
        the address of the reciprocals in DRAM.
        """
        (x, pitch, maxima), (*_, images, width) = tile, self.tiles[number]
        of_image, others = ceil_div(width, self.n), iter(between)
        rows = images * of_image
        word = self.tables.word(
            step, table=1, table_wide=1, reduce=Reduce.SUM, post=Post.SCALE, post_rounding=Rounding.SINGLE
        )
        fields = self._reduction(x, pitch, images, of_image) | {"d_n": of_image, "d_base": self.work[0]}
        fields |= {"src": self._less(), "stage": word, "b_base": maxima, "b_y": 1, "b_n": of_image}
        scale = {"post_mult": self.factor[0], "post_shift": self.factor[1]}
        step.fuse.append(self.context.command(Unit.FUSE, **fields, **scale))

        def add(to: BufferRef, a: BufferRef, b: BufferRef | None = None, /, **more: int | BufferRef) -> None:
            walk: _Fields = {"y_count": rows, "a_u": 1, "u_y": 1, "d_y": 1, "a_base": a, "d_base": to}
            if b is not None:
                walk |= {"b_base": b, "b_y": 1}
            step.fuse.append(self.context.command(Unit.FUSE, **(walk | more)))

        def wait() -> None:
            step.fuse.extend(each for each in islice(others, 1) if each)

        wait()
        if isinstance(self.reciprocals, SquareReciprocals):
            last = self._square(step, self.reciprocals, add, wait)
        elif isinstance(self.reciprocals, SeriesReciprocals):
            last = self._series(step, self.reciprocals, add, wait)
        else:
            last = self._iterations(step, self.reciprocals, add, wait)
        step.fuse += [each for each in others if each]
        found, passed = self.found.next(), self.passed.next()
        stage = FUSE_STAGE.pack(
            d_dst=1, d_dtype=Dtype.I32, reduce=Reduce.SUM if last.products else Reduce.NONE
        )
        add(found, *last.rows, stage=stage, d_y=4 * self.n, **last.fields)
        step.stores.append(self.context.command(Unit.STORE, dram=passed, src=found, len=4 * self.n * rows))
        return passed

    def _square(
        self, step: TileStep, made: SquareReciprocals, add: Callable[..., None], wait: Callable[[], None]
    ) -> "_Last":
        """Add the commands that compute the factors of reciprocals by a square; return the last command."""
        sums, found, error, less = self.work
        scaled = FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.SINGLE)
        index = {"mult": 1 << 30, "shifts": bytes_word(1 - SEGMENT_BITS), "clip_lo": 0, "clip_hi": 255}
        add(found, sums, src=scaled, stage=self.tables.word(step, GUESS, table=1, table_wide=1), **index)
        wait()
        add(error, sums, found, src=FUSE_SRC.pack(b_src=BSource.ACC, op=Op.MUL), op_shift=made.shift)
        one = {"mult": 1 << 30, "shifts": bytes_word(1 - FACTOR_BITS), "zp": made.factor}
        add(self.factors, found, src=scaled, **one)
        mult, exponent = quantize_multiplier(ONE_OPERAND / made.one)
        one = {"mult": -mult, "shifts": bytes_word(exponent), "zp": round(ONE_OPERAND)}
        add(less, error, src=scaled, **one)
        wait()
        multiplied = FUSE_SRC.pack(
            b_src=BSource.ACC, op=Op.MUL, requant=Requant.IMM, rounding=Rounding.SINGLE
        )
        mult, exponent = quantize_multiplier(made.product_factor)
        one = {"mult": -mult, "shifts": bytes_word(exponent), "zp": -made.offset, "op_shift": PRODUCT_SHIFT}
        add(self.factors.plus(self.rows), error, less, src=multiplied, **one)
        wait()
        (mult, exponent), (neg_mult, neg_exponent) = (quantize_multiplier(each) for each in made.scales)
        product = FUSE_SRC.pack(
            b_src=BSource.ACC, op=Op.MUL, requant=Requant.IMM, rounding=Rounding.SINGLE, neg_en=1
        )
        fields = {"src": product, "op_shift": PRODUCT_SHIFT, "mult": mult, "neg_mult": neg_mult}
        fields |= {"shifts": bytes_word(exponent, neg_exponent), "wx_count": 2, "a_v": self.rows}
        return _Last((self.factors, found), fields, products=True)

    def _series(
        self, step: TileStep, made: SeriesReciprocals, add: Callable[..., None], wait: Callable[[], None]
    ) -> "_Last":
        """Add the commands that compute the terms of reciprocals by a power series; return the last command."""
        sums, whole, near, error, power, product = self.work
        scaled = FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.SINGLE)
        biased = FUSE_SRC.pack(bias_en=1, requant=Requant.IMM, rounding=Rounding.SINGLE)
        multiplied = FUSE_SRC.pack(b_src=BSource.ACC, op=Op.MUL)
        one = 1 << RECIPROCAL_BITS
        # Fractional bits of the error, which has 17 bits and a sign.
        bits = made.low - 1
        index = {"mult": 1 << 30, "shifts": bytes_word(1 - SEGMENT_BITS), "clip_lo": 0, "clip_hi": 255}
        table = self.tables.word(step, GUESS, table=1, table_wide=1)
        add(whole, sums, src=scaled, stage=table, **index)
        wait()
        add(near, whole, src=scaled, mult=1 << 30, shifts=bytes_word(1 - _NEAR_BITS))
        wait()
        shift = RECIPROCAL_BITS + MULTIPLIER_BITS + made.low - _NEAR_BITS - bits
        add(error, sums, near, src=multiplied, op_shift=shift)
        wait()
        # The factor 1 - e + e ** 2 is the square of e - 1 / 2, plus 3 / 4.
        half = {"bias": -(1 << bits - 1), "mult": 1 << 30, "shifts": bytes_word(1 + RECIPROCAL_BITS - bits)}
        add(power, error, src=biased, **half)
        wait()
        squared = FUSE_SRC.pack(op=Op.SQUARE, bias_en=1)
        add(power, power, src=squared, op_shift=RECIPROCAL_BITS, bias=one * 3 // 4)
        wait()
        add(error, error, power, src=multiplied, op_shift=RECIPROCAL_BITS)
        wait()
        add(product, error, near, src=multiplied, op_shift=bits - _NEAR_BITS)
        return _Last((whole, product), {"src": FUSE_SRC.pack(b_src=BSource.ACC, op=Op.SUB)})

    def _iterations(
        self, step: TileStep, made: Reciprocals, add: Callable[..., None], wait: Callable[[], None]
    ) -> "_Last":
        """Add the commands that compute the terms of reciprocals by iterations; return the last command."""
        sums, factors, high, first, second, product = self.work
        scaled = FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.SINGLE)
        mult, exponent = quantize_multiplier(made.index_scale)
        guess = self.tables.word(step, GUESS, table=1, post=Post.SCALE, post_rounding=Rounding.SINGLE)
        index = {"mult": mult, "shifts": bytes_word(exponent), "clip_lo": 0, "clip_hi": 255}
        add(first, sums, src=scaled, stage=guess, **index, post_mult=1 << 30, post_shift=2)
        add(factors, sums, src=scaled, mult=1 << 30, shifts=bytes_word(made.factor_bits - made.low + 1))
        add(high, sums, src=scaled, mult=1 << 30, shifts=bytes_word(1 - FACTOR_BITS))
        multiplied = {"b_src": BSource.ACC, "op": Op.MUL}
        rounded = FUSE_SRC.pack(**multiplied, requant=Requant.IMM, rounding=Rounding.SINGLE)
        negated = FUSE_SRC.pack(**multiplied, bias_en=1, requant=Requant.IMM, rounding=Rounding.SINGLE)
        squared = FUSE_SRC.pack(op=Op.SQUARE, bias_en=1)
        one = 1 << RECIPROCAL_BITS
        for later in range(made.iterations):
            # The product p of factor and reciprocal is 1 - e: (3 / 2 - p) ** 2 + 3 / 4 is 1 + e + e ** 2.
            wait()
            bias = -(one * 2 if later else one * 3 // 2)
            less = {"bias": bias, "mult": -(1 << 30), "shifts": bytes_word(1)}
            add(product, factors, first, src=negated, op_shift=made.factor_bits, **less)
            wait()
            if not later:
                add(product, product, src=squared, op_shift=RECIPROCAL_BITS, bias=one * 3 // 4)
                wait()
            add(second, first, product, src=rounded, op_shift=RECIPROCAL_BITS - 1, mult=1 << 30)
            first, second = second, first
        # The sum times the reciprocal is a power of two, which is 0 modulo 2**32, minus the error.
        wait()
        add(product, sums, first, src=FUSE_SRC.pack(**multiplied))
        add(high, high, first, src=rounded, mult=1 << 30, shifts=bytes_word(2))
        wait()
        error = FUSE_SRC.pack(b_src=BSource.ACC, op=Op.MUL_SUB, requant=Requant.IMM, rounding=Rounding.SINGLE)
        add(high, high, product, src=error, mult=-(1 << FACTOR_BITS - 1))
        wait()
        shift = made.low + RECIPROCAL_BITS - 2 * MULTIPLIER_BITS
        add(product, first, high, src=FUSE_SRC.pack(**multiplied), op_shift=shift)
        less = FUSE_SRC.pack(b_src=BSource.ACC, op=Op.MUL_SUB)
        return _Last((first, product), {"src": less, "mult": 1 << MULTIPLIER_BITS})

    def _slots(self, step: TileStep, rows: int, passed: BufferRef) -> BufferRef:
        """Add the loads of the multipliers of `rows` rows to a step; return the address of their slots.

        Biases are 0 and exponents equal in all slots.
        """
        if self.parts == 1 and self.slots.count < len(self.slots.buffers):
            self._fill(step, self.slots.buffers[self.slots.count])
        slots, n = self.slots.next(), self.n
        to = BufferRef(slots.buffer, slots.index, 0, 16 * n, 4 * n)
        line = {"dram_y": 4 * n, "len": 4 * n, "dst_y": 16 * n, "y_count": rows}
        step.loads.append(self.context.command(Unit.LOAD, word=Space.PARAM, dram=passed, dst=to, **line))
        return slots

    def _fill(self, step: TileStep, slots: CircularBuffer) -> None:
        """Add the loads of biases and exponents of slots to a step."""
        n = self.n
        for at, length, value in ((0, 4 * n, 0), (8 * n, n, self.exponent & 0xFF)):
            word = Space.PARAM | LOAD_WORD.pack(fill=1, fill_value=value)
            to = BufferRef(slots, 0, 0, 16 * n, at)
            line = {"len": length, "dst_y": 16 * n, "y_count": slots.size}
            step.loads.append(self.context.command(Unit.LOAD, word=word, dram=0, dst=to, **line))

    def _results(
        self, step: TileStep, number: int, tile: _Begun, passed: BufferRef, parts: int
    ) -> list[Command]:
        """Return the commands that compute the results of a tile, in parts; `step` loads the multipliers and stores the
        results.
        """
        (x, pitch, maxima), (*_, images, width) = tile, self.tiles[number]
        of_image, n, columns = ceil_div(width, self.n), self.n, self.columns
        slots = self._slots(step, images * of_image, passed) if self.parts == 1 else None
        target, y, y_pitch = self._made(number)
        word = self.tables.word(
            step,
            table=1,
            table_wide=1,
            post=Post.SLOT,
            post_rounding=Rounding.EVEN,
            tail_dim=FUSE_DIMS.index("x"),
            d_dst=1,
            d_dtype=self.layer.shapes[self.layer.y].dtype,
        )
        steps = {
            "a_n": columns * pitch,
            "a_u": pitch,
            "u_y": 1,
            "a_v": n,
            "v_x": 1,
            "p_x": 1,
            "p_n": of_image,
        }
        steps |= {"b_n": of_image, "b_x": 1, "d_n": columns * y_pitch, "d_y": y_pitch, "d_x": n}
        limits = dict(zip(("post_lo", "post_hi"), self.layer.clip, strict=True))
        out = []
        for image, row, count, rows in self._parts(number, parts):
            at = image * of_image + row
            multipliers = (
                slots.plus(at) if slots else self._slots(step, count * rows, passed.plus(4 * n * at))
            )
            fields: _Fields = {
                "n_count": count,
                "y_count": columns,
                "x_count": rows,
                "a_base": x.plus(image * columns * pitch + row * n),
                "b_base": maxima.plus(at),
                "p_base": multipliers,
                "d_base": y.plus(image * columns * y_pitch + row * n),
                "lanes_tail": (width - 1) % n + 1 if row + rows == of_image else n,
            }
            more = {"stage": word, "src": self._less(), "post_zp": self.layer.y_zp}
            out.append(self.context.command(Unit.FUSE, **fields, **steps, **limits, **more))
        self._store(step, number, target, y)
        return out


def across_steps(context: CodegenContext, layer: "SoftmaxLayer") -> list[TileStep]:
    """Generate the steps of a softmax over the columns of images."""
    kind = TwoElementSteps if layer.shapes[layer.x].w == PAIR else AcrossSteps
    return kind(context, layer).steps()
