"""RNN, GRU and LSTM equal onnxruntime in float32, run on the accelerator, and keep their accuracy in 8 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.ir.tensor import Quantization
from compiler.reference import Kernels, evaluate
from hw.errors import InputError
from tests.support.onnx_models import check, model, node, ops, reference, small

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: Activations: first those with coefficients alpha and beta, then those with alpha alone.
ACTIVATIONS = ["Affine", "ScaledTanh", "HardSigmoid", "LeakyRelu", "ThresholdedRelu", "Elu"]
ACTIVATIONS += ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"]
#: Activations with a coefficient beta.
WITH_BETA = ACTIVATIONS[:3]
#: Activations with a coefficient alpha.
WITH_ALPHA = ACTIVATIONS[:6]
Arrays = dict[str, Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded, normally distributed values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_node(seed: int) -> tuple[onnx.NodeProto, Arrays, Arrays]:
    """Return a random node, its variable inputs and its constant inputs."""
    rng = np.random.default_rng(seed)

    def chance() -> bool:
        return bool(rng.random() < 0.5)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    op = str(rng.choice(list(GATES)))
    steps, batch, size, hidden = (int(rng.integers(1, 5)) for _ in range(4))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    flowing: Arrays = {"x": draw(steps, batch, size)}
    held: Arrays = {"w": draw(count, GATES[op] * hidden, size), "r": draw(count, GATES[op] * hidden, hidden)}
    optional = {"b": lambda: draw(count, 2 * GATES[op] * hidden)}
    optional["n"] = lambda: rng.integers(0, steps + 1, batch).astype(np.int32)
    optional["h"] = lambda: draw(count, batch, hidden)
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        optional["c"] = lambda: draw(count, batch, hidden)
        optional["p"] = lambda: draw(count, 3 * hidden)
        attributes["input_forget"] = int(chance())
    if op == "GRU":
        attributes["linear_before_reset"] = int(chance())
    names = ["x", "w", "r"]
    for name, make in optional.items():
        names.append(name if chance() else "-")
        if names[-1] == name:
            (flowing if name in "hc" and chance() else held)[name] = make()
    if chance():
        attributes["clip"] = float(np.float32(rng.uniform(0.2, 1.5)))
    if chance():
        chosen = [str(each) for each in rng.choice(ACTIVATIONS, count * {"LSTM": 3, "GRU": 2, "RNN": 1}[op])]
        attributes["activations"] = chosen
        for key, group in (("alpha", WITH_ALPHA), ("beta", WITH_BETA)):
            numbers = rng.uniform(0.1, 0.6, sum(each in group for each in chosen)).astype(np.float32)
            attributes |= {f"activation_{key}": numbers.tolist()} if numbers.size else {}
    outputs = [each if chance() else "-" for each in ("y", "h_last", "c_last")[: 3 if op == "LSTM" else 2]]
    outputs = outputs if set(outputs) != {"-"} else [*outputs[:-1], "h_last"]
    return node(op, " ".join(names), " ".join(outputs), **attributes), flowing, held


def used(made: onnx.NodeProto) -> list[str]:
    return [name for name in made.output if name]


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_nodes_equal_onnxruntime(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        made, flowing, held = random_node(seed)
        print(f"seed {seed}: {made.op_type} {helper.printable_node(made)}")
        graph = check(tmp_path, model([made], flowing, used(made), held), flowing, tolerance=1e-4)
        assert "onnx" not in ops(graph)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_nodes_with_variable_weights_and_lengths_run_on_the_host(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        made, flowing, held = random_node(seed)
        print(f"seed {seed}: {made.op_type} {helper.printable_node(made)}")
        every = flowing | held
        graph = check(tmp_path, model([made], every, used(made)), every)
        assert set(ops(graph)) == {"onnx"}


@pytest.mark.parametrize("rounding", ["onnxruntime", "reference", "xnnpack"])
def test_random_nodes_run_on_the_accelerator(rounding: Kernels) -> None:
    """The golden model equals the host bit by bit, including states in int16."""
    for seed in range(100, 108):
        made, flowing, held = random_node(seed)
        print(f"seed {seed}: {made.op_type} {helper.printable_node(made)}")
        samples = [flowing] + [
            {name: normal(*array.shape, seed=i) for name, array in flowing.items()} for i in range(3)
        ]
        graph = read_onnx(model([made], flowing, used(made), held))
        network = compile(
            graph, "n4" if seed % 2 else "n16", calibration=samples, rounding=rounding, strict=True
        )
        assert network.graph is not None
        wanted = evaluate(network.graph, flowing, rounding=rounding)
        for name, array in network(**flowing).items():
            np.testing.assert_array_equal(array, wanted[name])


def trained_like(
    op: str, steps: int, size: int, hidden: int, gain: float = 1.0, **attributes: Any
) -> onnx.ModelProto:
    """Return a layer with PyTorch's initialization times `gain`, and a bias of 1 in the forget gate."""
    rng, bound = np.random.default_rng(hidden), gain * hidden**-0.5

    def draw(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    rows = GATES[op] * hidden
    held = {"w": draw(1, rows, size), "r": draw(1, rows, hidden), "b": draw(1, 2 * rows)}
    if op == "LSTM":
        held["b"][:, 2 * hidden : 3 * hidden] += 1
    made = node(op, "x w r b", "y h", hidden_size=hidden, **attributes)
    return model([made], {"x": normal(steps, 1, size)}, ["y", "h"], held)


def sequences(count: int, steps: int, size: int, seed: int) -> list[Arrays]:
    """Return sequences whose steps are correlated, with unit variance."""
    x = normal(count, steps, 1, size, seed=seed)
    for t in range(1, steps):
        x[:, t] = 0.8 * x[:, t - 1] + 0.6 * x[:, t]
    return [{"x": each} for each in x]


def sqnr(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the signal-to-noise ratio in dB."""
    noise = np.square(wanted.astype(float) - found).sum()
    return float(10 * np.log10(np.square(wanted.astype(float)).sum() / noise))


@pytest.mark.parametrize(
    ("op", "attributes"), [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("GRU", {}), ("RNN", {})]
)
@pytest.mark.parametrize("gain", [1.0, 2.5])
def test_accuracy_on_new_sequences(op: str, attributes: dict[str, Any], gain: float) -> None:
    """docs/numerics.md states the bound of 30 dB."""
    made = trained_like(op, 30, 16, 32, gain, **attributes)
    network = compile(read_onnx(made), "n8", calibration=sequences(6, 30, 16, seed=1), strict=True)
    new = sequences(3, 30, 16, seed=2)
    wanted = [reference(made, each) for each in new]
    assert network.graph is not None
    found = [evaluate(network.graph, each) for each in new]
    for name in ("y", "h"):
        ratio = sqnr(*(np.stack([each[name] for each in side]) for side in (wanted, found)))
        print(f"{op} {attributes}, weights times {gain}, output {name}: {ratio:.1f} dB")
        assert ratio > 30


def test_one_range_for_all_steps_and_states_in_int16() -> None:
    made = trained_like("LSTM", 6, 8, 8)
    network = compile(read_onnx(made), "n8", calibration=sequences(2, 6, 8, seed=1))
    assert network.graph is not None
    scales: dict[str, set[tuple[str, Quantization | None]]] = {}
    for name, tensor in network.graph.tensors.items():
        _, _, part = name.rpartition(":")
        if ":forward:" in name and not tensor.constant:
            scales.setdefault(part, set()).add((tensor.dtype, tensor.quantization))
    assert {"gates_iof", "cell", "kept", "new", "bent", "sum_c"} <= scales.keys()
    assert all(
        len(each) == 1 for part, each in scales.items() if part in ("gates_iof", "cell", "sum_c", "bent")
    )
    assert [{dtype for dtype, _ in scales[part]} for part in ("cell", "kept")] == [{"int16"}] * 2


@pytest.mark.parametrize("op", GATES)
def test_batch_first_layout(op: str) -> None:
    """`layout=1`, which onnxruntime does not support, gives the same results with permuted dimensions."""
    steps, batch, size, hidden = 4, 3, 2, 5
    held = {"w": normal(1, GATES[op] * hidden, size), "r": normal(1, GATES[op] * hidden, hidden, seed=1)}
    x, start = normal(steps, batch, size), normal(1, batch, hidden, seed=2)
    found = []
    for layout in (0, 1):
        recurrent = node(op, "x w r - - h", "y h_last", hidden_size=hidden, layout=layout)
        value, state = (x.transpose(1, 0, 2), start.transpose(1, 0, 2)) if layout else (x, start)
        for variable in (False, True):
            inputs = {"x": value} | (held if variable else {})
            constants: Arrays = {"h": state} | ({} if variable else held)
            made = small(recurrent, shape=value.shape, **constants)
            made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
            made.graph.output.append(helper.make_tensor_value_info("h_last", TensorProto.FLOAT, None))
            made.graph.input.extend(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
                for name, array in inputs.items()
                if name != "x"
            )
            graph = read_onnx(made)
            assert ("onnx" in ops(graph)) == variable
            found.append(evaluate(graph, inputs))
    for each in found[1:]:
        first = each["y"].shape[0] == batch
        y, last = (
            (each["y"].transpose(1, 2, 0, 3), each["h_last"].transpose(1, 0, 2))
            if first
            else (each["y"], each["h_last"])
        )
        np.testing.assert_allclose(y, found[0]["y"], atol=1e-5)
        np.testing.assert_allclose(last, found[0]["h_last"], atol=1e-5)


# ---- control flow

HIDDEN, SIZE = 4, 3
WEIGHTS: Arrays = {
    "w": normal(1, 4 * HIDDEN, SIZE, seed=1),
    "r": normal(1, 4 * HIDDEN, HIDDEN, seed=2),
    "gw": normal(1, 3 * HIDDEN, SIZE, seed=3),
    "gr": normal(1, 3 * HIDDEN, HIDDEN, seed=4),
}


def declared(name: str, shape: list[int] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def test_in_the_branches_of_an_if() -> None:
    """Each branch computes another optional output, and the condition is known at run time only."""
    branches = [
        helper.make_graph([lstm], name, [], [declared("h", None)])
        for name, lstm in (
            ("then", node("LSTM", "x w r", "- h", hidden_size=HIDDEN)),
            ("else", node("GRU", "x gw gr", "- h", hidden_size=HIDDEN, direction="reverse")),
        )
    ]
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    x = normal(5, 2, SIZE)
    for condition in (True, False):
        inputs = {"x": x, "c": np.array(condition)}
        made = model([chosen], inputs, ["y"], WEIGHTS)
        graph = read_onnx(made)
        np.testing.assert_allclose(evaluate(graph, inputs)["y"], reference(made, inputs)["y"], atol=1e-5)
    samples = [{"x": normal(5, 2, SIZE, seed=i), "c": np.array(i % 2 == 0)} for i in range(4)]
    network = compile(graph, "n8", calibration=samples)
    assert network.infos and {each.op for each in network.host} == {"if", "quantize", "dequantize"}
    for sample in samples:
        assert sqnr(reference(made, sample)["y"], network(**sample)["y"]) > 25


@pytest.mark.parametrize("trips", [3, 40])
def test_in_the_body_of_a_loop(trips: int) -> None:
    """An LSTM carries its states from one iteration to the next, in an unrolled loop and in a loop at run time."""
    lstm = node("LSTM", "x w r - - h0 c0", "- h1 c1", hidden_size=HIDDEN)
    body = helper.make_graph(
        [lstm, node("Identity", "go", "on")],
        "body",
        [
            declared("i", [], TensorProto.INT64),
            declared("go", [], TensorProto.BOOL),
            declared("h0", [1, 1, HIDDEN]),
            declared("c0", [1, 1, HIDDEN]),
        ],
        [
            declared("on", [], TensorProto.BOOL),
            declared("h1", [1, 1, HIDDEN]),
            declared("c1", [1, 1, HIDDEN]),
        ],
    )
    loop = helper.make_node("Loop", ["trips", "", "zero", "zero"], ["y", "c"], body=body)
    held = WEIGHTS | {"trips": np.array(trips, np.int64), "zero": np.zeros((1, 1, HIDDEN), np.float32)}
    inputs = {"x": normal(1, 1, SIZE)}
    made = model([loop], inputs, ["y", "c"], held)
    graph = read_onnx(made)
    wanted = reference(made, inputs)
    for name, array in evaluate(graph, inputs).items():
        np.testing.assert_allclose(array, wanted[name], atol=1e-5)
    network = compile(graph, "n8", calibration=[inputs])
    assert network.infos and sqnr(wanted["y"], network(**inputs)["y"]) > 20


# ---- quantized models


class Samples(CalibrationDataReader):
    """Calibration data for onnxruntime's quantizer."""

    def __init__(self, samples: list[Arrays]):
        self.left = iter(samples)

    def get_next(self) -> Arrays | None:  # type: ignore[override]
        return next(self.left, None)


def test_between_quantized_operators(tmp_path: Path) -> None:
    """An LSTM, which onnxruntime's quantizer leaves in float32, is one node on the host, with a reason."""
    nodes = [
        node("MatMul", "x a", "v"),
        node("LSTM", "v w r", "y", hidden_size=HIDDEN),
        node("Squeeze", "y one", "s"),
        node("MatMul", "s b", "out"),
    ]
    held = WEIGHTS | {"a": normal(SIZE, SIZE), "b": normal(HIDDEN, 2), "one": np.array([1])}
    samples = [{"x": normal(5, 1, SIZE, seed=i)} for i in range(3)]
    path, quantized = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    path.write_bytes(model(nodes, samples[0], ["out"], held).SerializeToString())
    quantize_static(path, quantized, Samples(samples))
    network = compile(quantized, "n8")
    found = {each.op: each.reason for each in network.host if not each.edge}
    assert found == {
        "LSTM": "its values are float32, but the model is quantized: quantize this operator, too"
    }
    wanted = reference(onnx.load(quantized), samples[0])["out"]
    step = max(t.quantization.scale[0] for t in network.graph.tensors.values() if t.quantization is not None)  # type: ignore[union-attr]
    assert np.abs(network(**samples[0])["out"] - wanted).max() <= step


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamically_quantized(tmp_path: Path, per_channel: bool) -> None:
    """Weights have 7 bits, as onnxruntime advises: its sums of 8-bit products saturate on CPUs without VNNI."""
    path, quantized = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    path.write_bytes(trained_like("LSTM", 12, 16, 32).SerializeToString())
    quantize_dynamic(
        path, quantized, op_types_to_quantize=["LSTM"], per_channel=per_channel, reduce_range=True
    )
    made = onnx.load(quantized)
    assert [each.op_type for each in made.graph.node] == ["DynamicQuantizeLSTM"]
    network = compile(quantized, "n8", calibration=sequences(6, 12, 16, seed=1), strict=True)
    (new,) = sequences(1, 12, 16, seed=2)
    wanted = reference(made, new)
    for name, array in network(**new).items():
        assert sqnr(wanted[name], array) > 30


# ---- errors and limits


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("RNN", {"activations": ["Affine"]}, "activation Affine must have activation_alpha"),
        ("RNN", {"activations": ["Gelu"]}, "activations must be some of Relu, .*, not b?'Gelu'"),
        ("GRU", {"activations": ["Relu"]}, "must have the names of 2 activations"),
        ("LSTM", {"activations": ["Relu", "Elu", "Elu"], "activation_alpha": [float("nan")]}, "finite"),
        ("LSTM", {"layout": 2}, "layout must be 0 or 1, not 2"),
        ("GRU", {"direction": "both"}, "direction must be one of"),
        ("GRU", {"hidden_size": 7}, "hidden_size must be 4, not 7"),
        ("LSTM", {"clip": float("inf")}, "a constant or attribute must be finite"),
    ],
)
def test_invalid_attributes(op: str, attributes: dict[str, Any], message: str) -> None:
    held: Arrays = {"w": WEIGHTS["w"][:, : GATES[op] * HIDDEN], "r": WEIGHTS["r"][:, : GATES[op] * HIDDEN]}
    with pytest.raises(InputError, match=message):
        read_onnx(small(node(op, "x w r", "y", **attributes), shape=(2, 2, SIZE), **held))


