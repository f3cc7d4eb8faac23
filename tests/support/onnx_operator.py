"""Models of one operator: of ONNX with what onnxruntime computes, of the graph with what the host does."""

from typing import Any

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from tests.support.exact_products import exact_products

#: GELU came with 20, RMSNormalization with 23.
_OPSET, _IR = 23, 11


def run(operator: str, *inputs: np.ndarray | None, constants: bool = False, **attributes: Any) -> np.ndarray:
    """The operator's first output, integer products exact; an input that is None is absent.

    With `constants`, which some operators demand, scalars and vectors are part of the model.
    """
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    given = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    inside = {name: given.pop(name) for name in list(given) if constants and given[name].ndim < 2}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    node = helper.make_node(operator, names, ["y"], **attributes)
    stored = [numpy_helper.from_array(value, name) for name, value in inside.items()]
    graph = helper.make_graph([node], "one", values, [helper.make_empty_tensor_value_info("y")], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        exact_products(model).SerializeToString(), settings, ["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, given)[0])


def channels_first(x: np.ndarray) -> np.ndarray:
    """An image in ONNX's layout."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def channels_last(x: np.ndarray) -> np.ndarray:
    """An image in the graph's layout."""
    return x.transpose(0, 2, 3, 1)


def on_host(op: str, *inputs: np.ndarray, makes: tuple[int, ...], **attributes: Any) -> np.ndarray:
    """What the host makes of these operands, of that shape; no tensor is quantized."""
    graph = Graph("one")
    for i, value in enumerate(inputs):
        graph.add_input(Tensor(f"x{i}", value.shape, value.dtype.name))
    graph.add_tensor(Tensor("y", makes, inputs[0].dtype.name))
    graph.add_node(Node("n", op, tuple(graph.inputs), ("y",), attributes))
    named = {f"x{i}": value for i, value in enumerate(inputs)}
    return evaluate(graph.finish(["y"]), named)["y"]
