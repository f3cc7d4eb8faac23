"""Rewriting of a float graph into a quantized one, node by node, and quantization of its constants."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.ops import OPS
from compiler.ir.tensor import IDENTITY, Quantization, Tensor
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.quantize.plan import INTEGERS, NORMS, WEIGHTED, int16_tensors, without_blocks
from compiler.quantize.ranges import MIN_SCALE, affine_of, power_of_two, stored, symmetric_16
from compiler.quantize.weights import (
    GIVEN_SCALE_BITS,
    MAX_BIAS,
    MAX_WIDE_BIAS,
    as_rows,
    compensated,
    from_rows,
    moments_of,
    with_few_bits,
)
from compiler.util.scaling import (
    MAX_FACTOR_ERROR,
    BlockFactors,
    along_blocks,
    block_factors,
    factor_errors,
    signed_blocks,
)

#: Minimum scale of a channel relative to the largest scale; weights that would need a smaller one have no visible
#: effect.
_MIN_RELATIVE_SCALE = 2.0**-20
#: Maximum number of rows of operands with which the errors of factors are measured.
_MAX_ROWS = 512
#: Largest relative error of a number that is rounded to float32.
_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class QuantizedConstant:
    """Integers with their quantization."""

    data: NDArray
    quantization: Quantization


def quantized_weights(
    weights: NDArray,
    axis: int,
    *,
    per_channel: bool,
    bias: NDArray | None,
    x_scale: float,
    wide: bool = False,
    moments: NDArray[np.float64] | None = None,
) -> tuple[QuantizedConstant, QuantizedConstant | None]:
    """Quantize weights to symmetric int8, and the bias with the scale of the products to int32 or int64.

    Parameters
    ----------
    weights : float32 array
        Weights with any number of dimensions.
    axis : int
        Axis of the output channels.
    per_channel : bool
        True for one scale per output channel, False for a single scale.
    bias : (channels,) float32 array or None
        Bias of each output channel.
    x_scale : float
        Scale of the activation that the weights multiply.
    wide : bool
        True if the activation is int16; the bias is then int64, as in TFLite, and scales have few significant bits.
    moments : (groups, products, products) float64 array or None
        Mean products of any two elements of the operand that contribute to one output, for each group of channels.
        If given, weights are rounded so that later weights compensate the errors of earlier ones.
    """
    max_bias = MAX_WIDE_BIAS if wide else MAX_BIAS
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights.astype(np.float64)).max(others)
    largest = largest if per_channel else np.full_like(largest, largest.max())
    if bias is not None:
        # Increase scales for which the bias would overflow.
        required = np.abs(bias.astype(np.float64)) * 127 / (x_scale * max_bias)
        largest = np.maximum(largest, required if per_channel else required.max())
    floor = max(float(largest.max()) * _MIN_RELATIVE_SCALE, MIN_SCALE)
    scale = np.maximum(largest / 127, floor).astype(np.float32)
    if wide:
        scale = with_few_bits(scale)
    shape = [1] * weights.ndim
    shape[axis] = -1
    steps = np.rint(weights.astype(np.float64) / scale.astype(np.float64).reshape(shape))
    q = _per_axis(scale, axis) if per_channel else Quantization.per_tensor(float(scale[0]))
    if moments is not None:
        rows = as_rows(weights.astype(np.float64), axis, len(moments))
        scales = np.broadcast_to(scale.astype(np.float64), largest.shape).reshape(rows.shape[:2])
        rounded = [compensated(*each) for each in zip(rows, moments, scales, strict=True)]
        steps = from_rows(np.stack(rounded), axis, weights.shape)
    fixed = QuantizedConstant(np.clip(steps, -127, 127).astype(np.int8), q)
    if bias is None:
        return fixed, None
    return fixed, _quantized_bias(bias, scale, x_scale, per_channel=per_channel, wide=wide)


def _quantized_bias(
    bias: NDArray, scale: NDArray[np.float32], x_scale: float, *, per_channel: bool, wide: bool
) -> QuantizedConstant:
    """Quantize a bias with the scale of the products of an activation and weights; `scale` is that of each channel."""
    largest, dtype = (MAX_WIDE_BIAS, np.int64) if wide else (MAX_BIAS, np.int32)
    product = (np.float32(x_scale) * scale).astype(np.float32)
    steps = np.clip(np.rint(bias.astype(np.float64) / product.astype(np.float64)), -largest, largest)
    q = _per_axis(product, 0) if per_channel else Quantization.per_tensor(float(product[0]))
    return QuantizedConstant(steps.astype(dtype), q)


def kept_weights(
    given: Tensor, axis: int, *, per_channel: bool, bias: NDArray | None, x_scale: float, wide: bool
) -> tuple[QuantizedConstant, QuantizedConstant | None] | None:
    """Return the integers and scales that weights have in the model, and the bias with the scale of the products.

    A channel whose integers are all zero gets a scale in which its bias is exact, since tools write any scale for it.
    Scales of weights that multiply int16 activations are rounded to few significant bits.

    Parameters
    ----------
    given : Tensor
        Constant int8 weights with zero points of 0.
    axis, per_channel, bias, x_scale, wide
        As for `quantized_weights`.

    Returns
    -------
    weights, bias
        None if the scales are not those of output channels, or if a scale is too small or the bias too large for them.
    """
    q, data = given.quantization, given.data
    assert q is not None and data is not None
    if not (q.whole or (q.axis == axis and per_channel)):
        return None
    scale = np.broadcast_to(np.array(q.scale, np.float32), data.shape[axis]).copy()
    required = np.zeros(len(scale))
    if bias is not None:
        largest = MAX_WIDE_BIAS if wide else MAX_BIAS
        required = np.abs(bias.astype(np.float64)) / (x_scale * largest)
    if not q.whole:
        empty = ~data.any(tuple(i for i in range(data.ndim) if i != axis))
        least = np.maximum(required, max(float(scale.max()) * _MIN_RELATIVE_SCALE, MIN_SCALE))
        scale[empty] = least.astype(np.float32)[empty]
    if wide:
        scale = with_few_bits(scale, GIVEN_SCALE_BITS)
    if (scale < np.maximum(required, MIN_SCALE) * (1 - _ROUNDING)).any():
        return None
    own = Quantization.per_tensor(float(scale[0])) if q.whole else _per_axis(scale, axis)
    fixed = QuantizedConstant(data, own)
    if bias is None:
        return fixed, None
    return fixed, _quantized_bias(bias, scale, x_scale, per_channel=not q.whole, wide=wide)


def expected_error(
    op: str, errors: NDArray, axis: int, mean: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Return the expected error of each output channel of a product with inexact weights.

    Parameters
    ----------
    op : str
        Operator, one of those with weights.
    errors : float64 array
        Quantized weights minus exact ones, in the operator's layout.
    axis : int
        Axis of the output channels.
    mean : (channels,) float64 array
        Expected value of each channel of the operand. Padding counts as other elements do.

    Returns
    -------
    array or None
        Expected errors; None if the operator's outputs have different numbers of products.
    """
    if op == "conv_transpose2d":
        return None
    taps = errors.sum(tuple(i for i in range(errors.ndim) if i not in (axis, errors.ndim - 1)))
    if op == "depthwise_conv2d":
        return taps * mean
    grouped = mean.reshape(-1, taps.shape[1])  # one row for each group of a convolution
    return np.einsum("goc,gc->go", taps.reshape(len(grouped), -1, taps.shape[1]), grouped).reshape(-1)


