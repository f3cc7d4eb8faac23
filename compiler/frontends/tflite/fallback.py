"""TFLite operators that ONNX's reference implementation runs on the host, in float32 if they are quantized."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor

#: ONNX operator set of the nodes.
_OPSET = 18
_INFERENCE_ERRORS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, TypeError)


def on_host(
    c: TfliteConversion,
    op: str,
    operands: Sequence[Tensor | None],
    *,
    stored: bool = False,
    **attributes: Any,
) -> None:
    """Add an ONNX node that computes the output on the host, from stored integers if `stored` is set.

    Raises
    ------
    InputError
        The operands do not match the operator or the output's shape.
    """
    real = [tensor if tensor is None or stored else _real(c, tensor) for tensor in operands]
    result = c.output
    if result.quantization is not None and not stored:
        result = Tensor(c.build.fresh(f"{result.name}:real"), result.shape, "float32")
    model = _model(c, op, real, result, attributes)
    c.make(
        "onnx",
        [tensor for tensor in real if tensor is not None],
        result,
        operator=op,
        model=model,
        number=0,
        why=f"the accelerator has no {c.kind}: ONNX's reference computes it as {op}",
    )
    if result is not c.output:
        c.build.node(f"{c.operator.name}:integers", "quantize", [result], c.output)


def _real(c: TfliteConversion, tensor: Tensor) -> Tensor:
    """Return the tensor, dequantized if it is quantized."""
    if tensor.quantization is None:
        return tensor
    number = Tensor(c.build.fresh(f"{tensor.name}:real"), tensor.shape, "float32")
    return c.build.node(f"{c.operator.name}:{tensor.name}", "dequantize", [tensor], number)


def _model(
    c: TfliteConversion,
    op: str,
    operands: Sequence[Tensor | None],
    output: Tensor,
    attributes: dict[str, Any],
) -> str:
    """Return an ONNX model of the node in Base64, or raise InputError if its result has another shape."""
    names = ["" if tensor is None else f"input{i}" for i, tensor in enumerate(operands)]
    given, constants = [], []
    for name, tensor in zip(names, operands, strict=True):
        if tensor is not None:
            given.append(helper.make_tensor_value_info(name, _onnx_type(tensor), tensor.shape))
        if tensor is not None and tensor.data is not None:
            constants.append(numpy_helper.from_array(tensor.data, name))
    node = helper.make_node(op, names, ["output0"], **attributes)
    graph = helper.make_graph([node], "node", given, [onnx.ValueInfoProto(name="output0")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except _INFERENCE_ERRORS as error:
        raise c.error(f"its operands do not fit: {str(error).strip().splitlines()[0][:200]}") from None
    found = inferred.graph.output[0].type.tensor_type.shape
    c.expect([size.dim_value for size in found.dim], output)
    del inferred.graph.initializer[:]
    return base64.b64encode(inferred.SerializeToString(deterministic=True)).decode()


def _onnx_type(tensor: Tensor) -> int:
    """Return the ONNX type number of a tensor."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))


@converts("ARG_MAX", "ARG_MIN")
def _arg(c: TfliteConversion) -> None:
    x, along = c.given(2)[:2]
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    c.expect([size for i, size in enumerate(x.shape) if i != axis], c.output)
    c.make("argmax" if c.kind == "ARG_MAX" else "argmin", [x], axis=axis, keep=False, last=False)


@converts("SELECT_V2", stored=True)
def _select(c: TfliteConversion) -> None:
    on_host(c, "Where", c.given(3)[:3])


@converts("GATHER_ND", stored=True)
def _gather(c: TfliteConversion) -> None:
    x, indices = c.given(2)[:2]
    if indices.data is None:
        raise c.error("its indices must be constants")
    on_host(c, "GatherND", [x, c.build.constant(f"{indices.name}:wide", indices.data.astype(np.int64))])


@converts("CAST")
def _cast(c: TfliteConversion) -> None:
    """Convert the stored integers, as LiteRT does, regardless of scales."""
    on_host(c, "Cast", c.given(1)[:1], stored=True, to=_onnx_type(c.output))


@converts("LOG_SOFTMAX")
def _log_softmax(c: TfliteConversion) -> None:
    on_host(c, "LogSoftmax", c.given(1)[:1], axis=-1)


@converts("L2_NORMALIZATION")
def _normalization(c: TfliteConversion) -> None:
    on_host(c, "LpNormalization", c.given(1)[:1], axis=-1, p=2)
