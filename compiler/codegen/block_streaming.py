"""Producer-consumer tiling: a layer reads the result of the layer before it in blocks, of which some are in memory.

A depthwise convolution reads the result of a convolution in groups of channel blocks. A softmax reads the scores of a
matrix product, and a matrix product the result of a softmax, in blocks of rows.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from compiler.commands.commands import BufferMemory, CircularBuffer, RowBlocks, TensorLayout, TileStep
from compiler.ir.tensor import Tensor
from compiler.layers.base import Image, Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer, Stack
from compiler.layers.softmax import MAX_SAME_UNIT, SoftmaxLayer
from compiler.lowering.lower import LoweredNetwork
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.errors import InputError
from hw.isa.enums import DTYPE_BYTES


def streamed_layers(
    n: int, lowered: LoweredNetwork, schedules: Mapping[str, LayerSchedule]
) -> dict[int, int]:
    """Return the blocks per group of the layers whose results are streamed in channel blocks, by layer index.

    Raises
    ------
    InputError
        A schedule requests streaming where it is not possible; the message gives the reason.
    """
    out = {}
    for number, layer in enumerate(lowered.layers):
        if schedules[layer.name].stream_channel_blocks:
            why, group = _refused(n, lowered, schedules, number)
            if why:
                raise InputError(f"schedule: layer {layer.name!r} cannot stream channel blocks: {why}")
            out[number] = group
    return out


def _refused(
    n: int, lowered: LoweredNetwork, schedules: Mapping[str, LayerSchedule], number: int
) -> tuple[str, int]:
    """Return the reason why a layer's result cannot be streamed (empty if it can), and the blocks per group."""
    layer, after = lowered.layers[number], lowered.layers[number + 1 : number + 2]
    if not isinstance(layer, ConvLayer) or layer.groups > 1 or layer.batch > 1:
        return "it is not a convolution of one group and one image", 0
    why = _needed(lowered, layer)
    reader = after[0] if after else None
    if why or not isinstance(reader, DepthwiseLayer) or reader.x != layer.y:
        return why or "the next layer is not a depthwise convolution that reads it", 0
    if reader.dilations != (1, 1) or reader.multiplier > 1:
        return "the depthwise convolution is dilated or has several outputs per channel", 0
    mine, its = schedules[layer.name], schedules[reader.name]
    y = layer.shapes[layer.y]
    if DTYPE_BYTES[y.dtype] != 1 or mine.pixels_per_pass > 1 or mine.interleave or its.interleave:
        return "it has wide elements, packed pixels or an interleaved schedule", 0
    blocks = ceil_div(y.c, n)
    group = min(mine.columns, blocks)
    if mine.order != "channels" and group < blocks:
        return 'its order must be "channels"', 0
    if min(its.columns, blocks) != group or mine.stream_channel_blocks % group:
        return "columns of both layers must be equal, and stream_channel_blocks a multiple of them", 0
    return "", group


def _needed(lowered: LoweredNetwork, layer: Layer) -> str:
    """Return the reason why the result of a layer must be stored as a whole; empty if there is none."""
    graph, name = lowered.graph, layer.y
    others = (*lowered.views.values(), *(part.container for part in lowered.parts.values()))
    if name in graph.outputs or name in lowered.views or name in lowered.parts or name in others:
        return "its result has other uses"
    users = [each for each in lowered.layers if name in each.inputs]
    return "" if len(users) == 1 else "its result has other readers"


def layout_of(n: int, tensor: Tensor, image: Image, schedule: LayerSchedule) -> TensorLayout:
    """Return the layout of a streamed result: one tile for each block of channels."""
    buffer = CircularBuffer(
        BufferMemory.SP,
        tensor.name,
        image.h * image.w * n,
        min(schedule.stream_channel_blocks, ceil_div(image.c, n)),
    )
    return TensorLayout(buffer, image.h, image.w, image.c, n, image.w * n, channel_block=n)


def interleave_blocks(
    first: Sequence[TileStep], second: Sequence[TileStep], ahead: int
) -> list[tuple[int, TileStep]]:
    """Interleave the steps of two layers by groups, with layer 0 up to `ahead` groups ahead of layer 1."""
    groups = [
        [list(group) for _, group in groupby(steps, key=lambda step: step.block)] for steps in (first, second)
    ]
    out: list[tuple[int, TileStep]] = []
    for number in range(len(groups[0]) + ahead):
        for layer, at in ((0, number), (1, number - ahead)):
            if 0 <= at < len(groups[layer]):
                out += [(layer, step) for step in groups[layer][at]]
    return out


