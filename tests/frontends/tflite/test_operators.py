"""TFLite operators of random shapes on the accelerator equal LiteRT with each rounding."""

import re
import zlib
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.api import compile
from compiler.reference import evaluate
from hw.errors import InputError
from tests.support import tflite_cases as cases
from tests.support import tflite_kinds as kinds
from tests.support.one_operator import options
from tests.support.tflite_cases import Case
from tests.support.tflite_models import Draft, check, litert, read

TRIALS = 2
BYTES, SIGNED = ("int8", "uint8"), ("int8",)
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "concatenation": (cases.concatenation, BYTES),
    "leaky_relu": (cases.leaky_relu, BYTES),
    "prelu": (cases.prelu, BYTES),
    "gelu": (cases.gelu, BYTES),
    "abs": (cases.function("ABS"), SIGNED),
    "log": (cases.function("LOG", low=True), SIGNED),
    "sqrt": (cases.function("SQRT", low=True), SIGNED),
    "rsqrt": (cases.function("RSQRT", low=True), SIGNED),
    "relu": (cases.function("RELU"), BYTES),
    "relu6": (cases.function("RELU6"), BYTES),
    "relu_n1_to_1": (cases.function("RELU_N1_TO_1"), BYTES),
    "hard_swish": (cases.function("HARD_SWISH"), BYTES),
    "logistic": (cases.function("LOGISTIC", 1 / 256, 0), BYTES),
    "tanh": (cases.function("TANH", 1 / 128, 128), BYTES),
    "exp": (cases.function("EXP", 0.5), SIGNED),
    "batch_matmul": (cases.batch_matmul, SIGNED),
    "pad": (cases.pad("PAD"), BYTES),
    "padv2": (cases.pad("PADV2"), BYTES),
    "mirror_pad": (cases.mirror_pad, BYTES),
    "transpose": (cases.transpose, BYTES),
    "slice": (cases.part, BYTES),
    "strided_slice": (cases.strided_slice, BYTES),
    "strided_ellipsis": (cases.strided_ellipsis, BYTES),
    "split": (cases.split, BYTES),
    "split_v": (cases.split_v, BYTES),
    "pack": (cases.pack, BYTES),
    "unpack": (cases.unpack, BYTES),
    "gather": (cases.gather, BYTES),
    "resize": (cases.resize, BYTES),
    "resize_bilinear": (cases.bilinear, BYTES),
    "transpose_conv": (cases.transpose_conv, BYTES),
    "convolution": (cases.convolution, BYTES),
    "dense": (cases.dense, BYTES),
    "average_pool": (cases.pool("AVERAGE_POOL_2D"), BYTES),
    "max_pool": (cases.pool("MAX_POOL_2D"), BYTES),
    "depthwise": (cases.depthwise, BYTES),
    "space_to_batch": (cases.space_to_batch, BYTES),
    "depth_to_space": (cases.depth_to_space, BYTES),
    "softmax": (cases.softmax, BYTES),
    "tile": (cases.tile, SIGNED),
    "broadcast_to": (cases.broadcast_to, BYTES),
    "reverse": (cases.reverse, BYTES),
    "requantize": (cases.requantize, BYTES),
    "add": (cases.binary("ADD"), BYTES),
    "sub": (cases.binary("SUB"), BYTES),
    "mul": (cases.binary("MUL"), BYTES),
    "maximum": (cases.extreme("MAXIMUM"), BYTES),
    "minimum": (cases.extreme("MINIMUM"), BYTES),
    "mean": (cases.reduction("MEAN"), BYTES),
    "sum": (cases.reduction("SUM"), BYTES),
    "reduce_max": (cases.reduction("REDUCE_MAX", same=True), BYTES),
    "reduce_min": (cases.reduction("REDUCE_MIN", same=True), BYTES),
}
#: Operators on 8-bit integers only, or of booleans.
SELECTING: dict[str, tuple[Case, tuple[str, ...]]] = {
    kind.lower(): (cases.comparison(kind), BYTES)
    for kind in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
} | {
    "select": (cases.selection, SIGNED),
    "arg_max": (cases.arg_extreme("ARG_MAX"), BYTES),
    "arg_min": (cases.arg_extreme("ARG_MIN"), BYTES),
}


