"""Sums round as in LiteRT even if the rounding depends on whether scales are multiplied in float32 or float64."""

from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization
from compiler.reference.fixed_point import multiplied
from tests.support.one_operator import options
from tests.support.tflite_models import Draft, litert, read

TRIALS = 3
#: Largest sum that the tests try.
_LARGEST_SUM = 200_000
_PLAIN = {"padding": 0, "strideH": 1, "strideW": 1}
_DILATED = {**_PLAIN, "dilationHFactor": 1, "dilationWFactor": 1}
KINDS = {
    "CONV_2D": options("Conv2D", **_DILATED),
    "DEPTHWISE_CONV_2D": options("DepthwiseConv2D", depthMultiplier=1, **_DILATED),
    "TRANSPOSE_CONV": options("TransposeConv", **_PLAIN),
}


def sensitive_sums(rng: np.random.Generator) -> tuple[float, float, float, np.ndarray]:
    """Return scales of x, weights and result, and sums that round differently if the scale product is in float32."""
    sums = np.arange(-_LARGEST_SUM, _LARGEST_SUM)
    while True:
        x, w = (np.float32(v) for v in rng.uniform(0.005, 0.05, 2))
        y = np.float32(x * w * np.float32(rng.uniform(500, 4000)))
        double, single = float(x) * float(w) / float(y), float(x * w) / float(y)
        a, b = multiplied(sums, double), multiplied(sums, single)
        found = np.flatnonzero((a != b) & (np.abs(a) < 100))
        if found.size:
            return float(x), float(w), float(y), sums[found][:8]


def compare(draft: Draft, folder: Path, inputs: list[np.ndarray], rounding: str = "reference") -> None:
    """Compare the golden model with LiteRT."""
    wanted = litert(draft.file(), inputs, rounding)
    found = compile(read(draft, folder), "n8", rounding=rounding)(*inputs)
    for name, array in zip(draft.outputs, wanted, strict=True):
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_of_biases(kind: str, dtype: str, rng: np.random.Generator, tmp_path: Path) -> None:
    for _ in range(TRIALS):
        x_scale, w_scale, y_scale, sums = sensitive_sums(rng)
        draft, zero, depthwise = Draft(rng, dtype), 0 if dtype == "int8" else 128, kind.startswith("DEPTH")
        channels = sums.size if depthwise else 3
        x = draft.input((1, 1, 1, channels), scale=x_scale, zero=zero)
        draft.tensors["w"] = np.ones(
            (1, 1, 1, sums.size) if depthwise else (sums.size, 1, 1, channels), dtype
        )
        draft.tensors["b"] = sums.astype(np.int32)
        draft.meaning["w"] = (w_scale, zero)
        draft.meaning["b"] = Quantization.per_tensor(float(np.float32(x_scale) * np.float32(w_scale)))
        shape = (1, 1, 1, sums.size)
        operands = [draft.held(shape), "w", x, "b"] if kind == "TRANSPOSE_CONV" else [x, "w", "b"]
        draft.op(kind, operands, shape, KINDS[kind], scale=y_scale, zero=zero)
        compare(draft, tmp_path, [np.full((1, 1, 1, channels), zero, dtype)])


def test_rounding_of_matrix_products(rng: np.random.Generator, tmp_path: Path) -> None:
    """Sums of products round as in LiteRT; each row is chosen so that its product with the weights is a given sum."""
    inner = 200
    for _ in range(TRIALS):
        x_scale, w_scale, y_scale, sums = sensitive_sums(rng)
        rest = (sums + 63) % 127 - 63
        rows = np.zeros((sums.size, inner), np.int8)
        for row, times, last in zip(rows, (sums - rest) // 127, rest, strict=True):
            each, more = divmod(abs(int(times)), inner - 1)
            row[: inner - 1] = np.sign(times) * (each + (np.arange(inner - 1) < more))
            row[inner - 1] = last
        draft = Draft(rng, "int8")
        x = draft.input(rows.shape, scale=x_scale, zero=0)
        w = draft.constant((inner, 1), scale=w_scale, zero=0)
        draft.tensors[w] = np.full((inner, 1), 127, np.int8)
        draft.tensors[w][-1] = 1
        assert np.array_equal((rows.astype(int) @ draft.tensors[w].astype(int))[:, 0], sums)
        settings = options("BatchMatMul", adjX=False, adjY=False, asymmetricQuantizeInputs=False)
        draft.op("BATCH_MATMUL", [x, w], (sums.size, 1), settings, scale=y_scale, zero=0)
        compare(draft, tmp_path, [rows])


@pytest.mark.parametrize("kind", ["SUM", "MEAN"])
def test_ties_with_an_odd_zero_point(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """XNNPACK and the accelerator both add the zero point before they round half to even."""
    refused = 0
    for _ in range(12):
        draft = Draft(rng, "int8")
        count, step = int(rng.choice([1, 2, 3, 4, 6, 12])), int(rng.integers(1, 4))
        x = draft.input((16, count, 20), scale=0.125, zero=int(rng.integers(-99, 99)))
        zero = 2 * int(rng.integers(-40, 40)) + 1
        settings = options("Reducer", keepDims=False)
        draft.op(kind, [x, draft.held([1])], (16, 20), settings, scale=0.125 * 2.0**step, zero=zero)
        inputs = [draft.values(x)]
        wanted = litert(draft.file(), inputs, "xnnpack")
        network = compile(read(draft, tmp_path), "n8", rounding="xnnpack")
        refused += len(network.host)
        np.testing.assert_array_equal(network(*inputs)[draft.outputs[0]], wanted[0])
    assert refused <= (6 if kind == "SUM" else 0), "a mean can be made even whatever its count"


@pytest.mark.parametrize("kind", ["SUM", "MEAN"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_close_to_a_tie(kind: str, dtype: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Sums that float32 arithmetic moves to a nearby tie round as in LiteRT; scales are in ratios of small integers."""
    least = int(np.iinfo(dtype).min)
    for _ in range(6):
        draft = Draft(rng, dtype)
        count, above, below = int(rng.choice([2, 4, 8])), int(rng.integers(1, 99)), int(rng.integers(1, 60))
        sums = np.arange(255 * count + 1)
        y_scale = float(np.float32(rng.uniform(0.005, 0.05)))
        x_scale = float(np.float32(y_scale * above / below))
        x = draft.input((sums.size, count, 1), scale=x_scale, zero=int(rng.integers(0, 256)) + least)
        zero = int(rng.integers(0, 256)) + least
        draft.op(
            kind,
            [x, draft.held([1])],
            (sums.size, 1),
            options("Reducer", keepDims=False),
            scale=y_scale,
            zero=zero,
        )
        rows = sums[:, None] // count + (np.arange(count) < sums[:, None] % count) + least
        compare(draft, tmp_path, [rows[:, :, None].astype(dtype)], "xnnpack")
