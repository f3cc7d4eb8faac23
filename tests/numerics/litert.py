"""Models of single operators, and their results in the TFLite runtime."""

from collections.abc import Iterable, Sequence

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

#: Op resolvers: the reference kernels, and the interpreter's default (XNNPACK).
REFERENCE, DEFAULT = OpResolverType.BUILTIN_REF, OpResolverType.AUTO


class Tensor:
    """Shape and quantization of a tensor.

    Parameters
    ----------
    shape : tuple of int
        Dimensions of the tensor.
    scale, zero : float, int
        Scale and zero point.
    """

    def __init__(self, shape: tuple[int, ...], scale: float, zero: int) -> None:
        self.shape, self.scale, self.zero = shape, float(np.float32(scale)), zero


def tensor(
    name: str, shape: Iterable[int], dtype: int, scales, zeros, buffer: int = 0, axis: int = 0
) -> schema.TensorT:
    """Return a tensor of a model; if there are several scales, each slice along `axis` has its own."""
    result, quantization = schema.TensorT(), schema.QuantizationParametersT()
    quantization.scale, quantization.zeroPoint = [float(s) for s in scales], [int(z) for z in zeros]
    quantization.quantizedDimension = axis
    result.name, result.shape, result.type, result.buffer = name, [int(s) for s in shape], dtype, buffer
    result.quantization = quantization
    return result


def pack(
    operator: int,
    options: tuple[int, object] | None,
    tensors: list[schema.TensorT],
    inputs: int,
    constants: Sequence[np.ndarray] = (),
    *,
    version: int,
    order: Sequence[int] | None = None,
) -> bytes:
    """Return a .tflite file of one operator of the given version.

    The last tensor is the operator's result; the others are its operands, permuted by `order` if given. The first
    `inputs` operands are the model's inputs. Buffer 0 is empty; constants use buffers 1 and up.
    """
    graph, node, code, whole = schema.SubGraphT(), schema.OperatorT(), schema.OperatorCodeT(), schema.ModelT()
    result = len(tensors) - 1
    graph.tensors, graph.inputs, graph.outputs, graph.operators = (
        tensors,
        list(range(inputs)),
        [result],
        [node],
    )
    node.opcodeIndex, node.inputs, node.outputs = 0, list(range(result) if order is None else order), [result]
    if options is not None:
        node.builtinOptionsType, node.builtinOptions = options
    code.builtinCode, code.deprecatedBuiltinCode = (
        operator,
        min(operator, 127),
    )  # the deprecated field has only one byte
    code.version = version
    whole.version, whole.operatorCodes, whole.subgraphs = 3, [code], [graph]
    whole.buffers = [schema.BufferT() for _ in range(1 + len(constants))]
    for buffer, values in zip(whole.buffers[1:], constants, strict=True):
        buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def model(operator: int, options: tuple[int, object] | None, inputs: list[Tensor], output: Tensor) -> bytes:
    """Return a .tflite file with one int8 operator."""
    int8 = schema.TensorType.INT8
    tensors = [tensor(f"t{i}", t.shape, int8, [t.scale], [t.zero]) for i, t in enumerate([*inputs, output])]
    return pack(operator, options, tensors, len(inputs), version=2)


def run(content: bytes, resolver: OpResolverType, *inputs: np.ndarray) -> np.ndarray:
    """Run the model and return the operator's output."""
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
