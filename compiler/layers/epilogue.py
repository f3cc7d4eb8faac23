"""The epilogue of a layer that sums: FUSE with the layer's parameters, and STORE if the result goes to DRAM."""

from collections.abc import Hashable

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tensor_layout import TensorLayout
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers
from compiler.layers.base import Drain, Residual
from hw.isa.commands import FUSE_DIMS, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, Unit


class Epilogue:
    """Drains tiles of an image from the accumulator.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts that code is generated for.
    name : str
        Name of the layer, the prefix of its buffers.
    drain : Drain
        Requantization parameters, table and addition.
    y : list of TensorLayout
        Layouts of the output image, or of the images of a batch.
    rows, columns : int
        Image rows and blocks of channels of a whole tile.
    channel : int
        First channel of y that is written.
    column : int
        First column of the whole image, if y are only some of its columns.
    """

    def __init__(
        self,
        context: CodegenContext,
        name: str,
        drain: Drain,
        y: list[TensorLayout],
        rows: int,
        columns: int,
        channel: int = 0,
        column: int = 0,
    ):
        self.context, self.drain, self.images = context, drain, y
        self.channel, self.column = channel, column
        self.turn_to(0)
        self.n = context.config.n
        self.channels = len(drain.bias)
        self.bytes = DTYPE_BYTES[drain.dtype]
        size = (rows * self.y.w * min(columns * self.n, self.channels) + self.n) * self.bytes
        buffers = context.schedule.y_buffers
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, buffers)
        self.table = None if drain.table is None else context.tables(name, drain.table)
        self.other = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.r", size, buffers), self._load_other
        )

    def turn_to(self, number: int) -> None:
        """Drain this image of a batch from now on."""
        self.number, self.y = number, self.images[number]

    def add(
        self,
        step: TileStep,
        acc: BufferRef,
        parameters: dict[str, int | BufferRef],
        start: int,
        rows: int,
        block: int,
        blocks: int,
    ) -> None:
        """Let a step drain output rows `start` on and `blocks` blocks of channels from `block` on."""
        lanes = min(blocks * self.n, self.channels - block * self.n)
        first, width = (self.channel + block * self.n) * self.bytes, lanes * self.bytes
        pixels = rows * self.y.w
        place, pixel = (
            (self.y.at(start, 0, first), self.y.pixel) if self.y.on_chip else (self.out.next(), width)
        )
        fields: dict[str, int | BufferRef] = {
            "stage": self._stage(step),
            "a_base": acc,
            "a_n": pixels,
            **self._walk(rows),
            "n_count": blocks,
            **parameters,
            "d_base": place,
            "d_x": pixel,
            "d_y": self.y.row if self.y.on_chip else self.y.w * pixel,
            "d_n": self.y.block(self.n * self.bytes),
            "lanes_tail": (lanes - 1) % self.n + 1,
            "zp": self.drain.zp,
            "clip_lo": self.drain.clip[0],
            "clip_hi": self.drain.clip[1],
        }
        fields |= self._residual(step, start, pixels, first, width)
        step.fuse.append(self.context.command(Unit.FUSE, **fields))
        if not self.y.on_chip:
            step.stores.append(
                self.context.command(
                    Unit.STORE,
                    dram=self.y.at(start, 0, first),
                    src=place,
                    **self._store(rows, width),
                )
            )

    def _stage(self, step: TileStep) -> int | BufferRef:
        parts = {"d_dst": 1, "d_dtype": self.drain.dtype, "tail_dim": FUSE_DIMS.index("n")}
        if self.drain.residual:
            parts |= self.drain.residual.stage | {"residual": 1, "r_dtype": self.drain.dtype}
        return self.table.word(step, **parts, table=1) if self.table else FUSE_STAGE.pack(**parts)

    def _walk(self, rows: int) -> dict[str, int]:
        """Pixel after pixel; rows are told apart if there are gaps between them."""
        if self.y.even:
            return {"x_count": rows * self.y.w, "a_v": 1}
        return {"x_count": self.y.w, "y_count": rows, "a_u": self.y.w, "a_v": 1, "u_y": 1, "v_x": 1}

    def _store(self, rows: int, width: int) -> dict[str, int]:
        if self.y.even:
            return _lines(self.y, rows * self.y.w, width, "src_y")
        return {
            "len": width,
            "y_count": self.y.w,
            "dram_y": self.y.pixel,
            "src_y": width,
            "z_count": rows,
            "dram_z": self.y.row,
            "src_z": self.y.w * width,
        }

    def _residual(
        self, step: TileStep, start: int, pixels: int, first: int, width: int
    ) -> dict[str, int | BufferRef]:
        residual = self.drain.residual
        if residual is None:
            return {}
        home = self._summand(residual)
        if home.on_chip:
            place, pixel, row = home.at(start, 0, first), home.pixel, home.row
        else:
            place = self.other.get((self.number, start, pixels, first, width), step)
            pixel, row = width, self.y.w * width
        rows = {} if self.y.even else {"r_y": row}
        return {"r_base": place, "r_x": pixel, "r_n": self.n, **rows, **residual.fields}

    def _summand(self, residual: Residual) -> TensorLayout:
        """Layout of the second operand of the addition, for this image."""
        home = self.context.homes[residual.tensor].parts(len(self.images))[self.number]
        return home if self.y.even else home.columns(self.column, self.y.w)

    def _load_other(self, key: Hashable, place: BufferRef) -> list[Command]:
        _, start, pixels, first, width = key  # type: ignore[misc]
        residual = self.drain.residual
        assert residual is not None
        home = self._summand(residual)
        if self.y.even:
            lines = _lines(home, pixels, width, "dst_y")
        else:
            lines = {
                "len": width,
                "y_count": home.w,
                "dram_y": home.pixel,
                "dst_y": width,
                "z_count": pixels // home.w,
                "dram_z": home.row,
                "dst_z": home.w * width,
            }
        return [self.context.command(Unit.LOAD, dram=home.at(start, 0, first), dst=place, **lines)]


def _lines(home: TensorLayout, pixels: int, width: int, pitch: str) -> dict[str, int]:
    """Transfer of `width` channels of pixels that follow one another, packed in the scratchpad."""
    if width == home.pixel:
        return {"len": pixels * width}
    return {"len": width, "y_count": pixels, "dram_y": home.pixel, pitch: width}
