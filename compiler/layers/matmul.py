"""Products of two stacks of matrices; surrounding transposes become strides of the operands and the result."""

import math
from collections.abc import Container, Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, Tables, TileBuffers, pieces
from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.base import Layer, Residual
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.epilogue_lowering import drain_of, multiplier_of, residual_of, rounding_of
from compiler.layers.layer_kind import BYTES, BYTES_TO_BYTES, ElementTypes, LayerKind, Lowering
from compiler.layers.lowering_context import (
    DTYPES,
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    image_of,
    is_unary,
    table_of,
)
from compiler.layers.reduce import _TILE_CYCLES, _Tilings
from compiler.layers.tile_pipeline import EARLY_RESULT, PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import LayerContext, sum_buffers
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Requant, Rounding, Unit

if TYPE_CHECKING:
    from compiler.layers.tiling_context import TilingContext


def nodes_around(graph: Graph, node: Node, taken: Container[str] = ()) -> tuple[str, ...]:
    """Return the names of the nodes of a product: itself, transposes that become strides, a function of the results,
    and the addition of another tensor, such as the mask of attention.

    Parameters
    ----------
    taken : container of str
        Names of nodes that belong to other layers.
    """
    names = [node.name]
    for operand, name in enumerate(node.inputs):
        producer = graph.producer(name)
        alone = len(graph.consumers(name)) == 1 and name not in graph.outputs and node.inputs.count(name) == 1
        if producer is None or producer.name in taken:
            continue
        if producer.op == "transpose" and alone and _plain(graph, producer):
            strides = strides_of(graph.ins(producer)[0].shape, producer.attributes["perm"])
            if 1 in strides[-2:][operand == 0 :]:
                names.append(producer.name)
    last = node
    for fits in (_is_function, _adds_matrices, _moves_rows):
        after = _follower(graph, last)
        if after is not None and after.name not in taken and fits(graph, last, after):
            names.append(after.name)
            last = after
    return tuple(names)


def _is_function(graph: Graph, before: Node, node: Node) -> bool:
    """Return True if a node is a function of the results of the node before it."""
    return is_unary(graph, node)


def _adds_matrices(graph: Graph, before: Node, node: Node) -> bool:
    """Return True if a node adds a tensor to a product: a row for each row of each matrix, or for several of them."""
    if node.op != "add" or node.inputs[0] == node.inputs[1]:
        return False
    made, y = graph.out(before), graph.out(node)
    (other,) = (tensor for tensor in graph.ins(node) if tensor.name != made.name)
    whole = all(
        each.dtype in BYTES and each.quantization is not None and each.quantization.whole
        for each in (made, other, y)
    )
    return (
        whole
        and made.shape == y.shape
        and len(other.shape) <= len(y.shape)
        and other.shape[-1:] == y.shape[-1:]
    )


def _moves_rows(graph: Graph, before: Node, node: Node) -> bool:
    """Return True if a node is a transpose that keeps the elements of rows contiguous."""
    if node.op != "transpose" or not _plain(graph, node):
        return False
    perm = node.attributes["perm"]
    return bool(perm[-1] == len(perm) - 1)


def _follower(graph: Graph, node: Node) -> Node | None:
    """Return the only node that reads a node's result; None if there are several or the result is a graph output."""
    made = graph.out(node).name
    after = graph.consumers(made)
    return after[0] if len(after) == 1 and made not in graph.outputs else None


def _plain(graph: Graph, node: Node) -> bool:
    """Return True if a node does not change type or quantization."""
    (x,), y = graph.ins(node), graph.out(node)
    return (x.dtype, x.quantization) == (y.dtype, y.quantization)