#: Omitted cases: LiteRT's reference sum reads signed values as unsigned.
LEFT_OUT = {("sum", "int8", "reference")}
#: Operators that run on the host for some sums (at or near a tie), scales or sizes, and a pattern of the reason.
HOSTED = {
    **{
        (op, "xnnpack"): "no multiplier reproduces the float32 rounding of some sums"
        for op in ("sum", "mean")
    },
    **{
        ("concatenation", rounding): r"no multiplier reproduces LiteRT's float32 rounding of '\w+'"
        for rounding in ("reference", "xnnpack")
    },
    ("resize_bilinear", "reference"): r"some float32 fractions are not multiples of 1/256",
}
COMBINATIONS = [
    (name, dtype, rounding)
    for name, (_, types) in CASES.items()
    for dtype in types
    for rounding in ("reference", "xnnpack")
    if (name, dtype, rounding) not in LEFT_OUT
]


def most_off(name: str, rounding: str) -> int:
    """Return the largest permitted difference.

    LiteRT's default kernel for conversions between int8 and uint8 rounds the elements of full SIMD vectors differently
    from the remaining elements.
    """
    return int(name == "softmax" or (name, rounding) == ("requantize", "xnnpack"))


def on_the_accelerator(name: str, dtype: str, rounding: str, rng: np.random.Generator, folder: Path) -> None:
    """Compare one model with LiteRT; all of its operators run on the accelerator."""
    draft = Draft(rng, dtype)
    CASES[name][0](draft)
    network = check(draft, folder, rounding, within=most_off(name, rounding))
    for node in network.host:
        assert re.fullmatch(HOSTED.get((name, rounding), ""), node.reason)


