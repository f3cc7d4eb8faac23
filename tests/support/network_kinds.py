"""Small seeded networks of many kinds with samples and, where it exists, an exact reference; checks of schedules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ai_edge_litert.interpreter import Interpreter

from compiler.cache.model_source import ModelSource
from compiler.llm.generate.lm_generator import language_model
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import LLM, PORTFOLIO
from compiler.tuning.search.tuner import TuningResult, rejection_reason, tune
from cosim.golden import GoldenDevice
from hw.config import load_target
from tests.support import tflite_recurrent
from tests.support.control_models import early_exit, recurrent
from tests.support.int16_networks import int16_network
from tests.support.one_operator import RESOLVERS, options
from tests.support.onnx_models import model, node, reference
from tests.support.onnx_qdq import Qdq
from tests.support.tflite_graphs import FileGraph, Operator, packed

Arrays = dict[str, np.ndarray]
SEED = 29
#: Number of samples of a network; a network with states takes them in turn.
_SAMPLES = 3


@dataclass(frozen=True)
class KindOfNetwork:
    """A model file and its samples.

    Parameters
    ----------
    data : bytes
        Contents of the file.
    suffix : str
        Suffix of the file: ".onnx" or ".tflite".
    samples : list of dict
        Value of each input, by name, for each sample.
    wanted : list of lists of arrays, or None
        Outputs of each sample in the model's own runtime, in the order of the outputs, if the results must be equal;
        None for float models, which are quantized.
    """

    data: bytes
    suffix: str
    samples: list[Arrays]
    wanted: list[list[np.ndarray]] | None = None

    def write(self, folder: Path) -> Path:
        """Write the file into a folder and return its path."""
        path = folder / f"model{self.suffix}"
        path.write_bytes(self.data)
        return path

    def outputs(self, network: CompiledNetwork) -> list[list[np.ndarray]]:
        """Return the outputs of each sample in turn on the golden model."""
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            session = Session(device, network)
            made = [session.run(sample) for sample in self.samples]
        return [[outputs[tensor.name] for tensor in network.outputs] for outputs in made]


class _Float:
    """A float ONNX model under construction; methods return names of values."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Arrays = {}
        self.inputs: dict[str, tuple[int, ...]] = {}

    def given(self, name: str, *shape: int) -> str:
        self.inputs[name] = shape
        return name

    def held(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def weights(self, *shape: int) -> str:
        fan = int(np.prod(shape[:-1])) if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.held((self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32))

    def op(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        made = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(node(op, " ".join(inputs), " ".join(made), **attributes))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        bias = (self.rng.standard_normal(columns) / 10).astype(np.float32)
        return self.op("Add", self.op("MatMul", x, self.weights(rows, columns)), self.held(bias))

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int = 3, groups: int = 1, stride: int = 1
    ) -> str:
        w = self.weights(outputs, inputs // groups, kernel, kernel)
        pads = [kernel // 2 if stride < kernel else 0] * 4
        return self.op("Conv", x, w, pads=pads, group=groups, strides=[stride] * 2, kernel_shape=[kernel] * 2)

    def norm(self, x: str, width: int) -> str:
        gain = self.held(self.rng.uniform(0.8, 1.2, width).astype(np.float32))
        shift = self.held((self.rng.standard_normal(width) / 10).astype(np.float32))
        return self.op("LayerNormalization", x, gain, shift, axis=-1)

    def gelu(self, x: str) -> str:
        scaled = self.op("Div", x, self.held(np.float32(np.sqrt(2))))
        more = self.op("Add", self.op("Erf", scaled), self.held(np.float32(1)))
        return self.op("Mul", self.op("Mul", x, more), self.held(np.float32(0.5)))

    def heads(self, x: str, rows: int, heads: int, depth: int, perm: Sequence[int]) -> str:
        split = self.op("Reshape", x, self.held(np.array([1, rows, heads, depth])))
        return self.op("Transpose", split, perm=list(perm))

    def mixed(self, query: str, key: str, value: str, shape: Sequence[int], depth: int) -> str:
        """Return Softmax(query x key / sqrt(depth)) x value, with the heads side by side."""
        scores = self.op("Div", self.op("MatMul", query, key), self.held(np.float32(np.sqrt(depth))))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        return self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.held(np.array(shape)))

    def attention(self, x: str, rows: int, heads: int, depth: int) -> str:
        width = heads * depth
        query, key, value = (
            self.heads(self.linear(x, width, width), rows, heads, depth, perm)
            for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        return self.linear(self.mixed(query, key, value, [1, rows, width], depth), width, width)

    def transformer(self, x: str, rows: int, heads: int, depth: int) -> str:
        width = heads * depth
        x = self.op("Add", x, self.attention(self.norm(x, width), rows, heads, depth))
        inner = self.gelu(self.linear(self.norm(x, width), width, 2 * width))
        return self.op("Add", x, self.linear(inner, 2 * width, width))

    def finish(self, *outputs: str, opset: int = 17) -> KindOfNetwork:
        samples = [
            {name: self.rng.standard_normal(shape).astype(np.float32) for name, shape in self.inputs.items()}
            for _ in range(_SAMPLES)
        ]
        made = model(self.nodes, samples[0], outputs, self.constants, opset)
        return KindOfNetwork(made.SerializeToString(), ".onnx", samples)


def decoder() -> KindOfNetwork:
    """Return one step of a decoder layer; keys and values of earlier tokens are inputs, and outputs with the new."""
    net, heads, depth, past = _Float(), 2, 8, 5
    width = heads * depth
    x = net.given("x", 1, 1, width)
    keys, values = (net.given(name, 1, heads, past, depth) for name in ("keys", "values"))
    normed = net.norm(x, width)
    query, key, value = (
        net.heads(net.linear(normed, width, width), 1, heads, depth, (0, 2, 1, 3)) for _ in range(3)
    )
    keys, values = net.op("Concat", keys, key, axis=2), net.op("Concat", values, value, axis=2)
    turned = net.op("Transpose", keys, perm=[0, 1, 3, 2])
    attended = net.linear(net.mixed(query, turned, values, [1, 1, width], depth), width, width)
    x = net.op("Add", x, attended)
    inner = net.linear(net.norm(x, width), width, 2 * width)
    gated = net.op("Mul", inner, net.op("Sigmoid", inner))
    y = net.op("Add", x, net.linear(gated, 2 * width, width))
    return net.finish(y, keys, values)


def encoder() -> KindOfNetwork:
    """Return a BERT layer: attention and two dense layers, each with residual addition and normalization after it."""
    net, width = _Float(), 16
    x = net.given("x", 1, 6, width)
    x = net.norm(net.op("Add", x, net.attention(x, 6, 2, 8)), width)
    inner = net.gelu(net.linear(x, width, 32))
    return net.finish(net.norm(net.op("Add", x, net.linear(inner, 32, width)), width))


def vision_transformer() -> KindOfNetwork:
    """Return a vision transformer: patches, positions, a transformer layer and a classifier of the mean."""
    net, width = _Float(), 16
    patches = net.conv(net.given("x", 1, 3, 12, 12), 3, width, 4, stride=4)
    rows = net.op("Transpose", net.op("Reshape", patches, net.held(np.array([1, width, 9]))), perm=[0, 2, 1])
    x = net.op("Add", rows, net.held((net.rng.standard_normal((1, 9, width)) / 5).astype(np.float32)))
    x = net.norm(net.transformer(x, 9, 2, 8), width)
    return net.finish(net.linear(net.op("ReduceMean", x, axes=[1], keepdims=0), width, 5))


def mixer() -> KindOfNetwork:
    """Return a layer of MLP-Mixer: dense layers over the patches, then over the channels."""
    net, width, rows = _Float(), 16, 9
    patches = net.conv(net.given("x", 1, 3, 12, 12), 3, width, 4, stride=4)
    x = net.op("Transpose", net.op("Reshape", patches, net.held(np.array([1, width, rows]))), perm=[0, 2, 1])
    turned = net.op("Transpose", net.norm(x, width), perm=[0, 2, 1])
    over = net.linear(net.gelu(net.linear(turned, rows, 2 * rows)), 2 * rows, rows)
    x = net.op("Add", x, net.op("Transpose", over, perm=[0, 2, 1]))
    inner = net.gelu(net.linear(net.norm(x, width), width, 2 * width))
    return net.finish(net.op("Add", x, net.linear(inner, 2 * width, width)))


def unet() -> KindOfNetwork:
    """Return a U-Net of two levels, with a transposed convolution, a resized image and two concatenations."""
    net = _Float()
    first = net.op("Relu", net.conv(net.given("x", 1, 3, 12, 12), 3, 8))
    second = net.op("Relu", net.conv(net.op("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 8, 12))
    lowest = net.op("Relu", net.conv(net.op("MaxPool", second, kernel_shape=[2, 2], strides=[2, 2]), 12, 16))
    raised = net.op("ConvTranspose", lowest, net.weights(16, 12, 2, 2), strides=[2, 2], kernel_shape=[2, 2])
    x = net.op("Relu", net.conv(net.op("Concat", raised, second, axis=1), 24, 8))
    factors = net.held(np.array([1, 1, 2, 2], np.float32))
    raised = net.op(
        "Resize",
        x,
        "-",
        factors,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    x = net.op("Relu", net.conv(net.op("Concat", raised, first, axis=1), 16, 8))
    return net.finish(net.conv(x, 8, 2, 1))


def depthwise() -> KindOfNetwork:
    """Return an inverted residual block with a depthwise convolution, and a grouped convolution."""
    net = _Float()
    x = net.op("Relu", net.conv(net.given("x", 1, 8, 10, 10), 8, 8, 1))
    wide = net.op("Relu", net.conv(x, 8, 24, 1))
    deep = net.op("Relu", net.conv(wide, 24, 24, 3, groups=24))
    x = net.op("Add", x, net.conv(deep, 24, 8, 1))
    return net.finish(net.op("GlobalAveragePool", net.op("Relu", net.conv(x, 8, 16, 3, groups=2))))


def host_between() -> KindOfNetwork:
    """Return two dense layers with an operator between them that only the host computes."""
    net = _Float()
    x = net.linear(net.given("x", 4, 24), 24, 16)
    x = net.op("TopK", net.op("Relu", x), net.held(np.array([6])), outputs=2)
    return net.finish(net.linear(net.op("Tanh", net.linear(x, 6, 12)), 12, 5))


def two_ends() -> KindOfNetwork:
    """Return a network with two inputs, which are projected and added, and two outputs."""
    net = _Float()
    one = net.op("Relu", net.conv(net.given("image", 1, 4, 8, 8), 4, 8))
    other = net.op("Relu", net.conv(net.given("depth", 1, 2, 8, 8), 2, 8))
    x = net.op("Add", one, other)
    classes = net.linear(net.op("Flatten", net.op("GlobalAveragePool", x)), 8, 5)
    return net.finish(classes, net.op("Sigmoid", net.conv(x, 8, 1, 1)))


def one_layer() -> KindOfNetwork:
    """Return a network of a single dense layer."""
    net = _Float()
    return net.finish(net.linear(net.given("x", 3, 20), 20, 9))


def _gated(op: str, gates: int, **attributes: Any) -> KindOfNetwork:
    net, steps, size, units = _Float(), 3, 8, 8
    x = net.given("x", steps, 1, size)
    constants = [
        net.held((net.rng.standard_normal(shape) / 3).astype(np.float32))
        for shape in ((1, gates * units, size), (1, gates * units, units), (1, 2 * gates * units))
    ]
    y = net.op(op, x, *constants, outputs=2, hidden_size=units, **attributes)
    return net.finish(y, f"{y}_1")


def onnx_lstm() -> KindOfNetwork:
    """Return an ONNX LSTM."""
    return _gated("LSTM", 4)


def onnx_gru() -> KindOfNetwork:
    """Return an ONNX GRU."""
    return _gated("GRU", 3, linear_before_reset=1)


def _exact(made: onnx.ModelProto, samples: list[Arrays]) -> KindOfNetwork:
    wanted = [list(reference(made, sample).values()) for sample in samples]
    return KindOfNetwork(made.SerializeToString(), ".onnx", samples, wanted)


def branch() -> KindOfNetwork:
    """Return a quantized network with an early exit (If)."""
    rng = np.random.default_rng(SEED)
    made = early_exit(rng, threshold=0.3)
    return _exact(
        made, [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32) * 2} for _ in range(_SAMPLES)]
    )


def loop() -> KindOfNetwork:
    """Return a quantized recurrent network whose steps are a Loop."""
    rng = np.random.default_rng(SEED)
    made = recurrent(rng, 3, "Loop", 8)
    return _exact(made, [{"x": rng.standard_normal((3, 1, 8)).astype(np.float32)} for _ in range(_SAMPLES)])


def quantized_attention() -> KindOfNetwork:
    """Return quantized attention with a sigmoid of the scores, in QDQ form: softmax is not promised to be exact."""
    net = Qdq()
    q, k, v = (net.real(name, 0.05, 0) for name in "qkv")
    scaled = [
        net.add("Transpose", f"{name}", f"{name}_t", perm=perm)
        for name, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    ]
    q, k, v = scaled

    def again(name: str, scale: float, zero: int) -> str:
        constants = net.scale(f"{name}_q", scale, zero)
        net.add("QuantizeLinear", f"{name} {constants}", f"{name}_i")
        return net.add("DequantizeLinear", f"{name}_i {constants}", f"{name}_d")

    q, k, v = (again(name, 0.05, 0) for name in (q, k, v))
    scores = again(net.add("MatMul", f"{q} {k}", "scores"), 0.1, 0)
    weights = again(net.add("Sigmoid", scores, "weights"), 1 / 256, -128)
    mixed = again(net.add("MatMul", f"{weights} {v}", "mixed"), 0.05, 0)
    net.quantized(net.add("Transpose", mixed, "turned", perm=[0, 2, 1, 3]), 0.05, 0)
    rng = np.random.default_rng(SEED)
    samples = [
        {name: rng.integers(-128, 128, (1, 6, 2, 8)).astype(np.int8) for name in "qkv"}
        for _ in range(_SAMPLES)
    ]
    made = model(net.nodes, samples[0], ["y"], net.held)
    return _exact(made, samples)


def _litert(data: bytes) -> KindOfNetwork:
    """Return a file with random samples, which LiteRT's reference kernels compute in turn."""
    rng = np.random.default_rng(SEED)
    interpreter = Interpreter(
        model_content=data, experimental_op_resolver_type=RESOLVERS["reference"], num_threads=1
    )
    interpreter.allocate_tensors()
    samples, wanted = [], []
    for _ in range(_SAMPLES):
        sample = {}
        for each in interpreter.get_input_details():
            limits = np.iinfo(each["dtype"])
            low, high = (
                (0, 5) if each["dtype"] == np.int32 else (limits.min, limits.max + 1)
            )  # int32: a count
            sample[each["name"]] = rng.integers(low, high, each["shape"]).astype(each["dtype"])
            interpreter.set_tensor(each["index"], sample[each["name"]])
        interpreter.invoke()
        samples.append(sample)
        wanted.append([interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()])
    return KindOfNetwork(data, ".tflite", samples, wanted)


def tflite_lstm() -> KindOfNetwork:
    """Return a TFLite LSTM, whose hidden and cell states are variables."""
    return _litert(tflite_recurrent.lstm(np.random.default_rng(SEED), tflite_recurrent.LstmKind(), steps=2))


def svdf() -> KindOfNetwork:
    """Return a TFLite chain of two SVDF operators."""
    return _litert(tflite_recurrent.svdf(np.random.default_rng(SEED), activation=1, layers=2))


def streaming() -> KindOfNetwork:
    """Return a TFLite streaming network with resource variables."""
    return _litert(tflite_recurrent.streaming_filter(np.random.default_rng(SEED)))


def int16() -> KindOfNetwork:
    """Return a TFLite network with int16 activations."""
    return _litert(int16_network(np.random.default_rng(SEED), 4).file())


def while_loop() -> KindOfNetwork:
    """Return a TFLite network that adds weights to a row until a counter, which starts at an input, reaches 5."""
    row, number, meaning = ((1, 16), "int8"), ((), "int32"), (0.1, 3)
    repeat = Operator(
        "WHILE", ["i", "x"], ["j", "y"], options("While", condSubgraphIndex=1, bodySubgraphIndex=2)
    )
    start = {"x": row, "i": number, "j": number, "y": row}
    main = FileGraph(start, [repeat], ["x", "i"], ["y"], {"x": meaning, "y": meaning})
    less = [Operator("LESS", ["i", "five"], ["go"], options("Less"))]
    tensors = {"i": number, "s": row, "five": np.array(5, np.int32), "go": ((), "bool")}
    condition = FileGraph(tensors, less, ["i", "s"], ["go"], {"s": meaning})
    body = FileGraph(
        {
            "i": number,
            "s": row,
            "one": np.array(1, np.int32),
            "i2": number,
            "w": np.arange(-8, 8, dtype=np.int8).reshape(1, 16),
            "s2": row,
        },
        [
            Operator("ADD", ["i", "one"], ["i2"], options("Add")),
            Operator("ADD", ["s", "w"], ["s2"], options("Add"), 2),
        ],
        ["i", "s"],
        ["i2", "s2"],
        {"s": meaning, "s2": meaning, "w": (0.05, 0)},
    )
    return _litert(packed([main, condition, body]))


#: Functions that return the networks, by name.
KINDS: dict[str, Callable[[], KindOfNetwork]] = {
    make.__name__.strip("_"): make
    for make in (
        decoder,
        encoder,
        quantized_attention,
        onnx_lstm,
        onnx_gru,
        tflite_lstm,
        svdf,
        streaming,
        vision_transformer,
        unet,
        branch,
        loop,
        while_loop,
        host_between,
        int16,
        two_ends,
        depthwise,
        mixer,
        one_layer,
    )
}


@cache
def network_of_kind(name: str) -> KindOfNetwork:
    """Return the network of a kind, made once."""
    return KINDS[name]()


def search(name: str, method: str, folder: Path, trials: int = 4, target: str = "n4") -> TuningResult:
    """Tune a network with a method; check the outputs of every accepted schedule against the references.

    The references are the static compiler's programs and, if its results must be equal, the model's own runtime.
    """
    kind, config = network_of_kind(name), load_target(target)
    source = ModelSource(kind.write(folder))
    options = CompileOptions(rounding=source.rounding)
    author = language_model(None) if method in (LLM, PORTFOLIO) else None
    with Measurer(source.graph, HardwareProfile(config), options, devices=1) as measurer:
        found = tune(measurer, method, trials, language_model=author)
    prepared = ModelCompiler(source.graph, config, options)
    wanted = kind.outputs(prepared.network())
    if kind.wanted is not None:
        compare(wanted, kind.wanted, f"{name}: static programs")
    accepted = {
        trial.schedule.to_json(): trial.schedule for trial in found.trials if rejection_reason(trial) is None
    }
    for number, schedule in enumerate(accepted.values()):
        compare(kind.outputs(prepared.network(schedule)), wanted, f"{name}: {method}: schedule {number}")
    assert len(found.trials) == trials and not found.left_out, f"{name}: {method}: {found.left_out}"
    assert isinstance(found.best.result, Measurement) and found.best.result.valid
    assert found.best.result.cycles <= found.baseline.cycles
    return found


def compare(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]], what: str) -> None:
    """Check that all outputs are equal."""
    for number, (mine, its) in enumerate(zip(found, wanted, strict=True)):
        for one, other in zip(mine, its, strict=True):
            np.testing.assert_array_equal(one, other, f"{what}: sample {number}")
