"""Code generation for moves in boxes."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import cast

import numpy as np

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TileStep,
)
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers
from compiler.layers.permutation import (
    BETWEEN_BUFFERS,
    Box,
    BoxPlan,
    Engine,
    InterleavedRows,
    Mode,
    TileGroup,
    interleaved_rows,
    regions,
)
from compiler.layers.strided_copy import Dim, Rescale, StridedCopy, Walk, requantization
from compiler.util.scaling import bytes_word
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import BSource, Dtype, Op, Requant, Rounding, Unit

#: Number of loops of a FUSE command.
_MAX_LOOPS = len(FUSE_DIMS)


class BoxSteps:
    """Generator of the steps that move copies in boxes.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    name : str
        Name of the layer, which is the prefix of the buffer names.
    sizes : (int, int, int)
        Largest loaded, intermediate and permuted box, in bytes.
    engine : Engine
        Speed of the machine, and the rows of a tile of sums.
    """

    def __init__(self, context: CodegenContext, name: str, sizes: tuple[int, int, int], engine: Engine):
        self.context, self.engine, self.n = context, engine, context.config.n
        self.lines, n, s = StridedCopy(context), self.n, context.schedule
        loaded, between, permuted = (size + n for size in sizes)
        self.x = BufferRotation(BufferMemory.SP, f"{name}.box", loaded, s.x_buffers)
        self.z = BufferRotation(BufferMemory.SP, f"{name}.between", between, BETWEEN_BUFFERS)
        self.y = BufferRotation(BufferMemory.SP, f"{name}.permuted", permuted, s.y_buffers)
        self.acc = BufferRotation(BufferMemory.ACC, f"{name}.acc", engine.rows, s.acc_buffers)
        source = context.constant(f"{name}.identity", np.eye(n, dtype=np.int8))
        self.identity = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.identity", n * n),
            lambda _, address: [context.command(Unit.LOAD, dram=BufferRef(source), dst=address, len=n * n)],
        )
        fill = LOAD_WORD.pack(fill=1)
        self.zeros = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.zeros", n),
            lambda _, address: [context.command(Unit.LOAD, word=fill, dram=0, dst=address, len=n)],
        )

    def steps(
        self,
        plan: BoxPlan,
        x: BufferRef,
        y: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Iterator[TileStep]:
        """Yield the steps of a plan; the second transposition of a box follows the first one of the next box.

        Parameters
        ----------
        plan : BoxPlan
            Boxes, and the way in which they are permuted.
        x, y : BufferRef
            Addresses of the source and of the destination.
        dtypes : (Dtype, Dtype)
            Types of source and destination for a conversion; without one, all elements are bytes of any type.
        rescale : Rescale or None
            Conversion of each element.
        """
        later: Iterator[TileStep] = iter(())
        for box in plan.parts(self.n):
            steps, rest = self._box(plan, box, x, y, dtypes, rescale)
            yield from steps
            yield from later
            later = rest
        yield from later

    def _box(
        self,
        plan: BoxPlan,
        box: Box,
        x: BufferRef,
        y: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> tuple[list[TileStep], Iterator[TileStep]]:
        """Return the steps of a box up to the intermediate box, and the other steps."""
        first, source = TileStep(), x
        if not plan.ends.x_here:
            source = self.x.next()
            first.loads += self.lines.load(box.loads, x, source, 1)
        if plan.mode == Mode.STORE:
            first.stores += self.lines.store(box.stores(plan.mode), source, y, 1)
            return [first], iter(())
        if plan.mode == Mode.TURN_TWICE:
            into, out, _ = box.twice(plan.along)
            between = self.z.next()
            steps = list(self._turn(into, source, between, (dtypes[0], dtypes[0]), None))
            rest = self._last(plan, box, out, between, y, dtypes, rescale)
        else:
            whole = [(box.permutation(), plan.along)]
            steps, rest = list(self._last(plan, box, whole, source, y, dtypes, rescale)), iter(())
        steps[0].loads = first.loads + steps[0].loads
        return steps, rest

    def _last(
        self,
        plan: BoxPlan,
        box: Box,
        walks: list[tuple[Walk, int]],
        source: BufferRef,
        y: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Iterator[TileStep]:
        """Yield the steps that permute a box to the order of the destination, and store it."""
        target = y if plan.ends.y_here else self.y.next()
        if plan.mode == Mode.COPY:
            step = TileStep()
            for walk, _ in walks:
                step.fuse += self.lines.fuse(walk, source, target, dtypes, rescale)
            steps = [step]
        elif plan.mode == Mode.INTERLEAVE:
            ((walk, byte),) = walks
            groups = interleaved_rows(walk, byte, self.engine)
            steps = [self._interleave(group, source, target) for group in groups]
        else:
            types = (Dtype.U8, Dtype.I16) if plan.mode == Mode.TURN_PAIRS else dtypes
            steps = list(self._turn(walks, source, target, types, rescale))
        if not plan.ends.y_here:
            steps[-1].stores += self.lines.store(box.stores(plan.mode), target, y, 1)
        yield from steps

    def _turn(
        self,
        walks: list[tuple[Walk, int]],
        source: BufferRef,
        target: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Iterator[TileStep]:
        """Yield the steps of a transposition, one for each tile of sums."""
        for walk, lane in walks:
            for region in regions(walk, lane, self.engine):
                yield from self._region(region, source, target, dtypes, rescale)

    def _region(
        self,
        region: TileGroup,
        source: BufferRef,
        target: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Iterator[TileStep]:
        rows, most = region.rows, self.engine.rows
        loops = [*region.ordered, (1, 0, 0), (1, 0, 0)]
        room = max(most // rows, 1)
        # FUSE has five loops, of which the rows of a tile and the tiles take some.
        free = _MAX_LOOPS - len(region.digits) - 1
        copies, repeated = region.copies[:free], region.copies[free:]
        inner = min(loops[0][0], room)
        outer = room // inner if inner == loops[0][0] and len(copies) < free else 1
        for second in _ranges(loops[1], outer):
            for first in _ranges(loops[0], inner):
                for x, y in _offsets(loops[2:]):
                    a = region.x + first[1] + second[1] + x
                    b = region.y + first[2] + second[2] + y
                    tiles = ((first[0], *loops[0][1:]), (second[0], *loops[1][1:]))
                    part = replace(region, loops=tiles, copies=copies, x=a, y=b)
                    yield self._sums(part, source, target, dtypes, rescale, repeated)

    def _sums(
        self,
        part: TileGroup,
        source: BufferRef,
        target: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
        repeated: tuple[Dim, ...],
    ) -> TileStep:
        """Return the step of one tile of sums."""
        step, acc, rows = TileStep(), self.acc.next(), part.rows
        (tiles, x_tile, d_tile), (groups, x_group, d_group) = part.loops
        identity = self.identity.get(0, step)
        fields: dict[str, int | BufferRef] = {
            "word": MATRIX_WORD.pack(w_transpose=1, w_unsigned=int(dtypes[0] == Dtype.U8)),
            "a_base": identity,
            "acc_x": 1,
            "w_row": part.pitch,
            "n_cols": part.columns,
        }
        unit = part.digits[0][1]
        if part.line_tiles > 1:
            # A command makes the tiles of one line each; the rows of all of them are in the order of the line.
            fields |= {"a_v": unit * self.n, "x_count": part.per_tile, "acc_oc": part.per_tile}
            fields |= {"w_oc": part.per_tile * unit, "oc_count": part.line_tiles}
            starts = [
                (i * x_tile + j * x_group, (i + j * tiles) * rows)
                for j in range(groups)
                for i in range(tiles)
            ]
        else:
            fields |= self._rows(part) | {"w_oc": x_tile, "oc_count": tiles, "acc_oc": rows}
            starts = [(j * x_group, j * tiles * rows) for j in range(groups)]
        for x, row in starts:
            weights = source.plus(part.x + x)
            step.matrix.append(
                self.context.command(Unit.MATRIX, **fields, w_base=weights, acc_base=acc.plus(row))
            )
        points, at = list[Dim](), 1
        for count, _, y in part.digits:
            points.append((count, at, y))
            at *= count
        paired = points.pop(cast(int, part.pair))[1] if dtypes[1] == Dtype.I16 else 0
        points += [(tiles, rows, d_tile), (groups, tiles * rows, d_group)]
        points += [(more, 0, y) for more, _, y in part.copies]
        for _, y in _offsets(list(repeated)):
            to = target.plus(part.y + y)
            if paired:
                step.fuse.append(self._join(points, part, acc, paired, to, self.zeros.get(0, step)))
            else:
                step.fuse.append(self._drain(points, part, acc, to, dtypes, rescale))
        return step

    def _rows(self, part: TileGroup) -> dict[str, int]:
        """Return the MATRIX fields for the rows of a tile that contains all used bytes of a line."""
        (count, unit, _), *others = part.digits
        if part.equidistant:
            return {"a_v": unit * self.n, "x_count": part.per_tile}
        ((more, distance, _),) = others
        plane = {"a_u": distance * self.n, "y_count": more, "acc_y": count}
        return {"a_v": unit * self.n, "x_count": count} | plane

    def _interleave(self, part: InterleavedRows, source: BufferRef, target: BufferRef) -> TileStep:
        """Return the step that interleaves lines: the last one contains the high bytes of the elements, with a sign."""
        step, acc = TileStep(), self.acc.next()
        identity = self.identity.get(0, step)
        rows = accumulate((count for count, _, _ in part.loops), mul, initial=1)
        loops = [(count, x, row, y) for (count, x, y), row in zip(part.loops, rows, strict=False)]
        fields: dict[str, int | BufferRef] = {"w_base": identity, "w_row": self.n, "acc_base": acc}
        names = (
            ("x_count", "a_v", "acc_x"),
            ("y_count", "a_u", "acc_y"),
            ("oc_count", "a_oc", "acc_oc"),
        )
        for (count, x, row, _), keys in zip(sorted(loops, reverse=True), names, strict=False):
            fields |= dict(zip(keys, (count, x, row), strict=True))
        for line in reversed(range(part.lines)):
            high = line == part.lines - 1
            word = MATRIX_WORD.pack(shift8=int(not high), a_unsigned=int(not high))
            base = source.plus(part.x + line * part.pitch)
            step.matrix.append(self.context.command(Unit.MATRIX, **fields, word=word, a_base=base))
        outs: dict[str, int | BufferRef] = {"a_u": 1, "a_v": 1}
        for (count, _, row, y), dim, a in zip(loops, ("x", "y", "n"), ("v_x", "u_y", "a_n"), strict=False):
            outs |= {f"{dim}_count": count, a: row, f"d_{dim}": y}
        dtype = Dtype.I16 if part.lines == 2 else Dtype.I32
        stage = FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("x"))
        to = target.plus(part.y)
        step.fuse.append(
            self.context.command(
                Unit.FUSE, **outs, stage=stage, a_base=acc, d_base=to, lanes_tail=part.tail % self.n
            )
        )
        return step

    def _join(
        self,
        points: list[Dim],
        part: TileGroup,
        acc: BufferRef,
        paired: int,
        target: BufferRef,
        zeros: BufferRef,
    ) -> Command:
        """Return the FUSE command that writes pairs of bytes as integers of 16 bits.

        The low bytes are in rows of the accumulator, and the high ones `paired` rows after them. The residual stage,
        which adds zeros, reduces 256 times the high byte plus the low one, from 0 to 65,535, to 16 bits with a sign.
        """
        fields: dict[str, int | BufferRef] = {}
        steps = {"wx": "v_wx", "x": "v_x", "wy": "u_wy", "y": "u_y", "n": "a_n"}
        for (count, a, y), dim in zip(
            (p for p in points if p[0] > 1), ("wx", "x", "n", "y", "wy"), strict=False
        ):
            fields |= {f"{dim}_count": count, steps[dim]: a, f"b_{dim}": a, f"d_{dim}": y}
        source = FUSE_SRC.pack(
            b_src=BSource.ACC, op=Op.MUL_SUB, requant=Requant.IMM, rounding=Rounding.SINGLE
        )
        stage = FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I16, residual=1, r_raw=1)
        # Both the product with the high byte and its conversion to a positive number use the multiplier.
        fields |= {"mult": -256, "shifts": bytes_word(31 - 8)}
        fields |= {
            "x_mult": 1,
            "r_mult": 0,
            "o_mult": 1 << 30,
            "r_shifts": bytes_word(0, 0, 1),
            "r_base": zeros,
        }
        return self.context.command(
            Unit.FUSE,
            **fields,
            src=source,
            stage=stage,
            a_base=acc.plus(paired),
            b_base=acc,
            a_u=1,
            a_v=1,
            d_base=target,
            lanes=part.columns,
        )

    def _drain(
        self,
        points: list[Dim],
        part: TileGroup,
        acc: BufferRef,
        target: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Command:
        """Return the FUSE command that writes rows of the accumulator to their places."""
        fields = requantization(rescale, None)
        steps = {"wx": "v_wx", "x": "v_x", "wy": "u_wy", "y": "u_y", "n": "a_n"}
        for (count, a, y), dim in zip(
            (p for p in points if p[0] > 1), ("wx", "x", "n", "y", "wy"), strict=False
        ):
            fields |= {f"{dim}_count": count, steps[dim]: a, f"d_{dim}": y}
        stage = FUSE_STAGE.pack(d_dst=1, d_dtype=dtypes[1])
        return self.context.command(
            Unit.FUSE,
            **fields,
            stage=stage,
            a_base=acc,
            a_u=1,
            a_v=1,
            d_base=target,
            lanes=part.columns,
        )


def _ranges(loop: Dim, size: int) -> Iterator[Dim]:
    """Yield the parts of a loop of at most `size` steps: number, and offsets in source and destination."""
    for start in range(0, loop[0], size):
        yield min(size, loop[0] - start), start * loop[1], start * loop[2]


def _offsets(loops: list[Dim]) -> Iterator[tuple[int, int]]:
    """Yield the offsets of all steps of some loops in source and destination."""
    if not loops:
        yield 0, 0
        return
    count, x, y = loops[0]
    for index in range(count):
        for a, b in _offsets(loops[1:]):
            yield index * x + a, index * y + b
