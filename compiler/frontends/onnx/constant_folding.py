"""Constant folding of ONNX nodes: mostly arithmetic on shapes."""

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

#: Operators whose conversion works on constants without a graph.
_PASSED = frozenset(
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
#: What they get for a graph.
_NOTHING = OnnxGraphBuilder("", {}, {}, 0)
#: Constants that are computed may have so many elements in all, and eight more for each that the file has.
_MOST_COMPUTED = 1 << 26


class ConstantFolder:
    """Constants computed from constants, as long as there is room for them.

    Attributes
    ----------
    room : int
        Elements that may still be computed.
    """

    def __init__(self, model: OnnxModel):
        self.room = _MOST_COMPUTED + 8 * sum(value.data.size for value in model.constants.values())

    def folded(self, model: OnnxModel) -> OnnxModel:
        """Without nodes whose outputs are known beforehand, branches that are never taken, and what nobody needs."""
        constants, nodes = dict(model.constants), list[FileNode]()
        for each in model.nodes:
            node = taken(each, constants.get(each.inputs[0])) if each.inputs else each
            inputs = [constants.get(name) for name in node.inputs]
            ready = all(
                value is not None or not name for value, name in zip(inputs, node.inputs, strict=True)
            )
            made = self._made(node, inputs) if ready else None
            if made is None:
                nodes.append(node)
            else:
                constants |= dict(zip(node.outputs, made, strict=False))
        return replace(model, nodes=nodes, constants=constants).used()

    def computed(self, node: FileNode, inputs: Sequence[ConstantValue | None]) -> list[ConstantValue]:
        """Outputs of a node that `fold` can compute."""
        return self._counted(fold(node, list(inputs)), inputs)

    def _made(self, node: FileNode, inputs: list[ConstantValue | None]) -> list[ConstantValue] | None:
        """Outputs of a node whose inputs are known, if it can be computed beforehand."""
        if not (foldable(node) or (node.op in _PASSED and inputs)):
            return None
        try:
            with naming(node):
                if foldable(node):
                    return self.computed(node, inputs)
                made = CONVERSIONS[node.op](_NOTHING, node, list(inputs))
                return self._counted([value for value in made if isinstance(value, ConstantValue)], inputs)
        except UnsupportedNodeError:
            return None  # said when the node is converted

    def _counted(
        self, made: list[ConstantValue], inputs: Sequence[ConstantValue | None]
    ) -> list[ConstantValue]:
        """Constants that were computed, if there is room for them."""
        given = [id(value.data) for value in inputs if value is not None]
        self.room -= sum(v.data.size for v in made if v.data.base is None and id(v.data) not in given)
        if self.room < 0:
            raise InputError("its constant result is too large, with those of the nodes before it")
        return made


#: What is computed beforehand may have so many elements, or as many as it is computed from.
_MOST = 1 << 24

Folding = Callable[[FileNode, list[Any]], Any]
_FOLDINGS: dict[str, Folding] = {}
#: Operators of one or several arrays that numpy has, element by element.
_ELEMENTS: dict[str, Callable[..., NDArray]] = {
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
_NUMBERS_OF_INPUTS = {
    op: function.nin for op, function in _ELEMENTS.items() if isinstance(function, np.ufunc)
}
_REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}


def foldable(node: FileNode) -> bool:
    """Whether a node without inputs at run time can be computed here."""
    return node.op in _FOLDINGS


def fold(node: FileNode, inputs: Sequence[ConstantValue | None]) -> list[ConstantValue]:
    """Outputs of a node whose inputs are known.

    Raises
    ------
    InputError
        They do not fit, or the result would be too large.
    """
    made = _FOLDINGS[node.op](node, list(inputs))
    arrays = made if isinstance(made, list) else [made]
    return [
        ConstantValue(name, _as_graph_type(np.asarray(data)))
        for name, data in zip(node.outputs, arrays, strict=False)
    ]


def _as_graph_type(data: NDArray) -> NDArray:
    return data.astype(np.float32) if data.dtype == np.float64 else data


def _folds(*ops: str) -> Callable[[Folding], Folding]:
    def enter(function: Folding) -> Folding:
        _FOLDINGS.update(dict.fromkeys(ops, function))
        return function

    return enter


def _room(shape: Sequence[int], *sources: NDArray) -> None:
    """Refuse what would take too much memory."""
    most = max(_MOST, *(source.size for source in sources)) if sources else _MOST
    if any(size < 0 for size in shape) or math.prod(shape) > most:
        raise InputError(
            f"its constant result would have shape {shown(list(shape))}, more than {most:,} elements"
        )


def _arrays(inputs: list[ConstantValue | None], count: int) -> list[NDArray]:
    arrays = [v.numbers() for v in inputs if v is not None]
    check_inputs([v is not None for v in inputs], count, count)
    return arrays


def _checked(op: str, inputs: list[Any]) -> list[Any]:
    """As many inputs as the conversion of an operator gets, None where absent."""
    return list(CONVERSIONS[op].checked(inputs))


@_folds(*_ELEMENTS)
def _elements(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, _NUMBERS_OF_INPUTS[node.op])
    _room(broadcast([a.shape for a in arrays]), *arrays)
    if node.op == "Pow" and arrays[0].dtype.kind in "iu" and (arrays[1] < 0).any():
        raise InputError("the power of an integer must not be negative")
    return _ELEMENTS[node.op](*arrays)


@_folds("Div", "Mod")
def _divide(node: FileNode, inputs: list[Any]) -> NDArray:
    a, b = _arrays(inputs, 2)
    _room(broadcast([a.shape, b.shape]), a, b)
    if a.dtype.kind != "f" and not b.all():
        raise InputError("divides an integer by zero")
    if node.op == "Mod":
        return np.fmod(a, b) if node.int("fmod", 0) else np.mod(a, b)
    if a.dtype.kind == "f":
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


@_folds("Min", "Max")
def _extreme(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, len(inputs))
    _room(broadcast([a.shape for a in arrays]), *arrays)
    function = np.minimum if node.op == "Min" else np.maximum
    total = arrays[0]
    for array in arrays[1:]:
        total = function(total, array)
    return total


@_folds("Constant")
def _constant(node: FileNode, inputs: list[Any]) -> NDArray:
    kinds = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for key, value in node.attributes.items():
        if key == "value" and isinstance(value, np.ndarray):
            return value
        if key in kinds:
            return np.array(value, kinds[key])
    raise UnsupportedNodeError(f"a constant of {', '.join(node.attributes) or 'nothing'}")


@_folds("ConstantOfShape")
def _filled(node: FileNode, inputs: list[Any]) -> NDArray:
    shape = inputs[0].integers() if len(inputs) == 1 and inputs[0] is not None else []
    _room(shape)
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise InputError("attribute value must be a tensor of one element")
    return np.full(shape, value.reshape(-1)[0])


@_folds("Range")
def _range(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, 3)
    start, limit, step = (a.reshape(-1)[0] for a in arrays)
    count = math.ceil((float(limit) - float(start)) / float(step)) if step else _MOST + 1
    _room([max(count, 0)])
    return (start + np.arange(max(count, 0)) * step).astype(arrays[0].dtype)


@_folds("Expand", "Tile")
def _expand(node: FileNode, inputs: list[Any]) -> NDArray:
    x, _ = _arrays(inputs, 2)
    wanted = inputs[1].integers()
    if node.op == "Expand":
        shape = broadcast([x.shape, tuple(wanted)])
        _room(shape, x)
        return np.broadcast_to(x, shape).copy()
    if len(wanted) != x.ndim:
        raise InputError(f"{len(wanted)} repeats do not fit shape {list(x.shape)}")
    _room([n * times for n, times in zip(x.shape, wanted, strict=True)], x)
    return np.tile(x, wanted)


@_folds("Where")
def _where(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, 3)
    _room(broadcast([a.shape for a in arrays]), *arrays)
    return np.where(arrays[0].astype(bool), *arrays[1:])


@_folds("Concat")
def _concat(node: FileNode, inputs: list[Any]) -> NDArray:
    arrays = _arrays(inputs, len(inputs))
    _room([sum(a.size for a in arrays)], *arrays, np.empty(0))
    return np.concatenate(arrays, counted_from_front(node.int("axis", 1), arrays[0].ndim))


@_folds("Gather")
def _gather(node: FileNode, inputs: list[Any]) -> NDArray:
    x, where = _arrays(inputs, 2)
    axis, places = counted_from_front(node.int("axis", 0), x.ndim), np.array(inputs[1].integers(), np.int64)
    if ((places < -x.shape[axis]) | (places >= x.shape[axis])).any():
        raise InputError(f"places must be within {x.shape[axis]}")
    shape = (*x.shape[:axis], *where.shape, *x.shape[axis + 1 :])
    _room(shape, x)
    return np.take(x, places.reshape(where.shape), axis)


@_folds("Slice")
def _slice(node: FileNode, inputs: list[Any]) -> NDArray:
    x, *given = _checked("Slice", inputs)
    starts, ends, axes, steps = (
        integers(node, key, value)
        for key, value in zip(("starts", "ends", "axes", "steps"), given, strict=True)
    )
    if starts is None or ends is None:
        raise InputError("must have starts and ends")
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
        raise InputError(f"{count} outputs of sizes {shown(list(sizes))} do not make {data.shape[axis]}")
    return np.split(data, np.cumsum(sizes)[:-1], axis)


@_folds(*_REDUCTIONS)
def _reduce(node: FileNode, inputs: list[Any]) -> NDArray:
    x, given = _checked("ReduceSum", inputs)
    data, axes = x.numbers(), integers(node, "axes", given)
    chosen = tuple(counted_from_front(axis, data.ndim) for axis in axes or range(data.ndim))
    made = _REDUCTIONS[node.op](data, axis=chosen, keepdims=bool(node.int("keepdims", 1)))
    return np.asarray(made, data.dtype)


@_folds("MatMul")
def _matmul(node: FileNode, inputs: list[Any]) -> NDArray:
    a, b = _arrays(inputs, 2)
    if a.ndim != 2 or b.ndim != 2:
        raise UnsupportedNodeError("a product of constants that are no matrices")
    _room((a.shape[0], b.shape[1]), a, b)
    return a @ b


@_folds("Trilu")
def _triangle(node: FileNode, inputs: list[Any]) -> NDArray:
    x, given = [*inputs, None][:2]
    k, most = 0 if given is None else given.integers()[0], max(x.shape, default=1)
    return (np.triu if node.int("upper", 1) else np.tril)(x.numbers(), max(-most, min(k, most)))
