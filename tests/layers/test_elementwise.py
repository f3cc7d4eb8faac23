"""Elementwise layers equal the host's operators."""

import math

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError
from tests.support.graphs import Draft, check

TARGETS = ["n4", "n8", "n16"]
UNARY = {
    "sigmoid": {},
    "tanh": {},
    "hard_swish": {},
    "gelu": {"tanh": False},
    "silu": {},
    "exp": {},
    "log": {},
    "abs": {},
    "sqrt": {},
    "rsqrt": {},
    "elu": {"alpha": 0.7},
    "softplus": {},
    "mish": {},
    "softcap": {"limit": 3.0},
    "leaky_relu": {"alpha": 0.1},
    "clip": {"low": -1.0, "high": math.inf},
    "requantize": {},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", UNARY)
def test_unary_functions(op: str, target: str) -> None:
    draft = Draft(np.random.default_rng(UNARY[op].__hash__ is None and len(op)))
    x = draft.input((1, 5, 7, 3))
    y = draft.node(op, [x], x.shape, scale=1 / 32, **UNARY[op])
    z = draft.node("tanh", [y], x.shape, scale=1 / 128)
    check(draft, [y, z], target)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("seed", range(4))
def test_binary_operators(op: str, target: str, rounding: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    draft = Draft(rng)
    shape = (1, int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.integers(1, 40)))
    a, b = draft.input(shape), draft.input(shape)
    y = draft.node(op, [a, b], shape, scale=0.5)
    check(draft, [draft.node("mul", [y, a], shape, scale=4.0)], target, rounding, within=int(op == "sub"))


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize(
    "types", [("int16", "int16"), ("int8", "int16"), ("int16", "int8"), ("int8", "int8")]
)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_binary_operators_with_a_result_in_int16(op: str, types: tuple[str, str], rounding: str) -> None:
    """All scales are powers of two under onnxruntime's rounding, whose float32 arithmetic is then exact."""
    rng = np.random.default_rng(len(op) + len(types[0]))
    shape, draft = (1, 6, 7, 19), Draft(rng)

    def quantization(dtype: str) -> Quantization:
        scale = 2.0 ** -int(rng.integers(7, 10)) * (256.0**-1 if dtype == "int16" else 1.0)
        scale *= 1.0 if rounding == "onnxruntime" else float(rng.uniform(0.6, 1.4))
        return Quantization.per_tensor(scale, 0 if dtype == "int16" else int(rng.integers(-99, 99)))

    operands = [
        draft.graph.add_input(Tensor(f"x{i}", shape, dtype, quantization(dtype)))
        for i, dtype in enumerate(types)
    ]
    y = draft.into(op, operands, Tensor("y", shape, "int16", quantization("int16")))
    network = check(draft, [y], "n8", rounding, within=int(op == "sub"))
    # A product of two int16 values has more bits than float32.
    inexact = (op, types, rounding) == ("mul", ("int16", "int16"), "onnxruntime")
    assert [node.op for node in network.host] == (["mul"] if inexact else [])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 21), (21,), (1, 6, 5, 1), (1,)])
@pytest.mark.parametrize("constant", [True, False])
def test_products_with_a_broadcast_tensor(shape: tuple[int, ...], constant: bool, target: str) -> None:
    draft = Draft(np.random.default_rng(len(shape)))
    a = draft.input((1, 6, 5, 21))
    b = draft.constant(shape) if constant else draft.input(shape)
    check(draft, [draft.node("mul", [a, b], a.shape, scale=0.3)], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "sub"])
def test_constant_per_channel(op: str, target: str) -> None:
    draft = Draft(np.random.default_rng(6))
    a = draft.input((1, 6, 5, 21))
    check(draft, [draft.node(op, [a, draft.constant((21,))], a.shape, scale=0.3)], target)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_scalar_constant_becomes_a_table(op: str) -> None:
    draft = Draft(np.random.default_rng(7))
    a, b = draft.input((1, 4, 3, 5)), draft.constant(())
    network = check(draft, [draft.node(op, [a, b], a.shape, scale=0.4)])
    assert network.layers[0].table is not None  # type: ignore[attr-defined]