def row_streams(
    n: int, lowered: LoweredNetwork, schedules: Mapping[str, LayerSchedule]
) -> dict[int, RowBlocks]:
    """Return the blocks of rows of the layers whose results are streamed in blocks of rows, by layer index.

    Raises
    ------
    InputError
        A schedule requests streaming where it is not possible; the message gives the reason.
    """
    out: dict[int, RowBlocks] = {}
    for number, layer in enumerate(lowered.layers):
        mine = schedules[layer.name]
        if not mine.stream_row_blocks:
            continue
        why = row_stream_obstacle(lowered, number) if mine.on_chip else "its result is not on chip"
        if not why:
            first, second = lowered.layers[number : number + 2]
            softmax, product = (first, second) if isinstance(first, SoftmaxLayer) else (second, first)
            assert isinstance(product, MatmulLayer)
            rows = product.size[0]
            blocks = out.get(number - 1, RowBlocks(min(schedules[product.name].rows, rows), rows))
            out[number] = blocks
            if blocks.matrix_rows != rows:
                why = "its matrices differ from those of its input"
            elif schedules[softmax.name].columns < ceil_div(softmax.shapes[softmax.x].c, n):
                why = "the softmax has tiles of parts of rows"
        if why:
            raise InputError(f"schedule: layer {layer.name!r} cannot stream blocks of rows: {why}")
    return out


def row_stream_obstacle(lowered: LoweredNetwork, number: int) -> str:
    """Return the reason why a layer and the next one cannot stream blocks of rows; an empty string if they can."""
    layer, after = lowered.layers[number], lowered.layers[number + 1 : number + 2]
    reader = after[0] if after else None
    if isinstance(layer, MatmulLayer) and isinstance(reader, SoftmaxLayer) and reader.x == layer.y:
        why, columns = _uneven(layer.out, layer.size[0], layer.size[2]), layer.size[2]
    elif isinstance(layer, SoftmaxLayer) and isinstance(reader, MatmulLayer) and reader.a.name == layer.y:
        why, columns = _uneven(reader.a, reader.size[0], reader.size[1]), reader.size[1]
        other = reader.summand.name if reader.summand else ""
        why = "the product reads it as another operand too" if layer.y in (reader.b.name, other) else why
    else:
        return "it is not a matrix product before a softmax, or a softmax before a matrix product"
    if any(isinstance(each, SoftmaxLayer) and each.across for each in (layer, reader)):
        return "the softmax is not over the columns of the product"
    if columns > MAX_SAME_UNIT or DTYPE_BYTES[layer.shapes[layer.y].dtype] != 1:
        return "its elements or rows are too large"
    return why or _needed(lowered, layer)


def _uneven(stack: Stack, rows: int, columns: int) -> str:
    """Return the reason why the matrices of a stack are not contiguous in its tensor; empty if they are."""
    size = rows * columns
    even = stack.pitch == columns and stack.starts == tuple(range(0, size * len(stack.starts), size))
    return "" if even else "its matrices are not contiguous"


def row_blocks_layout(n: int, tensor: Tensor, image: Image, blocks: RowBlocks, count: int) -> TensorLayout:
    """Return the layout of a result that is streamed in blocks of rows, `count` of which are in memory.

    FUSE reads whole rows of N bytes, so that there are N bytes after each block.
    """
    size = ceil_div(blocks.rows * image.c, n) * n + n
    total = ceil_div(blocks.matrix_rows, blocks.rows) * (image.h * image.w // blocks.matrix_rows)
    buffer = CircularBuffer(BufferMemory.SP, tensor.name, size, min(count, total))
    return TensorLayout(buffer, image.h, image.w, image.c, image.c, image.w * image.c, row_blocks=blocks)


def interleave_row_blocks(chain: Sequence[Sequence[TileStep]]) -> list[tuple[int, TileStep]]:
    """Return the steps of a chain of layers that stream blocks of rows: for each block, the steps of all layers."""
    each = [(layer, step) for layer, steps in enumerate(chain) for step in steps]
    return sorted(each, key=lambda entry: entry[1].block)
