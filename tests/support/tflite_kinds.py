"""Every kind of TFLite operator, as cases with random shapes, attributes and quantizations for any type of tensor.

The cases of `tests/support/tflite_cases.py` are those that run on the accelerator; this module adds all others.
"""

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.support import tflite_cases as cases
from tests.support.one_operator import options
from tests.support.tflite_cases import Case, shape_of, some
from tests.support.tflite_graphs import FileGraph, Operator
from tests.support.tflite_models import Draft, Shape

#: Fused activations: none, RELU, RELU_N1_TO_1, RELU6.
_ACTIVATIONS = (0, 0, 1, 2, 3)


def _activation(d: Draft) -> int:
    return int(d.rng.choice(_ACTIVATIONS))


def _flag(d: Draft) -> bool:
    return bool(d.rng.integers(2))


def _rank(d: Draft, least: int = 1, most: int = 4) -> int:
    return int(d.rng.integers(least, most + 1))


def _spread(d: Draft) -> tuple[Shape, Shape, Shape]:
    """Return two shapes that can be broadcast, and the common shape."""
    whole = shape_of(d, _rank(d), 6)
    parts = [tuple(1 if d.rng.integers(4) == 0 else size for size in whole) for _ in range(2)]
    if d.rng.integers(2):
        parts[1] = parts[1][int(d.rng.integers(len(whole) + 1)) :]
    if d.rng.integers(2):
        parts[0] = parts[1] = whole
    return parts[0], parts[1], np.broadcast_shapes(*parts)


def two(
    kind: str, option: str | None, *, same: bool = False, fused: bool = False, boolean: bool = False
) -> Case:
    """Return a case of an operator with two operands that are broadcast, one of which may be constant.

    Parameters
    ----------
    option : str or None
        Name of the table of options.
    same : bool
        Operands and result have the same quantization.
    fused : bool
        The options contain an activation.
    boolean : bool
        The result is of type bool.
    """

    def case(d: Draft) -> None:
        first, second, shape = _spread(d)
        a, meaning = d.input(first), {}
        like = {"like": a} if same or d.rng.integers(3) == 0 else {}
        b = d.constant(second, **like) if d.rng.integers(2) else d.input(second, **like)
        if kind == "MUL" and d.meaning:
            meaning = {"scale": d.meaning[a][0] * d.meaning[b][0] * d.rng.uniform(20, 120)}  # type: ignore[index]
        meaning = {"dtype": "bool"} if boolean else {"like": a} if same else meaning
        given = {"fusedActivationFunction": _activation(d)} if fused else {}
        if kind in ("ADD", "SUB"):
            given["potScaleInt16"] = False
        operands = [a, b] if d.rng.integers(3) else [b, a]
        d.op(kind, operands, shape, None if option is None else options(option, **given), **meaning)

    return case


def quotient(kind: str) -> Case:
    """Return a case of a division, whose divisor has no zeros if it is constant."""

    def case(d: Draft) -> None:
        first, second, shape = _spread(d)
        a = d.input(first)
        same = {"like": a} if kind == "FLOOR_DIV" else {}
        if d.rng.integers(2):
            b = d.constant(second, **same)
            numbers = d.tensors[b]
            zero = d.meaning[b][1] if b in d.meaning else 0  # type: ignore[index]
            d.tensors[b] = np.where(
                (numbers == zero) | (numbers == 0), 3 if zero != 3 else 5, numbers
            ).astype(numbers.dtype)
        else:
            d.positive = True
            b = d.input(second, **same)
        if kind == "FLOOR_DIV":
            d.op(kind, [a, b], shape, options("FloorDiv"), **same)
            return
        # LiteRT shifts small quotients by more than 31 bits; the scale of the result excludes them.
        scales = [d.meaning[each][0] for each in (a, b) if d.meaning]  # type: ignore[index]
        most = 2**15 if d.dtype == "int16" else 2**7
        scale = scales[0] / scales[1] / d.rng.uniform(most / 2, most) if scales else None
        given = options("Div", fusedActivationFunction=int(d.rng.choice([0, 0, 0, 1, 3])))
        d.op(kind, [a, b], shape, given, scale=scale)

    return case


