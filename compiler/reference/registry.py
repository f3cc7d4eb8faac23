"""Every operator of the graph, by name."""

from compiler.reference.activation import ACTIVATION
from compiler.reference.conv import CONV
from compiler.reference.elementwise import ELEMENTWISE
from compiler.reference.host_node import function, onnx_node
from compiler.reference.logic import LOGIC
from compiler.reference.node_invocation import Operator
from compiler.reference.norm import NORM
from compiler.reference.pool import POOL
from compiler.reference.quantize import QUANTIZE
from compiler.reference.reduce import REDUCE
from compiler.reference.shape import SHAPE
from compiler.reference.softmax import SOFTMAX

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
