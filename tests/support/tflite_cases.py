"""TFLite operators with random shapes and quantizations, each as a function that adds the operator to a draft."""

from collections.abc import Callable

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.support.one_operator import options
from tests.support.tflite_models import Draft, Shape

Case = Callable[[Draft], None]


def shape_of(d: Draft, rank: int, most: int = 7) -> Shape:
    """Return a random shape."""
    return tuple(int(size) for size in d.rng.integers(1, most + 1, rank))


def some(d: Draft, rank: int) -> int:
    """Return a random axis, counted from the front or from the back."""
    return int(d.rng.integers(-rank, rank))


def concatenation(d: Draft) -> None:
    shape, axis, count = shape_of(d, 4), some(d, 4), int(d.rng.integers(2, 5))
    parts, total, same = [], 0, d.dtype != "uint8"
    for i in range(count):
        part = list(shape)
        part[axis] = int(d.rng.integers(1, 9))
        total += part[axis]
        parts.append(d.input(part, like=parts[0] if same and i else None))
    whole = list(shape)
    whole[axis] = total
    d.op("CONCATENATION", parts, whole, options("Concatenation", axis=axis), like=parts[0] if same else None)


def leaky_relu(d: Draft) -> None:
    x = d.input(shape_of(d, 4))
    alpha = float(np.float32(d.rng.choice([0.01, 0.1, 0.2, 0.5, -0.3, 1.5])))
    d.op("LEAKY_RELU", [x], d.tensors[x][0], options("LeakyRelu", alpha=alpha))


def prelu(d: Draft) -> None:
    shape = shape_of(d, 4, 9)
    slope = d.constant([1, 1, shape[3]] if d.rng.integers(3) else [1, 1, 1])
    d.op("PRELU", [d.input(shape), slope], shape)


def gelu(d: Draft) -> None:
    x = d.input(shape_of(d, 3))
    d.op("GELU", [x], d.tensors[x][0], options("Gelu", approximate=bool(d.rng.integers(2))))


def function(kind: str, scale: float | None = None, zero: int | None = None, low: bool = False) -> Case:
    """Return a case of an elementwise function with a fixed output quantization; `low` requires non-negative inputs."""

    def case(d: Draft) -> None:
        least, d.positive = np.iinfo(d.dtype).min if d.dtype != "float32" else 0, low
        x = d.input(shape_of(d, 3, 9), zero=least if low else None)
        made = 2.0**-15 if d.dtype == "int16" and zero is not None else scale
        d.op(kind, [x], d.tensors[x][0], scale=made, zero=None if zero is None else least + zero)

    return case


def divided(d: Draft) -> None:
    d.positive = True
    x, shape = d.input([3, 5, 7]), (3, 5, 7)
    divisor = d.constant([(7,), (), shape][int(d.rng.integers(3))])
    d.op("DIV", [x, divisor], shape, options("Div", fusedActivationFunction=0))


def squared_difference(d: Draft) -> None:
    shape = shape_of(d, 3, 9)
    d.op("SQUARED_DIFFERENCE", [d.input(shape), d.input(shape)], shape)


def power(d: Draft) -> None:
    d.positive = True
    exponent = d.constant(())
    d.tensors[exponent] = np.array(d.rng.choice([0.5, 2, 3, -1]), np.float32)
    x = d.input(shape_of(d, 3, 9))
    d.op("POW", [x, exponent], d.tensors[x][0])


def binary(kind: str) -> Case:
    def case(d: Draft) -> None:
        shape, pick = shape_of(d, 4, 9), int(d.rng.integers(4))
        a, meaning = d.input(shape), {}
        other = [shape, shape, shape[3:], ()][pick]
        b = d.input(other) if pick == 0 else d.constant(other)
        if kind == "MUL" and d.meaning:
            (first, _), (second, _) = d.meaning[a], d.meaning[b]  # type: ignore[misc]
            meaning = {"scale": first * second * d.rng.uniform(20, 120)}
        settings = {} if kind == "MUL" else {"potScaleInt16": False}
        activation = int(d.rng.choice([0, 0, 1, 3]))
        d.op(
            kind,
            [a, b],
            shape,
            options(kind.capitalize(), fusedActivationFunction=activation, **settings),
            **meaning,
        )

    return case