def one(kind: str, *, option: str | None = None, same: bool = False, scale: float | None = None) -> Case:
    """Return a case of an elementwise operator with one operand of any rank."""

    def case(d: Draft) -> None:
        shape = shape_of(d, _rank(d, 0), 9)
        x = d.input(shape)
        meaning = {"like": x} if same else {"scale": scale}
        d.op(kind, [x], shape, None if option is None else options(option), **meaning)

    return case


def logic(kind: str, count: int) -> Case:
    """Return a case of an operator on bool."""

    def case(d: Draft) -> None:
        first, second, shape = _spread(d)
        parts = [d.input(each, dtype="bool") for each in ((first, second) if count == 2 else (shape,))]
        option = options("".join(part.capitalize() for part in kind.split("_")))
        d.op(kind, parts, shape, option, dtype="bool")

    return case


def add_n(d: Draft) -> None:
    shape = shape_of(d, _rank(d), 9)
    d.op("ADD_N", [d.input(shape) for _ in range(_rank(d, 2, 5))], shape)


def power(d: Draft) -> None:
    first, second, shape = _spread(d)
    d.limit, d.positive = 9, True  # LiteRT's results beyond int32 are undefined
    a = d.input(first)
    b = d.input(second) if d.rng.integers(2) else d.constant(second)
    if d.tensors[b].__class__ is np.ndarray and d.dtype == "int32":
        d.tensors[b] = np.asarray(np.abs(d.tensors[b] % 4), np.int32)
    d.op("POW", [a, b], shape, options("Pow"))


def position(kind: str) -> Case:
    """Return a case of ARG_MAX or ARG_MIN with int32 or int64 results."""

    def case(d: Draft) -> None:
        shape = shape_of(d, _rank(d))
        axis, made = some(d, len(shape)), str(d.rng.choice(["int32", "int64"]))
        number = getattr(schema.TensorType, made.upper())
        settings = options("ArgMax" if kind == "ARG_MAX" else "ArgMin", outputType=number)
        left = [size for i, size in enumerate(shape) if i != axis % len(shape)]
        d.op(kind, [d.input(shape), d.held(axis)], left, settings, dtype=made)

    return case


def select(d: Draft) -> None:
    first, second, shape = _spread(d)
    chosen = d.input(shape if d.rng.integers(2) else shape[-1:], dtype="bool")
    a = d.input(first)
    b = d.constant(second, like=a) if d.rng.integers(2) else d.input(second, like=a)
    d.op(
        "SELECT_V2", [chosen, *([a, b] if d.rng.integers(2) else [b, a])], shape, options("SelectV2"), like=a
    )


def gather(d: Draft) -> None:
    """Add a gather with constant indices, or computed ones in range."""
    shape, axis = shape_of(d, _rank(d), 9), 0
    axis = some(d, len(shape))
    indices = d.rng.integers(0, shape[axis], shape_of(d, _rank(d, 0, 3), 4))
    made = (*shape[: axis % len(shape)], *indices.shape, *shape[axis % len(shape) + 1 :])
    x = d.input(shape)
    d.op("GATHER", [x, d.held(indices)], made, options("Gather", axis=axis, batchDims=0), like=x)


def gather_batches(d: Draft) -> None:
    """Add a gather whose indices differ from batch to batch."""
    batch, rows, columns, count = shape_of(d, 4, 6)
    x = d.input((batch, rows, columns))
    indices = d.held(d.rng.integers(0, rows, (batch, count)))
    settings = options("Gather", axis=1, batchDims=1)
    d.op("GATHER", [x, indices], (batch, count, columns), settings, like=x)


def gather_nd(d: Draft) -> None:
    shape = shape_of(d, _rank(d), 6)
    depth = _rank(d, 1, len(shape))
    lead = shape_of(d, _rank(d, 1, 2), 4)
    indices = np.stack([d.rng.integers(0, shape[i], lead) for i in range(depth)], -1)
    x = d.input(shape)
    d.op("GATHER_ND", [x, d.held(indices)], (*lead, *shape[depth:]), options("GatherNd"), like=x)


def embedding(d: Draft) -> None:
    rows, columns = shape_of(d, 2, 9)
    table = d.constant((rows, columns))
    indices = d.held(d.rng.integers(0, rows, int(d.rng.integers(1, 6))))
    d.op("EMBEDDING_LOOKUP", [indices, table], (d.tensors[indices].size, columns), like=table)
    shape, given = d.tensors[d.outputs[0]][0], options("Add", fusedActivationFunction=0, potScaleInt16=False)
    d.op("ADD", [d.outputs[0], d.input((columns,), like=table)], shape, given)
    d.then(d.outputs[-1])


