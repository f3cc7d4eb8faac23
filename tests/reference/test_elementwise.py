"""Quantized operators on the host equal LiteRT with the rounding of either interpreter.

Every other trial has scales that are powers of two, so that ties are frequent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from tests.numerics.litert import run
from tests.support.one_operator import (
    RESOLVERS,
    OneOperator,
    constant,
    options,
    quantized,
    random_values,
    scale_of,
)

OPERATOR = schema.BuiltinOperator
TRIALS = 20
SHAPE = (4, 2000)
INFINITE = float("inf")
Rng = np.random.Generator
Case = Callable[[Rng, str, bool], OneOperator]


def binary(name: str) -> Case:
    def case(rng: Rng, dtype: str, ties: bool) -> OneOperator:
        other = SHAPE if rng.integers(2) else (1, SHAPE[1])
        a, b = (quantized(rng, n, s, dtype, ties=ties) for n, s in (("a", SHAPE), ("b", other)))
        y = quantized(rng, "y", SHAPE, dtype, ties=ties)
        if name == "Mul":
            y = quantized(
                rng, "y", SHAPE, dtype, ties=ties, scale=scale_of(a) * scale_of(b) * rng.uniform(20, 120)
            )
        general = {} if name == "Mul" else {"potScaleInt16": False}
        return OneOperator(getattr(OPERATOR, name.upper()), options(name, **general), name.lower(), [a, b], y)

    return case


def unary(kind: str, op: str, settings: Any = None, *, version: int = 2, **attributes: float) -> Case:
    def case(rng: Rng, dtype: str, ties: bool) -> OneOperator:
        x, y = (quantized(rng, name, SHAPE, dtype, ties=ties) for name in "xy")
        return OneOperator(getattr(OPERATOR, kind), settings, op, [x], y, dict(attributes), version=version)

    return case


def fixed_output(kind: str, op: str, scale: float, *, centre: bool = False) -> Case:
    """Return a case of a function with an output quantization that TFLite prescribes."""

    def case(rng: Rng, dtype: str, ties: bool) -> OneOperator:
        if dtype == "int16":
            x, y = _fine(rng, dtype, ties), quantized(rng, "y", SHAPE, dtype, scale=2.0**-15)
        else:
            zero = np.iinfo(dtype).min + (128 if centre else 0)
            x, y = (
                quantized(rng, "x", SHAPE, dtype, ties=ties),
                quantized(rng, "y", SHAPE, dtype, scale=scale, zero=zero),
            )
        return OneOperator(getattr(OPERATOR, kind), None, op, [x], y)

    return case


def _fine(rng: Rng, dtype: str, ties: bool, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Return an int16 operand with a small scale; with `ties` the scale is almost or exactly a power of two, for
    some of which LiteRT has kernels of their own.
    """
    near = float(rng.choice([1.0, 1 + 5e-4, 1 - 5e-4, 1 + 9e-4]))
    scale = near * 2.0 ** -int(rng.integers(10, 17)) if ties else float(rng.uniform(1e-5, 1e-3))
    return quantized(rng, "x", shape, dtype, scale=scale)


