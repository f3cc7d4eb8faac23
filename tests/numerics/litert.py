"""Models of a single operator, and what the TFLite runtime computes for them."""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

#: The reference kernels, and the interpreter as users get it (XNNPACK).
REFERENCE, DEFAULT = OpResolverType.BUILTIN_REF, OpResolverType.AUTO


class Tensor:
    """Shape and quantization of a tensor.

    Parameters
    ----------
    shape : tuple of int
        Dimensions.
    scale, zero : float, int
        Quantization.
    """

    def __init__(self, shape: tuple[int, ...], scale: float, zero: int) -> None:
        self.shape, self.scale, self.zero = shape, float(np.float32(scale)), zero


def model(operator: int, options: tuple[int, object] | None, inputs: list[Tensor], output: Tensor) -> bytes:
    """A .tflite file with one int8 operator."""
    graph = schema.SubGraphT()
    graph.tensors = [_tensor(t, f"t{i}") for i, t in enumerate([*inputs, output])]
    graph.inputs, graph.outputs = list(range(len(inputs))), [len(inputs)]
    node = schema.OperatorT()
    node.opcodeIndex, node.inputs, node.outputs = 0, graph.inputs, graph.outputs
    if options is not None:
        node.builtinOptionsType, node.builtinOptions = options
    graph.operators = [node]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = operator
    code.version = 2
    whole = schema.ModelT()
    whole.version, whole.operatorCodes, whole.subgraphs = 3, [code], [graph]
    whole.buffers = [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(tensor: Tensor, name: str) -> schema.TensorT:
    result, quantization = schema.TensorT(), schema.QuantizationParametersT()
    quantization.scale, quantization.zeroPoint = [tensor.scale], [tensor.zero]
    result.shape, result.type, result.buffer, result.name = (
        list(tensor.shape),
        schema.TensorType.INT8,
        0,
        name,
    )
    result.quantization = quantization
    return result


def run(content: bytes, resolver: OpResolverType, *inputs: np.ndarray) -> np.ndarray:
    """The operator's output."""
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
