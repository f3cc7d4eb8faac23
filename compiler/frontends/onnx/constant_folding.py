"""Constant folding of ONNX nodes, mostly shape arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel, check_inputs, naming, taken
from compiler.frontends.onnx.registry import CONVERSIONS, integers
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError, broadcast, counted_from_front
from hw.errors import InputError, shown

#: Operators that are folded by their registered conversion, which needs no graph for constants.
_FOLDED_BY_CONVERSION = frozenset(
    (
        "QuantizeLinear",
        "DequantizeLinear",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Identity",
        "Cast",
        "CastLike",
        "Shape",
        "Size",
    )
)
#: Empty graph builder passed to these conversions.
_NO_GRAPH = OnnxGraphBuilder("", {}, {}, 0)
#: Limit on the elements of all folded constants; each constant element of the file raises it by eight.
_MAX_FOLDED_ELEMENTS = 1 << 26


class ConstantFolder:
    """Constant folding with a limit on the total size of the results.

    Attributes
    ----------
    room : int
        Total number of elements that further results may have.
    """

    def __init__(self, model: OnnxModel):
        self.room = _MAX_FOLDED_ELEMENTS + 8 * sum(value.data.size for value in model.constants.values())

    def folded(self, model: OnnxModel) -> OnnxModel:
        """Return the model with constant nodes evaluated, and without dead branches and unused nodes."""
        constants, nodes = dict(model.constants), list[FileNode]()
        for each in model.nodes:
            node = taken(each, constants.get(each.inputs[0])) if each.inputs else each
            inputs = [constants.get(name) for name in node.inputs]
            ready = all(
                value is not None or not name for value, name in zip(inputs, node.inputs, strict=True)
            )
            outputs = self._fold_if_possible(node, inputs) if ready else None
            if outputs is None:
                nodes.append(node)
            else:
                constants |= dict(zip(node.outputs, outputs, strict=False))
        return replace(model, nodes=nodes, constants=constants).used()

    def computed(self, node: FileNode, inputs: Sequence[ConstantValue | None]) -> list[ConstantValue]:
        """Return the outputs of a node that `fold` supports, and deduct them from the element limit."""
        return self._charge(fold(node, list(inputs)), inputs)

    def _fold_if_possible(
        self, node: FileNode, inputs: list[ConstantValue | None]
    ) -> list[ConstantValue] | None:
        """Return the outputs of a node with constant inputs; None if it cannot be folded."""
        if not (foldable(node) or (node.op in _FOLDED_BY_CONVERSION and inputs)):
            return None
        try:
            with naming(node):
                if foldable(node):
                    return self.computed(node, inputs)
                outputs = CONVERSIONS[node.op](_NO_GRAPH, node, list(inputs))
                return self._charge([value for value in outputs if isinstance(value, ConstantValue)], inputs)
        except UnsupportedNodeError:
            return None  # reported when the node is converted

    def _charge(
        self, outputs: list[ConstantValue], inputs: Sequence[ConstantValue | None]
    ) -> list[ConstantValue]:
        """Deduct newly allocated outputs from the element limit, and return all outputs."""
        given = [id(value.data) for value in inputs if value is not None]
        self.room -= sum(v.data.size for v in outputs if v.data.base is None and id(v.data) not in given)
        if self.room < 0:
            raise InputError(
                "the results of nodes with constant inputs, up to this one, are too large in sum"
            )
        return outputs


#: Limit on the elements of one folded constant; if an operand has more elements, their number is the limit.
_MAX_ELEMENTS = 1 << 24

Folding = Callable[[FileNode, list[Any]], Any]
_FOLDINGS: dict[str, Folding] = {}
#: Numpy functions of elementwise operators.
_ELEMENTWISE: dict[str, Callable[..., NDArray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Pow": np.power,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "Reciprocal": np.reciprocal,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "Not": np.logical_not,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Cos": np.cos,
    "Sin": np.sin,
    "Tanh": np.tanh,
}
_INPUT_COUNTS = {op: function.nin for op, function in _ELEMENTWISE.items() if isinstance(function, np.ufunc)}
_REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}


def foldable(node: FileNode) -> bool:
    """Return True if a node with constant inputs can be evaluated by `fold`."""
    return node.op in _FOLDINGS


def fold(node: FileNode, inputs: Sequence[ConstantValue | None]) -> list[ConstantValue]:
    """Return the outputs of a node with constant inputs.

    Raises
    ------
    InputError
        The inputs do not match the operator, or the result would be too large.
    """
    outputs = _FOLDINGS[node.op](node, list(inputs))
    arrays = outputs if isinstance(outputs, list) else [outputs]
    return [
        ConstantValue(name, _as_graph_type(np.asarray(data)))
        for name, data in zip(node.outputs, arrays, strict=False)
    ]


def _as_graph_type(data: NDArray) -> NDArray:
    return data.astype(np.float32) if data.dtype == np.float64 else data


def _folds(*ops: str) -> Callable[[Folding], Folding]:
    """Return a decorator that registers a function to evaluate the operators `ops` on constants."""

    def register(function: Folding) -> Folding:
        _FOLDINGS.update(dict.fromkeys(ops, function))
        return function

    return register


def _check_size(shape: Sequence[int], *sources: NDArray) -> None:
    """Raise InputError if a result would exceed both the element limit and the size of its largest source."""
    limit = max(_MAX_ELEMENTS, *(source.size for source in sources)) if sources else _MAX_ELEMENTS
    if any(size < 0 for size in shape) or math.prod(shape) > limit:
        raise InputError(
            f"its constant result would have shape {shown(list(shape))}, more than {limit:,} elements"
        )


def _arrays(inputs: list[ConstantValue | None], count: int) -> list[NDArray]:
    arrays = [v.numbers() for v in inputs if v is not None]
    check_inputs([v is not None for v in inputs], count, count)
    return arrays


def _checked(op: str, inputs: list[Any]) -> list[Any]:
    """Return the inputs padded with None to the number that the conversion of an operator expects."""
    return list(CONVERSIONS[op].checked(inputs))


@_folds(*_ELEMENTWISE)
def _elements(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, _INPUT_COUNTS[node.op])
    _check_size(broadcast([a.shape for a in arrays]), *arrays)
    if node.op == "Pow" and arrays[0].dtype.kind in "iu" and (arrays[1] < 0).any():
        raise InputError("the power of an integer must not be negative")
    return _ELEMENTWISE[node.op](*arrays)


@_folds("Div", "Mod")
def _divide(node: FileNode, inputs: list[Any]) -> NDArray:
    a, b = _arrays(inputs, 2)
    _check_size(broadcast([a.shape, b.shape]), a, b)
    if a.dtype.kind != "f" and not b.all():
        raise InputError("a constant integer must not be divided by zero")
    if node.op == "Mod":
        return np.fmod(a, b) if node.int("fmod", 0) else np.mod(a, b)
    if a.dtype.kind == "f":
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


@_folds("Min", "Max")
def _extreme(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, len(inputs))
    _check_size(broadcast([a.shape for a in arrays]), *arrays)
    function = np.minimum if node.op == "Min" else np.maximum
    total = arrays[0]
    for array in arrays[1:]:
        total = function(total, array)
    return total


@_folds("Constant")
def _constant(node: FileNode, inputs: list[Any]) -> NDArray:
    dtypes = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for key, value in node.attributes.items():
        if key == "value" and isinstance(value, np.ndarray):
            return value
        if key in dtypes:
            return np.array(value, dtypes[key])
    raise UnsupportedNodeError(
        "a constant must be given by value, value_int(s) or value_float(s), not by "
        f"{', '.join(node.attributes) or 'nothing'}"
    )


@_folds("ConstantOfShape")
def _filled(node: FileNode, inputs: list[Any]) -> NDArray:
    shape = inputs[0].integers() if len(inputs) == 1 and inputs[0] is not None else []
    _check_size(shape)
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise InputError("attribute value must be a tensor of one element")
    return np.full(shape, value.reshape(-1)[0])


@_folds("Range")
def _range(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, 3)
    start, limit, step = (a.reshape(-1)[0] for a in arrays)
    count = math.ceil((float(limit) - float(start)) / float(step)) if step else _MAX_ELEMENTS + 1
    _check_size([max(count, 0)])
    return (start + np.arange(max(count, 0)) * step).astype(arrays[0].dtype)


@_folds("Expand", "Tile")
def _expand(node: FileNode, inputs: list[Any]) -> NDArray:
    x, _ = _arrays(inputs, 2)
    wanted = inputs[1].integers()
    if node.op == "Expand":
        shape = broadcast([x.shape, tuple(wanted)])
        _check_size(shape, x)
        return np.broadcast_to(x, shape).copy()
    if len(wanted) != x.ndim:
        raise InputError(f"its {len(wanted)} repeats must be one for each dimension of shape {list(x.shape)}")
    _check_size([n * times for n, times in zip(x.shape, wanted, strict=True)], x)
    return np.tile(x, wanted)


@_folds("Where")
def _where(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, 3)
    _check_size(broadcast([a.shape for a in arrays]), *arrays)
    return np.where(arrays[0].astype(bool), *arrays[1:])


@_folds("Concat")
def _concat(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, len(inputs))
    _check_size([sum(a.size for a in arrays)], *arrays, np.empty(0))
    return np.concatenate(arrays, counted_from_front(node.int("axis", 1), arrays[0].ndim))


@_folds("Gather")
def _gather(node: FileNode, inputs: list[Any]) -> NDArray:
    x, where = _arrays(inputs, 2)
    axis, indices = counted_from_front(node.int("axis", 0), x.ndim), np.array(inputs[1].integers(), np.int64)
    if ((indices < -x.shape[axis]) | (indices >= x.shape[axis])).any():
        raise InputError(f"indices must be within -{x.shape[axis]}..{x.shape[axis] - 1}")
    shape = (*x.shape[:axis], *where.shape, *x.shape[axis + 1 :])
    _check_size(shape, x)
    return np.take(x, indices.reshape(where.shape), axis)


@_folds("Slice")
def _slice(node: FileNode, inputs: list[Any]) -> NDArray:
    x, *given = _checked("Slice", inputs)
    starts, ends, axes, steps = (
        integers(node, key, value)
        for key, value in zip(("starts", "ends", "axes", "steps"), given, strict=True)
    )
    if starts is None or ends is None:
        raise InputError("its inputs starts and ends must be given")
    data = x.numbers()
    spans = [slice(None)] * data.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = counted_from_front(axes[i] if axes else i, data.ndim)
        spans[axis] = slice(start, end, steps[i] if steps else 1)
    return data[tuple(spans)]


@_folds("Split")
def _split(node: FileNode, inputs: list[Any]) -> list[NDArray]:
    x, given = _checked("Split", inputs)
    data = x.numbers()
    axis, count = counted_from_front(node.int("axis", 0), data.ndim), len(node.outputs)
    sizes = integers(node, "split", given)
    if sizes is None:
        each = -(-data.shape[axis] // count)
        sizes = (*(each,) * (count - 1), data.shape[axis] - each * (count - 1))
    if len(sizes) != count or sum(sizes) != data.shape[axis] or min(sizes) < 0:
        raise InputError(
            f"the sizes {shown(list(sizes))} of its {count} outputs must add up to {data.shape[axis]}, the size of "
            f"axis {axis}"
        )
    return np.split(data, np.cumsum(sizes)[:-1], axis)


@_folds(*_REDUCTIONS)
def _reduce(node: FileNode, inputs: list[Any]) -> NDArray:
    x, given = _checked("ReduceSum", inputs)
    data, axes = x.numbers(), integers(node, "axes", given)
    reduced = tuple(counted_from_front(axis, data.ndim) for axis in axes or range(data.ndim))
    result = _REDUCTIONS[node.op](data, axis=reduced, keepdims=bool(node.int("keepdims", 1)))
    return np.asarray(result, data.dtype)


@_folds("MatMul")
def _matmul(node: FileNode, inputs: list[Any]) -> NDArray:
    a, b = _arrays(inputs, 2)
    if a.ndim != 2 or b.ndim != 2:
        raise UnsupportedNodeError("constants of a product must be matrices")
    _check_size((a.shape[0], b.shape[1]), a, b)
    return a @ b


@_folds("Trilu")
def _triangle(node: FileNode, inputs: list[Any]) -> NDArray:
    x, given = [*inputs, None][:2]
    k, limit = 0 if given is None else given.integers()[0], max(x.shape, default=1)
    return (np.triu if node.int("upper", 1) else np.tril)(x.numbers(), max(-limit, min(k, limit)))
