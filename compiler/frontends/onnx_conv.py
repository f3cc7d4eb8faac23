"""ONNX convolutions and pooling: windows that slide over images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.frontends.build import same_pads
from compiler.frontends.onnx_emit import Emitter
from compiler.frontends.onnx_file import FileNode
from compiler.frontends.onnx_registry import choice, converts, known
from compiler.frontends.onnx_shape import renamed, with_ones, without_ones
from compiler.frontends.onnx_values import Fixed, Flow, Kind, UnsupportedError, Value, channels_last
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError, shown

#: Sizes, strides and pads beyond this are damage.
_MOST = 1 << 24


@dataclass(frozen=True)
class Window:
    """How a window slides over the spatial dimensions; each field has one entry a dimension."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def pads(self) -> tuple[int, ...]:
        """Top, left, bottom, right."""
        return (*self.before, *self.after)


def sizes_of(node: FileNode, key: str, count: int, default: int, least: int) -> tuple[int, ...]:
    """An attribute with one size for each spatial dimension."""
    sizes = node.ints(key) or (default,) * count
    if len(sizes) != count or any(not least <= size < _MOST for size in sizes):
        raise InputError(f"{key} must be {count} integers of at least {least}, not {shown(list(sizes))}")
    return sizes


def window(node: FileNode, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window of a convolution or pooling over spatial dimensions of these sizes."""
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
        room = size + before[i] + after[i] - (k - 1) * dilation - 1
        if room < 0:
            raise InputError(f"window {list(kernel)} does not fit {list(sizes)} with pads {list(pads)}")
        steps = room // stride
        if node.int("ceil_mode", 0) and room % stride and (steps + 1) * stride < size + before[i]:
            steps += 1
            after[i] += stride - room % stride
        outputs.append(steps + 1)
    return Window(kernel, strides, dilations, before, tuple(after), tuple(outputs))


def as_images(emitter: Emitter, node: FileNode, x: Value) -> Flow:
    """A value as images, its channels last in the graph; one spatial dimension becomes two."""
    x = emitter.flow(x)
    if x.rank == 3:
        x = emitter.movable(emitter.in_order(x, channels_last(3)))
        x = emitter.flow(with_ones(emitter, x.name, x, {2}))
    if x.rank != 4:
        raise UnsupportedError(f"windows over shape {list(x.shape)}")
    return emitter.in_order(x, channels_last(4))


def as_given(emitter: Emitter, node: FileNode, made: Flow, x: Value) -> Value:
    """Images in as many dimensions as the file's input has."""
    name = node.outputs[0]
    return without_ones(emitter, name, made, {2}) if len(x.shape) == 3 else renamed(made, name)


def flat(value: Window, rank: int) -> Window:
    """A window over one spatial dimension as one over two."""
    if rank == 4:
        return value
    return Window((1, *value.kernel), (1, *value.strides), (1, *value.dilations), (0, *value.before),
                  (0, *value.after), (1, *value.outputs))  # fmt: skip


def weights_of(emitter: Emitter, value: Fixed, kind: Kind) -> Fixed:
    """Weights for a node that computes in a kind; unsigned ones become signed, which changes no number."""
    q = value.quantization
    if not kind.real or q is None:
        return Fixed(value.name, value.real())
    if value.data.dtype == np.uint8:
        moved = (value.data.astype(np.int16) - 128).astype(np.int8)
        return Fixed(value.name, moved, Quantization(q.scale, tuple(z - 128 for z in q.zero_point), q.axis))
    return value


def bias_of(emitter: Emitter, value: Value, x: Tensor, weights: Fixed, count: int, kind: Kind) -> Tensor:
    """A bias: int32 in the scale of the products where those are integers."""
    bias = known(value, "a bias")
    if bias.data.size != count:
        raise InputError(f"its bias must be {count} numbers, not shape {list(bias.shape)}")
    bias = Fixed(bias.name, bias.data.reshape(count), bias.quantization)
    q, x_q = weights.quantization, x.quantization
    if not kind.real or q is None or x_q is None:
        return emitter.constant(bias.name, Fixed(bias.name, bias.real()))
    scales = tuple(float(np.float32(x_q.scale[0]) * np.float32(s)) for s in q.scale)
    meaning = Quantization(scales, (0,) * len(scales), 0 if len(scales) > 1 else None)
    own = bias.quantization
    if (
        own is not None
        and bias.data.dtype == np.int32
        and not any(own.zero_point)
        and _same(own.scale, scales)
    ):
        return emitter.constant(bias.name, Fixed(bias.name, bias.data, meaning))
    steps = np.rint(bias.real().astype(np.float64) / np.array(scales))
    if not np.isfinite(steps).all() or np.abs(steps).max() >= 1 << 31:
        raise InputError(f"bias {bias.name!r} does not fit int32 in the scale of the products")
    return emitter.constant(bias.name, Fixed(bias.name, steps.astype(np.int32), meaning))


def _same(own: tuple[float, ...], scales: tuple[float, ...]) -> bool:
    return len(own) in (1, len(scales)) and np.allclose(own, scales, rtol=1e-6, atol=0.0)


def _grouped(node: FileNode, x: Flow, channels: int, outputs: int) -> int:
    """Number of groups."""
    groups = node.int("group", 1)
    if groups < 1 or x.shape[1] != channels or channels % groups or outputs % groups:
        raise InputError(f"{groups} groups of {channels} channels to {outputs} do not fit x {list(x.shape)}")
    return groups


def _kernel(node: FileNode, weights: Fixed) -> tuple[int, ...]:
    kernel = node.ints("kernel_shape") or weights.shape[2:]
    if kernel != weights.shape[2:] or min(weights.shape) < 1:
        raise InputError(f"kernel_shape {shown(list(kernel))} does not fit weights {list(weights.shape)}")
    return kernel


def _checked_weights(x: Value, w: Value | None) -> Fixed:
    weights = known(w, "a kernel")
    if len(weights.shape) != len(x.shape) or len(x.shape) not in (3, 4):
        if len(weights.shape) == len(x.shape) == 5:
            raise UnsupportedError("a convolution over three dimensions")
        raise InputError(f"weights {list(weights.shape)} do not fit x {list(x.shape)}")
    return weights


@converts("Conv", inputs=(2, 3))
def _conv(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    given, w, bias = inputs
    weights = _checked_weights(given, w)
    slide = flat(window(node, given.shape[2:], _kernel(node, weights)), len(given.shape))
    x = as_images(emitter, node, given)
    outputs, share = weights.shape[:2]
    groups = _grouped(node, x, share * node.int("group", 1), outputs)
    kind = _conv_kind(emitter, node, x, weights, 0)
    weights = weights_of(emitter, weights.reshaped((outputs, share, *slide.kernel)), kind)
    biases = [] if bias is None else [bias_of(emitter, bias, x.tensor, weights, outputs, kind)]
    common: dict[str, Any] = {"strides": slide.strides, "pads": slide.pads, "dilations": slide.dilations}
    if share == 1 and groups == outputs:
        op = "depthwise_conv2d"
        q = weights.quantization
        moved = None if q is None else Quantization(q.scale, q.zero_point, None if q.whole else 2)
        filters = Fixed(weights.name, weights.data[:, 0].transpose(1, 2, 0), moved)
    else:
        op, filters = "conv2d", weights.transposed((0, 2, 3, 1))
        common |= {"groups": groups}
    operands = [emitter.operand(x, x.order, kind), emitter.constant(weights.name, filters), *biases]
    shape = (x.shape[0], outputs, *slide.outputs)
    return [as_given(emitter, node, emitter.emit(node, op, operands, shape, x.order, kind, **common), given)]


def _conv_kind(emitter: Emitter, node: FileNode, x: Flow, weights: Fixed, axis: int) -> Kind:
    """Integers only if the scales of the weights, where several, are those of the outputs."""
    q = weights.quantization
    if q is None or q.axis not in (None, axis):
        weights = Fixed(weights.name, np.zeros(2)) if q is None else Fixed(weights.name, weights.real())
    return emitter.arithmetic(node, x, weights)


@converts("ConvTranspose", inputs=(2, 3))
def _conv_transpose(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    given, w, bias = inputs
    weights, rank = _checked_weights(given, w), len(given.shape)
    kernel = _kernel(node, weights)
    slide, more = _transposed_window(node, given.shape[2:], kernel)
    slide, more = flat(slide, rank), (0, *more) if rank == 3 else more
    x = as_images(emitter, node, given)
    channels, share = weights.shape[:2]
    groups = _grouped(node, x, channels, share * node.int("group", 1))
    outputs = share * groups
    kind = _conv_kind(emitter, node, x, weights, 1 if groups == 1 else -1)
    filters = weights_of(emitter, weights.reshaped((channels, share, *slide.kernel)), kind)
    if groups == 1:
        filters = filters.transposed((1, 2, 3, 0))
    else:
        parts = filters.data.reshape(groups, channels // groups, share, *slide.kernel)
        q = None if filters.quantization is None or not filters.quantization.whole else filters.quantization
        filters = Fixed(filters.name, parts.transpose(0, 2, 3, 4, 1).reshape(outputs, *slide.kernel, -1), q)
    biases = [] if bias is None else [bias_of(emitter, bias, x.tensor, filters, outputs, kind)]
    made = emitter.emit(
        node, "conv_transpose2d",
        [emitter.operand(x, x.order, kind), emitter.constant(weights.name, filters), *biases],
        (x.shape[0], outputs, *slide.outputs), x.order, kind, strides=slide.strides, pads=slide.pads,
        dilations=slide.dilations, groups=groups, output_pads=more,
    )  # fmt: skip
    return [as_given(emitter, node, made, given)]


def _transposed_window(
    node: FileNode, sizes: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[Window, tuple[int, ...]]:
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
                raise UnsupportedError(f"an output of size {wanted[i]}, larger than {whole},")
            half = cut // 2
            before[i], after[i] = (cut - half, half) if auto == "SAME_LOWER" else (half, cut - half)
        elif auto == "VALID":
            before[i] = after[i] = 0
        outputs.append(whole - before[i] - after[i])
    return Window(kernel, strides, dilations, tuple(before), tuple(after), tuple(outputs)), more
