"""Pattern matching that fuses several ONNX nodes into one node: activations, normalizations and biases."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.ops.elementwise import binary, unary
from compiler.frontends.onnx.ops.expansions import NO_EPSILON
from compiler.frontends.onnx.ops.shape import reshaped
from compiler.frontends.onnx.registry import CONVERSIONS, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    channels_last,
)
from compiler.ir.tensor import Quantization
from compiler.util.tables import counted
from hw.errors import InputError, shown

_log = logging.getLogger(__name__)

#: Maximum depth of nested products in `DefUse.product`.
_MAX_PRODUCT_DEPTH = 6
#: Largest epsilon that is moved under the square root.
_MAX_INEXACT = 1e-3
#: Operator set in which Softmax is along a single axis.
_SOFTMAX_OPSET = 13


class DefUse:
    """Index of the producers and consumers of the values of a model.

    Parameters
    ----------
    model : OnnxModel
        Model to index, which must not change afterwards.
    """

    def __init__(self, model: OnnxModel):
        self.constants = model.constants
        self.producers = {name: node for node in model.nodes for name in node.outputs}
        self.users: dict[str, list[FileNode]] = {}
        for node in model.nodes:
            for name in node.inputs:
                self.users.setdefault(name, []).append(node)
        self.outputs = {output.name for output in model.outputs}
        self.quantized = any(node.op in ("QuantizeLinear", "DequantizeLinear") for node in model.nodes)

    def only_user(self, name: str) -> FileNode | None:
        """Return the only node that reads a value; None if there are several or the value is an output."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def made_by(self, name: str, *ops: str) -> FileNode | None:
        """Return the producer of a value if its operator is one of `ops`; None otherwise."""
        node = self.producers.get(name)
        return node if node is not None and node.op in ops and all(node.inputs[:1]) and node.inputs else None

    def binary(self, name: str, *ops: str) -> FileNode | None:
        """Return the producer of a value if its operator is one of `ops` and has two operands; None otherwise."""
        node = self.made_by(name, *ops)
        return node if node is not None and len(node.inputs) == 2 and all(node.inputs) else None

    def scalar(self, name: str) -> float | None:
        """Return the number that a scalar constant holds; None for other values."""
        value = self.constants.get(name)
        return None if value is None or value.data.size != 1 or len(value.shape) > 1 else value.scalar()

    def product(self, name: str, depth: int = _MAX_PRODUCT_DEPTH) -> tuple[float, list[str]]:
        """Return a value as a product: the constant factor and the sorted names of all other factors."""
        node = self.made_by(name, "Mul", "Div", "Pow")
        if node is None or len(node.inputs) != 2 or not depth:
            return 1.0, [name]
        number = self.scalar(node.inputs[1])
        if node.op == "Pow":
            if number not in (2.0, 3.0):
                return 1.0, [name]
            factor, leaves = self.product(node.inputs[0], depth - 1)
            return factor**number, sorted(leaves * int(number))
        if node.op == "Div":
            if not number:
                return 1.0, [name]
            factor, leaves = self.product(node.inputs[0], depth - 1)
            return factor / number, leaves
        total, leaves = 1.0, list[str]()
        for name in node.inputs:
            number = self.scalar(name)
            factor, more = (number, []) if number is not None else self.product(name, depth - 1)
            total, leaves = total * factor, leaves + more
        return total, sorted(leaves)

    def sum_with(self, name: str, number: float) -> str | None:
        """Return the other operand if a value is the sum of an operand and the constant `number`; None otherwise."""
        node = self.made_by(name, "Add")
        if node is None or len(node.inputs) != 2:
            return None
        for one, other in (node.inputs, node.inputs[::-1]):
            if near(self.scalar(one), number):
                return other
        return None


def near(number: float | None, wanted: float) -> bool:
    """Return True if two numbers are equal apart from rounding by exporters."""
    return number is not None and math.isclose(number, wanted, rel_tol=1e-3)


def instead(node: FileNode, op: str, inputs: tuple[str, ...], **attributes: object) -> FileNode:
    """Return a replacement for `node` with the same outputs, but another operator and other inputs."""
    return replace(node, op=op, inputs=inputs, attributes=attributes)


