"""Convolutions, dense layers and matrix products.

Sums of products of integers are matrix products in double precision: exact below 2**53, and far faster than numpy's
own integer ones.
"""

import numpy as np

from compiler.host.call import Array, Call, Operator, Real
from compiler.host.fixed import Int64, multiplied, multiplied_16, multiplied_away, multiplied_real
from compiler.host.window import padded, tap, window_outputs


def _factor(call: Call, index: int, integers: bool) -> Real:
    return (call.centred(index) if integers else call.numbers(index)).astype(np.float64)


def _integers(call: Call) -> bool:
    """Products are of stored integers: everything is quantized, or the sums themselves are wanted."""
    return call.quantized(2) or (call.output.quantization is None and call.output.dtype.startswith("int"))


def _biased(call: Call, sums: Real, integers: bool) -> Real:
    return sums + _factor(call, 2, integers) if len(call.values) > 2 else sums


def _ratio(call: Call, dtype: type) -> Array:
    """Scale of a product over that of the output, for each output channel, in that precision."""
    q = call.tensors[1].quantization
    assert q is not None
    weights = np.array(q.scale, np.float32).astype(dtype)
    return dtype(call.scale(0)) * weights / dtype(call.output_scale)


def _settled(call: Call, sums: Real, integers: bool) -> Array:
    """The result of biased sums, requantized where the node is."""
    if not integers:
        return sums
    whole = sums.astype(np.int64)
    if call.output.quantization is None:
        return whole
    return _requantized(call, whole) + call.output_zero


def _requantized(call: Call, sums: Int64) -> Int64:
    """Sums in the output's scale, as each of LiteRT's kernels rounds."""
    # XNNPACK has products of two tensors only where the second has no zero point.
    in_xnnpack = call.delegated and (call.node.op != "matmul" or call.zero(1) == 0)
    if in_xnnpack or call.kernels == "onnxruntime":
        return multiplied_real(sums, _ratio(call, np.float32))
    ratio = _ratio(call, np.float64)
    if call.node.op == "dense":
        return multiplied_away(sums, ratio)
    if call.tensors[0].dtype == "int16" and (len(call.values) < 3 or call.tensors[2].dtype == "int64"):
        return multiplied_16(sums, ratio)
    return multiplied(sums, ratio)


def conv2d(call: Call) -> Array:
    """Convolution; weights (outputs, kernel height, kernel width, inputs of a group)."""
    integers, groups = _integers(call), call["groups"]
    x, weights = padded(_factor(call, 0, integers), call["pads"]), _factor(call, 1, integers)
    out_c, kernel_h, kernel_w, in_c = weights.shape
    size = window_outputs(call, (kernel_h, kernel_w))
    points = x.shape[0] * size[0] * size[1]
    split = weights.reshape(groups, out_c // groups, kernel_h, kernel_w, in_c)
    sums = np.zeros((groups, points, out_c // groups))
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            columns = tap(call, x, size, ky, kx).reshape(points, groups, in_c).swapaxes(0, 1)
            sums += columns @ split[:, :, ky, kx].swapaxes(1, 2)
    image = sums.swapaxes(0, 1).reshape(x.shape[0], *size, out_c)
    return _settled(call, _biased(call, image, integers), integers)


def depthwise_conv2d(call: Call) -> Array:
    """Convolution of each channel; weights (kernel height, kernel width, channels)."""
    integers = _integers(call)
    x, weights = padded(_factor(call, 0, integers), call["pads"]), _factor(call, 1, integers)
    size = window_outputs(call, weights.shape[:2])
    sums = np.zeros((x.shape[0], *size, x.shape[3]))
    for ky, kx in np.ndindex(*weights.shape[:2]):
        sums += tap(call, x, size, ky, kx) * weights[ky, kx]
    return _settled(call, _biased(call, sums, integers), integers)


def conv_transpose2d(call: Call) -> Array:
    """Transposed convolution: each input pixel adds the kernel, times its value, to the output around it."""
    integers, groups = _integers(call), call["groups"]
    x, weights = _factor(call, 0, integers), _factor(call, 1, integers)
    out_c, kernel_h, kernel_w, in_c = weights.shape
    batch, height, width = x.shape[:3]
    (sy, sx), (dy, dx) = call["strides"], call["dilations"]
    columns = x.reshape(-1, groups, in_c).swapaxes(0, 1)
    split = weights.reshape(groups, out_c // groups, kernel_h, kernel_w, in_c)
    extra = tuple(call["output_pads"]) or (0, 0)
    whole = np.zeros(
        (
            batch,
            (height - 1) * sy + (kernel_h - 1) * dy + 1 + extra[0],
            (width - 1) * sx + (kernel_w - 1) * dx + 1 + extra[1],
            out_c,
        )
    )
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            part = (columns @ split[:, :, ky, kx].swapaxes(1, 2)).swapaxes(0, 1)
            rows = slice(ky * dy, ky * dy + (height - 1) * sy + 1, sy)
            whole[:, rows, kx * dx : kx * dx + (width - 1) * sx + 1 : sx] += part.reshape(
                batch, height, width, out_c
            )
    top, left, bottom, right = call["pads"]
    image = whole[:, top : whole.shape[1] - bottom, left : whole.shape[2] - right]
    return _settled(call, _biased(call, image, integers), integers)


def dense(call: Call) -> Array:
    """The last dimension times transposed weights (outputs, inputs)."""
    integers = _integers(call)
    sums = _factor(call, 0, integers) @ _factor(call, 1, integers).T
    return _settled(call, _biased(call, sums, integers), integers)


def matmul(call: Call) -> Array:
    """Product of two stacks of matrices, whose leading dimensions broadcast."""
    integers = _integers(call)
    return _settled(call, _factor(call, 0, integers) @ _factor(call, 1, integers), integers)


CONV: dict[str, Operator] = {
    "conv2d": conv2d,
    "depthwise_conv2d": depthwise_conv2d,
    "conv_transpose2d": conv_transpose2d,
    "dense": dense,
    "matmul": matmul,
}
