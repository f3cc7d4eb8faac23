"""Random TFLite networks with constant channels, unread channels, equal nodes and nodes without effect."""

from collections.abc import Callable

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.support.int16_networks import scale_of, shape_of
from tests.support.one_operator import options
from tests.support.tflite_models import Draft

Part = Callable[[Draft, str], str]
_SAME, _VALID = schema.Padding.SAME, schema.Padding.VALID


def _zero(d: Draft, weights: str, axis: int, share: float) -> None:
    """Make a share of the filters along an axis zero; `share` may be 1."""
    meaning = d.meaning[weights]
    zero = meaning[1] if isinstance(meaning, tuple) else 0
    chosen = d.rng.random(d.tensors[weights].shape[axis]) < share
    np.moveaxis(d.tensors[weights], axis, 0)[chosen] = zero


def _share(d: Draft) -> float:
    return float(d.rng.choice([0, 0.3, 0.7, 1], p=[0.2, 0.35, 0.35, 0.1]))


def _product(d: Draft, shape: tuple[int, ...], x: str) -> list[str]:
    """Return weights with zero filters and zero columns, and a bias or none."""
    weights, bias = d.weights(shape, 0, x)
    _zero(d, weights, 0, _share(d))
    _zero(d, weights, len(shape) - 1, float(d.rng.choice([0, 0.4])))
    if d.rng.integers(4) == 0:
        del d.tensors[bias]
        return [weights]
    if d.rng.integers(3) == 0:  # large enough to saturate
        d.tensors[bias] = d.tensors[bias] * 997
    return [weights, bias]


def _scale(d: Draft, x: str, terms: int) -> float:
    """Return a result scale for sums of products, in the range of trained networks."""
    return min(scale_of(d, x) * 0.01 * 60 * terms**0.5 * float(d.rng.uniform(0.3, 2)), 0.5)


