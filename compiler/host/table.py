"""Every operator of the graph, by name."""

from compiler.host.activation import ACTIVATION
from compiler.host.call import Operator
from compiler.host.conv import CONV
from compiler.host.elementwise import ELEMENTWISE
from compiler.host.logic import LOGIC
from compiler.host.norm import NORM
from compiler.host.onnx_node import function, onnx_node
from compiler.host.pool import POOL
from compiler.host.quantize import QUANTIZE
from compiler.host.reduce import REDUCE
from compiler.host.shape import SHAPE
from compiler.host.softmax import SOFTMAX

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