def test_function_after_a_convolution_is_fused_into_its_drain() -> None:
    draft = Draft(np.random.default_rng(8))
    x, weights = draft.input((1, 6, 6, 8)), draft.constant((12, 3, 3, 8))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = draft.node("conv2d", [x, weights], (1, 6, 6, 12), scale=30.0, groups=1, **window)
    z = draft.node("hard_swish", [y], y.shape, scale=20.0)
    network = check(draft, [draft.node("add", [z, draft.input(z.shape)], z.shape, scale=25.0)])
    assert len(network.layers) == 1


def test_uint8() -> None:
    draft = Draft(np.random.default_rng(9))
    a, b = draft.input((1, 6, 5, 9), "uint8"), draft.input((1, 6, 5, 9), "uint8")
    y = draft.node("add", [a, b], a.shape, dtype="uint8", scale=0.5)
    check(draft, [draft.node("sigmoid", [y], a.shape, dtype="uint8", scale=1 / 256)])


@pytest.mark.parametrize(
    ("op", "dtypes", "reason"),
    [
        ("add", ("int8", "int16"), "add of int8 and int16 to int8"),
        ("mul", ("int16", "int16"), "mul of int16 and int16 to int8"),
        ("mul", ("int32", "int8"), "tensor 'x1' must be int8, uint8 or int16, not int32"),
    ],
)
def test_unsupported_operands_have_a_reason(op: str, dtypes: tuple[str, str], reason: str) -> None:
    draft = Draft(np.random.default_rng(1))
    a, b = (draft.input((4, 6), dtype) for dtype in dtypes)
    y = draft.node(op, [a, b], (4, 6))
    with pytest.raises(InputError, match=reason):
        compile(draft.graph.finish([y.name]), "n8", strict=True)


def _broadcastable(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a random shape that broadcasts to the given one."""
    kept = tuple(1 if rng.random() < 0.5 else size for size in shape)
    return kept[int(rng.integers(len(shape))) :] if rng.random() < 0.3 else kept


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
def test_broadcast_in_any_dimension(seed: int, rounding: str) -> None:
    """Products and sums with broadcast operands are exact; a difference may be off by 1 at a tie."""
    draft = Draft(np.random.default_rng(seed))
    rng, op = draft.rng, ("add", "sub", "mul")[seed % 3]
    shape = tuple(int(size) for size in rng.integers(1, 9, rng.integers(2, 5)))
    shapes = [_broadcastable(rng, shape) for _ in range(2)]
    whole, dtype = np.broadcast_shapes(*shapes), str(rng.choice(("int8", "uint8")))
    operands = [draft.input(each, dtype) for each in shapes]
    if rng.random() < 0.4:
        number = int(rng.integers(2))
        operands[number] = draft.constant(shapes[number], dtype)
    y = draft.node(op, operands, whole, dtype=dtype, scale=float(rng.uniform(0.05, 0.3)))
    assert not check(draft, [y], rounding=rounding, within=int(op == "sub")).host, f"seed {seed}"


@pytest.mark.parametrize("seed", range(6))
def test_prelu_slopes_of_any_shape(seed: int) -> None:
    draft = Draft(np.random.default_rng(seed))
    rng = draft.rng
    shape = tuple(int(size) for size in rng.integers(2, 24, rng.integers(2, 5)))
    x = draft.input(shape, str(rng.choice(("int8", "uint8"))))
    slopes = tuple(1 if rng.random() < 0.3 else size for size in shape)
    y = draft.node(
        "prelu", [x, draft.constant(slopes, quantization=Quantization.per_tensor(0.01))], shape, scale=0.1
    )
    for target in ("n4", "n16"):
        assert not check(draft, [y], target).host, f"seed {seed}"
