"""Execution of the language model on the accelerator, as an int8 network that processes one token, exported to ONNX."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.api import compile
from compiler.ir.tensor import Quantization
from compiler.llm.model.numpy_transformer import Floats, Gpt, rotary_frequencies
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from hw.config import MlaConfig

#: Number of positions per token sequence that are used for calibration.
_CALIBRATION_POSITIONS = 8
_INT8 = ":int8"
#: Number of tokens between progress messages.
_REPORT_TOKENS = 16

#: Function that opens a device with a DRAM of the given size in bytes.
DeviceOpener = Callable[[MlaConfig, int], Device]


class ChipGpt:
    """Language model that runs on the accelerator.

    Parameters
    ----------
    model : Gpt
        Model to run.
    config : MlaConfig
        Hardware configuration to compile for.
    open_device : callable
        Function that opens the device for a configuration and a DRAM size in bytes.
    context : int
        Context length in tokens.
    texts : sequence of sequences of int
        Token sequences for calibration, representative of prompts and answers.
    continuations : int
        Maximum number of simultaneous continuations; each has its own key-value cache.
    dram : DramTiming
        DRAM timing assumed when compiling.
    say : callable
        Called with progress messages.

    Attributes
    ----------
    tokens, cycles : int
        Number of tokens processed so far, and their cycles.
    """

    def __init__(
        self,
        model: Gpt,
        config: MlaConfig,
        open_device: DeviceOpener,
        context: int,
        texts: Sequence[Sequence[int]],
        continuations: int = 1,
        dram: DramTiming = DEFAULT_DRAM,
        say: Callable[[str], None] = lambda _text: None,
    ):
        self.model, self.context, self.tokens, self.cycles, self._say = model, context, 0, 0, say
        self.network = compile_model(model, config, context, texts, dram)
        host, stage, _ = self.network.stages
        assert host.graph is not None
        self._tables: dict[str, tuple[NDArray, bool]] = {}
        for node in host.graph.nodes.values():
            if node.op == "gather":
                table = host.graph.tensors[node.inputs[0]].data
                assert table is not None
                self._tables[node.outputs[0]] = table, node.inputs[1] == "word"
        self._scales = {each.name: each.quantization for each in (*stage.inputs, *stage.outputs)}
        self.device = open_device(config, dram_bytes(self.network, continuations))
        self._session = Session(self.device, self.network, continuations)

    def close(self) -> None:
        """Close the device; may be called repeatedly."""
        self.device.close()

    def read(self, tokens: Sequence[int]) -> "ChipState":
        """Return the state after a prompt.

        Raises
        ------
        ValueError
            The prompt is empty or longer than the context.
        """
        if not 0 < len(tokens) <= self.context:
            raise ValueError(f"a prompt must have 1..{self.context} tokens, not {len(tokens)}")
        state = ChipState(self, [0])
        for _, name in self._cache():
            self._session.tensor_view(name)[...] = self._zero_point(name)
        state.push(np.array([tokens]))
        return state

    def copy_cache(self, sample: int, to: int) -> None:
        """Copy the key-value cache of one continuation to another."""
        for _, name in self._cache():
            self._session.tensor_view(name, to)[...] = self._session.tensor_view(name, sample)

    def step(self, token: int, position: int, sample: int) -> Floats:
        """Process one token of a continuation, and return the logits of the next token.

        Parameters
        ----------
        token : int
            Id of the token.
        position : int
            Position of the token in the continuation.
        sample : int
            Index of the continuation, whose key-value cache is extended.
        """
        for name, (table, by_token) in self._tables.items():
            view = self._session.tensor_view(name, sample)
            view[...] = table[token if by_token else position].reshape(view.shape)
        self.cycles += self._session.rerun(sample)
        self.tokens += 1
        if self.tokens % _REPORT_TOKENS == 0:
            self._say(f"{self.tokens} tokens processed by the accelerator, {self.cycles:,} cycles")
        for output, cache in self._cache():
            row = _requantize(
                self._session.tensor_view(output, sample)[:, 0], self._scales[output], self._scales[cache]
            )
            view = self._session.tensor_view(cache, sample)
            (view.swapaxes(1, 2) if "transposed" in cache else view)[:, position] = row
        scores = f"scores{_INT8}"
        return _dequantize(self._session.tensor_view(scores, sample).reshape(-1), self._scales[scores])

    def _cache(self) -> Iterable[tuple[str, str]]:
        """Yield pairs of names: an output with a new row of a cache, and the input that contains the cache."""
        for number in range(self.model.shape.layers):
            yield f"key {number}{_INT8}", f"keys {number}:transposed{_INT8}"
            yield f"value {number}{_INT8}", f"values {number}{_INT8}"

    def _zero_point(self, name: str) -> int:
        quantization = self._scales[name]
        assert quantization is not None
        return quantization.zero_point[0]


class ChipState:
    """Decoding state on the accelerator, with the interface of `numpy_transformer.TransformerState`."""

    def __init__(self, chip: ChipGpt, samples: Sequence[int]):
        self.chip, self.length = chip, 0
        self._samples = list(samples)
        self.scores: Floats = np.zeros((len(self._samples), chip.model.shape.words), np.float32)

    def fork(self, count: int) -> "ChipState":
        """Return a state with `count` copies of the single continuation."""
        state = ChipState(self.chip, range(count))
        state.length = self.length
        for sample in range(1, count):
            self.chip.copy_cache(self._samples[0], sample)
        state.scores[...] = self.scores
        return state

    def select(self, indices: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        self._samples = [self._samples[each] for each in indices]
        self.scores = self.scores[indices]

    @property
    def full(self) -> bool:
        """True if the context has no room for another token."""
        return self.length == self.chip.context

    def push(self, tokens: NDArray[np.integer]) -> None:
        """Append tokens to every continuation; shape (continuations, tokens)."""
        for column in tokens.T:
            for at, (token, sample) in enumerate(zip(column.tolist(), self._samples, strict=True)):
                self.scores[at] = self.chip.step(token, self.length, sample)
            self.length += 1


def compile_model(
    model: Gpt,
    config: MlaConfig,
    context: int,
    texts: Sequence[Sequence[int]],
    dram: DramTiming = DEFAULT_DRAM,
) -> CompiledNetwork:
    """Compile the model to an int8 network that processes one token; `texts` are token sequences for calibration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "next_word.onnx"
        path.write_bytes(export(model, context).SerializeToString())
        samples = [sample for text in texts for sample in _samples(model, text[:context], context)]
        return compile(path, config, calibration=samples, dram=dram)


