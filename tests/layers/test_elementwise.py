"""Elementwise layers equal the host's operators."""

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.elementwise import ElementwiseLayer
from compiler.reference import evaluate
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from hw.errors import InputError
from tests.support.graphs import Draft, check, run_on

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


#: Shapes of a small operand of a tensor (1, 6, 5, 21): a value per channel, per pixel and channel of a row, and so on.
SMALL = [(21,), (5, 21), (1, 1, 5, 21), (6, 5, 1), (1, 6, 1, 1), (1, 1, 1, 1)]


@pytest.mark.parametrize(
    "types", [("int8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16")]
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("small", SMALL, ids=str)
def test_small_operands_are_not_repeated(
    small: tuple[int, ...], op: str, target: str, types: tuple[str, str]
) -> None:
    rng, shape = np.random.default_rng(len(small)), (1, 6, 5, 21)
    draft = Draft(rng)
    dtype = "int16" if "int16" in types else "int8"

    def quantization(dtype: str) -> Quantization:
        scale = float(rng.uniform(0.6, 1.4)) * (2.0**-15 if dtype == "int16" else 2.0**-7)
        return Quantization.per_tensor(scale, 0 if dtype == "int16" else int(rng.integers(-99, 99)))

    operands = [
        draft.graph.add_input(Tensor(f"x{i}", each, kind, quantization(kind)))
        for i, (each, kind) in enumerate(zip((shape, small), types, strict=True))
    ]
    if rng.random() < 0.5:
        operands = operands[::-1]
    y = draft.into(op, operands, Tensor("y", shape, dtype, quantization(dtype)))
    network = check(draft, [y], target, within=int(op == "sub"))
    if (op, dtype) != ("sub", "int16"):  # a difference whose scaling may end in a tie stays on the host
        assert [layer.ops for layer in network.layers] == [(op,)] and not network.host


@pytest.mark.parametrize("small", [(1, 1, 5, 21), (1, 6, 1, 1), (1, 6, 5, 1)], ids=str)
@pytest.mark.parametrize("op", ["add", "mul"])
def test_small_operands_of_slices_and_in_concatenations(op: str, small: tuple[int, ...]) -> None:
    """The pixels of an operand or a result may be apart only if the layer's pixels are the tensor's."""
    draft = Draft(np.random.default_rng(3))
    x, other = draft.input((1, 6, 5, 40)), draft.input(small)
    window: dict[str, Any] = {"starts": (0, 0, 0, 3), "sizes": (1, 6, 5, 21), "steps": (1, 1, 1, 1)}
    part = draft.node("slice", [x], (1, 6, 5, 21), like=x, **window)
    y = draft.node(op, [part, draft.node("tanh", [other], small, scale=1 / 128)], part.shape, scale=0.4)
    z = draft.node("sigmoid", [x], x.shape, like=y)
    both = draft.node("concat", [y, z], (1, 6, 5, 61), like=y, axis=3)
    for target in TARGETS:
        check(draft, [draft.node("tanh", [both], both.shape, scale=1 / 128)], target)


#: Shapes of two operands whose values repeat in rows of pixels: of images, of image rows, of both, of few channels.
ROWS = [
    ((4, 3, 5, 21), (4, 1, 1, 21)),
    ((2, 6, 5, 21), (1, 6, 1, 21)),
    ((3, 4, 5, 21), (3, 1, 5, 21)),
    ((3, 4, 5, 9), (1, 4, 5, 1)),
    ((3, 4, 5, 9), (3, 1, 5, 1)),
    ((1, 6, 1, 21), (1, 1, 5, 21)),
    ((4, 16, 16, 3), (4, 1, 1, 3)),
    ((1, 24, 24, 2), (2,)),
    ((1, 9, 1, 5), (1, 1, 64, 5)),
    ((5, 64), (5, 1)),
]


@pytest.mark.parametrize("produced", [False, True])
@pytest.mark.parametrize("target", [*TARGETS, "n32"])
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("shapes", ROWS, ids=str)
def test_values_of_rows_are_not_repeated(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], op: str, target: str, produced: bool
) -> None:
    """The second operand is in DRAM, or the layer before leaves it in the scratchpad."""
    seed = zlib.crc32(repr((shapes, op)).encode())
    draft = Draft(np.random.default_rng(seed))
    x, other = (draft.input(each, str(draft.rng.choice(("int8", "uint8")))) for each in shapes)
    if produced:
        other = draft.node("tanh", [other], other.shape, scale=1 / 128, dtype=other.dtype)
    operands = [x, other] if draft.rng.random() < 0.5 else [other, x]
    y = draft.node(op, operands, np.broadcast_shapes(*shapes), scale=0.4)
    network = check(draft, [y], target, within=int(op == "sub"))
    assert [layer.ops for layer in network.layers] == [("tanh",)] * produced + [(op,)], f"seed {seed}"