@pytest.mark.parametrize(("name", "dtype", "rounding"), COMBINATIONS)
def test_operator_on_the_accelerator_equals_litert(
    name: str, dtype: str, rounding: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    for _ in range(TRIALS):
        on_the_accelerator(name, dtype, rounding, rng, tmp_path)


@pytest.mark.parametrize("name", SELECTING)
def test_comparisons_and_selections_on_the_accelerator(
    name: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    case, types = SELECTING[name]
    for trial in range(TRIALS):
        draft = Draft(rng, types[trial % len(types)])
        case(draft)
        network = check(draft, tmp_path, ("reference", "xnnpack")[trial % 2])
        # A single condition is not worth a program.
        single = all(np.prod(tensor.shape) == 1 for tensor in network.inputs)
        assert {node.reason for node in network.host} <= (
            {"the host computes single conditions"} if single else set()
        )


@pytest.mark.parametrize("kind", ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"])
@pytest.mark.parametrize(
    "scales", [(0.0625, 0.016481785), (0.05, 0.1), (0.5, 0.25), (0.002, 0.002), (0.004, 0.004), (0.9, 0.003)]
)
def test_comparisons_of_all_pairs(kind: str, scales: tuple[float, float], tmp_path: Path) -> None:
    """LiteRT rounds operands to multiples of 1/256, so that it finds different values equal."""
    draft = Draft(np.random.default_rng(0), "uint8")
    shape, every = (1, 256, 256, 1), np.arange(256, dtype=np.uint8)
    names = [draft.input(shape), draft.input(shape)]
    for name, scale, zero in zip(names, scales, (48, 48 if scales[0] == scales[1] else 196), strict=True):
        draft.meaning[name] = (scale, zero)
    draft.op(
        kind, names, shape, options("".join(word.capitalize() for word in kind.split("_"))), dtype="bool"
    )
    data = draft.file()
    path = tmp_path / "pairs.tflite"
    path.write_bytes(data)
    given = [np.broadcast_to(each, shape[1:3]).reshape(shape) for each in (every[:, None], every)]
    network = compile(path, "n8", rounding="reference", cache=False)
    (found,), (wanted,) = network(*given).values(), litert(data, given, "reference")
    assert np.array_equal(found, wanted)


#: int16 cases in which LiteRT is wrong: it reads slopes as bytes, and the signed values of a sum as unsigned. The test
#: asserts that its outputs differ, so that it fails when a release of LiteRT corrects them.
WRONG_IN_LITERT = {("prelu", "reference"), ("prelu", "xnnpack"), ("sum", "reference")}
#: int16 cases for which LiteRT has no kernel, but the accelerator has.
MORE_THAN_LITERT = ("relu_n1_to_1", "depth_to_space")
#: Cases that neither LiteRT nor the compiler supports, and the compiler's message.
UNSUPPORTED = {("resize_bilinear", "int32"): "is supported for float32 and quantized tensors only"}
#: Operators whose tables the C library computes; their rounding depends on the library's version.
BY_LIBRARY = ("gelu", "exp", "log")


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("dtype", ["int16", "int32"])
@pytest.mark.parametrize("name", CASES)
def test_wider_integers(name: str, dtype: str, rounding: str, tmp_path: Path) -> None:
    """int16 and int32 operators equal LiteRT; operators without a LiteRT kernel run on the host for a stated reason."""
    seed = zlib.crc32(f"{name} {dtype} {rounding}".encode())
    print(f"seed {seed}")
    draft = Draft(np.random.default_rng(seed), dtype)
    CASES[name][0](draft)
    inputs = [draft.values(each) for each in draft.inputs]
    try:
        litert(draft.file(), inputs, rounding)
    except (RuntimeError, ValueError):
        (tmp_path / "model.tflite").write_bytes(draft.file())
        if message := UNSUPPORTED.get((name, dtype)):
            with pytest.raises(InputError, match=message):
                compile(tmp_path / "model.tflite", "n8", rounding=rounding)
            return
        network = compile(tmp_path / "model.tflite", "n8", rounding=rounding)
        assert all(node.reason for node in network.host)
        assert network.host or name in MORE_THAN_LITERT
        return
    wrong = dtype == "int16" and (name, rounding) in WRONG_IN_LITERT
    with pytest.raises(AssertionError, match=r"\d+ differ, by") if wrong else nullcontext():
        check(draft, tmp_path, rounding, within=int(dtype == "int16" and name in BY_LIBRARY))


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
def test_int16_average_pool(rounding: str, tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "int16")
    settings = options(
        "Pool2D",
        padding=schema.Padding.VALID,
        strideH=2,
        strideW=2,
        filterHeight=2,
        filterWidth=2,
        fusedActivationFunction=0,
    )
    x = draft.input((1, 4, 4, 8))
    draft.op("AVERAGE_POOL_2D", [x], (1, 2, 2, 8), settings, like=x)
    network = check(draft, tmp_path, rounding)
    assert not network.host
    np.testing.assert_array_equal(network(np.full((1, 4, 4, 8), 1000, np.int16))["t1"], 1000)


def test_addition_after_a_transposed_convolution(tmp_path: Path) -> None:
    """The addition is a separate layer, because a transposed convolution's epilogue cannot read a second tensor."""
    draft = Draft(np.random.default_rng(0), "int8")
    cases.transpose_conv(draft)
    y = draft.outputs[0]
    shape = draft.tensors[y][0]
    given = options("Add", fusedActivationFunction=0, potScaleInt16=False)
    draft.then(draft.op("ADD", [y, draft.input(shape)], shape, given, scale=0.5))
    assert not check(draft, tmp_path, "reference").host


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (cases.transpose, "int8"),
        (cases.pad("PAD"), "uint8"),
        (cases.gather, "int16"),
        (cases.concatenation, "int16"),
        (cases.extreme("MAXIMUM"), "int8"),
        (cases.pool("MAX_POOL_2D"), "int16"),
        (cases.reduction("REDUCE_MAX", same=True), "int8"),
        (kinds.two("LESS", "Less", boolean=True), "int16"),
    ],
)
def test_stored_integers_of_other_scales_are_refused(case: Case, dtype: str, tmp_path: Path) -> None:
    """LiteRT copies or compares stored integers without regard to scales."""
    draft = Draft(np.random.default_rng(1), dtype)
    case(draft)
    last = draft.outputs[0] if draft.outputs[0] in draft.meaning else draft.inputs[-1]
    scale, zero = draft.meaning[draft.inputs[0]]  # type: ignore[misc]
    draft.meaning[last] = (scale * 1.01, zero)
    with pytest.raises(InputError, match="uses the stored integers of"):
        read(draft, tmp_path)


def test_scales_that_differ_by_rounding(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(1), "int8")
    cases.transpose(draft)
    scale, zero = draft.meaning["x0"]  # type: ignore[misc]
    draft.meaning[draft.outputs[0]] = (float(np.float32(scale * (1 + 1e-6))), zero)
    check(draft, tmp_path, "reference")


def test_activation_of_a_concatenation_is_refused(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "float32")
    given = options("Concatenation", axis=0, fusedActivationFunction=1)
    draft.op("CONCATENATION", [draft.input((2, 3)), draft.input((2, 3))], (4, 3), given)
    with pytest.raises(InputError, match="reject or ignore its activation"):
        read(draft, tmp_path)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
def test_logarithm_of_negative_numbers(rounding: str, tmp_path: Path) -> None:
    """LiteRT's table contains the smallest integer for numbers without a logarithm."""
    draft = Draft(np.random.default_rng(0), "int8")
    x = draft.input((300,), zero=115)
    draft.op("LOG", [x], (300,), zero=-15)
    check(draft, tmp_path, rounding)


@pytest.mark.parametrize("made", ["int8", "int16", "int32", "float32"])
def test_casts_convert_stored_integers(made: str, tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "int8")
    x = draft.input((3, 40))
    draft.op("CAST", [x], (3, 40), options("Cast"), dtype=made)
    check(draft, tmp_path, "reference")


#: Float32 operators; ROUND and similar operators have steps, which quantization of the input may shift.
FLOATS: dict[str, Case] = {
    "neg": cases.function("NEG"),
    "square": cases.function("SQUARE"),
    "sin": cases.function("SIN"),
    "cos": cases.function("COS"),
    "div": cases.divided,
    "pow": cases.power,
    "squared_difference": cases.squared_difference,
    "cumsum": cases.cumsum,
    "add_n": cases.add_n,
}
STEPS = {
    "floor": cases.function("FLOOR"),
    "ceil": cases.function("CEIL"),
    "round": cases.function("ROUND"),
    "sign": cases.function("SIGN"),
}
SHARED = {name: case for name, (case, _) in CASES.items() if name not in ("requantize", "exp")}
#: Largest relative deviation of int8 results, to which each operator contributes.
MOST_NOISE = 0.06


def deviation(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the root mean square of the differences, relative to the root mean square of the expected values."""
    return float(np.sqrt(np.mean((found - wanted) ** 2) / max(np.mean(wanted**2), 1e-6)))


@pytest.mark.parametrize("name", sorted({**SHARED, **FLOATS, **STEPS}))
def test_float_operators(name: str, tmp_path: Path) -> None:
    """A float model equals LiteRT, and all of its operators run on the accelerator after quantization."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(TRIALS):
        draft = Draft(rng, "float32")
        (SHARED | FLOATS | STEPS)[name](draft)
        graph = read(draft, tmp_path)
        inputs = [draft.values(each) for each in draft.inputs]
        named = dict(zip(graph.inputs, inputs, strict=True))
        wanted, real = litert(draft.file(), inputs, "xnnpack"), evaluate(graph, named)
        for output, array in zip(graph.outputs, wanted, strict=True):
            np.testing.assert_allclose(real[output], array, rtol=2e-5, atol=2e-5)
        network = compile(graph, "n8", calibration={key: value[None] for key, value in named.items()})
        assert [node.reason for node in network.host if not node.edge] == []
        if name not in STEPS:
            found = network(*inputs)
            for output, array in zip(graph.outputs, wanted, strict=True):
                assert deviation(found[output], array) < MOST_NOISE, output
