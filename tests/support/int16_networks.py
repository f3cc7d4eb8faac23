"""Random TFLite networks with int16 activations and int8 weights."""

from collections.abc import Callable

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.support.one_operator import options
from tests.support.tflite_models import Draft

Part = Callable[[Draft, str], str]
#: Scale that LiteRT requires for int16 results of LOGISTIC, TANH and SOFTMAX.
UNIT = 2.0**-15


def shape_of(d: Draft, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor of a draft."""
    return d.tensors[name][0]


def scale_of(d: Draft, name: str) -> float:
    """Return the scale of a tensor of a draft."""
    return d.meaning[name][0]  # type: ignore[index,return-value]


def product_scale(d: Draft, x: str, terms: int) -> float:
    """Return a result scale for sums of products with weights, with which some results saturate."""
    scale = scale_of(d, x) * 0.01 * 60 * terms**0.5 * float(d.rng.uniform(0.3, 2))
    return 2.0 ** round(np.log2(scale)) if d.rng.integers(3) == 0 else scale


def weights(
    d: Draft, shape: tuple[int, ...], axis: int, x: str, *, optional: bool = True, narrow: bool = True
) -> list[str]:
    """Return weights and a bias; the bias may be absent if it is `optional`, and int32 if it may be `narrow`."""
    name, bias = d.weights(shape, axis, x)
    kind = int(d.rng.integers(5))
    if kind == 0 and optional:
        del d.tensors[bias]
        return [name]
    if kind == 1:
        d.tensors[bias] = d.tensors[bias] * 997  # beyond 16 bits
    if kind == 2 and narrow:
        d.tensors[bias] = d.tensors[bias].astype(np.int32)
    return [name, bias]


def bias_type(d: Draft, operands: list[str]) -> dict[str, int]:
    """Return the option that states an int32 bias, without which LiteRT reads every bias of int16 nodes as int64."""
    last = d.tensors[operands[-1]]
    narrow = isinstance(last, np.ndarray) and last.dtype == np.int32
    return {"quantizedBiasType": schema.TensorType.INT32} if narrow else {}


def conv(d: Draft, x: str) -> str:
    (n, h, w, c), out = shape_of(d, x), int(d.rng.integers(1, 20))
    kernel, stride = int(d.rng.choice([1, 3])), int(d.rng.choice([1, 1, 2]))
    same = bool(d.rng.integers(2)) or min(h, w) < kernel
    operands = [x, *weights(d, (out, kernel, kernel, c), 0, x, optional=False)]
    settings = options(
        "Conv2D",
        **bias_type(d, operands),
        padding=schema.Padding.SAME if same else schema.Padding.VALID,
        strideH=stride,
        strideW=stride,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=int(d.rng.choice([0, 0, 1, 3])),
    )
    size = [-(-(length - (0 if same else kernel - 1)) // stride) for length in (h, w)]
    return d.op("CONV_2D", operands, (n, *size, out), settings, scale=product_scale(d, x, kernel**2 * c))


def depthwise(d: Draft, x: str) -> str:
    (n, h, w, c), times = shape_of(d, x), int(d.rng.choice([1, 1, 2]))
    stride = int(d.rng.choice([1, 2]))
    settings = options(
        "DepthwiseConv2D",
        padding=schema.Padding.SAME,
        strideH=stride,
        strideW=stride,
        depthMultiplier=times,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=int(d.rng.choice([0, 1])),
    )
    shape = (n, -(-h // stride), -(-w // stride), c * times)
    operands = [x, *weights(d, (1, 3, 3, c * times), 3, x, narrow=False)]
    return d.op("DEPTHWISE_CONV_2D", operands, shape, settings, scale=product_scale(d, x, 9))


def transpose_conv(d: Draft, x: str) -> str:
    (n, h, w, c), out = shape_of(d, x), int(d.rng.integers(1, 9))
    if max(h, w) > 8:
        return conv(d, x)
    shape = (n, 2 * h, 2 * w, out)
    filters, *bias = weights(d, (out, 3, 3, c), 0, x)
    operands = [d.held(shape), filters, x, *bias]
    settings = options(
        "TransposeConv",
        **bias_type(d, operands) if bias else {},
        padding=schema.Padding.SAME,
        strideH=2,
        strideW=2,
        fusedActivationFunction=0,
    )
    return d.op("TRANSPOSE_CONV", operands, shape, settings, scale=product_scale(d, x, 9 * c))


def dense(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    out = int(d.rng.integers(1, 30))
    rows = d.op("RESHAPE", [x, d.held([n * h * w, c])], (n * h * w, c), like=x)
    operands = [rows, *weights(d, (out, c), 0, x)]
    settings = options(
        "FullyConnected",
        **bias_type(d, operands),
        fusedActivationFunction=int(d.rng.choice([0, 1])),
        weightsFormat=0,
        keepNumDims=False,
    )
    y = d.op("FULLY_CONNECTED", operands, (n * h * w, out), settings, scale=product_scale(d, x, c))
    return d.op("RESHAPE", [y, d.held([n, h, w, out])], (n, h, w, out), like=y)


def attention(d: Draft, x: str) -> str:
    """Add attention among pixels: two products of activations and a softmax."""
    n, h, w, c = shape_of(d, x)
    rows = d.op("RESHAPE", [x, d.held([n, h * w, c])], (n, h * w, c), like=x)
    settings = options("BatchMatMul", adjX=False, adjY=True, asymmetricQuantizeInputs=False)
    scale = scale_of(d, x) ** 2 * c**0.5 * 8000
    scores = d.op("BATCH_MATMUL", [rows, rows], (n, h * w, h * w), settings, scale=scale)
    gates = d.op("SOFTMAX", [scores], (n, h * w, h * w), options("Softmax", beta=1.0), scale=UNIT)
    settings = options("BatchMatMul", adjX=False, adjY=False, asymmetricQuantizeInputs=False)
    made = d.op("BATCH_MATMUL", [gates, rows], (n, h * w, c), settings, scale=scale_of(d, x))
    return d.op("RESHAPE", [made, d.held([n, h, w, c])], (n, h, w, c), like=made)


def binary(d: Draft, x: str) -> str:
    kind, shape = str(d.rng.choice(["ADD", "SUB", "MUL"])), shape_of(d, x)
    pick = int(d.rng.integers(4))
    other = [lambda: leaky(d, x), lambda: d.constant(shape), lambda: d.constant(shape[3:]), lambda: x][pick]()
    scale = scale_of(d, x) * float(d.rng.uniform(0.5, 3))
    settings = {"potScaleInt16": False}
    if kind == "MUL":
        scale, settings = scale_of(d, x) * scale_of(d, other) * 9000, {}
    given = options(kind.capitalize(), fusedActivationFunction=int(d.rng.choice([0, 0, 1, 3])), **settings)
    return d.op(kind, [x, other], shape, given, scale=scale)


def leaky(d: Draft, x: str) -> str:
    return d.op("LEAKY_RELU", [x], shape_of(d, x), options("LeakyRelu", alpha=0.25))


def relu(d: Draft, x: str) -> str:
    kind, like = str(d.rng.choice(["RELU", "RELU6"])), x if d.rng.integers(2) else None
    return d.op(kind, [x], shape_of(d, x), like=like)


def unit(d: Draft, x: str) -> str:
    return d.op(str(d.rng.choice(["LOGISTIC", "TANH"])), [x], shape_of(d, x), scale=UNIT)


def softmax(d: Draft, x: str) -> str:
    return d.op("SOFTMAX", [x], shape_of(d, x), options("Softmax", beta=1.0), scale=UNIT)


def absolute(d: Draft, x: str) -> str:
    return d.op("ABS", [x], shape_of(d, x))


def pool(d: Draft, x: str) -> str:
    (n, h, w, c), kind = shape_of(d, x), str(d.rng.choice(["AVERAGE_POOL_2D", "MAX_POOL_2D"]))
    stride = int(d.rng.choice([1, 2]))
    settings = options(
        "Pool2D",
        padding=schema.Padding.SAME,
        strideH=stride,
        strideW=stride,
        filterHeight=3,
        filterWidth=2,
        fusedActivationFunction=int(d.rng.choice([0, 1])),
    )
    return d.op(kind, [x], (n, -(-h // stride), -(-w // stride), c), settings, like=x)


def mean(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    kind = str(d.rng.choice(["MEAN", "REDUCE_MAX", "REDUCE_MIN"]))
    axes, shape = [([1], (n, 1, w, c)), ([1, 2], (n, 1, 1, c)), ([2], (n, h, 1, c))][int(d.rng.integers(3))]
    like = None if kind == "MEAN" else x
    return d.op(kind, [x, d.held(axes)], shape, options("Reducer", keepDims=True), like=like)


def pad(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    edges = d.held([[0, 0], [1, 0], [0, 2], [0, 0]])
    if min(h, w) > 2 and d.rng.integers(2):
        return d.op("MIRROR_PAD", [x, edges], (n, h + 1, w + 2, c), options("MirrorPad", mode=0), like=x)
    return d.op("PAD", [x, edges], (n, h + 1, w + 2, c), like=x)


def concatenation(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    y = d.op("QUANTIZE", [conv1(d, x)], shape_of(d, d.outputs[-1]), options("Quantize"), like=x)
    whole = (n, h, w, c + shape_of(d, y)[3])
    return d.op("CONCATENATION", [x, y], whole, options("Concatenation", axis=3), like=x)


def conv1(d: Draft, x: str) -> str:
    """Add a convolution with a 1x1 kernel, which keeps the image's size."""
    (n, h, w, c), out = shape_of(d, x), int(d.rng.integers(1, 9))
    operands = [x, *weights(d, (out, 1, 1, c), 0, x, optional=False)]
    settings = options(
        "Conv2D",
        **bias_type(d, operands),
        padding=schema.Padding.SAME,
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=0,
    )
    return d.op("CONV_2D", operands, (n, h, w, out), settings, scale=product_scale(d, x, c))


def quantize(d: Draft, x: str) -> str:
    """Convert to int8 and back, or to another scale."""
    shape = shape_of(d, x)
    if d.rng.integers(2):
        scale, zero = scale_of(d, x) * 256, int(d.rng.integers(-20, 20))
        x = d.op("QUANTIZE", [x], shape, options("Quantize"), dtype="int8", scale=scale, zero=zero)
    return d.op("QUANTIZE", [x], shape, options("Quantize"), dtype="int16")


def strided_slice(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    numbers = [d.held(values) for values in ([0, 0, 0, 0], [n, h, w, c], [1, 2, 1, 1])]
    masks = {"beginMask": 15, "endMask": 15, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    settings = options("StridedSlice", **masks, offset=False)
    return d.op("STRIDED_SLICE", [x, *numbers], (n, -(-h // 2), w, c), settings, like=x)


def transpose(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    return d.op("TRANSPOSE", [x, d.held([0, 2, 1, 3])], (n, w, h, c), options("Transpose"), like=x)


def extremes(d: Draft, x: str) -> str:
    """Add the maximum and the minimum of the two halves of the channels, packed."""
    n, h, w, c = shape_of(d, x)
    if c % 2:
        return x
    part = (n, h, w, c // 2)
    a, b = d.ops("SPLIT", [d.held(3), x], [part] * 2, options("Split", numSplits=2), like=x)
    most, least = (
        d.op(kind, [a, b], part, options("MaximumMinimum"), like=x) for kind in ("MAXIMUM", "MINIMUM")
    )
    both = d.op("PACK", [most, least], (n, h, w, 2, c // 2), options("Pack", axis=3, valuesCount=2), like=x)
    return d.op("RESHAPE", [both, d.held([n, h, w, c])], (n, h, w, c), like=x)


def resize(d: Draft, x: str) -> str:
    n, h, w, c = shape_of(d, x)
    size = (min(2 * h, 12), min(2 * w, 12))
    settings = options("ResizeNearestNeighbor", alignCorners=False, halfPixelCenters=False)
    return d.op("RESIZE_NEAREST_NEIGHBOR", [x, d.held(size)], (n, *size, c), settings, like=x)


PRODUCTS: tuple[Part, ...] = (conv, depthwise, transpose_conv, dense, attention)
OTHERS: tuple[Part, ...] = (
    binary,
    leaky,
    relu,
    unit,
    softmax,
    absolute,
    pool,
    mean,
    pad,
    concatenation,
    quantize,
    strided_slice,
    transpose,
    extremes,
    resize,
)


def int16_network(rng: np.random.Generator, length: int) -> Draft:
    """Return a network of random parts in sequence, half of them products; at least one part is a product."""
    draft = Draft(rng, "int16")
    name = draft.input((1, *(int(size) for size in rng.integers(2, 8, 2)), int(rng.integers(1, 17))))
    for number in range(length):
        parts = PRODUCTS if number == 0 or rng.integers(2) else OTHERS
        name = parts[int(rng.integers(len(parts)))](draft, name)
    if rng.integers(2):  # otherwise the results of all operators are outputs
        draft.then(name)
    return draft