@dataclass(frozen=True)
class _Mean:
    """A mean over axes: the sum of a value's elements, divided by a count.

    Parameters
    ----------
    value : str
        Name of the averaged value.
    axes : tuple of int
        Axes of the mean, which are kept with size 1.
    count : float
        Divisor of the sum; 0: the number of elements.
    """

    value: str
    axes: tuple[int, ...]
    count: float


def _mean(view: DefUse, name: str) -> _Mean | None:
    """Match ReduceMean, or ReduceSum or ReduceSumSquare divided by a constant."""
    node = view.made_by(name, "ReduceMean")
    if node is not None:
        return _reduced(view, node, 0.0)
    factor, leaves = view.product(name)
    node = view.made_by(leaves[0], "ReduceSum") if len(leaves) == 1 else None
    return None if node is None or not factor > 0 else _reduced(view, node, 1 / factor)


def _reduced(view: DefUse, node: FileNode, count: float) -> _Mean | None:
    axes = node.ints("axes")
    if axes is None and len(node.inputs) == 2 and node.inputs[1] in view.constants:
        axes = tuple(view.constants[node.inputs[1]].integers())
    return _Mean(node.inputs[0], axes, count) if axes and node.int("keepdims", 1) else None


def _mean_square(view: DefUse, name: str) -> _Mean | None:
    """Match the mean of a value's squares, and return it as if it were the mean of the value."""
    factor, leaves = view.product(name)
    node = view.made_by(leaves[0], "ReduceSumSquare") if len(leaves) == 1 else None
    if node is not None:
        return _reduced(view, node, 1 / factor) if factor > 0 else None
    mean = _mean(view, name)
    if mean is None:
        return None
    factor, leaves = view.product(mean.value)
    return replace(mean, value=leaves[0]) if factor == 1.0 and leaves[:1] * 2 == leaves else None


def _centred(view: DefUse, name: str) -> _Mean | None:
    """Match x minus the mean of x, and return the mean."""
    node = view.binary(name, "Sub")
    mean = _mean(view, node.inputs[1]) if node is not None else None
    return mean if mean is not None and node is not None and mean.value == node.inputs[0] else None


def _variance(view: DefUse, name: str) -> tuple[_Mean, float] | None:
    """Match a variance, and return the mean of the value and the divisor of the sum of squared differences."""
    square = _mean_square(view, name)
    if square is not None:
        mean = _centred(view, square.value)
        return None if mean is None or mean.axes != square.axes else (mean, square.count)
    node = view.made_by(name, "Max", "Clip", "Relu")  # clamped to 0
    if node is not None:
        bounds = [view.scalar(each) for each in node.inputs[1:] if each]
        clamped = node.op == "Relu" or (bounds == [0.0] and not node.attributes)
        return _variance(view, node.inputs[0]) if clamped else None
    node = view.binary(name, "Sub")
    if node is None:
        return None
    square, (factor, leaves) = _mean_square(view, node.inputs[0]), view.product(node.inputs[1])
    if square is None or square.count or factor != 1.0 or leaves[:1] * 2 != leaves:
        return None
    mean = _mean(view, leaves[0])
    return None if mean is None or mean != square else (mean, 0.0)


def _norm(view: DefUse, node: FileNode) -> FileNode | None:
    """Match RMSNormalization, x / sqrt(mean(x**2) + epsilon), or LayerNormalization, which first subtracts mean(x)."""
    for top, deviation, gamma in _quotients(view, node):
        if view.quantized and not deviation.exact:
            continue
        given, mean = (() if gamma is None else (gamma,)), _centred(view, top)
        for epsilon, under in deviation.roots(view):
            if not deviation.exact and epsilon > _MAX_INEXACT:
                continue
            form = {"epsilon": epsilon, **({} if deviation.exact else {"inexact": 1})}
            square = under if isinstance(under, _Mean) else _mean_square(view, under)
            if isinstance(under, _Mean):
                variance = (
                    (mean, under.count) if mean and (under.value, under.axes) == (top, mean.axes) else None
                )
            else:
                variance = _variance(view, under)
            if mean is not None and variance is not None and variance[0] == mean:
                return _layer_norm(node, mean, variance[1], given, **form)
            if square is not None and square.value == top:
                form |= {"only": square.axes, "count": square.count}
                return instead(node, "RMSNormalization", (top, *given), **form)
    return None


