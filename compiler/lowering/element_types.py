"""Element types that the accelerator takes, by operator."""

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.layers.dynamic_quantize import QUANTIZED, SCALE, ZERO
from compiler.layers.lookup_tables import BINARY, TABLES, is_unary
from compiler.layers.lowering_context import DTYPES, UnsupportedLoweringError

Types = tuple[str, ...]

BYTES: Types = ("int8", "uint8")
INTEGERS: Types = (*BYTES, "int16", "int32")
FLOAT: Types = ("float32",)
ALL: Types = tuple(DTYPES)
INDICES: Types = ("int32", "int64")


@dataclass(frozen=True)
class Supported:
    """Element types of an operator on the accelerator.

    Parameters
    ----------
    operands : tuple of (tuple of str or None)
        Types of each operand, the last entry for all further ones; None: any, for constants that the compiler
        converts.
    result : tuple of str
        Types of the result.
    """

    operands: tuple[Types | None, ...]
    result: Types


_CONVOLUTION = Supported((BYTES, BYTES, ("int32",)), INTEGERS)
_BYTES = Supported((BYTES,), BYTES)
_MOVE = Supported((ALL,), ALL)

#: One entry for each operator that has a lowering.
SUPPORTED: Mapping[str, Supported] = {
    **dict.fromkeys(("conv2d", "depthwise_conv2d", "conv_transpose2d", "dense"), _CONVOLUTION),
    "matmul": Supported((BYTES,), (*BYTES, "int32")),
    **dict.fromkeys((*BINARY, *TABLES), _BYTES),
    "prelu": _BYTES,
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "softmax", "cumsum"), _BYTES),
    **dict.fromkeys(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"), _BYTES),
    **dict.fromkeys(("layer_norm", "rms_norm"), Supported((BYTES, None), BYTES)),
    **dict.fromkeys(("transpose", "reshape", "concat", "slice", "pad", "resize_nearest"), _MOVE),
    "gather": Supported((ALL, INDICES), ALL),
    "requantize": Supported((INTEGERS,), INTEGERS),
    "quantize": Supported((FLOAT,), INTEGERS),
    "dequantize": Supported((INTEGERS,), FLOAT),
    QUANTIZED: Supported((FLOAT,), ("uint8",)),
    SCALE: Supported((FLOAT,), FLOAT),
    ZERO: Supported((FLOAT,), ("uint8",)),
}


def check_types(graph: Graph, node: Node) -> None:
    """Refuse a node whose tensors have element types that its lowering does not take.

    Raises
    ------
    UnsupportedError
        The first tensor of another type, or the operator has no lowering.
    """
    supported = SUPPORTED.get(node.op)
    if supported is None:
        raise UnsupportedLoweringError(f"no way to do {node.op} on the accelerator")
    operands = graph.ins(node)
    if is_unary(graph, node):  # constants of any type are part of its table
        operands = [tensor for tensor in operands if not tensor.constant]
    last = len(supported.operands) - 1
    for number, tensor in enumerate(operands):
        _check(tensor, supported.operands[min(number, last)])
    for name in node.outputs:
        _check(graph.tensors[name], supported.result)


def _check(tensor: Tensor, types: Types | None) -> None:
    if types is not None and tensor.dtype not in types:
        *others, last = types
        text = f"{', '.join(others)} or {last}" if others else last
        raise UnsupportedLoweringError(f"tensor {tensor.name!r} must be {text}, not {tensor.dtype}")