@pytest.mark.parametrize("where", ["DRAM", "scratchpad", "slice"])
@pytest.mark.parametrize(
    "types", [("int8", "uint8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16")]
)
@pytest.mark.parametrize(("target", "side"), [("n4", 12), ("n8", 23)])
@pytest.mark.parametrize("op", ["add", "mul"])
def test_value_per_pixel_of_few_channels(
    op: str, target: str, side: int, types: tuple[str, str], where: str
) -> None:
    """MATRIX repeats the values, unless they have 16 bits or the pixels are apart."""
    draft = Draft(np.random.default_rng(zlib.crc32(repr((op, target, types, where)).encode())))
    rng, channels = draft.rng, int(draft.rng.choice((2, 3, 5, 7)))
    shape, small = (1, side, side, channels), (1, side, side, 1)
    dtype = "int16" if "int16" in types else "int8"

    def quantization(dtype: str) -> Quantization:
        zero = {"int8": int(rng.integers(-99, 99)), "uint8": int(rng.integers(30, 220)), "int16": 0}[dtype]
        return Quantization.per_tensor(
            float(rng.uniform(0.6, 1.4)) * (2.0**-15 if dtype == "int16" else 2.0**-7), zero
        )

    meaning = quantization(types[0])
    if where == "slice":
        whole = draft.graph.add_input(Tensor("x", (*shape[:3], 9), types[0], meaning))
        starts, steps = (0, 0, 0, 1), (1, 1, 1, 1)
        x = draft.into(
            "slice",
            [whole],
            Tensor("part", shape, types[0], meaning),
            starts=starts,
            sizes=shape,
            steps=steps,
        )
    else:
        x = draft.graph.add_input(Tensor("x", shape, types[0], meaning))
    other = draft.graph.add_input(Tensor("other", small, types[1], quantization(types[1])))
    if where == "scratchpad" and types[1] != "int16":
        other = draft.node("tanh", [other], small, scale=1 / 128, dtype=types[1])
    y = draft.into(op, [x, other], Tensor("y", shape, dtype, quantization(dtype)))
    assert not check(draft, [y], target).host


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(30))
def test_rows_of_any_size_in_tiles_of_any_size(seed: int) -> None:
    """Tiles are parts of a row of pixels or several rows, with all or some of the channels."""
    draft = Draft(np.random.default_rng(seed))
    rng, op = draft.rng, ("add", "mul")[seed % 2]
    shape = tuple(int(size) for size in rng.integers(1, 12, 4))
    if rng.random() < 0.5:
        shape = (*shape[:3], int(rng.integers(1, 90)))
    kept = [(0, 3), (1, 3), (1, 2), (0, 2), (0, 2, 3)][seed % 5]
    small = tuple(size if axis in kept else 1 for axis, size in enumerate(shape))
    y = draft.node(op, [draft.input(shape), draft.input(small)], shape, scale=0.4)
    graph, inputs = draft.graph.finish([y.name]), draft.random_inputs()
    first = compile(graph, "n4")
    (name,) = first.schedule.layers
    how = {
        "rows": int(rng.choice((1, 2, 5, 13, 40, 10_000))),
        "columns": int(rng.choice((1, 3, 10_000))),
        "x_buffers": int(rng.integers(2, 5)),
    }
    schedule = replace(first.schedule, layers={name: replace(first.schedule.layers[name], **how)})
    network = compile(graph, "n4", schedule=schedule)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    assert np.array_equal(found[y.name], evaluate(graph, inputs)[y.name]), (
        f"seed {seed}: {shape}, {small}, {how}"
    )


