"""TFLite models with int16 activations: equal to LiteRT, with all products on the accelerator."""

import random
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.api import compile
from compiler.reference import evaluate
from compiler.runtime.session import dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.frontends.tflite.test_operators import CASES
from tests.schedule.test_any_schedule import perturbed
from tests.support import tflite_cases as cases
from tests.support.graphs import run_on
from tests.support.int16_networks import conv, depthwise, int16_network, transpose_conv
from tests.support.one_operator import options
from tests.support.tflite_models import Draft, check, litert, read

PRODUCTS = {"conv2d", "depthwise_conv2d", "conv_transpose2d", "dense", "matmul"}
TARGETS = ("n4", "n8", "n16")
NETWORKS = 40


def random_networks(seeds: range, folder: Path) -> None:
    """Compare random networks on the golden model with LiteRT; their products run on the accelerator."""
    for seed in seeds:
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        draft = int16_network(rng, int(rng.integers(1, 6)))
        network = check(draft, folder, "reference", target=TARGETS[seed % 3])
        assert not PRODUCTS & {node.op for node in network.host}


def test_random_networks_equal_litert(tmp_path: Path) -> None:
    random_networks(range(NETWORKS), tmp_path)


def on_the_accelerator(folder: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Return the file of a convolutional network that runs on the accelerator only, an input and the output."""
    draft = Draft(np.random.default_rng(7), "int16")
    x = draft.input((1, 6, 7, 9))
    y = transpose_conv(draft, depthwise(draft, conv(draft, x)))
    draft.then(y)
    path = folder / "model.tflite"
    path.write_bytes(draft.file())
    values = draft.values(x)
    return path, values, litert(draft.file(), [values], "reference")[0]


def test_convolutions_on_rtl(tmp_path: Path) -> None:
    path, x, want = on_the_accelerator(tmp_path)
    network = compile(path, "n8", strict=True)
    with RtlDevice(network.config, dram_bytes(network)) as device:
        (found,) = run_on(device, network, {"x0": x}).values()
    np.testing.assert_array_equal(found, want)


def test_convolutions_under_random_schedules_and_in_batches(tmp_path: Path) -> None:
    path, x, want = on_the_accelerator(tmp_path)
    first = compile(path, "n8", strict=True)
    for seed in range(4):
        schedule = perturbed(first.schedule, random.Random(seed))
        print(f"seed {seed}")
        try:
            network = compile(path, "n8", schedule=schedule)
        except InputError:  # it does not fit
            continue
        (found,) = network(x).values()
        np.testing.assert_array_equal(found, want)
    pair = compile(path, "n8", batch=2)
    (found,) = pair(np.concatenate([x, x])).values()
    np.testing.assert_array_equal(found, np.concatenate([want, want]))


@pytest.mark.parametrize(
    "name", ["mean", "reduce_max", "average_pool", "max_pool", "add", "mul", "leaky_relu"]
)
def test_other_operators_under_random_schedules(name: str, tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(3), "int16")
    CASES[name][0](draft)
    path, inputs = tmp_path / "model.tflite", [draft.values(each) for each in draft.inputs]
    path.write_bytes(draft.file())
    (want,) = litert(draft.file(), inputs, "reference")
    first = compile(path, "n8", strict=True)
    for seed in range(3):
        print(f"seed {seed}")
        network = compile(path, "n8", schedule=perturbed(first.schedule, random.Random(seed)))
        np.testing.assert_array_equal(network(*inputs)[draft.outputs[0]], want)


def dense(d: Draft, k: int, *, scale: float, bias: str | None, rows: int = 200, **settings: int) -> str:
    """Add a dense layer with results of the given scale; return the name of its weights."""
    x = d.input((rows, k))
    weights, held = d.weights((16, k), 0)
    if bias is None:
        del d.tensors[held]
    else:
        d.tensors[held] = (d.tensors[held] * 997).astype(bias)
    given = options(
        "FullyConnected", fusedActivationFunction=0, weightsFormat=0, keepNumDims=False, **settings
    )
    operands = [x, weights, *([held] if bias else [])]
    d.op("FULLY_CONNECTED", operands, (rows, 16), given, scale=d.meaning[x][0] * scale)  # type: ignore[index]
    return weights


def convolution(d: Draft, channels: int, scale: float) -> None:
    """Add a 1x1 convolution of many channels whose weights, and some inputs, are extreme."""
    x = d.input((1, 2, 3, channels), scale=2.0**-12)
    weights, bias = d.weights((5, 1, 1, channels), 0)
    signs = d.rng.choice([-1, 1], (5, 1, 1, 1))
    d.tensors[weights] = (signs * d.rng.integers(100, 128, (5, 1, 1, channels))).astype(np.int8)
    settings = options(
        "Conv2D",
        padding=schema.Padding.SAME,
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=0,
    )
    d.op("CONV_2D", [x, weights, bias], (1, 2, 3, 5), settings, scale=scale)


@pytest.mark.parametrize(
    ("channels", "scale", "hosted"),
    [(500, 0.01, set()), (3000, 0.01, set()), (3000, 60.0, {"requantize_sum"})],
)
def test_sums_of_more_than_32_bits(channels: int, scale: float, hosted: set[str], tmp_path: Path) -> None:
    """Sums of high bytes are limited if larger sums saturate anyway; otherwise the host adds the sums."""
    draft = Draft(np.random.default_rng(channels), "int16")
    convolution(draft, channels, scale)
    path, data = tmp_path / "model.tflite", draft.file()
    path.write_bytes(data)
    network = compile(path, "n8")
    assert {node.op for node in network.host} == hosted
    rng = draft.rng
    extreme = rng.choice([-32768, 32767], (1, 2, 3, channels)).astype(np.int16)
    for x in (
        draft.values("x0"),
        extreme,
        np.full((1, 2, 3, channels), 32767, np.int16),
        np.full((1, 2, 3, channels), -32768, np.int16),
        rng.integers(-300, 300, (1, 2, 3, channels)).astype(np.int16),
    ):
        (want,) = litert(data, [x], "reference")
        np.testing.assert_array_equal(network(x)[draft.outputs[0]], want)


def test_dense_layer_with_a_power_of_two_runs_on_the_accelerator(tmp_path: Path) -> None:
    """LiteRT scales the sums of dense layers in double precision, which FUSE reproduces for few significant bits."""
    draft = Draft(np.random.default_rng(2), "int16")
    draft.meaning[weights := dense(draft, 20, scale=4.0, bias="int64")] = (2.0**-7, 0)
    draft.meaning["x0"], draft.meaning[draft.outputs[0]] = (2.0**-9, 0), (2.0**-6, 0)
    draft.meaning[f"{weights}:b"] = (2.0**-16, 0)
    assert not check(draft, tmp_path, "reference").host


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("bias", [None, "int64", "int32"])
def test_dense_layer(bias: str | None, rounding: str, tmp_path: Path) -> None:
    """LiteRT's optimized kernel rounds twice unless the bias is int64; an int32 bias needs an option of the file."""
    for seed in range(3):
        draft = Draft(np.random.default_rng(seed), "int16")
        settings = {"quantizedBiasType": schema.TensorType.INT32} if bias == "int32" else {}
        dense(draft, 30, scale=3.0, bias=bias, **settings)
        check(draft, tmp_path, rounding)


def test_litert_reads_int32_biases_as_int64(tmp_path: Path) -> None:
    """Without the option, LiteRT's reference kernels read int32 biases as int64; the compiler uses their values.

    The test fails when a release of LiteRT corrects this.
    """
    draft = Draft(np.random.default_rng(0), "int16")
    dense(draft, 30, scale=3.0, bias="int32")
    x = draft.values("x0")
    found = evaluate(read(draft, tmp_path), {"x0": x})[draft.outputs[0]]
    assert (found != litert(draft.file(), [x], "reference")[0]).any()
    bias = next(name for name in draft.tensors if name.endswith(":b"))
    draft.tensors[bias] = draft.tensors[bias].astype(np.int64)
    np.testing.assert_array_equal(found, litert(draft.file(), [x], "reference")[0])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", ["convolution", "dense", "depthwise"])
def test_int4_weights(name: str, dtype: str, tmp_path: Path) -> None:
    """int4 weights are widened; LiteRT wrongly reads int4 weights of int16 depthwise convolutions as bytes."""
    for seed in range(3):
        draft = Draft(np.random.default_rng(seed), dtype)
        getattr(cases, name)(draft)
        weights = next(key for key in draft.tensors if key.startswith("w") and not key.endswith(":b"))
        draft.narrow(weights)
        scale, zero = draft.meaning[draft.outputs[0]]  # type: ignore[misc]
        draft.meaning[draft.outputs[0]] = (scale / 10, zero)
        if (name, dtype) == ("depthwise", "int16"):
            path, x = tmp_path / "model.tflite", draft.values("x0")
            path.write_bytes(draft.file())
            draft.int4.clear()
            (want,) = litert(draft.file(), [x], "reference")
            np.testing.assert_array_equal(compile(path, "n8")(x)[draft.outputs[0]], want)
            continue
        check(draft, tmp_path, "reference")


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
def test_conversions_between_scales(rounding: str, tmp_path: Path) -> None:
    """LiteRT's default resolver converts int16 with its own kernel, not with XNNPACK's multipliers of eight bits."""
    for seed in range(5):
        draft = Draft(np.random.default_rng(seed), "int16")
        x = draft.input((3, 40))
        draft.op("QUANTIZE", [x], (3, 40), options("Quantize"))
        assert not check(draft, tmp_path, rounding).host


def test_softmax_of_large_scales(tmp_path: Path) -> None:
    """LiteRT shifts differences in 32 bits, which wrap for scales of more than 5."""
    draft = Draft(np.random.default_rng(1), "int16")
    x = draft.input((4, 30), scale=27.0)
    draft.op("SOFTMAX", [x], (4, 30), options("Softmax", beta=1.0), scale=2.0**-15)
    check(draft, tmp_path, "reference")


@pytest.mark.parametrize(
    ("kind", "scales", "reason"),
    [
        ("ADD", (2.0**-12, 2.0**-10, 2.0**-10), "pot_scale_int16"),
        ("SUB", (2.0**-12, 2.0**-10, 2.0**-10), "pot_scale_int16"),
        ("NEG", (2.0**-12, 2.0**-10), "negates the stored integers"),
    ],
)
def test_kernels_that_ignore_or_shift_scales_are_refused(
    kind: str, scales: tuple[float, ...], reason: str, tmp_path: Path
) -> None:
    draft = Draft(np.random.default_rng(0), "int16")
    operands = [draft.input((3, 8), scale=scale) for scale in scales[:-1]]
    given = (
        options(kind.capitalize(), fusedActivationFunction=0, potScaleInt16=True) if kind != "NEG" else None
    )
    draft.op(kind, operands, (3, 8), given, scale=scales[-1])
    with pytest.raises(InputError, match=reason):
        read(draft, tmp_path)


@pytest.mark.parametrize("kind", ["ADD", "SUB"])
def test_shifted_sums_of_equal_scales(kind: str, tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "int16")
    a = draft.input((3, 80), scale=2.0**-10)
    given = options(kind.capitalize(), fusedActivationFunction=0, potScaleInt16=True)
    draft.op(kind, [a, draft.input((3, 80), like=a)], (3, 80), given, like=a)
    assert not check(draft, tmp_path, "reference").host


def test_negation(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "int16")
    x = draft.input((3, 80))
    draft.op("NEG", [x], (3, 80), like=x)
    check(draft, tmp_path, "reference")