def extreme(kind: str) -> Case:
    def case(d: Draft) -> None:
        shape, pick = shape_of(d, 4, 9), int(d.rng.integers(5))
        other = [shape, shape, shape[3:], (), (*shape[:2], 1, shape[3])][pick]
        a = d.input(shape)
        b = d.constant(other, like=a) if pick in (1, 3) else d.input(other, like=a)
        operands = [a, b] if d.rng.integers(2) else [b, a]
        d.op(kind, operands, shape, options("MaximumMinimum"), like=a)

    return case


def comparison(kind: str) -> Case:
    def case(d: Draft) -> None:
        shape, pick = shape_of(d, 4, 9), int(d.rng.integers(4))
        a = d.input(shape)
        b = d.input([shape, shape[3:], (*shape[:3], 1), (*shape[:2], 1, shape[3])][pick], like=a)
        operands = [a, b] if d.rng.integers(2) else [b, a]
        settings = options("".join(word.capitalize() for word in kind.split("_")))
        d.op(kind, operands, shape, settings, dtype="bool")

    return case


def selection(d: Draft) -> None:
    shape = shape_of(d, 4, 9)
    a = d.input(shape)
    b = d.input(shape, like=a)
    less = d.op("LESS", [a, b], shape, options("Less"), dtype="bool")
    differs = d.op("NOT_EQUAL", [a, b], shape, options("NotEqual"), dtype="bool")
    both = d.op("LOGICAL_AND", [less, differs], shape, options("LogicalAnd"), dtype="bool")
    d.then(d.op("SELECT_V2", [both, a, b], shape, like=a))


def arg_extreme(kind: str) -> Case:
    def case(d: Draft) -> None:
        shape = shape_of(d, 4, 9)
        axis = int(d.rng.integers(4))
        settings = options("ArgMax" if kind == "ARG_MAX" else "ArgMin", outputType=2)
        d.op(
            kind, [d.input(shape), d.held(axis)], (*shape[:axis], *shape[axis + 1 :]), settings, dtype="int32"
        )

    return case


def batch_matmul(d: Draft) -> None:
    m, k, n = (int(size) for size in d.rng.integers(1, 20, 3))
    lead = shape_of(d, int(d.rng.integers(0, 3)), 4)
    adj_x, adj_y = bool(d.rng.integers(2)), bool(d.rng.integers(2))
    a = d.input((*lead, *((k, m) if adj_x else (m, k))))
    right = (*(lead if d.rng.integers(2) else ()), *((n, k) if adj_y else (k, n)))
    held = bool(d.rng.integers(2))
    b = d.constant(right) if held else d.input(right)
    scale = None
    if d.meaning:
        (first, _), (second, _) = d.meaning[a], d.meaning[b]  # type: ignore[misc]
        scale = first * second * k**0.5 * 60
    d.op(
        "BATCH_MATMUL",
        [a, b],
        (*lead, m, n),
        options("BatchMatMul", adjX=adj_x, adjY=adj_y, asymmetricQuantizeInputs=False),
        scale=scale,
    )


def pad(kind: str) -> Case:
    def case(d: Draft) -> None:
        shape = shape_of(d, 4, 8)
        edges = d.rng.integers(0, 4, (4, 2)) * d.rng.integers(0, 2, (4, 1))
        x = d.input(shape)
        value = [d.constant((), like=x)] if kind == "PADV2" else []
        made = [size + int(pair.sum()) for size, pair in zip(shape, edges, strict=True)]
        d.op(kind, [x, d.held(edges), *value], made, like=x)

    return case


