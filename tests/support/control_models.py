"""Helpers for ONNX models with control flow, a network with an early exit, and a recurrent network."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.onnx_models import model, node

FLOAT, INTEGER, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
#: Inputs of a Loop's body before its states.
COUNTED = (("i", INTEGER), ("c", BOOL))


def subgraph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int]],
    outputs: Sequence[tuple[str, int]],
    shape: tuple[int, ...] | None = None,
) -> onnx.GraphProto:
    """Return a subgraph; float values have the given shape or no declared shape, and all other values are scalars."""
    ins, outs = (
        [helper.make_tensor_value_info(name, kind, shape if kind == FLOAT else ()) for name, kind in part]
        for part in (inputs, outputs)
    )
    return helper.make_graph(list(nodes), "body", ins, outs)


def branch(output: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """Return a branch of an If with one output."""
    return subgraph(nodes, [], [(output, FLOAT)])


def integer(value: int) -> np.ndarray:
    """Return an int64 scalar."""
    return np.array(value, np.int64)


def through(x: str, y: str, scale: str, zero: str) -> list[onnx.NodeProto]:
    """Return nodes that quantize x to int8 and dequantize it into y."""
    return [
        node("QuantizeLinear", f"{x} {scale} {zero}", f"{y}_int"),
        node("DequantizeLinear", f"{y}_int {scale} {zero}", y),
    ]


class Weights:
    """Constants of a quantized model: the scales of activations, and random int8 weights."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        scales = {"x_s": 0.0237, "y_s": 0.0413, "h_s": 1 / 128, "w_s": 0.00717, "p_s": 1 / 256}
        zeros = {"x_z": 3, "y_z": -5, "z": 0, "p_z": -128}
        self.constants: dict[str, np.ndarray] = {
            name: np.array(scale, np.float32) for name, scale in scales.items()
        }
        self.constants |= {name: np.array(zero, np.int8) for name, zero in zeros.items()}

    def add(self, name: str, *shape: int) -> list[onnx.NodeProto]:
        """Add random weights and return the node that dequantizes them into `name`."""
        self.constants[f"{name}_int"] = self.rng.integers(-60, 61, shape).astype(np.int8)
        return [node("DequantizeLinear", f"{name}_int w_s z", name)]


def early_exit(rng: np.random.Generator, size: int = 8, threshold: float = 0.6) -> onnx.ModelProto:
    """Return a quantized network that runs further convolutions only if its first classifier is not confident."""
    w = Weights(rng)
    first = [
        *through("x", "x0", "x_s", "x_z"),
        *w.add("w0", 8, 3, 3, 3),
        node("Conv", "x0 w0", "a0", pads=[1, 1, 1, 1]),
        node("Relu", "a0", "r0"),
        *through("r0", "f0", "y_s", "y_z"),
        node("GlobalAveragePool", "f0", "p0"),
        *through("p0", "p1", "y_s", "y_z"),
        node("Flatten", "p1", "v0"),
        *w.add("wh", 8, 4),
        node("MatMul", "v0 wh", "l0"),
        *through("l0", "logits", "y_s", "y_z"),
        node("Softmax", "logits", "soft"),
        *through("soft", "likely", "p_s", "p_z"),
        node("ReduceMax", "likely", "top", keepdims=0),
        *through("top", "best", "p_s", "p_z"),
        node("Greater", "best threshold", "sure"),
    ]
    deep = branch(
        "deep",
        *w.add("w1", 8, 8, 3, 3),
        node("Conv", "f0 w1", "a1", pads=[1, 1, 1, 1]),
        node("Relu", "a1", "r1"),
        *through("r1", "f1", "y_s", "y_z"),
        node("GlobalAveragePool", "f1", "p2"),
        *through("p2", "p3", "y_s", "y_z"),
        node("Flatten", "p3", "v1"),
        *w.add("w2", 8, 4),
        node("MatMul", "v1 w2", "l1"),
        *through("l1", "deep", "y_s", "y_z"),
    )
    early = branch("early", node("Identity", "logits", "early"))
    sample = {"x": rng.standard_normal((1, 3, size, size)).astype(np.float32)}
    made = [*first, node("If", "sure", "y", then_branch=early, else_branch=deep)]
    return model(made, sample, ["y"], w.constants | {"threshold": np.array(threshold, np.float32)})


def recurrent(rng: np.random.Generator, steps: int, kind: str, width: int = 16) -> onnx.ModelProto:
    """Return a quantized recurrent network, h' = tanh(W (x, h)), that is implemented with a Loop or a Scan."""
    w = Weights(rng)
    step = [
        *through("x_t", "x_c", "x_s", "x_z"),
        *through("h", "h_c", "h_s", "z"),
        *w.add("wx", width, width),
        *w.add("wh", width, width),
        node("MatMul", "x_c wx", "ax"),
        *through("ax", "ax_c", "y_s", "y_z"),
        node("MatMul", "h_c wh", "ah"),
        *through("ah", "ah_c", "y_s", "y_z"),
        node("Add", "ax_c ah_c", "a"),
        *through("a", "a_c", "y_s", "y_z"),
        node("Tanh", "a_c", "t"),
        *through("t", "h2", "h_s", "z"),
        node("Identity", "h2", "y_t"),
    ]
    constants = w.constants | {"h0": np.zeros((1, width), np.float32), "steps": integer(steps)}
    if kind == "Scan":
        body = subgraph(step, [("h", FLOAT), ("x_t", FLOAT)], [("h2", FLOAT), ("y_t", FLOAT)])
        whole = node("Scan", "h0 x", "hn ys", body=body, num_scan_inputs=1)
    else:
        picked = [node("Gather", "x i", "x_t", axis=0), *step, node("Identity", "c", "c2")]
        outputs = [("c2", BOOL), ("h2", FLOAT), ("y_t", FLOAT)]
        whole = node("Loop", "steps - h0", "hn ys", body=subgraph(picked, [*COUNTED, ("h", FLOAT)], outputs))
    return model(
        [whole], {"x": rng.standard_normal((steps, 1, width)).astype(np.float32)}, ["hn", "ys"], constants
    )
