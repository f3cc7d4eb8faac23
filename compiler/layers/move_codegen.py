"""Code generation for moves: boxes, lines, fills, and copies through the scratchpad."""

from collections.abc import Hashable, Iterator

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TensorLayout,
    TileStep,
)
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers
from compiler.layers.byte_selection import SelectionSteps
from compiler.layers.layer_kind import LayerKind
from compiler.layers.move import MOVE_LOWERINGS, MoveLayer, move_plan, move_tile_model, move_tilings
from compiler.layers.permutation import engine_of
from compiler.layers.permutation_codegen import BoxSteps
from compiler.layers.strided_copy import (
    Copy,
    CopyOperand,
    StridedCopy,
    Walk,
    in_blocks,
    in_bytes,
    transposable,
)
from hw.isa.enums import DTYPE_BYTES, Dtype

#: Pieces of copies that share a tile.
_Batch = tuple[tuple[Copy, Walk], ...]


def _count(batch: _Batch) -> int:
    return sum(piece.count for _, piece in batch)


def _starts(batch: _Batch) -> Iterator[tuple[Copy, Walk, int]]:
    """Yield the pieces of a batch, each with its offset in the tile in elements."""
    start = 0
    for copy, piece in batch:
        yield copy, piece, start
        start += piece.count