#: Functions after a sum or product: name, attributes, and True if the quantization remains.
AFTER: list[tuple[str, dict[str, Any], bool]] = [
    ("clip", {"low": 0.0, "high": math.inf}, True),
    ("clip", {"low": 0.0, "high": 6.0}, True),
    ("clip", {"low": -1.0, "high": 1.0}, False),
    ("hard_swish", {}, False),
    ("requantize", {}, False),
]


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("seed", range(6))
def test_functions_of_a_sum_are_part_of_its_layer(seed: int, op: str, rounding: str) -> None:
    draft = Draft(np.random.default_rng(seed))
    rng, shape = draft.rng, (2, 5, 4, 13)
    small = (shape, (2, 1, 1, 13), (13,), (2, 5, 4, 1))[int(rng.integers(4))]
    dtype = str(rng.choice(("int8", "uint8")))
    y = draft.node(op, [draft.input(shape, dtype), draft.input(small, dtype)], shape, dtype=dtype, scale=0.1)
    for _ in range(int(rng.integers(1, 4))):
        name, attributes, same = AFTER[int(rng.integers(len(AFTER)))]
        dtype = dtype if same else str(rng.choice(("int8", "uint8")))
        y = draft.node(
            name,
            [y],
            shape,
            dtype=dtype,
            like=y if same else None,
            scale=float(rng.uniform(0.02, 0.1)),
            **attributes,
        )
    # A difference at a tie may be off by 1, which functions after it scale.
    network = check(draft, [y], "n8", rounding, within=5 * int(op == "sub"))
    assert len(network.layers) == 1, f"seed {seed}"


@pytest.mark.parametrize("op", ["add", "mul"])
def test_clip_of_an_int16_sum_is_part_of_its_layer(op: str) -> None:
    draft, shape = Draft(np.random.default_rng(5)), (1, 6, 7, 19)
    meaning = Quantization.per_tensor(2.0**-15 * 0.9, 0)
    operands = [draft.graph.add_input(Tensor(f"x{i}", shape, "int16", meaning)) for i in range(2)]
    y = draft.into(op, operands, Tensor("y", shape, "int16", meaning))
    z = draft.into("clip", [y], Tensor("z", shape, "int16", meaning), low=-0.1, high=0.4)
    assert len(check(draft, [z], "n8").layers) == 1


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
def test_functions_of_functions_are_one_table(rounding: str) -> None:
    """MobileNetV3's hard swish, as some converters write it, takes two layers."""
    draft = Draft(np.random.default_rng(7))
    x, three, sixth = draft.input((1, 6, 7, 19)), draft.constant(()), draft.constant(())
    shifted = draft.node("add", [x, three], x.shape, scale=0.1)
    gate = draft.node("clip", [shifted], x.shape, like=shifted, low=0.0, high=6.0)
    z = draft.node("mul", [draft.node("mul", [x, gate], x.shape, scale=0.3), sixth], x.shape, scale=0.2)
    network = check(draft, [z], "n8", rounding)
    assert [layer.ops for layer in network.layers] == [("add", "clip"), ("mul", "mul")]