def strides_of(shape: tuple[int, ...], perm: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor's dimensions, in the order of `perm`."""
    plain = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tuple(plain[i] for i in (range(len(shape)) if perm is None else perm))


@identity("Stack", "name", "dtype", "zp", "starts", "pitch", "constant")
@dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """Matrices that a product reads or writes in a tensor.

    Parameters
    ----------
    name : str
        Name of the tensor.
    dtype : Dtype
        Element type: one byte, or four for sums.
    zp : int
        Zero point of the elements.
    starts : tuple of int
        Index of the first element of each product's matrix.
    pitch : int
        Distance between rows, in elements.
    constant : bool
        True if the tensor is a constant of the model.
    """

    name: str
    dtype: Dtype
    zp: int
    starts: tuple[int, ...]
    pitch: int
    constant: bool = False


@identity(
    "MatmulLayer",
    "a",
    "b",
    "out",
    "transposed",
    "size",
    "mult",
    "exponent",
    "rounding",
    "clip",
    "table",
    "bands",
    "residual",
    "summand",
    added=("bands", "residual", "summand"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class MatmulLayer(Layer):
    """Products of the matrices of two stacks.

    Parameters
    ----------
    a, b, out : Stack
        Left operands (m, k), right operands (k, n) and products (m, n).
    transposed : bool
        True if the right operand is stored as (n, k).
    size : (int, int, int)
        Dimensions m, k, n of each product.
    mult, exponent : int
        Scale of the sums as multiplier and exponent.
    rounding : Rounding
        Rounding mode of the scaling.
    clip : (int, int)
        Smallest and largest stored result.
    table : (256,) int16 array or None
        Lookup table applied after clipping; the zero point of `out` and `clip` then refer to the index of the table.
    bands : tuple of (int, int)
        First element that is not zero in each row of the left operand, and the end of these elements, if the left
        operand is a constant, such as the weights of an interpolation; empty if all elements must be read.
    """

    a: Stack
    b: Stack
    out: Stack
    transposed: bool
    size: tuple[int, int, int]
    mult: int
    exponent: int
    rounding: Rounding
    clip: tuple[int, int] = field(default=(-128, 127))
    table: NDArray[np.int16] | None = None
    bands: tuple[tuple[int, int], ...] = ()
    residual: Residual | None = None
    summand: Stack | None = None

    def inner(self, row: int, rows: int) -> tuple[int, int]:
        """Return the first element of the inner dimension that some rows of products depend on, and their number."""
        if not self.bands:
            return 0, self.size[1]
        starts, ends = zip(*self.bands[row : row + rows], strict=True)
        return min(starts), max(max(ends) - min(starts), 1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the operands, and of the tensor that is added, that are not constant."""
        stacks = (self.a, self.b, *([self.summand] if self.summand else []))
        return tuple(dict.fromkeys(stack.name for stack in stacks if not stack.constant))


def lower_matmul(low: LoweringContext) -> MatmulLayer:
    """Lower a matrix product.

    Raises
    ------
    UnsupportedLoweringError
        An operand is not a matrix, or its rows are not contiguous.
    """
    graph, node = low.graph, low.anchor
    first, second = graph.ins(node)
    made = graph.out(node)
    for tensor in (first, second, made):
        if len(tensor.shape) < 2:
            raise UnsupportedLoweringError(f"{tensor.name!r} of shape {list(tensor.shape)} is not a matrix")
    m, n = made.shape[-2:]
    k = first.shape[-1]
    batch = made.shape[:-2]
    a, b = _source(low, first), _source(low, second)
    strides_a, strides_b = a[1], b[1]
    if strides_a[-1] != 1 or 1 not in strides_b[-2:]:
        raise UnsupportedLoweringError("the rows of an operand are not contiguous")
    transposed = strides_b[-1] != 1
    inverse, y = _target(low, made)
    # XNNPACK does not support products whose right operand has a zero point, so LiteRT uses its own kernel for them.
    zero = affine(second).zero_point
    single = zero == 0 or low.rounding != "xnnpack"
    rounding = rounding_of(low, Rounding.DOUBLE) if single else Rounding.DOUBLE
    x, w, y_scale = (affine(tensor).scale for tensor in (first, second, made))
    mult, exponent = multiplier_of(low, x, w, y_scale, rounding)
    residual, summand = _summand(low, made)
    others = [graph.tensors[summand.name]] if summand else []
    shapes = {t.name: image_of(t) for t in (a[0], b[0], y, *others)}
    bands = _bands(first)
    return MatmulLayer(
        **{**low.common(), "x": b[0].name if first.constant else a[0].name, "shapes": shapes},
        macs=math.prod(batch) * n * (sum(end - start for start, end in bands) if bands else m * k),
        a=_stack(a[0], strides_a, batch, first.shape, strides_a[-2]),
        b=_stack(b[0], strides_b, batch, second.shape, strides_b[-1 if transposed else -2]),
        out=replace(_stack(y, inverse, batch, made.shape, inverse[-2]), zp=affine(made).zero_point),
        transposed=transposed,
        size=(m, k, n),
        mult=mult,
        exponent=exponent,
        rounding=rounding,
        clip=clip_range(made),
        table=_table(low),
        bands=bands,
        residual=residual,
        summand=summand,
    )


def _bands(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the range of the elements that are not zero in each row of a constant matrix; empty for other operands."""
    if tensor.data is None or len(tensor.shape) != 2:
        return ()
    found = []
    for row in tensor.data != affine(tensor).zero_point:
        (places,) = np.nonzero(row)
        found.append((int(places[0]), int(places[-1]) + 1) if places.size else (0, 0))
    whole = (0, tensor.shape[1])
    return () if all(each == whole for each in found) else tuple(found)


def _table(low: LoweringContext) -> NDArray[np.int16] | None:
    """Return the lookup table of the function fused after the product; None if there is no such function."""
    node = _function(low)
    return None if node is None else table_of(low.graph, node, low.rounding)


def _function(low: LoweringContext) -> Node | None:
    """Return the node of the function fused after the product; None if there is none."""
    return next((node for node in low.nodes if node is not low.anchor and is_unary(low.graph, node)), None)


def _summand(low: LoweringContext, made: Tensor) -> tuple[Residual, Stack] | tuple[None, None]:
    """Return the addition fused after the product, and the matrices that are added; None if there is no addition."""
    graph, function = low.graph, _function(low)
    add = next((node for node in low.nodes if node.op == "add" and node is not function), None)
    if add is None:
        return None, None
    residual = residual_of(low, [add], made if function is None else graph.out(function))
    other, strides = _unrepeated(graph, graph.tensors[residual.tensor], len(made.shape))
    stack = _stack(other, strides, made.shape[:-2], made.shape, strides[-2])
    return replace(residual, tensor=other.name), stack


def _unrepeated(graph: Graph, tensor: Tensor, rank: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return the tensor that a summand repeats, and its strides along `rank` dimensions: 0 along the repeated ones.

    `compiler.passes.canonicalize` repeats operands for sums that are layers of their own.
    """
    repeated = {axis - len(tensor.shape) for axis, size in enumerate(tensor.shape) if size == 1}
    if tensor.data is not None:
        for axis, size in enumerate(tensor.shape[:-1]):
            if size > 1 and (tensor.data == tensor.data.take([0], axis)).all():
                repeated.add(axis - len(tensor.shape))
    node = graph.producer(tensor.name)
    while tensor.data is None and node is not None and node.op in ("gather", "reshape"):
        source = graph.ins(node)[0]
        if node.op == "gather":
            axis, index = node.attributes["axis"] % len(source.shape), graph.ins(node)[1]
            last = axis == len(source.shape) - 1
            if last or source.shape[axis] != 1 or index.data is None or len(index.shape) != 1:
                break
            repeated.add(axis - len(source.shape))
        elif source.shape != tensor.shape[len(tensor.shape) - len(source.shape) :]:
            break
        tensor, node = source, graph.producer(source.name)
    strides = (0,) * (rank - len(tensor.shape)) + strides_of(tensor.shape)
    return tensor, tuple(0 if axis - rank in repeated else step for axis, step in enumerate(strides))


def _source(low: LoweringContext, tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return the tensor from which an operand is read, and the operand's strides in that tensor."""
    producer = low.graph.producer(tensor.name)
    if producer is None or producer.op != "transpose" or producer not in low.nodes:
        return tensor, strides_of(tensor.shape)
    source = low.graph.ins(producer)[0]
    return source, strides_of(source.shape, producer.attributes["perm"])


def _target(low: LoweringContext, made: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the strides of the product in the tensor to which it is written, and that tensor."""
    last = low.nodes[-1]
    if last.op != "transpose":
        return strides_of(made.shape), low.graph.out(last)
    y, perm = low.graph.out(last), last.attributes["perm"]
    strides = strides_of(y.shape)
    return tuple(strides[perm.index(i)] for i in range(len(perm))), y


def _stack(
    tensor: Tensor, strides: tuple[int, ...], batch: tuple[int, ...], shape: tuple[int, ...], pitch: int
) -> Stack:
    """Return the matrices of a tensor, broadcast to the leading dimensions of the product."""
    lead = shape[:-2]
    steps = [0] * (len(batch) - len(lead)) + [
        0 if size == 1 else step for size, step in zip(lead, strides[: len(lead)], strict=True)
    ]
    starts = tuple(int(np.dot(index, steps)) if steps else 0 for index in np.ndindex(*batch))
    return Stack(
        name=tensor.name,
        dtype=DTYPES[tensor.dtype],
        zp=affine(tensor).zero_point,
        starts=starts,
        pitch=pitch,
        constant=tensor.constant,
    )


def matmul_tilings(context: "TilingContext", layer: MatmulLayer) -> _Tilings:
    """Yield the tilings with the largest depth that fits the on-chip memories."""
    k_blocks = ceil_div(layer.size[1], context.config.n)
    for depth in cuts(k_blocks):
        found = list(_matmul_tilings(context, layer, depth))
        if found:
            yield from found
            return


#: Number of buffers for the parts of a right operand that bands of a left operand need.
_BAND_BUFFERS = 8


def _matmul_tilings(context: "TilingContext", layer: MatmulLayer, depth: int) -> _Tilings:
    n, (m, k, width) = context.config.n, layer.size
    blocks, parts = ceil_div(width, n), ceil_div(ceil_div(k, n), depth)
    batches, span = len(layer.out.starts), min(depth * n, k)
    a_here, b_here = (context.on_chip(s.name) for s in (layer.a, layer.b))
    y_here, size = context.on_chip(layer.y), DTYPE_BYTES[layer.out.dtype]
    summand = None if layer.summand is None or context.on_chip(layer.summand.name) else layer.summand
    for rows, columns in product(cuts(m), cuts(blocks)):
        down, across = ceil_div(m, rows), ceil_div(blocks, columns)
        tiles = down * across
        if rows * columns * min(2, tiles * batches) > context.acc_rows or rows > 0xFFFF:
            continue
        broad = min(columns * n, width)
        for order, resident in (("rows", True), ("rows", False), ("channels", False)):
            w_buffers = across * parts if resident else 2
            x_buffers = 2 if parts == 1 or order == "rows" else min(2, parts)
            if layer.bands:  # the left operand stays on the chip, and small parts of the right one are loaded
                x_buffers = down * parts
                w_buffers = w_buffers if resident else _BAND_BUFFERS
            used = 0 if a_here else x_buffers * (rows * span + n)
            used += 0 if b_here else w_buffers * (span * broad + n)
            used += 0 if y_here else 2 * (rows * broad + n) * size
            used += 0 if summand is None else 2 * ((rows if summand.pitch else 1) * broad + n)
            if used > context.free:
                continue
            a_times = across if order == "channels" and down > 1 else 1
            b_times = down if order == "rows" and not resident and across * parts > 1 else 1
            deep = sum(ceil_div(layer.inner(row, rows)[1], n) for row in range(0, m, rows))
            array = deep * across * columns * (max(rows, n) + 4)
            bus = 0 if a_here else a_times * m * k / n
            bus += 0 if b_here else b_times * k * blocks
            bus += 0 if y_here else m * blocks * size
            bus += 0 if summand is None else (m if summand.pitch else down) * blocks
            steps = tiles * parts
            start = (0 if a_here else rows * span / n) + (0 if b_here else span * columns)
            cycles = batches * (max(array, bus, m * blocks, steps * _TILE_CYCLES) + 8 * steps)
            cycles += rows * columns + start
            yield (
                cycles,
                LayerSchedule(
                    rows=rows,
                    columns=columns,
                    depth=depth,
                    order=order,
                    w_buffers=w_buffers,
                    x_buffers=x_buffers,
                    acc_buffers=sum_buffers(context, rows * columns) if layer.bands else 2,
                    on_chip=y_here,
                ),
            )


def matmul_tile_model(layer: MatmulLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a matrix product."""
    n, (m, k, width) = context.config.n, layer.size
    blocks, k_blocks, size = ceil_div(width, n), ceil_div(k, n), DTYPE_BYTES[layer.out.dtype]
    rows, columns, depth = min(s.rows, m), min(s.columns, blocks), min(s.depth, k_blocks)
    batches, down, across = len(layer.out.starts), range(0, m, rows), range(0, blocks, columns)
    parts = sum(ceil_div(layer.inner(row, rows)[1], depth * n) for row in down)
    a_here, b_here = (context.on_chip(stack.name) for stack in (layer.a, layer.b))
    summand = None if layer.summand is None or context.on_chip(layer.summand.name) else layer.summand

    def tiles() -> Iterator[PipelineTile]:
        for number in range(batches):
            order = ((r, c) for r in down for c in across)
            if s.order == "channels":
                order = ((r, c) for c in across for r in down)
            for row, block in order:
                high, wide = min(rows, m - row), min(columns, blocks - block)
                length = layer.inner(row, high)[1]
                last = ceil_div(length, depth * n) - 1
                for part in range(last + 1):
                    span = min(depth * n, length - part * depth * n)
                    deep = ceil_div(span, n)
                    loads: list[tuple[str, object, float]] = []
                    if not a_here:
                        stack = 0 if layer.bands else number
                        loads.append(("x", (stack, row, part), lines(high, span, layer.a.pitch, n)))
                    broad = min(wide * n, width - block * n)
                    if not b_here:
                        across_, down_ = (span, broad) if layer.transposed else (broad, span)
                        key = (number, block, part, row if layer.bands else 0)
                        loads.append(("w", key, lines(down_, across_, layer.b.pitch, n)))
                    if summand is not None and part == last:
                        corner, height = (row, high) if summand.pitch else (0, 1)
                        key = (summand.starts[number], corner, block)
                        loads.append(("r", key, lines(height, broad, summand.pitch, n)))
                    beats = lines(high, broad * size, layer.out.pitch * size, n)
                    store = 0.0 if context.y_on_chip else beats
                    through, ends = max(high, n), part == last
                    yield PipelineTile(
                        tuple(loads),
                        wide * deep * through,
                        high * wide * size * ends,
                        store * ends,
                        1 + ends * (2 - context.y_on_chip),
                    )

    buffers = {"x": s.x_buffers, "w": s.w_buffers, "r": s.y_buffers}
    count = batches * len(across) * parts
    pipeline = TilePipeline(tiles(), count, buffers, s.acc_buffers, s.y_buffers)
    return pipeline if layer.residual else replace(pipeline, result=EARLY_RESULT)


class MatrixStack:
    """Addresses of the matrices of a stack in its tensor layout.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    stack : Stack
        Stack of matrices.
    """

    def __init__(self, context: CodegenContext, stack: Stack):
        self.stack = stack
        self.layout = context.layouts[stack.name]
        self.bytes = DTYPE_BYTES[stack.dtype]
        #: Distance between rows in bytes.
        self.pitch = self.layout.byte_offset(stack.pitch, self.bytes)

    def address(self, start: int, row: int, column: int) -> BufferRef:
        """Return the address of element (row, column) of the matrix that begins at element `start` of the tensor."""
        return self.layout.element(start + row * self.stack.pitch + column, self.bytes)


class MatmulSteps:
    """Code generator of a product; a tile consists of some rows and some blocks of columns of one matrix."""

    def __init__(self, context: CodegenContext, layer: MatmulLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        schedule, n, name = context.schedule, self.n, layer.name
        self.m, self.k, self.width = layer.size
        self.blocks, self.k_blocks = ceil_div(self.width, n), ceil_div(self.k, n)
        self.rows = min(schedule.rows, self.m)
        self.columns = min(schedule.columns, self.blocks)
        self.depth = min(schedule.depth, self.k_blocks)
        self.a, self.b, self.y = (MatrixStack(context, stack) for stack in (layer.a, layer.b, layer.out))
        k, width = min(self.depth * n, self.k), min(self.columns * n, self.width)
        #: Distance in bytes between rows of a loaded tile.
        self.a_tile, self.b_tile = k, k if layer.transposed else width
        tiles = ceil_div(self.k_blocks, self.depth) * len(layer.out.starts)
        self.a_tiles = TileBuffers(
            CircularBuffer(
                BufferMemory.SP,
                f"{name}.x",
                self.rows * k + n,
                min(schedule.x_buffers, tiles * ceil_div(self.m, self.rows)),
            ),
            self._load_a,
        )
        self.b_tiles = TileBuffers(
            CircularBuffer(
                BufferMemory.SP,
                f"{name}.w",
                self._whole(width if layer.transposed else k) * self.b_tile + n,
                min(schedule.w_buffers, tiles * ceil_div(self.blocks, self.columns)),
            ),
            self._load_b,
        )
        self.acc = BufferRotation(
            BufferMemory.ACC, f"{name}.acc", self.rows * self.columns, schedule.acc_buffers
        )
        self.table = None if layer.table is None else Tables(context, name, layer.table)
        size = (self.rows * width + n) * self.y.bytes
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        self.r = None if layer.summand is None else MatrixStack(context, layer.summand)
        self.r_tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.r", self.rows * width + n, schedule.y_buffers),
            self._load_r,
        )

    def _whole(self, rows: int) -> int:
        """Return the number of rows to reserve for a tile of the right operand: whole blocks of rows.

        The bounding box of a command covers whole blocks. Without the reserved rows, it would overlap the next tile,
        and MATRIX would wait for that tile.
        """
        return ceil_div(rows, self.n) * self.n if rows > self.n else rows

    def _load_a(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, row, rows, k, depth = key  # type: ignore[misc]
        return self._load(self.a, start, (row, rows), (k, depth), address, self.a_tile)

    def _load_b(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, along_k, along_n = key  # type: ignore[misc]
        box = (along_n, along_k) if self.layer.transposed else (along_k, along_n)
        return self._load(self.b, start, *box, address, self.b_tile)

    def _load_r(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, rows, columns = key  # type: ignore[misc]
        assert self.r is not None
        return self._load(self.r, start, rows, columns, address, columns[1])

    def _load(
        self,
        matrices: MatrixStack,
        start: int,
        rows: tuple[int, int],
        columns: tuple[int, int],
        address: BufferRef,
        pitch: int,
    ) -> list[Command]:
        """Return the load of a part of a matrix, with (first, count) of rows and columns and the buffer's row pitch."""
        (row, count), (column, length) = rows, columns
        lines = {"len": length, "y_count": count, "dram_y": matrices.pitch, "dst_y": pitch}
        if length == pitch == matrices.pitch:
            lines = {"len": length * count}
        source = matrices.address(start, row, column)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles, matrix by matrix."""
        layer, out = self.layer, []
        added = layer.summand.starts if layer.summand else layer.out.starts
        for starts in zip(layer.a.starts, layer.b.starts, layer.out.starts, added, strict=True):
            streamed = self.a.layout.row_blocks or self.y.layout.row_blocks
            split = pieces if streamed is None else streamed.pieces
            rows, blocks = list(split(self.m, self.rows)), list(pieces(self.blocks, self.columns))
            if self.context.schedule.order == "rows" or streamed is not None:
                tiles = [(row, block) for row in rows for block in blocks]
            else:
                tiles = [(row, block) for block in blocks for row in rows]
            for row, block in tiles:
                out += self._tile(starts, *row, *block)
        return out

    def _tile(self, starts: tuple[int, ...], row: int, rows: int, block: int, blocks: int) -> list[TileStep]:
        acc, out = self.acc.next(), []
        first, length = self.layer.inner(row, rows)
        for start, count in pieces(length, self.depth * self.n):
            step = TileStep(block=self._row_block(starts, row))
            inner = first + start, count
            step.matrix.append(
                self._matrix(step, acc, starts, (row, rows), (block, blocks), inner, start > 0)
            )
            out.append(step)
        self._drain(out[-1], acc, starts, (row, rows), (block, blocks))
        return out

    def _row_block(self, starts: tuple[int, ...], row: int) -> int:
        """Return the index of the block of rows, of the left operand or the result, that contains a row of a matrix."""
        for stack, start in ((self.a, starts[0]), (self.y, starts[2])):
            blocks = stack.layout.row_blocks
            if blocks is not None:
                return blocks.locate(start // stack.layout.c + row)[0]
        return 0

    def _matrix(
        self,
        step: TileStep,
        acc: BufferRef,
        starts: tuple[int, ...],
        rows: tuple[int, int],
        blocks: tuple[int, int],
        k: tuple[int, int],
        more: bool,
    ) -> Command:
        """Return the command that computes, or adds to, the sums of a tile over a range of the inner dimension."""
        n, layer = self.n, self.layer
        width = self._span(*blocks, self.width)
        if self.a.layout.on_chip:
            a, a_pitch = self.a.address(starts[0], rows[0], k[0]), self.a.pitch
        else:
            a, a_pitch = self.a_tiles.get((starts[0], *rows, *k), step), self.a_tile
        if self.b.layout.on_chip:
            corner = (width[0], k[0]) if layer.transposed else (k[0], width[0])
            b, b_pitch = self.b.address(starts[1], *corner), self.b.pitch
        else:
            b, b_pitch = self.b_tiles.get((starts[1], k, width), step), self.b_tile
        return self.context.command(
            Unit.MATRIX,
            word=MATRIX_WORD.pack(
                accumulate=int(more),
                w_transpose=int(layer.transposed),
                a_unsigned=int(layer.a.dtype == Dtype.U8),
                w_unsigned=int(layer.b.dtype == Dtype.U8),
            ),
            a_base=a,
            a_v=a_pitch,
            a_ic=n,
            a_zp=layer.a.zp,
            w_base=b,
            w_row=b_pitch,
            w_zp=layer.b.zp,
            w_ic=n if layer.transposed else n * b_pitch,
            w_oc=n * b_pitch if layer.transposed else n,
            x_count=rows[1],
            ic_count=ceil_div(k[1], n),
            oc_count=blocks[1],
            k_tail=(k[1] - 1) % n + 1,
            n_tail=(width[1] - 1) % n + 1,
            acc_base=acc,
            acc_x=1,
            acc_oc=rows[1],
        )

    def _span(self, block: int, blocks: int, total: int) -> tuple[int, int]:
        """Return the first element and the number of elements of a range of blocks; `total` is the dimension's size."""
        return block * self.n, min(blocks * self.n, total - block * self.n)

    def _drain(
        self,
        step: TileStep,
        acc: BufferRef,
        starts: tuple[int, ...],
        rows: tuple[int, int],
        blocks: tuple[int, int],
    ) -> None:
        n, layer = self.n, self.layer
        first, lanes = self._span(*blocks, self.width)
        width = lanes * self.y.bytes
        target = self.y.address(starts[2], rows[0], first)
        address, pitch = (target, self.y.pitch) if self.y.layout.on_chip else (self.out.next(), width)
        parts = {"d_dst": 1, "d_dtype": layer.out.dtype, "tail_dim": FUSE_DIMS.index("n")}
        if layer.residual and layer.summand:
            parts |= layer.residual.stage | {"residual": 1, "r_dtype": layer.summand.dtype}
        stage = self.table.word(step, **parts, table=1) if self.table else FUSE_STAGE.pack(**parts)
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(requant=Requant.IMM, rounding=layer.rounding),
                stage=stage,
                a_base=acc,
                a_n=rows[1],
                a_v=1,
                x_count=rows[1],
                n_count=blocks[1],
                d_base=address,
                d_x=pitch,
                d_n=n * self.y.bytes,
                lanes_tail=(lanes - 1) % n + 1,
                mult=layer.mult,
                shifts=bytes_word(layer.exponent),
                zp=layer.out.zp,
                clip_lo=layer.clip[0],
                clip_hi=layer.clip[1],
                **self._residual(step, starts[3], rows, (first, lanes)),
            )
        )
        if not self.y.layout.on_chip:
            lines = {"len": width, "y_count": rows[1], "src_y": width, "dram_y": self.y.pitch}
            if width == self.y.pitch:
                lines = {"len": width * rows[1]}
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=address, **lines))

    def _residual(
        self, step: TileStep, start: int, rows: tuple[int, int], columns: tuple[int, int]
    ) -> dict[str, int | BufferRef]:
        """Return the fields that add a part of a matrix, with (first, count) of rows and columns."""
        if self.r is None or self.layer.residual is None:
            return {}
        rows = rows if self.r.pitch else (0, 1)
        if self.r.layout.on_chip:
            address, pitch = self.r.address(start, rows[0], columns[0]), self.r.pitch
        else:
            address, pitch = self.r_tiles.get((start, rows, columns), step), self.r.pitch and columns[1]
        walk = {"r_base": address, "r_x": pitch, "r_n": self.n}
        return walk | self.layer.residual.fields


def matmul_steps(context: CodegenContext, layer: MatmulLayer) -> list[TileStep]:
    """Generate the steps of a matrix product."""
    return MatmulSteps(context, layer).steps()


KIND = LayerKind(
    name="matmul",
    layer=MatmulLayer,
    lowerings={"matmul": Lowering(lower_matmul, ElementTypes((BYTES,), (*BYTES, "int32")))},
    tilings=matmul_tilings,
    tile_model=matmul_tile_model,
    steps=matmul_steps,
    rank_by_tile_model=True,
)

#: Maximum length of a cumulative sum; the number of elements of its triangular matrix in DRAM is the square of it.
_MAX_LENGTH = 2048


def lower_cumsum(low: LoweringContext) -> ConvLayer:
    """Lower a cumulative sum to a product with a triangular matrix of ones.

    Raises
    ------
    UnsupportedLoweringError
        The sum is not along the last dimension, or the dimension is too large.
    """
    a, x = low.anchor.attributes, low.x
    if a["axis"] % len(x.shape) != len(x.shape) - 1:
        raise UnsupportedLoweringError("cumulative sums must be along the last dimension")
    size = x.shape[-1]
    if size > _MAX_LENGTH:
        raise UnsupportedLoweringError(f"{size:,} elements are cumulated, more than {_MAX_LENGTH:,}")
    ones = np.tril(np.ones((size, size), np.int8), -1 if a["exclusive"] else 0)
    data = np.ascontiguousarray(ones.T if a["reverse"] else ones)
    triangle = Tensor(f"{low.anchor.name}:triangle", data.shape, "int8", Quantization.per_tensor(1.0), data)
    drain = drain_of(low, triangle, None, rounding_of(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    return ConvLayer(**common, weights=data[:, None, None, :], drain=drain, x_zp=affine(x).zero_point)


LOWERINGS = {"cumsum": Lowering(lower_cumsum, BYTES_TO_BYTES, epilogue=True)}
