"""TFLite models of one operator with weights."""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.numerics.litert import Tensor


def tensor(name: str, shape, dtype: int, scales, zeros, buffer: int, axis: int = 0) -> schema.TensorT:
    """A tensor, quantized for each slice along `axis` if there are several scales."""
    result, quantization = schema.TensorT(), schema.QuantizationParametersT()
    quantization.scale, quantization.zeroPoint = [float(s) for s in scales], [int(z) for z in zeros]
    quantization.quantizedDimension = axis
    result.name, result.shape, result.type, result.buffer = name, [int(s) for s in shape], dtype, buffer
    result.quantization = quantization
    return result


def weighted(
    operator: int, options, x: Tensor, weights: np.ndarray, scales, bias: np.ndarray, y: Tensor, axis: int
) -> bytes:
    """A .tflite file: one operator with int8 weights (a scale for each output channel, along `axis`) and int32 bias."""
    kinds = schema.TensorType
    graph = schema.SubGraphT()
    graph.tensors = [
        tensor("x", x.shape, kinds.INT8, [x.scale], [x.zero], 0),
        tensor("w", weights.shape, kinds.INT8, scales, [0] * len(scales), 1, axis),
        tensor(
            "b",
            bias.shape,
            kinds.INT32,
            np.float32(x.scale) * np.asarray(scales, np.float32),
            [0] * len(scales),
            2,
        ),
        tensor("y", y.shape, kinds.INT8, [y.scale], [y.zero], 0),
    ]
    graph.inputs, graph.outputs = [0], [3]
    node = schema.OperatorT()
    node.opcodeIndex, node.inputs, node.outputs = 0, [0, 1, 2], [3]
    node.builtinOptionsType, node.builtinOptions = options
    graph.operators = [node]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = operator
    code.version = 3
    buffers = [schema.BufferT(), schema.BufferT(), schema.BufferT()]
    buffers[1].data = np.frombuffer(weights.astype(np.int8).tobytes(), np.uint8)
    buffers[2].data = np.frombuffer(bias.astype("<i4").tobytes(), np.uint8)
    whole = schema.ModelT()
    whole.version, whole.operatorCodes, whole.subgraphs, whole.buffers = 3, [code], [graph], buffers
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())
