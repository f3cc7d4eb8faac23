"""Random layers with weights of each format are exact, compared with integer arithmetic of numpy (`make soak`).

`MLA_SOAK_LAYERS` sets the number of layers of each format. Layers are in networks of several independent ones, which
run on the golden model; those of the last networks are compiled for n4 and run on the RTL as well. A format that too
few layers use fails, because the comparison would not show anything about it.
"""

import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.codegen.generate import StageGenerator
from compiler.codegen.weight_formats import number_of, word_of
from compiler.commands.commands import Command
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.lowering.fusion_groups import group
from compiler.lowering.lower import lower
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import Unit
from tests.support.graphs import Draft
from tests.support.sparse_weights import random_sparse

LAYERS = int(os.environ.get("MLA_SOAK_LAYERS", "1000"))
#: Layers of a network, and networks of a format that also run on the RTL.
IN_NETWORK, ON_RTL = 5, 2
TARGETS = ("n4", "n8", "n16")
ROUNDINGS = ("reference", "xnnpack", "onnxruntime")

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Product:
    """Dense layer, or convolution, with all that its results depend on.

    Parameters
    ----------
    name : str
        Prefix of the names of the layer's nodes and tensors.
    op : str
        "dense", "block_dense", "conv2d", "depthwise_conv2d" or "conv_transpose2d".
    x, y : Tensor
        Input and result.
    weights : Tensor
        Constant of shape (outputs, kernel height, kernel width, inputs of a group), (kernel height, kernel width,
        channels) or (outputs, inputs).
    factors : Tensor or None
        Constant of shape (outputs, blocks): factors of the blocks of `block` inputs.
    bias : (outputs,) array
        Summands of the outputs, 0 without a bias.
    limits : (int, int)
        Least and largest result.
    """

    name: str
    op: str
    x: Tensor
    y: Tensor
    weights: Tensor
    factors: Tensor | None
    block: int
    bias: Integers
    limits: tuple[int, int]
    window: dict[str, Any]

    def __str__(self) -> str:
        details = f", blocks of {self.block}" * bool(self.block) + f", {self.window}" * bool(self.window)
        return (
            f"{self.name}: {self.op} of {self.x.dtype} {self.x.shape} with {self.weights.shape} to {self.y.dtype} "
            f"{self.y.shape}{details}"
        )

    def result(self, x: NDArray, rounding: str) -> Integers:
        """Compute the result for an input."""
        sums = self._sums(x.astype(np.int64) - zero_of(self.x)) + self.bias
        assert np.abs(sums).max(initial=0) < 1 << 31
        scaled = requantized(sums, self._ratios(rounding), self.op, rounding)
        return np.clip(scaled + zero_of(self.y), *self.limits)

    def _sums(self, x: Integers) -> Integers:
        assert self.weights.data is not None
        weights = self.weights.data.astype(np.int64) - zero_of(self.weights)
        if self.op == "dense":
            return x @ weights.T
        sums = np.zeros(self.y.shape, np.int64)
        if self.factors is not None:
            assert self.factors.data is not None
            for number, start in enumerate(range(0, x.shape[-1], self.block)):
                part = slice(start, start + self.block)
                sums += (x[..., part] @ weights[:, part].T) * self.factors.data[:, number].astype(np.int64)
            return sums
        (top, left, bottom, right), strides, dilations = (
            self.window[key] for key in ("pads", "strides", "dilations")
        )
        _, height, width, made = self.y.shape
        if self.op == "conv_transpose2d":
            whole = np.zeros((len(x), top + height + bottom, left + width + right, made), np.int64)
            for i, j in np.ndindex(*weights.shape[1:3]):
                whole[:, *_pixels((i, j), x.shape[1:3], strides, dilations)] += x @ weights[:, i, j].T
            return whole[:, top : top + height, left : left + width]
        padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        if self.op == "depthwise_conv2d":
            for i, j in np.ndindex(*weights.shape[:2]):
                seen = padded[:, *_pixels((i, j), (height, width), strides, dilations)]
                sums += seen * weights[i, j]
            return sums
        groups = self.window["groups"]
        for (i, j), part in product(np.ndindex(*weights.shape[1:3]), range(groups)):
            read, written = (
                slice(part * size // groups, (part + 1) * size // groups) for size in (x.shape[3], made)
            )
            seen = padded[:, *_pixels((i, j), (height, width), strides, dilations), read]
            sums[..., written] += seen @ weights[written, i, j].T
        return sums

    def _ratios(self, rounding: str) -> list[float]:
        """Return the factor of each output, with the precision with which the kernels compute it."""
        assert self.x.quantization and self.weights.quantization and self.y.quantization
        x, y = np.float32(self.x.quantization.scale[0]), np.float32(self.y.quantization.scale[0])
        scales = np.array(self.weights.quantization.scale, np.float32)
        if rounding != "reference":
            each = (x * scales) / y
        elif self.x.dtype == "uint8" and "dense" not in self.op:
            each = (x * scales).astype(np.float64) / np.float64(y)
        else:
            each = np.float64(x) * scales.astype(np.float64) / np.float64(y)
        return np.broadcast_to(each, len(self.bias)).astype(float).tolist()


def zero_of(tensor: Tensor) -> int:
    """Return the zero point of a tensor."""
    assert tensor.quantization is not None
    return tensor.quantization.zero_point[0]


def _pixels(
    tap: tuple[int, ...], size: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Iterator[slice]:
    """Return the rows and columns that a tap of a kernel multiplies, for an image of the given size."""
    for at, count, stride, dilation in zip(tap, size, strides, dilations, strict=True):
        yield slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)


def requantized(sums: Integers, ratios: Sequence[float], op: str, rounding: str) -> Integers:
    """Multiply the sums of each output by a ratio, as an integer and a shift, and round as a kernel does."""
    out = np.zeros_like(sums)
    for channel, ratio in enumerate(ratios):
        mantissa, exponent = math.frexp(ratio)
        factor = math.floor(mantissa * 2**31 + 0.5)
        each = sums[..., channel]
        if rounding != "reference":  # float32 products, rounded to 24 bits and then half to even
            shift = 31 - exponent
            whole, low = each * (factor >> 7), shift - 7
            assert factor % 128 == 0
            bits = np.searchsorted(1 << np.arange(63), np.abs(whole), side="right")
            drop = np.minimum(np.maximum(bits - 24, 0), low)
            out[..., channel] = half_even(half_even(whole, drop) << drop, np.full_like(whole, low))
        elif "dense" in op:  # the exact product, rounded half away from zero
            shift = 31 - exponent
            out[..., channel] = np.sign(each) * ((np.abs(each) * factor + (1 << (shift - 1))) >> shift)
        else:  # the high half of the doubled product, rounded half up, and then half away from zero
            high = ((each << max(exponent, 0)) * factor + (1 << 30)) >> 31
            right = max(-exponent, 0)
            out[..., channel] = np.sign(high) * ((np.abs(high) + ((1 << right) >> 1)) >> right)
    return out


def half_even(values: Integers, bits: Integers) -> Integers:
    """Divide values by powers of two; halves are rounded to even."""
    down = values >> bits
    twice = (values - (down << bits)) * 2
    return down + ((twice > 1 << bits) | ((twice == 1 << bits) & (down % 2 == 1)))


class Kind(NamedTuple):
    """Operators, weights of a shape for N, and a test of the commands of a layer, for a format.

    `unit` is the number of N inputs that belong together; sizes begin at `least` units. Without a test, products must
    be fewer than those of the same schedule without compact formats. `share` is the least share of layers that must use
    the format.
    """

    unit: int
    ops: tuple[str, ...]
    values: Callable[[np.random.Generator, int, tuple[int, ...]], Integers]
    uses: Callable[[Sequence[Command]], bool] | None
    share: float
    zero_points: bool = False
    least: int = 1


def packed_values(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Integers:
    """Return integers of 2 to 7 bits, or of a number of bits, 0 to 8, for each n x n of them."""
    bits = int(rng.integers(2, 8))
    if rng.random() < 0.5:
        return rng.integers(-128, 128, shape) >> (8 - bits)
    counts = (-(-shape[0] // n), *shape[1:-1], -(-shape[-1] // n))
    widths = np.where(rng.random(counts) < 0.3, rng.integers(0, 9, counts), rng.integers(1, bits + 1, counts))
    widths = widths.repeat(n, 0).repeat(n, -1)[: shape[0], ..., : shape[-1]]
    return np.where(widths == 0, 0, rng.integers(-128, 128, shape) >> (8 - widths))


def int4_values(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Integers:
    """Return integers of 2 to 4 bits."""
    half = 1 << int(rng.integers(1, 4))
    return rng.integers(-half, half, shape)


def int8_values(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Integers:
    """Return integers of 8 bits."""
    return rng.integers(-128, 128, shape)


def sparse_values(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Integers:
    """Return integers of which at most two in each four of the last dimension are not 0."""
    values = random_sparse(rng, shape[-1], prod(shape[:-1])).T.reshape(shape)
    return np.where(rng.random(shape) < rng.choice((0.0, 0.3)), 0, values)


def tiled_values(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Integers:
    """Return integers of 8 bits, 4 bits, or two of four, with tiles of zeros: any, or those of whole rows and taps."""
    values = (int8_values, int8_values, int4_values, sparse_values)[int(rng.integers(4))](rng, n, shape)
    counts = (-(-shape[0] // n), *shape[1:-1], -(-shape[-1] // n))
    kept = rng.random(counts) < rng.choice((0.1, 0.3, 0.5, 0.7))
    if rng.random() < 0.3:
        dim = int(rng.integers(len(counts)))
        whole = rng.random(counts[dim]) < 0.5
        kept = np.broadcast_to(whole.reshape([-1 if i == dim else 1 for i in range(len(counts))]), counts)
    return values * kept.repeat(n, 0).repeat(n, -1)[: shape[0], ..., : shape[-1]]


def has_modes(*names: str) -> Callable[[Sequence[Command]], bool]:
    """Return a function that tests whether all products of a layer use modes."""

    def test(commands: Sequence[Command]) -> bool:
        words = [word_of(each) for each in commands if each.unit == Unit.MATRIX]
        return bool(words) and all(word[name] for word in words for name in names)

    return test


def is_packed(commands: Sequence[Command]) -> bool:
    """Return True if a layer loads packed weights."""
    loads = [each for each in commands if each.unit == Unit.LOAD]
    return any(LOAD_WORD.unpack(number_of(each, "word", LOAD_WORD.pack()))["packed"] for each in loads)


OPS = ("dense",) * 4 + ("conv2d",) * 4 + ("conv_transpose2d",)
KINDS = {
    "packed": Kind(1, (*OPS, "depthwise_conv2d"), packed_values, is_packed, 0.55, zero_points=True, least=3),
    "wide": Kind(2, OPS, int4_values, has_modes("wide"), 0.8),
    "int4 with factors": Kind(2, ("block_dense",), int4_values, has_modes("wide", "scaled"), 0.8),
    "int8 with factors": Kind(1, ("block_dense",), int8_values, has_modes("scaled"), 1.0, zero_points=True),
    "sparse": Kind(2, OPS, sparse_values, has_modes("sparse"), 0.8),
    "zero tiles": Kind(2, OPS, tiled_values, None, 0.7),
}


def random_product(draft: Draft, kind: Kind, n: int) -> Product:
    """Add a random layer of a format to a graph."""
    rng, unit = draft.rng, kind.unit * n
    op = str(rng.choice(kind.ops))

    def size(most: int, exact: float) -> int:
        """Return a size, which is a multiple of the unit with a probability."""
        found = int(rng.integers(kind.least, most // kind.unit + 1)) * unit
        return found if rng.random() < exact else max(found - int(rng.integers(1, unit)), 1)

    if "dense" in op:
        large = rng.random() < 0.04
        inputs, outputs = size(40 if large else 14, 0.9), size(40 if large else 14, 0.4)
        rows = 1 if large or rng.random() < 0.4 else int(rng.integers(2, 50))
        lead = (rows,) if rng.random() < 0.7 else (int(rng.integers(1, 4)), -(-rows // 3))
        block = 0
        if op == "block_dense":
            block = 32 if rng.random() < 0.7 else int(rng.integers(1, 4)) * unit
        weights = random_weights(draft, op, kind, n, (outputs, inputs), block)
        return added(draft, op, (*lead, inputs), (*lead, outputs), weights, block, {})
    kernel = tuple(int(each) for each in rng.integers(1, 5, 2)) if rng.random() < 0.8 else (1, 1)
    groups = int(rng.choice((1, 1, 1, 2, 3))) if op == "conv2d" else 1
    inputs, outputs = size(5, 0.9) * groups, size(5, 0.4) * groups
    strides, dilations = (tuple(int(each) for each in rng.integers(1, 4, 2)) for _ in range(2))
    if rng.random() < 0.8:
        dilations = (1, 1)
    reach = [(taps - 1) * dilation + 1 for taps, dilation in zip(kernel, dilations, strict=True)]
    pads = tuple(int(rng.integers(0, min(reach[i % 2], 4))) for i in range(4))
    images = int(rng.choice((1, 1, 2))) if op != "conv_transpose2d" else 1
    height, width = rng.integers(1, 9, 2).tolist()
    window: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations}
    if op == "conv_transpose2d":
        out = [
            max((each - 1) * stride + far - pads[i] - pads[i + 2], 1)
            for i, (each, stride, far) in enumerate(zip((height, width), strides, reach, strict=True))
        ]
    else:
        height, width = (
            max((each - 1) * stride + far - pads[i] - pads[i + 2] + int(rng.integers(stride)), 1)
            for i, (each, stride, far) in enumerate(zip((height, width), strides, reach, strict=True))
        )
        out = [
            (each + pads[i] + pads[i + 2] - far) // stride + 1
            for i, (each, stride, far) in enumerate(zip((height, width), strides, reach, strict=True))
        ]
    if op == "depthwise_conv2d":
        outputs = inputs
        weights = random_weights(draft, op, kind, n, (*kernel, inputs), 0)
    else:
        weights = random_weights(draft, op, kind, n, (outputs, *kernel, inputs // groups), 0)
        window["groups"] = groups
    return added(draft, op, (images, height, width, inputs), (images, *out, outputs), weights, 0, window)


def scale(rng: np.random.Generator, low: float, high: float, powers: bool, count: int = 1) -> list[float]:
    """Return float32 scales, which are powers of two if `powers` is set."""
    drawn = np.exp(rng.uniform(math.log(low), math.log(high), count))
    return (2.0 ** np.rint(np.log2(drawn)) if powers else drawn).astype(np.float32).tolist()


def random_weights(
    draft: Draft, op: str, kind: Kind, n: int, shape: tuple[int, ...], block: int
) -> list[Tensor]:
    """Add weights of a format to a graph, and factors of their blocks, if any."""
    rng = draft.rng
    axis = 2 if op == "depthwise_conv2d" else 0
    outputs, values, zero, dtype = shape[axis], kind.values(rng, n, shape), 0, "int8"
    if kind.zero_points and rng.random() < 0.2:
        zero = int(rng.integers(-20, 21))
        if rng.random() < 0.5:
            values, zero, dtype = values - values.min(), -int(values.min()), "uint8"
    scales = scale(rng, 0.002, 0.01, bool(rng.random() < 0.3), outputs)
    if op != "block_dense" and rng.random() < 0.5:
        meaning = Quantization((scales[0],), (zero,), None)
    else:
        meaning = Quantization(tuple(scales), (zero,) * outputs, axis)
    draft.count += 1
    name = f"w{draft.count}"
    out = [draft.graph.add_tensor(Tensor(name, shape, dtype, meaning, values.astype(dtype)))]
    if block:
        factors = rng.integers(1, 256, (outputs, -(-shape[1] // block))).astype(np.uint8)
        out.append(draft.graph.add_tensor(Tensor(f"{name}.f", factors.shape, "uint8", data=factors)))
    return out


def added(
    draft: Draft,
    op: str,
    shape: tuple[int, ...],
    made: tuple[int, ...],
    constants: list[Tensor],
    block: int,
    window: dict[str, Any],
) -> Product:
    """Add a layer with given weights, and a random input, bias and clip, to a graph."""
    rng, graph = draft.rng, draft.graph
    dtype, result = (str(rng.choice(("int8", "int8", "uint8"))) for _ in range(2))
    weights, outputs = constants[0], made[-1]
    assert weights.data is not None and weights.quantization is not None
    powers = all(math.frexp(each)[0] == 0.5 for each in weights.quantization.scale)  # ties are frequent
    draft.count += 1
    name = f"l{draft.count}"
    zeros = [int(rng.integers(*((-128, 128) if each == "int8" else (0, 256)))) for each in (dtype, result)]
    (x_scale,) = scale(rng, 0.02, 0.2, powers)
    x = graph.add_input(Tensor(f"{name}.x", shape, dtype, Quantization.per_tensor(x_scale, zeros[0])))
    spread = 100 * float((weights.data.astype(np.float64) - zero_of(weights)).std() + 0.1)
    spread *= math.sqrt(weights.data.size / outputs) * (148 if block else 1)
    bias, operands = np.zeros(outputs, np.int64), [x, *constants]
    if rng.random() < 0.6:
        bias = rng.integers(-int(spread), int(spread) + 1, outputs)
        q = weights.quantization
        scales = tuple(float(np.float32(x_scale) * np.float32(each)) for each in q.scale)
        meaning = Quantization(scales, (0,) * len(scales), None if len(scales) == 1 else 0)
        operands.append(
            graph.add_tensor(Tensor(f"{name}.b", (outputs,), "int32", meaning, bias.astype(np.int32)))
        )
    y_scale = x_scale * max(weights.quantization.scale) * spread / 50
    y_scale = 2.0 ** round(math.log2(y_scale)) if powers else float(np.float32(y_scale))
    y = Tensor(f"{name}.y", made, result, Quantization.per_tensor(y_scale, zeros[1]))
    attributes = window | ({"block": block} if block else {})
    if op == "conv_transpose2d":
        attributes["output_pads"] = (0, 0)
    low, high = (int(each) for each in (np.iinfo(result).min, np.iinfo(result).max))
    if rng.random() < 0.4:
        before = Tensor(f"{name}.c", made, result, y.quantization)
        draft.into(op, operands, before, **attributes)
        low, top = zeros[1], high
        if rng.random() < 0.5:
            high = int(rng.integers(low, high + 1))
        draft.into("clip", [before], y, low=0.0, high=(high - low) * y_scale if high < top else math.inf)
    else:
        draft.into(op, operands, y, **attributes)
    factors = constants[1] if block else None
    return Product(name, op, x, y, weights, factors, block, bias, (low, high), window)


def commands_by_result(
    graph: Graph, network: CompiledNetwork, rounding: str, schedule: Schedule
) -> dict[str, list[Command]]:
    """Return the commands of a compiled graph without host operators under a schedule, by the results of its layers."""
    lowered = lower(graph, group(graph, schedule.fusions), rounding, network.config)
    steps, *_ = StageGenerator(network.config, lowered, schedule, 0, len(lowered.layers), 0)._steps()
    out: dict[str, list[Command]] = defaultdict(list)
    for command in (each for step in steps for each in step.commands()):
        out[lowered.layers[command.layer].y].append(command)
    return out


def tiles(commands: Sequence[Command]) -> int:
    """Return the number of products of a row of activations and a tile of weights."""
    counts = [f"{dim}_count" for dim in ("x", "y", "oc", "ky", "kx", "ic")]
    return sum(
        prod(number_of(each, name, 1) for name in counts) for each in commands if each.unit == Unit.MATRIX
    )


def users(
    kind: Kind, graph: Graph, network: CompiledNetwork, rounding: str, layers: Sequence[Product]
) -> int:
    """Return the number of layers that use a format."""
    found = commands_by_result(graph, network, rounding, network.schedule)
    if kind.uses is not None:
        return sum(kind.uses(found[layer.y.name]) for layer in layers)
    every = commands_by_result(graph, network, rounding, network.schedule.unpacked())
    return sum(tiles(found[layer.y.name]) < tiles(every[layer.y.name]) for layer in layers)


def random_network(draft: Draft, kind: Kind, n: int, count: int) -> tuple[Graph, list[Product]]:
    """Return a graph of independent layers of a format, some of which have equal weights."""
    layers: list[Product] = []
    while len(layers) < count:
        if layers and draft.rng.random() < 0.15:
            other = layers[-1]
            constants = [other.weights, *([other.factors] if other.factors else [])]
            layers.append(
                added(draft, other.op, other.x.shape, other.y.shape, constants, other.block, other.window)
            )
        else:
            layers.append(random_product(draft, kind, n))
    return draft.graph.finish([layer.y.name for layer in layers]), layers


def check(
    network: CompiledNetwork, layers: Sequence[Product], seed: int, rounding: str, *, rtl: bool
) -> None:
    """Run a network on the golden model, and on the RTL, and compare the results of its layers."""
    rng, memory = np.random.default_rng(seed), dram_bytes(network)
    inputs = {
        layer.x.name: rng.integers(*_limits(layer.x.dtype), layer.x.shape).astype(layer.x.dtype)
        for layer in layers
    }
    wanted = [layer.result(inputs[layer.x.name], rounding) for layer in layers]
    for kind in (GoldenDevice, RtlDevice)[: 1 + rtl]:
        with kind(network.config, memory) as device:
            found = Session(device, network).run(inputs)
        for layer, values in zip(layers, wanted, strict=True):
            wrong = int(np.count_nonzero(found[layer.y.name] != values))
            assert not wrong, f"{kind.__name__}: {wrong} of {values.size} values of {layer}"


def _limits(dtype: str) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1


@pytest.mark.parametrize("name", KINDS)
def test_random_layers_are_exact(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    kind, used, on_rtl = KINDS[name], 0, 0
    seed = int(os.environ.get("MLA_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"MLA_SEED={seed}")
    for first in range(0, LAYERS, IN_NETWORK):
        count, rtl = min(IN_NETWORK, LAYERS - first), first + IN_NETWORK * ON_RTL >= LAYERS
        rng = np.random.default_rng((seed, first, *name.encode()))
        config = load_target("n4" if rtl else str(rng.choice(TARGETS)))
        rounding = str(rng.choice(ROUNDINGS))
        graph, layers = random_network(Draft(rng), kind, config.n, count)
        print(f"layers {first} to {first + count - 1}: N is {config.n}, {rounding}")
        network = compile(graph, config, rounding=rounding, cache=False, database=False)
        assert not network.host
        check(network, layers, seed + first, rounding, rtl=rtl)
        used += users(kind, graph, network, rounding, layers)
        on_rtl += count * rtl
    with capfd.disabled():
        print(
            f"\n{name}: {LAYERS} layers, {used} with the format, {on_rtl} also on the RTL",
            file=sys.stderr,
            flush=True,
        )
    assert used >= kind.share * LAYERS