def test_sum_with_another_reader_is_a_layer_of_its_own() -> None:
    draft, shape = Draft(np.random.default_rng(6)), (1, 6, 7, 19)
    y = draft.node("add", [draft.input(shape), draft.input(shape)], shape)
    z = draft.node("clip", [y], shape, like=y, low=0.0, high=math.inf)
    assert [layer.ops for layer in check(draft, [y, z]).layers] == [("add",), ("clip",)]


def test_small_operand_of_many_channels_is_cut() -> None:
    draft = Draft(np.random.default_rng(4))
    a, b = draft.input((3, 70_000)), draft.input((70_000,))
    check(draft, [draft.node("add", [a, b], a.shape, scale=0.3)], "n4")


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


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("seed", range(10))
def test_prelu_with_slopes_per_channel_is_one_pass(seed: int, rounding: str) -> None:
    draft = Draft(np.random.default_rng(seed))
    rng, channels = draft.rng, int(draft.rng.choice((1, 3, 7, 16, 37, 140)))
    types = [str(rng.choice(("int8", "uint8"))) for _ in range(3)]
    x = draft.input((2, 8, 8, channels), types[0])
    zero = int(rng.choice((0, 0, 40)))
    slopes = draft.constant(
        (channels,), types[1], Quantization.per_tensor(float(rng.uniform(0.002, 0.03)), zero)
    )
    y = draft.node("prelu", [x, slopes], x.shape, dtype=types[2], scale=float(rng.uniform(0.02, 0.3)))
    for target in ("n4", "n16"):
        (layer,) = check(draft, [y], target, rounding).layers
        assert type(layer) is ElementwiseLayer, f"seed {seed}"


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("slopes", [(2, 9, 7, 1), (9, 1, 1), (1, 7, 1), (2, 1, 1, 1), (2, 1, 7, 1)], ids=str)
def test_prelu_with_slopes_per_pixel_is_one_pass(slopes: tuple[int, ...], rounding: str) -> None:
    draft = Draft(np.random.default_rng(sum(slopes)))
    rng = draft.rng
    types = [str(rng.choice(("int8", "uint8"))) for _ in range(3)]
    x = draft.input((2, 9, 7, int(rng.choice((32, 48, 61)))), types[0])
    how = Quantization.per_tensor(float(rng.uniform(0.002, 0.03)), int(rng.choice((0, 40))))
    slope = draft.constant(slopes, types[1], how)
    y = draft.node("prelu", [x, slope], x.shape, dtype=types[2], scale=float(rng.uniform(0.02, 0.3)))
    for target in ("n4", "n8", "n16"):
        (layer,) = check(draft, [y], target, rounding).layers
        assert type(layer) is ElementwiseLayer, f"{target}, {types}"


@pytest.mark.parametrize("slopes", [(6, 5, 7), (5, 7)], ids=str)
def test_prelu_with_slopes_of_trailing_dimensions_is_one_pass_if_they_repeat(slopes: tuple[int, ...]) -> None:
    draft = Draft(np.random.default_rng(len(slopes)))
    x = draft.input((30, 6, 5, 7) if len(slopes) == 3 else (30, 5, 7))
    y = draft.node("prelu", [x, draft.constant(slopes, quantization=Quantization.per_tensor(0.01))], x.shape)
    for target in TARGETS:
        (layer,) = check(draft, [y], target).layers
        assert type(layer) is ElementwiseLayer