def mirror_pad(d: Draft) -> None:
    mode = int(d.rng.integers(2))
    shape = tuple(int(size) for size in d.rng.integers(2, 7, 4))
    edges = np.array([d.rng.integers(0, size - 1 + mode, 2, endpoint=True) for size in shape])
    edges *= d.rng.integers(0, 2, (4, 1))
    edges[1, 0] = 1
    x = d.input(shape)
    made = [size + int(pair.sum()) for size, pair in zip(shape, edges, strict=True)]
    d.op("MIRROR_PAD", [x, d.held(edges)], made, options("MirrorPad", mode=mode), like=x)


def transpose(d: Draft) -> None:
    rank = int(d.rng.integers(2, 6))
    shape, perm = shape_of(d, rank), d.rng.permutation(rank)
    x = d.input(shape)
    d.op("TRANSPOSE", [x, d.held(perm)], [shape[i] for i in perm], options("Transpose"), like=x)


def part(d: Draft) -> None:
    shape = shape_of(d, 4, 9)
    starts = [int(d.rng.integers(size)) for size in shape]
    sizes = [int(d.rng.integers(1, size - start + 1)) for size, start in zip(shape, starts, strict=True)]
    given = list(sizes)
    if sizes[2] == shape[2] - starts[2]:
        given[2] = -1
    x = d.input(shape)
    d.op("SLICE", [x, d.held(starts), d.held(given)], sizes, options("Slice"), like=x)


def strided_slice(d: Draft) -> None:
    """Add a strided slice with all masks; repeat the draw until the result is not empty."""
    shape = tuple(int(size) for size in d.rng.integers(2, 9, 4))
    while True:
        begins, ends = (d.rng.integers(-9, 10, 4) for _ in range(2))
        steps = d.rng.choice([-2, -1, 1, 1, 2, 3], 4)
        masks = {name: int(d.rng.integers(16)) for name in ("beginMask", "endMask")}
        shrink = int(d.rng.choice([0, 0, 1, 2, 8]))
        index = []
        for i, (b, e, s) in enumerate(zip(begins, ends, steps, strict=True)):
            if shrink >> i & 1:
                index.append(int(b) % shape[i])
                begins[i], ends[i], steps[i] = index[-1], index[-1] + 1, 1
                masks = {name: mask & ~(1 << i) for name, mask in masks.items()}
            else:
                first, last = (
                    None if masks[m] >> i & 1 else int(v) for m, v in zip(masks, (b, e), strict=True)
                )
                index.append(slice(first, last, int(s)))
        made = np.zeros(shape)[tuple(index)].shape
        if 0 not in made:
            break
    x = d.input(shape)
    settings = options(
        "StridedSlice", **masks, ellipsisMask=0, newAxisMask=0, shrinkAxisMask=shrink, offset=False
    )
    d.op("STRIDED_SLICE", [x, d.held(begins), d.held(ends), d.held(steps)], made, settings, like=x)


def strided_ellipsis(d: Draft) -> None:
    """Add x[1:3, ..., new, ::2]; LiteRT does not support an ellipsis that covers no dimensions."""
    shape = (4, *shape_of(d, int(d.rng.integers(1, 3)), 4), 5)
    x = d.input(shape)
    settings = options(
        "StridedSlice", beginMask=8, endMask=8, ellipsisMask=2, newAxisMask=4, shrinkAxisMask=0, offset=False
    )
    numbers = [d.held(values) for values in ([1, 0, 0, 0], [3, 0, 0, 0], [1, 1, 1, 2])]
    d.op("STRIDED_SLICE", [x, *numbers], (2, *shape[1:-1], 1, 3), settings, like=x)


def split(d: Draft) -> None:
    shape, axis, count = list(shape_of(d, 4)), some(d, 4), int(d.rng.integers(1, 5))
    part = list(shape)
    shape[axis] *= count
    x = d.input(shape)
    d.ops("SPLIT", [d.held(axis), x], [part] * count, options("Split", numSplits=count), like=x)


