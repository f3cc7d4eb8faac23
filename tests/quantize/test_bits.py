"""Tests of bits per layer: choice under an accuracy budget, exactness on the machine, errors."""

import itertools
import json

import numpy as np
import pytest

import compiler
from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Quantization, Tensor
from compiler.options import AccuracyBudget
from compiler.quantize import QuantizationReport, WeightNarrower, fit_bits, group_weights, quantize
from compiler.quantize.bits import bit_steps, expected_changes
from compiler.quantize.report import OutputErrors, quality_warnings, summary
from compiler.quantize.weights import damped, statistics_of, weight_range
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from hw.errors import InputError
from scripts.networks.digits import MODEL, Digits, load_digits_split
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, graph_of, numbers

SAMPLES = [{"x": numbers(*IMAGE, seed=i)} for i in range(10)]


@pytest.fixture(scope="module")
def floats(tmp_path_factory) -> Graph:
    return graph_of(tmp_path_factory.mktemp("bits"), BLOCK, WITHIN, IMAGE)


@pytest.fixture(scope="module")
def quantized(floats) -> Graph:
    return quantize(floats, SAMPLES[:6])[0]


@pytest.fixture(scope="module")
def narrower(quantized) -> WeightNarrower:
    return WeightNarrower(quantized, SAMPLES[:6], "reference")


def noise(quantized: Graph, made: Graph) -> OutputErrors:
    errors = OutputErrors()
    for sample in SAMPLES[6:]:
        errors.add(evaluate(quantized, sample)["y"], evaluate(made, sample)["y"])
    return errors


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_narrow_weights_have_few_values_and_real_values_near_those_of_int8(quantized, narrower, bits) -> None:
    made = narrower.narrowed(dict.fromkeys(narrower.layers, bits))
    low, high = weight_range(bits)
    assert narrower.layers and made.nodes.keys() == quantized.nodes.keys()
    for name in narrower.layers:
        x, old, *old_bias = quantized.ins(quantized.nodes[name])
        _, new, *bias = made.ins(made.nodes[name])
        assert new.dtype == "int8" and low <= new.data.min() and new.data.max() <= high
        assert new.quantization.axis is not None and not any(new.quantization.zero_point)
        exact, real = (each.quantization.dequantized(each.data) for each in (old, new))
        assert np.abs(real - exact).max() < 2 * max(new.quantization.scale)
        for each, before in zip(bias, old_bias, strict=True):
            scale = np.float32(x.quantization.scale[0]) * np.float32(new.quantization.scale)
            assert np.array_equal(np.float32(each.quantization.scale), scale)
            assert each.dtype == before.dtype == "int32"


def test_error_compensation_and_biases_reduce_the_noise_of_outputs(quantized, narrower) -> None:
    """Compare with weights rounded to the nearest step without clipping, and biases that are rescaled."""
    changed = {}
    for node in (quantized.nodes[name] for name in narrower.layers):
        x, old, *bias = quantized.ins(node)
        axis = old.quantization.axis
        others = tuple(i for i in range(old.data.ndim) if i != axis)
        scale = np.float32(old.quantization.scale) * np.abs(old.data.astype(np.float32)).max(others) / 7
        shape = [1] * old.data.ndim
        shape[axis] = -1
        real = old.quantization.dequantized(old.data)
        data = np.clip(np.rint(real / scale.reshape(shape)), -8, 7).astype(np.int8)
        changed[old.name] = with_data(old, data, scale, axis)
        for each in bias:
            product = (np.float32(x.quantization.scale[0]) * scale).astype(np.float32)
            whole = np.rint(each.quantization.dequantized(each.data) / product).astype(np.int32)
            changed[each.name] = with_data(each, whole, product, 0)
    nearest = rebuild(quantized, quantized, changed=changed)
    made = narrower.narrowed(dict.fromkeys(narrower.layers, 4))
    assert noise(quantized, made).noise < 0.6 * noise(quantized, nearest).noise