@dataclass(frozen=True)
class _Deviation:
    """Denominator of a normalization: the root of a mean of squares, with epsilon.

    Parameters
    ----------
    under : str or _Mean
        Name of the value under the root, or the mean whose squares ReduceL2 adds.
    outside : float
        Square of the epsilon that is outside of the root; 0 if there is none.
    exact : bool
        False if epsilon is not added under the root: it is then a lower bound, or is added to the root.
    """

    under: "str | _Mean"
    outside: float = 0.0
    exact: bool = True

    def roots(self, view: DefUse) -> "Iterator[tuple[float, str | _Mean]]":
        """Yield each epsilon that is added under the root, with the mean of squares to which it is added."""
        if isinstance(self.under, _Mean):
            yield self.outside or NO_EPSILON, self.under
            return
        total = view.binary(self.under, "Add")
        for one, other in (total.inputs, total.inputs[::-1]) if total is not None else ():
            epsilon = view.scalar(one)
            if epsilon is not None:
                yield epsilon + self.outside, other
        bound = _lower_bound(view, self.under)
        if bound is not None:
            yield bound[1] + self.outside, bound[0]
        yield self.outside or NO_EPSILON, self.under


def _lower_bound(view: DefUse, name: str) -> tuple[str, float] | None:
    """Match the maximum of a value and a positive constant, and return both."""
    node = view.made_by(name, "Max", "Clip")
    if node is None or node.attributes.keys() - {"min"}:
        return None
    if node.op == "Max":
        pairs = [node.inputs, node.inputs[::-1]] if len(node.inputs) == 2 else []
    else:
        pairs = [] if any(node.inputs[2:]) else [(*node.inputs, "")[:2]]
    for value, constant in pairs:
        number = view.scalar(constant) if constant else node.float("min", 0.0)
        if number is not None and value not in view.constants and 0 < number < math.inf:
            return value, number
    return None


def _deviation(view: DefUse, name: str) -> _Deviation | None:
    """Match a denominator: a root, or ReduceL2 times a constant; an epsilon may be added, or be its lower bound."""
    bound = _lower_bound(view, name)
    total = view.binary(name, "Add") if bound is None else None
    for one, other in (total.inputs, total.inputs[::-1]) if total is not None else ():
        number = view.scalar(one)
        if number is not None and 0 < number < math.inf:
            bound = other, number
    inner, epsilon = bound or (name, 0.0)
    root = _root(view, inner)
    if root is not None:
        return _Deviation(root, epsilon**2, bound is None and _lower_bound(view, root) is None)
    factor, leaves = view.product(inner)
    node = view.made_by(leaves[0], "ReduceL2") if len(leaves) == 1 and factor > 0 else None
    mean = None if node is None else _reduced(view, node, 1 / factor**2)
    return None if mean is None else _Deviation(mean, epsilon**2, bound is None)


def _root(view: DefUse, name: str) -> str | None:
    """Return x if a value is sqrt(x) or x**0.5; None otherwise."""
    node = view.made_by(name, "Sqrt", "Pow")
    if node is None or (node.op == "Pow" and view.scalar(node.inputs[-1]) != 0.5):
        return None
    return node.inputs[0]


def _layer_norm(
    node: FileNode, mean: _Mean, count: float, given: Sequence[str] = (), **attributes: Any
) -> FileNode:
    """Return a LayerNormalization over some axes, whose variance is a sum divided by `count`."""
    form = {"only": mean.axes, "mean_count": mean.count, "count": count, **attributes}
    return instead(node, "LayerNormalization", (mean.value, *given), **form)


