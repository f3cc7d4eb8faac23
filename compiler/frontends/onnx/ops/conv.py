"""Conversion of ONNX convolutions and transposed convolutions, and sliding windows, which pooling also uses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.frontends.builder import same_pads
from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.indexing import check_count
from compiler.frontends.onnx.ops.shape import renamed, with_ones, without_ones
from compiler.frontends.onnx.registry import choice, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    BlockWeights,
    ConstantValue,
    DynamicValue,
    Order,
    UnsupportedNodeError,
    Value,
    ValueType,
    channels_last,
    check_size,
)
from compiler.ir.tensor import MAX_ELEMENTS, Quantization, Tensor
from compiler.util.scaling import signed_blocks
from hw.errors import InputError, shown

#: Exclusive limit on kernel sizes, strides, dilations and pads; larger values indicate a damaged file.
_MAX_SIZE = 1 << 24


@dataclass(frozen=True)
class WindowSpec:
    """Sliding window of a convolution or pooling; each field has one entry per spatial dimension.

    Parameters
    ----------
    kernel : tuple of int
        Size of the window, in elements.
    strides : tuple of int
        Distance between adjacent windows, in elements.
    dilations : tuple of int
        Distance between elements of a window.
    before, after : tuple of int
        Padding before and after the input, in elements.
    outputs : tuple of int
        Number of window positions.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def pads(self) -> tuple[int, ...]:
        """Padding in the order top, left, bottom, right."""
        return (*self.before, *self.after)


def sizes_of(node: FileNode, key: str, count: int, default: int, least: int) -> tuple[int, ...]:
    """Return an attribute of `count` integers, each at least `least`; if it is not set, all are `default`."""
    sizes = node.ints(key) or (default,) * count
    if len(sizes) != count or any(not least <= size < _MAX_SIZE for size in sizes):
        raise InputError(
            f"{key} must be {count} integers of at least {least} and less than {_MAX_SIZE:,}, not {shown(list(sizes))}"
        )
    return sizes