def with_data(tensor, data, scale, axis):
    q = Quantization(tuple(float(each) for each in scale), (0,) * len(scale), axis)
    return type(tensor)(tensor.name, tensor.shape, tensor.dtype, q, data)


def test_budget_in_decibels_holds_on_the_machine_and_smaller_ones_save_more(floats) -> None:
    means = []
    for budget in (35, 15):
        network = compiler.compile(
            floats,
            "n4",
            rounding="reference",
            calibration=SAMPLES[:6],
            accuracy_budget=AccuracyBudget(sqnr_db=budget),
        )
        assert network.quantization is not None
        report = network.quantization.weights
        assert report is not None
        assert report.samples == 6 and (report.sqnr_db is None or report.sqnr_db >= budget)
        means.append(report.mean_bits)
        restored = QuantizationReport.from_document(json.loads(json.dumps(network.quantization.document())))
        assert restored == network.quantization
        made, found = fit_bits(
            quantize(floats, SAMPLES[:6])[0],
            SAMPLES[:6],
            AccuracyBudget(sqnr_db=budget),
            rounding="reference",
            lanes=4,
        )
        assert found == report
        for sample in SAMPLES[6:8]:
            assert np.array_equal(network(**sample)["y"], evaluate(made, sample)["y"])
    assert means[1] < means[0] <= 8
    assert network.quantization is not None
    assert f"weights have {means[1]:.2f} bits on average" in "\n".join(
        summary(network.quantization.document())
    )


def perceptron(rng: np.random.Generator) -> Graph:
    """Return a float model of two dense layers whose inputs have different magnitudes."""
    graph = Graph("perceptron")
    x = graph.add_input(Tensor("x", (4, 96), "float32"))
    for name, outputs, biased in (("first", 64, True), ("second", 24, False)):
        w = rng.normal(size=(outputs, x.shape[1])) * rng.lognormal(0, 1.5, (1, x.shape[1]))
        arrays = [w, rng.normal(size=outputs)][: 1 + biased]
        parts = [
            graph.add_tensor(Tensor(f"{name}.{i}", each.shape, "float32", data=each.astype(np.float32)))
            for i, each in enumerate(arrays)
        ]
        y = graph.add_tensor(Tensor(f"{name}.y", (4, outputs), "float32"))
        graph.add_node(Node(name, "dense", (x.name, *(each.name for each in parts)), (y.name,), {}))
        x = y
    return graph.finish([x.name])