class MoveSteps:
    """Code generator of a move layer.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : MoveLayer
        Layer to generate code for.
    """

    def __init__(self, context: CodegenContext, layer: MoveLayer):
        self.context, self.layer, self.lines = context, layer, StridedCopy(context)
        self.y, self.n = context.layouts[layer.y], context.config.n
        self.most = context.schedule.rows * self.n
        self.operands = {
            name: CopyOperand(DTYPE_BYTES[image.dtype], context.layouts[name])
            for name, image in layer.shapes.items()
        }
        self.y_operand = self.operands[layer.y]
        self.plan = move_plan(
            context.config, layer, self.most, self.operands, lambda name: context.layouts[name].on_chip
        )
        self.boxed, self.straight = self.plan.boxed, self.plan.straight
        self.batches = list(self._batches())
        self.room = max((_count(batch) for batch in self.batches), default=0)
        size = max(DTYPE_BYTES[image.dtype] for image in layer.shapes.values())
        bytes_, schedule, count = (self.room + self.n) * size, context.schedule, len(self.batches) or 1
        buffer = CircularBuffer(BufferMemory.SP, f"{layer.name}.x", bytes_, min(schedule.x_buffers, count))
        self.tiles = TileBuffers(buffer, self._load)
        self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", bytes_, min(schedule.y_buffers, count))

    def steps(self) -> list[TileStep]:
        """Generate the steps of the boxes, of the direct copies, and of the tiles."""
        direct = [self._alone(copy) for copy in self.straight if self._direct(copy)]
        return [
            *self._boxes(),
            *direct,
            *(
                self._fill(batch) if batch[0][0].source is None else self._through(batch)
                for batch in self.batches
            ),
        ]

    def _boxes(self) -> Iterator[TileStep]:
        """Yield the steps of the copies that are moved in boxes."""
        if self.plan.selected is not None:
            selection = SelectionSteps(self.context, self.layer.name, self.plan.selected)
            yield from selection.steps(self.context.layouts, self.y)
        if not self.boxed:
            return
        loaded, between, permuted = (max(plan.sizes[i] for _, plan in self.boxed) for i in range(3))
        boxes = BoxSteps(
            self.context, self.layer.name, (loaded, between, permuted), engine_of(self.context.config)
        )
        for copy, plan in self.boxed:
            dtypes = self._dtypes(copy) if copy.rescale else (Dtype.I8, Dtype.I8)
            x = self._source_layout(copy).address()
            yield from boxes.steps(plan, x, self.y.address(), dtypes, copy.rescale)

    def _source(self, copy: Copy) -> CopyOperand:
        assert copy.source is not None
        return self.operands[copy.source]

    def _source_layout(self, copy: Copy) -> TensorLayout:
        layout = self._source(copy).layout
        assert layout is not None
        return layout

    def _direct(self, copy: Copy) -> bool:
        """Return True if a single unit can execute a copy."""
        if copy.source is None:
            return self.y.on_chip
        ends = (self._source_layout(copy).on_chip, self.y.on_chip)
        return all(ends) if copy.rescale else any(ends)

    def _pieces(self, copy: Copy) -> Iterator[Walk]:
        """Yield pieces of a copy, each of which fits a scratchpad tile; blocks that LOAD transposes are not split."""
        source = self.y_operand if copy.source is None else self._source(copy)
        walk = copy.walk.ordered() if source.gaps or self.y_operand.gaps else copy.walk.merged()
        turned = copy.source is not None and source.size == 1 and transposable(walk)
        for part in in_blocks(walk, self.n) if turned else [walk]:
            yield from part.pieces(self.most)

    def _batches(self) -> Iterator[_Batch]:
        """Yield batches of pieces that share a tile: consecutive pieces with equal types, conversion and memory."""
        batch: _Batch = ()
        for copy in self.straight:
            for piece in () if self._direct(copy) else self._pieces(copy):
                more = batch and self._kind(batch[0][0]) == self._kind(copy)
                if more and _count(batch) + piece.count <= self.most:
                    batch = (*batch, (copy, piece))
                    continue
                if batch:
                    yield batch
                batch = ((copy, piece),)
        if batch:
            yield batch

    def _kind(self, copy: Copy) -> Hashable:
        if copy.source is None:
            return copy.fill
        return self._dtypes(copy), copy.rescale, self._source_layout(copy).on_chip

    def _alone(self, copy: Copy) -> TileStep:
        step, y, lines = TileStep(), self.y.address(), self.lines
        if copy.source is None:
            walk = in_bytes(copy.walk, self.y_operand, self.y_operand)
            step.loads += lines.fill(walk, copy.fill, y, self.y_operand.size)
            return step
        x = self._source(copy)
        walk, layout = in_bytes(copy.walk, x, self.y_operand), self._source_layout(copy)
        if layout.on_chip and self.y.on_chip:
            step.fuse += lines.fuse(walk, layout.address(), y, self._dtypes(copy), copy.rescale)
        elif layout.on_chip:
            step.stores += lines.store(walk, layout.address(), y, x.size)
        else:
            step.loads += lines.load(walk, layout.address(), y, x.size)
        return step

    def _fill(self, batch: _Batch) -> TileStep:
        step = TileStep()
        self._store(step, batch, self.tiles.get(batch[0][0].fill, step))
        return step

    def _through(self, batch: _Batch) -> TileStep:
        """Return the step of a batch: loads from DRAM, conversions and stores to DRAM, each only if necessary."""
        step, first = TileStep(), batch[0][0]
        x, dtypes, rescale = self._source(first), self._dtypes(first), first.rescale
        tile = None if self._source_layout(first).on_chip else self.tiles.get(batch, step)
        address = self.y.address() if self.y.on_chip else self.out.next()
        if tile and rescale and not self.y.on_chip:
            whole = in_bytes(
                Walk(((_count(batch), 1, 1),)), CopyOperand(x.size), CopyOperand(self.y_operand.size)
            )
            step.fuse += self.lines.fuse(whole, tile, address, dtypes, rescale)
        elif rescale:
            for copy, piece, start in _starts(batch):
                into, out = piece.packed()
                if tile:
                    walk, source = in_bytes(out.shifted(start, 0), CopyOperand(x.size), self.y_operand), tile
                else:
                    source = self._source_layout(copy).address()
                    walk = in_bytes(
                        into.shifted(0, start), self._source(copy), CopyOperand(self.y_operand.size)
                    )
                step.fuse += self.lines.fuse(walk, source, address, dtypes, rescale)
        if not self.y.on_chip:
            self._store(step, batch, tile if tile and not rescale else address)
        return step

    def _store(self, step: TileStep, batch: _Batch, source: BufferRef) -> None:
        """Add the stores of a tile; contiguous elements are stored as one line."""
        outs: list[Walk] = []
        for _, piece, start in _starts(batch):
            out = piece.packed()[1].shifted(start, 0).merged()
            line = all(dim[1:] == (1, 1) for dim in out.dims) and not self.y_operand.gaps
            if line and outs and outs[-1].dims == ((start - outs[-1].x, 1, 1),):
                before = outs[-1]
                if before.y + start - before.x == out.y:
                    outs[-1] = Walk(((start - before.x + out.count, 1, 1),), before.x, before.y)
                    continue
            outs.append(
                Walk(((out.count, 1, 1),), out.x, out.y) if line else piece.packed()[1].shifted(start, 0)
            )
        for out in outs:
            walk = in_bytes(out, CopyOperand(self.y_operand.size), self.y_operand)
            step.stores += self.lines.store(walk, source, self.y.address(), self.y_operand.size)

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        if isinstance(key, int):
            whole = Walk(((self.room * self.y_operand.size, 1, 1),))
            return list(self.lines.fill(whole, key, address, 1))
        out: list[Command] = []
        for copy, piece, start in _starts(key):  # type: ignore[arg-type]
            x = self._source(copy)
            walk = in_bytes(piece.packed()[0].shifted(0, start), x, CopyOperand(x.size))
            out += self.lines.load(walk, self._source_layout(copy).address(), address, x.size)
        return out

    def _dtypes(self, copy: Copy) -> tuple[Dtype, Dtype]:
        assert copy.source is not None
        return self.layer.shapes[copy.source].dtype, self.layer.shapes[self.layer.y].dtype


def move_steps(context: CodegenContext, layer: MoveLayer) -> list[TileStep]:
    """Generate the steps of a move layer."""
    return MoveSteps(context, layer).steps()


KIND = LayerKind(
    name="move",
    layer=MoveLayer,
    lowerings=MOVE_LOWERINGS,
    tilings=move_tilings,
    tile_model=move_tile_model,
    steps=move_steps,
    rank_by_tile_model=True,
)
