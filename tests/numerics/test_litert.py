"""FUSE's arithmetic with the parameters of kernels.py equals the TFLite runtime, operator by operator."""

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import (
    AddOptionsT,
    BuiltinOperator,
    BuiltinOptions,
    FullyConnectedOptionsT,
    MulOptionsT,
    Pool2DOptionsT,
    SoftmaxOptionsT,
)

from compiler.util.scaling import float32_ratio
from tests.kernel_library.models import weighted
from tests.numerics import kernels
from tests.numerics.litert import DEFAULT, REFERENCE, Tensor, model, run
from tests.numerics.reference import AWAY, DOUBLE, EVEN

VALUES = 20_000
TRIALS = 60


def pairs(rng: np.random.Generator, product: bool):
    """Yield random quantizations and inputs of a binary operator; every second trial has scales that produce ties.

    For products, the ratio of the output scale to the product of the input scales is then alternately a power of two
    and twice an odd number.
    """
    for trial in range(TRIALS):
        ties = trial % 2 == 0
        scales = 2.0 ** -rng.integers(2, 8, 2) if ties else np.exp(rng.uniform(np.log(0.002), np.log(0.5), 2))
        out = scales.prod() * rng.uniform(20, 120) if product else scales.max() * rng.uniform(0.7, 2)
        out = 2.0 ** round(np.log2(out)) if ties else out
        if product and trial % 4 == 2:
            out = scales.prod() * 2 * (2 * int(rng.integers(10, 60)) + 1)
        zeros = rng.integers(-128, 128, 3)
        tensors = [Tensor((1, VALUES), float(s), int(z)) for s, z in zip((*scales, out), zeros, strict=True)]
        yield tensors, *(rng.integers(-128, 128, (1, VALUES), np.int8) for _ in range(2))


@pytest.mark.parametrize(
    ("resolver", "parameters"), [(REFERENCE, kernels.add_reference), (DEFAULT, kernels.add_xnnpack)]
)
def test_integer_add_equals_litert(resolver, parameters) -> None:
    print("seed 1")
    for (x, r, o), x_values, r_values in pairs(np.random.default_rng(1), False):
        content = model(BuiltinOperator.ADD, (BuiltinOptions.AddOptions, AddOptionsT()), [x, r], o)
        want = run(content, resolver, x_values, r_values)
        fields = parameters(x.scale, r.scale, o.scale)
        got = kernels.add(fields, x_values, x.zero, r_values, r.zero, o.zero)
        assert np.array_equal(want, got), (x.scale, r.scale, o.scale)


@pytest.mark.parametrize(("resolver", "mode"), [(REFERENCE, DOUBLE), (DEFAULT, EVEN)])
def test_mul(resolver, mode: int) -> None:
    """Products equal LiteRT, including scale ratios near 1 / (2 * odd number), where float32 products create ties."""
    print("seed 2")
    for (a, b, o), a_values, b_values in pairs(np.random.default_rng(2), True):
        content = model(BuiltinOperator.MUL, (BuiltinOptions.MulOptions, MulOptionsT()), [a, b], o)
        want = run(content, resolver, a_values, b_values)
        real = float32_ratio(a.scale, b.scale, o.scale)
        got = kernels.multiply(real, mode, a_values, a.zero, b_values, b.zero, o.zero)
        assert np.array_equal(want, got), (a.scale, b.scale, o.scale)


