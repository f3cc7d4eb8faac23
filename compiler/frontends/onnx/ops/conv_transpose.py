"""ONNX transposed convolutions."""

from collections.abc import Sequence
from typing import Any

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.conv import (
    WindowSpec,
    as_given,
    as_images,
    bias_of,
    checked_weights,
    flat,
    grouped,
    kernel_of,
    product_kind,
    sizes_of,
    weights_of,
)
from compiler.frontends.onnx.registry import choice, converts
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError, Value


@converts("ConvTranspose", inputs=(2, 3))
def _conv_transpose(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    given, w, bias = inputs
    weights, rank = checked_weights(given, w), len(given.shape)
    kernel = kernel_of(node, weights)
    slide, more = _transposed_window(node, given.shape[2:], kernel)
    slide, more = flat(slide, rank), (0, *more) if rank == 3 else more
    x = as_images(emitter, node, given)
    channels, share = weights.shape[:2]
    groups = grouped(node, x, channels, share * node.int("group", 1))
    outputs = share * groups
    kind = product_kind(emitter, node, x, weights, 1 if groups == 1 else -1)
    filters = weights_of(weights.reshaped((channels, share, *slide.kernel)), kind)
    if groups == 1:
        filters = filters.transposed((1, 2, 3, 0))
    else:
        parts = filters.data.reshape(groups, channels // groups, share, *slide.kernel)
        q = None if filters.quantization is None or not filters.quantization.whole else filters.quantization
        filters = ConstantValue(
            filters.name, parts.transpose(0, 2, 3, 4, 1).reshape(outputs, *slide.kernel, -1), q
        )
    biases = [] if bias is None else [bias_of(emitter, bias, x.tensor, filters, outputs, kind)]
    made = emitter.emit(
        node,
        "conv_transpose2d",
        [emitter.operand(x, x.order, kind), emitter.constant(weights.name, filters), *biases],
        (x.shape[0], outputs, *slide.outputs),
        x.order,
        kind,
        strides=slide.strides,
        pads=slide.pads,
        dilations=slide.dilations,
        groups=groups,
        output_pads=more,
    )
    return [as_given(emitter, node, made, given)]


def _transposed_window(
    node: FileNode, sizes: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[WindowSpec, tuple[int, ...]]:
    """The window of a transposed convolution, its pads cut from the output, and what is added to the output's ends."""
    count = len(sizes)
    strides, dilations = (sizes_of(node, key, count, 1, 1) for key in ("strides", "dilations"))
    pads, more = sizes_of(node, "pads", 2 * count, 0, 0), sizes_of(node, "output_padding", count, 0, 0)
    auto = choice(node, "auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    wanted = node.ints("output_shape")
    if auto.startswith("SAME") and not wanted:
        wanted = tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    wanted = wanted and wanted[-count:]
    before, after, outputs = list(pads[:count]), list(pads[count:]), []
    for i in range(count):
        whole = (sizes[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + more[i]
        if wanted:
            cut = whole - wanted[i]
            if cut < 0:
                raise UnsupportedNodeError(
                    f"size {i + 1} of its output must be at most {whole}, not {wanted[i]}"
                )
            half = cut // 2
            before[i], after[i] = (cut - half, half) if auto == "SAME_LOWER" else (half, cut - half)
        elif auto == "VALID":
            before[i] = after[i] = 0
        outputs.append(whole - before[i] - after[i])
    return WindowSpec(kernel, strides, dilations, tuple(before), tuple(after), tuple(outputs)), more
