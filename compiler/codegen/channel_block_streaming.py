"""Producer-consumer tiling: a depthwise convolution reads the result of a convolution in groups of channel blocks."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from compiler.commands.commands import BufferMemory, CircularBuffer, TensorLayout, TileStep
from compiler.ir.tensor import Tensor
from compiler.layers.base import Image, Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
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
