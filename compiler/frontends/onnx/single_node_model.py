"""An ONNX model of one node."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from hw.errors import InputError, shown


def check_operator(node: NodeProto, opset: int) -> None:
    """InputError if no operator set of ONNX's own up to this one has the node's operator."""
    if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type, opset, ""):
        raise InputError(
            f"node {shown(node.name or node.op_type)}: ONNX's operator set {opset} has no operator "
            f"{shown(node.op_type)}"
        )


def one_node(
    node: NodeProto,
    arrays: Mapping[str, NDArray],
    inputs: Sequence[str],
    opset: int,
    outputs: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
) -> ModelProto:
    """A model of one node; arrays that are not among the inputs are constants."""
    made = {name: value for name, value in zip(node.output, outputs or (), strict=False) if name}
    graph = helper.make_graph(
        [node],
        node.name or node.op_type,
        [helper.make_tensor_value_info(name, _type_of(arrays[name]), arrays[name].shape) for name in inputs],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(made[name][0])), made[name][1]
            )
            if name in made
            else ValueInfoProto(name=name)
            for name in node.output
            if name
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in inputs],
    )
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(node.domain, 1)] * bool(node.domain)
    model = helper.make_model(graph, opset_imports=imports)
    if not made:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    if any(value.type.WhichOneof("value") is None for value in model.graph.output):
        title = shown(node.name or node.op_type)
        raise InputError(f"node {title}: its outputs' types do not follow from its inputs: give outputs_info")
    return model


def _type_of(array: NDArray) -> int:
    try:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    except (KeyError, ValueError):
        raise InputError(f"an input must be an array of numbers, not of {array.dtype}") from None
