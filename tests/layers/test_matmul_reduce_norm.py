"""Batched products, reductions, norms, transposed convolutions and softmax agree with the host's operators."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.norm import NormLayer, sum_scales
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from tests.schedule.test_any_schedule import perturbed
from tests.support.compute_graphs import KINDS, RandomDraft, scale_of
from tests.support.graphs import Draft, check, run_on

TARGETS = ("n4", "n8", "n16")
SEEDS = range(6)


def graph_of(kind: str, seed: int) -> tuple[RandomDraft, Graph]:
    chance = RandomDraft(seed)
    y = KINDS[kind][0](chance)
    return chance, chance.graph.finish([y.name])


def compare(
    kind: str,
    seed: int,
    network: CompiledNetwork,
    inputs: dict[str, np.ndarray],
    found: dict[str, np.ndarray],
) -> None:
    assert network.graph is not None
    wanted = evaluate(network.graph, inputs, rounding=network.rounding)  # type: ignore[arg-type]
    for name, array in wanted.items():
        off = np.abs(found[name].astype(int) - array.astype(int))
        assert off.max() <= KINDS[kind][1], (
            f"{kind}, seed {seed}: {off.max()} off in {np.count_nonzero(off)} of {off.size}\n{network.graph}"
            f"\n{network.schedule.to_json()}"
        )


def on_golden(network: CompiledNetwork, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return run_on(device, network, inputs)


def in_all_layers(schedule: Schedule, **changes: int | bool) -> Schedule:
    """Return a schedule with the same changes in all layers."""
    layers = {name: replace(layer, **changes) for name, layer in schedule.layers.items()}
    return replace(schedule, layers=layers)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs_under_random_schedules(kind: str, target: str, seed: int) -> None:
    chance, graph = graph_of(kind, seed)
    first = compile(graph, target, strict=True)
    inputs = chance.random_inputs()
    compare(kind, seed, first, inputs, on_golden(first, inputs))
    schedules = [
        in_all_layers(first.schedule, on_chip=True, depth=1),
        in_all_layers(first.schedule, on_chip=False, depth=2, rows=2, columns=1),
        perturbed(first.schedule, random.Random(seed)),
    ]
    ran = 0
    for schedule in schedules:
        try:
            network = compile(graph, target, schedule=schedule)
        except InputError as error:
            assert "fit" in str(error)
            continue
        ran += 1
        compare(kind, seed, network, inputs, on_golden(network, inputs))
    assert ran, f"{kind}, seed {seed}: no schedule fits"


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(50, 53))
@pytest.mark.parametrize("rounding", ["xnnpack", "onnxruntime"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_rounding_modes(kind: str, rounding: str, seed: int) -> None:
    chance, graph = graph_of(kind, seed)
    network, inputs = compile(graph, "n8", strict=True, rounding=rounding), chance.random_inputs()
    compare(kind, seed, network, inputs, on_golden(network, inputs))


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("kind", KINDS)
def test_rtl(kind: str, seed: int) -> None:
    chance, graph = graph_of(kind, seed)
    network = compile(graph, "n8", strict=True)
    inputs = chance.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        compare(kind, seed, network, inputs, run_on(device, network, inputs))


@pytest.mark.parametrize("epsilon", [1e-12, 0.5])
@pytest.mark.parametrize("amplitude", [0, 1, 2, 128])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_of_rows_with_little_variance(op: str, amplitude: int, epsilon: float) -> None:
    """Rows with little variance are normalized as on the host, for variances from below epsilon to the whole range."""
    draft = Draft(np.random.default_rng(amplitude))
    x = draft.input((7, 768))
    epsilon *= scale_of(x) ** 2
    y = draft.node(op, [x], x.shape, scale=1.5 / 127, axis=1, epsilon=epsilon)
    network = compile(draft.graph.finish([y.name]), "n16", strict=True)
    zero = x.quantization.zero_point[0] if x.quantization else 0
    near = zero + draft.rng.integers(-amplitude, amplitude + 1, x.shape)
    inputs = {x.name: np.clip(near, -128, 127).astype(np.int8)}
    compare("norm", amplitude, network, inputs, on_golden(network, inputs))


def rows_for_sums(rng: np.random.Generator, columns: int, dtype: str) -> np.ndarray:
    """Return rows whose variance is small, large or random, at both ends of the range of the type."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    rows = [rng.integers(low, high + 1, (8, columns)), rng.integers(low, low + 3, (8, columns))]
    for base, other in ((low, low + 1), (high, high - 1), (low + 128, low + 129), (low, high)):
        for count in (0, 1, 2, columns // 2, columns - 1):
            rows.append(np.where(np.arange(columns) < count, other, base)[None])
    return np.concatenate(rows).astype(dtype)


@pytest.mark.random_cases("epsilon", "dtype")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("epsilon", [1e-12, 0.003, 0.7])
@pytest.mark.parametrize("columns", [2, 37, 361, 384, 768, 777, 1024, 1280, 1501, 2000, 2048, 3072, 4095])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_errors_of_norms_are_within_the_bound(op: str, columns: int, epsilon: float, dtype: str) -> None:
    """Results differ from real numbers by at most half a step and the errors of the variance and of the parameters.

    Epsilon is in units of the squared scale; the largest normalized element becomes at most 127 steps.
    """
    rng = np.random.default_rng(columns)
    values = rows_for_sums(rng, columns, dtype)
    zero = int(np.iinfo(dtype).min) + 100
    draft = Draft(rng)
    x = draft.graph.add_input(Tensor("x", values.shape, dtype, Quantization.per_tensor(0.1, zero)))
    gamma = rng.normal(0, 1, columns)
    gamma[0] = 0.0
    beta = rng.normal(0, 0.5, columns) if op == "layer_norm" else np.zeros(columns)
    step = float(np.float32(rng.choice([math.sqrt(columns) / 127, 3 / 127])))
    factors = [gamma, beta][: 1 + (op == "layer_norm")]
    for number, each in enumerate(factors):
        factor = Tensor(f"f{number}", each.shape, "float32", None, each.astype(np.float32))
        draft.graph.add_tensor(factor)
    y = Tensor("y", values.shape, "int8", Quantization.per_tensor(step, 5))
    names = [draft.graph.tensors[f"f{number}"] for number in range(len(factors))]
    draft.into(op, [x, *names], y, axis=1, epsilon=epsilon * 0.01)
    prepared = ModelCompiler(
        draft.graph.finish(["y"]), load_target("n16"), CompileOptions(rounding="reference")
    )
    ((layer,),) = (each.layers for each in prepared.lowered(()))
    got = on_golden(prepared.network(), {"x": values})["y"].astype(int)
    real = values.astype(np.float64) - zero
    if op == "layer_norm":
        real -= real.mean(-1, keepdims=True)
    variance = np.maximum((real**2).mean(-1, keepdims=True) + epsilon, 1e-300)
    want = real / np.sqrt(variance) * gamma.astype(np.float32) / step + beta.astype(np.float32) / step + 5
    assert isinstance(layer, NormLayer) and layer.unit is not None
    widest = 255 * layer.scale.error(op == "layer_norm", epsilon)
    bound = 0.5 + min(widest, 0.5) + 0.02
    assert np.abs(got - np.clip(want, -128, 127)).max() <= bound, f"seed {columns}"


def test_variances_are_computed_from_sums_for_all_widths(rng: np.random.Generator) -> None:
    """Three passes are exact enough for results up to 230 steps, unless epsilon is about a unit of the sums.

    Epsilon is in units of the squared scale.
    """
    for columns in (*range(2, 40), *rng.integers(40, 4097, 60).tolist(), 4095, 4096):
        for epsilon in (1e-12, float(10.0 ** rng.uniform(-3.5, 0)), float(rng.uniform(0, 3))):
            scales = sum_scales(columns, True, epsilon, 128**2)
            assert min(each.error(True, epsilon) for each in scales) * 230 <= 0.5, (columns, epsilon)


@pytest.mark.parametrize("constant", [0, 1])
def test_either_operand_of_a_product_may_be_constant(constant: int) -> None:
    draft = Draft(np.random.default_rng(constant))
    shapes = [(3, 7, 20), (3, 20, 9)]
    factors = [(draft.constant if i == constant else draft.input)(shape) for i, shape in enumerate(shapes)]
    network = check(draft, [draft.node("matmul", factors, (3, 7, 9), scale=5.0)])
    assert not network.host


def test_large_mean_is_split() -> None:
    draft = Draft(np.random.default_rng(3))
    x = draft.input((1, 200, 150, 24))
    outs = [
        draft.node("reduce_mean", [x], shape, scale=0.01, axes=axes, keep=False)
        for axes, shape in (((1, 2), (1, 24)), ((1, 2, 3), (1,)), ((2, 3), (1, 200)))
    ]
    assert not check(draft, outs, "n4").host


@pytest.mark.parametrize("size", [(16, 16), (24, 16)])
def test_average_pool_rounds_ties_away_from_zero(size: tuple[int, int]) -> None:
    draft = Draft(np.random.default_rng(4))
    x = draft.input((1, *size, 12))
    window = {"kernel": size, "strides": (1, 1), "pads": (0, 0, 0, 0), "count_pads": False}
    y = draft.node("avg_pool2d", [x], (1, 1, 1, 12), like=x, **window)
    network = compile(draft.graph.finish([y.name]), "n8", strict=True)
    image = np.broadcast_to(np.arange(-6, 6, dtype=np.int8), x.shape).copy()
    image[:, ::2] += 1
    inputs = {x.name: image}
    found = on_golden(network, inputs)
    compare("average", 4, network, inputs, found)
    assert found[y.name].reshape(-1).tolist() == [-6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fold", [False, True])
def test_transposed_convolution_with_cropped_edges(fold: bool) -> None:
    """If the padding is as large as the kernel, the cropped result equals the host's."""
    draft = Draft(np.random.default_rng(5))
    x, weights = draft.input((1, 7, 9, 3)), draft.constant((5, 2, 2, 3))
    y = draft.node(
        "conv_transpose2d",
        [x, weights],
        (1, 5, 7, 5),
        scale=20.0,
        strides=(1, 1),
        pads=(2, 2, 1, 1),
        dilations=(1, 1),
        groups=1,
        output_pads=(0, 0),
    )
    graph = draft.graph.finish([y.name])
    schedule = in_all_layers(compile(graph, "n8", strict=True).schedule, fold_kernel_width=fold)
    network, inputs = compile(graph, "n8", schedule=schedule), draft.random_inputs()
    compare("transposed", 5, network, inputs, on_golden(network, inputs))


def test_many_small_loads_do_not_overflow_semaphores() -> None:
    chance, graph = graph_of("transposed", 307)
    network, inputs = compile(graph, "n8", strict=True), chance.random_inputs()
    compare("transposed", 307, network, inputs, on_golden(network, inputs))


@pytest.mark.parametrize("scale", [1 / 256, 1 / 128, 0.00371, 2.0**-12, 0.3])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_softmax_into_any_scale(dtype: str, scale: float) -> None:
    draft = Draft(np.random.default_rng(7))
    x = draft.input((5, 37))
    y = draft.node("softmax", [x], x.shape, scale=scale, dtype=dtype, axis=1, beta=1.0)
    network = compile(draft.graph.finish([y.name]), "n8", strict=True)
    inputs = draft.random_inputs()
    compare("softmax", 7, network, inputs, on_golden(network, inputs))


#: Shape, of which axis 1 is that of a softmax, scales of input and result, and type.
ACROSS = (
    ((1, 21, 16, 16), 0.05, 1 / 256, "int8"),
    ((3, 7, 5, 17), 0.1, 1 / 256, "uint8"),
    ((2, 40, 90), 0.02, 0.0031, "int8"),
    ((1, 300, 10, 10), 0.15, 0.0005, "int8"),
    ((2, 2, 9, 99), 0.01, 0.7 / 256, "int8"),
    ((5, 2, 70), 0.004, 1 / 256, "uint8"),
    ((1, 2, 40, 16), 0.2, 0.0005, "int8"),
    ((3, 3, 17), 0.05, 1 / 256, "int8"),
    ((2, 6, 5, 8), 0.02, 1 / 256, "uint8"),
    ((1, 12, 40, 20), 0.03, 0.0031, "int8"),
    ((2, 131, 64), 0.004, 1 / 256, "int8"),
)


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
@pytest.mark.parametrize(("shape", "fine", "scale", "dtype"), ACROSS)
def test_softmax_over_columns(
    shape: tuple[int, ...], fine: float, scale: float, dtype: str, target: str
) -> None:
    """Almost all results equal the rounded exact ones; nothing is transposed."""
    axis = 1 - len(shape) if target == "n8" else 1
    rng = np.random.default_rng(7)
    draft, lowest = Draft(rng), np.iinfo(dtype).min
    x = draft.graph.add_input(Tensor("x", shape, dtype, Quantization.per_tensor(fine, 3)))
    y = Tensor("y", shape, dtype, Quantization.per_tensor(scale, lowest))
    draft.into("softmax", [x], y, axis=axis, beta=1.0)
    network = compile(draft.graph.finish(["y"]), target, strict=True)
    assert [layer.ops for layer in network.infos] == [("softmax",)]
    for inputs in (draft.random_inputs(), {"x": np.rint(rng.normal(0, 9, shape)).astype(dtype)}):
        found = on_golden(network, inputs)["y"]
        powers = np.exp(fine * inputs["x"].astype(np.float64))
        exact = powers / powers.sum(1, keepdims=True) / scale + lowest
        wanted = np.rint(np.clip(exact, lowest, np.iinfo(dtype).max)).astype(np.int64)
        wrong = wanted != found
        assert wrong.mean() < 1e-4
        assert (np.abs(exact - np.floor(exact) - 0.5)[wrong] < 0.01).all(), "only next to a tie"


def test_softmax_over_columns_under_other_schedules() -> None:
    draft = Draft(np.random.default_rng(7))
    x = draft.input((5, 9, 70))
    y = draft.node("softmax", [x], x.shape, scale=1 / 256, axis=1, beta=1.0)
    graph, inputs = draft.graph.finish([y.name]), draft.random_inputs()
    first = compile(graph, "n8", strict=True)
    wanted = on_golden(first, inputs)[y.name]
    ((name, layer),) = first.schedule.layers.items()
    for rows in (1, 4, 9, 20, 60):
        for buffers in (1, 3):
            other = replace(layer, rows=rows, x_buffers=buffers, y_buffers=buffers)
            network = compile(graph, "n8", schedule=replace(first.schedule, layers={name: other}))
            assert np.array_equal(on_golden(network, inputs)[y.name], wanted)


def test_softmax_of_few_or_many_columns_is_transposed() -> None:
    for shape in ((2, 5, 7), (1, 700, 64)):
        draft = Draft(np.random.default_rng(7))
        x = draft.input(shape)
        y = draft.node("softmax", [x], shape, scale=1 / 256, axis=1, beta=1.0)
        network, inputs = compile(draft.graph.finish([y.name]), "n8", strict=True), draft.random_inputs()
        compare("softmax", 7, network, inputs, on_golden(network, inputs))


NORM = {"epsilon": 1e-5}
UNSUPPORTED = [
    ("layer_norm", (1, 4, 4, 8), "int8", {"axis": 1, **NORM}, "along the last dimension"),
    ("rms_norm", (2, 9000), "int8", {"axis": 1, **NORM}, "over 9000 elements, more than 8192"),
    ("layer_norm", (2, 8), "int16", {"axis": 1, **NORM}, "must be int8 or uint8, not int16"),
    ("softmax", (2, 8), "int16", {"axis": 1, "beta": 1.0}, "must be int8 or uint8, not int16"),
    ("reduce_sum", (2, 3, 2, 3, 2, 3), "int8", {"axes": (0, 2, 4), "keep": True}, "too many strides"),
    (
        "reduce_max",
        (2, 3000, 2, 2100, 2),
        "int8",
        {"axes": (1, 3), "keep": True},
        "strides that are too long",
    ),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "attributes", "message"), UNSUPPORTED)
def test_unsupported_operators_are_named(
    op: str, shape: tuple[int, ...], dtype: str, attributes: dict, message: str
) -> None:
    draft = Draft(np.random.default_rng(0))
    meaning = Quantization.per_tensor(0.1)
    x = draft.graph.add_input(Tensor("x", shape, dtype, meaning))
    made = tuple(1 if i in attributes.get("axes", ()) else size for i, size in enumerate(shape))
    draft.into(op, [x], Tensor("y", made, dtype, meaning), **attributes)
    with pytest.raises(InputError, match=message):
        compile(draft.graph.finish(["y"]), "n8", strict=True)


@pytest.mark.parametrize(("columns", "inside"), [(2040, True), (2044, False)])
def test_rows_that_do_not_fit_the_accumulator_are_normalized_on_the_host(columns: int, inside: bool) -> None:
    """With so small an epsilon and so large a beta, the variance is computed from deviations in the accumulator."""
    draft = Draft(np.random.default_rng(0))
    x = draft.input((2, columns))
    factors = [
        draft.graph.add_tensor(Tensor(name, (columns,), "float32", None, np.full(columns, value, np.float32)))
        for name, value in (("gamma", 5.0), ("beta", -25.0))
    ]
    y = draft.node("layer_norm", [x, *factors], x.shape, scale=0.02, axis=1, **NORM | {"epsilon": 1e-12})  # type: ignore[arg-type]
    network = check(draft, [y], "n4", within=1)
    assert [f"over {columns} elements, which holds 1025 of 1024" in node.reason for node in network.host] == (
        [] if inside else [True]
    )
