"""Models with a dynamic number of tokens, and networks for one length with the quantization of the longest length."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.options import CompileOptions
from compiler.pipeline import CompilationTrace, ModelCompiler
from hw.config import load_target

#: Name of the dynamic dimension.
TOKENS = "tokens"


class _Encoder:
    """Float transformer encoder with layer normalization before each branch; the weights are seeded."""

    def __init__(self, width: int, seed: int):
        self.width, self.rng = width, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        names = []
        for each in inputs:
            if not isinstance(each, str):
                self.constants[f"c{len(self.constants)}"] = np.asarray(each)
                each = f"c{len(self.constants) - 1}"
            names.append(each)
        output = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, names, [output], name=f"{kind}{len(self.nodes)}", **attributes)
        )
        return output

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        weights = self.normal(inputs, outputs, scale=inputs**-0.5)
        return self.op("Add", self.op("MatMul", x, weights), self.normal(outputs, scale=0.1))

    def norm(self, x: str) -> str:
        gain, shift = 1 + self.normal(self.width, scale=0.1), self.normal(self.width, scale=0.1)
        return self.op("LayerNormalization", x, gain, shift, axis=-1)

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, np.float32(2**0.5)))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, np.float32(1))), np.float32(0.5))

    def attention(self, x: str, heads: int) -> str:
        width, depth = self.width, self.width // heads
        query, key, value = (
            self.op(
                "Transpose",
                self.op("Reshape", self.linear(x, width, width), np.array([1, -1, heads, depth])),
                perm=perm,
            )
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = self.op("Mul", self.op("MatMul", query, key), np.float32(depth**-0.5))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        rows = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([1, -1, width]))
        return self.linear(rows, width, width)

    def layer(self, x: str, heads: int) -> str:
        x = self.op("Add", x, self.attention(self.norm(x), heads))
        inner = self.gelu(self.linear(self.norm(x), self.width, 4 * self.width))
        return self.op("Add", x, self.linear(inner, 4 * self.width, self.width))


def encoder(folder: Path, width: int, layers: int, heads: int, seed: int) -> Path:
    """Write a float encoder with input `x` of shape (1, tokens, width); return the path of the .onnx file."""
    net, x = _Encoder(width, seed), "x"
    for _ in range(layers):
        x = net.layer(x, heads)
    y = net.norm(x)
    shape = [1, TOKENS, width]
    graph = helper.make_graph(
        net.nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in net.constants.items()],
    )
    path = folder / "encoder.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def quantized(path: Path, length: int, longest: Graph | None = None, target: str = "n16") -> Graph:
    """Return the quantized graph of a float model, imported and quantized for one length.

    `longest` is the quantized graph for the longest length, whose weights, scales and zero points replace those of the
    result.
    """
    trace, options = CompilationTrace(), CompileOptions(rounding="onnxruntime")
    ModelCompiler(read_model(path, {TOKENS: length}), load_target(target), options, trace)
    graph = trace.graphs["quantized"]
    if longest is None:
        return graph
    made = Graph(graph.name)
    for name in longest.tensors:
        its, mine = longest.tensors[name], graph.tensors.get(name)
        fixed = its if its.data is not None or mine is None else replace(mine, quantization=its.quantization)
        (made.add_input if name in longest.inputs else made.add_tensor)(fixed)
    for node in longest:
        made.add_node(replace(node, attributes=graph.nodes[node.name].attributes))
    return made.finish(list(longest.outputs))
