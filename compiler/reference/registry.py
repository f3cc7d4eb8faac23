"""Every operator of the graph, by name."""

from compiler.reference.activation import ACTIVATION
from compiler.reference.conv import CONV
from compiler.reference.elementwise import ELEMENTWISE, LOGIC
from compiler.reference.host_node import function, onnx_node
from compiler.reference.node_invocation import Operator
from compiler.reference.normalization import NORM, SOFTMAX
from compiler.reference.pool import POOL
from compiler.reference.quantize import QUANTIZE
from compiler.reference.reduce import REDUCE
from compiler.reference.shape import SHAPE

OPERATORS: dict[str, Operator] = (
    CONV
    | ELEMENTWISE
    | ACTIVATION
    | POOL
    | REDUCE
    | SOFTMAX
    | NORM
    | SHAPE
    | QUANTIZE
    | LOGIC
    | {"onnx": onnx_node, "function": function}
)
