"""Corrections that raise the quality of quantized float models, int16 activations, and the report of what limits it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler.api import compile
from compiler.bench.float_networks import FLOAT_NETWORKS
from compiler.frontends.builder import GraphBuilder
from compiler.frontends.onnx import read_onnx
from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.options import AccuracyBudget
from compiler.quantize import QuantizationReport, quantize
from compiler.quantize.plan import folded_scales
from compiler.quantize.ranges import ChannelMeans, symmetric_16
from compiler.quantize.report import summary
from compiler.quantize.rewrite import expected_error, quantized_weights
from compiler.quantize.weights import moments_of
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from hw.errors import InputError
from scripts.quantization_quality import float_graph
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, graph_of, numbers, samples
from tests.support.onnx_models import model, node, ops


def _noise(graph: Graph, made: Graph, given: list[dict[str, np.ndarray]]) -> float:
    pairs = [(evaluate(graph, each), evaluate(made, each)) for each in given]
    return float(sum(np.square(wanted["y"] - found["y"]).sum() for wanted, found in pairs))


def test_bias_is_corrected_by_the_expected_error_of_the_weights(tmp_path) -> None:
    """With operands far from zero, rounded weights shift the results; the correction also holds for other samples."""
    nodes = [node("Conv", "x w", "y", kernel_shape=[3, 3])]
    graph = graph_of(tmp_path, nodes, {"w": numbers(8, 4, 3, 3)}, (1, 4, 9, 9))
    given = [{"x": 6 + each["x"]} for each in samples((1, 4, 9, 9), 8)]
    fresh = [{"x": 6 + each["x"]} for each in samples((1, 4, 9, 9), 4, seed=50)]
    made, _ = quantize(graph, given)
    (conv,) = (each for each in made if each.op == "conv2d")
    _, _, bias = made.ins(conv)
    assert bias.data is not None and bias.data.any()
    without = GraphBuilder("without")
    for name in made.inputs:
        without.graph.add_input(made.tensors[name])
    for each in made:
        tensors = [t for t in made.ins(each) if t is not bias]
        tensors = [without.graph.tensors.get(t.name) or without.graph.add_tensor(t) for t in tensors]
        without.node(each.name, each.op, tensors, made.out(each), **each.attributes)
    assert _noise(graph, made, fresh) < 0.7 * _noise(graph, without.graph.finish(["y"]), fresh)


@pytest.mark.parametrize(
    ("op", "groups"), [("conv2d", 1), ("conv2d", 2), ("depthwise_conv2d", 1), ("dense", 1)]
)
def test_expected_error_equals_the_operator_on_the_means(op: str, groups: int) -> None:
    rng = np.random.default_rng(groups)
    mean = rng.normal(size=4)
    shape = {"conv2d": (6, 2, 3, 4 // groups), "depthwise_conv2d": (2, 3, 4), "dense": (6, 4)}[op]
    errors, x = rng.normal(size=shape), np.broadcast_to(mean, (1, 2, 3, 4)).astype(np.float32)
    build = GraphBuilder("mean")
    given = build.graph.add_input(Tensor("x", x.shape if op != "dense" else (1, 4), "float32"))
    more = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)} if op != "dense" else {}
    more |= {"groups": groups} if op == "conv2d" else {}
    out = (1, 4) if op == "depthwise_conv2d" else (1, 6)
    out = out if op == "dense" else (1, 1, 1, out[1])
    weights = build.constant("w", errors.astype(np.float32))
    build.node("n", op, [given, weights], Tensor("y", out, "float32"), **more)
    wanted = evaluate(build.graph.finish(["y"]), {"x": x if op != "dense" else x[0, 0, :1]})["y"]
    axis = OPS[op].weights_axis
    assert axis is not None
    found = expected_error(op, errors, axis, mean)
    assert found is not None
    np.testing.assert_allclose(found, wanted.reshape(-1), rtol=1e-4, atol=1e-5)


def test_means_of_few_samples_are_shrunk() -> None:
    rng = np.random.default_rng(0)
    noise, constant = ChannelMeans(), ChannelMeans()
    for _ in range(4):
        noise.add(rng.normal(size=(1, 64)))
        constant.add(5 + 0.1 * rng.normal(size=(1, 64)))
    shrunk, kept = noise.expected(), constant.expected()
    assert shrunk is not None and kept is not None
    assert np.abs(shrunk).max() < 0.5 * np.abs(np.mean(noise.parts, 0)).max()
    np.testing.assert_allclose(kept, np.mean(constant.parts, 0), rtol=1e-3)
    assert ChannelMeans().expected() is None


def test_constant_factors_are_folded_into_products(tmp_path) -> None:
    nodes = [
        node("Conv", "x w b", "c", kernel_shape=[3, 3]),
        node("Mul", "c gain", "d"),
        node("Sub", "d shift", "e"),
        node("Relu", "e", "y"),
    ]
    constants = {"w": numbers(8, 4, 3, 3), "b": numbers(8), "gain": numbers(8, 1, 1), "shift": numbers(1)}
    graph = graph_of(tmp_path, nodes, constants, (1, 4, 9, 9))
    folded, _ = folded_scales(graph)
    assert not {"mul", "sub"} & set(ops(folded))
    given = {"x": numbers(1, 4, 9, 9, seed=3)}
    np.testing.assert_allclose(
        evaluate(folded, given)["y"], evaluate(graph, given)["y"], rtol=1e-4, atol=1e-5
    )
    assert "mul" in ops(folded_scales(graph, {"mul"})[0]), "nodes that the user names are not folded"


def test_int16_scales_are_powers_of_two_with_headroom() -> None:
    for low, high in ((-3.0, 1.0), (0.0, 6.0), (-1e-30, 0.0), (0.0, 0.0)):
        q = symmetric_16(low, high)
        assert np.log2(q.scale[0]).is_integer() and q.zero_point == (0,)
        assert 32767 * q.scale[0] >= 1.25 * max(-low, high) * (1 - 1e-9)


@pytest.mark.parametrize("int16", [("all",), ("conv2d",), ("x",)])
@pytest.mark.parametrize("rounding", ["reference", "onnxruntime"])
def test_int16_is_exact_on_the_machine(tmp_path, int16, rounding) -> None:
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    given = samples(IMAGE, 8)
    network = compile(graph, "n8", calibration=given, int16=int16, rounding=rounding)
    assert network.graph is not None and network.quantization is not None
    assert {each.method for each in network.quantization.tensors} >= {"int16"}
    (fresh,) = samples(IMAGE, 1, seed=77)
    wanted = evaluate(network.graph, fresh, rounding=rounding)
    np.testing.assert_array_equal(network(**fresh)["y"], wanted["y"])


def test_int16_reduces_noise_and_converts_at_the_boundary(tmp_path) -> None:
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    given = samples(IMAGE, 8)
    made, report = quantize(graph, given, int16=("all",))
    _, narrow = quantize(graph, given)
    assert (report.outputs[0].sqnr_db or 99) > (narrow.outputs[0].sqnr_db or 99) + 5
    kinds = {made.out(each).dtype for each in made if each.op not in ("transpose", "dequantize")}
    assert kinds == {"int16"} and "requantize" not in ops(made)
    for each in made:
        if each.op == "conv2d":
            x, weights, *bias = made.ins(each)
            assert (x.dtype, weights.dtype, [b.dtype for b in bias]) == ("int16", "int8", ["int64"])
            assert isinstance(x.quantization, Quantization) and not any(x.quantization.zero_point)


def test_readers_of_an_int16_result_compute_on_int16(tmp_path) -> None:
    nodes = [
        node("MatMul", "x a", "h"),
        node("Transpose", "h", "t", perm=[1, 0]),
        node("MatMul", "t b", "m"),
        node("Relu", "m", "n"),
        node("MatMul", "n c", "y"),
    ]
    weights = {name: numbers(16, 16, seed=i) for i, name in enumerate("abc")}
    graph = graph_of(tmp_path, nodes, weights, (16, 16))
    made, _ = quantize(graph, [{"x": numbers(16, 16, seed=i)} for i in range(4)], int16=("MatMul:h",))
    types = {each.name: made.out(each).dtype for each in made}
    assert (types["MatMul:h"], types["h:transpose"], types["MatMul:m"]) == ("int16", "int16", "int16")
    assert (types["Relu:n"], types["m:int8"]) == ("int8", "int8")
    with pytest.raises(InputError, match="no node and no operator 'nothing' to compute in int16"):
        quantize(graph, [{"x": numbers(16, 16)}], int16=("nothing",))


def test_report_names_the_nodes_that_limit_an_output() -> None:
    """Squares of small and large values lose most of their precision in 8 bits."""
    network = FLOAT_NETWORKS["voice_detector"]()
    graph = float_graph(network)
    (name,) = graph.inputs
    given = network.samples(np.random.default_rng(1), 6)
    made, report = quantize(graph, [{name: each[None]} for each in given])
    limits = report.limits
    assert limits is not None and limits.output in made.outputs
    assert {"Pow4", "Pow5", "Add6"} & {each.node for each in limits.nodes[:2]}
    shares = [each.share for each in limits.nodes]
    assert shares == sorted(shares, reverse=True)
    some, all_of = limits.int16
    assert all_of.nodes == ("all",) and len(some.nodes) > 1
    assert min(some.sqnr_db or 99, all_of.sqnr_db or 99) > (report.outputs[0].sqnr_db or 99) + 2
    lines = summary(report.document())
    assert any(line.startswith(f"  noise of {limits.output} from int8 results: ") for line in lines)
    assert lines[-1].endswith("(--int16 all)")
    assert QuantizationReport.from_document(report.document()) == report
    better, _ = quantize(graph, [{name: each[None]} for each in given], int16=some.nodes)
    assert "int16" in {better.out(each).dtype for each in better}


def test_as_few_results_as_meet_the_budget_become_int16() -> None:
    """With one chosen result fewer, the budget is missed; the quality is measured here from the outputs."""
    network = FLOAT_NETWORKS["voice_detector"]()
    graph = float_graph(network)
    (name,) = graph.inputs
    given = [{name: each[None]} for each in network.samples(np.random.default_rng(1), 4)]
    budget = AccuracyBudget(sqnr_db=22)

    def quality(made: Graph) -> float:
        signal = noise = 0.0
        for each in given:
            (wanted,), (found,) = (evaluate(which, each).values() for which in (graph, made))
            signal, noise = (
                signal + np.square(wanted.astype(float)).sum(),
                noise + np.square(found - wanted).sum(),
            )
        return float(10 * np.log10(signal / noise))

    narrow, _ = quantize(graph, given)
    made, report = quantize(graph, given, int16=("auto",), budget=budget)
    chosen = report.int16
    assert chosen is not None and chosen.met and 0 < len(chosen.nodes) < 10
    assert quality(narrow) < 22 <= quality(made)
    assert chosen.before_db == pytest.approx(quality(narrow)) and (chosen.sqnr_db or 99) >= 22
    wide = {each for each in made.tensors.values() if each.dtype == "int16" and each.data is None}
    assert wide and len(wide) < len(list(made))
    (line,) = [each for each in summary(report.document()) if each.startswith("  results in int16: ")]
    assert f"{chosen.before_db:.1f} dB with int8" in line and chosen.nodes[0] in line
    assert QuantizationReport.from_document(report.document()) == report
    lower = AccuracyBudget(sqnr_db=quality(narrow) - 0.1)
    assert quantize(graph, given, int16=("auto",), budget=lower)[1].int16 == replace(
        chosen, nodes=(), sqnr_db=chosen.before_db
    )


def test_fewer_results_in_int16_may_be_better() -> None:
    """Some results of this network in int16 meet 30 dB, but all results do not."""
    network = FLOAT_NETWORKS["voice_detector"]()
    graph = float_graph(network)
    (name,) = graph.inputs
    given = [{name: each[None]} for each in network.samples(np.random.default_rng(1), 6)]
    _, report = quantize(graph, given, int16=("auto",), limits=False, rounding="onnxruntime")
    assert report.int16 is not None and report.int16.met and len(report.int16.nodes) < 6
    _, every = quantize(graph, given, int16=("all",), limits=False, rounding="onnxruntime")
    assert (every.outputs[0].sqnr_db or 99) < 30 <= (report.outputs[0].sqnr_db or 99)


def test_a_budget_that_int16_does_not_meet(tmp_path) -> None:
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    given = samples(IMAGE, 4)
    _, report = quantize(graph, given, int16=("auto",), budget=AccuracyBudget(sqnr_db=120))
    assert report.int16 is not None and not report.int16.met and report.int16.nodes
    assert (report.int16.sqnr_db or 0) > (report.int16.before_db or 0)
    (line,) = [each for each in summary(report.document()) if each.startswith("  results in int16: ")]
    assert line.endswith("; more do not help to meet the accuracy budget")
    kept, plain = (quantize(graph, given, int16=names) for names in (("auto",), ()))
    assert kept[1].int16 is not None and kept[1].int16.met and not kept[1].int16.nodes
    assert [str(each) for each in kept[0]] == [str(each) for each in plain[0]]


def _loss_db(path: Path, network: CompiledNetwork, given: list[dict[str, np.ndarray]]) -> float:
    """Return the lowest signal-to-noise ratio of an output of the compiled network relative to onnxruntime."""
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_outputs()]
    noise, power = np.zeros(len(names)), np.zeros(len(names))
    for sample in given:
        found = network(**sample)
        for i, wanted in enumerate(session.run(None, sample)):
            noise[i] += np.square(found[names[i]] - wanted, dtype=np.float64).sum()
            power[i] += np.square(wanted, dtype=np.float64).sum()
    return float((10 * np.log10(power / noise)).min())


@pytest.mark.parametrize("budget", [25, 44])
def test_a_budget_with_int16_holds_for_the_compiled_network_on_all_samples(tmp_path, budget) -> None:
    """The budget includes the loss by narrow weights, and holds on more samples than weights were rounded for first."""
    inner = ["x", *(f"r{i}" for i in range(2))]
    nodes = [
        each
        for i, name in enumerate(inner)
        for each in (node("Gemm", f"{name} w{i} b{i}", f"s{i}"), node("Tanh", f"s{i}", f"r{i}"))
    ]
    nodes.append(node("MatMul", "r2 v", "y"))
    constants = {f"w{i}": 0.2 * numbers(16, 16, seed=i) for i in range(3)}
    constants |= {f"b{i}": numbers(16, seed=9 + i) for i in range(3)} | {"v": numbers(16, 4, seed=20)}
    made = model(nodes, {"x": np.ones((1, 16), np.float32)}, ["y"], constants)
    path = tmp_path / "network.onnx"
    path.write_bytes(made.SerializeToString())
    given = [{"x": numbers(1, 16, seed=100 + seed)} for seed in range(24)]
    network = compile(
        path, "n8", calibration=given, int16=("auto",), accuracy_budget=AccuracyBudget(sqnr_db=budget)
    )
    report = network.quantization
    assert report is not None and report.int16 is not None and report.weights is not None
    found = _loss_db(path, network, given)
    assert report.int16.met and found >= budget
    held = (
        report.weights.held_out,
        report.weights.samples,
    )  # `found` is that of weights that are fitted to all samples
    assert held == (True, 24) and report.weights.sqnr_db is not None and report.weights.sqnr_db >= budget
    assert report.weights.mean_bits < 8 or budget == 44
    assert bool(report.int16.nodes) == (budget == 44)
    text = "\n".join(summary(report.document()))
    assert f"compared with the float model: {report.weights.sqnr_db:.1f} dB on 24 held-out samples" in text


def test_weights_keep_eight_bits_if_int16_does_not_meet_the_budget(tmp_path) -> None:
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    budget = AccuracyBudget(sqnr_db=120)
    network = compile(graph, "n8", calibration=samples(IMAGE, 4), int16=("auto",), accuracy_budget=budget)
    report = network.quantization
    assert report is not None and report.int16 is not None and report.weights is not None
    assert not report.int16.met and report.weights.mean_bits == 8
    assert report.weights.sqnr_db == pytest.approx(report.int16.sqnr_db, abs=0.01)


def test_results_of_little_noise_become_int16_together_if_the_budget_needs_them(tmp_path) -> None:
    """A sum of many terms of equal noise, none of which causes 2% of the noise of the output."""
    count = 60
    nodes = [node("Mul", f"x f{i}", f"p{i}") for i in range(count)]
    nodes.append(node("Sum", " ".join(f"p{i}" for i in range(count)), "y"))
    rng = np.random.default_rng(0)
    constants = {f"f{i}": rng.uniform(0.5, 1, (1, 32)).astype(np.float32) for i in range(count)}
    graph = graph_of(tmp_path, nodes, constants, (1, 32))
    given = [{"x": numbers(1, 32, seed=seed)} for seed in range(4)]
    reports = [
        quantize(graph, given, int16=names, limits=False)[1].outputs[0].sqnr_db for names in ((), ("all",))
    ]
    assert reports[0] is not None and reports[1] is not None and reports[0] < reports[1] - 10
    budget = AccuracyBudget(sqnr_db=reports[1] - 1)
    _, report = quantize(graph, given, int16=("auto",), limits=False, budget=budget)
    assert report.int16 is not None and report.int16.met


@pytest.mark.parametrize("rounding", ["reference", "onnxruntime"])
def test_results_that_a_budget_in_labels_needs_in_int16(tmp_path, rounding) -> None:
    """Scores of about 100 that differ by less than an int8 step have the same int8 values, and the first one wins."""
    nodes = [node("Gemm", "x w b", "s"), node("Relu", "s", "y")]
    constants = {"w": 0.05 * numbers(16, 6), "b": np.full(6, 100, np.float32)}
    graph = graph_of(tmp_path, nodes, constants, (1, 16))
    given = [{"x": numbers(1, 16, seed=seed)} for seed in range(24)]
    labels = [int(evaluate(graph, each)["y"].argmax()) for each in given]
    budget = AccuracyBudget(worse=1, labels=labels)

    def lost(made: Graph) -> int:
        found = [int(evaluate(made, each, rounding=rounding)["y"].argmax()) for each in given]
        return sum(a != b for a, b in zip(found, labels, strict=True))

    assert lost(quantize(graph, given, rounding=rounding)[0]) > 4
    made, report = quantize(graph, given, int16=("auto",), budget=budget, rounding=rounding)
    assert report.int16 is not None and report.int16.met and lost(made) <= 1
    network = compile(
        graph, "n8", calibration=given, int16=("auto",), accuracy_budget=budget, rounding=rounding
    )
    assert network.quantization is not None and network.quantization.int16 == report.int16
    assert network.graph is not None
    for each in given[:3]:
        wanted = evaluate(network.graph, each, rounding=rounding)
        np.testing.assert_array_equal(network(**each)["y"], wanted["y"])
    with pytest.raises(InputError, match="24 samples need as many labels, not 23"):
        quantize(graph, given, int16=("auto",), budget=replace(budget, labels=labels[1:]))
    with pytest.raises(InputError, match=r"labels must be 0..5, not 6"):
        quantize(graph, given, int16=("auto",), budget=replace(budget, labels=[6, *labels[1:]]))


def test_int16_cannot_be_chosen_with_random_samples(tmp_path) -> None:
    with pytest.raises(InputError, match="int16 'auto' needs calibration samples"):
        compile(graph_of(tmp_path, BLOCK, WITHIN), "n8", int16=("auto",))


def test_a_good_output_is_not_analysed(tmp_path) -> None:
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    _, report = quantize(graph, samples(IMAGE, 8))
    assert (report.outputs[0].sqnr_db or 99) >= 30 and report.limits is None
    network = compile(graph, "n8", calibration=samples(IMAGE, 4))
    assert all(each.reason == BOUNDARY_REASON for each in network.host)


@pytest.mark.parametrize(
    ("op", "shape", "groups"),
    [("dense", (8, 6), 1), ("conv2d", (8, 3, 3, 2), 2), ("depthwise_conv2d", (3, 3, 32), 1)],
)
def test_compensated_weights_reduce_the_noise_of_correlated_operands(op, shape, groups) -> None:
    """Compensated weights stay near the exact ones; the outputs have less noise than with rounding to nearest."""
    rng = np.random.default_rng(4)
    channels = {"dense": shape[-1], "conv2d": shape[-1] * groups, "depthwise_conv2d": shape[-1]}[op]
    mixed = (
        rng.normal(size=(channels, channels)) + 2
    )  # channels are correlated, and so are neighbouring pixels
    smooth = [rng.normal(size=(1, 12, 12, channels)).cumsum(1).cumsum(2) for _ in range(4)]
    given = [(each @ mixed).astype(np.float32) for each in smooth]
    weights = rng.normal(size=shape).astype(np.float32)
    form = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    form = {"dense": {}, "conv2d": form | {"groups": groups}, "depthwise_conv2d": form}[op]
    operator = Node("n", op, ("x", "w"), ("y",), form)
    moments, axis = moments_of(operator, weights, given), OPS[op].weights_axis
    assert moments is not None and axis is not None
    noise = []
    for each in (None, moments):
        fixed, _ = quantized_weights(
            weights, axis, per_channel=True, bias=None, x_scale=0.1, wide=True, moments=each
        )
        errors = fixed.quantization.dequantized(fixed.data).astype(np.float64) - weights
        rows = np.moveaxis(errors, axis, 0).reshape(len(moments), -1, moments.shape[1])
        noise.append(float(np.einsum("gok,gkl,gol->", rows, moments, rows)))
    assert noise[1] < 0.8 * noise[0]


def _attention() -> onnx.ModelProto:
    given = {name: np.ones((2, 4, 5, 8), np.float32) for name in "qkv"}
    made = model([node("Attention", "q k v", "y")], given, ["y"], {}, 23)
    made.graph.node[0].name = "att"
    return made


def _norm() -> onnx.ModelProto:
    held = {"axes": np.array([-1]), "eps": np.float32(1e-5)}
    nodes = [
        node("ReduceMean", "x axes", "m"),
        node("Sub", "x m", "d"),
        node("Mul", "d d", "s"),
        node("ReduceMean", "s axes", "v"),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "r"),
        node("Div", "d r", "y"),
    ]
    made = model(nodes, {"x": np.ones((1, 4, 64), np.float32)}, ["y"], held, 18)
    for each in made.graph.node:
        each.name = f"norm/{each.op_type}"
    return made


def _lstm() -> onnx.ModelProto:
    held = {"W": np.ones((1, 32, 8), np.float32) / 8, "R": np.ones((1, 32, 8), np.float32) / 9}
    made = model(
        [node("LSTM", "x W R", "y", hidden_size=8)], {"x": np.ones((3, 1, 8), np.float32)}, ["y"], held
    )
    made.graph.node[0].name = "enc/LSTM"
    return made


@pytest.mark.parametrize(
    "made, names",
    [
        (_attention, ("att", "Attention")),
        (_norm, ("norm/Sqrt", "norm/Sub", "norm/Div", "ReduceMean")),
        (_lstm, ("enc/LSTM", "LSTM")),
    ],
)
def test_names_of_the_file(
    tmp_path: Path, made: Callable[[], onnx.ModelProto], names: tuple[str, ...]
) -> None:
    """Nodes and operators of the file are known by their names, even if they were expanded or are parts of patterns."""
    path = tmp_path / "named.onnx"
    path.write_bytes(made().SerializeToString())
    graph = read_onnx(path)
    rng = np.random.default_rng(2)
    given = {
        name: rng.normal(size=(2, *graph.tensors[name].shape)).astype(np.float32) for name in graph.inputs
    }
    for name in names:
        _, report = quantize(graph, given, skip=[name])
        assert "asked to stay float" in report.kept.values() and report.outputs[0].sqnr_db is None
        wide, _ = quantize(graph, given, int16=[name], limits=False)
        assert any(tensor.dtype == "int16" for tensor in wide.tensors.values())
    with pytest.raises(InputError, match=rf"'{names[0]}s' to keep float \(did you mean {names[0]}\?\)"):
        quantize(graph, given, skip=[f"{names[0]}s"])
    with pytest.raises(InputError, match=rf"to compute in int16 \(there are .*{names[-1]}"):
        quantize(graph, given, int16=["?"])