def _per_axis(scale: NDArray[np.float32], axis: int) -> Quantization:
    return Quantization(tuple(float(each) for each in scale), (0,) * len(scale), axis)


def quantized_operand(
    values: NDArray, *, symmetric: bool, like: Quantization | None = None, dtype: str = "int8"
) -> QuantizedConstant:
    """Quantize a constant operand of an elementwise operator, product or concat with one scale.

    Parameters
    ----------
    values : array
        Floating-point values of the constant.
    symmetric : bool
        True for zero point 0.
    like : Quantization or None
        Quantization to use; None to fit it to the finite values.
    dtype : str
        Type of the integers: int8 or int16.
    """
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if like is None and dtype == "int16":
        like = symmetric_16(low, high)
    if like is None and symmetric:
        largest = max(-low, high)
        like = Quantization.per_tensor(max(largest / 127, MIN_SCALE) if largest else 1.0)
    q = like or affine_of(low, high)
    return QuantizedConstant(stored(np.nan_to_num(values), q, dtype), q)


def factored(
    values: NDArray, scales: NDArray, block: int, bias: NDArray | None, x_scale: float
) -> tuple[BlockFactors, tuple[QuantizedConstant, QuantizedConstant, QuantizedConstant]] | None:
    """Return weights with a factor for each block, also as constants: the integers, the factors and the bias.

    Parameters
    ----------
    values, scales, block
        As for `block_factors`.
    bias : (outputs,) float array or None
        Bias of each output; None: 0.
    x_scale : float
        Scale of the activation that the weights multiply.

    Returns
    -------
    BlockFactors and constants, or None
        None if `block_factors` returns None.
    """
    bias = np.zeros(len(values)) if bias is None else bias.astype(np.float64)
    least = np.maximum(np.abs(bias) / (x_scale * MAX_BIAS), MIN_SCALE)
    found = block_factors(values, scales, block, least)
    if found is None:
        return None
    product = (np.float32(x_scale) * found.scales).astype(np.float32)
    steps = np.clip(np.rint(bias / product.astype(np.float64)), -MAX_BIAS, MAX_BIAS).astype(np.int32)
    return found, (
        QuantizedConstant(found.values, _per_axis(found.scales, 0)),
        QuantizedConstant(found.factors, IDENTITY),
        QuantizedConstant(steps, _per_axis(product, 0)),
    )


