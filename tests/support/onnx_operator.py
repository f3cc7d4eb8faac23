"""Results of single operators: of ONNX operators in onnxruntime, and of graph operators on the host."""

from typing import Any

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from tests.support.exact_products import exact_products

#: Opset 20 introduced Gelu, opset 23 RMSNormalization.
_OPSET, _IR = 23, 11


def run(operator: str, *inputs: np.ndarray | None, constants: bool = False, **attributes: Any) -> np.ndarray:
    """Return an operator's first output in onnxruntime, with exact integer products; None is an absent input.

    With `constants`, scalars and vectors are constants of the model, which some operators require.
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
    """Convert an image to ONNX's layout."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def channels_last(x: np.ndarray) -> np.ndarray:
    """Convert an image to the graph's layout."""
    return x.transpose(0, 2, 3, 1)


def on_host(op: str, *inputs: np.ndarray, makes: tuple[int, ...], **attributes: Any) -> np.ndarray:
    """Return an operator's result of shape `makes` on the host; no tensor is quantized."""
    graph = Graph("one")
    for i, value in enumerate(inputs):
        graph.add_input(Tensor(f"x{i}", value.shape, value.dtype.name))
    graph.add_tensor(Tensor("y", makes, inputs[0].dtype.name))
    graph.add_node(Node("n", op, tuple(graph.inputs), ("y",), attributes))
    named = {f"x{i}": value for i, value in enumerate(inputs)}
    return evaluate(graph.finish(["y"]), named)["y"]