def split_v(d: Draft) -> None:
    shape, axis = list(shape_of(d, 4)), some(d, 4)
    sizes = [int(size) for size in d.rng.integers(1, 6, int(d.rng.integers(1, 5)))]
    shape[axis] = sum(sizes)
    given = list(sizes)
    if d.rng.integers(2):
        given[int(d.rng.integers(len(given)))] = -1
    x = d.input(shape)
    made = [[size if i == axis % 4 else other for i, other in enumerate(shape)] for size in sizes]
    d.ops("SPLIT_V", [x, d.held(given), d.held(axis)], made, options("SplitV", numSplits=len(sizes)), like=x)


def pack(d: Draft) -> None:
    rank = int(d.rng.integers(1, 4))
    shape, axis, count = shape_of(d, rank), some(d, rank + 1), int(d.rng.integers(1, 5))
    parts = [d.input(shape)]
    parts += [d.input(shape, like=parts[0]) for _ in range(count - 1)]
    made = list(shape)
    made.insert(axis % (rank + 1), count)
    d.op("PACK", parts, made, options("Pack", axis=axis, valuesCount=count), like=parts[0])


def unpack(d: Draft) -> None:
    rank = int(d.rng.integers(2, 5))
    shape, axis = shape_of(d, rank, 5), some(d, rank)
    rest = [size for i, size in enumerate(shape) if i != axis % rank]
    x, count = d.input(shape), shape[axis]
    d.ops("UNPACK", [x], [rest] * count, options("Unpack", axis=axis, num=count), like=x)


def gather(d: Draft) -> None:
    shape, axis = shape_of(d, 3, 9), some(d, 3)
    indices = d.rng.integers(0, shape[axis], shape_of(d, int(d.rng.integers(0, 3)), 4))
    x = d.input(shape)
    made = (*shape[: axis % 3], *indices.shape, *shape[axis % 3 + 1 :])
    d.op("GATHER", [x, d.held(indices)], made, options("Gather", axis=axis, batchDims=0), like=x)


def resize(d: Draft) -> None:
    shape, size = shape_of(d, 4, 9), [int(v) for v in d.rng.integers(1, 20, 2)]
    if d.rng.integers(2):
        size = [shape[1] * 2, shape[2] * 2]
    mode = int(d.rng.integers(3))
    x = d.input(shape)
    settings = options("ResizeNearestNeighbor", alignCorners=mode == 1, halfPixelCenters=mode == 2)
    d.op("RESIZE_NEAREST_NEIGHBOR", [x, d.held(size)], (shape[0], *size, shape[3]), settings, like=x)


