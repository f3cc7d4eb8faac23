"""Bits per layer: weights of a quantized graph with fewer than eight bits under an accuracy budget."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.tensor import Quantization, Tensor
from compiler.options import AccuracyBudget
from compiler.passes import simplify
from compiler.quantize.plan import LAYOUT, NORMS, WEIGHTED, is_float
from compiler.quantize.ranges import MIN_SCALE, Calibration, Sample, samples_of, with_states
from compiler.quantize.report import LayerBits, OutputErrors, WeightReport
from compiler.quantize.sensitivity import check_labels
from compiler.quantize.weights import (
    MAX_BIAS,
    MAX_BITS,
    MAX_FACTOR,
    MAX_WIDE_BIAS,
    MIN_BITS,
    Real,
    WeightReader,
    activation_scales,
    as_rows,
    compensated,
    damped,
    from_rows,
    quantize_groups,
    refined,
    statistics_of,
    steps_of_rows,
    weight_range,
    with_few_bits,
)
from compiler.reference import Kernels, evaluate
from compiler.reference.evaluate import run_node
from compiler.util.scaling import block_factors
from hw.errors import InputError

#: Number of samples from which error compensation learns, on which sensitivity is measured, and on which a
#: budget in decibels is checked; labels are checked on all samples.
_COMPENSATED_SAMPLES, _MEASURED_SAMPLES, _CHECKED_SAMPLES = 64, 8, 64
#: Limit in bytes on the values that are kept of the calibration samples.
_MAX_KEPT_BYTES = 1 << 30
#: Probability with which as many new samples as there are calibration samples meet a budget in labels, and confidence
#: with which the mean noise of new samples meets one in decibels.
_CONFIDENCE = 0.9
#: Least number of different samples of which half are held out.
LEAST_HELD_OUT = 8
#: Least difference of two margins that is not 0, relative to the root mean square of their changes.
_LEAST_GAP = 1e-6
#: Largest number of further assignments of bits that are measured after the bisection.
_MAX_TRIED = 16
#: Number of products of a group of weights with a scale of their own, and largest number of bits of such weights.
GROUP, _GROUPED_BITS = 32, 4
#: Number of bits for which the factors of input channels are chosen.
_JUDGED_BITS = 4
#: Range of integers that a channel with a factor has, relative to what it uses on the samples, and its least factor.
_RESERVE, _LEAST_FACTOR = 1.25, 0.25
#: Operators that commute with positive factors of the channels if they keep the last axis.
_COMMUTING_BY_CHANNEL = frozenset(("max_pool2d", "avg_pool2d", "reduce_mean"))


@dataclass(frozen=True)
class _Layer:
    """Product of quantized activations with constant int8 weights.

    Parameters
    ----------
    node : Node
        Product whose weights may change.
    exact : float64 array
        Real values of the weights, in the operator's layout.
    statistics : (moments, means) or None
        As `statistics_of` returns them; moments are those of the deviations from the means if there is a
        bias, which corrects the errors of the means.
    """

    node: Node
    exact: Real
    statistics: tuple[Real, Real] | None


@dataclass(frozen=True)
class _Scaling:
    """Factors that divide the channels of activations and multiply the weights of the products that read them.

    Parameters
    ----------
    source : Node
        Product or normalization with constants of each channel, which absorb the division.
    tensors : tuple of str
        Results of the source and of the nodes after it, up to the operand of the readers, except those that only have
        the elements in another order. These nodes commute with positive factors of the channels.
    readers : tuple of str
        Products of `WeightNarrower.layers` that read the last tensor; no other node does.
    channels : (elements,) int array
        Channel of each element of the last axis of the readers' operand.
    factors : (channels,) float64 array or None
        The factors; None before they are chosen.
    """

    source: Node
    tensors: tuple[str, ...]
    readers: tuple[str, ...]
    channels: NDArray[np.intp]
    factors: Real | None = None

    def of_products(self, layer: _Layer) -> NDArray[np.intp]:
        """Return the channel of each product of an output of a reader."""
        return np.tile(self.channels, layer.exact[0].size // len(self.channels))


class _Extents:
    """Share of the range of its integers that each channel of the tensors of a scaling uses."""

    def __init__(self, graph: Graph, scaling: _Scaling):
        self.scaling = scaling
        self._graph = graph
        self._used = np.zeros(graph.out(scaling.source).shape[-1])

    def add(self, values: Mapping[str, NDArray]) -> None:
        """Add the values of a sample."""
        for name in self.scaling.tensors:
            tensor = self._graph.tensors[name]
            q, limits = tensor.quantization, np.iinfo(tensor.dtype)
            assert q is not None
            moved = values[name].reshape(-1, len(self._used)).astype(np.int64) - q.zero_point[0]
            for ends, limit in (
                (moved.max(0), limits.max - q.zero_point[0]),
                (-moved.min(0), q.zero_point[0] - limits.min),
            ):
                if limit > 0:
                    self._used = np.maximum(self._used, ends / limit)

    def least(self) -> Real:
        """Return the smallest factor of each channel: 1 if the whole range is used, or less with a reserve."""
        return np.clip(_RESERVE * self._used, _LEAST_FACTOR, 1.0)


class WeightNarrower:
    """Quantizer of the weights of a quantized graph to fewer bits.

    Weights remain int8 tensors, with values in the range of fewer bits and a scale for each output channel;
    biases are converted to the new scales and compensate the expected errors. Therefore the new graph
    consists of the same operators, and runs wherever the old one does. The products are those of int8, uint8 or
    int16 activations with constant int8 weights that no other node reads; subgraphs are left unchanged. Weights
    that have few bits already keep their integers. Where it reduces the noise of the outputs, the weights are
    multiplied by a factor of each input channel before they are rounded, and the scales of the preceding product, or
    the scale and bias of the preceding normalization, are divided by them (`activation_scales`).

    Parameters
    ----------
    graph : Graph
        Quantized graph, which remains as it is.
    samples : list of Sample
        Calibration samples of its inputs.
    rounding : Kernels
        Kernels whose rounding is used for evaluation.
    lanes : int
        Rows of a tile of weights on a target with scaled sums, on which weights of dense layers with at most four bits
        have a scale for each group of products and output (`GROUP` products, or the products of a tile of int4
        weights if these are more) if the number of products is a multiple of those of a tile; 0 for other targets.
    """

    def __init__(self, graph: Graph, samples: Sequence[Sample], rounding: Kernels, lanes: int = 0):
        self.graph, self.lanes = graph, lanes
        self.rounding: Kernels = rounding
        nodes = [node for node in graph if _suitable(graph, node)]
        kept: dict[str, list[NDArray]] = {node.inputs[0]: [] for node in nodes}
        names = {node.name for node in nodes}
        found = [each for node in graph if (each := _scaling(graph, node, names)) is not None]
        extents = [_Extents(graph, each) for each in found]
        self.values: list[dict[str, NDArray]] = []
        left = _MAX_KEPT_BYTES
        for sample in samples[:_COMPENSATED_SAMPLES]:
            values = evaluate(graph, sample, rounding=rounding, keep=True)
            left -= sum(each.nbytes for each in values.values())
            for each in extents:
                each.add(values)
            if len(self.values) < _MEASURED_SAMPLES and (left >= 0 or not self.values):
                self.values.append(values)
            for name, each in kept.items():
                if left >= 0 or not each:
                    each.append(values[name])
        self.layers = {node.name: self._layer(node, kept[node.inputs[0]]) for node in nodes}
        self._made: dict[tuple[str, int, bool], tuple[Node, dict[str, Tensor]]] = {}
        self._candidates = [
            made for each in extents if (made := self._with_factors(each.scaling, each.least())) is not None
        ]
        self._scaled = {
            name: self._scaled_layer(self.layers[name], each)
            for each in self._candidates
            for name in each.readers
        }
        self.scalings: list[_Scaling] = []
        self._base = self.values

    def _layer(self, node: Node, values: Sequence[NDArray]) -> _Layer:
        x, weights, *bias = self.graph.ins(node)
        assert x.quantization is not None and weights.quantization is not None and weights.data is not None
        exact = weights.quantization.dequantized(weights.data).astype(np.float64)
        real = [x.quantization.dequantized(each) for each in values]
        return _Layer(node, exact, statistics_of(node, exact, real, centred=bool(bias)))

    def _with_factors(self, scaling: _Scaling, least: Real) -> _Scaling | None:
        """Return a scaling with the factors of the least error, judged by weights that are rounded to four bits.

        Each weight is rounded to the nearest step, and the moments are those that error compensation leaves. None if
        no factors reduce the error.
        """
        layers = [self.layers[name] for name in scaling.readers]
        if any(self._fits(layer, MAX_BITS - 1) for layer in layers):
            return None
        readers = []
        for layer in layers:
            if layer.statistics is None:
                return None
            (moments, *_), _ = layer.statistics
            rest = np.square(1 / np.diag(np.linalg.cholesky(np.linalg.inv(damped(moments)))))
            readers.append(WeightReader(as_rows(layer.exact, 0, 1)[0], np.diag(rest)))
        x = self.graph.ins(layers[0].node)[0]
        assert x.quantization is not None
        grouped = self._group(layers[0], _JUDGED_BITS)
        low, high = weight_range(_JUDGED_BITS)

        def nearest(reader: WeightReader) -> NDArray:
            if grouped:
                return quantize_groups(reader.weights, _JUDGED_BITS, group=grouped).dequantized()
            steps = steps_of_rows(reader.weights, _JUDGED_BITS, np.diag(reader.moments))[:, None]
            return np.clip(np.rint(reader.weights / steps), low, high) * steps

        factors = activation_scales(
            readers,
            nearest,
            channels=scaling.of_products(layers[0]),
            least=least,
            step=x.quantization.scale[0],
        )
        return None if (factors == 1).all() else replace(scaling, factors=factors)

    def _scaled_layer(self, layer: _Layer, scaling: _Scaling) -> _Layer:
        """Return a layer for an operand whose channels are divided by factors."""
        assert scaling.factors is not None and layer.statistics is not None
        wide, (moments, means) = scaling.factors[scaling.of_products(layer)], layer.statistics
        exact = layer.exact * wide.reshape(layer.exact.shape[1:])
        return replace(layer, exact=exact, statistics=(moments / np.outer(wide, wide), means / wide))

    def scale(self, bits: Mapping[str, int]) -> bool:
        """Choose the factors of input channels that reduce the noise of the outputs with given bits, by node.

        Later results of `narrowed` and `noise` have these factors. Return True if there are any.
        """
        changed = {name for name, count in bits.items() if count < MAX_BITS}
        chosen: list[_Scaling] = []
        least = self._noise(self._graph_with(bits, chosen), self.values, changed)
        for each in self._candidates:
            tried = [*chosen, each]
            sources = {scaling.source.name for scaling in tried}
            noise = self._noise(self._graph_with(bits, tried), self.values, changed | sources)
            if noise < least:
                least, chosen = noise, tried
        self.use(chosen)
        return bool(chosen)

    def use(self, scalings: list[_Scaling]) -> None:
        """Let later results have the factors of some scalings."""
        self.scalings = scalings
        sources, wide = {each.source.name for each in scalings}, self.narrowed({})
        self._base = [values | _rerun(wide, values, sources, self.rounding) for values in self.values]

    def narrowed(self, bits: Mapping[str, int]) -> Graph:
        """Return the graph with the given numbers of bits of weights, by node; other weights are unchanged.

        Raises
        ------
        InputError
            A number of bits is out of range, or weights of a node cannot be changed.
        """
        for name, count in bits.items():
            weight_range(count)
            if name not in self.layers:
                raise InputError(f"bits: {name!r} is not a product with constant int8 weights of its own")
        return self._graph_with(bits, self.scalings)

    def _graph_with(self, bits: Mapping[str, int], scalings: Sequence[_Scaling]) -> Graph:
        """Return the graph with given bits and scalings."""
        scaled = {name for each in scalings for name in each.readers}
        changed: dict[str, Tensor] = {}
        nodes: dict[str, Node] = {}
        for name in self.layers:
            count = bits.get(name, MAX_BITS)
            if count < MAX_BITS or name in scaled:
                nodes[name], tensors = self._with(name, count, name in scaled)
                changed |= tensors
        for each in scalings:
            changed |= self._divided(each, changed)
        if not changed:
            return self.graph
        return rebuild(self.graph, [nodes.get(node.name, node) for node in self.graph], changed=changed)

    def _divided(self, scaling: _Scaling, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the constants of a scaling's source, divided by the factors; `changed` has those of other bits."""
        assert scaling.factors is not None
        x, *constants = [changed.get(each.name, each) for each in self.graph.ins(scaling.source)]
        made: dict[str, Tensor] = {}
        if scaling.source.op not in WEIGHTED:
            for each in constants:
                assert each.data is not None
                made[each.name] = replace(each, data=(each.data / scaling.factors).astype(np.float32))
            return made
        weights, *bias = constants
        assert x.quantization is not None and weights.quantization is not None
        channels = len(scaling.factors)
        scale = (np.array(weights.quantization.scale, np.float64) / scaling.factors).astype(np.float32)
        zeros = tuple(np.broadcast_to(weights.quantization.zero_point, channels).tolist())
        q = Quantization(tuple(map(float, scale)), zeros, WEIGHTED[scaling.source.op])
        made[weights.name] = replace(weights, quantization=q)
        for each in bias:
            product = (np.float32(x.quantization.scale[0]) * scale).astype(np.float32)
            made[each.name] = replace(each, quantization=_per_axis(product, 0))
        return made

    def _with(self, name: str, bits: int, scaled: bool) -> tuple[Node, dict[str, Tensor]]:
        """Return a node with fewer bits, and its weights and bias by tensor name; the result is cached."""
        key = name, bits, scaled
        if key not in self._made:
            layer = self._scaled[name] if scaled else self.layers[name]
            if not scaled and self._fits(layer, bits):
                self._made[key] = layer.node, {}
            else:
                found = self._in_groups(layer, bits)
                self._made[key] = found or (layer.node, self._rounded(layer, bits))
        return self._made[key]

    def _fits(self, layer: _Layer, bits: int) -> bool:
        """Return True if the integers of a layer have so few bits already."""
        weights = self.graph.ins(layer.node)[1]
        assert weights.data is not None and weights.quantization is not None
        low, high = weight_range(bits)
        symmetric = not any(weights.quantization.zero_point)
        return symmetric and low <= int(weights.data.min()) and int(weights.data.max()) <= high

    def _group(self, layer: _Layer, bits: int) -> int:
        """Return the number of weights that have a scale of their own; 0 if they have one for each output."""
        x, old, *_ = self.graph.ins(layer.node)
        tile = 2 * self.lanes
        if layer.node.op != "dense" or bits > _GROUPED_BITS or not tile or old.shape[1] % tile:
            return 0
        return 0 if x.dtype == "int16" else max(GROUP, tile)

    def _in_groups(self, layer: _Layer, bits: int) -> tuple[Node, dict[str, Tensor]] | None:
        """Return a node whose weights have a scale for each group; None if they shall have one for each output."""
        x, old, *bias = self.graph.ins(layer.node)
        group = self._group(layer, bits)
        if not group:
            return None
        assert x.quantization is not None and old.quantization is not None
        x_scale = x.quantization.scale[0]
        moments, means = (each[0] for each in layer.statistics) if layer.statistics else (None, None)
        made = quantize_groups(layer.exact, bits, group=group, moments=moments)
        real_bias = np.zeros(old.shape[0])
        if bias:
            assert bias[0].data is not None
            before = np.broadcast_to(np.array(old.quantization.scale, np.float64), old.shape[0])
            real_bias = bias[0].data * (x_scale * before)
            if means is not None:
                real_bias = real_bias - (made.dequantized() - layer.exact) @ means
        least = np.maximum(np.abs(real_bias) / (x_scale * MAX_BIAS), MIN_SCALE)
        found = block_factors(made.values, made.scales, group, least)
        if found is None:
            return None
        factors = Tensor(
            unused_name(f"{old.name}:factors", self.graph.tensors),
            found.factors.shape,
            "uint8",
            None,
            found.factors,
        )
        tensors = {
            old.name: replace(old, data=found.values, quantization=_per_axis(found.scales, 0)),
            factors.name: factors,
        }
        if bias:
            product = (np.float32(x_scale) * found.scales).astype(np.float32)
            whole = np.clip(np.rint(real_bias / product.astype(np.float64)), -MAX_BIAS, MAX_BIAS)
            tensors[bias[0].name] = replace(
                bias[0], data=whole.astype(bias[0].dtype), quantization=_per_axis(product, 0)
            )
        names = (x.name, *tensors)
        return replace(layer.node, op="block_dense", inputs=names, attributes={"block": group}), tensors

    def _rounded(self, layer: _Layer, bits: int) -> dict[str, Tensor]:
        x, old, *bias = self.graph.ins(layer.node)
        assert x.quantization is not None and old.quantization is not None
        axis, (low, high) = WEIGHTED[layer.node.op], weight_range(bits)
        channels = old.shape[axis]
        before = np.broadcast_to(np.array(old.quantization.scale, np.float64), channels)
        moments, means = layer.statistics or (None, None)
        groups = 1 if moments is None else len(moments)
        rows = as_rows(layer.exact, axis, groups)
        rounded, scales = np.zeros_like(rows), np.zeros(rows.shape[:2])
        for i, exact in enumerate(rows):
            own = None if moments is None else moments[i]
            steps = steps_of_rows(exact, bits, None if own is None else np.diag(own))
            # A channel of zeros keeps its scale, in which its bias is exact.
            steps = np.where(exact.any(1), steps, before.reshape(groups, -1)[i])
            scales[i] = with_few_bits(steps) if x.dtype == "int16" else steps.astype(np.float32)
            wide = np.repeat(scales[i][:, None], exact.shape[1], 1)
            if own is None:
                rounded[i] = np.clip(np.rint(exact / wide), low, high)
            else:
                rounded[i] = compensated(exact, own, wide, low, high)
                rounded[i] = refined(exact, rounded[i], wide, own, low, high)
        scale = scales.reshape(-1).astype(np.float32)
        data = from_rows(rounded, axis, old.shape).astype(np.int8)
        made = {old.name: replace(old, data=np.ascontiguousarray(data), quantization=_per_axis(scale, axis))}
        if not bias:
            return made
        fixed = bias[0]
        assert fixed.data is not None
        product = (np.float32(x.quantization.scale[0]) * scale).astype(np.float32)
        exact_bias = fixed.data * (x.quantization.scale[0] * before)
        if means is not None:
            errors = rounded * scales[:, :, None] - rows
            exact_bias = exact_bias - np.einsum("gop,gp->go", errors, means).reshape(-1)
        whole = np.rint(exact_bias / product.astype(np.float64))
        largest = MAX_WIDE_BIAS if fixed.dtype == "int64" else MAX_BIAS
        data = np.clip(whole, -largest, largest).astype(fixed.dtype)
        return made | {fixed.name: replace(fixed, data=data, quantization=_per_axis(product, 0))}

    def noise(self, name: str, bits: int) -> float:
        """Return the noise of the outputs relative to their power if one node has fewer bits, and no other node has.

        Outputs of a softmax are measured before the softmax, which hides errors where it saturates.
        """
        return self._noise(self.narrowed({name: bits}), self._base, {name})

    def noise_of_layers(self) -> dict[str, list[float]]:
        """Return the noise of the outputs if one layer has 2, 3, ... 8 bits, by layer."""
        return {
            name: [self.noise(name, bits) for bits in range(MIN_BITS, MAX_BITS)] + [0.0]
            for name in self.layers
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Number of weights of each layer."""
        return {name: layer.exact.size for name, layer in self.layers.items()}

    def _noise(self, made: Graph, base: Sequence[dict[str, NDArray]], changed: Collection[str]) -> float:
        """Return the noise of a graph's outputs relative to the values of one in which some nodes are different."""
        total = 0.0
        for watched in watched_tensors(self.graph):
            errors = OutputErrors()
            for values in base:
                new = _rerun(made, values, changed, self.rounding)
                exact, found = (real_values(self.graph, watched, each) for each in (values, values | new))
                errors.add(exact, found)
            total += errors.noise / errors.signal if errors.signal else 0.0
        return total


def _suitable(graph: Graph, node: Node) -> bool:
    """Return True for a product of quantized activations with constant int8 weights that no other node reads."""
    if node.op not in WEIGHTED:
        return False
    x, weights, *bias = graph.ins(node)
    if any(each.data is None or len(graph.consumers(each.name)) > 1 for each in (weights, *bias)):
        return False
    if any(each.name in graph.outputs for each in (weights, *bias)) or x.data is not None:
        return False
    given, q = x.quantization, weights.quantization
    return (
        x.dtype in ("int8", "uint8", "int16")
        and weights.dtype == "int8"
        and given is not None
        and given.whole
        and q is not None
        and (q.whole or q.axis == WEIGHTED[node.op])
        and all(each.dtype in ("int32", "int64") for each in bias)
        and graph.out(node).quantization is not None
    )


def _scaling(graph: Graph, source: Node, layers: Collection[str]) -> _Scaling | None:
    """Return the scaling of the channels of a node's result, without factors; None if there is none.

    The source has constants of each channel, and only nodes that commute with factors are between it and products in
    `layers`, in which more than one channel contributes to an output.
    """
    if not _has_constants_of_channels(graph, source, layers):
        return None
    y = graph.out(source)
    index: NDArray[np.intp] = np.broadcast_to(np.arange(y.shape[-1]), y.shape)
    tensor, passed = y, [y.name]
    while True:
        readers, q = graph.consumers(tensor.name), tensor.quantization
        if tensor.name in graph.outputs or tensor.dtype not in ("int8", "uint8") or q is None or not q.whole:
            return None
        if readers and all(_reads_channels(graph, node, tensor.name, layers) for node in readers):
            break
        found = _through(graph, readers[0], index) if len(readers) == 1 else None
        if found is None:
            return None
        tensor, index = graph.out(readers[0]), found
        if readers[0].op not in ("reshape", "transpose"):
            passed.append(tensor.name)
    channels = index.reshape(-1, index.shape[-1])
    if (channels != channels[0]).any():
        return None
    return _Scaling(source, tuple(passed), tuple(node.name for node in readers), channels[0])


def _has_constants_of_channels(graph: Graph, source: Node, layers: Collection[str]) -> bool:
    """Return True for a normalization, or a product in `layers`, that can divide each channel by a factor."""
    if source.op in NORMS:
        _, *constants = graph.ins(source)
        return bool(constants) and all(
            each.data is not None
            and each.dtype == "float32"
            and each.shape == graph.out(source).shape[-1:]
            and len(graph.consumers(each.name)) == 1
            for each in constants
        )
    if source.name not in layers:
        return False
    x, weights, *_ = graph.ins(source)
    channels, q = weights.shape[WEIGHTED[source.op]], weights.quantization
    # Scales of weights that multiply int16 have few significant bits.
    return (
        x.dtype != "int16"
        and channels == graph.out(source).shape[-1]
        and q is not None
        and min(q.scale) >= MIN_SCALE * MAX_FACTOR
    )


def _reads_channels(graph: Graph, node: Node, name: str, layers: Collection[str]) -> bool:
    """Return True for a product in `layers` whose outputs each sum products of all channels of a tensor."""
    whole = node.op == "dense" or (node.op == "conv2d" and node.attributes["groups"] == 1)
    return whole and node.name in layers and node.inputs[0] == name


def _through(graph: Graph, node: Node, index: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return the channels of the elements of a result, given those of the operand; None if factors do not commute."""
    y = graph.out(node)
    if node.op == "reshape":
        return index.reshape(y.shape)
    if node.op == "transpose":
        return index.transpose(node.attributes["perm"])
    if node.op == "clip":
        ends = node.attributes["low"], node.attributes["high"]
        return index if all(end == 0 or math.isinf(end) for end in ends) else None
    if node.op == "requantize":
        return index
    rows = index.reshape(-1, index.shape[-1])
    same = y.shape[-1] == rows.shape[1] and (rows == np.arange(rows.shape[1])).all()
    if node.op not in _COMMUTING_BY_CHANNEL or not same:
        return None
    if node.op == "reduce_mean" and not {-1, index.ndim - 1}.isdisjoint(node.attributes["axes"]):
        return None
    return np.broadcast_to(np.arange(y.shape[-1]), y.shape)


def _per_axis(scale: NDArray[np.float32], axis: int) -> Quantization:
    return Quantization(tuple(float(each) for each in scale), (0,) * len(scale), axis)


def watched_tensors(graph: Graph) -> list[str]:
    """Return the tensors whose noise counts: outputs, or the operand of a softmax that computes one."""
    found = []
    for name in graph.sample_outputs:
        producer = graph.producer(name)
        start, ended = name, False
        while producer is not None and producer.op in ("dequantize", "softmax", *LAYOUT) and not ended:
            name, ended = producer.inputs[0], producer.op == "softmax"
            producer = graph.producer(name)
        found.append(name if ended else start)
    return list(dict.fromkeys(found))


def _rerun(
    graph: Graph, values: Mapping[str, NDArray], first: Collection[str], rounding: Kernels
) -> dict[str, NDArray]:
    """Return the tensors of a graph that depend on some nodes, given the values of the others."""
    new: dict[str, NDArray] = {}
    for node in graph:
        if node.name in first or any(name in new for name in node.inputs):
            operands = [new[name] if name in new else _value(graph, name, values) for name in node.inputs]
            new |= zip(node.outputs, run_node(graph, node, operands, rounding=rounding), strict=True)
    return new


def _value(graph: Graph, name: str, values: Mapping[str, NDArray]) -> NDArray:
    data = graph.tensors[name].data
    return values[name] if data is None else data


def real_values(graph: Graph, name: str, values: Mapping[str, NDArray]) -> NDArray:
    """Return the real numbers that a tensor represents."""
    q, found = graph.tensors[name].quantization, _value(graph, name, values)
    return found.astype(np.float64) if q is None else q.dequantized(found)


def bit_steps(
    noise: Mapping[str, Sequence[float]], costs: Mapping[str, Sequence[float]]
) -> list[tuple[str, int]]:
    """Return the order in which layers lose bits: the least additional noise for each unit of saved cost first.

    Each layer's noise is replaced by its lower convex hull over the cost, so that the order is optimal for every prefix
    if the noise of the layers adds up, as their costs do.

    Parameters
    ----------
    noise : dict
        Noise with 2, 3, ... 8 bits, by layer.
    costs : dict
        Cost with 2, 3, ... 8 bits, by layer, which each bit increases: bits of all weights, or cycles.

    Returns
    -------
    list of (str, int)
        Layers and their new number of bits.
    """
    steps = []
    for place, (name, each) in enumerate(noise.items()):
        rising = np.maximum.accumulate(np.asarray(each, np.float64)[::-1])[::-1]  # fewer bits, no less noise
        bits = MAX_BITS
        while bits > MIN_BITS:
            slopes = [
                (rising[lower - MIN_BITS] - rising[bits - MIN_BITS])
                / (costs[name][bits - MIN_BITS] - costs[name][lower - MIN_BITS])
                for lower in range(MIN_BITS, bits)
            ]
            lower = MIN_BITS + int(np.argmin(slopes))
            steps.append((slopes[lower - MIN_BITS], place, -lower, name))
            bits = lower
    return [(name, -lower) for _, _, lower, name in sorted(steps)]


def fit_bits(
    graph: Graph,
    samples: Calibration,
    budget: AccuracyBudget,
    *,
    rounding: Kernels = "reference",
    lanes: int = 0,
    exact: Graph | None = None,
) -> tuple[Graph, WeightReport]:
    """Choose the bits of the weights of each layer of a quantized graph, and round the weights to them.

    The sensitivity of a layer, the noise of the outputs if only its weights have fewer bits, is measured for
    2 to 7 bits. Layers lose bits in the order of `bit_steps`: a number of steps at which the budget holds is found by
    bisection. This is repeated with the factors of input channels that reduce the noise with the resulting bits, and
    with one bit less. From the result with the fewest bits, further steps are tried; layers whose step violates the
    budget keep their bits.

    Errors of weights that are rounded and compensated on some samples are smaller on these than on others. Therefore
    accuracy is measured by cross-fitting: weights with the same bits are fitted on either half of the samples, and
    measured on the other half. The final weights are fitted on all samples. A budget of labels also limits the number
    of changes that the noise and the margins of the samples let expect, so that as many other samples exceed the budget
    with a probability of about 10%; a budget in decibels holds for the mean noise of other samples with a confidence
    of 90% (Student's t-test). With fewer than eight different samples, nothing is held out, and the report says so.

    Parameters
    ----------
    graph : Graph
        Quantized graph: a quantized model, or a float model after `compiler.quantize.quantize`.
    samples : Calibration
        Calibration data: a dict of arrays whose first axis indexes samples, or a list of samples.
    budget : AccuracyBudget
        Permitted loss of accuracy, relative to the given graph or to `exact`.
    rounding : Kernels
        Kernels whose rounding is used for evaluation.
    lanes : int
        Rows of a tile of weights on a target with scaled sums, or 0, as for `WeightNarrower`.
    exact : Graph or None
        Float model with the same inputs and outputs, of which the graph is the quantized form, if the loss is that of
        activations and weights together. Weights keep 8 bits if the graph does not meet the budget with these.

    Returns
    -------
    Graph, WeightReport
        The graph with the new weights and biases, and the bits of each layer with the accuracy on held-out
        samples. Without products whose weights `WeightNarrower` can change, the graph is unchanged, and the
        report lists no layers.

    Raises
    ------
    InputError
        The graph is a float model, the samples do not match its inputs or all their elements are equal, or there
        is not exactly one output and one label for each sample.
    """
    if is_float(graph):
        raise InputError(
            f"accuracy_budget: {graph.name!r} must be quantized first (compiler.quantize.quantize)"
        )
    if budget.share is not None:
        raise InputError("accuracy_budget: a share of requests needs a cascade (compiler.compile)")
    graph = with_own_constants(simplify(graph))
    given = with_states(graph, samples_of(graph, samples))
    check_varied(graph, given)
    check = _Check(graph, given, budget, rounding, exact)
    narrower = WeightNarrower(graph, given, rounding, lanes)
    halves = [
        WeightNarrower(
            graph,
            [each for each, own in zip(given, check.halves, strict=True) if own != half],
            rounding,
            lanes,
        )
        for half in sorted(set(check.halves))
        if check.held_out
    ]
    best = _fitted(narrower, halves, check)
    bits = best.bits
    for fewer in (
        0,
        1,
    ):  # factors for the bits that they are expected to save reduce the noise of these bits more
        aimed = {name: max(bits.get(name, MAX_BITS) - fewer, MIN_BITS) for name in narrower.layers}
        found = [each.scale(aimed) for each in (narrower, *halves)]
        if any(found):
            best = min(best, _fitted(narrower, halves, check), key=lambda each: each.report.mean_bits)
    return best.extended(check).finished(check)


@dataclass(frozen=True)
class _Choice:
    """Bits of layers that meet the budget.

    Parameters
    ----------
    narrower : WeightNarrower
        Quantizer that is fitted on all samples.
    halves : list of WeightNarrower
        Quantizers that are fitted on all samples but those of one half; empty if nothing is held out.
    scalings : list of list of _Scaling
        Factors of the quantizers, `narrower` first.
    taken, left : list of (str, int)
        Layers and their new number of bits: steps that lead to these bits, and those that may follow.
    report : WeightReport
        Accuracy with these bits.
    """

    narrower: WeightNarrower
    halves: list[WeightNarrower]
    scalings: list[list[_Scaling]]
    taken: list[tuple[str, int]]
    left: list[tuple[str, int]]
    report: WeightReport

    @property
    def bits(self) -> dict[str, int]:
        """Number of bits of the layers that have fewer than eight."""
        return dict(self.taken)

    def extended(self, check: "_Check") -> "_Choice":
        """Return a choice with further steps: all of `left` but those of layers whose next step violates the budget.

        Several steps are tried at once while they hold, and fewer after they do not.
        """
        self._use_scalings()
        taken, left, report, count = list(self.taken), list(self.left), self.report, 1
        for _ in range(_MAX_TRIED):
            if not left:
                break
            found, holds = check.measured(self.narrower, self.halves, dict(taken + left[:count]))
            if holds:
                taken, left, report, count = taken + left[:count], left[count:], found, 2 * count
            elif count > 1:
                count //= 2
            else:
                left = [each for each in left if each[0] != left[0][0]]
        return replace(self, taken=taken, left=left, report=_with_layers(self.narrower, taken, report))

    def finished(self, check: "_Check") -> tuple[Graph, WeightReport]:
        """Return the graph that is fitted on all samples, on which it also meets the budget, and the report."""
        self._use_scalings()
        taken, report, holds = list(self.taken), self.report, True
        while taken and self.halves and not (holds and check.within(self.narrower, dict(taken))):
            del taken[-1]
            report, holds = check.measured(self.narrower, self.halves, dict(taken))
        if not taken:
            return check.graph, _with_layers(self.narrower, [], check.before)
        return self.narrower.narrowed(dict(taken)), _with_layers(self.narrower, taken, report)

    def _use_scalings(self) -> None:
        for each, scalings in zip((self.narrower, *self.halves), self.scalings, strict=True):
            each.use(scalings)


def _fitted(narrower: WeightNarrower, halves: list[WeightNarrower], check: "_Check") -> _Choice:
    """Return bits that the budget permits, found by bisection of the steps of the least sensitivity."""
    sizes = narrower.sizes
    costs = {name: [size * bits for bits in range(MIN_BITS, MAX_BITS + 1)] for name, size in sizes.items()}
    steps = bit_steps(narrower.noise_of_layers(), costs)
    first, last = 0, len(steps)
    result = check.before
    while first < last:
        middle = (first + last + 1) // 2
        found, holds = check.measured(narrower, halves, dict(steps[:middle]))
        if holds:
            first, result = middle, found
        else:
            last = middle - 1
    # The next step violates the budget.
    left = [each for each in steps[first:] if each[0] != steps[first][0]]
    scalings = [each.scalings for each in (narrower, *halves)]
    report = _with_layers(narrower, steps[:first], result)
    return _Choice(narrower, halves, scalings, steps[:first], left, report)


def _with_layers(
    narrower: WeightNarrower, taken: Sequence[tuple[str, int]], report: WeightReport
) -> WeightReport:
    """Return a report with the bits of each layer after some steps."""
    bits = dict(taken)
    layers = (
        LayerBits(name, bits.get(name, MAX_BITS), each.exact.size) for name, each in narrower.layers.items()
    )
    return replace(report, layers=tuple(layers))


def check_varied(graph: Graph, samples: Sequence[Sample]) -> None:
    """Raise InputError if all elements of all samples are equal, so that no loss of accuracy could be measured."""
    parts = [sample[name] for sample in samples for name in graph.sample_inputs]
    varied = any((each != parts[0].flat[0]).any() for each in parts)
    if not varied and sum(each.size for each in parts) > 1:
        raise InputError(
            f"accuracy_budget: all elements of the calibration samples are {parts[0].flat[0]}; a loss of accuracy can "
            "be measured only on typical inputs"
        )


def with_own_constants(graph: Graph) -> Graph:
    """Return the graph in which products do not share constant weights or biases with other nodes."""
    nodes, changed, used = [], {}, set[str]()
    for node in graph:
        inputs = list(node.inputs)
        for i, name in enumerate(inputs):
            if i and node.op in WEIGHTED and graph.tensors[name].constant:
                if name in used:
                    inputs[i] = unused_name(name, graph.tensors, changed)
                    changed[inputs[i]] = replace(graph.tensors[name], name=inputs[i])
                used.add(name)
        nodes.append(replace(node, inputs=tuple(inputs)))
    return rebuild(graph, nodes, changed=changed) if changed else graph


class _Check:
    """Measurement of the accuracy of graphs relative to the graph with 8-bit weights, or to a float model.

    `halves` has the half of the samples, 0 or 1, to which each one belongs. Equal samples belong to the same half.
    """

    def __init__(
        self,
        graph: Graph,
        samples: Sequence[Sample],
        budget: AccuracyBudget,
        rounding: Kernels,
        exact: Graph | None = None,
    ):
        self.graph, self.budget, self.exact = graph, budget, exact or graph
        self.rounding: Kernels = rounding
        if budget.worse is not None:
            check_labels(graph, samples, budget.labels)
            self.samples = list(samples)
        else:
            self.samples = list(samples[:_CHECKED_SAMPLES])
        numbers: dict[bytes, int] = {}
        digests = [_digest(each) for each in samples]
        self.halves = [numbers.setdefault(each, len(numbers)) % 2 for each in digests]
        self.held_out = len(set(digests[: len(self.samples)])) >= LEAST_HELD_OUT
        self.wanted = [self._outputs(self.exact, sample) for sample in self.samples]
        self.before, _ = self._compared([graph, graph])

    def _outputs(self, graph: Graph, sample: Sample) -> dict[str, NDArray]:
        """Return the real values of the outputs and of the tensors in front of their softmax."""
        values = evaluate(graph, sample, rounding=self.rounding, keep=True)
        return {
            name: real_values(graph, name, values)
            for name in (*graph.sample_outputs, *watched_tensors(graph))
        }

    def measured(
        self, narrower: WeightNarrower, halves: Sequence[WeightNarrower], bits: Mapping[str, int]
    ) -> tuple[WeightReport, bool]:
        """Return the accuracy with given bits, without the layers of the report, and whether the budget holds.

        `halves` are the quantizers for either half of the samples; without them, all samples are measured with the
        graph that is fitted on them.
        """
        return self._compared([each.narrowed(bits) for each in halves or (narrower, narrower)])

    def within(self, narrower: WeightNarrower, bits: Mapping[str, int]) -> bool:
        """Return whether the loss on the samples to which the final weights are fitted is within the budget."""
        found, _ = self.measured(narrower, [], bits)
        if self.budget.worse is not None:
            return found.worse is not None and found.worse <= self.budget.worse
        assert self.budget.sqnr_db is not None
        return found.sqnr_db is None or found.sqnr_db >= self.budget.sqnr_db

    def _compared(self, graphs: Sequence[Graph]) -> tuple[WeightReport, bool]:
        """Return the accuracy of the graphs for the two halves of the samples, and whether the budget holds.

        Measurement ends early, with figures of some of the samples, if these exceed a budget in labels.
        """
        errors = {name: OutputErrors() for name in self.graph.sample_outputs}
        powers: dict[str, list[tuple[float, float]]] = {name: [] for name in errors}
        right = before = worse = changed = 0
        margins: list[float] = []
        moves: list[float] = []
        for i, (sample, wanted) in enumerate(zip(self.samples, self.wanted, strict=True)):
            graph = graphs[self.halves[i]]
            found = wanted if graph is self.exact else self._outputs(graph, sample)
            for name, each in errors.items():
                own = OutputErrors()
                own.add(wanted[name], found[name])
                powers[name].append((own.signal, own.noise))
                each.signal, each.noise = each.signal + own.signal, each.noise + own.noise
            if self.budget.labels:
                (name,) = errors
                was, now = (int(each[name].argmax()) == self.budget.labels[i] for each in (wanted, found))
                right, before, worse = right + now, before + was, worse + (was and not now)
                changed += int(wanted[name].argmax()) != int(found[name].argmax())
                scores = wanted[watched_tensors(self.exact)[0]].reshape(-1)
                others = found[watched_tensors(graph)[0]].reshape(-1)
                second, first = np.argsort(scores, kind="stable")[-2:] if scores.size > 1 else (0, 0)
                moves.append(float(others[first] - others[second] - scores[first] + scores[second]))
                margins.append(float(scores[first] - scores[second]) * (1 if was else -1))
                if graphs[0] is not self.graph and worse > (self.budget.worse or 0):
                    break
        ratios = [each.sqnr_db for each in errors.values() if each.sqnr_db is not None]
        report = WeightReport(
            samples=len(self.samples),
            sqnr_db=min(ratios, default=None),
            worse=worse if self.budget.labels else None,
            changed=changed if self.budget.labels else None,
            expected=expected_changes(margins, moves) if self.budget.labels else None,
            right=right if self.budget.labels else None,
            right_before=before if self.budget.labels else None,
            held_out=self.held_out,
            permitted=self.budget.worse,
        )
        return report, self._holds(report, powers)

    def _holds(self, found: WeightReport, powers: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
        """Return True if an accuracy is within the budget; powers are signals and noises of each output's samples."""
        if self.budget.worse is not None:
            assert found.worse is not None and found.expected is not None
            return found.worse <= self.budget.worse and found.expected <= _largest_mean(self.budget.worse)
        assert self.budget.sqnr_db is not None
        permitted = 10 ** (-self.budget.sqnr_db / 10)
        return all(
            _mean_holds([noise - permitted * signal for signal, noise in each]) for each in powers.values()
        )


def _digest(sample: Sample) -> bytes:
    """Return a digest of the values of a sample."""
    made = hashlib.sha256()
    for name in sorted(sample):
        made.update(np.ascontiguousarray(sample[name]).tobytes())
    return made.digest()


def _mean_holds(excesses: Sequence[float]) -> bool:
    """Return True if a mean is at most 0 with a confidence of 90%, by Student's t-test."""
    from scipy.special import (
        stdtrit,
    )  # imported on demand: loading takes longer than compiling a small network

    count = len(excesses)
    mean = sum(excesses) / count
    if count < LEAST_HELD_OUT:
        return mean <= 0
    deviation = float(np.std(excesses, ddof=1))
    return mean + float(stdtrit(count - 1, _CONFIDENCE)) * deviation / math.sqrt(count) <= 0


def expected_changes(margins: Sequence[float], moves: Sequence[float]) -> float:
    """Return the expected number of rightly labelled ones of as many new samples whose label changes.

    The margin of a new sample lies with the same probability between any two neighbors of the ordered margins, and is
    assumed to be uniformly distributed there. Without a wrongly labelled sample, one with the opposite of the smallest
    margin is assumed. Changes of margins are normally distributed, or 0 for the share of the samples whose margins do
    not change.

    Parameters
    ----------
    margins : sequence of float
        Difference of the two largest scores of each sample, negative for those that are labelled wrongly.
    moves : sequence of float
        Change of this difference by the new weights, of every sample.
    """
    from scipy.special import ndtr  # imported on demand: loading takes longer than compiling a small network

    changed = [each for each in moves if each]
    if not changed:
        return 0.0
    deviation = math.sqrt(sum(each * each for each in changed) / len(changed))
    ends = np.sort(margins) / deviation
    if ends[0] >= 0:
        ends = np.append(-ends[0], ends)
    width, right = np.diff(ends), np.maximum(ends, 0)
    # Antiderivative of the probability that a normally distributed number exceeds a margin.
    area = right * ndtr(-right) - np.exp(-np.square(right) / 2) / math.sqrt(2 * math.pi)
    at_end = np.where(ends[1:] >= 0, ndtr(-right[1:]), 0.0)
    inside = np.divide(np.diff(area), width, out=at_end, where=width > _LEAST_GAP)
    return len(changed) / len(moves) * len(margins) / (len(margins) + 1) * float(inside.sum())


def _largest_mean(count: int) -> float:
    """Return the largest mean of a Poisson distribution that exceeds `count` with a probability of at most 10%."""
    low, high = 0.0, count + 1.0
    for _ in range(40):
        mean = (low + high) / 2
        term = inside = math.exp(-mean)
        for i in range(1, count + 1):
            term *= mean / i
            inside += term
        low, high = (mean, high) if inside >= _CONFIDENCE else (low, mean)
    return low
