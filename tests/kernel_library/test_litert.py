"""The library equals LiteRT's reference kernels for random shapes, scales and zero points; softmax is within 1."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.kernel_library.conv import Conv
from compiler.kernel_library.elementwise import add, mul
from compiler.util.scaling import Affine
from hw.isa.enums import Rounding
from tests.kernel_library.models import weighted
from tests.kernel_library.shapes import int8
from tests.numerics.litert import DEFAULT, REFERENCE, Tensor, model, run

TRIALS = 8
OPERATOR, OPTIONS = schema.BuiltinOperator, schema.BuiltinOptions


def affine(rng, shape, low=0.002, high=0.2):
    return Tensor(shape, float(rng.uniform(low, high)), int(rng.integers(-128, 128)))


def affine_of(tensor):
    return Affine(tensor.scale, tensor.zero)


def same_padding(size, kernel, stride, dilation=1):
    """Return the output size and the padding before and after the input for TFLite's SAME padding."""
    out = -(-size // stride)
    total = max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return out, total // 2, total - total // 2


def window(rng, depthwise):
    """Return a random window operator with TFLite's SAME or VALID padding."""
    while True:
        kernel = [int(k) for k in rng.integers(1, 4, 2)]
        stride = [int(rng.integers(1, 3))] * 2 if depthwise else [int(s) for s in rng.integers(1, 3, 2)]
        size, same = [int(s) for s in rng.integers(1, 12, 2)], bool(rng.integers(2))
        sides = [
            same_padding(*part) if same else (0, 0, 0) for part in zip(size, kernel, stride, strict=True)
        ]
        conv = Conv(
            size[0],
            size[1],
            int(rng.integers(1, 40)),
            int(rng.integers(1, 40)),
            (kernel[0], kernel[1]),
            (stride[0], stride[1]),
            (sides[0][1], sides[1][1], sides[0][2], sides[1][2]),
        )
        if conv.out_h > 0 and conv.out_w > 0:
            return conv, same


def weights_and_bias(rng, shape, axis, terms):
    scales = rng.uniform(0.001, 0.02, shape[axis]).astype(np.float32)
    return int8(rng, *shape), scales, rng.integers(-200 * terms, 200 * terms + 1, shape[axis])


def sum_scales(x, scales, y):
    """Return the scales of the sums as in TFLite, which multiplies the float32 scales in double precision."""
    return [float(x.scale) * float(s) / float(y.scale) for s in scales]


def output(rng, x, scales, terms, shape):
    """Return an output tensor with a range that includes most sums."""
    return Tensor(
        shape, float(x.scale * scales.mean() * 74 * 74 * np.sqrt(terms) / 60), int(rng.integers(-128, 128))
    )


@pytest.mark.parametrize("trial", range(TRIALS))
def test_conv(ops, rng, trial):
    conv, same = window(rng, False)
    print(conv)
    x = affine(rng, (1, conv.in_h, conv.in_w, conv.in_c))
    terms = conv.in_c * conv.kernel[0] * conv.kernel[1]
    weights, scales, bias = weights_and_bias(rng, (conv.out_c, *conv.kernel, conv.in_c), 0, terms)
    y = output(rng, x, scales, terms, (1, conv.out_h, conv.out_w, conv.out_c))
    options = schema.Conv2DOptionsT()
    options.padding = int(not same)
    options.strideH, options.strideW = conv.stride
    options.dilationHFactor = options.dilationWFactor = 1
    content = weighted(OPERATOR.CONV_2D, (OPTIONS.Conv2DOptions, options), x, weights, scales, bias, y, 0)
    data = int8(rng, *x.shape)
    result = ops.conv(data[0], weights, bias, sum_scales(x, scales, y), conv, zp=y.zero, a_zp=x.zero)
    assert np.array_equal(result, run(content, REFERENCE, data)[0])


@pytest.mark.parametrize("trial", range(TRIALS))
def test_depthwise(ops, rng, trial):
    conv, same = window(rng, True)
    print(conv)
    channels = conv.in_c
    x = affine(rng, (1, conv.in_h, conv.in_w, channels))
    weights, scales, bias = weights_and_bias(rng, (1, *conv.kernel, channels), 3, 9)
    y = output(rng, x, scales, 9, (1, conv.out_h, conv.out_w, channels))
    options = schema.DepthwiseConv2DOptionsT()
    options.padding, options.depthMultiplier = int(not same), 1
    options.strideH, options.strideW = conv.stride
    options.dilationHFactor = options.dilationWFactor = 1
    kind = (OPTIONS.DepthwiseConv2DOptions, options)
    content = weighted(OPERATOR.DEPTHWISE_CONV_2D, kind, x, weights, scales, bias, y, 3)
    data = int8(rng, *x.shape)
    result = ops.depthwise(data[0], weights[0], bias, sum_scales(x, scales, y), conv, zp=y.zero, a_zp=x.zero)
    assert np.array_equal(result, run(content, REFERENCE, data)[0])


@pytest.mark.parametrize("trial", range(TRIALS))
def test_fully_connected(ops, rng, trial):
    m, n, k = (int(s) for s in rng.integers(1, 70, 3))
    print(m, n, k)
    x = affine(rng, (m, k))
    weights, scales, bias = weights_and_bias(rng, (n, k), 0, k)
    y = output(rng, x, scales[:1], k, (m, n))
    options = (OPTIONS.FullyConnectedOptions, schema.FullyConnectedOptionsT())
    content = weighted(OPERATOR.FULLY_CONNECTED, options, x, weights, scales[:1], bias, y, 0)
    data, shared = int8(rng, m, k), sum_scales(x, scales[:1], y) * n
    weights = np.ascontiguousarray(weights.T)
    result = ops.gemm(data, weights, bias, shared, zp=y.zero, a_zp=x.zero, rounding=Rounding.SINGLE)
    assert np.array_equal(result, run(content, REFERENCE, data))


@pytest.mark.parametrize(("resolver", "rounding"), [(REFERENCE, Rounding.DOUBLE), (DEFAULT, Rounding.SINGLE)])
def test_add_equals_litert(ops, rng, resolver, rounding):
    for _ in range(TRIALS):
        count = int(rng.integers(1, 3000))
        a, b, y = (affine(rng, (1, count)) for _ in range(3))
        content = model(OPERATOR.ADD, (OPTIONS.AddOptions, schema.AddOptionsT()), [a, b], y)
        data = int8(rng, 1, count), int8(rng, 1, count)
        result = ops.elementwise(
            "add_i8", add(affine_of(a), affine_of(b), affine_of(y), rounding=rounding), *data
        )
        assert np.array_equal(result, run(content, resolver, *data)), (a.scale, b.scale, y.scale)


def test_mul(ops, rng):
    for _ in range(TRIALS):
        count = int(rng.integers(1, 3000))
        a, b, y = (affine(rng, (1, count)) for _ in range(3))
        content = model(OPERATOR.MUL, (OPTIONS.MulOptions, schema.MulOptionsT()), [a, b], y)
        data = int8(rng, 1, count), int8(rng, 1, count)
        result = ops.elementwise("mul_i8", mul(affine_of(a), affine_of(b), affine_of(y)), *data)
        assert np.array_equal(result, run(content, REFERENCE, *data)), (a.scale, b.scale, y.scale)


@pytest.mark.parametrize("average", [False, True])
def test_pool(ops, rng, average):
    for _ in range(TRIALS):
        pool, same = window(rng, False)
        print(pool)
        x = affine(rng, (1, pool.in_h, pool.in_w, pool.in_c))
        y = Tensor((1, pool.out_h, pool.out_w, pool.in_c), x.scale, x.zero)
        options = schema.Pool2DOptionsT()
        options.padding = int(not same)
        options.strideH, options.strideW = pool.stride
        options.filterHeight, options.filterWidth = pool.kernel
        kind = OPERATOR.AVERAGE_POOL_2D if average else OPERATOR.MAX_POOL_2D
        content, data = model(kind, (OPTIONS.Pool2DOptions, options), [x], y), int8(rng, *x.shape)
        assert np.array_equal(ops.pool(data[0], pool, average=average), run(content, REFERENCE, data)[0])


def test_softmax(ops, rng):
    options = schema.SoftmaxOptionsT()
    options.beta = 1.0
    for _ in range(TRIALS):
        rows, cols = int(rng.integers(1, 20)), int(rng.integers(1, 200))
        x = affine(rng, (rows, cols))
        y = Tensor((rows, cols), 1 / 256, -128)
        content, data = (
            model(OPERATOR.SOFTMAX, (OPTIONS.SoftmaxOptions, options), [x], y),
            int8(rng, rows, cols),
        )
        result = ops.softmax(data, x.scale).astype(int)
        assert np.abs(result - run(content, REFERENCE, data)).max() <= 1
