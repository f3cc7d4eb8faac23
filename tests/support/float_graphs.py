"""Small float graphs, and their samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from compiler.ir.graph import Graph
from tests.support.onnx_models import model, node, read

IMAGE = (1, 3, 12, 12)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return seeded, normally distributed float32 values around zero."""
    return (np.random.default_rng(seed + sum(shape)).standard_normal(shape) * scale).astype(np.float32)


def samples(shape: Sequence[int], count: int = 4, seed: int = 100) -> list[dict[str, np.ndarray]]:
    """Return samples, each of which maps the name of the model's input to a value."""
    return [{"x": numbers(*shape, seed=seed + i)} for i in range(count)]


def graph_of(
    folder: Path,
    nodes: list[onnx.NodeProto],
    constants: Mapping[str, np.ndarray] | None = None,
    shape: Sequence[int] = IMAGE,
) -> Graph:
    """Return the graph of a float ONNX model that computes y from x."""
    return read(folder, model(nodes, {"x": numbers(*shape)}, ["y"], constants))


CONV = {"kernel_shape": [3, 3], "pads": [1] * 4}
SMALL = {"w": numbers(8, 3, 3, 3, scale=0.3), "b": numbers(8, scale=0.3), "d": numbers(8, 1, 3, 3, scale=0.3)}


#: Nodes of a network with a residual block, and its constants.
BLOCK = [
    node("Conv", "x w b", "c", **CONV),
    node("Relu", "c", "r"),
    node("Conv", "r d", "e", group=8, **CONV),
    node("Add", "e r", "a"),
    node("Relu", "a", "ar"),
    node("GlobalAveragePool", "ar", "g"),
    node("Flatten", "g", "f"),
    node("Gemm", "f k", "y"),
]
WITHIN = SMALL | {"k": numbers(8, 10)}
