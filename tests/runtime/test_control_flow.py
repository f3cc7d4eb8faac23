"""Tests of networks with control flow on the machine: early exit, recurrent, and quantized float networks."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.cli.main import main
from compiler.frontends.onnx import read_onnx
from compiler.passes.control_flow import MAX_UNROLLED_ITERATIONS
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from compiler.runtime.run_report import document, run_samples
from tests.support.control_models import branch, early_exit, integer, recurrent, subgraph
from tests.support.onnx_models import model, node, reference

LONG = MAX_UNROLLED_ITERATIONS + 8
#: Amplitudes of images for which the network exits early, and for which it continues.
SURE, UNSURE = 3.0, 0.1


def compiled(folder: Path, made: onnx.ModelProto, target: str = "n4", **options: object) -> CompiledNetwork:
    """Compile a model."""
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return compile(path, target, **options)  # type: ignore[arg-type]


def images(rng: np.random.Generator, *amplitudes: float) -> list[dict[str, np.ndarray]]:
    """Return one sample for each amplitude."""
    return [{"x": (a * rng.standard_normal((1, 3, 8, 8))).astype(np.float32)} for a in amplitudes]


def close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], scale: float) -> None:
    """Check that outputs differ by at most one step, since onnxruntime sums in float32 and may round ties
    differently.
    """
    for name, array in wanted.items():
        off = np.abs(found[name] - array) / scale
        assert off.max() < 1.01 and (off > 0.01).mean() < 0.3, f"{name}: {off}"


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_early_exit(tmp_path: Path, target: str) -> None:
    """All convolutions run on the accelerator; those in the branch run only if the branch is taken."""
    rng = np.random.default_rng(3)
    made = early_exit(rng, threshold=0.3)
    network = compiled(tmp_path, made, target)
    assert [op for info in network.infos for op in info.ops if op in ("conv2d", "dense")] == [
        "conv2d",
        "dense",
    ] * 2
    reasons = {each.op: each.reason for each in network.host}
    assert reasons["if"] == "the host executes control flow; the accelerator runs the layers of the subgraphs"
    samples = images(rng, SURE, UNSURE, SURE, SURE, UNSURE)
    with open_device(network, "golden", 1, 100, 4, print) as device:
        run = run_samples(device, network, samples, lambda text: None)
    assert run.runs == [5, 2]
    for number, sample in enumerate(samples):
        close({"y": run.outputs["y"][number : number + 1]}, reference(made, sample), 0.0413)
    early, late = (run.floors[number].macs for number in (0, 1))
    assert late - early == 8 * 8 * 8 * 8 * 9 + 8 * 4
    report = document(network, run)
    assert report["macs"] == 3 * early + 2 * late == sum(layer["macs"] for layer in report["layers"])
    assert report["floor_layerwise_cycles"] == sum(layer["floor_cycles"] for layer in report["layers"])
    assert report["floor_cycles"] <= report["floor_layerwise_cycles"]


def test_cycles_of_an_early_exit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cycles of layers, including those in subgraphs, add up to the total; a branch that is not taken has none."""
    rng = np.random.default_rng(3)
    made = early_exit(rng, threshold=0.3)
    path, inputs, output = (tmp_path / name for name in ("model.onnx", "x.npy", "report.json"))
    path.write_bytes(made.SerializeToString())
    reports = []
    for amplitudes in ((SURE, SURE), (SURE, UNSURE)):
        np.save(inputs, np.concatenate([each["x"] for each in images(rng, *amplitudes)]))
        status = main(["run", str(path), "--target", "n4", "--input", str(inputs), "--json", str(output)])
        assert (
            status,
            "runs on the host: If:y (if): the host executes control flow" in capsys.readouterr().err,
        ) == (
            0,
            True,
        )
        reports.append(json.loads(output.read_text()))
    for report in reports:
        assert (
            sum(layer["cycles"] for layer in report["layers"])
            == report["cycles"]
            == sum(report["where"].values())
        )
        assert report["floor_cycles"] < report["cycles"]
        assert {each["op"] for each in report["host_ops"]} >= {"if", "less"}
    deep = [next(layer for layer in report["layers"] if "Conv:a1" in layer["names"]) for report in reports]
    assert deep[0]["cycles"] == deep[0]["macs"] == 0 < deep[1]["macs"] / 16 < deep[1]["cycles"]


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
@pytest.mark.parametrize(("steps", "factor"), [(6, 0), (LONG, 1), (LONG, 8)])
def test_recurrent_network(tmp_path: Path, kind: str, steps: int, factor: int) -> None:
    """States remain int8 between steps; an unrolled loop is one stage, and any other loop repeats the stage of its
    body.
    """
    rng = np.random.default_rng(steps)
    made = recurrent(rng, steps, kind)
    network = compiled(tmp_path, made, unroll=factor if kind == "Scan" or factor else None)
    loops = [each.op for each in network.host].count("loop")
    assert loops == (factor > 0) and len(network.codes) == 1
    # The product with the initial state in the first step is constant, so it is folded.
    products = 2 * factor if loops else 2 * steps - 1
    assert [op for info in network.infos for op in info.ops].count("dense") == products
    sample = {"x": rng.standard_normal((steps, 1, 16)).astype(np.float32)}
    graph = read_onnx(tmp_path / "model.onnx")
    wanted = evaluate(graph, sample, rounding="onnxruntime")
    with open_device(network, "golden", 1, 100, 4, print) as device:
        run = run_samples(device, network, [sample], lambda text: None)
    assert run.runs == [steps // factor if loops else 1]
    assert run.floors[0].macs == (2 * steps if loops else products) * 16 * 16
    found = {name: array.reshape(wanted[name].shape) for name, array in run.outputs.items()}
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())
    close(found, reference(made, sample), 1 / 128)


