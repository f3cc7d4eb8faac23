"""Decision whether a node test is in scope, based on its contents and not on its outcome."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from compiler.frontends.onnx.registry import DEFAULT, MIN_OPSET, versions_of
from compiler.frontends.onnx.values import INTERFACE, type_name

RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
#: Types that the units compute with, or that are quantized to such types.
_IN_SCOPE = (TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8)


def obstacle(test: Any) -> str:
    """Return the reason why a test is out of scope; empty if it is in scope."""
    nodes = [node.op_type for node in test.model.graph.node]
    random = [op for op in nodes if op in RANDOM]
    if random:
        return f"{random[0]} generates random values"
    values = [*test.model.graph.input, *test.model.graph.output]
    for value in values:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return f"{(kind or 'nothing').removesuffix('_type')} values"
    for dtype in _types(test.model):
        if dtype not in INTERFACE:
            return f"type {type_name(dtype)} is none of the graph's"
    if any(isinstance(array, np.ndarray) and not array.size for array in _arrays(test)):
        return "an input or output without elements"
    if versions_of(test.model.opset_import).get(DEFAULT, MIN_OPSET) < MIN_OPSET:
        return f"an operator set before {MIN_OPSET}"
    return _onnxruntime_obstacle(test.model)


def in_scope(test: Any) -> bool:
    """Return whether a test is in scope, uses only types of the hardware, and has at most two spatial dimensions."""
    inputs = test.model.graph.input
    images = len(inputs[0].type.tensor_type.shape.dim) <= 4 if inputs else False
    kinds = {value.type.tensor_type.elem_type for value in (*inputs[:1], *test.model.graph.output)}
    return not obstacle(test) and images and kinds <= set(_IN_SCOPE)


def _types(model: onnx.ModelProto) -> Iterator[int]:
    for value in (*model.graph.input, *model.graph.output):
        yield value.type.tensor_type.elem_type
    for tensor in model.graph.initializer:
        yield tensor.data_type


def _arrays(test: Any) -> Iterator[Any]:
    for inputs, outputs in test.data_sets:
        yield from (*inputs, *outputs)


def _onnxruntime_obstacle(model: onnx.ModelProto) -> str:
    """Return the reason why onnxruntime rejects the test; empty if onnxruntime accepts it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common class
        line = (str(error).splitlines() or [""])[0]
        return f"onnxruntime {onnxruntime.__version__} refuses it as well: {line.partition(' : ')[2][:60]}"
    return ""