@pytest.mark.parametrize(("resolver", "mode"), [(REFERENCE, AWAY), (DEFAULT, EVEN)])
def test_fully_connected(resolver, mode: int) -> None:
    """Sums of products equal LiteRT; the reference kernel divides scales in double precision, XNNPACK in float32."""
    print("seed 5")
    rng = np.random.default_rng(5)
    for trial in range(TRIALS):
        m, n, k = (int(size) for size in rng.integers(20, 100, 3))
        ties = trial % 2 == 0
        x_scale, w_scale = 2.0 ** rng.integers(-8, -4, 2) if ties else rng.uniform(0.005, 0.05, 2)
        y_scale = x_scale * w_scale * 90 * np.sqrt(k)
        x = Tensor((m, k), x_scale, int(rng.integers(-128, 128)))
        y = Tensor((m, n), 2.0 ** round(np.log2(y_scale)) if ties else y_scale, int(rng.integers(-128, 128)))
        weights, bias = rng.integers(-127, 128, (n, k)), rng.integers(-999, 1000, n)
        options = BuiltinOptions.FullyConnectedOptions, FullyConnectedOptionsT()
        scales = np.array([w_scale], np.float32)
        content = weighted(BuiltinOperator.FULLY_CONNECTED, options, x, weights, scales, bias, y, 0)
        values = rng.integers(-128, 128, (m, k), np.int8)
        sums = (values.astype(np.int64) - x.zero) @ weights.T + bias
        w_scale = float(scales[0])
        ratio = float32_ratio(x.scale, w_scale, y.scale) if mode == EVEN else x.scale * w_scale / y.scale
        scaled = kernels.scale(sums, *kernels.quantize(ratio), 0, mode)
        want, got = run(content, resolver, values), np.clip(scaled + y.zero, -128, 127)
        assert np.array_equal(want, got), (x.scale, w_scale, y.scale)


@pytest.mark.parametrize("resolver", [REFERENCE, DEFAULT])
def test_pools(resolver) -> None:
    print("seed 3")
    rng = np.random.default_rng(3)
    for _ in range(TRIALS):
        size, kernel, stride = rng.integers(4, 12, 2), rng.integers(1, 5, 2), int(rng.integers(1, 3))
        options = Pool2DOptionsT()
        options.padding, options.strideH, options.strideW = 0, stride, stride
        options.filterHeight, options.filterWidth = map(int, kernel)
        out = (size + stride - 1) // stride
        before = np.maximum((out - 1) * stride + kernel - size, 0) // 2
        x = rng.integers(-128, 128, (1, *size, 8), np.int8)
        shapes = [
            Tensor(tuple(int(v) for v in (1, *s, 8)), 0.1, int(rng.integers(-128, 128))) for s in (size, out)
        ]
        shapes[1].zero = shapes[0].zero
        results: dict[int, list] = {BuiltinOperator.AVERAGE_POOL_2D: [], BuiltinOperator.MAX_POOL_2D: []}
        for place in np.ndindex(*out):
            first = np.array(place) * stride - before
            low, high = np.maximum(first, 0), np.minimum(first + kernel, size)
            window = x[0, low[0] : high[0], low[1] : high[1]].astype(np.int64)
            count = window.shape[0] * window.shape[1]
            results[BuiltinOperator.AVERAGE_POOL_2D].append(kernels.divide(window.sum((0, 1)), count))
            results[BuiltinOperator.MAX_POOL_2D].append(window.max((0, 1)))
        for operator, values in results.items():
            want = run(
                model(operator, (BuiltinOptions.Pool2DOptions, options), shapes[:1], shapes[1]), resolver, x
            )
            assert np.array_equal(want.reshape(-1, 8), np.array(values))


@pytest.mark.parametrize("resolver", [REFERENCE, DEFAULT])
def test_softmax(resolver) -> None:
    """LiteRT computes in float32; at most one in 10,000 values differs from LiteRT's, and by at most one."""
    print("seed 4")
    rng = np.random.default_rng(4)
    wrong = total = 0
    for _ in range(TRIALS):
        width = int(rng.integers(2, 65))
        tensor = Tensor(
            (200, width), float(np.exp(rng.uniform(np.log(0.01), np.log(0.3)))), int(rng.integers(-128, 128))
        )
        x = rng.normal(0, rng.uniform(2, 60), tensor.shape).clip(-128, 127).astype(np.int8)
        options = SoftmaxOptionsT()
        options.beta = 1.0
        settings = (BuiltinOptions.SoftmaxOptions, options)
        output = Tensor(tensor.shape, 1 / 256, -128)
        want = run(model(BuiltinOperator.SOFTMAX, settings, [tensor], output), resolver, x)
        got = kernels.softmax(tensor.scale, x)
        assert np.abs(want - got).max() <= 1
        wrong, total = wrong + int((want != got).sum()), total + want.size
    assert wrong <= 1e-4 * total