def leaky(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    alpha = float(np.float32(rng.choice([0.01, 0.1, 0.2, 0.5, -0.3, 1.5])))
    return unary("LEAKY_RELU", "leaky_relu", options("LeakyRelu", alpha=alpha), alpha=alpha)(rng, dtype, ties)


def gelu(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    tanh = bool(rng.integers(2))
    return unary("GELU", "gelu", options("Gelu", approximate=tanh), tanh=tanh)(rng, dtype, ties)


def of_nonnegative(kind: str) -> Case:
    """Return a case of a function that LiteRT supports only for non-negative values."""

    def case(rng: Rng, dtype: str, ties: bool) -> OneOperator:
        x = quantized(rng, "x", SHAPE, dtype, ties=ties, zero=np.iinfo(dtype).min)
        y = quantized(rng, "y", SHAPE, dtype, ties=ties)
        return OneOperator(getattr(OPERATOR, kind), None, kind.lower(), [x], y)

    return case


def exp(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    """Return a case whose results fit in an int32, since LiteRT does not saturate them."""
    x = quantized(rng, "x", SHAPE, dtype, scale=rng.uniform(0.001, 0.05) / (256 if dtype == "int16" else 1))
    y = quantized(rng, "y", SHAPE, dtype, ties=ties)
    return OneOperator(OPERATOR.EXP, options("Exp"), "exp", [x], y)


def prelu(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    x, y = (quantized(rng, name, (1, 9, 7, 16), dtype, ties=ties) for name in "xy")
    slope = quantized(rng, "slope", (1, 1, 16), dtype, ties=ties)
    slope = constant("slope", random_values(rng, slope), slope.quantization)
    return OneOperator(OPERATOR.PRELU, None, "prelu", [x], y, constants=[slope], version=1)


def softmax(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    shape, beta = (5, int(rng.integers(2, 600))), float(rng.choice([1.0, 0.5, 2.5]))
    if dtype == "int16":
        x, y = _fine(rng, dtype, ties, shape), quantized(rng, "y", shape, dtype, scale=2.0**-15)
    else:
        y = quantized(rng, "y", shape, dtype, scale=1 / 256, zero=np.iinfo(dtype).min)
        x = quantized(rng, "x", shape, dtype, ties=ties)
    return OneOperator(
        OPERATOR.SOFTMAX, options("Softmax", beta=beta), "softmax", [x], y, {"axis": 1, "beta": beta}
    )


def quantize(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    y = quantized(rng, "y", SHAPE, dtype, ties=ties)
    return OneOperator(OPERATOR.QUANTIZE, options("Quantize"), "quantize", [Tensor("x", SHAPE, "float32")], y)


def dequantize(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    x = quantized(rng, "x", SHAPE, dtype, ties=ties)
    return OneOperator(
        OPERATOR.DEQUANTIZE, options("Dequantize"), "dequantize", [x], Tensor("y", SHAPE, "float32")
    )


def concat(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    """Return a concatenation; LiteRT requantizes only uint8 operands."""
    y = quantized(rng, "y", (3, 30, 8), dtype, ties=ties)
    parts = [quantized(rng, f"x{i}", (3, 10, 8), dtype, ties=ties) for i in range(3)]
    if dtype != "uint8":
        parts = [Tensor(part.name, part.shape, dtype, y.quantization) for part in parts]
    return OneOperator(
        OPERATOR.CONCATENATION, options("Concatenation", axis=1), "concat", parts, y, {"axis": 1}
    )


def reduction(kind: str, op: str, *, same: bool = False) -> Case:
    def case(rng: Rng, dtype: str, ties: bool) -> OneOperator:
        shape = tuple(int(size) for size in rng.integers(1, 9, 4))
        axes = tuple(sorted(int(axis) for axis in rng.choice(4, int(rng.integers(1, 4)), replace=False)))
        keep = bool(rng.integers(2))
        kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
        x, y = quantized(rng, "x", shape, dtype, ties=ties), quantized(rng, "y", kept, dtype, ties=ties)
        if same:
            y = Tensor("y", y.shape, dtype, x.quantization)
        return OneOperator(
            getattr(OPERATOR, kind),
            options("Reducer", keepDims=keep),
            op,
            [x],
            y,
            {"axes": axes, "keep": keep},
            parameters=[constant("axes", np.array(axes, np.int32))],
        )

    return case


BYTES, ALL = ("int8", "uint8"), ("int8", "uint8", "int16")
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "add": (binary("Add"), ALL),
    "sub": (binary("Sub"), ALL),
    "mul": (binary("Mul"), ALL),
    "relu": (unary("RELU", "clip", low=0.0, high=INFINITE), ALL),
    "relu6": (unary("RELU6", "clip", low=0.0, high=6.0), ALL),
    "relu_n1_to_1": (unary("RELU_N1_TO_1", "clip", version=1, low=-1.0, high=1.0), BYTES),
    "leaky_relu": (leaky, ALL),
    "prelu": (prelu, BYTES),
    "sigmoid": (fixed_output("LOGISTIC", "sigmoid", 1 / 256), ALL),
    "tanh": (fixed_output("TANH", "tanh", 1 / 128, centre=True), ALL),
    "hard_swish": (unary("HARD_SWISH", "hard_swish", options("HardSwish"), version=1), BYTES),
    "gelu": (gelu, ALL),
    "exp": (exp, ("int8", "int16")),
    "abs": (unary("ABS", "abs"), ("int8", "int16")),
    "log": (of_nonnegative("LOG"), ("int8",)),
    "sqrt": (of_nonnegative("SQRT"), ("int8",)),
    "rsqrt": (of_nonnegative("RSQRT"), ("int8",)),
    "elu": (unary("ELU", "elu", version=1, alpha=1.0), ("int8",)),
    "softmax": (softmax, ALL),
    "quantize": (quantize, ALL),
    "dequantize": (dequantize, ALL),
    "requantize": (unary("QUANTIZE", "requantize", options("Quantize")), ALL),
    "concat": (concat, BYTES),
    "reduce_mean": (reduction("MEAN", "reduce_mean"), ALL),
    "reduce_sum": (reduction("SUM", "reduce_sum"), ALL),
    "reduce_max": (reduction("REDUCE_MAX", "reduce_max", same=True), BYTES),
    "reduce_min": (reduction("REDUCE_MIN", "reduce_min", same=True), BYTES),
}
#: Omitted cases: LiteRT's reference sum reads signed values as unsigned, its optimized int16 addition may differ
#: by 1, and Elu has no reference kernel.
LEFT_OUT = {
    ("reduce_sum", "int8", "reference"),
    ("reduce_sum", "int16", "reference"),
    ("add", "int16", "xnnpack"),
    ("elu", "int8", "reference"),
}
#: Operators whose tables the C library computes; its version affects rounding, so entries may differ by 1.
BY_LIBRARY = ("sigmoid", "tanh", "gelu", "exp", "log", "elu")


COMBINATIONS = [
    (name, dtype, kernels)
    for name, (_, types) in CASES.items()
    for dtype in types
    for kernels in RESOLVERS
    if (name, dtype, kernels) not in LEFT_OUT
]


@pytest.mark.parametrize(("name", "dtype", "kernels"), COMBINATIONS)
def test_operator_equals_litert(rng: Rng, name: str, dtype: str, kernels: str) -> None:
    different = total = 0
    for trial in range(TRIALS):
        one = CASES[name][0](rng, dtype, trial % 2 == 0)
        got, want = one.both(rng, kernels)
        if name not in BY_LIBRARY and (name, kernels) != ("softmax", "xnnpack"):
            scales = [t.quantization and t.quantization.scale for t in (*one.inputs, one.output)]
            np.testing.assert_array_equal(got, want, str(scales))
        assert np.abs(got.astype(np.float64) - want).max() <= 1
        different, total = different + int((got != want).sum()), total + got.size
    assert different <= 0.0006 * total


@pytest.mark.parametrize("kind", ["LOG", "SQRT", "RSQRT"])
def test_int16_functions_of_positive_values(rng: Rng, kind: str) -> None:
    for trial in range(TRIALS):
        x = _fine(rng, "int16", trial % 2 == 0)
        y = quantized(rng, "y", SHAPE, "int16", scale=float(rng.uniform(1e-4, 1e-2)))
        one = OneOperator(getattr(OPERATOR, kind), None, kind.lower(), [x], y)
        values = rng.integers(1, 1 << 15, SHAPE).astype(np.int16)
        want = run(one.file(), RESOLVERS["reference"], values)
        off = np.abs(evaluate(one.graph(), {"x": values})["y"].astype(int) - want)
        assert off.max() <= int(kind == "LOG") and np.count_nonzero(off) <= 0.001 * off.size


@pytest.mark.parametrize("name", ["add", "mul", "requantize", "leaky_relu", "reduce_mean"])
def test_the_two_interpreters_round_differently(rng: Rng, name: str) -> None:
    """The two roundings give different results for each operator, so the comparisons above can distinguish them."""
    differing = 0
    for _ in range(TRIALS):
        one = CASES[name][0](rng, "int8", True)
        named = {each.name: random_values(rng, each) for each in one.inputs}
        results = [
            evaluate(one.graph(), named, rounding=k)[one.output.name] for k in ("reference", "xnnpack")
        ]
        differing += int((results[0] != results[1]).sum())
    assert differing


@pytest.mark.parametrize("kernels", RESOLVERS)
def test_ties_when_quantizing(rng: Rng, kernels: Any) -> None:
    """Ties, and float32 values next to them, are quantized as in LiteRT."""
    for trial in range(TRIALS):
        one = quantize(rng, "int8", trial % 2 == 0)
        values = (rng.integers(-128, 128, SHAPE) + 0.5) * scale_of(one.output)
        named = {"x": values.astype(np.float32)}
        want = run(one.file(), RESOLVERS[kernels], named["x"])
        np.testing.assert_array_equal(evaluate(one.graph(), named, rounding=kernels)["y"], want)


def test_ties_in_tables(rng: Rng) -> None:
    """Exp(0) is half a step of the output and is rounded away from zero."""
    x, y = (quantized(rng, name, (1, 256), "int8", scale=s, zero=0) for name, s in (("x", 0.01), ("y", 2.0)))
    one = OneOperator(OPERATOR.EXP, options("Exp"), "exp", [x], y)
    named = {"x": np.arange(-128, 128, dtype=np.int8)[None]}
    got = evaluate(one.graph(), named)["y"]
    assert got[0, 128] == 1
    np.testing.assert_array_equal(got, run(one.file(), RESOLVERS["reference"], named["x"]))


def test_int16_softmax_rounds_scale_times_beta_to_single_precision() -> None:
    """With this seed, a product of scale and beta in double precision would change a result by one unit."""
    test_operator_equals_litert(np.random.default_rng(942951600), "softmax", "int16", "reference")