def conv(d: Draft, x: str) -> str:
    (n, h, w, c), out = shape_of(d, x), int(d.rng.choice([1, 5, 16, 24, 40]))
    kernel, stride = int(d.rng.choice([1, 1, 3])), int(d.rng.choice([1, 1, 2]))
    same = bool(d.rng.integers(2)) or min(h, w) < kernel
    operands = [x, *_product(d, (out, kernel, kernel, c), x)]
    if len(operands) < 3:  # LiteRT's default kernels need a bias
        d.tensors[f"{operands[1]}:b"] = np.zeros(out, np.int32)
        operands.append(f"{operands[1]}:b")
    settings = options(
        "Conv2D",
        padding=_SAME if same else _VALID,
        strideH=stride,
        strideW=stride,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=int(d.rng.choice([0, 1, 1, 3])),
    )
    size = [-(-(length - (0 if same else kernel - 1)) // stride) for length in (h, w)]
    zero = int(d.rng.choice([-128, 5])) if d.dtype == "int8" else int(d.rng.choice([0, 99]))
    scale = _scale(d, x, kernel**2 * c)
    return d.op("CONV_2D", operands, (n, *size, out), settings, scale=scale, zero=zero)


def depthwise(d: Draft, x: str) -> str:
    (n, h, w, c), stride = shape_of(d, x), int(d.rng.choice([1, 2]))
    same = bool(d.rng.integers(3)) or min(h, w) < 3
    settings = options(
        "DepthwiseConv2D",
        padding=_SAME if same else _VALID,
        strideH=stride,
        strideW=stride,
        depthMultiplier=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=int(d.rng.choice([0, 1])),
    )
    size = [-(-(length - (0 if same else 2)) // stride) for length in (h, w)]
    weights, bias = d.weights((1, 3, 3, c), 3, x)
    _zero(d, weights, 3, float(d.rng.choice([0, 0, 0.3])))
    zero = -128 if d.dtype == "int8" else 0
    return d.op(
        "DEPTHWISE_CONV_2D", [x, weights, bias], (n, *size, c), settings, scale=_scale(d, x, 9), zero=zero
    )


def relu(d: Draft, x: str) -> str:
    return d.op("RELU", [x], shape_of(d, x), like=x)


def hard_swish(d: Draft, x: str) -> str:
    return d.op(
        "HARD_SWISH",
        [x],
        shape_of(d, x),
        options("HardSwish"),
        scale=scale_of(d, x) * float(d.rng.uniform(1, 2)),
    )


def pool(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    settings = options(
        "Pool2D",
        padding=_SAME,
        strideH=1,
        strideW=2,
        filterHeight=2,
        filterWidth=3,
        fusedActivationFunction=0,
    )
    kind = str(d.rng.choice(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))
    return d.op(kind, [x], (n, h, -(-w // 2), c), settings, like=x)


def pad(d: Draft, x: str) -> str:
    (n, h, w, c), more = shape_of(d, x), int(d.rng.choice([0, 0, 3]))
    by = [[0, 0], [1, 1], [0, 1], [0, more]]
    return d.op("PAD", [x, d.held(by)], (n, h + 2, w + 1, c + more), options("Pad"), like=x)


def _added(d: Draft, a: str, b: str, kind: str = "ADD") -> str:
    named = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul"}[kind]
    more = {} if kind == "MUL" else {"potScaleInt16": False}
    return d.op(kind, [a, b], shape_of(d, a), options(named, fusedActivationFunction=0, **more), scale=0.2)


def _conv_settings() -> tuple[int, object]:
    """Return the options of a convolution with strides of 1, without activation."""
    return options(
        "Conv2D",
        padding=_SAME,
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=0,
    )


def _like(d: Draft, x: str) -> str:
    """Return the result of a 1x1 convolution with as many channels as its operand."""
    n, h, w, c = shape_of(d, x)
    weights, bias = d.weights((c, 1, 1, c), 0, x)
    _zero(d, weights, 0, _share(d))
    settings = _conv_settings()
    return d.op("CONV_2D", [x, weights, bias], (n, h, w, c), settings, scale=_scale(d, x, c))


def residual(d: Draft, x: str) -> str:
    return _added(d, x, _like(d, relu(d, x)), str(d.rng.choice(["ADD", "SUB", "MUL"])))


def both_sides(d: Draft, x: str) -> str:
    return _added(d, _like(d, x), _like(d, x))


def concatenation(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    a = _like(d, x)
    b = d.op("QUANTIZE", [_like(d, x)], (n, h, w, c), options("Quantize"), like=a)
    axis = int(d.rng.choice([1, 3, 3]))
    whole = [n, h, w, c]
    whole[axis] *= 2
    return d.op("CONCATENATION", [a, b], whole, options("Concatenation", axis=axis), like=a)


def part(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    start = int(d.rng.integers(c))
    size = int(d.rng.integers(1, c - start + 1))
    operands = [x, d.held([0, 0, 0, start]), d.held([-1, -1, -1, size])]
    return d.op("SLICE", operands, (n, h, w, size), options("Slice"), like=x)


def reshaped(d: Draft, x: str) -> str:
    """Return the tensor with half as many or twice as many channels."""
    n, h, w, c = shape_of(d, x)
    shape = (n, h, w * 2, c // 2) if c % 2 == 0 else (n, h, w // 2, c * 2) if w % 2 == 0 else (n, w, h, c)
    return d.op("RESHAPE", [x, d.held(shape)], shape, like=x)


def equal(d: Draft, x: str) -> str:
    """Return the sum of two equal functions of equal products."""
    (n, h, w, c), out = shape_of(d, x), int(d.rng.choice([3, 16]))
    weights, bias = d.weights((out, 1, 1, c), 0, x)
    settings = _conv_settings()
    a = d.op("CONV_2D", [x, weights, bias], (n, h, w, out), settings, scale=_scale(d, x, c))
    copy = f"{weights}:copy"
    d.tensors[copy], d.meaning[copy] = d.tensors[weights].copy(), d.meaning[weights]
    b = d.op("CONV_2D", [x, copy, bias], (n, h, w, out), settings, like=a)
    return _added(d, relu(d, a), relu(d, b), "MUL")


def no_effect(d: Draft, x: str) -> str:
    """Return a product with 1, a sum with 0, a conversion or a reshape that changes nothing, or two transposes."""
    (n, h, w, c), kind = shape_of(d, x), int(d.rng.integers(6))
    if kind == 0:
        return d.op("QUANTIZE", [x], (n, h, w, c), options("Quantize"), like=x)
    if kind == 1:
        wide = d.op("RESHAPE", [x, d.held([n, h * w * c])], (n, h * w * c), like=x)
        return d.op("RESHAPE", [wide, d.held([n, h, w, c])], (n, h, w, c), like=x)
    if kind == 2:
        turned = d.op("TRANSPOSE", [x, d.held([0, 3, 1, 2])], (n, c, h, w), options("Transpose"), like=x)
        return d.op("TRANSPOSE", [turned, d.held([0, 2, 3, 1])], (n, h, w, c), options("Transpose"), like=x)
    if kind == 3:
        return d.op("PAD", [x, d.held([[0, 0]] * 4)], (n, h, w, c), options("Pad"), like=x)
    other = d.constant([c] if d.rng.integers(2) else [1], scale=1.0 if kind == 4 else 0.5, zero=3)
    d.tensors[other][:] = 4 if kind == 4 else 3
    name = "MUL" if kind == 4 else "ADD"
    more = {} if kind == 4 else {"potScaleInt16": False}
    settings = options(name.title(), fusedActivationFunction=0, **more)
    return d.op(name, [x, other], (n, h, w, c), settings, like=x)


PARTS: tuple[Part, ...] = (
    conv,
    conv,
    conv,
    depthwise,
    depthwise,
    relu,
    hard_swish,
    pool,
    pad,
    residual,
    both_sides,
    concatenation,
    part,
    reshaped,
    equal,
    no_effect,
    no_effect,
)


def _flat(d: Draft, x: str) -> str:
    """Return a dense layer of the flattened tensor, or of its mean over pixels."""
    n, h, w, c = shape_of(d, x)
    if d.rng.integers(2):
        rows = d.op("RESHAPE", [x, d.held([n, h * w * c])], (n, h * w * c), like=x)
    else:
        rows = d.op("MEAN", [x, d.held([1, 2])], (n, c), options("Reducer", keepDims=False), like=x)
    count, out = shape_of(d, rows)[1], int(d.rng.choice([2, 10]))
    settings = options("FullyConnected", fusedActivationFunction=0, weightsFormat=0, keepNumDims=False)
    operands = [rows, *_product(d, (out, count), rows)]
    return d.op("FULLY_CONNECTED", operands, (n, out), settings, scale=_scale(d, rows, count))


def redundant_network(rng: np.random.Generator, length: int, dtype: str = "int8") -> Draft:
    """Return a network of random parts in sequence; some intermediate results are outputs as well."""
    d = Draft(rng, dtype)
    name = d.input((1, *(int(size) for size in rng.integers(3, 8, 2)), int(rng.choice([1, 3, 8, 16]))))
    made = []
    for number in rng.integers(len(PARTS), size=length):
        name = PARTS[number](d, name)
        made.append(name)
    last = _flat(d, name)
    more = [made[int(rng.integers(len(made)))]] if rng.integers(3) == 0 else []
    d.outputs = [last, *more]
    return d