def test_int4_weights_of_dense_layers_have_groups_on_targets_with_factors(rng) -> None:
    floats, samples = perceptron(rng), {"x": rng.normal(size=(24, 4, 96)).astype(np.float32)}
    graph, _ = quantize(floats, samples)
    inputs = [{"x": each} for each in samples["x"]]
    plain, grouped = (WeightNarrower(graph, inputs, "reference", lanes) for lanes in (0, 8))
    for bits, ops in ((3, ["block_dense"] * 2), (4, ["block_dense"] * 2), (5, ["dense"] * 2)):
        made = grouped.narrowed({"first": bits, "second": bits})
        assert [node.op for node in made if node.op in ("dense", "block_dense")] == ops
        low, high = weight_range(bits)
        for node in made:
            if node.op == "block_dense":
                _, weights, factors, *_ = made.ins(node)
                assert weights.data is not None
                assert low <= weights.data.min() and weights.data.max() <= high
                assert factors.shape == (weights.shape[0], weights.shape[1] // 32)
        for name in ("first", "second"):
            ratio = grouped.noise(name, bits) / plain.noise(name, bits)
            assert ratio < 0.9 if bits <= 4 else ratio == 1


def test_budgets_use_groups_that_run_exactly_as_computed(rng) -> None:
    floats, samples = perceptron(rng), {"x": rng.normal(size=(12, 4, 96)).astype(np.float32)}
    budget = AccuracyBudget(sqnr_db=15)
    graph, _ = quantize(floats, samples)
    made, _ = fit_bits(graph, samples, budget, lanes=8)
    network = compiler.compile(floats, "n8", calibration=samples, accuracy_budget=budget)
    ops = {op for stage in network.stages for info in stage.infos for op in info.ops}
    assert "block_dense" in ops
    inputs = {"x": samples["x"][0]}
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run(inputs)
    (name,) = found
    assert np.array_equal(found[name], evaluate(made, inputs)[name])


def network_of_channels(seed: int, kind: str) -> Graph:
    """Return a float network in which channels between two layers have different magnitudes and weights.

    `kind` names what is between the layers.
    """
    rng = np.random.default_rng(seed)
    graph = Graph(kind)
    graph.add_input(Tensor("x", (4, 12) if kind in ("norm", "residual") else (1, 10, 10, 8), "float32"))
    spread = rng.lognormal(0, 1.2, 12)

    def add(op, inputs, size, arrays=(), **attributes):
        name = f"{op}{len(graph.nodes)}"
        for i, each in enumerate(arrays):
            graph.add_tensor(Tensor(f"{name}.{i}", each.shape, "float32", data=each.astype(np.float32)))
        graph.add_tensor(Tensor(f"{name}.y", size, "float32"))
        names = (*inputs, *(f"{name}.{i}" for i in range(len(arrays))))
        graph.add_node(Node(name, op, names, (f"{name}.y",), attributes))
        return f"{name}.y"

    form = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    if kind == "norm":
        gains = [spread, rng.normal(size=12) * spread]
        y = add("layer_norm", ["x"], (4, 12), gains, axis=1, epsilon=1e-5)
    elif kind == "residual":
        y = add("dense", ["x"], (4, 12), [rng.normal(size=(12, 12)) * spread[:, None], spread])
        y = add("add", [y, "x"], (4, 12))
    else:
        first = rng.normal(size=(12, 3, 3, 8)) * spread[:, None, None, None]
        y = add("conv2d", ["x"], (1, 8, 8, 12), [first, spread], **form)
        y = add("clip", [y], (1, 8, 8, 12), low=0.0, high=6.0 if kind == "relu6" else np.inf)
        side = 4 if kind == "turned" else 2
        window = {"kernel": (side, side), "strides": (side, side), "pads": (0, 0, 0, 0)}
        y = add("max_pool2d", [y], (1, 8 // side, 8 // side, 12), **window)
    if kind == "turned":
        y = add("transpose", [y], (1, 12, 2, 2), perm=(0, 3, 1, 2))
        y = add("reshape", [y], (1, 48), shape=(1, 48))
        weights = rng.normal(size=(16, 48)) / np.repeat(spread, 4)
        outs = [add("dense", [y], (1, 16), [weights, rng.normal(size=16)])]
    elif kind in ("relu", "relu6"):
        second = rng.normal(size=(16, 1, 1, 12)) / spread
        outs = [add("conv2d", [y], (1, 4, 4, 16), [second, rng.normal(size=16)], **form)]
    else:
        outs = [add("dense", [y], (4, 16), [rng.normal(size=(16, 12)) / spread]) for _ in range(2)]
    return graph.finish(outs)


def channel_samples(graph: Graph, count: int, seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=graph.tensors["x"].shape).astype(np.float32)} for _ in range(count)]


def distance(graph: Graph, made: Graph, samples: list[dict[str, np.ndarray]]) -> float:
    """Return the noise of the outputs of `made` relative to the power of those of `graph`."""
    noise = power = 0.0
    for sample in samples:
        wanted, found = evaluate(graph, sample), evaluate(made, sample)
        noise += sum(
            float(np.square(found[name] - wanted[name], dtype=np.float64).sum()) for name in graph.outputs
        )
        power += sum(float(np.square(wanted[name], dtype=np.float64).sum()) for name in graph.outputs)
    return noise / power


@pytest.mark.parametrize("kind", ["relu", "turned", "norm"])
def test_factors_of_input_channels_reduce_the_noise_of_other_samples(kind) -> None:
    floats = network_of_channels(4, kind)
    graph, _ = quantize(floats, channel_samples(floats, 64, 0))
    narrower = WeightNarrower(graph, channel_samples(floats, 64, 0), "reference")
    held = channel_samples(floats, 12, 1)
    bits = dict.fromkeys(narrower.layers, 4)
    plain = narrower.narrowed(bits)
    assert narrower.scale(bits)
    made, wide = narrower.narrowed(bits), narrower.narrowed({})
    assert distance(floats, made, held) < 0.8 * distance(floats, plain, held)
    # The scaled network with 8-bit weights computes the same function: not more noise than that of int8 activations.
    assert distance(floats, wide, held) < 1.2 * distance(floats, graph, held)
    source = next(node for node in graph if node.op in ("conv2d", "layer_norm"))
    new, old = wide.ins(wide.nodes[source.name])[1], graph.ins(source)[1]
    assert new.data is not None and old.data is not None
    if kind == "norm":
        assert (new.data != old.data).any() and new.dtype == "float32"
    else:
        assert np.array_equal(new.data, old.data) and new.quantization != old.quantization


@pytest.mark.parametrize("kind", ["relu6", "residual"])
def test_results_that_do_not_commute_with_factors_keep_their_scales(kind) -> None:
    floats = network_of_channels(4, kind)
    samples = channel_samples(floats, 64, 0)
    graph, _ = quantize(floats, samples)
    narrower = WeightNarrower(graph, samples, "reference")
    assert not narrower.scale(dict.fromkeys(narrower.layers, 4))
    assert narrower.narrowed({}) is graph


@pytest.mark.parametrize("kind", ["relu", "norm"])
def test_budgets_use_factors_where_they_save_bits_and_run_exactly_as_computed(kind, monkeypatch) -> None:
    floats = network_of_channels(4, kind)
    samples, budget = channel_samples(floats, 64, 0), AccuracyBudget(sqnr_db=12)
    graph, _ = quantize(floats, samples)
    made, report = fit_bits(graph, samples, budget)
    network = compiler.compile(floats, "n4", calibration=samples, accuracy_budget=budget)
    assert network.quantization is not None and network.quantization.weights == report
    for sample in channel_samples(floats, 2, 1):
        wanted = evaluate(made, sample)
        assert all(np.array_equal(found, wanted[name]) for name, found in network(**sample).items())
    monkeypatch.setattr(WeightNarrower, "scale", lambda self, bits: False)
    _, plain = fit_bits(graph, samples, budget)
    assert report.mean_bits < plain.mean_bits


def test_a_budget_that_no_noise_meets_leaves_the_outputs_unchanged(quantized) -> None:
    made, report = fit_bits(quantized, SAMPLES[:2], AccuracyBudget(sqnr_db=300))
    assert report.sqnr_db is None  # some weights have fewer bits without an effect on these samples
    assert all(np.array_equal(evaluate(made, s)["y"], evaluate(quantized, s)["y"]) for s in SAMPLES[:2])


def test_steps_of_bits_are_optimal() -> None:
    """Every prefix of the steps has the least noise of all assignments with at most as many bits."""
    rng = np.random.default_rng(0)
    sizes = {"a": 10, "b": 100, "c": 37}
    noise = {
        name: np.append(np.cumsum(rng.random(6))[::-1] * 4.0 ** -np.arange(6), 0.0).tolist() for name in sizes
    }
    options = [
        (sum(bits * sizes[n] for n, bits in zip(sizes, each, strict=True)), each)
        for each in itertools.product(range(2, 9), repeat=3)
    ]

    def total(each) -> float:
        return sum(noise[name][bits - 2] for name, bits in zip(sizes, each, strict=True))

    bits = dict.fromkeys(sizes, 8)
    costs = {name: [size * bits for bits in range(2, 9)] for name, size in sizes.items()}
    for name, count in bit_steps(noise, costs):
        assert count < bits[name]
        bits[name] = count
        own = sum(bits[each] * sizes[each] for each in sizes)
        assert total(bits.values()) <= min(total(each) for size, each in options if size <= own) + 1e-12
    assert set(bits.values()) == {2}


def test_digits_lose_no_accuracy_with_few_bits() -> None:
    from compiler.frontends.model import read_model

    graph, (train, held) = read_model(MODEL), load_digits_split()
    samples = {graph.inputs[0]: train.images[:200]}
    budget = AccuracyBudget(worse=0, labels=train.labels[:200].tolist())
    made, report = fit_bits(graph, samples, budget, rounding="onnxruntime")
    # 3.10; 2.44 if the budget were judged on the samples to which the weights are fitted.
    assert report.worse == report.changed == 0 and report.held_out and report.mean_bits < 3.11

    def right(each: Graph, data: Digits) -> int:
        found = [
            evaluate(each, {each.inputs[0]: image[None]}, rounding="onnxruntime")[each.outputs[0]].argmax()
            for image in data.images
        ]
        return int((np.array(found) == data.labels).sum())

    assert right(graph, held) - right(made, held) <= 0.005 * len(held.labels)
    network = compiler.compile(made, "n4", rounding="onnxruntime")
    for image in held.images[:3]:
        sample = {made.inputs[0]: image[None]}
        wanted = evaluate(made, sample, rounding="onnxruntime")
        assert all(np.array_equal(found, wanted[name]) for name, found in network(**sample).items())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "either a number of labels"),
        ({"worse": 1, "sqnr_db": 30.0}, "either a number of labels"),
        ({"worse": -1, "labels": [0]}, "worse must be an integer of at least 0, not -1"),
        ({"worse": 1}, "needs the labels of the calibration samples"),
        ({"worse": 1, "labels": [0.5]}, "labels must be integers"),
        ({"worse": 3, "labels": [0, 1]}, "3 labels cannot be worse than before with only 2 samples"),
        ({"sqnr_db": 0.0}, "sqnr_db must be a positive number, not 0.0"),
        ({"sqnr_db": float("nan")}, "sqnr_db must be a positive number, not nan"),
    ],
)
def test_wrong_budgets_are_rejected(arguments, text) -> None:
    with pytest.raises(InputError, match=text):
        AccuracyBudget(**arguments)


