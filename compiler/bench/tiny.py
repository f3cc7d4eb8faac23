"""Suite of the trained MLPerf Tiny networks (int8 TFLite), checked against LiteRT's reference kernels."""

import numpy as np

from compiler.bench.case import Case, Work
from compiler.bench.model_zoo import NETWORKS, model_path
from hw.errors import InputError, WorkError, shown

CASES = tuple(NETWORKS)
#: Allowed difference between LiteRT's float softmax and its fixed-point one.
_SOFTMAX = 1


def tiny_case(name: str) -> Case:
    """Return the case for the name of a network.

    Raises
    ------
    InputError
        The network is unknown.
    """
    if name not in NETWORKS:
        raise InputError(f"a tiny case must be one of {', '.join(NETWORKS)}, not {shown(name)}")
    return Case(name, "LiteRT reference kernels", lambda rng: _work(name, rng))


def _work(name: str, rng: np.random.Generator) -> Work:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise WorkError(
            "ai-edge-litert, whose kernels are the reference of this suite, is not installed: `make setup`, or "
            "`pip install -e '.[test]'` in the checkout, installs it"
        ) from None
    path = model_path(name)
    interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    inputs = {
        detail["name"]: rng.integers(-128, 128, detail["shape"]).astype(detail["dtype"])
        for detail in interpreter.get_input_details()
    }
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], inputs[detail["name"]])
    interpreter.invoke()
    outputs = {d["name"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()}
    return Work(path, inputs, outputs, dict.fromkeys(outputs, _SOFTMAX))