def window(node: FileNode, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> WindowSpec:
    """Return the window of a convolution or pooling over spatial dimensions of the given sizes."""
    count = len(sizes)
    strides, dilations = (sizes_of(node, key, count, 1, 1) for key in ("strides", "dilations"))
    pads = sizes_of(node, "pads", 2 * count, 0, 0)
    auto = choice(node, "auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto.startswith("SAME"):
        pairs = [same_pads(*v) for v in zip(sizes, kernel, strides, dilations, strict=True)]
        pads = tuple(low for low, _ in pairs) + tuple(high for _, high in pairs)
        if auto == "SAME_LOWER":
            pads = pads[count:] + pads[:count]
    elif auto == "VALID":
        pads = (0,) * (2 * count)
    before, after, outputs = pads[:count], list(pads[count:]), []
    for i, (size, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        travel = size + before[i] + after[i] - (k - 1) * dilation - 1
        if travel < 0:
            raise InputError(f"window {list(kernel)} does not fit {list(sizes)} with pads {list(pads)}")
        steps = travel // stride
        if node.int("ceil_mode", 0) and travel % stride and (steps + 1) * stride < size + before[i]:
            steps += 1
            after[i] += stride - travel % stride
        outputs.append(steps + 1)
    padded = [low + size + high for low, size, high in zip(before, sizes, after, strict=True)]
    if math.prod(padded) > MAX_ELEMENTS:
        raise InputError(
            f"with pads {list(pads)}, {list(sizes)} would be more than {MAX_ELEMENTS:,} elements"
        )
    return WindowSpec(kernel, strides, dilations, before, tuple(after), tuple(outputs))


def as_images(emitter: OnnxGraphBuilder, node: FileNode, x: Value) -> DynamicValue:
    """Return a value as channels-last images, with a second spatial dimension if it has only one."""
    x = emitter.flow(x)
    if x.rank == 3:
        x = emitter.movable(emitter.in_order(x, channels_last(3)))
        x = emitter.flow(with_ones(emitter, x.name, x, {2}))
    if x.rank != 4:
        raise UnsupportedNodeError(
            f"its input must have one or two spatial dimensions, not shape {list(x.shape)}"
        )
    return emitter.in_order(x, channels_last(4))


def as_given(emitter: OnnxGraphBuilder, node: FileNode, made: DynamicValue, x: Value) -> Value:
    """Return the resulting images `made` with the same rank as the input x in the file."""
    name = node.outputs[0]
    return without_ones(emitter, name, made, {2}) if len(x.shape) == 3 else renamed(made, name)


def flat(value: WindowSpec, rank: int) -> WindowSpec:
    """Return a window over one spatial dimension as a window over two dimensions; other windows are unchanged."""
    if rank == 4:
        return value
    return WindowSpec(
        (1, *value.kernel),
        (1, *value.strides),
        (1, *value.dilations),
        (0, *value.before),
        (0, *value.after),
        (1, *value.outputs),
    )


def product_kind(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, weights: ConstantValue, axis: int
) -> ValueType:
    """Return the type in which x is multiplied by weights.

    The type is quantized integers if x and the weights are quantized, and the weights have a single scale or one scale
    per output along the given axis. Otherwise, the type is float32.
    """
    q = weights.quantization
    if q is None or q.axis not in (None, axis):
        return FLOAT
    kind = emitter.arithmetic(node, x)
    return kind if kind.real else FLOAT


def weights_of(value: ConstantValue, kind: ValueType, axis: int) -> ConstantValue:
    """Return weights for a node that computes in type `kind`, whose output channels are along `axis`.

    For integer arithmetic, uint8 is converted to int8 by a shifted zero point. In floating point, 8-bit integers with a
    single scale or one scale per output remain, so that the quantization of a float model keeps them.
    """
    q = value.quantization
    if q is None:
        return ConstantValue(value.name, value.real())
    if not kind.real:
        kept = value.data.dtype in (np.int8, np.uint8) and q.axis in (None, axis)
        return ConstantValue(value.name, value.data, q) if kept else ConstantValue(value.name, value.real())
    if value.data.dtype == np.uint8:
        shifted = (value.data.astype(np.int16) - 128).astype(np.int8)
        return ConstantValue(
            value.name, shifted, Quantization(q.scale, tuple(z - 128 for z in q.zero_point), q.axis)
        )
    return value


def bias_of(
    emitter: OnnxGraphBuilder, value: Value, x: Tensor, weights: ConstantValue, count: int, kind: ValueType
) -> Tensor:
    """Return a bias as int32 in the scale of the products if the products are integers, or as float32 otherwise."""
    bias = known(value, "a bias")
    if bias.data.size != count:
        raise InputError(f"its bias must be {count} numbers, not shape {list(bias.shape)}")
    bias = ConstantValue(bias.name, bias.data.reshape(count), bias.quantization)
    q, x_q = weights.quantization, x.quantization
    if not kind.real or q is None or x_q is None:
        return emitter.constant(bias.name, ConstantValue(bias.name, bias.real()))
    scales = tuple(float(np.float32(x_q.scale[0]) * np.float32(s)) for s in q.scale)
    meaning = Quantization(scales, (0,) * len(scales), 0 if len(scales) > 1 else None)
    own = bias.quantization
    if (
        own is not None
        and bias.data.dtype == np.int32
        and not any(own.zero_point)
        and _same(own.scale, scales)
    ):
        return emitter.constant(bias.name, ConstantValue(bias.name, bias.data, meaning))
    steps = np.rint(bias.real().astype(np.float64) / np.array(scales))
    if not np.isfinite(steps).all() or np.abs(steps).max() >= 1 << 31:
        raise InputError(f"bias {bias.name!r} does not fit int32 in the scale of the products")
    return emitter.constant(bias.name, ConstantValue(bias.name, steps.astype(np.int32), meaning))


def _same(own: tuple[float, ...], scales: tuple[float, ...]) -> bool:
    return len(own) in (1, len(scales)) and np.allclose(own, scales, rtol=1e-6, atol=0.0)


def block_dense(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    x: DynamicValue,
    order: Order,
    name: str,
    blocks: BlockWeights,
    bias: Value | None,
    part: str = "",
) -> DynamicValue | None:
    """Add a product, along the last dimension in `order`, with a matrix (outputs, inputs) that has scales for blocks.

    The scales remain as they are; those of a product of quantized activations become factors if the target permits
    (`compiler.quantize.rewrite.factor_blocks`). Returns None if the weights need more than 8 bits.
    """
    kind = emitter.arithmetic(node, x)
    signed = signed_blocks(blocks.values, blocks.scales, blocks.size)
    if signed is None or not (kind == FLOAT or (kind.real and x.tensor.dtype in ("int8", "uint8"))):
        return None
    values = ConstantValue(f"{name}:integers", signed)
    scales = ConstantValue(f"{name}:scales", np.abs(blocks.scales))
    outputs = len(signed)
    biases = [] if bias is None else [bias_of(emitter, bias, x.tensor, values, outputs, kind)]
    operands = [
        emitter.operand(x, order, kind),
        *(emitter.constant(each.name, each) for each in (values, scales)),
        *biases,
    ]
    shape = tuple(outputs if axis == order[-1] else size for axis, size in enumerate(x.shape))
    return emitter.emit(node, "block_dense", operands, shape, order, kind, part, block=blocks.size)


def grouped(node: FileNode, x: DynamicValue, channels: int, outputs: int) -> int:
    """Return the number of groups; raise InputError if it does not divide the channels and the outputs."""
    groups = node.int("group", 1)
    if groups < 1 or x.shape[1] != channels or channels % groups or outputs % groups:
        raise InputError(
            f"weights for {groups} groups of {channels} channels and {outputs} outputs do not match input shape "
            f"{list(x.shape)}"
        )
    return groups


def kernel_of(node: FileNode, weights: ConstantValue) -> tuple[int, ...]:
    """Return the spatial sizes of the kernel; raise InputError if the attribute contradicts the weights."""
    kernel = node.ints("kernel_shape") or weights.shape[2:]
    if kernel != weights.shape[2:] or min(weights.shape) < 1:
        raise InputError(f"kernel_shape {shown(list(kernel))} does not fit weights {list(weights.shape)}")
    return kernel


def checked_weights(x: Value, w: Value | None) -> ConstantValue:
    """Return constant weights; raise an error if they are not constant or do not have the same rank as x."""
    weights = known(w, "a kernel")
    if len(weights.shape) != len(x.shape) or len(x.shape) not in (3, 4):
        raise InputError(f"weights of shape {list(weights.shape)} do not match input shape {list(x.shape)}")
    return weights


@converts("Conv", inputs=(2, 3))
def _conv(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    given, w, bias = inputs
    if isinstance(w, DynamicValue):
        return _computed_kernel(emitter, node, inputs)
    if len(given.shape) == len(w.shape) == 5:
        return _over_volume(emitter, node, inputs)
    weights = checked_weights(given, w)
    slide = flat(window(node, given.shape[2:], kernel_of(node, weights)), len(given.shape))
    x = as_images(emitter, node, given)
    outputs, share = weights.shape[:2]
    groups = grouped(node, x, share * node.int("group", 1), outputs)
    pointwise = groups == 1 and slide.kernel == slide.strides == (1, 1) and not any(slide.pads)
    if pointwise and weights.blocks is not None and weights.blocks.axis == 1:
        found = block_dense(emitter, node, x, x.order, weights.name, weights.blocks.as_matrix(), bias)
        if found is not None:
            return [as_given(emitter, node, found, given)]
    kind = product_kind(emitter, node, x, weights, 0)
    weights = weights_of(weights.reshaped((outputs, share, *slide.kernel)), kind, 0)
    biases = [] if bias is None else [bias_of(emitter, bias, x.tensor, weights, outputs, kind)]
    common: dict[str, Any] = {"strides": slide.strides, "pads": slide.pads, "dilations": slide.dilations}
    if share == 1 and groups == outputs:
        op = "depthwise_conv2d"
        q = weights.quantization
        channel_q = None if q is None else Quantization(q.scale, q.zero_point, None if q.whole else 2)
        filters = ConstantValue(weights.name, weights.data[:, 0].transpose(1, 2, 0), channel_q)
    else:
        op, filters = "conv2d", weights.transposed((0, 2, 3, 1))
        common |= {"groups": groups}
    operands = [emitter.operand(x, x.order, kind), emitter.constant(weights.name, filters), *biases]
    shape = (x.shape[0], outputs, *slide.outputs)
    return [as_given(emitter, node, emitter.emit(node, op, operands, shape, x.order, kind, **common), given)]


#: Maximum number of elements of a kernel that is computed at run time, or of its depth over volumes.
_MAX_TAPS = 512


def _computed_kernel(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert a convolution with a kernel computed at run time to a product of gathered windows and the kernel."""
    x, w, bias = inputs
    count = len(x.shape) - 2
    if count < 1 or len(w.shape) != count + 2:
        raise InputError(f"weights of shape {list(w.shape)} do not match input shape {list(x.shape)}")
    batch, channels, *sizes = x.shape
    outputs, share, *kernel = w.shape
    if (node.ints("kernel_shape") or tuple(kernel)) != tuple(kernel):
        raise InputError(f"kernel_shape does not fit weights {list(w.shape)}")
    groups = node.int("group", 1)
    if groups < 1 or share * groups != channels or outputs % groups:
        raise InputError(
            f"weights for {groups} groups of {channels} channels and {outputs} outputs do not match input shape "
            f"{list(x.shape)}"
        )
    slide = window(node, tuple(sizes), tuple(kernel))
    if math.prod(kernel) > _MAX_TAPS:
        raise UnsupportedNodeError(
            f"a variable kernel must have at most {_MAX_TAPS} elements, not {math.prod(kernel)}"
        )
    check_size((batch, channels, math.prod(kernel), *slide.outputs))
    body = BodyBuilder(node, inputs)
    padded = body.given(0)
    if any(slide.pads):
        edges = [0, 0, *slide.before, 0, 0, *slide.after]
        padded = body.add("Pad", padded, body.constant(edges, np.int64))
    axes = body.constant(range(2, count + 2), np.int64)
    taps = []
    for place in np.ndindex(*kernel):
        starts = [i * d for i, d in zip(place, slide.dilations, strict=True)]
        ends = [s + (n - 1) * by + 1 for s, n, by in zip(starts, slide.outputs, slide.strides, strict=True)]
        spans = [body.constant(part, np.int64) for part in (starts, ends)]
        part = body.add("Slice", padded, *spans, axes, body.constant(slide.strides, np.int64))
        taps.append(body.reshaped(part, batch, groups, share, 1, math.prod(slide.outputs)))
    joined = body.add("Concat", *taps, axis=3)
    rows = body.add("Transpose", joined, perm=[1, 0, 4, 2, 3])
    places, inner = batch * math.prod(slide.outputs), share * math.prod(kernel)
    weights = body.reshaped(body.given(1), groups, outputs // groups, inner)
    product = body.add(
        "MatMul", body.reshaped(rows, groups, places, inner), body.add("Transpose", weights, perm=[0, 2, 1])
    )
    made = body.add(
        "Transpose", body.reshaped(product, groups, batch, places // batch, -1), perm=[1, 0, 3, 2]
    )
    made = body.reshaped(made, batch, outputs, *slide.outputs)
    if bias is not None:
        made = body.add("Add", made, body.reshaped(body.given(2), outputs, *[1] * count))
    body.check_exact(emitter)
    return body.converted(emitter, made)


def _over_volume(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert a convolution over three dimensions to one over two, with the planes of a window as channels."""
    x, w, bias = inputs
    weights = known(w, "a kernel")
    batch, channels, depth = x.shape[:3]
    transposed = node.op == "ConvTranspose"
    if weights.quantization is not None and not weights.quantization.whole and transposed:
        raise UnsupportedNodeError(
            "a transposed convolution over three dimensions must have one scale for all weights"
        )
    data = weights.data
    kernel, groups = data.shape[2:], node.int("group", 1)
    if (node.ints("kernel_shape") or kernel) != kernel or groups < 1 or channels % groups:
        raise InputError(f"kernel_shape or groups do not fit weights {list(w.shape)} and x {list(x.shape)}")
    if kernel[0] > _MAX_TAPS:
        raise UnsupportedNodeError(f"a kernel must be at most {_MAX_TAPS} deep, not {kernel[0]}")
    if transposed:
        slide, extra = _transposed_window(node, x.shape[2:], kernel)
        check_count(slide.outputs[0] * kernel[0])
        steps = (
            np.arange(slide.outputs[0])[:, None] + slide.before[0] - np.arange(kernel[0]) * slide.dilations[0]
        )
        planes = np.where(steps % slide.strides[0] == 0, steps // slide.strides[0], depth)
        share = data.shape[1]
        data = data.reshape(groups, channels // groups, *data.shape[1:]).transpose(0, 3, 1, 2, 4, 5)
        data = data.reshape(kernel[0] * channels, share, *kernel[1:])
    else:
        slide, extra = window(node, x.shape[2:], kernel), ()
        check_count(slide.outputs[0] * kernel[0])
        if data.shape[1] * groups != channels:
            raise InputError(f"weights of shape {list(w.shape)} do not match input shape {list(x.shape)}")
        steps = np.arange(slide.outputs[0])[:, None] * slide.strides[0] - slide.before[0]
        planes = steps + np.arange(kernel[0]) * slide.dilations[0]
        data = data.transpose(0, 2, 1, 3, 4).reshape(data.shape[0], -1, *kernel[1:])
    planes = np.where((planes >= 0) & (planes < depth), planes, depth)  # plane `depth` consists of zeros
    check_size((batch, planes.size, channels, *x.shape[3:]))
    planar = ConstantValue(f"{weights.name}:planes", np.ascontiguousarray(data), weights.quantization)
    body = BodyBuilder(node, [x, planar, bias])
    moved = body.add("Transpose", body.given(0), perm=[0, 2, 1, 3, 4])
    if (planes == depth).any():
        moved = body.add("Pad", moved, body.constant([0] * 6 + [1] + [0] * 3, np.int64))
    taken = body.add("Gather", moved, body.constant(planes.reshape(-1), np.int64), axis=1)
    split = body.reshaped(taken, batch * planes.shape[0], kernel[0], groups, channels // groups, *x.shape[3:])
    images = body.reshaped(
        body.add("Transpose", split, perm=[0, 2, 1, 3, 4, 5]), batch * planes.shape[0], -1, *x.shape[3:]
    )
    attributes: dict[str, Any] = {
        "group": groups,
        "strides": slide.strides[1:],
        "dilations": slide.dilations[1:],
        "pads": [*slide.before[1:], *slide.after[1:]],
    }
    if transposed:
        attributes["output_padding"] = extra[1:]
    biases = [body.given(2)] if bias is not None else []
    made = body.add(node.op, images, body.given(1), *biases, **attributes)
    shaped = body.reshaped(made, batch, planes.shape[0], -1, *slide.outputs[1:])
    return body.converted(emitter, body.add("Transpose", shaped, perm=[0, 2, 1, 3, 4]))


@converts("ConvTranspose", inputs=(2, 3))
def _conv_transpose(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    given, w, bias = inputs
    if len(given.shape) == len(w.shape) == 5:
        return _over_volume(emitter, node, inputs)
    weights, rank = checked_weights(given, w), len(given.shape)
    kernel = kernel_of(node, weights)
    slide, output_pads = _transposed_window(node, given.shape[2:], kernel)
    slide, output_pads = flat(slide, rank), (0, *output_pads) if rank == 3 else output_pads
    x = as_images(emitter, node, given)
    channels, share = weights.shape[:2]
    groups = grouped(node, x, channels, share * node.int("group", 1))
    outputs = share * groups
    axis = 1 if groups == 1 else -1
    kind = product_kind(emitter, node, x, weights, axis)
    filters = weights_of(weights.reshaped((channels, share, *slide.kernel)), kind, axis)
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
        output_pads=output_pads,
    )
    return [as_given(emitter, node, made, given)]


def _transposed_window(
    node: FileNode, sizes: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[WindowSpec, tuple[int, ...]]:
    """Return the window of a transposed convolution, with pads cropped from the output, and the output padding.

    Without `output_shape`, auto_pad SAME crops the output to the input's size times the stride; an output that is
    smaller is not extended, as in onnxruntime. A larger `output_shape` is output padding; onnxruntime accepts less than
    one stride of it.
    """
    count = len(sizes)
    strides, dilations = (sizes_of(node, key, count, 1, 1) for key in ("strides", "dilations"))
    pads, output_pads = (
        sizes_of(node, "pads", 2 * count, 0, 0),
        [*sizes_of(node, "output_padding", count, 0, 0)],
    )
    auto = choice(node, "auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    given = (node.ints("output_shape") or ())[-count:]
    if len(given) not in (0, count):
        raise InputError(f"output_shape must be {count} integers, not {shown(list(given))}")
    before, after, outputs = list(pads[:count]), list(pads[count:]), []
    for i in range(count):
        full = (sizes[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + output_pads[i]
        if given or auto.startswith("SAME"):
            wanted = given[i] if given else min(full, sizes[i] * strides[i])
            most = full + strides[i] - 1
            if not 0 < wanted <= most:
                raise UnsupportedNodeError(
                    f"size {i + 1} of its output must be from 1 to {most}, not {wanted}"
                )
            beyond = max(0, wanted - full)
            full, output_pads[i] = full + beyond, output_pads[i] + beyond
            crop = full - wanted
            half = crop // 2
            before[i], after[i] = (half, crop - half) if auto == "SAME_UPPER" else (crop - half, half)
        elif auto == "VALID":
            before[i] = after[i] = 0
        outputs.append(full - before[i] - after[i])
    return WindowSpec(kernel, strides, dilations, tuple(before), tuple(after), tuple(outputs)), tuple(
        output_pads
    )
