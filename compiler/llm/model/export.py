"""Exports the model as an ONNX network for one token; the key-value cache is an input.

Each layer has two cache inputs. The network outputs the new row of each, and the caller writes it to the cache, so
that data of the size of the context is never copied.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.llm.model.numpy_transformer import Gpt, turns

#: Added to the scores of unused positions; its exponential is zero.
_NOT_THERE = -24.0
_OPSET = 23
_EPSILON = 1e-5

Shape = tuple[int, ...]


def export(model: Gpt, places: int) -> onnx.ModelProto:
    """Return the ONNX network of a model.

    Parameters
    ----------
    model : Gpt
        Model to export.
    places : int
        Context length in tokens, including the current one.

    Returns
    -------
    onnx.ModelProto
        Inputs: `word` and `place`, int64 (1,); `keys N` and `values N`, float32 (heads, places, width of a head), for
        each layer N. Outputs: `scores`, float32 (1, words); `key N` and `value N`, float32 (heads, 1, width of a head).

    Raises
    ------
    ValueError
        `places` exceeds the context of the model.
    """
    if not 1 <= places <= model.shape.context:
        raise ValueError(f"places must be in 1..{model.shape.context}, not {places}")
    return _Exporter(model, places).network()


class _Exporter:
    def __init__(self, model: Gpt, places: int):
        self.model, self.places, self.shape = model, places, model.shape
        self.head = model.shape.width // model.shape.heads
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.outputs: dict[str, Shape] = {}

    def network(self) -> onnx.ModelProto:
        shape, head = self.shape, self.head
        cos, sin, there, unequal = self._tables()
        x = self._node("Gather", [self._constant("words", self.model.weights["words"]), "word"], "vector")
        for number in range(shape.layers):
            normed = self._normed(x, f"{number}.attention.norm")
            x = self._node(
                "Add", [x, self._attention(number, normed, cos, sin, there, unequal)], f"{number}.attended"
            )
            x = self._node(
                "Add", [x, self._gated(number, self._normed(x, f"{number}.gated.norm"))], f"{number}.out"
            )
        scores = self._linear(self._normed(x, "norm"), "words", "scores")
        cache = {
            f"{kind} {number}": (shape.heads, self.places, head)
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
        """Add tables for the current position: rotary cosine and sine, position mask, quarter-turn matrix."""
        angles = np.repeat(np.arange(self.places)[:, None] * turns(self.head), 2, axis=1)
        there = np.where(np.arange(self.places) < np.arange(self.places)[:, None], 0.0, _NOT_THERE)
        quarter = np.zeros((self.head, self.head))
        even = np.arange(0, self.head, 2)
        quarter[even, even + 1], quarter[even + 1, even] = 1.0, -1.0
        rows = {"cos": np.cos(angles), "sin": np.sin(angles), "there": there}
        found = [
            self._node("Gather", [self._constant(f"{name} of all", table), "place"], name)
            for name, table in rows.items()
        ]
        return found[0], found[1], found[2], self._constant("quarter", quarter)

    def _attention(self, number: int, x: str, cos: str, sin: str, there: str, quarter: str) -> str:
        name, shape, head = f"{number}.attention", self.shape, self.head
        weights = self.model.weights[f"{name}.in"].reshape(3, shape.width, shape.width)
        parts = []
        for part, matrix in zip(("query", "key", "value"), weights, strict=True):
            made = self._node(
                "MatMul", [x, self._constant(f"{name}.{part}.weight", matrix.T)], f"{name}.{part}"
            )
            parts.append(self._reshape(made, (shape.heads, 1, head), f"{name}.{part} of heads"))
        query, key = (self._turned(each, cos, sin, quarter) for each in parts[:2])
        key = self._output(key, f"key {number}", (shape.heads, 1, head))
        value = self._output(parts[2], f"value {number}", (shape.heads, 1, head))
        root = self._constant("root", np.array(1 / np.sqrt(head)))
        query = self._node("Mul", [query, root], f"{name}.scaled")
        flipped = self._node("Transpose", [f"keys {number}"], f"{name}.keys", perm=[0, 2, 1])
        before = self._node(
            "Add", [self._node("MatMul", [query, flipped], f"{name}.raw"), there], f"{name}.before"
        )
        own = self._node(
            "MatMul",
            [query, self._node("Transpose", [key], f"{name}.own key", perm=[0, 2, 1])],
            f"{name}.own",
        )
        joined = self._node("Concat", [before, own], f"{name}.scores", axis=2)
        shares = self._node("Softmax", [joined], f"{name}.shares", axis=2)
        old, new = f"{name}.old", f"{name}.new"
        sizes = self._constant("places and one", np.array([self.places, 1], np.int64))
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

    def _turned(self, x: str, cos: str, sin: str, quarter: str) -> str:
        across = self._node("MatMul", [x, quarter], f"{x}.quarter")
        parts = [self._node("Mul", [each, by], f"{each}.{by}") for each, by in ((x, cos), (across, sin))]
        return self._node("Add", parts, f"{x}.turned")

    def _gated(self, number: int, x: str) -> str:
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

    def _normed(self, x: str, name: str) -> str:
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