def cast(d: Draft) -> None:
    shape, made = (
        shape_of(d, _rank(d, 0), 9),
        str(d.rng.choice(["int8", "uint8", "int16", "int32", "float32"])),
    )
    d.positive = made == "uint8"  # a float32 number out of range has no defined integer
    x = d.input(shape)
    d.meaning.pop(x, None)
    y = d.op("CAST", [x], shape, options("Cast"), dtype=made)
    d.meaning.pop(y, None)


def quantized_cast(d: Draft) -> None:
    """Add a cast between tensors with scales."""
    shape, made = shape_of(d, 3, 9), str(d.rng.choice(["int8", "uint8", "int16", "int32", "float32"]))
    d.positive = made == "uint8"
    d.op("CAST", [d.input(shape)], shape, options("Cast"), dtype=made)


def scaled(kind: str) -> Case:
    """Return a case of LOG_SOFTMAX or L2_NORMALIZATION, with the result's quantization that LiteRT requires."""

    def case(d: Draft) -> None:
        shape = shape_of(d, _rank(d), 12)
        low = np.iinfo(d.dtype).min if d.dtype in ("int8", "uint8") else 0
        scale, zero = (16 / 256, low + 255) if kind == "LOG_SOFTMAX" else (1 / 128, low + 128)
        given = (
            None if kind == "LOG_SOFTMAX" else options("L2Norm", fusedActivationFunction=_activation(d) % 2)
        )
        x = d.input(shape)
        d.op(kind, [x], shape, given, scale=scale, zero=zero)

    return case


def shape_query(kind: str) -> Case:
    """Return a case of SHAPE, RANK or ZEROS_LIKE, whose result is added to a second input."""

    def case(d: Draft) -> None:
        x = d.input(shape_of(d, _rank(d), 5))
        shape, rank = d.tensors[x][0], len(d.tensors[x][0])
        made = {"SHAPE": (rank,), "RANK": (), "ZEROS_LIKE": shape}[kind]
        given = options("Shape", outType=2) if kind == "SHAPE" else None
        meaning = {"like": x} if kind == "ZEROS_LIKE" else {"dtype": "int32"}
        y = d.op(kind, [x], made, given, **meaning)
        other = d.input(made, **meaning)
        d.then(d.op("MAXIMUM", [y, other], made, options("MaximumMinimum"), **meaning))

    return case


def filled(d: Draft) -> None:
    shape = shape_of(d, _rank(d), 5)
    y = d.op("FILL", [d.held(shape), d.constant(())], shape, options("Fill"), like=f"c{len(d.tensors) - 1}")
    x = d.input(shape, like=y)
    d.then(d.op("MAXIMUM", [x, y], shape, options("MaximumMinimum"), like=x))


def numbers(d: Draft) -> None:
    """Add a range of int32 or float32, whose numbers are compared with those of an input."""
    dtype = d.dtype if d.dtype in ("int32", "float32") else "int32"
    names = []
    for value in (int(d.rng.integers(-9, 9)), int(d.rng.integers(10, 20)), int(d.rng.integers(1, 4))):
        names.append(f"n{len(d.tensors)}")
        d.tensors[names[-1]] = np.array(value, dtype)
    start, limit, step = (int(d.tensors[name]) for name in names)
    made = (len(range(start, limit, step)),)
    y = d.op("RANGE", names, made, options("Range"), dtype=dtype)
    d.then(d.op("MAXIMUM", [d.input(made, dtype=dtype), y], made, options("MaximumMinimum"), dtype=dtype))


def reshape(kind: str) -> Case:
    """Return a case of RESHAPE, SQUEEZE or EXPAND_DIMS."""

    def case(d: Draft) -> None:
        shape = list(shape_of(d, _rank(d), 5))
        if kind == "SQUEEZE":
            axes = [i for i in range(len(shape)) if _flag(d)]
            made = [size for i, size in enumerate(shape) if i not in axes]
            shape = [1 if i in axes else max(2, size) for i, size in enumerate(shape)]
            made = [size for i, size in enumerate(shape) if i not in axes]
            x = d.input(shape)
            d.op(kind, [x], made, options("Squeeze", squeezeDims=axes if _flag(d) else []), like=x)
            return
        x = d.input(shape)
        if kind == "EXPAND_DIMS":
            axis = some(d, len(shape) + 1)
            made = list(shape)
            made.insert(axis % (len(shape) + 1), 1)
            d.op(kind, [x, d.held(axis)], made, options("ExpandDims"), like=x)
            return
        made = [int(np.prod(shape[:2])), *shape[2:]]
        given = [-1, *made[1:]]
        d.op(kind, [x, d.held(given)], made, options("Reshape", newShape=given), like=x)

    return case