def _quotients(view: DefUse, node: FileNode) -> Iterator[tuple[str, _Deviation, str | None]]:
    """Yield each numerator of a node that normalizes, with the denominator and a constant factor, if there is one."""
    if len(node.inputs) != 2:
        return
    if node.op == "Div":
        deviation = _deviation(view, node.inputs[1])
        if deviation is not None:
            yield node.inputs[0], deviation, None
    elif node.op == "Mul":
        for top, other in (node.inputs, node.inputs[::-1]):
            inverse = view.made_by(other, "Reciprocal", "Div", "Pow")
            if inverse is None:
                continue
            if inverse.op == "Pow":
                if view.scalar(inverse.inputs[-1]) == -0.5:
                    clamped = _lower_bound(view, inverse.inputs[0]) is not None
                    yield top, _Deviation(inverse.inputs[0], exact=not clamped), None
                continue
            deviation = _deviation(view, inverse.inputs[-1])
            numerator = view.constants.get(inverse.inputs[0]) if inverse.op == "Div" else None
            if deviation is None or (inverse.op == "Div" and numerator is None):
                continue
            if numerator is None or view.scalar(inverse.inputs[0]) == 1.0:
                yield top, deviation, None
            elif numerator.shape:
                yield top, deviation, inverse.inputs[0]


def _inverse_root(view: DefUse, name: str) -> str | None:
    """Return x if a value is 1 / sqrt(x) or x**-0.5; None otherwise."""
    inverse = view.made_by(name, "Reciprocal", "Div", "Pow")
    if inverse is None:
        return None
    if inverse.op == "Pow":
        return inverse.inputs[0] if view.scalar(inverse.inputs[-1]) == -0.5 else None
    if inverse.op == "Div" and view.scalar(inverse.inputs[0]) != 1.0:
        return None
    root = view.made_by(inverse.inputs[-1], "Sqrt")
    return None if root is None else root.inputs[0]