#: Shapes of two operands, neither of which has the shape of the result.
OUTER = [
    ((1, 9, 1, 1), (1, 1, 6, 5)),
    ((1, 7, 6, 1), (1, 1, 6, 21)),
    ((300, 1), (1, 17)),
    ((5, 8, 1), (8, 40)),
    ((1100, 1), (1, 3)),
    ((2, 1), (1, 700)),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("shapes", OUTER, ids=str)
def test_two_small_operands_are_not_repeated(
    shapes: tuple[tuple[int, ...], ...], op: str, target: str
) -> None:
    draft = Draft(np.random.default_rng(len(shapes[0])))
    dtype = str(draft.rng.choice(("int8", "uint8")))
    operands = [draft.input(shape, dtype) for shape in shapes]
    if draft.rng.random() < 0.5:
        operands = operands[::-1]
    y = draft.node(op, operands, np.broadcast_shapes(*shapes), dtype=dtype, scale=0.3)
    network = check(draft, [y], target, within=int(op == "sub"))
    assert len(network.layers) == 1 and not network.host


def test_prelu_of_more_channels_than_parameter_slots() -> None:
    draft = Draft(np.random.default_rng(2))
    x = draft.input((3, 2, 2, 300))
    slopes = draft.constant((300,), quantization=Quantization.per_tensor(0.01))
    assert len(check(draft, [draft.node("prelu", [x, slopes], x.shape, scale=0.1)], "n4").layers) == 1


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("slopes", [(5, 7, 9), (5, 7, 1), (5, 1, 9), (7, 9)], ids=str)
def test_slopes_of_each_image_element_repeat_in_a_batch(slopes: tuple[int, ...], batch: int) -> None:
    draft = Draft(np.random.default_rng(batch))
    x = draft.input((batch, 5, 7, 9))
    y = draft.node("prelu", [x, draft.constant(slopes, quantization=Quantization.per_tensor(0.01))], x.shape)
    for target in TARGETS:
        check(draft, [y], target)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(6))
def test_maxima_and_minima_convert_their_operands(seed: int, target: str, rounding: str) -> None:
    rng = np.random.default_rng(seed)
    draft, op, dtype = Draft(rng), ("maximum", "minimum")[seed % 2], ("int8", "uint8")[seed // 2 % 2]
    shape = (
        int(rng.integers(1, 3)),
        *(int(size) for size in rng.integers(1, 20, 2)),
        int(rng.integers(1, 40)),
    )
    small = [shape, shape, shape[-1:], (1, 1, 1, shape[-1])][int(rng.integers(4))]
    print(f"{op} of {dtype} {shape} and {small} on {target}, seed {seed}")
    a, b = draft.input(shape, dtype), draft.input(small, dtype)
    like = draft.input(shape, dtype)
    given = [a, b][:: 1 if rng.random() < 0.5 else -1]
    converted = [draft.node("requantize", [each], each.shape, like=like, dtype=dtype) for each in given]
    y = draft.node(op, converted, shape, like=like, dtype=dtype)
    z = draft.node(op, [y, like], shape, like=like, dtype=dtype)
    check(draft, [z], target, rounding)


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_conversions_are_part_of_maxima_and_minima(op: str) -> None:
    draft = Draft(np.random.default_rng(1))
    a, b = draft.input((1, 6, 7, 20)), draft.input((1, 6, 7, 20))
    moved = draft.node("requantize", [b], b.shape, like=a)
    network = check(draft, [draft.node(op, [a, moved], a.shape, like=a)], "n16")
    assert len(network.schedule.layers) == 1


@pytest.mark.parametrize("small", [(1, 9, 8, 24), (24,)])
def test_maxima_of_tensors_on_chip(small: tuple[int, ...]) -> None:
    draft = Draft(np.random.default_rng(2))
    x, other = draft.input((1, 9, 8, 24)), draft.input(small)
    a, b = draft.node("tanh", [x], x.shape), draft.node("sigmoid", [other], small)
    moved = draft.node("requantize", [b], small, like=a)
    y = draft.node("maximum", [a, moved], x.shape, like=a)
    z = draft.node("tanh", [y], x.shape)
    network = check(draft, [z], "n16")
    assert all(network.schedule.layers[layer.name].on_chip for layer in network.layers[:-1])


def test_maxima_of_unsupported_operands_have_a_reason() -> None:
    draft = Draft(np.random.default_rng(3))
    a, b = draft.input((1, 5, 6, 8)), draft.input((1, 5, 6, 8))
    network = check(draft, [draft.node("maximum", [a, b], a.shape, like=a)], "n16")
    assert "different quantizations" in str(network.host[0])
