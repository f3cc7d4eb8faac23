"""Constant folding of TFLite operators: shape queries and operators on constants."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.frontends.tflite.registry import CONVERTERS, TfliteConversion
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate

#: Limit on the elements of a folded constant; _MAX_GROWTH times the elements of an operand are always allowed.
_MAX_ELEMENTS, _MAX_GROWTH = 1 << 24, 4


def _range(c: TfliteConversion) -> NDArray:
    start, limit, step = (np.asarray(tensor.data).reshape(-1)[0].item() for tensor in c.given(3)[:3])
    if step == 0 or abs((limit - start) / step) > _MAX_ELEMENTS:
        raise c.error(f"{start}..{limit} by {step} is not a range of at most {_MAX_ELEMENTS:,} numbers")
    return np.arange(start, limit, step)


def _filled(c: TfliteConversion) -> NDArray:
    _, value = c.given(2)[:2]
    if value.data is None or value.data.size != 1:
        raise c.error("its value must be one constant")
    return np.full(c.output.shape, value.data.reshape(()))


#: Operators whose result depends only on the shape of their input.
_SHAPES: dict[str, Callable[[TfliteConversion], NDArray]] = {
    "SHAPE": lambda c: np.array(c.given(1)[0].shape),
    "RANK": lambda c: np.array(len(c.given(1)[0].shape)),
    "ZEROS_LIKE": lambda c: np.zeros(c.given(1)[0].shape),
}
#: Operators that are supported on constants only or have no equivalent in the graph.
_CONSTANTS: dict[str, Callable[[TfliteConversion], NDArray]] = {
    "RANGE": _range,
    "FILL": _filled,
    "CAST": lambda c: np.asarray(c.given(1)[0].data),
}
KNOWN = frozenset((*_SHAPES, *_CONSTANTS))
#: Control flow, which later passes resolve.
_CONTROL_FLOW = ("IF", "WHILE")


def known(c: TfliteConversion) -> Sequence[Tensor] | None:
    """Return the outputs of an operator as constants; None if they depend on the model's inputs.

    Raises
    ------
    InputError
        The operator is supported for constants only but has other operands, or its operands are invalid.
    """
    if c.kind in _SHAPES:
        return [_stored(c, _SHAPES[c.kind](c))]
    given = c.given(0)
    if not given or c.kind in _CONTROL_FLOW or not all(tensor.constant for tensor in given):
        if c.kind not in CONVERTERS:
            raise c.error(f"{c.kind} is supported for constants only")
        return None
    limit = max(_MAX_ELEMENTS, *(_MAX_GROWTH * tensor.elements for tensor in given))
    if any(output.elements > limit for output in c.outputs):
        raise c.error(f"its constant result has more than {limit:,} elements")
    if c.kind in _CONSTANTS:
        return [_stored(c, _CONSTANTS[c.kind](c))]
    build = GraphBuilder(c.operator.name)
    for tensor in {tensor.name: tensor for tensor in given}.values():
        build.graph.add_tensor(tensor)
    CONVERTERS[c.kind](replace(c, build=build))
    values = evaluate(build.graph.finish([output.name for output in c.outputs]), {})
    return [replace(output, data=values[output.name]) for output in c.outputs]


def _stored(c: TfliteConversion, data: NDArray) -> Tensor:
    c.expect(data.shape)
    q = c.output.quantization
    if q is not None and c.kind == "ZEROS_LIKE":
        data = data + q.zero_point[0]
    return replace(c.output, data=np.ascontiguousarray(data.astype(c.output.dtype)).reshape(data.shape))