def _folded_norm(view: DefUse, node: FileNode) -> FileNode | None:
    """Match LayerNormalization as TensorFlow writes it: x * g + (beta - mean(x) * g), g = gamma / sqrt(variance)."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for scaled, shifted in (node.inputs, node.inputs[::-1]):
        left, right = view.binary(scaled, "Mul"), view.binary(shifted, "Sub")
        if left is None or right is None or right.inputs[0] not in view.constants:
            continue
        product = view.binary(right.inputs[1], "Mul")
        for x, gain in (left.inputs, left.inputs[::-1]) if product is not None else ():
            if product is None or gain not in product.inputs:
                continue
            mean = _mean(view, product.inputs[product.inputs[0] == gain])
            found = _gain(view, gain)
            if mean is None or mean.value != x or found is None:
                continue
            gamma, (measured, count), epsilon = found
            if measured == mean:
                return _layer_norm(node, mean, count, (gamma, right.inputs[0]), epsilon=epsilon)
    return None


def _gain(view: DefUse, name: str) -> tuple[str, tuple[_Mean, float], float] | None:
    """Match a constant times 1 / sqrt(variance + epsilon): the constant, the variance and epsilon."""
    node = view.binary(name, "Mul")
    for gamma, other in (node.inputs, node.inputs[::-1]) if node is not None else ():
        under = _inverse_root(view, other) if gamma in view.constants else None
        total = view.binary(under, "Add") if under is not None else None
        for one, rest in (total.inputs, total.inputs[::-1]) if total is not None else ():
            epsilon, variance = view.scalar(one), _variance(view, rest)
            if epsilon is not None and variance is not None:
                return gamma, variance, epsilon
    return None


def _with(ops: tuple[str, ...], op: str, count: int) -> Callable[[DefUse, FileNode], FileNode | None]:
    """Return the rewrite that fuses `op` with a constant into a preceding normalization with `count` inputs."""

    def change(view: DefUse, node: FileNode) -> FileNode | None:
        if node.op != op or len(node.inputs) != 2:
            return None
        for name, other in (node.inputs, node.inputs[::-1]):
            norm, value = view.made_by(name, *ops), view.constants.get(other)
            if norm is None or len(norm.inputs) != count or value is None or not value.shape:
                continue
            # A one-dimensional constant broadcasts along the last dimension, for any rank; the conversion of a
            # normalization over given axes accepts any constant.
            if len(value.shape) == 1 or "only" in norm.attributes:
                return replace(norm, inputs=(*norm.inputs, other), outputs=node.outputs)
        return None

    return change


#: Rewrites that recognize normalizations, in order.
NORMALIZATIONS = (
    _folded_norm,
    _norm,
    _with(("LayerNormalization", "RMSNormalization"), "Mul", 1),
    _with(("LayerNormalization",), "Add", 2),
)

#: Operators that the graph supports only in recognized patterns.
_ONLY_IN_PATTERNS = ("Erf", "Sqrt")

Change = Callable[[DefUse, FileNode], FileNode | None]


def recognize(model: OnnxModel) -> OnnxModel:
    """Return the model with each activation and each normalization fused into one node."""
    model = _changed(model, (_exponential, _activation, _softcap, _softmax, *NORMALIZATIONS), through=False)
    inexact = [node.name for node in model.nodes if "inexact" in node.attributes]
    if inexact:
        _log.warning(
            "%s (such as %s) with epsilon outside of the square root, or as a lower bound: epsilon is added under the "
            "root instead, which differs where a variance is about as small as epsilon",
            counted(len(inexact), "normalization"),
            shown(inexact[0]),
        )
    if any(node.op in _ONLY_IN_PATTERNS for node in model.nodes):
        model = _changed(model, (_gelu_alone, *NORMALIZATIONS), through=True)
    return model


def _changed(model: OnnxModel, changes: tuple[Change, ...], *, through: bool) -> OnnxModel:
    """Return the model after a sequence of rewrites.

    If `through` is set, pairs of QuantizeLinear and DequantizeLinear inside a pattern are ignored, and their rounding
    is lost. This permits the conversion of operators that are supported only in patterns.
    """
    for change in changes:
        before = _fake_quantized(model) if through else {}
        seen = [replace(n, inputs=tuple(before.get(name, name) for name in n.inputs)) for n in model.nodes]
        view, nodes, after = DefUse(replace(model, nodes=seen)), list[FileNode](), dict[str, str]()
        for node, now in zip(model.nodes, seen, strict=True):
            if node.outputs[0] in before:
                after.setdefault(before[node.outputs[0]], node.outputs[0])
            found = change(view, now)
            if found is not None:
                found = replace(found, inputs=tuple(after.get(name, name) for name in found.inputs))
            nodes.append(found or node)
        model = replace(model, nodes=nodes).used()
    return model


def _fake_quantized(model: OnnxModel) -> dict[str, str]:
    """Return, for each value that was quantized and dequantized, the name of the original value."""
    quantized = {node.outputs[0]: node.inputs[0] for node in model.nodes if node.op == "QuantizeLinear"}
    before: dict[str, str] = {}
    for node in model.nodes:
        if node.op == "DequantizeLinear" and node.inputs[0] in quantized:
            name = quantized[node.inputs[0]]
            before[node.outputs[0]] = before.get(name, name)
    return before


def _activation(view: DefUse, node: FileNode) -> FileNode | None:
    """Match an activation that is the product of x and a function of x: SiLU, hard swish or GELU."""
    if node.op not in ("Mul", "Div"):
        return None
    factor, leaves = view.product(node.outputs[0])
    if len(leaves) != 2 or leaves[0] == leaves[1]:
        return None
    for x, other in (leaves, leaves[::-1]):
        for match in (_silu, _hard_swish, _mish, _gelu):
            found = match(view, node, x, other, factor)
            if found is not None:
                return found
    return None


def _exponential(view: DefUse, node: FileNode) -> FileNode | None:
    """Match log(1 + exp(x)), 1 / (1 + exp(-x)) and x / (1 + exp(-x)): Softplus, Sigmoid and SiLU of a float model."""
    divides = node.op == "Reciprocal" or (node.op == "Div" and len(node.inputs) == 2)
    if view.quantized or not (divides or node.op == "Log"):
        return None
    power = view.sum_with(node.inputs[-1], 1.0)
    inner = view.made_by(power, "Exp") if power is not None else None
    if inner is None:
        return None
    x = inner.inputs[0]
    if node.op == "Log":
        return instead(node, "Softplus", (x,))
    negated = view.made_by(x, "Neg")
    factor, leaves = (-1.0, [negated.inputs[0]]) if negated is not None else view.product(x)
    if factor != -1.0 or len(leaves) != 1:
        return None
    if node.op == "Reciprocal" or view.scalar(node.inputs[0]) == 1.0:
        return instead(node, "Sigmoid", (leaves[0],))
    return instead(node, "Silu", (leaves[0],)) if leaves[0] == node.inputs[0] else None


def _softmax(view: DefUse, node: FileNode) -> FileNode | None:
    """Match softmax, exp(x) / sum(exp(x)), with or without the subtraction of the maximum of x."""
    total = view.made_by(node.inputs[1], "ReduceSum") if node.op == "Div" and len(node.inputs) == 2 else None
    power = view.made_by(node.inputs[0], "Exp") if total is not None else None
    if total is None or power is None or total.inputs[0] != node.inputs[0]:
        return None
    mean, x = _reduced(view, total, 0.0), power.inputs[0]
    if mean is None or len(mean.axes) != 1:
        return None
    shifted = view.binary(x, "Sub")
    most = view.made_by(shifted.inputs[1], "ReduceMax") if shifted is not None else None
    if shifted is not None and most is not None and most.inputs[0] == shifted.inputs[0]:
        found = _reduced(view, most, 0.0)
        x = shifted.inputs[0] if found is not None and found.axes == mean.axes else x
    return replace(instead(node, "Softmax", (x,), axis=mean.axes[0]), opset=_SOFTMAX_OPSET)


def _gelu_alone(view: DefUse, node: FileNode) -> FileNode | None:
    """Match only GELU, because the operators of the other activations are supported individually."""
    found = _activation(view, node)
    return found if found is not None and found.op == "Gelu" else None


def _silu(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "Sigmoid")
    return (
        instead(node, "Silu", (x,))
        if gate is not None and gate.inputs == (x,) and near(factor, 1.0)
        else None
    )


def _hard_swish(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "HardSigmoid", "Clip")
    if gate is None or not gate.inputs:
        return None
    if gate.op == "HardSigmoid":
        standard = near(gate.float("alpha", 0.2), 1 / 6) and near(gate.float("beta", 0.5), 0.5)
        matches = standard and gate.inputs == (x,) and near(factor, 1.0)
        return instead(node, "HardSwish", (x,)) if matches else None
    low, high = (view.scalar(name) for name in (*gate.inputs[1:], "", "")[:2])
    low, high = (
        (gate.float("min", 1.0) if low is None else low),
        (gate.float("max", 0.0) if high is None else high),
    )
    shifted = view.sum_with(gate.inputs[0], 3.0)
    fits = shifted == x and low == 0 and high == 6 and near(factor, 1 / 6)
    return instead(node, "HardSwish", (x,)) if fits else None


def _mish(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "Tanh")
    inner = view.made_by(gate.inputs[0], "Softplus") if gate is not None else None
    matches = inner is not None and inner.inputs == (x,) and near(factor, 1.0)
    return instead(node, "Mish", (x,)) if matches else None


def _gelu(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "Sigmoid")
    if gate is not None and near(factor, 1.0):  # 0.5 * (1 + tanh(z)) = sigmoid(2 * z)
        scale, leaves = view.product(gate.inputs[0])
        return _gelu_by_tanh(view, node, x, scale / 2, leaves)
    inner = view.sum_with(other, 1.0)
    curve = view.made_by(inner, "Erf", "Tanh") if inner is not None else None
    if curve is None or not near(factor, 0.5):
        return None
    scale, leaves = view.product(curve.inputs[0])
    if curve.op == "Erf":
        fits = leaves == [x] and near(scale, math.sqrt(0.5))
        return instead(node, "Gelu", (x,)) if fits else None
    return _gelu_by_tanh(view, node, x, scale, leaves)


def _gelu_by_tanh(
    view: DefUse, node: FileNode, x: str, scale: float, leaves: Sequence[str]
) -> FileNode | None:
    """Match the argument of GELU's hyperbolic tangent, a product of `scale` and other factors."""
    cubic = near(scale, math.sqrt(2 / math.pi)) and (
        (len(leaves) == 1 and _cubic(view, leaves[0], x))
        or (len(leaves) == 2 and x in leaves and _even(view, leaves[leaves[0] == x], x))
    )
    return instead(node, "Gelu", (x,), approximate=b"tanh") if cubic else None