def depth(kind: str) -> Case:
    """Return a case of DEPTH_TO_SPACE or SPACE_TO_DEPTH alone."""

    def case(d: Draft) -> None:
        n, h, w, c = shape_of(d, 4, 4)
        block = int(d.rng.integers(1, 4))
        small, large = (n, h, w, c * block**2), (n, h * block, w * block, c)
        deep = kind == "SPACE_TO_DEPTH"
        x = d.input(large if deep else small)
        option = "SpaceToDepth" if deep else "DepthToSpace"
        d.op(kind, [x], small if deep else large, options(option, blockSize=block), like=x)

    return case


def batches(kind: str) -> Case:
    """Return a case of SPACE_TO_BATCH_ND or BATCH_TO_SPACE_ND alone, on images or on rows."""

    def case(d: Draft) -> None:
        count = _rank(d, 1, 2)
        blocks, outer = shape_of(d, count, 3), shape_of(d, count, 4)
        inner = [b * o for b, o in zip(blocks, outer, strict=True)]
        edges = [[int(d.rng.integers(0, size)), 0] for size in inner]
        for pair, size in zip(edges, inner, strict=True):
            pair[1] = int(d.rng.integers(0, size - pair[0]))
        n, c = shape_of(d, 2, 3)
        space = (n, *(size - sum(pair) for size, pair in zip(inner, edges, strict=True)), c)
        many = (n * int(np.prod(blocks)), *outer, c)
        to_batch = kind == "SPACE_TO_BATCH_ND"
        x = d.input(space if to_batch else many)
        option = options("SpaceToBatchND" if to_batch else "BatchToSpaceND")
        d.op(kind, [x, d.held(blocks), d.held(edges)], many if to_batch else space, option, like=x)

    return case


def quantize(d: Draft) -> None:
    """Add a QUANTIZE to any type."""
    x = d.input(shape_of(d, _rank(d, 0), 9))
    if d.dtype == "int32":
        d.meaning[x] = (float(np.float32(d.rng.uniform(1e-9, 1e-8))), 0)
    made = str(d.rng.choice(["int8", "uint8", "int16"]))
    y = d.op("QUANTIZE", [x], d.tensors[x][0], options("Quantize"), dtype=made)
    if _flag(d) and x in d.meaning and d.dtype != "int32":  # LiteRT moves zero points only
        d.meaning[y] = (d.meaning[x][0], d.meaning[y][1])  # type: ignore[index]


def dequantize(d: Draft) -> None:
    x = d.input(shape_of(d, _rank(d, 0), 9))
    d.op("DEQUANTIZE", [x], d.tensors[x][0], options("Dequantize"), dtype="float32")


def reduction(kind: str, *, same: bool = False) -> Case:
    """Return a case of a reduction along any axes, some of them negative or repeated."""

    def case(d: Draft) -> None:
        shape, keep = shape_of(d, _rank(d), 7), _flag(d)
        rank = len(shape)
        axes = {int(axis) for axis in d.rng.choice(rank, int(d.rng.integers(1, rank + 1)), replace=False)}
        kept = [1 if i in axes else size for i, size in enumerate(shape) if keep or i not in axes]
        given = [axis - rank if d.rng.integers(3) == 0 else axis for axis in axes]
        x = d.input(shape)
        like = x if same or d.rng.integers(3) == 0 else None
        d.op(kind, [x, d.held(given)], kept, options("Reducer", keepDims=keep), like=like)

    return case