def factor_blocks(graph: Graph, lanes: int) -> Graph:
    """Replace the scales for blocks of weights of products of quantized activations by factors.

    A product remains as it is, with the exact scales, if the target cannot apply factors to its blocks, or if the error
    of a result due to their rounding (`factor_errors`) may exceed half a step.

    Parameters
    ----------
    graph : Graph
        A quantized graph.
    lanes : int
        Rows of a tile of weights on the target; 0 if it has no scaled sums.
    """
    changed: dict[str, Tensor] = {}

    def replaced(node: Node) -> Node:
        if node.bodies:
            bodies = tuple(factor_blocks(body, lanes) for body in node.bodies)
            same = all(new is old for new, old in zip(bodies, node.bodies, strict=True))
            return node if same else replace(node, bodies=bodies)
        constants = _factors_of(graph, node, lanes) if node.op == "block_dense" else None
        if constants is None:
            return node
        names = [unused_name(f"{name}:factored", graph.tensors, changed) for name in node.inputs[1:]]
        for name, each in zip(names, constants, strict=False):
            data = each.data
            q = None if each.quantization == IDENTITY else each.quantization
            changed[name] = Tensor(name, data.shape, data.dtype.name, q, data)
        return replace(node, inputs=(node.inputs[0], *names))

    nodes = [replaced(node) for node in graph]
    same = all(new is old for new, old in zip(nodes, graph, strict=True))
    return graph if same else rebuild(graph, nodes, changed=changed)


def _factors_of(graph: Graph, node: Node, lanes: int) -> tuple[QuantizedConstant, ...] | None:
    """Return the weights, factors and bias of a product with exact scales for blocks; None if these must remain."""
    x, weights, scales, *bias = graph.ins(node)
    y, block = graph.out(node), node.attributes["block"]
    values, real = weights.data, [each.data for each in bias]
    if (
        values is None
        or scales.data is None
        or scales.dtype != "float32"
        or any(each is None for each in real)
    ):
        return None
    if not lanes or (block % lanes and block < values.shape[1]) or x.dtype not in ("int8", "uint8"):
        return None
    if not (x.quantization and x.quantization.whole and y.quantization and y.quantization.whole):
        return None
    x_scale, zero, limits = x.quantization.scale[0], x.quantization.zero_point[0], np.iinfo(x.dtype)
    made = factored(values, scales.data, block, real[0] if real else None, x_scale)
    if made is None or not np.isfinite(made[1][2].quantization.scale).all():
        return None
    ends, integers = (int(limits.min) - zero, int(limits.max) - zero), np.iinfo(y.dtype)
    size = int(integers.max) - int(integers.min) + 1
    errors = factor_errors(made[0], scales.data, block, ends, x_scale / y.quantization.scale[0], size)
    return made[1] if (errors <= MAX_FACTOR_ERROR).all() else None