def test_budgets_may_be_numbers_of_numpy() -> None:
    assert AccuracyBudget(worse=np.int64(2), labels=np.arange(3)) == AccuracyBudget(worse=2, labels=(0, 1, 2))  # type: ignore[arg-type]
    assert AccuracyBudget(sqnr_db=np.float32(30)) == AccuracyBudget(sqnr_db=30.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="worse must be an integer of at least 0, not True"):
        AccuracyBudget(worse=True, labels=[0])


def test_samples_of_equal_elements_are_rejected(quantized) -> None:
    zeros = {"x": np.zeros((4, *IMAGE), np.float32)}
    with pytest.raises(InputError, match=r"all elements of the calibration samples are 0\.0"):
        fit_bits(quantized, zeros, AccuracyBudget(sqnr_db=30))


def test_unsuitable_models_samples_and_labels_are_rejected(tmp_path, floats, quantized) -> None:
    budget = AccuracyBudget(sqnr_db=30.0)
    with pytest.raises(InputError, match="needs calibration samples"):
        compiler.compile(floats, "n4", accuracy_budget=budget)
    with pytest.raises(
        InputError, match="accuracy_budget: nothing in 'model' is quantized: asked to stay float"
    ):
        kept = tuple(floats.nodes)
        compiler.compile(floats, "n4", calibration=SAMPLES[:2], keep_float=kept, accuracy_budget=budget)
    with pytest.raises(InputError, match="accuracy_budget must be an AccuracyBudget"):
        compiler.compile(floats, "n4", calibration=SAMPLES, accuracy_budget=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2 samples need as many labels, not 1"):
        fit_bits(quantized, SAMPLES[:2], AccuracyBudget(worse=1, labels=[0]))
    with pytest.raises(InputError, match=r"labels must be 0..\d+, not 100000"):
        fit_bits(quantized, SAMPLES[:1], AccuracyBudget(worse=1, labels=[100000]))
    with pytest.raises(InputError, match="must be quantized first"):
        fit_bits(floats, SAMPLES[:1], budget)
    with pytest.raises(InputError, match="'nothing' is not a product"):
        WeightNarrower(quantized, SAMPLES[:1], "reference").narrowed({"nothing": 4})


def dense_graph(rng: np.random.Generator, dtype: str, zeros: bool = False, limit: int = 127) -> Graph:
    """Return a dense layer with activations of a type, and weights that may have zero points."""
    wide = dtype == "int16"
    activation = Quantization.per_tensor(2.0**-9 if wide else 0.02, {"uint8": 120, "int8": -5}.get(dtype, 0))
    scales = rng.uniform(0.5, 1, 24).astype(np.float32) * (0.01 if limit > 7 else 0.1)
    points = tuple(int(each) for each in rng.integers(-3, 4, 24)) if zeros else (0,) * 24
    weights = Quantization(tuple(map(float, scales)), points, 0)
    product = tuple(float(np.float32(activation.scale[0]) * each) for each in scales)
    values = rng.integers(-limit - (limit < 127), limit + 1, (24, 64)).astype(np.int8)
    bias = rng.integers(-2000, 2000, 24).astype("int64" if wide else "int32")
    out = Quantization.per_tensor(2.0**-7 if wide else 0.15, activation.zero_point[0])
    graph = Graph("dense")
    graph.add_input(Tensor("x", (4, 64), dtype, activation))
    graph.add_tensor(Tensor("w", values.shape, "int8", weights, values))
    graph.add_tensor(Tensor("b", bias.shape, bias.dtype.name, Quantization(product, (0,) * 24, 0), bias))
    graph.add_tensor(Tensor("y", (4, 24), dtype, out))
    graph.add_node(Node("product", "dense", ("x", "w", "b"), ("y",), {}))
    return graph.finish(["y"])


def stored_samples(graph: Graph, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Return samples of the input x with normally distributed real values."""
    x = graph.tensors["x"]
    assert x.quantization is not None
    limits, (scale,), (zero,) = np.iinfo(x.dtype), x.quantization.scale, x.quantization.zero_point
    values = np.rint(rng.normal(size=(12, *x.shape)) / scale) + zero
    return [{"x": each} for each in np.clip(values, limits.min, limits.max).astype(x.dtype)]


@pytest.mark.parametrize("zeros", [False, True], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_weights_of_any_quantized_activations_lose_bits(dtype: str, zeros: bool, rng) -> None:
    graph = dense_graph(rng, dtype, zeros, limit=120)
    samples = stored_samples(graph, rng)
    budget = AccuracyBudget(sqnr_db=25)
    rounding = "reference" if dtype == "int16" else "onnxruntime"
    made, report = fit_bits(graph, samples, budget, rounding=rounding, lanes=8)
    (layer,) = report.layers
    assert 3 <= layer.bits <= 7 and report.held_out and report.sqnr_db is not None and report.sqnr_db >= 25
    weights = made.ins(made.nodes["product"])[1]
    assert weights.data is not None and weights.quantization is not None
    low, high = weight_range(layer.bits)
    assert (
        low <= weights.data.min() and weights.data.max() <= high and not any(weights.quantization.zero_point)
    )
    errors = OutputErrors()
    meaning = graph.tensors["y"].quantization
    assert meaning is not None
    halves = samples[::2], samples[1::2]
    for fitted, others in (halves, halves[::-1]):
        half = WeightNarrower(graph, fitted, rounding, 8).narrowed({"product": layer.bits})
        for sample in others:
            pair = (evaluate(each, sample, rounding=rounding)["y"] for each in (graph, half))
            errors.add(*map(meaning.dequantized, pair))
    assert errors.sqnr_db == pytest.approx(report.sqnr_db, abs=0.01)
    network = compiler.compile(graph, "n8", rounding=rounding, calibration=samples, accuracy_budget=budget)
    assert np.array_equal(network(**samples[0])["y"], evaluate(made, samples[0], rounding=rounding)["y"])


def test_weights_of_few_bits_keep_their_integers(rng) -> None:
    graph = dense_graph(rng, "int8", limit=7)
    made, report = fit_bits(graph, stored_samples(graph, rng), AccuracyBudget(sqnr_db=60), lanes=8)
    assert [each.bits for each in report.layers] == [4] and report.sqnr_db is None
    assert made.tensors["w"] is graph.tensors["w"]


def test_a_model_without_weights_to_change_meets_any_budget(rng) -> None:
    """Weights with scales for blocks only; a product of two activations."""
    grouped = group_weights(perceptron(rng))
    samples = {"x": rng.normal(size=(6, 4, 96)).astype(np.float32)}
    network = compiler.compile(grouped, "n8", calibration=samples, accuracy_budget=AccuracyBudget(sqnr_db=30))
    assert network.quantization is not None and network.quantization.weights is not None
    report = network.quantization.weights
    assert report.layers == () and report.sqnr_db is None and report.samples == 6 and report.mean_bits == 8
    lines = summary(network.quantization.document())
    assert lines[-2].startswith("weights are unchanged: no product ")
    assert "exact on 6 samples" in lines[-1]
    graph, _ = quantize(grouped, samples)
    labels = [0] * 6
    budget = AccuracyBudget(worse=0, labels=labels)
    made, found = fit_bits(graph, samples, budget)
    assert (found.worse, found.changed, found.layers) == (0, 0, ()) and list(made) == list(graph)
    restored = QuantizationReport.from_document(json.loads(json.dumps(network.quantization.document())))
    assert restored == network.quantization


def test_budgets_hold_on_samples_that_were_not_given(rng) -> None:
    """With 12 samples of 64 elements, weights that are fitted to them have less noise on them than on others."""
    below = 0
    for _ in range(6):
        graph = dense_graph(rng, "int8", limit=120)
        made, report = fit_bits(graph, stored_samples(graph, rng), AccuracyBudget(sqnr_db=25), lanes=8)
        assert report.held_out and report.mean_bits < 8
        errors, meaning = OutputErrors(), graph.tensors["y"].quantization
        assert meaning is not None
        for sample in stored_samples(graph, rng):
            errors.add(*(meaning.dequantized(evaluate(each, sample)["y"]) for each in (graph, made)))
        below += errors.sqnr_db is not None and errors.sqnr_db < 25
    assert below <= 1


@pytest.mark.parametrize("varied", [0, 1, 64])
@pytest.mark.parametrize("biased", [False, True])
def test_operands_that_are_nearly_constant_on_the_samples_lose_bits(varied, biased, rng) -> None:
    """Without variance, errors of weights cannot be compensated, and only the bias is corrected."""
    graph = dense_graph(rng, "int8", limit=120)
    if not biased:
        node = graph.nodes["product"]
        graph = rebuild(graph, [Node(node.name, node.op, node.inputs[:2], node.outputs, node.attributes)])
    first = stored_samples(graph, rng)[0]["x"][:1].repeat(4, 0)
    samples = []
    for i in range(12):
        values = first.copy()
        values[0, :varied] = np.clip(values[0, :varied].astype(int) + i % 2, -128, 127)
        samples.append({"x": values})
    for given in (samples, samples[:1]):
        _, report = fit_bits(graph, given, AccuracyBudget(sqnr_db=20), lanes=8)
        assert report.mean_bits < 8 and (report.sqnr_db is None or report.sqnr_db >= 20)
        assert not report.held_out  # at most two different samples


def test_centred_moments_have_no_cancellation(rng) -> None:
    """The mean is 10**7 times the deviation."""
    node = Node("product", "dense", ("x", "w"), ("y",), {})
    values = [1e7 + rng.normal(size=(3, 6)) for _ in range(9)]
    statistics = statistics_of(node, np.ones((2, 6)), values, centred=True)
    assert statistics is not None
    moments, means = statistics
    rows = np.concatenate(values)
    wanted = np.cov((rows - 1e7).T, bias=True)
    least = 1e-4 * np.square(rows).mean()
    assert np.allclose(means[0], rows.mean(0), rtol=1e-12)
    assert np.allclose(moments[0] - least * np.eye(6), wanted, atol=1e-4 * least)
    same = [np.full((3, 6), 0.3)] * 9
    constant = statistics_of(node, np.ones((2, 6)), same, centred=True)
    assert constant is not None
    np.linalg.cholesky(np.linalg.inv(damped(constant[0][0])))
    np.linalg.cholesky(np.linalg.inv(damped(np.full((6, 6), -1e-17))))  # rounding errors of a matrix of zeros


def test_expected_changes_of_labels(rng) -> None:
    """Compare with random margins and moves of the distribution that is assumed."""
    moves = rng.normal(0, 0.4, 50)
    moves[::5] = 0
    spread = np.sqrt(np.square(moves[moves != 0]).mean())
    for margins in (rng.exponential(1, 30), rng.normal(0.5, 1, 30), np.repeat([-0.1, 0.0, 0.3], 10)):
        ends = np.sort(margins)
        ends = np.append(-ends[0], ends) if ends[0] >= 0 else ends
        count = 31  # gaps between neighbors, and beyond the largest margin, with the same probability
        gap = rng.integers(0, count, 400_000)
        gap = gap[gap < len(ends) - 1]
        drawn = rng.uniform(ends[gap], ends[gap + 1])
        moved = rng.normal(0, spread, len(drawn)) * (rng.random(len(drawn)) < 0.8)
        changed = ((drawn >= 0) & (drawn + moved < 0)).sum() / 400_000 * 30
        assert expected_changes(margins.tolist(), moves.tolist()) == pytest.approx(changed, rel=0.03)
    assert expected_changes([0.0, 0.0], [0.0, 0.0]) == 0


def test_warnings_of_budgets_that_permit_much(quantized) -> None:
    samples = SAMPLES[:9]
    own = [int(evaluate(quantized, each)["y"].argmax()) for each in samples]
    elements = quantized.tensors["y"].elements

    def warnings(budget, given=samples) -> str:
        _, report = fit_bits(quantized, given, budget)
        whole = QuantizationReport(len(given), 0, False, (), (), weights=report)
        assert QuantizationReport.from_document(json.loads(json.dumps(whole.document()))) == whole
        return "\n".join(quality_warnings(whole.document()))

    assert warnings(AccuracyBudget(worse=0, labels=own)) == ""
    shifted = [(each + 1) % elements for each in own]
    assert "none of the 9 samples is labelled rightly" in warnings(AccuracyBudget(worse=0, labels=shifted))
    assert "permits that 3 of these are not" in warnings(AccuracyBudget(worse=3, labels=own))
    assert "has a unit (3dB)" in warnings(AccuracyBudget(worse=3, labels=own))
    few = warnings(AccuracyBudget(sqnr_db=20), samples[:7])
    assert "checked on the 7 samples to which the weights were fitted" in few
    copies = warnings(AccuracyBudget(sqnr_db=20), samples[:7] + samples[:7])
    assert "with at least 8 different samples, half are held out" in copies