def bilinear(d: Draft) -> None:
    """Add a bilinear resizing, of each dimension by a power of two, by an integer, or to any size."""
    (n, h, w, channels), mode = shape_of(d, 4, 9), int(d.rng.integers(3))
    sizes = []
    for total in (h, w):
        factor, divisor, other = (int(d.rng.integers(low, high)) for low, high in ((0, 4), (1, 4), (1, 20)))
        larger = ((total - 1) << factor) + 1 if mode == 1 else total << factor
        sizes.append((larger, max(total // divisor, 1), other)[d.rng.integers(3)])
    given = options("ResizeBilinear", alignCorners=mode == 1, halfPixelCenters=mode == 2)
    x = d.input((n, h, w, channels))
    d.op("RESIZE_BILINEAR", [x, d.held(sizes)], (n, *sizes, channels), given, like=x)


def transpose_conv(d: Draft) -> None:
    """Add a transposed convolution without gaps, since XNNPACK rounds pixels that no input reaches differently."""
    _, h, w, channels = shape_of(d, 4, 6)
    (sy, sx), same = (int(v) for v in d.rng.integers(1, 4, 2)), bool(d.rng.integers(2))
    out, (kh, kw) = int(d.rng.integers(1, 20)), (int(v) for v in d.rng.integers((sy, sx), (5, 5)))
    size = [h * sy, w * sx] if same else [(h - 1) * sy + kh, (w - 1) * sx + kw]
    x = d.input((1, h, w, channels))
    weights, bias = d.weights((out, kh, kw, channels), 0)
    biased = bool(d.rng.integers(2))
    settings = options(
        "TransposeConv",
        padding=schema.Padding.SAME if same else schema.Padding.VALID,
        strideH=sy,
        strideW=sx,
        fusedActivationFunction=0,
    )
    if not biased:
        del d.tensors[bias]
    d.op(
        "TRANSPOSE_CONV",
        [d.held([1, *size, out]), weights, x, *([bias] if biased else [])],
        (1, *size, out),
        settings,
        scale=d.rng.uniform(0.05, 0.5),
    )


def depthwise(d: Draft) -> None:
    _, h, w, channels = shape_of(d, 4, 9)
    times, (kh, kw) = int(d.rng.integers(1, 4)), (int(v) for v in d.rng.integers(1, 4, 2))
    dilations = [int(v) for v in d.rng.integers(1, 3, 2)]
    strides = [1, 1] if max(dilations) > 1 else [int(v) for v in d.rng.integers(1, 3, 2)]
    x = d.input((1, h, w, channels))
    weights, bias = d.weights((1, kh, kw, channels * times), 3)
    made = [-(-h // strides[0]), -(-w // strides[1])]
    settings = options(
        "DepthwiseConv2D",
        padding=schema.Padding.SAME,
        strideH=strides[0],
        strideW=strides[1],
        depthMultiplier=times,
        dilationHFactor=dilations[0],
        dilationWFactor=dilations[1],
        fusedActivationFunction=0,
    )
    d.op("DEPTHWISE_CONV_2D", [x, weights, bias], (1, *made, channels * times), settings, scale=0.3)


def convolution(d: Draft) -> None:
    n, h, w, channels = shape_of(d, 4, 9)
    out, (kh, kw) = int(d.rng.integers(1, 20)), (int(v) for v in d.rng.integers(1, 4, 2))
    sy, sx = (int(v) for v in d.rng.integers(1, 3, 2))
    x = d.input((n, h, w, channels))
    weights, bias = d.weights((out, kh, kw, channels), 0)
    settings = options(
        "Conv2D",
        padding=schema.Padding.SAME,
        strideH=sy,
        strideW=sx,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=int(d.rng.choice([0, 1, 3])),
    )
    d.op("CONV_2D", [x, weights, bias], (n, -(-h // sy), -(-w // sx), out), settings, scale=0.4)


def dense(d: Draft) -> None:
    rows, k, n = (int(size) for size in d.rng.integers(1, 40, 3))
    x = d.input((rows, k))
    weights, bias = d.weights((n, k), 0)
    settings = options("FullyConnected", fusedActivationFunction=0, weightsFormat=0, keepNumDims=False)
    d.op("FULLY_CONNECTED", [x, weights, bias], (rows, n), settings, scale=0.4)


def pool(kind: str) -> Case:
    def case(d: Draft) -> None:
        n, h, w, channels = shape_of(d, 4, 9)
        kh, kw, sy, sx = (int(v) for v in d.rng.integers(1, 4, 4))
        settings = options(
            "Pool2D",
            padding=schema.Padding.SAME,
            strideH=sy,
            strideW=sx,
            filterHeight=kh,
            filterWidth=kw,
            fusedActivationFunction=0,
        )
        x = d.input((n, h, w, channels))
        d.op(kind, [x], (n, -(-h // sy), -(-w // sx), channels), settings, like=x)

    return case


def space_to_batch(d: Draft) -> None:
    """Add a dilated convolution in its space-to-batch form, with cropped edges."""
    blocks, outer = shape_of(d, 2, 3), shape_of(d, 2, 3)
    edges = d.rng.integers(0, 3, (2, 2))
    inner = [b * o - int(e.sum()) for b, o, e in zip(blocks, outer, edges, strict=True)]
    if min(inner) < 1:
        edges, inner = edges * 0, [b * o for b, o in zip(blocks, outer, strict=True)]
    channels = int(d.rng.integers(1, 9))
    shape = (int(d.rng.integers(1, 3)), *inner, channels)
    x, sizes, pads = d.input(shape), d.held(blocks), d.held(edges)
    batches = (shape[0] * blocks[0] * blocks[1], *outer, channels)
    middle = d.op("SPACE_TO_BATCH_ND", [x, sizes, pads], batches, like=x)
    d.op("BATCH_TO_SPACE_ND", [middle, sizes, pads], shape, like=x)


def depth_to_space(d: Draft) -> None:
    n, h, w, c = shape_of(d, 4, 4)
    block = int(d.rng.integers(2, 4))
    x = d.input((n, h, w, c * block**2))
    y = d.op(
        "DEPTH_TO_SPACE", [x], (n, h * block, w * block, c), options("DepthToSpace", blockSize=block), like=x
    )
    z = d.op("RELU", [y], (n, h * block, w * block, c), like=x)
    d.op("SPACE_TO_DEPTH", [z], (n, h, w, c * block**2), options("SpaceToDepth", blockSize=block), like=x)


def reduction(kind: str, *, same: bool = False) -> Case:
    def case(d: Draft) -> None:
        shape, keep = shape_of(d, 4, 9), bool(d.rng.integers(2))
        axes = sorted(int(axis) for axis in d.rng.choice(4, int(d.rng.integers(1, 3)), replace=False))
        kept = [1 if i in axes else size for i, size in enumerate(shape) if keep or i not in axes]
        x = d.input(shape)
        d.op(kind, [x, d.held(axes)], kept, options("Reducer", keepDims=keep), like=x if same else None)

    return case


def tile(d: Draft) -> None:
    shape, times = shape_of(d, 4, 5), d.rng.integers(1, 4, 4)
    times[1] = 2
    x = d.input(shape)
    d.op("TILE", [x, d.held(times)], [a * int(b) for a, b in zip(shape, times, strict=True)], like=x)


def broadcast_to(d: Draft) -> None:
    shape, lead = shape_of(d, 3, 5), int(d.rng.integers(2, 4))
    given = [size if d.rng.integers(2) else 1 for size in shape]
    x = d.input(given)
    d.op("BROADCAST_TO", [x, d.held((lead, *shape))], (lead, *shape), like=x)


def reverse(d: Draft) -> None:
    shape = shape_of(d, 4)
    x = d.input(shape)
    d.op("REVERSE_V2", [x, d.held([some(d, 4)])], shape, like=x)


def cumsum(d: Draft) -> None:
    shape = shape_of(d, 3, 20)
    settings = options("Cumsum", exclusive=bool(d.rng.integers(2)), reverse=bool(d.rng.integers(2)))
    d.op("CUMSUM", [d.input(shape), d.held(some(d, 3))], shape, settings)


def add_n(d: Draft) -> None:
    shape = shape_of(d, 3, 9)
    d.op("ADD_N", [d.input(shape) for _ in range(3)], shape)


def softmax(d: Draft) -> None:
    x = d.input(shape_of(d, 3, 20))
    zero = np.iinfo(d.dtype).min if d.dtype != "float32" else None
    scale = 2.0**-15 if d.dtype == "int16" else 1 / 256
    d.op("SOFTMAX", [x], d.tensors[x][0], options("Softmax", beta=1.0), scale=scale, zero=zero)


def requantize(d: Draft) -> None:
    """Add a conversion to int8 or uint8; LiteRT converts wider integers to int8 only."""
    x, bytes_ = d.input(shape_of(d, 4, 9)), ["int8", "uint8"] if d.dtype in ("int8", "uint8") else ["int8"]
    if d.dtype == "int32":
        d.meaning[x] = (float(np.float32(d.rng.uniform(1e-9, 1e-8))), 0)
    d.op("QUANTIZE", [x], d.tensors[x][0], options("Quantize"), dtype=str(d.rng.choice(bytes_)))