def _window(d: Draft, size: int, kernel: int, dilation: int, stride: int, valid: bool) -> int:
    return -(-(size - (kernel - 1) * dilation * valid) // stride)


def convolution(kind: str) -> Case:
    """Return a case of CONV_2D or DEPTHWISE_CONV_2D with any padding, stride, dilation and activation."""

    def case(d: Draft) -> None:
        n, h, w, channels = shape_of(d, 4, 9)
        n, (kh, kw), valid = min(n, 2), (int(v) for v in d.rng.integers(1, 5, 2)), _flag(d)
        strides, dilations = ([int(v) for v in d.rng.integers(1, 4, 2)] for _ in range(2))
        if d.rng.integers(2):
            dilations = [1, 1]
        h, w = max(h, (kh - 1) * dilations[0] + 1), max(w, (kw - 1) * dilations[1] + 1)
        x = d.input((n, h, w, channels))
        settings = {
            "padding": schema.Padding.VALID if valid else schema.Padding.SAME,
            "strideH": strides[0],
            "strideW": strides[1],
            "dilationHFactor": dilations[0],
            "dilationWFactor": dilations[1],
            "fusedActivationFunction": _activation(d),
        }
        if kind == "CONV_2D":
            out = int(d.rng.integers(1, 20))
            weights, bias = d.weights((out, kh, kw, channels), 0)
            given = options("Conv2D", **settings)
        else:
            times = int(d.rng.integers(1, 4))
            out = channels * times
            weights, bias = d.weights((1, kh, kw, out), 3)
            given = options("DepthwiseConv2D", depthMultiplier=times, **settings)
        made = [
            _window(d, size, k, dilation, stride, valid)
            for size, k, dilation, stride in zip((h, w), (kh, kw), dilations, strides, strict=True)
        ]
        # LiteRT's default kernels read the bias of a DEPTHWISE_CONV_2D even if it has none.
        held = [bias] if kind != "CONV_2D" or d.rng.integers(4) else []
        if not held:
            del d.tensors[bias]
        d.op(kind, [x, weights, *held], (n, *made, out), given, scale=d.rng.uniform(0.05, 0.5))

    return case


def grouped(d: Draft) -> None:
    """Add a CONV_2D with several groups."""
    groups, each, out = (int(v) for v in d.rng.integers((2, 1, 1), (4, 5, 5)))
    _, h, w = shape_of(d, 3, 7)
    x = d.input((1, h, w, groups * each))
    weights, bias = d.weights((groups * out, 3, 3, each), 0)
    settings = options(
        "Conv2D",
        padding=schema.Padding.SAME,
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=_activation(d),
    )
    d.op("CONV_2D", [x, weights, bias], (1, h, w, groups * out), settings, scale=d.rng.uniform(0.1, 0.5))


def transpose_conv(d: Draft) -> None:
    """Add a transposed convolution, possibly with gaps and an activation."""
    _, h, w, channels = shape_of(d, 4, 6)
    (sy, sx), same = (int(v) for v in d.rng.integers(1, 4, 2)), _flag(d)
    out, (kh, kw) = int(d.rng.integers(1, 20)), (int(v) for v in d.rng.integers(1, 5, 2))
    size = [h * sy, w * sx] if same else [(h - 1) * sy + kh, (w - 1) * sx + kw]
    x = d.input((int(d.rng.integers(1, 3)), h, w, channels))
    weights, bias = d.weights((out, kh, kw, channels), 0)
    settings = options(
        "TransposeConv",
        padding=schema.Padding.SAME if same else schema.Padding.VALID,
        strideH=sy,
        strideW=sx,
        fusedActivationFunction=_activation(d),
    )
    held = [bias] if d.rng.integers(2) else []
    if not held:
        del d.tensors[bias]
    made = (d.tensors[x][0][0], *size, out)
    d.op("TRANSPOSE_CONV", [d.held(made), weights, x, *held], made, settings, scale=d.rng.uniform(0.05, 0.5))


def dense(d: Draft) -> None:
    """Add a dense layer on an operand of any rank."""
    lead = shape_of(d, _rank(d, 1, 3), 5)
    k, n = (int(size) for size in d.rng.integers(1, 40, 2))
    x, keep = d.input((*lead, k)), _flag(d)
    weights, bias = d.weights((n, k), 0)
    settings = options(
        "FullyConnected", fusedActivationFunction=_activation(d), weightsFormat=0, keepNumDims=keep
    )
    held = [bias] if d.rng.integers(4) else []
    if not held:
        del d.tensors[bias]
    made = (*lead, n) if keep else (int(np.prod(lead)), n)
    d.op("FULLY_CONNECTED", [x, weights, *held], made, settings, scale=d.rng.uniform(0.1, 0.6))


def pool(kind: str) -> Case:
    """Return a case of a pool with any padding and activation."""

    def case(d: Draft) -> None:
        n, h, w, channels = shape_of(d, 4, 9)
        kh, kw, sy, sx = (int(v) for v in d.rng.integers(1, 5, 4))
        valid = _flag(d)
        h, w = max(h, kh), max(w, kw)
        settings = options(
            "Pool2D",
            padding=schema.Padding.VALID if valid else schema.Padding.SAME,
            strideH=sy,
            strideW=sx,
            filterHeight=kh,
            filterWidth=kw,
            fusedActivationFunction=_activation(d),
        )
        x = d.input((n, h, w, channels))
        made = (n, _window(d, h, kh, 1, sy, valid), _window(d, w, kw, 1, sx, valid), channels)
        d.op(kind, [x], made, settings, like=x)

    return case


def concatenation(d: Draft) -> None:
    """Add a concatenation with an activation, of operands with the same quantization or with different ones."""
    shape = shape_of(d, _rank(d), 6)
    axis, parts, total, same = some(d, len(shape)), [], 0, _flag(d)
    for i in range(_rank(d, 1, 4)):
        part = list(shape)
        part[axis] = int(d.rng.integers(1, 6))
        total += part[axis]
        like = parts[0] if same and i else None
        parts.append(
            d.constant(part, like=like) if i and d.rng.integers(4) == 0 else d.input(part, like=like)
        )
    whole = list(shape)
    whole[axis] = total
    given = options("Concatenation", axis=axis, fusedActivationFunction=int(d.rng.choice([0, 0, 0, 1])))
    d.op("CONCATENATION", parts, whole, given, like=parts[0] if same else None)


def softmax(d: Draft) -> None:
    x = d.input(shape_of(d, _rank(d), 12))
    zero = np.iinfo(d.dtype).min if d.dtype in ("int8", "uint8") else 0
    beta = float(d.rng.choice([1.0, 0.5, 2.0]))
    scale = 2.0**-15 if d.dtype == "int16" else 1 / 256
    d.op("SOFTMAX", [x], d.tensors[x][0], options("Softmax", beta=beta), scale=scale, zero=zero)


def prelu(d: Draft) -> None:
    shape = shape_of(d, 4, 6)
    slope = [(1, 1, shape[3]), (1, 1, 1), shape[1:], (1, shape[2], 1)][int(d.rng.integers(4))]
    x = d.input(shape)
    d.op("PRELU", [x, d.constant(slope) if d.rng.integers(3) else d.input(slope)], shape)


def strided_new_axis(d: Draft) -> None:
    """Add x[new, 1:, -1, ::-1]."""
    shape = tuple(int(size) for size in d.rng.integers(2, 6, 3))
    x = d.input(shape)
    settings = options(
        "StridedSlice", beginMask=8, endMask=10, ellipsisMask=0, newAxisMask=1, shrinkAxisMask=4, offset=False
    )
    parts = [d.held(values) for values in ([0, 1, -1, 0], [1, 0, 0, 0], [1, 1, 1, -1])]
    d.op("STRIDED_SLICE", [x, *parts], (1, shape[0] - 1, shape[2]), settings, like=x)


def strided_offset(d: Draft) -> None:
    """Add a slice whose ends are relative to its beginnings."""
    shape = tuple(int(size) for size in d.rng.integers(3, 7, 3))
    x = d.input(shape)
    begins = [int(d.rng.integers(0, size - 1)) for size in shape]
    sizes = [int(d.rng.integers(1, size - begin + 1)) for size, begin in zip(shape, begins, strict=True)]
    masks = dict.fromkeys(("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask"), 0)
    parts = [d.held(values) for values in (begins, sizes, [1, 1, 1])]
    d.op("STRIDED_SLICE", [x, *parts], sizes, options("StridedSlice", **masks, offset=True), like=x)


def transpose(d: Draft) -> None:
    rank = _rank(d, 1, 6)
    shape, perm = shape_of(d, rank, 4), d.rng.permutation(rank)
    x = d.input(shape)
    d.op("TRANSPOSE", [x, d.held(perm)], [shape[i] for i in perm], options("Transpose"), like=x)


def reverse(d: Draft) -> None:
    shape = shape_of(d, _rank(d))
    x, first = d.input(shape), int(d.rng.integers(len(shape)))
    axes = list(range(first, int(d.rng.integers(first, len(shape))) + 1))
    d.op("REVERSE_V2", [x, d.held(axes)], shape, options("ReverseV2"), like=x)


def branches(d: Draft) -> None:
    """Add an IF on a condition that is an input."""
    shape = shape_of(d, 2, 6)
    x, p = d.input(shape), d.input((), dtype="bool")
    y = d.op("IF", [p, x], shape, options("If", thenSubgraphIndex=1, elseSubgraphIndex=2), like=x)
    meaning = {"a": d.meaning[x], "b": d.meaning[y]} if x in d.meaning else {}
    axes = np.array([0], np.int32)
    for kind, extra, given in (
        ("REVERSE_V2", {"axes": axes}, options("ReverseV2")),
        ("RESHAPE", {"axes": np.array(shape, np.int32)}, options("Reshape", newShape=list(shape))),
    ):
        tensors = {"a": (shape, d.dtype), **extra, "b": (shape, d.dtype)}
        operator = Operator(kind, ["a", "axes"], ["b"], given)
        d.subgraphs.append(FileGraph(tensors, [operator], ["a"], ["b"], meaning))


def repeated(d: Draft) -> None:
    """Add a WHILE that reverses an operand as often as an input says."""
    shape, number, truth = shape_of(d, 2, 6), ((), "int32"), ((), "bool")
    x, d.limit = d.input(shape), 5 if d.dtype == "int32" else None
    count = np.array(int(d.rng.integers(0, 4)), np.int32)
    d.tensors["i"], d.tensors["j"] = count, number
    y = d.op("WHILE", ["i", x], shape, options("While", condSubgraphIndex=1, bodySubgraphIndex=2), like=x)
    d.operators[-1].outputs = ["j", y]
    a, b = (shape, d.dtype), (shape, d.dtype)
    meaning = {"a": d.meaning[x], "b": d.meaning[y]} if x in d.meaning else {}
    four = np.array(4, np.int32)
    d.subgraphs = [
        FileGraph(
            {"i": number, "a": a, "four": four, "go": truth},
            [Operator("LESS", ["i", "four"], ["go"], options("Less"))],
            ["i", "a"],
            ["go"],
            meaning,
        ),
        FileGraph(
            {
                "i": number,
                "a": a,
                "one": np.array(1, np.int32),
                "k": number,
                "axes": np.array([1], np.int32),
                "b": b,
            },
            [
                Operator("ADD", ["i", "one"], ["k"], options("Add")),
                Operator("REVERSE_V2", ["a", "axes"], ["b"], options("ReverseV2")),
            ],
            ["i", "a"],
            ["k", "b"],
            meaning,
        ),
    ]


def variable(d: Draft) -> None:
    """Add a resource variable that is initialized, read, and assigned."""
    shape = shape_of(d, 2, 6)
    x = d.input(shape)
    before = d._new("before", shape, like=x)
    d.tensors["h"] = ((), "resource")
    start = {"h": ((), "resource"), "c": d.values(x)}
    handle = Operator("VAR_HANDLE", [], ["h"], options("VarHandle", container="", sharedName="v"))
    assign = options("AssignVariable")
    meaning = {"c": d.meaning[x]} if x in d.meaning else {}
    d.subgraphs = [
        FileGraph(start, [handle, Operator("ASSIGN_VARIABLE", ["h", "c"], [], assign)], [], [], meaning)
    ]
    d.operators = [
        Operator("CALL_ONCE", [], [], options("CallOnce", initSubgraphIndex=1)),
        handle,
        Operator("READ_VARIABLE", ["h"], [before], options("ReadVariable")),
        Operator("ASSIGN_VARIABLE", ["h", x], [], assign),
    ]
    d.op("MAXIMUM", [before, x], shape, options("MaximumMinimum"), like=x)


#: Cases of each kind of operator.
KINDS: dict[str, tuple[Case, ...]] = {
    **{kind: (one(kind),) for kind in ("ABS", "ELU", "HARD_SWISH", "LOG", "SQRT", "RSQRT", "EXP")},
    **{kind: (one(kind),) for kind in ("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1")},
    **{kind: (one(kind),) for kind in ("SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "SQUARE")},
    "LOGISTIC": (cases.function("LOGISTIC", 1 / 256, 0), one("LOGISTIC")),
    "TANH": (cases.function("TANH", 1 / 128, 128), one("TANH")),
    "NEG": (one("NEG"), one("NEG", same=True)),
    "GELU": (cases.gelu,),
    "LEAKY_RELU": (cases.leaky_relu,),
    "PRELU": (prelu,),
    "ADD": (two("ADD", "Add", fused=True),),
    "SUB": (two("SUB", "Sub", fused=True),),
    "MUL": (two("MUL", "Mul", fused=True),),
    "DIV": (quotient("DIV"),),
    "FLOOR_DIV": (quotient("FLOOR_DIV"),),
    "POW": (power,),
    "SQUARED_DIFFERENCE": (two("SQUARED_DIFFERENCE", "SquaredDifference"),),
    "MAXIMUM": (two("MAXIMUM", "MaximumMinimum", same=True), two("MAXIMUM", "MaximumMinimum")),
    "MINIMUM": (two("MINIMUM", "MaximumMinimum", same=True), two("MINIMUM", "MaximumMinimum")),
    "ADD_N": (add_n,),
    **{
        kind: (two(kind, "".join(part.capitalize() for part in kind.split("_")), boolean=True),)
        for kind in ("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL")
    },
    **{kind: (logic(kind, 2),) for kind in ("LOGICAL_AND", "LOGICAL_OR")},
    "LOGICAL_NOT": (logic("LOGICAL_NOT", 1),),
    "ARG_MAX": (position("ARG_MAX"),),
    "ARG_MIN": (position("ARG_MIN"),),
    "SELECT_V2": (select,),
    "GATHER": (gather, gather_batches),
    "GATHER_ND": (gather_nd,),
    "EMBEDDING_LOOKUP": (embedding,),
    "CAST": (cast, quantized_cast),
    "LOG_SOFTMAX": (scaled("LOG_SOFTMAX"),),
    "L2_NORMALIZATION": (scaled("L2_NORMALIZATION"),),
    "SOFTMAX": (softmax,),
    "RESIZE_BILINEAR": (cases.bilinear,),
    "RESIZE_NEAREST_NEIGHBOR": (cases.resize,),
    **{kind: (shape_query(kind),) for kind in ("SHAPE", "RANK", "ZEROS_LIKE")},
    "FILL": (filled,),
    "RANGE": (numbers,),
    **{kind: (reshape(kind),) for kind in ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")},
    **{kind: (depth(kind),) for kind in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")},
    **{kind: (batches(kind),) for kind in ("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")},
    "QUANTIZE": (quantize,),
    "DEQUANTIZE": (dequantize,),
    "SUM": (reduction("SUM"),),
    "MEAN": (reduction("MEAN"),),
    "REDUCE_MAX": (reduction("REDUCE_MAX", same=True),),
    "REDUCE_MIN": (reduction("REDUCE_MIN", same=True),),
    "CUMSUM": (cases.cumsum,),
    "CONV_2D": (convolution("CONV_2D"), grouped),
    "DEPTHWISE_CONV_2D": (convolution("DEPTHWISE_CONV_2D"),),
    "TRANSPOSE_CONV": (transpose_conv,),
    "FULLY_CONNECTED": (dense,),
    "BATCH_MATMUL": (cases.batch_matmul,),
    "AVERAGE_POOL_2D": (pool("AVERAGE_POOL_2D"),),
    "MAX_POOL_2D": (pool("MAX_POOL_2D"),),
    "CONCATENATION": (concatenation,),
    "PACK": (cases.pack,),
    "UNPACK": (cases.unpack,),
    "SPLIT": (cases.split,),
    "SPLIT_V": (cases.split_v,),
    "SLICE": (cases.part,),
    "STRIDED_SLICE": (cases.strided_slice, cases.strided_ellipsis, strided_new_axis, strided_offset),
    "TRANSPOSE": (transpose,),
    "REVERSE_V2": (reverse,),
    "TILE": (cases.tile,),
    "BROADCAST_TO": (cases.broadcast_to,),
    "PAD": (cases.pad("PAD"),),
    "PADV2": (cases.pad("PADV2"),),
    "MIRROR_PAD": (cases.mirror_pad,),
    "IF": (branches,),
    "WHILE": (repeated,),
    **dict.fromkeys(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"), (variable,)),
}