@pytest.mark.parametrize(
    ("names", "constants", "message"),
    [
        ("x w r b", {"b": normal(1, 3)}, "bias must have shape \\[1, 32\\], not \\[1, 3\\]"),
        ("x w r - n", {"n": np.array([3, 2], np.int32)}, "sequence_lens must be 2 numbers within 0..2"),
        ("x w r - - h", {"h": normal(2, 2, HIDDEN)}, "an initial state must have shape"),
        ("x w r - - - - p", {"p": normal(1, HIDDEN)}, "peephole weights must have shape"),
        ("x r r", {}, "weights must have shape"),
    ],
)
def test_invalid_operands(names: str, constants: Arrays, message: str) -> None:
    held: Arrays = {name: array for name, array in WEIGHTS.items() if name in "wr"} | constants
    with pytest.raises(InputError, match=message):
        read_onnx(small(node("LSTM", names, "y"), shape=(2, 2, SIZE), **held))


def test_longer_sequences_run_on_the_host(tmp_path: Path) -> None:
    held = {name: array for name, array in WEIGHTS.items() if name.startswith("g")}
    x = {"x": normal(1025, 1, SIZE)}
    made = node("GRU", "x gw gr", "y", hidden_size=HIDDEN)
    graph = check(tmp_path, model([made], x, ["y"], held), x, tolerance=1e-4)
    (found,) = graph
    assert found.op == "onnx" and "at most 1,024 are unrolled" in found.attributes["why"]


def test_equal_weights_of_all_steps_are_stored_once() -> None:
    sizes = []
    for steps in (4, 12):
        network = compile(
            read_onnx(trained_like("GRU", steps, 16, 32)), "n8", calibration=sequences(2, steps, 16, seed=1)
        )
        sizes.append(sum(each.code.image.size for each in network.stages if each.code is not None))
    assert sizes[1] < 1.1 * sizes[0]