def test_float_loops_are_quantized(tmp_path: Path) -> None:
    """Loops are calibrated with the inputs that the body has in each iteration."""
    rng = np.random.default_rng(8)
    nodes = [
        node("Concat", "x_t h", "xh", axis=1),
        node("MatMul", "xh w", "a"),
        node("Tanh", "a", "h2"),
        node("Identity", "h2", "y_t"),
    ]
    kind = onnx.TensorProto.FLOAT
    body = subgraph(nodes, [("h", kind), ("x_t", kind)], [("h2", kind), ("y_t", kind)])
    sample = {"x": rng.standard_normal((LONG, 1, 16)).astype(np.float32)}
    weights = {
        "w": 0.2 * rng.standard_normal((32, 16)).astype(np.float32),
        "h0": np.zeros((1, 16), np.float32),
    }
    made = model([node("Scan", "h0 x", "hn ys", body=body, num_scan_inputs=1)], sample, ["hn", "ys"], weights)
    network = compiled(tmp_path, made, calibration=[sample], unroll=1)
    assert [info.ops for info in network.infos] == [("concat",), ("dense", "tanh")]
    assert network.quantization is not None and {each.name for each in network.quantization.tensors} >= {
        "x_t",
        "h",
        "a",
    }
    assert {each.reason for each in network.host if each.op != "loop"} == {"float at the edge of a subgraph"}
    found, wanted = network(**sample), reference(made, sample)
    for name, array in wanted.items():
        assert np.square(found[name] - array).mean() < 1e-3 * np.square(array).mean(), name
    for factor in (3, 0, None):  # unrolling does not change the quantization
        network = compiled(tmp_path, made, calibration=[sample], unroll=factor)
        again = network(**sample)
        assert all(np.array_equal(again[name], found[name]) for name in found), factor


def test_float_branches_are_quantized_separately(tmp_path: Path) -> None:
    """Each branch is calibrated with the samples that take it; a branch without samples remains in floating point."""
    rng = np.random.default_rng(9)
    conv = [0.2 * rng.standard_normal((8, 4, 3, 3)).astype(np.float32) for _ in range(2)]
    parts = {
        "then_branch": branch("t", node("Conv", "x w1", "t", pads=[1, 1, 1, 1])),
        "else_branch": branch("e", node("Conv", "x w2", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "e")),
    }
    nodes = [
        node("ReduceMean", "x", "m", keepdims=0),
        node("Greater", "m zero", "p"),
        node("If", "p", "y", **parts),
    ]
    samples = [
        {"x": (rng.standard_normal((1, 4, 8, 8)) + sign).astype(np.float32)} for sign in (1, -1, 1, -1)
    ]
    constants = {"w1": conv[0], "w2": conv[1], "zero": np.array(0, np.float32)}
    made = model(nodes, samples[0], ["y"], constants)
    network = compiled(tmp_path, made, calibration=samples)
    convs = [info for info in network.infos if "conv2d" in info.ops]
    assert [info.nodes[0] for info in convs] == ["Conv:t", "Conv:c"]
    for sample in samples:
        found, wanted = network(**sample)["y"], reference(made, sample)["y"]
        assert np.square(found - wanted).mean() < 1e-3 * np.square(wanted).mean()
    half = compiled(tmp_path, made, calibration=samples[::2])
    assert {each.node: each.reason for each in half.host}[
        "Conv:c"
    ] == "not executed by any calibration sample"
    kept = compiled(tmp_path, made, calibration=samples, keep_float=["Conv:t"])
    assert {each.node: each.reason for each in kept.host}["Conv:t"] == "asked to stay float"
    on_device = {name for info in kept.infos for name in info.nodes}
    assert "Conv:c" in on_device and "Conv:t" not in on_device


def test_loop_without_iterations(tmp_path: Path) -> None:
    """A sample for which nothing runs on the accelerator takes no cycles but still has a lower bound."""
    body = subgraph(
        [
            node("QuantizeLinear", "s q z", "sq"),
            node("DequantizeLinear", "sq q z", "sd"),
            node("Add", "sd sd", "t"),
            node("QuantizeLinear", "t q z", "tq"),
            node("DequantizeLinear", "tq q z", "s2"),
            node("Identity", "c", "c2"),
        ],
        [("i", onnx.TensorProto.INT64), ("c", onnx.TensorProto.BOOL), ("s", onnx.TensorProto.FLOAT)],
        [("c2", onnx.TensorProto.BOOL), ("s2", onnx.TensorProto.FLOAT)],
    )
    sample = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16), "trips": integer(0)}
    constants = {"q": np.array(0.02, np.float32), "z": np.array(0, np.int8)}
    network = compiled(tmp_path, model([node("Loop", "trips - x", "y", body=body)], sample, ["y"], constants))
    assert len(network.infos) == 1
    with open_device(network, "rtl", 2, 100, 4, print) as device:
        run = run_samples(device, network, [sample, sample | {"trips": integer(2)}], lambda text: None)
    np.testing.assert_array_equal(run.outputs["y"][0], sample["x"][0])
    assert run.cycles is not None and run.cycles[0] == 0 < run.cycles[1]
    assert run.runs == [2] and document(network, run)["cycles"] == run.cycles[1]
