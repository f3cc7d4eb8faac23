"""An ONNX model of one node."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from hw.errors import InputError


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
        [node], node.name or node.op_type,
        [helper.make_tensor_value_info(name, _type_of(arrays[name]), arrays[name].shape) for name in inputs],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(made[name][0])), made[name][1])
            if name in made else ValueInfoProto(name=name)
            for name in node.output if name
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in inputs],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(node.domain, 1)] * bool(node.domain)
    model = helper.make_model(graph, opset_imports=imports)
    return model if made else onnx.shape_inference.infer_shapes(model, data_prop=True)


def _type_of(array: NDArray) -> int:
    try:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    except (KeyError, ValueError):
        raise InputError(f"an input must be an array of numbers, not of {array.dtype}") from None
