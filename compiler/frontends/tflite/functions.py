"""Functions of single numbers that the graph has by ONNX's reference."""

import base64

import numpy as np
from onnx import TensorProto, helper

from compiler.frontends.tflite.fallback import on_host
from compiler.frontends.tflite.registry import Conversion, converts

#: ONNX's names of the format's operators.
_FUNCTIONS = {
    "SIN": "Sin", "COS": "Cos", "FLOOR": "Floor", "CEIL": "Ceil",
    "ROUND": "Round", "SIGN": "Sign",
}  # fmt: skip
#: The operators are those of ONNX's set 18.
_OPSET = 18


@converts(*_FUNCTIONS)
def _function(c: Conversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    if x.dtype != "float32":
        raise c.error(f"is supported of float32 numbers only, not of {x.dtype}")
    c.make("function", [x], operator=_FUNCTIONS[c.kind], model=_model(_FUNCTIONS[c.kind]))


@converts("POW")
def _power(c: Conversion) -> None:
    """To one constant: a function of each number; else it is the host's."""
    x, exponent = c.given(2)[:2]
    if x.dtype != "float32" or exponent.data is None or exponent.elements != 1:
        on_host(c, "Pow", [x, exponent])
        return
    c.expect(x.shape)
    number = float(exponent.data.reshape(-1)[0])
    if number == 2:
        c.make("mul", [x, x])
        return
    c.make("function", [x], operator="Pow", model=_model("Pow", number))


def _model(op: str, *constants: float) -> str:
    """An ONNX model of one node, in base 64."""
    names = [f"input{i}" for i in range(1 + len(constants))]
    given = helper.make_tensor_value_info("input0", TensorProto.FLOAT, [None])
    fixed = [
        helper.make_tensor(name, TensorProto.FLOAT, [], np.array([value], np.float32))
        for name, value in zip(names[1:], constants, strict=True)
    ]
    made = helper.make_tensor_value_info("output0", TensorProto.FLOAT, [None])
    graph = helper.make_graph([helper.make_node(op, names, ["output0"])], "node", [given], [made], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode()
