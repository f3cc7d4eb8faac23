"""Output types of ONNX nodes, inferred from their inputs or declared by the model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx

from compiler.frontends.onnx.node import Declared
from compiler.frontends.onnx.tensors import DTYPES, type_name
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError, Value, check_size
from compiler.ir.tensor import MOST_ELEMENTS
from compiler.reference.onnx_node_model import REFUSALS, line_of
from hw.errors import InputError

#: An output of such an operator may have so many elements.
_MOST = 1 << 26
#: Constants up to this size may decide a shape.
SHAPES = 1 << 12
#: What onnx's shape inference raises.
_REFUSALS = (
    *REFUSALS,
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
)


class Made(NamedTuple):
    """Type and shape of an output; no shape where none follows.

    Attributes
    ----------
    told : bool
        Only the model's declaration says the shape: it depends on what flows.
    """

    dtype: str
    shape: tuple[int, ...] | None
    told: bool = False


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of one node with types of its outputs, as far as they can be known.

    Constants stay only if no tensor can hold them.
    """
    try:
        made = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except _REFUSALS as error:
        raise UnsupportedNodeError(f"ONNX refuses it: {line_of(error)}") from None
    names = {value.name for value in made.graph.input}
    kept = [each for each in made.graph.initializer if each.name not in names]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made


def types_of(
    model: onnx.ModelProto, inputs: Sequence[Value | None], declared: Sequence[Declared | None]
) -> list[Made | None]:
    """Type and shape of each output of a model of one node; None where there is no such output.

    Raises
    ------
    UnsupportedError
        An output is of a type that no tensor has.
    InputError
        An output would be too large.
    """
    (node,) = model.graph.node
    types = {output.name: output for output in model.graph.output}
    found: list[Made | None] = []
    for name, told in zip(node.output, declared, strict=True):
        made = _type_of(types[name], told) if name else None
        found.append(made)
        if made is not None and made.shape is None:
            _check_told(node, inputs)
    return found


def _check_told(proto: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """Refuse a node of unknown output shape that is told of a size which no tensor has."""
    told = {
        f"input {i}": v.data for i, v in enumerate(inputs, 1) if isinstance(v, ConstantValue) and v.data.size
    }
    told |= {f"attribute {a.name}": np.array([a.i, *a.ints]) for a in proto.attribute}
    for what, numbers in told.items():
        far = [int(n) for n in numbers.reshape(-1)[:SHAPES]] if numbers.dtype.kind in "iu" else []
        far = [n for n in far if abs(n) > MOST_ELEMENTS]
        if far:
            raise InputError(
                f"its {what} holds {far[0]}; a tensor can have {MOST_ELEMENTS:,} elements, and the shape of its output "
                "is not known"
            )


def _type_of(output: onnx.ValueInfoProto, declared: Declared | None) -> Made:
    """Type and shape of an output: as they follow from the inputs, or as the model declares them."""
    kind = output.type.tensor_type
    sizes: list[int | str | None] | None = None
    if kind.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
    told = sizes is None or None in sizes
    wished = declared.shape if declared is not None else None
    if sizes is None:
        sizes = None if wished is None else list(wished)
    elif wished is not None and len(wished) == len(sizes):
        sizes = [b if a is None else a for a, b in zip(sizes, wished, strict=True)]
    dtype = DTYPES.get(kind.elem_type) or (declared.held if declared and not kind.elem_type else None)
    if dtype is None:
        named = type_name(kind.elem_type) if output.type.WhichOneof("value") == "tensor_type" else "no tensor"
        raise UnsupportedNodeError(f"its output is of type {named}, which the graph does not have")
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return Made(dtype, None)
    shape = tuple(size for size in sizes if isinstance(size, int))
    check_size(shape, _MOST)
    return Made(dtype, shape, told)