def _samples(model: Gpt, text: Sequence[int], context: int) -> Iterable[Mapping[str, NDArray]]:
    """Yield calibration inputs of the network for several positions of a token sequence."""
    step = max(len(text) // _CALIBRATION_POSITIONS, 1)
    for position in range(len(text) - 1, -1, -step):
        state = model.read(text[: position + 1])
        sample = {"word": np.array([text[position]]), "place": np.array([position])}
        for number in range(model.shape.layers):
            for kind, rows in zip(("keys", "values"), state.cached_keys_values(number), strict=True):
                cache = np.zeros((model.shape.heads, context, rows.shape[-1]), np.float32)
                cache[:, :position] = rows[:, :position]
                sample[f"{kind} {number}"] = cache
        yield sample


def _dequantize(array: NDArray, quantization: Quantization | None) -> Floats:
    assert quantization is not None
    return (array.astype(np.float32) - quantization.zero_point[0]) * np.float32(quantization.scale[0])


def _requantize(array: NDArray, old: Quantization | None, new: Quantization | None) -> NDArray[np.int8]:
    """Convert an array from one quantization to another."""
    assert new is not None
    levels = np.rint(_dequantize(array, old) / np.float32(new.scale[0])) + new.zero_point[0]
    return np.clip(levels, -128, 127).astype(np.int8)


#: Value added to the scores of unused positions, whose exponential is then quantized to zero.
_MASKED_SCORE = -24.0
_OPSET = 23
_EPSILON = 1e-5

Shape = tuple[int, ...]


def export(model: Gpt, context: int) -> onnx.ModelProto:
    """Return the ONNX network of a model.

    Parameters
    ----------
    model : Gpt
        Model to export.
    context : int
        Context length in tokens, including the current one.

    Returns
    -------
    onnx.ModelProto
        Inputs: `word` and `place`, int64 (1,); `keys N` and `values N`, float32 (heads, context, width of a head), for
        each layer N. Outputs: `scores`, float32 (1, words); `key N` and `value N`, float32 (heads, 1, width of a head).

    Raises
    ------
    ValueError
        `context` exceeds the context of the model.
    """
    if not 1 <= context <= model.shape.context:
        raise ValueError(f"context must be in 1..{model.shape.context}, not {context}")
    return _Exporter(model, context).network()


class _Exporter:
    """Builder of the ONNX network of a model."""

    def __init__(self, model: Gpt, context: int):
        self.model, self.context, self.shape = model, context, model.shape
        self.head = model.shape.width // model.shape.heads
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.outputs: dict[str, Shape] = {}

    def network(self) -> onnx.ModelProto:
        shape, head = self.shape, self.head
        cos, sin, mask, quarter = self._tables()
        x = self._node("Gather", [self._constant("words", self.model.weights["words"]), "word"], "vector")
        for number in range(shape.layers):
            normed = self._rms_norm(x, f"{number}.attention.norm")
            x = self._node(
                "Add", [x, self._attention(number, normed, cos, sin, mask, quarter)], f"{number}.attended"
            )
            x = self._node(
                "Add",
                [x, self._feed_forward(number, self._rms_norm(x, f"{number}.gated.norm"))],
                f"{number}.out",
            )
        scores = self._linear(self._rms_norm(x, "norm"), "words", "scores")
        cache = {
            f"{kind} {number}": (shape.heads, self.context, head)
            for number in range(shape.layers)
            for kind in ("keys", "values")
        }
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, (1,)) for name in ("word", "place")]
        inputs += [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in cache.items()
        ]
        made = {scores: (1, shape.words)} | self.outputs
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in made.items()
        ]
        graph = helper.make_graph(self.nodes, "next word", inputs, outputs, list(self.constants.values()))
        network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
        onnx.checker.check_model(network, full_check=True)
        return network

    def _tables(self) -> tuple[str, str, str, str]:
        """Add the tensors of attention, and return their names: rotary cosine and sine, mask, quarter-turn matrix."""
        angles = np.repeat(np.arange(self.context)[:, None] * rotary_frequencies(self.head), 2, axis=1)
        mask = np.where(np.arange(self.context) < np.arange(self.context)[:, None], 0.0, _MASKED_SCORE)
        quarter = np.zeros((self.head, self.head))
        even = np.arange(0, self.head, 2)
        quarter[even, even + 1], quarter[even + 1, even] = 1.0, -1.0
        rows = {"cos": np.cos(angles), "sin": np.sin(angles), "there": mask}
        found = [
            self._node("Gather", [self._constant(f"{name} of all", table), "place"], name)
            for name, table in rows.items()
        ]
        return found[0], found[1], found[2], self._constant("quarter", quarter)

    def _attention(self, number: int, x: str, cos: str, sin: str, mask: str, quarter: str) -> str:
        name, shape, head = f"{number}.attention", self.shape, self.head
        weights = self.model.weights[f"{name}.in"].reshape(3, shape.width, shape.width)
        parts = []
        for part, matrix in zip(("query", "key", "value"), weights, strict=True):
            made = self._node(
                "MatMul", [x, self._constant(f"{name}.{part}.weight", matrix.T)], f"{name}.{part}"
            )
            parts.append(self._reshape(made, (shape.heads, 1, head), f"{name}.{part} of heads"))
        query, key = (self._rotate(each, cos, sin, quarter) for each in parts[:2])
        key = self._output(key, f"key {number}", (shape.heads, 1, head))
        value = self._output(parts[2], f"value {number}", (shape.heads, 1, head))
        root = self._constant("root", np.array(1 / np.sqrt(head)))
        query = self._node("Mul", [query, root], f"{name}.scaled")
        flipped = self._node("Transpose", [f"keys {number}"], f"{name}.keys", perm=[0, 2, 1])
        before = self._node(
            "Add", [self._node("MatMul", [query, flipped], f"{name}.raw"), mask], f"{name}.before"
        )
        own = self._node(
            "MatMul",
            [query, self._node("Transpose", [key], f"{name}.own key", perm=[0, 2, 1])],
            f"{name}.own",
        )
        joined = self._node("Concat", [before, own], f"{name}.scores", axis=2)
        shares = self._node("Softmax", [joined], f"{name}.shares", axis=2)
        old, new = f"{name}.old", f"{name}.new"
        sizes = self._constant("places and one", np.array([self.context, 1], np.int64))
        self.nodes.append(
            helper.make_node("Split", [shares, sizes], [old, new], name=f"{name}.split", axis=2)
        )
        mixed = self._node(
            "Add",
            [
                self._node("MatMul", [old, f"values {number}"], f"{name}.of old"),
                self._node("MatMul", [new, value], f"{name}.of new"),
            ],
            f"{name}.mixed",
        )
        return self._linear(
            self._reshape(mixed, (1, shape.width), f"{name}.together"), f"{name}.out", f"{name}.out"
        )

    def _rotate(self, x: str, cos: str, sin: str, quarter: str) -> str:
        across = self._node("MatMul", [x, quarter], f"{x}.quarter")
        parts = [self._node("Mul", [each, by], f"{each}.{by}") for each, by in ((x, cos), (across, sin))]
        return self._node("Add", parts, f"{x}.turned")

    def _feed_forward(self, number: int, x: str) -> str:
        name, hidden = f"{number}.gated", self.shape.hidden
        matrix = self.model.weights[f"{name}.in"]
        gate, value = (
            self._node("MatMul", [x, self._constant(f"{name}.{part}.weight", rows.T)], f"{name}.{part}")
            for part, rows in (("gate", matrix[:hidden]), ("value", matrix[hidden:]))
        )
        open_ = self._node("Mul", [gate, self._node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.silu")
        return self._linear(
            self._node("Mul", [open_, value], f"{name}.product"), f"{name}.out", f"{name}.result"
        )

    def _rms_norm(self, x: str, name: str) -> str:
        gain = self._constant(name, self.model.weights[name])
        return self._node("RMSNormalization", [x, gain], f"{name}ed", axis=-1, epsilon=_EPSILON)

    def _linear(self, x: str, weights: str, name: str) -> str:
        matrix = self._constant(f"{weights}.across", self.model.weights[weights].T)
        return self._node("MatMul", [x, matrix], name)

    def _reshape(self, x: str, shape: Shape, name: str) -> str:
        size = self._constant(f"shape {'x'.join(map(str, shape))}", np.array(shape, np.int64))
        return self._node("Reshape", [x, size], name)

    def _output(self, x: str, name: str, shape: Shape) -> str:
        self.outputs[name] = shape
        return self._node("Identity", [x], name)

    def _node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, name: str, array: NDArray) -> str:
        array = np.asarray(array)
        array = array if array.dtype == np.int64 else array.astype(np.float32)
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name