def _softcap(view: DefUse, node: FileNode) -> FileNode | None:
    """Match limit * tanh(x / limit), which keeps attention scores within -limit..limit."""
    if node.op != "Mul" or len(node.inputs) != 2:
        return None
    for name, other in (node.inputs, node.inputs[::-1]):
        limit, curve = view.scalar(other), view.made_by(name, "Tanh")
        if limit is None or curve is None or not (math.isfinite(limit) and limit > 0):
            continue
        scale, leaves = view.product(curve.inputs[0])
        if len(leaves) == 1 and near(scale, 1 / limit):
            return instead(node, ":softcap", tuple(leaves), limit=limit)
    return None


@converts(":softcap", inputs=(1, 1))
def _convert_softcap(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [unary(emitter, node, "softcap", inputs[0], limit=node.float("limit", 1.0))]


def _cubic(view: DefUse, name: str, x: str) -> bool:
    """Return whether a value is x + 0.044715 x**3."""
    node = view.made_by(name, "Add")
    if node is None or x not in node.inputs or len(node.inputs) != 2:
        return False
    scale, leaves = view.product(node.inputs[node.inputs[0] == x])
    return near(scale, 0.044715) and leaves == [x, x, x]


def _even(view: DefUse, name: str, x: str) -> bool:
    """Return whether a value is 1 + 0.044715 x**2."""
    rest = view.sum_with(name, 1.0)
    if rest is None:
        return False
    scale, leaves = view.product(rest)
    return near(scale, 0.044715) and leaves == [x, x]


def fuse(model: OnnxModel) -> OnnxModel:
    """Fuse batch normalizations into preceding convolutions, and added constants into preceding products as biases."""
    for change in (_batch_norm, _linear, _conv_bias):
        view = DefUse(model)
        model = replace(model, nodes=[change(view, node) or node for node in model.nodes]).used()
    return model


def _batch_norm(view: DefUse, node: FileNode) -> FileNode | None:
    """Fuse a batch normalization into weights and bias of the preceding convolution."""
    conv = view.made_by(node.inputs[0], "Conv") if node.op == "BatchNormalization" and node.inputs else None
    if conv is None or view.only_user(conv.outputs[0]) is not node or len(node.inputs) != 5:
        return None
    names = (*conv.inputs[1:], "")[:2]
    weights, bias = view.constants.get(names[0]), view.constants.get(names[1])
    given = [view.constants.get(name) for name in node.inputs[1:]]
    if (
        weights is None or len(view.users[names[0]]) > 1
    ):  # copies of a shared constant could require much memory
        return None
    if not weights.shape or (names[1] and bias is None) or node.int("training_mode", 0):
        return None
    channels = weights.shape[0]
    statistics = [v for v in given if v is not None]
    if len(statistics) < 4 or any(v.data.size != channels for v in (*statistics, *([bias] if bias else []))):
        return None
    try:
        factor, shift = batch_norm_constants(node, statistics, channels)
    except InputError as error:
        raise InputError(f"node {shown(node.name)}: {error}") from None
    scaled = weights.real() * factor.reshape(-1, *(1,) * (len(weights.shape) - 1))
    shifted = shift if bias is None else bias.real().reshape(-1) * factor + shift
    fused = [
        ConstantValue(f"{node.name}:{part}", data) for part, data in (("weights", scaled), ("bias", shifted))
    ]
    view.constants.update({value.name: value for value in fused})
    inputs = (conv.inputs[0], *(value.name for value in fused))
    return replace(conv, inputs=inputs, outputs=node.outputs)


def _linear(view: DefUse, node: FileNode) -> FileNode | None:
    """Fuse a MatMul with constant weights, and an added constant row, into a `:linear` node.

    The row becomes the bias of a MatMulNBits.
    """
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name, other in (node.inputs, node.inputs[::-1]):
        of_blocks = view.made_by(name, "MatMulNBits")
        if of_blocks is not None and view.only_user(name) is node and not any(of_blocks.inputs[5:]):
            if _shape_of(view, other) == (of_blocks.int("N", 0),):
                inputs = (*(*of_blocks.inputs, "", "", "")[:5], other)
                return replace(of_blocks, inputs=inputs, outputs=node.outputs)
            continue
        product = view.made_by(name, "MatMul")
        if product is None or view.only_user(name) is not node or len(product.inputs) != 2:
            continue
        weights, row = _shape_of(view, product.inputs[1]), _shape_of(view, other)
        if weights and row and len(weights) == 2 and row == weights[1:]:
            return replace(node, op=":linear", inputs=(*product.inputs, other), attributes={})
    return None


def _conv_bias(view: DefUse, node: FileNode) -> FileNode | None:
    """Fuse per-channel constants that are added to a convolution without bias into the convolution as its bias."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name, other in (node.inputs, node.inputs[::-1]):
        conv, row = view.made_by(name, "Conv"), view.constants.get(other)
        if conv is None or row is None or len(conv.inputs) != 2 or view.only_user(name) is not node:
            continue
        weights = _shape_of(view, conv.inputs[1])
        if not weights or len(weights) < 3:
            continue
        channels = (weights[0], *(1,) * (len(weights) - 2))
        if row.shape in (channels, (1, *channels)):
            bias = row.reshaped((weights[0],), f"{node.name}:bias")
            view.constants[bias.name] = bias
            return replace(conv, inputs=(*conv.inputs, bias.name), outputs=node.outputs)
    return None


def _shape_of(view: DefUse, name: str) -> tuple[int, ...] | None:
    """Return the shape of a constant; None for other values."""
    value = view.constants.get(name)
    return None if value is None else value.shape


@converts("BatchNormalization", inputs=(5, 5))
def _convert_batch_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *given = inputs
    if node.int("training_mode", 0):
        raise UnsupportedNodeError("it is in training mode: export the model for inference")
    if len(x.shape) < 2:
        raise InputError(f"its input must have at least two dimensions, not shape {list(x.shape)}")
    factor, shift = batch_norm_constants(node, [known(v, "a statistic") for v in given], x.shape[1])
    x = emitter.flow(x)
    if x.rank in (3, 4) and emitter.arithmetic(node, x).real:
        return _as_conv(emitter, node, x, factor, shift)
    x = emitter.in_order(
        x, channels_last(x.rank)
    )  # so that constants per channel broadcast along the last dimension
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    parts = [
        reshaped(emitter, f"{node.name}:{part}", ConstantValue(node.name, data), shape)
        for part, data in (("factor", factor), ("shift", shift))
    ]
    scaled = binary(emitter, node, "mul", [x, parts[0]], "scaled", FLOAT)
    return [binary(emitter, node, "add", [scaled, parts[1]], "", FLOAT)]


def _as_conv(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, factor: np.ndarray, shift: np.ndarray
) -> Sequence[Value]:
    """Convert a normalization of quantized x to a 1x1 depthwise convolution with a weight scale per channel."""
    q = x.tensor.quantization
    assert q is not None
    # The scale must be large enough that the bias, in the scale of the products, fits 32 bits.
    least = np.maximum(np.abs(shift) / (q.scale[0] * 2.0**30), 1e-30)
    scales = np.maximum(np.abs(factor) / 127, least).astype(np.float32)
    weights = np.rint(factor / scales).astype(np.int8).reshape(-1, *(1,) * (x.rank - 1))
    meaning = Quantization(tuple(map(float, scales)), (0,) * scales.size, 0)
    operands = [
        x,
        ConstantValue(f"{node.name}:weights", weights, meaning),
        ConstantValue(f"{node.name}:bias", shift),
    ]
    conv = replace(node, op="Conv", attributes={"group": scales.size}, source=None)
    return CONVERSIONS["Conv"](emitter, conv, operands)


def batch_norm_constants(
    node: FileNode, given: list[ConstantValue], channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and the offset of each channel of a batch normalization, x * factor + offset."""
    if any(v.data.size != channels for v in given):
        raise InputError(f"its statistics must be {channels} numbers each")
    scale, bias, mean, variance = (v.real().astype(np.float64).reshape(-1) for v in given)
    factor = scale / np.sqrt(variance + node.float("epsilon", 1e-5))
    shift = bias - mean * factor
    factor, shift = factor.astype(np.float32), shift.astype(np.float32)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        raise InputError("its statistics must be finite, variances not negative")
    return factor, shift
