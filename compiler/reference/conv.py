"""Convolutions, dense layers and matrix products.

Sums of products of 8- and 16-bit integers are computed as matrix products in double precision, which are exact below
2**53 and much faster than numpy's integer products.
"""

import numpy as np

from compiler.reference.fixed_point import (
    KERNELS_16,
    Int64,
    kernel_16,
    multiplied,
    multiplied_away,
    multiplied_real,
)
from compiler.reference.node_invocation import Array, NodeInvocation, Operator
from compiler.reference.reduce import padded, tap, window_outputs
from compiler.util.scaling import DENSE, double_ratio


def _product_operands(call: NodeInvocation) -> tuple[Array, ...]:
    """Return the operands of a product: floating-point values or, in integer arithmetic, integers minus zero points."""
    values = [call.centred(i) if _integers(call) else call.numbers(i) for i in range(len(call.values))]
    wide = _integers(call) and any(np.dtype(tensor.dtype).itemsize > 2 for tensor in call.tensors[:2])
    return tuple(value.astype(np.int64 if wide else np.float64) for value in values)


def _integers(call: NodeInvocation) -> bool:
    """Return True if a node multiplies integers: all operands are quantized, or the output contains plain integers."""
    return call.quantized(2) or (call.output.quantization is None and call.output.dtype.startswith("int"))


def _ratio(call: NodeInvocation, *, single: bool) -> Array:
    """Return the ratio of the product's to the output's scale per output channel, in single or double precision."""
    q = call.tensors[1].quantization
    assert q is not None
    weights = np.array(q.scale, np.float32)
    if single:
        return call.scale(0) * weights / call.output_scale
    return double_ratio(call.node.op, call.tensors[0].dtype, call.scale(0), weights, float(call.output_scale))


def _with_bias(call: NodeInvocation, sums: Array, bias: tuple[Array, ...]) -> Array:
    """Add the bias, if any, to sums of products, and requantize the results if the node is quantized."""
    biased = sums + bias[0] if bias else sums
    if not _integers(call):
        return biased
    integers = biased.astype(np.int64)
    return integers if call.output.quantization is None else _requantized(call, integers) + call.output_zero


def _requantized(call: NodeInvocation, sums: Int64) -> Int64:
    """Convert sums to the output's scale, with the rounding of the selected kernels."""
    if (_ratio(call, single=False) == 1).all():
        return sums
    # XNNPACK supports products of two tensors only if the zero point of the second is 0.
    in_xnnpack = call.delegated and (call.node.op != "matmul" or call.zero(1) == 0)
    if in_xnnpack or call.kernels == "onnxruntime":
        return multiplied_real(sums, _ratio(call, single=True))
    ratio = _ratio(call, single=False)
    if call.tensors[0].dtype == "int16":
        bias = call.tensors[2].dtype if len(call.values) > 2 else None
        return KERNELS_16[kernel_16(call.node.op, bias, call.kernels)](sums, ratio)
    return multiplied_away(sums, ratio) if call.node.op in DENSE else multiplied(sums, ratio)


def conv2d(call: NodeInvocation) -> Array:
    """Compute a convolution with weights (output channels, kernel height, kernel width, input channels per group)."""
    (x, weights, *bias), groups = _product_operands(call), call["groups"]
    x = padded(x, call["pads"])
    out_c, kernel_h, kernel_w, in_c = weights.shape
    size = window_outputs(call, (kernel_h, kernel_w))
    points = x.shape[0] * size[0] * size[1]
    split = weights.reshape(groups, out_c // groups, kernel_h, kernel_w, in_c)
    sums = np.zeros((groups, points, out_c // groups), x.dtype)
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            columns = tap(call, x, size, ky, kx).reshape(points, groups, in_c).swapaxes(0, 1)
            sums += columns @ split[:, :, ky, kx].swapaxes(1, 2)
    image = sums.swapaxes(0, 1).reshape(x.shape[0], *size, out_c)
    return _with_bias(call, image, tuple(bias))


def depthwise_conv2d(call: NodeInvocation) -> Array:
    """Compute a depthwise convolution with weights (kernel height, kernel width, channels)."""
    x, weights, *bias = _product_operands(call)
    x = padded(x, call["pads"])
    size = window_outputs(call, weights.shape[:2])
    sums = np.zeros((x.shape[0], *size, x.shape[3]), x.dtype)
    for ky, kx in np.ndindex(*weights.shape[:2]):
        sums += tap(call, x, size, ky, kx) * weights[ky, kx]
    return _with_bias(call, sums, tuple(bias))


def conv_transpose2d(call: NodeInvocation) -> Array:
    """Compute a transposed convolution: each input pixel adds the kernel, times the pixel's value, to the output."""
    (x, weights, *bias), groups = _product_operands(call), call["groups"]
    out_c, kernel_h, kernel_w, in_c = weights.shape
    batch, height, width = x.shape[:3]
    (sy, sx), (dy, dx) = call["strides"], call["dilations"]
    columns = x.reshape(-1, groups, in_c).swapaxes(0, 1)
    split = weights.reshape(groups, out_c // groups, kernel_h, kernel_w, in_c)
    extra = tuple(call["output_pads"]) or (0, 0)
    full_h = (height - 1) * sy + (kernel_h - 1) * dy + 1 + extra[0]
    full_w = (width - 1) * sx + (kernel_w - 1) * dx + 1 + extra[1]
    full = np.zeros((batch, full_h, full_w, out_c), x.dtype)
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            part = (columns @ split[:, :, ky, kx].swapaxes(1, 2)).swapaxes(0, 1)
            rows = slice(ky * dy, ky * dy + (height - 1) * sy + 1, sy)
            full[:, rows, kx * dx : kx * dx + (width - 1) * sx + 1 : sx] += part.reshape(
                batch, height, width, out_c
            )
    top, left, bottom, right = call["pads"]
    image = full[:, top : full_h - bottom, left : full_w - right]
    return _with_bias(call, image, tuple(bias))


def dense(call: NodeInvocation) -> Array:
    """Multiply x, along its last dimension, by the transpose of the weights (outputs, inputs)."""
    x, weights, *bias = _product_operands(call)
    return _with_bias(call, x @ weights.T, tuple(bias))


def block_dense(call: NodeInvocation) -> Array:
    """Multiply x by the transpose of the weights, times the factors (outputs, blocks) of blocks of inputs."""
    x, weights, factors, *bias = _product_operands(call)
    wide = np.repeat(factors, min(call["block"], weights.shape[1]), 1)[:, : weights.shape[1]]
    return _with_bias(call, x @ (weights * wide).T, tuple(bias))


def matmul(call: NodeInvocation) -> Array:
    """Compute the product of two stacks of matrices, whose leading dimensions are broadcast."""
    left, right = _product_operands(call)
    return _with_bias(call, left @ right, ())


CONV: dict[str, Operator] = {
    "conv2d": conv2d,
    "depthwise_conv2d": depthwise_conv2d,
    "conv_transpose2d": conv_transpose2d,
    "dense": dense,
    "block_dense": block_dense,
    "matmul": matmul,
}
