"""Products of matrices as commands: the second factor's rows are the weights, as they lie."""

from collections.abc import Hashable

from compiler.codegen.build import Context, Tables, Tiles, Turns, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.kernels.scaling import bytes_word
from compiler.kernels.tiles import ceil_div
from compiler.lower.matmul import MatmulLayer, Stack
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Requant, Unit


class Matrices:
    """A stack of matrices where it lies.

    Parameters
    ----------
    context : Context
        Where for.
    stack : Stack
        Which.
    """

    def __init__(self, context: Context, stack: Stack):
        self.stack = stack
        self.home = context.homes[stack.name]
        #: Bytes from row to row.
        self.bytes = DTYPE_BYTES[stack.dtype]
        self.pitch = self.home.to(stack.pitch, self.bytes)

    def at(self, start: int, row: int, column: int) -> Ref:
        """Address of an element of the matrix that begins at element `start`."""
        return self.home.at().plus(self.home.to(start + row * self.stack.pitch + column, self.bytes))


class MatmulSteps:
    """The steps of a product: a tile is some rows and some blocks of columns of one matrix."""

    def __init__(self, context: Context, layer: MatmulLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        schedule, n, name = context.schedule, self.n, layer.name
        self.m, self.k, self.width = layer.size
        self.blocks, self.k_blocks = ceil_div(self.width, n), ceil_div(self.k, n)
        self.rows = min(schedule.rows, self.m)
        self.columns = min(schedule.columns, self.blocks)
        self.depth = min(schedule.depth, self.k_blocks)
        self.a, self.b, self.y = (Matrices(context, stack) for stack in (layer.a, layer.b, layer.out))
        k, width = min(self.depth * n, self.k), min(self.columns * n, self.width)
        #: Bytes from row to row of a tile that was brought in.
        self.a_tile, self.b_tile = k, k if layer.transposed else width
        tiles = ceil_div(self.k_blocks, self.depth) * len(layer.out.starts)
        self.a_tiles = Tiles(
            Ring(
                Memory.SP, f"{name}.x", self.rows * k + n,
                min(schedule.x_buffers, tiles * ceil_div(self.m, self.rows)),
            ),
            self._load_a,
        )  # fmt: skip
        self.b_tiles = Tiles(
            Ring(
                Memory.SP, f"{name}.w", self._whole(width if layer.transposed else k) * self.b_tile + n,
                min(schedule.w_buffers, tiles * ceil_div(self.blocks, self.columns)),
            ),
            self._load_b,
        )  # fmt: skip
        self.acc = Turns(Memory.ACC, f"{name}.acc", self.rows * self.columns, schedule.acc_buffers)
        self.table = None if layer.table is None else Tables(context, name, layer.table)
        size = (self.rows * width + n) * self.y.bytes
        self.out = Turns(Memory.SP, f"{name}.y", size, schedule.y_buffers)

    def _whole(self, rows: int) -> int:
        """Rows of a tile of the second factor that MATRIX might read: the box of a command has whole blocks of them.

        Without room of their own those behind the last would be the next tile's, and MATRIX would wait for it too.
        """
        return ceil_div(rows, self.n) * self.n if rows > self.n else rows

    def _load_a(self, key: Hashable, place: Ref) -> list[Command]:
        start, row, rows, k, depth = key  # type: ignore[misc]
        return self._load(self.a, start, (row, rows), (k, depth), place, self.a_tile)

    def _load_b(self, key: Hashable, place: Ref) -> list[Command]:
        start, along_k, along_n = key  # type: ignore[misc]
        box = (along_n, along_k) if self.layer.transposed else (along_k, along_n)
        return self._load(self.b, start, *box, place, self.b_tile)

    def _load(
        self, matrices: Matrices, start: int, rows: tuple[int, int], columns: tuple[int, int], place: Ref,
        pitch: int,
    ) -> list[Command]:  # fmt: skip
        """Bring part of a matrix in: (first, count) of rows and of columns, `pitch` bytes from row to row there."""
        (row, count), (column, length) = rows, columns
        lines = {"len": length, "y_count": count, "dram_y": matrices.pitch, "dst_y": pitch}
        if length == pitch == matrices.pitch:
            lines = {"len": length * count}
        source = matrices.at(start, row, column)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

    def steps(self) -> list[Step]:
        """All tiles, matrix after matrix."""
        layer, out = self.layer, []
        for starts in zip(layer.a.starts, layer.b.starts, layer.out.starts, strict=True):
            rows, blocks = list(pieces(self.m, self.rows)), list(pieces(self.blocks, self.columns))
            if self.context.schedule.order == "rows":
                tiles = [(row, block) for row in rows for block in blocks]
            else:
                tiles = [(row, block) for block in blocks for row in rows]
            for row, block in tiles:
                out += self._tile(starts, *row, *block)
        return out

    def _tile(self, starts: tuple[int, int, int], row: int, rows: int, block: int, blocks: int) -> list[Step]:
        acc, out = self.acc.next(), []
        for k, depth in pieces(self.k_blocks, self.depth):
            step = Step()
            step.matrix.append(self._matrix(step, acc, starts, (row, rows), (block, blocks), (k, depth)))
            out.append(step)
        self._drain(out[-1], acc, starts[2], (row, rows), (block, blocks))
        return out

    def _matrix(
        self, step: Step, acc: Ref, starts: tuple[int, int, int], rows: tuple[int, int],
        blocks: tuple[int, int], depth: tuple[int, int],
    ) -> Command:  # fmt: skip
        n, layer = self.n, self.layer
        k, width = self._span(*depth, self.k), self._span(*blocks, self.width)
        if self.a.home.on_chip:
            a, a_pitch = self.a.at(starts[0], rows[0], k[0]), self.a.pitch
        else:
            a, a_pitch = self.a_tiles.get((starts[0], *rows, *k), step), self.a_tile
        if self.b.home.on_chip:
            corner = (width[0], k[0]) if layer.transposed else (k[0], width[0])
            b, b_pitch = self.b.at(starts[1], *corner), self.b.pitch
        else:
            b, b_pitch = self.b_tiles.get((starts[1], k, width), step), self.b_tile
        return self.context.command(
            Unit.MATRIX,
            word=MATRIX_WORD.pack(
                accumulate=int(depth[0] > 0), w_transpose=int(layer.transposed),
                a_unsigned=int(layer.a.dtype == Dtype.U8), w_unsigned=int(layer.b.dtype == Dtype.U8),
            ),
            a_base=a, a_v=a_pitch, a_ic=n, a_zp=layer.a.zp, w_base=b, w_row=b_pitch, w_zp=layer.b.zp,
            w_ic=n if layer.transposed else n * b_pitch, w_oc=n * b_pitch if layer.transposed else n,
            x_count=rows[1], ic_count=depth[1], oc_count=blocks[1], k_tail=(k[1] - 1) % n + 1,
            n_tail=(width[1] - 1) % n + 1, acc_base=acc, acc_x=1, acc_oc=rows[1],
        )  # fmt: skip

    def _span(self, block: int, blocks: int, total: int) -> tuple[int, int]:
        """First element and number of elements of some blocks of a dimension."""
        return block * self.n, min(blocks * self.n, total - block * self.n)

    def _drain(
        self, step: Step, acc: Ref, start: int, rows: tuple[int, int], blocks: tuple[int, int]
    ) -> None:
        n, layer = self.n, self.layer
        first, lanes = self._span(*blocks, self.width)
        width = lanes * self.y.bytes
        target = self.y.at(start, rows[0], first)
        place, pitch = (target, self.y.pitch) if self.y.home.on_chip else (self.out.next(), width)
        parts = {"d_dst": 1, "d_dtype": layer.out.dtype, "tail_dim": FUSE_DIMS.index("n")}
        stage = self.table.word(step, **parts, table=1) if self.table else FUSE_STAGE.pack(**parts)
        step.fuse.append(
            self.context.command(
                Unit.FUSE, src=FUSE_SRC.pack(requant=Requant.IMM, rounding=layer.rounding), stage=stage,
                a_base=acc, a_n=rows[1], a_v=1, x_count=rows[1], n_count=blocks[1], d_base=place, d_x=pitch,
                d_n=n * self.y.bytes, lanes_tail=(lanes - 1) % n + 1, mult=layer.mult,
                shifts=bytes_word(layer.exponent), zp=layer.out.zp, clip_lo=layer.clip[0], clip_hi=layer.clip[1],
            )
        )  # fmt: skip
        if not self.y.home.on_chip:
            lines = {"len": width, "y_count": rows[1], "src_y": width, "dram_y": self.y.pitch}
            if width == self.y.pitch:
                lines = {"len": width * rows[1]}
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=place, **lines))


def matmul_steps(context: Context, layer: MatmulLayer) -> list[Step]:
    """The steps of a product of matrices."""
    return MatmulSteps(context, layer).steps()