class Rewriter:
    """Rewriter of one float graph into a quantized graph.

    Parameters
    ----------
    graph : Graph
        The float model to rewrite.
    kept : dict
        Reason why a node remains in floating point, by node name.
    quantization : function
        Returns the quantization of a tensor, given its name and its type.
    per_channel : bool
        True for one weight scale per output channel.
    means : dict
        Expected value of each channel of the operands of products with weights, by tensor name.
    states : collection of str
        Results of sums and products that are stored as int16, although some of the operands are int8.
    int16 : collection of str
        Nodes that compute on int16 values.
    values : list of dict
        Values of the float graph for some samples, with which the errors of weights that multiply int16 values are
        compensated; empty: weights are rounded to the nearest step.
    given : dict
        Integers, by name, of which float weights consist in the model (`without_hybrids`), which are kept.

    Attributes
    ----------
    reasons : dict
        Reason why a node of the new graph runs on the host, by node name.
    floats, integers : dict
        Tensors of the new graph in the original type and as int8 or int16, by name of the float graph's tensor.
    """

    def __init__(
        self,
        graph: Graph,
        kept: Mapping[str, str],
        quantization: Callable[[str, str], Quantization],
        per_channel: bool,
        means: Mapping[str, NDArray[np.float64]],
        states: Collection[str] = (),
        int16: Collection[str] = (),
        values: Sequence[Mapping[str, NDArray]] = (),
        given: Mapping[str, Tensor] | None = None,
    ):
        self.graph = without_blocks(graph, lambda node: node.name not in int16)
        self.kept, self.quantization, self.per_channel = kept, quantization, per_channel
        self.means, self.states, self.int16, self.values = means, states, int16, values
        self.given = given or {}
        self.wide = int16_tensors(graph, int16, kept) | set(states)
        self.build = GraphBuilder(graph.name)
        self.reasons: dict[str, str] = {}
        self.floats: dict[str, Tensor] = {}
        self.integers: dict[str, Tensor] = {}
        self._constants: dict[tuple[str, str, Quantization], Tensor] = {}
        self._other_width: dict[str, Tensor] = {}  # tensors of `integers`, converted to the other type

    def run(self) -> Graph:
        """Rewrite the whole graph."""
        new, old = self.build.graph, self.graph
        for name in old.inputs:
            self.floats[name] = new.add_input(old.tensors[name])
        for node in old:
            if node.name in self.kept:
                self._copy(node)
            else:
                self._quantize(node)
        for name in old.outputs:
            self._as_float(name, BOUNDARY_REASON)
        return new.finish(list(old.outputs)).keep(old.states)

    def _copy(self, node: Node) -> None:
        """Copy a node that remains in floating point."""
        why = self.kept[node.name]
        around = BOUNDARY_REASON if why == BOUNDARY_REASON else f"input of {node.name!r}, which stays float"
        inputs = [self._as_float(name, around) for name in node.inputs]
        outputs = [self.graph.tensors[name] for name in node.outputs]
        self.build.nodes(node.name, node.op, inputs, outputs, node.bodies, **node.attributes)
        self.floats |= zip(node.outputs, outputs, strict=True)
        if not node.bodies and why != INTEGERS:
            self.reasons[node.name] = why

    def _quantize(self, node: Node) -> None:
        (name,) = node.outputs
        old = self.graph.tensors[name]
        if node.op == "dequantize":
            self._convert_input(node, name, self.quantization(name, "int8"))
            return
        dtype = "int16" if name in self.wide else "int8"
        q = self.quantization(name, dtype)
        inputs = self._operands(node, q)
        output = self._unused(f"{name}:{dtype}") if name in self.graph.outputs else name
        out = Tensor(output, old.shape, dtype, q)
        self.integers[name] = self.build.node(node.name, node.op, inputs, out, **node.attributes)

    def _convert_input(self, node: Node, name: str, q: Quantization) -> None:
        """Replace a dequantize node by its integer operand, converted to int8 if necessary."""
        x = self._as_float(node.inputs[0], BOUNDARY_REASON)
        if x.dtype != "int8":
            x = self.build.node(
                node.name, "requantize", [x], Tensor(self._unused(f"{name}:int8"), x.shape, "int8", q)
            )
        self.integers[name] = x

    def _operands(self, node: Node, q: Quantization) -> list[Tensor]:
        first = node.inputs[0]
        if node.op in WEIGHTED:
            return self._weighted(node)
        if node.op == "block_dense":
            return self._with_factors(node, q)
        if node.op in NORMS:
            x = self._as_integers(first, self._type(node))
            return [x, *(self._as_float(name, "") for name in node.inputs[1:])]
        if node.outputs[0] in self.states:
            return [self._of_state(node, name, q) for name in node.inputs]
        if node.op == "gather":
            return [self._operand(node, first, q), self._as_float(node.inputs[1], BOUNDARY_REASON)]
        if node.op in ("concat", "pad"):
            return [self._converted(node, name, q) for name in node.inputs]
        return [self._operand(node, name, q) for name in node.inputs]

    def _operand(self, node: Node, name: str, q: Quantization) -> Tensor:
        """Return an operand as integers: an activation, or a constant with its own quantization."""
        data, dtype = self.graph.tensors[name].data, self._type(node)
        if data is None:
            return self._as_integers(name, dtype)
        like = q if node.op in ("concat", "gather") else None
        symmetric = OPS[node.op].symmetric
        return self._constant(name, quantized_operand(data, symmetric=symmetric, like=like, dtype=dtype))

    def _of_state(self, node: Node, name: str, q: Quantization) -> Tensor:
        """Return an operand of a sum or product that is stored as int16; the scales of constants are powers of two."""
        if name in self.states:
            return self.integers[name]
        data = self.graph.tensors[name].data
        if data is None:
            return self._operand(node, name, q)
        symmetric = OPS[node.op].symmetric
        rounded = power_of_two(quantized_operand(data, symmetric=symmetric).quantization)
        return self._constant(name, quantized_operand(data, symmetric=symmetric, like=rounded))

    def _converted(self, node: Node, name: str, q: Quantization) -> Tensor:
        """Return an operand requantized to the quantization of the result."""
        operand = self._operand(node, name, q)
        if operand.quantization == q:
            return operand
        out = Tensor(self._unused(f"{name}:converted"), operand.shape, operand.dtype, q)
        return self.build.node(f"{node.name}:{name}", "requantize", [operand], out)

    def _weighted(self, node: Node) -> list[Tensor]:
        """Return the operands of a product with weights: the activation, the weights and the corrected bias."""
        first, made = node.inputs[0], self.integers.get(node.inputs[0])
        # A product of int8 values may have an int16 result.
        narrow = made is not None and made.dtype == "int8"
        x = self._as_integers(first, "int8" if narrow else self._type(node))
        exact, *given = (self.graph.tensors[name].data for name in node.inputs[1:])
        assert exact is not None and x.quantization is not None
        bias, axis = given[0] if given else None, WEIGHTED[node.op]
        form: dict[str, Any] = {
            "per_channel": self.per_channel,
            "x_scale": x.quantization.scale[0],
            "wide": x.dtype == "int16",
        }
        names = [*node.inputs[1:], f"{node.name}:bias"][:2]
        own = self.given.get(node.inputs[1])
        found = None if own is None else kept_weights(own, axis, bias=bias, **form)
        if found is None:
            if x.dtype == "int16":
                form["moments"] = moments_of(node, exact, [each[first] for each in self.values])
            found = quantized_weights(exact, axis, bias=bias, **form)
            error = self._expected_error(node, found[0], exact)
            if error is not None and error.any():
                corrected = (-error if bias is None else bias - error).astype(np.float32)
                found = quantized_weights(exact, axis, bias=corrected, **form)
                names[1] = f"{node.name}:bias"
        weights, fixed = found
        parts = [weights] if fixed is None else [weights, fixed]
        return [x, *(self._constant(n, part) for n, part in zip(names, parts, strict=False))]

    def _with_factors(self, node: Node, q: Quantization) -> list[Tensor]:
        """Return the operands of a product whose weights have scales for blocks.

        The scales become factors unless their rounding could be noticed in results with quantization q.
        """
        x, block = self._as_integers(node.inputs[0], "int8"), node.attributes["block"]
        values, scales, *given = (self.graph.tensors[name].data for name in node.inputs[1:])
        assert values is not None and scales is not None and x.quantization is not None
        made = factored(values, scales, block, given[0] if given else None, x.quantization.scale[0])
        assert made is not None  # other nodes have become dense nodes
        found, constants = made
        rows = [each[node.inputs[0]].reshape(-1, values.shape[1]) for each in self.values]
        step = q.scale[0] * (256 if node.outputs[0] in self.wide else 1)
        if rows:
            change = found.factors * found.scales[:, None].astype(np.float64) - np.abs(scales)
            wrong = found.values * along_blocks(change, block, values.shape[1])
            taken = np.concatenate([each[:: -(-len(each) * len(rows) // _MAX_ROWS)] for each in rows])
            errors = np.sqrt(np.square(taken.astype(np.float64) @ wrong.T).mean(0)) / step
        else:
            ends = -128 - x.quantization.zero_point[0], 127 - x.quantization.zero_point[0]
            errors = factor_errors(found, scales, block, ends, x.quantization.scale[0] / step, 256)
        names, biases = node.inputs[1:], [each for each in given if each is not None]
        if (errors <= MAX_FACTOR_ERROR).all():
            return [x, *(self._constant(*each) for each in zip(names, constants, strict=False))]
        signed = signed_blocks(values, scales, block)
        assert signed is not None
        exact = (signed, np.abs(scales).astype(np.float32), *biases)
        return [x, *(self._float_constant(*each) for each in zip(names, exact, strict=True))]

    def _float_constant(self, name: str, data: NDArray) -> Tensor:
        """Return a constant without quantization."""
        return self.build.constant(self._unused(f"{name}:exact"), data)

    def _expected_error(
        self, node: Node, weights: QuantizedConstant, exact: NDArray
    ) -> NDArray[np.float64] | None:
        mean = self.means.get(node.inputs[0])
        if mean is None:
            return None
        errors = weights.quantization.dequantized(weights.data).astype(np.float64) - exact
        return expected_error(node.op, errors, WEIGHTED[node.op], mean)

    def _constant(self, name: str, fixed: QuantizedConstant) -> Tensor:
        key = (name, fixed.data.dtype.name, fixed.quantization)
        made = self._constants.get(key)
        # Products that share scales may have other factors.
        if made is None or made.data is None or not np.array_equal(made.data, fixed.data):
            unused = self._unused(f"{name}:int")
            self._constants[key] = self.build.constant(unused, fixed.data, fixed.quantization)
        return self._constants[key]

    def _type(self, node: Node) -> str:
        """Return the type of the activations on which a node computes."""
        return "int16" if node.name in self.int16 else "int8"

    def _as_integers(self, name: str, dtype: str) -> Tensor:
        """Return an activation as integers; add a quantize or requantize node if they do not exist yet."""
        made = self.integers.get(name)
        if made is not None and made.dtype != dtype:
            if name not in self._other_width:
                q, node = self.quantization(name, dtype), self._fresh_node(f"{name}:{dtype}")
                out = Tensor(self._unused(f"{name}:{dtype}"), made.shape, dtype, q)
                self._other_width[name] = self.build.node(node, "requantize", [made], out)
            return self._other_width[name]
        if made is None:
            real = self.floats[name]
            node = self._fresh_node(f"{name}:quantize")
            why = (
                BOUNDARY_REASON
                if self._is_input(name)
                else f"converts {name!r}, the output of a node that stays float"
            )
            q = self.quantization(name, dtype)
            out = Tensor(self._unused(f"{name}:{dtype}"), real.shape, dtype, q)
            self.integers[name] = self.build.node(node, "quantize", [real], out)
            self.reasons[node] = why
        return self.integers[name]

    def _as_float(self, name: str, why: str) -> Tensor:
        """Return a tensor in its original type; add a dequantize node if it exists only as int8."""
        if name not in self.floats:
            old = self.graph.tensors[name]
            if old.constant:
                self.floats[name] = self.build.graph.add_tensor(old)
            else:
                node = self._fresh_node(f"{name}:dequantize")
                output = name if name in self.graph.outputs else self._unused(f"{name}:float")
                out = Tensor(output, old.shape, old.dtype)
                self.floats[name] = self.build.node(node, "dequantize", [self.integers[name]], out)
                self.reasons[node] = why
        return self.floats[name]

    def _is_input(self, name: str) -> bool:
        """Return True if a float tensor is an input of the model, possibly in another layout."""
        producer = self.graph.producer(name)
        return producer is None or self.kept.get(producer.name) == BOUNDARY_REASON

    def _unused(self, base: str) -> str:
        """Return an unused tensor name: `base`, with a number appended if it is in use."""
        name, number = base, 1
        used = self.build.graph.tensors
        while name in used or (name != base and name in self.graph.tensors):
            number += 1
            name = f"{base}.{number}"
        return name

    def _fresh_node(self, base: str) -> str:
        return unused_name(base, self.graph.nodes, self.build.graph.nodes)
