"""Random small networks of quantized operators for calibration."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity, restored, stored
from compiler.ir.tensor import Quantization, Tensor

Weights = NDArray[np.int8]
_SCALE = 0.05
#: Width of the tiles of weights that are zero, as those of the largest array.
_ZERO_TILE = 32
#: Standard deviation of uniform 8-bit integers; intended standard deviation of results.
_INPUT_DEVIATION, _RESULT_DEVIATION = 74.0, 40.0


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], bits: int = 8) -> Weights:
    limit = (1 << (bits - 1)) - 1
    return rng.integers(-limit, limit + 1, shape).astype(np.int8)


def _bell(rng: np.random.Generator, shape: tuple[int, ...]) -> Weights:
    """Return weights of a normal distribution whose largest magnitudes are rare, as those of trained networks."""
    return np.clip(np.rint(rng.normal(0, 16, shape)), -127, 127).astype(np.int8)


def _two_of_four(rng: np.random.Generator, shape: tuple[int, ...]) -> Weights:
    """Return weights of which at most two of each four consecutive ones along the last axis are not 0."""
    groups = rng.random((*shape[:-1], -(-shape[-1] // 4), 4)).argsort(-1) < 2
    return _uniform(rng, shape) * groups.reshape(*shape[:-1], -1)[..., : shape[-1]].astype(np.int8)


def _zero_tiles(rng: np.random.Generator, shape: tuple[int, ...]) -> Weights:
    weights = _uniform(rng, shape)
    outputs, inputs = shape[0], shape[-1]
    kept = rng.random((-(-outputs // _ZERO_TILE), -(-inputs // _ZERO_TILE))) < 0.5
    mask = kept.repeat(_ZERO_TILE, 0).repeat(_ZERO_TILE, 1)[:outputs, :inputs]
    return weights * mask.reshape(outputs, *(1,) * (len(shape) - 2), inputs).astype(np.int8)


#: Functions that draw weights of a shape, by the name of the format.
WEIGHT_FORMATS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Weights]] = {
    "": _uniform,
    "int4": partial(_uniform, bits=4),
    "packed": _bell,
    "2:4": _two_of_four,
    "zero tiles": _zero_tiles,
}


class QuantizedGraphBuilder:
    """Builder of graphs that consist of quantized operators.

    Parameters
    ----------
    seed : int
        Seed of the random constants.
    """

    def __init__(self, seed: int):
        self.rng, self.graph = np.random.default_rng(seed), Graph("point")
        self._count = 0

    def input(self, shape: tuple[int, ...]) -> Tensor:
        """Add an int8 input."""
        return self.graph.add_input(
            Tensor(self._name("x"), shape, "int8", Quantization.per_tensor(_SCALE, 3))
        )

    def skip_input(self, x: Tensor) -> Tensor:
        """Return the first input if it has the shape of x, else a new input of this shape."""
        first = self.graph.tensors[self.graph.inputs[0]]
        return first if first.shape == x.shape else self.input(x.shape)

    def node(
        self,
        op: str,
        inputs: list[Tensor],
        made: tuple[int, ...],
        *,
        like: Tensor | None = None,
        scale: float = _SCALE,
        **attributes: Any,
    ) -> Tensor:
        """Add an operator, and return its output, which is quantized like the tensor `like` if given."""
        meaning = Quantization.per_tensor(scale, -3) if like is None else like.quantization
        out = self.graph.add_tensor(Tensor(self._name("t"), made, "int8", meaning))
        names = tuple(tensor.name for tensor in inputs)
        self.graph.add_node(Node(f"{op} {out.name}", op, names, (out.name,), attributes))
        return out

    def softmax(self, x: Tensor) -> Tensor:
        """Add a softmax over the last dimension, and return its output."""
        made = self.graph.add_tensor(
            Tensor(self._name("t"), x.shape, "int8", Quantization.per_tensor(1 / 256, -128))
        )
        node = Node(
            f"softmax {made.name}",
            "softmax",
            (x.name,),
            (made.name,),
            {"axis": len(x.shape) - 1, "beta": 1.0},
        )
        self.graph.add_node(node)
        return made

    def weighted(
        self,
        op: str,
        x: Tensor,
        weights: tuple[int, ...],
        axis: int,
        shape: tuple[int, ...],
        weight_format: str = "",
        **attributes: Any,
    ) -> Tensor:
        """Add an operator with random weights, per-channel scales and a bias, and return its output.

        `weight_format` is a key of `WEIGHT_FORMATS`.
        """
        data = WEIGHT_FORMATS[weight_format](self.rng, weights)
        terms, channels = max(data.size // weights[axis], 1), weights[axis]
        scales = (
            self.rng.uniform(0.5, 1.5, channels) * _RESULT_DEVIATION / (_INPUT_DEVIATION**2 * np.sqrt(terms))
        )
        meaning = Quantization(tuple(scales.astype(np.float32).tolist()), (0,) * channels, axis)
        w = self.graph.add_tensor(Tensor(self._name("w"), weights, "int8", meaning, data))
        bias = self.rng.integers(-1000, 1000, channels).astype(np.int32)
        b = self.graph.add_tensor(Tensor(self._name("b"), bias.shape, "int32", None, bias))
        return self.node(op, [x, w, b], shape, **attributes)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"


#: Maximum estimated cycles of the slowest operator, which limits simulation to a fraction of a second.
_MAX_CYCLES = 12_000
#: Maximum number of draws to find a network that is small enough.
_MAX_ATTEMPTS = 1000
#: Fraction of chains of dense layers that have a single row.
_SINGLE_ROW_FRACTION = 0.7
_WINDOWS = (1, 3, 3, 5)


@identity("HpmOp", "kind", "size", "window", "stride", "groups", "weights", added=("weights",))
@dataclass(frozen=True)
class CalibrationOp:
    """Operator of a calibration network.

    Parameters
    ----------
    kind : str
        One of KINDS.
    size : int
        Number of output channels; 0 if the input determines it.
    window, stride, groups : int
        Kernel size, stride and number of groups of convolutions and pools.
    weights : str
        Format of the weights, a key of `WEIGHT_FORMATS`.
    """

    kind: str
    size: int = 0
    window: int = 1
    stride: int = 1
    groups: int = 1
    weights: str = ""


@identity("Point", "shape", "ops")
@dataclass(frozen=True)
class CalibrationNetwork:
    """Network of one operator or a short chain.

    Parameters
    ----------
    shape : (int, int, int)
        Rows, columns and channels of the input.
    ops : tuple of CalibrationOp
        Operators in execution order.
    """

    shape: tuple[int, int, int]
    ops: tuple[CalibrationOp, ...]

    def graph(self, seed: int = 0) -> Graph:
        """Build the graph with random weights."""
        draft = QuantizedGraphBuilder(seed)
        h, w, c = self.shape
        x = draft.input((1, h, w, c))
        for op in self.ops:
            x = _add(draft, x, op)
        return draft.graph.finish([x.name])

    def as_json(self) -> dict[str, Any]:
        """Return the network as JSON-serializable values."""
        return stored(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "CalibrationNetwork":
        """Restore a network from the values of `as_json`."""
        h, w, c = data["shape"]
        return CalibrationNetwork((h, w, c), tuple(restored(CalibrationOp, each) for each in data["ops"]))

    @property
    def family(self) -> str:
        """Operator kinds joined by "+"."""
        return "+".join(op.kind for op in self.ops)


def _output_shape(shape: tuple[int, ...], op: CalibrationOp) -> tuple[int, int, int]:
    """Return the output shape of a windowed operator with "same" padding."""
    _, h, w, c = shape
    return -(-h // op.stride), -(-w // op.stride), op.size or c


def _window(shape: tuple[int, ...], op: CalibrationOp) -> dict[str, Any]:
    pads = []
    for size in shape[1:3]:
        need = max((-(-size // op.stride) - 1) * op.stride + op.window - size, 0)
        pads.append((need // 2, need - need // 2))
    (top, bottom), (left, right) = pads
    return {"strides": (op.stride, op.stride), "pads": (top, left, bottom, right)}


def _add(draft: QuantizedGraphBuilder, x: Tensor, op: CalibrationOp) -> Tensor:
    """Add an operator, which reads a four-dimensional tensor unless it is in `_PLAIN`, and return its output."""
    if op.kind in _PLAIN:
        return _PLAIN[op.kind](draft, x)
    shape = x.shape
    h, w, c = _output_shape(shape, op)
    if op.kind == "conv":
        weights = (op.size, op.window, op.window, shape[3] // op.groups)
        more: dict[str, Any] = _window(shape, op) | {"dilations": (1, 1), "groups": op.groups}
        return draft.weighted("conv2d", x, weights, 0, (1, h, w, c), op.weights, **more)
    if op.kind == "depthwise":
        weights = (op.window, op.window, c)
        more = _window(shape, op) | {"dilations": (1, 1)}
        return draft.weighted("depthwise_conv2d", x, weights, 2, (1, h, w, c), **more)
    if op.kind == "dense":
        return draft.weighted("dense", x, (op.size, shape[3]), 0, (*shape[:3], op.size), op.weights)
    if op.kind in ("max_pool", "avg_pool"):
        pool: dict[str, Any] = {"kernel": (op.window, op.window)} | _window(shape, op)
        pool |= {"count_pads": False} if op.kind == "avg_pool" else {}
        return draft.node(f"{op.kind}2d", [x], (1, h, w, c), like=x, **pool)
    if op.kind == "matmul":
        rows = shape[1] * shape[2]
        flat = draft.node("reshape", [x], (rows, shape[3]), like=x, shape=(rows, shape[3]))
        factors = [flat, draft.input((shape[3], op.size))]
        return draft.node("matmul", factors, (rows, op.size), scale=math.sqrt(shape[3]))
    return _attention(draft, x, op.groups)


def _attention(draft: QuantizedGraphBuilder, x: Tensor, heads: int) -> Tensor:
    """Add attention of all rows of x to as many keys and values, which are inputs, and return its output."""
    rows, width = x.shape[1] * x.shape[2], x.shape[3] // heads
    split = draft.node("reshape", [x], (rows, heads, width), like=x, shape=(rows, heads, width))
    queries = draft.node("transpose", [split], (heads, rows, width), like=x, perm=(1, 0, 2))
    keys, values = draft.input((heads, width, rows)), draft.input((heads, rows, width))
    scores = draft.node("matmul", [queries, keys], (heads, rows, rows), scale=math.sqrt(width) / 4)
    made = draft.node("matmul", [draft.softmax(scores), values], (heads, rows, width))
    joined = draft.node("transpose", [made], (rows, heads, width), like=made, perm=(1, 0, 2))
    return draft.node("reshape", [joined], x.shape, like=made, shape=x.shape)


_PLAIN = {
    "add": lambda d, x: d.node("add", [x, d.input(x.shape)], x.shape, scale=0.2),
    "residual": lambda d, x: d.node("add", [x, d.skip_input(x)], x.shape, scale=0.2),
    "mul": lambda d, x: d.node("mul", [x, d.input(x.shape)], x.shape, scale=0.2),
    "relu": lambda d, x: d.node("clip", [x], x.shape, like=x, low=0.0, high=math.inf),
    "tanh": lambda d, x: d.node("tanh", [x], x.shape, scale=1 / 128),
    "softmax": lambda d, x: d.softmax(x),
    "transpose": lambda d, x: d.node(
        "transpose", [x], (1, x.shape[2], x.shape[1], x.shape[3]), like=x, perm=(0, 2, 1, 3)
    ),
    "channels_first": lambda d, x: d.node(
        "transpose", [x], (1, x.shape[3], x.shape[1], x.shape[2]), like=x, perm=(0, 3, 1, 2)
    ),
    "mean": lambda d, x: d.node("reduce_mean", [x], (1, 1, 1, x.shape[3]), like=x, axes=(1, 2), keep=True),
    "norm": lambda d, x: d.node("layer_norm", [x], x.shape, scale=0.03, axis=3, epsilon=1e-5),
    "gelu": lambda d, x: d.node("gelu", [x], x.shape, scale=_SCALE / 2, tanh=False),
}
#: Operator kinds of calibration networks.
KINDS = ("conv", "depthwise", "dense", "max_pool", "avg_pool", "matmul", "attention", *_PLAIN)
#: Relative frequencies of networks of a single operator.
_SINGLE = {
    "conv": 12,
    "depthwise": 4,
    "dense": 3,
    "max_pool": 1,
    "avg_pool": 1,
    "add": 1,
    "mul": 1,
    "tanh": 1,
    "softmax": 2,
    "matmul": 3,
    "transpose": 1,
    "channels_first": 1,
    "mean": 1,
    "norm": 1,
}
_CHAINS = (
    ("conv", "relu"),
    ("conv", "residual"),
    ("conv", "relu", "conv"),
    ("conv", "depthwise", "conv"),
    ("depthwise", "conv"),
    ("conv", "conv", "conv"),
    ("dense", "dense"),
    ("dense", "tanh", "dense"),
    ("conv", "max_pool"),
    ("conv", "tanh"),
    ("conv", "depthwise", "conv", "residual"),
    ("conv", "mean", "dense"),
    ("dense", "softmax"),
    ("conv", "avg_pool", "dense"),
    ("conv", "relu", "conv", "residual"),
    ("depthwise", "conv", "depthwise", "conv"),
    ("dense", "norm"),
    ("add", "conv"),
    ("dense", "dense", "dense", "dense"),
    ("conv", "relu", "conv", "conv", "conv"),
)


def singles(n: int, rng: random.Random) -> Iterator[CalibrationNetwork]:
    """Yield an endless sequence of networks with a single operator, for a machine with n lanes."""
    kinds, weights = list(_SINGLE), list(_SINGLE.values())
    while True:
        yield _draw(n, rng, (rng.choices(kinds, weights)[0],))


def chains(n: int, rng: random.Random) -> Iterator[CalibrationNetwork]:
    """Yield an endless sequence of networks that are short chains, for a machine with n lanes."""
    while True:
        yield _draw(n, rng, rng.choice(_CHAINS))


#: Operators of transformers and single rows of deep dense layers, with their relative frequencies.
_TRANSFORMER_PARTS = {
    ("dense",): 8,
    ("attention",): 3,
    ("norm",): 2,
    ("softmax",): 2,
    ("gelu",): 1,
    ("dense", "gelu", "dense"): 2,
    ("norm", "dense"): 1,
    ("dense", "residual", "norm"): 1,
}
_TOKENS = (1, 1, 1, 2, 4, 8, 12, 16, 24, 32, 49, 64)
_WIDTHS = (48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)


def transformers(n: int, rng: random.Random) -> Iterator[CalibrationNetwork]:
    """Yield an endless sequence of parts of transformers and of deep dense layers, for a machine with n lanes."""
    parts, weights = list(_TRANSFORMER_PARTS), list(_TRANSFORMER_PARTS.values())
    while True:
        kinds, tokens, width = rng.choices(parts, weights)[0], rng.choice(_TOKENS), rng.choice(_WIDTHS)
        ops = tuple(_transformer_op(kind, rng, width) for kind in kinds)
        point = CalibrationNetwork((tokens, 1, width), ops)
        if _cost(n, point) <= _MAX_CYCLES:
            yield point


def _transformer_op(kind: str, rng: random.Random, width: int) -> CalibrationOp:
    if kind == "attention":
        return CalibrationOp(kind, groups=width // rng.choice((16, 16, 32)))
    return CalibrationOp(kind, rng.choice(_WIDTHS) if kind == "dense" else 0)


#: Share of the layers with weights whose weights have another format than int8.
_FORMAT_SHARE = 0.25


def with_weight_formats(network: CalibrationNetwork, rng: random.Random) -> CalibrationNetwork:
    """Return a network in which the weights of some layers have other formats than int8."""
    formats = [name for name in WEIGHT_FORMATS if name]
    ops = (
        replace(op, weights=rng.choice(formats))
        if op.kind in ("conv", "dense") and rng.random() < _FORMAT_SHARE
        else op
        for op in network.ops
    )
    return replace(network, ops=tuple(ops))


def _draw(n: int, rng: random.Random, kinds: tuple[str, ...]) -> CalibrationNetwork:
    """Draw a network with the given operator kinds that is small enough to simulate."""
    for _ in range(_MAX_ATTEMPTS):
        side, c = rng.choice((1, 2, 4, 6, 8, 12, 16, 24, 32)), _channels(n, rng)
        if len(kinds) > 1 and all(kind == "dense" for kind in kinds) and rng.random() < _SINGLE_ROW_FRACTION:
            side = 1
        wide = side if rng.random() < 0.6 else rng.choice((1, 3, 8, 10, 16, 31))
        ops, now = [], c
        for kind in kinds:
            op = _op(n, rng, kind, now, ops, c)
            now = op.size or now
            ops.append(op)
        point = CalibrationNetwork((side, wide, c), tuple(ops))
        if _cost(n, point) <= _MAX_CYCLES and ("mean" not in kinds[:1] or side * wide > 1):
            return point
    raise AssertionError("most draws are small enough")


def _op(
    n: int, rng: random.Random, kind: str, c: int, before: list[CalibrationOp], first: int
) -> CalibrationOp:
    strided = 2 if rng.random() < 0.2 else 1
    if kind == "conv":
        groups = 2 if rng.random() < 0.1 and c % 2 == 0 and not before else 1
        size = _channels(n, rng)
        return CalibrationOp(kind, size + size % groups, rng.choice(_WINDOWS), strided, groups)
    if kind == "depthwise":
        return CalibrationOp(kind, 0, min(rng.choice((3, 3, 5)), n), strided)  # a row of taps fits the array
    if kind in ("dense", "matmul"):
        return CalibrationOp(kind, _channels(n, rng))
    if kind in ("max_pool", "avg_pool"):
        window = rng.choice((2, 2, 3))
        return CalibrationOp(kind, 0, window, min(window, 2))
    return CalibrationOp(kind)


def _channels(n: int, rng: random.Random) -> int:
    """Draw a channel count: mostly a small multiple of n, sometimes close to such a multiple."""
    if rng.random() < 0.15:
        return rng.choice((1, 3, n // 2, 10))
    blocks = rng.choice((1, 1, 2, 2, 3, 4, 6, 8, 12, 16))
    return max(1, blocks * n + rng.choice((0, 0, 0, -1, 1, n // 2)))


def _cost(n: int, point: CalibrationNetwork) -> float:
    """Estimate the cycles of the slowest operator."""
    h, w, c = point.shape
    most = h * w * -(-c // n)
    for op in point.ops:
        h, w = -(-h // op.stride), -(-w // op.stride)
        out, blocks = op.size or c, -(-c // n)
        taps = op.window**2
        cycles = (
            {"norm": 10, "softmax": 6, "channels_first": 16, "transpose": 4}.get(op.kind, taps)
            * h
            * w
            * blocks
        )
        if op.kind == "attention":  # products with blocks of N rows, and a softmax of the scores of each head
            rows = max(h * w, n)
            cycles = 2 * rows * rows * blocks // n + 6 * h * w * op.groups * -(-h * w // n)
        if op.size:
            cycles = max(h * w, n) * taps * -(-(c // op.groups) // n) * -(-out // n)
            cycles = max(cycles, taps * c // op.groups * -(-out // n))
        most, c = max(most, cycles), out
    return most
