"""Products of int16 activations, as products of their bytes, because the array multiplies 8-bit operands.

An int16 activation is 256 * high + low with a signed high and an unsigned low byte. A product with int8 weights becomes
one product for each byte, and a node `requantize_sum`, which adds both sums and requantizes the result as LiteRT does.
A product of two int16 tensors becomes four products of bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import _TIMES, Graph, Node, rebuild, unused_name
from compiler.ir.ops import OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.lowering_context import affine, clip_range, same_quantization
from compiler.reference.fixed_point import kernel_16
from compiler.util.scaling import double_ratio

_WEIGHTED = ("conv2d", "depthwise_conv2d", "conv_transpose2d", "dense")
#: Rounding modes that reproduce LiteRT's kernels for int16.
_LITERT = ("reference", "xnnpack")
#: Number of bits below the high byte.
_HIGH_BITS = 8
_INT32_MAX = (1 << 31) - 1
#: Largest magnitudes of a high byte and of a low byte.
_HIGH_MAX, _LOW_MAX = 128, 255
#: Magnitude from which a result saturates, with a margin for the rounding of its multiplier.
_SATURATED = 1 << 16
#: Number of low bits that are 0 in a limit, so that a float32 represents it.
_LIMIT_BITS = 8
#: Maximum number of significant bits of a ratio whose products with 32-bit sums are exact in double precision.
_EXACT_BITS = 53 - 32


def split_bytes(graph: Graph, rounding: str) -> Graph:
    """Replace products of int16 activations, also in subgraphs, by products of bytes.

    Parameters
    ----------
    graph : Graph
        Graph with quantized tensors.
    rounding : str
        Kernels whose rounding is reproduced; onnxruntime's products of int16 are in floating point and are not split.
    """
    return _Splitter(graph, rounding).run() if rounding in _LITERT else graph


@dataclass(frozen=True)
class _Plan:
    """Form of the sums of a product with weights.

    Parameters
    ----------
    on_device : bool
        True if FUSE can add and requantize the sums; those of the high bytes are then stored times 256.
    limit : int or None
        Magnitude to which the sums of the high bytes are limited, so that the whole sum fits 32 bits.
    """

    on_device: bool
    limit: int | None = None


class _Splitter:
    def __init__(self, graph: Graph, rounding: str):
        self.graph, self.rounding = graph, rounding
        self.made: dict[str, Tensor] = {}
        self.halves: dict[str, tuple[Tensor, Tensor]] = {}  # high and low bytes of a tensor, by its name
        self.folded: set[str] = set()  # names of clips that are part of a sum

    def run(self) -> Graph:
        """Return the graph with products of bytes, or the same graph if it has no products of int16 activations."""
        nodes: list[Node] = []
        changed = False
        for node in self.graph:
            if node.bodies:
                bodies = tuple(split_bytes(body, self.rounding) for body in node.bodies)
                changed |= any(new is not old for new, old in zip(bodies, node.bodies, strict=True))
                nodes.append(replace(node, bodies=bodies))
            elif node.op in _WEIGHTED and self._has_weights(node):
                nodes += self._with_weights(node)
            elif node.op == "matmul" and self._fits_int32(node):
                nodes += self._of_activations(node)
            elif node.name not in self.folded:
                nodes.append(node)
        return rebuild(self.graph, nodes, changed=self.made) if self.made or changed else self.graph

    def _has_weights(self, node: Node) -> bool:
        """Return True if a node multiplies an int16 activation by constant int8 weights without zero points.

        The sums of either byte must fit 32 bits.
        """
        x, weights, *bias = self.graph.ins(node)
        q = weights.quantization
        if weights.dtype != "int8" or weights.data is None or q is None or any(q.zero_point):
            return False
        return (
            (q.whole or q.axis == OPS[node.op].weights_axis)
            and _is_int16(x)
            and not x.constant
            and _is_int16(self.graph.out(node))
            and all(each.data is not None for each in bias)
            and _LOW_MAX * int(_magnitudes(node.op, weights.data).max()) <= _INT32_MAX
        )

    def _fits_int32(self, node: Node) -> bool:
        """Return True if a product of two int16 tensors has so few terms that sums of products of bytes fit int32."""
        a, b = self.graph.ins(node)
        return all(map(_is_int16, (a, b, self.graph.out(node)))) and _LOW_MAX**2 * a.shape[-1] <= _INT32_MAX

    def _with_weights(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that replace a product with constant weights."""
        x, weights, *biases = self.graph.ins(node)
        assert weights.data is not None and weights.quantization is not None
        bias = [each.data.astype(np.int64) for each in biases if each.data is not None]
        y, limits = self._result(node)
        scales = np.array(weights.quantization.scale, np.float32)
        ratios = double_ratio(node.op, x.dtype, affine(x).scale, scales, affine(y).scale)
        kernel = kernel_16(node.op, biases[0].dtype if biases else None, self.rounding)
        plan = _plan(_magnitudes(node.op, weights.data), bias, ratios, kernel)
        yield from self._split(x)
        halves = self.halves[x.name]
        offsets = [
            self._constant(f"{node.name}:bias", each.astype(np.int32)) for each in bias if plan.on_device
        ]
        sums: list[Tensor] = []
        for part, half, shift in zip(("high", "low"), halves, (_HIGH_BITS, 0), strict=True):
            unit = Quantization.per_tensor(float(1 << shift) if plan.on_device else 1.0)
            integers = self._constant(f"{weights.name}:{part}", weights.data, unit)
            sums.append(self._sums(f"{node.name}:{part}", self.graph.out(node).shape))
            yield _product(node, sums[-1], [half, integers, *(offsets if part == "low" else [])])
        if plan.limit is not None:
            limited = self._sums(f"{node.name}:limited", sums[0].shape)
            bounds = {"low": -float(plan.limit), "high": float(plan.limit)}
            yield Node(limited.name, "clip", (sums[0].name,), (limited.name,), bounds)
            sums[0] = limited
        shifts: tuple[int, ...] = (0, 0) if plan.on_device else (_HIGH_BITS, 0)
        if bias and not plan.on_device:
            sums.append(self._constant(f"{node.name}:bias", bias[0]))
            shifts = (*shifts, 0)
        yield _requantized(node, y, sums, {"shifts": shifts, "ratios": ratios, "kernel": kernel, **limits})

    def _of_activations(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that replace a product of two int16 tensors by four products of bytes."""
        a, b = self.graph.ins(node)
        y, limits = self._result(node)
        for tensor in dict.fromkeys((a.name, b.name)):
            yield from self._split(self.graph.tensors[tensor])
        ratios = double_ratio(node.op, a.dtype, affine(a).scale, affine(b).scale, affine(y).scale)
        sums: list[Tensor] = []
        shifts: list[int] = []
        names = ("high", "low")
        for (first, left), (second, right) in product(
            enumerate(self.halves[a.name]), enumerate(self.halves[b.name])
        ):
            part = f"{node.name}:{names[first]} by {names[second]}"
            sums.append(self._sums(part, self.graph.out(node).shape))
            shifts.append(_HIGH_BITS * (2 - first - second))
            yield _product(node, sums[-1], [left, right])
        how = {
            "shifts": tuple(shifts),
            "ratios": ratios,
            "kernel": kernel_16(node.op, None, self.rounding),
            **limits,
        }
        yield _requantized(node, y, sums, how)

    def _result(self, node: Node) -> tuple[Tensor, dict[str, int]]:
        """Return the final result of a product, and its limits; a clip that is the only reader is folded into it."""
        y = self.graph.out(node)
        readers = self.graph.consumers(y.name)
        low, high = clip_range(y)
        if len(readers) == 1 and readers[0].op == "clip" and y.name not in self.graph.outputs:
            clip, after = readers[0], self.graph.out(readers[0])
            if same_quantization(y, after):
                self.folded.add(clip.name)
                y, (low, high) = after, clip_range(after, clip.attributes["low"], clip.attributes["high"])
        return y, {"low": low, "high": high}

    def _split(self, x: Tensor) -> Iterator[Node]:
        """Yield the nodes that split a tensor into its bytes, unless it is split already or is a constant."""
        if x.name in self.halves:
            return
        unit = Quantization.per_tensor(1.0)
        if x.data is not None:
            high = self._constant(f"{x.name}:high", (x.data >> _HIGH_BITS).astype(np.int8), unit)
            low = self._constant(f"{x.name}:low", (x.data & _LOW_MAX).astype(np.uint8), unit)
            self.halves[x.name] = high, low
            return
        high, low = (
            self._added(Tensor(self._fresh(f"{x.name}:{part}"), x.shape, dtype, unit))
            for part, dtype in (("high", "int8"), ("low", "uint8"))
        )
        self.halves[x.name] = high, low
        for op, half in (("high_byte", high), ("low_byte", low)):
            # The name marks each half as one of two parts of an operation, so that the operation is counted once.
            yield Node(f"{half.name}{_TIMES}2", op, (x.name,), (half.name,))

    def _sums(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Add a tensor of int32 sums."""
        return self._added(Tensor(self._fresh(name), shape, "int32", Quantization.per_tensor(1.0)))

    def _constant(self, name: str, data: NDArray, quantization: Quantization | None = None) -> Tensor:
        return self._added(Tensor(self._fresh(name), data.shape, data.dtype.name, quantization, data))

    def _added(self, tensor: Tensor) -> Tensor:
        self.made[tensor.name] = tensor
        return tensor

    def _fresh(self, name: str) -> str:
        """Return an unused tensor name."""
        return unused_name(name, self.graph.tensors, self.made)


def _is_int16(tensor: Tensor) -> bool:
    """Return True if a tensor is int16 with one scale and no zero point."""
    q = tensor.quantization
    return tensor.dtype == "int16" and q is not None and q.whole and not any(q.zero_point)


def _product(node: Node, sums: Tensor, operands: Sequence[Tensor]) -> Node:
    """Return the product of bytes that computes `sums`, with the attributes of the replaced node."""
    inputs = tuple(tensor.name for tensor in operands)
    return replace(node, name=sums.name, inputs=inputs, outputs=(sums.name,))


def _requantized(node: Node, y: Tensor, sums: Sequence[Tensor], how: Mapping[str, Any]) -> Node:
    """Return the node that adds and requantizes sums, under the name of the replaced product."""
    ratios = tuple(float(ratio) for ratio in np.atleast_1d(how["ratios"]))
    inputs = tuple(tensor.name for tensor in sums)
    return Node(node.name, "requantize_sum", inputs, (y.name,), {**how, "ratios": ratios})


def _magnitudes(op: str, weights: NDArray) -> NDArray[np.int64]:
    """Return the sum of the magnitudes of each output channel's weights."""
    magnitudes = np.abs(weights.astype(np.int64))
    channel = -1 if op == "depthwise_conv2d" else 0
    return (
        magnitudes.reshape(-1, weights.shape[-1]).sum(0)
        if channel
        else magnitudes.reshape(len(weights), -1).sum(1)
    )


def _plan(
    magnitudes: NDArray[np.int64], bias: Sequence[NDArray[np.int64]], ratios: NDArray[np.float64], kernel: str
) -> _Plan:
    """Choose where the sums of a product with weights are added, and the limit of the sums of high bytes."""
    exact = kernel in ("single", "double") or (
        kernel == "away" and all(_few_bits(float(ratio)) for ratio in np.atleast_1d(ratios))
    )
    low = _LOW_MAX * magnitudes + (np.abs(bias[0].astype(np.float64)) if bias else 0.0)
    high = (_HIGH_MAX << _HIGH_BITS) * magnitudes
    if not exact or low.max() > _INT32_MAX // 2:
        return _Plan(on_device=False)
    wide = low + high > _INT32_MAX
    if not wide.any():
        return _Plan(on_device=True)
    limit = (_INT32_MAX - int(low.max())) >> _LIMIT_BITS << _LIMIT_BITS
    saturates = np.broadcast_to(ratios, wide.shape) * (limit - low) >= _SATURATED
    if kernel == "double" or not saturates[wide].all():
        return _Plan(on_device=False)
    return _Plan(on_device=True, limit=limit)


def _few_bits(ratio: float) -> bool:
    """Return True if the product of a ratio and a 32-bit sum is exact in double precision."""
    mantissa, _ = np.frexp(ratio)
    return float(mantissa * (1 << _EXACT_BITS)).is_integer()
