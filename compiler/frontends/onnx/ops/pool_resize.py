"""Conversion of ONNX pooling, reductions, CumSum and nearest-neighbor resizing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.conv import WindowSpec, as_given, as_images, flat, sizes_of, window
from compiler.frontends.onnx.ops.indexing import picked
from compiler.frontends.onnx.ops.shape import kept_order, renamed
from compiler.frontends.onnx.registry import choice, converts, integers, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    channels_last,
    check_size,
    counted_from_front,
    plain,
)
from compiler.ir.tensor import Tensor
from compiler.reference.onnx_ops import OnnxNodeSpec
from compiler.reference.onnx_ops.resize import ResizeAxis, interpolation, nearest, resized
from hw.errors import InputError, shown


@converts("MaxPool", "AveragePool", inputs=(1, 1))
def _pool(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    (given,) = inputs
    rank = len(given.shape)
    if rank == 5 and not any(node.outputs[1:]):
        return _pool_volume(emitter, node, inputs)
    if rank not in (3, 4):
        raise UnsupportedNodeError(
            f"its input must have one to three spatial dimensions, not shape {list(given.shape)}"
        )
    kernel = sizes_of(node, "kernel_shape", rank - 2, 0, 1)
    slide = flat(window(node, given.shape[2:], kernel), rank)
    mean = node.op == "AveragePool"
    if mean and math.prod(slide.kernel) > _MAX_TAPS and _is_float(given) and _counts_all(node):
        return _mean_by_products(emitter, node, inputs, kernel)
    x = emitter.movable(as_images(emitter, node, given))
    kind = emitter.arithmetic(node, x) if mean else x.kind
    more: dict[str, Any] = {"count_pads": False} if mean else {}
    pads = slide.pads
    if mean and node.int("count_include_pad", 0) and any(pads):
        # The mean includes explicit padding as zeros, but not the padding added by ceil_mode.
        floor = {**node.attributes, "ceil_mode": 0}
        own = flat(window(replace(node, attributes=floor), given.shape[2:], kernel), rank).pads
        pads = tuple(every - counted for every, counted in zip(pads, own, strict=True))
        x = _zero_padded(emitter, node, x, own) if any(own) else x
    if max(slide.dilations) > 1:
        if mean and any(pads):
            raise UnsupportedNodeError("an average with dilations over padding that is not counted")
        x, slide = _undilated(emitter, node, x, replace(slide, before=pads[:2], after=pads[2:]))
        pads = slide.pads
    made = emitter.emit(
        node,
        "avg_pool2d" if mean else "max_pool2d",
        [emitter.operand(x, x.order, kind)],
        (*x.shape[:2], *slide.outputs),
        x.order,
        kind,
        kernel=slide.kernel,
        strides=slide.strides,
        pads=pads,
        **more,
    )
    return [as_given(emitter, node, made, given)]


#: Maximum number of elements of which FUSE computes a mean.
_MAX_TAPS = 255


def _is_float(value: Value) -> bool:
    """Return True for a value that is computed in a float model."""
    return isinstance(value, DynamicValue) and not value.real and value.tensor.dtype == "float32"


def _counts_all(node: FileNode) -> bool:
    """Return True if all windows of an average pooling are complete, or padding counts as zeros."""
    padded = any(node.ints("pads") or ()) or node.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return not node.int("ceil_mode", 0) and (not padded or bool(node.int("count_include_pad", 0)))


def _mean_by_products(
    emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any], kernel: Sequence[int]
) -> Sequence[Value | None]:
    """Convert an average pooling over large windows to a depthwise convolution, whose weights are all equal."""
    channels, body = inputs[0].shape[1], BodyBuilder(node, inputs)
    check_size((channels, *kernel), _MAX_MATRIX)
    weights = body.constant(np.full((channels, 1, *kernel), 1 / math.prod(kernel)))
    keys = ("strides", "pads", "dilations", "auto_pad")
    slide = {key: node.attributes[key] for key in keys if key in node.attributes}
    return body.converted(emitter, body.add("Conv", body.given(0), weights, group=channels, **slide))


def _pool_volume(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert pooling over three dimensions to pooling of all planes, followed by pooling along the depth."""
    (x,) = inputs
    batch, channels, depth, *image = x.shape
    kernel = sizes_of(node, "kernel_shape", 3, 0, 1)
    slide = window(node, x.shape[2:], kernel)
    body = BodyBuilder(node, inputs)

    def part(first: int, last: int) -> dict[str, Any]:
        chosen = {"kernel_shape": kernel, "strides": slide.strides, "dilations": slide.dilations}
        found: dict[str, Any] = {key: [*sizes[first:last]] for key, sizes in chosen.items()}
        if "pads" in node.attributes:
            pads = sizes_of(node, "pads", 6, 0, 0)
            found["pads"] = [*pads[first:last], *pads[3 + first : 3 + last]]
        found |= {
            key: node.attributes[key]
            for key in ("auto_pad", "ceil_mode", "count_include_pad")
            if key in node.attributes
        }
        return found

    planes = body.reshaped(
        body.add("Transpose", body.given(0), perm=[0, 2, 1, 3, 4]), batch * depth, channels, *image
    )
    pooled = body.add(node.op, planes, **part(1, 3))
    rows = math.prod(slide.outputs[1:])
    split = body.add("Transpose", body.reshaped(pooled, batch, depth, channels, rows), perm=[0, 2, 1, 3])
    along = part(0, 1)
    along |= {
        key: [*sizes, 1] for key, sizes in along.items() if key in ("kernel_shape", "strides", "dilations")
    }
    if "pads" in along:
        along["pads"] = [along["pads"][0], 0, along["pads"][1], 0]
    made = body.add(node.op, split, **along)
    return body.converted(emitter, body.reshaped(made, batch, channels, *slide.outputs))


def _undilated(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, slide: WindowSpec
) -> tuple[DynamicValue, WindowSpec]:
    """Gather the elements of each dilated window in sequence; return the result and the window without dilation.

    Padding is replaced by another element of the same window, which does not change the maximum of the window.
    """
    result = slide
    for i in (0, 1):
        if slide.dilations[i] == 1:
            continue
        size, taps = x.shape[2 + i], np.arange(slide.kernel[i]) * slide.dilations[i]
        indices = np.arange(slide.outputs[i])[:, None] * slide.strides[i] + taps - slide.before[i]
        inside = (indices >= 0) & (indices < size)
        if not inside.any(1).all():
            raise UnsupportedNodeError("a window with dilations that is all padding")
        first = np.take_along_axis(indices, inside.argmax(1)[:, None], 1)
        x = picked(emitter, node, x, np.where(inside, indices, first).reshape(-1).tolist(), 2 + i)
        result = _replaced(result, i, strides=slide.kernel[i], dilations=1, before=0, after=0)
    return x, result


def _replaced(slide: WindowSpec, i: int, **sizes: int) -> WindowSpec:
    """Return a window with some fields changed along one dimension."""
    changed = {key: list(getattr(slide, key)) for key in sizes}
    for key, size in sizes.items():
        changed[key][i] = size
    return replace(slide, **{key: tuple(values) for key, values in changed.items()})


def _zero_padded(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, pads: tuple[int, ...]
) -> DynamicValue:
    """Add zero padding to images; `pads` are in the order top, left, bottom, right."""
    top, left, bottom, right = pads
    batch, channels, height, width = x.shape
    shape = (batch, channels, top + height + bottom, left + width + right)
    edges = ((0, 0), (top, bottom), (left, right), (0, 0))
    return emitter.emit(node, "pad", [x.tensor], shape, x.order, x.kind, "framed", pads=edges, value=0.0)


@converts("GlobalAveragePool", "GlobalMaxPool", inputs=(1, 1))
def _global_pool(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    if x.rank < 3:
        raise InputError(f"its input must have spatial dimensions, but has shape {list(x.shape)}")
    op = "reduce_mean" if node.op == "GlobalAveragePool" else "reduce_max"
    return [reduced(emitter, node, op, x, set(range(2, x.rank)), keep=True)]


@converts("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", inputs=(1, 2))
def _reduce(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    x = emitter.flow(x)
    axes = integers(node, "axes", given)
    if not axes and node.int("noop_with_empty_axes", 0):
        return [renamed(x, node.outputs[0])]
    reduced_axes = {counted_from_front(axis, x.rank) for axis in axes or range(x.rank)}
    op = "reduce_" + node.op[len("Reduce") :].lower()
    return [reduced(emitter, node, op, x, reduced_axes, keep=bool(node.int("keepdims", 1)))]


def reduced(
    emitter: OnnxGraphBuilder, node: FileNode, op: str, x: DynamicValue, axes: set[int], *, keep: bool
) -> DynamicValue:
    """Add a reduction over `axes`, which are in the file's order of dimensions."""
    if not axes:
        return DynamicValue(node.outputs[0], x.tensor, x.order, x.real)
    if op in ("reduce_max", "reduce_min"):
        x = emitter.movable(x)
        kind = x.kind
    else:
        kind = emitter.arithmetic(node, x)
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
    order = x.order if keep else kept_order(x.order, axes)
    tensor_axes = tuple(sorted(x.order.index(i) for i in axes))
    return emitter.emit(
        node, op, [emitter.operand(x, x.order, kind)], shape, order, kind, axes=tensor_axes, keep=keep
    )


@converts("ArgMax", "ArgMin", inputs=(1, 1))
def _index(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    axis, keep = counted_from_front(node.int("axis", 0), x.rank), bool(node.int("keepdims", 1))
    operand = emitter.operand(x, x.order, FLOAT) if x.real else x.tensor
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape) if keep or i != axis)
    order = x.order if keep else kept_order(x.order, {axis})
    how = {"axis": x.order.index(axis), "keep": keep, "last": bool(node.int("select_last_index", 0))}
    return [emitter.emit(node, node.op.lower(), [operand], shape, order, ValueType("int64"), **how)]


@converts("TopK", inputs=(1, 2))
def _top(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    x = emitter.flow(inputs[0])
    (count,) = (node.int("k", 0),) if inputs[1] is None else known(inputs[1], "k").integers()
    axis = counted_from_front(node.int("axis", -1), x.rank)
    if not 0 < count <= x.shape[axis]:
        raise UnsupportedNodeError(f"{count} of {x.shape[axis]} elements")
    operand = emitter.operand(x, x.order, FLOAT) if x.real else x.tensor
    kind = FLOAT if x.real or operand.dtype == "float32" else x.kind
    shape = tuple(count if i == axis else n for i, n in enumerate(x.shape))
    how = {"axis": x.order.index(axis), "k": count, "least": not node.int("largest", 1)}
    parts = (("top_values", kind), ("top_indices", ValueType("int64")))
    return [
        emitter.emit(node, op, [operand], shape, x.order, kind, op if index else "", index, **how)
        if name
        else None
        for index, ((op, kind), name) in enumerate(zip(parts, node.outputs, strict=False))
    ]


@converts("CumSum", inputs=(2, 2))
def _cumsum(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    x, given = emitter.flow(inputs[0]), known(inputs[1], "an axis").scalar()
    if given is None:
        raise InputError("its axis must be one number")
    axis = counted_from_front(int(given), x.rank)
    if _is_float(x) and _MAX_SUMMED < x.shape[axis] <= _MAX_SUMMED**2:
        return _cumsum_by_parts(emitter, node, x, axis)
    kind = emitter.arithmetic(node, x)
    return [
        emitter.emit(
            node,
            "cumsum",
            [emitter.operand(x, x.order, kind)],
            x.shape,
            x.order,
            kind,
            axis=x.order.index(axis),
            exclusive=bool(node.int("exclusive", 0)),
            reverse=bool(node.int("reverse", 0)),
        )
    ]


#: Maximum number of elements of which the accelerator computes cumulative sums.
_MAX_SUMMED = 2048


def _cumsum_by_parts(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, axis: int
) -> Sequence[Value | None]:
    """Convert cumulative sums of a long axis to those within parts, plus the sums of all previous parts."""
    body, last = BodyBuilder(node, [x]), [*(i for i in plain(x.rank) if i != axis), axis]
    rest, count = [x.shape[i] for i in last[:-1]], x.shape[axis]
    width = math.isqrt(count - 1) + 1
    parts = -(-count // width)
    how: dict[str, Any] = {"reverse": node.int("reverse", 0)}
    end, along = body.constant([-1], np.int64), body.constant(-1, np.int64)
    rows = body.add("Transpose", body.given(0), perm=last)
    edges = body.constant([*[0] * (2 * x.rank - 1), parts * width - count], np.int64)
    cut = body.reshaped(body.add("Pad", rows, edges), *rest, parts, width)
    inner = body.add("CumSum", cut, along, exclusive=node.int("exclusive", 0), **how)
    before = body.add("CumSum", body.add("ReduceSum", cut, end, keepdims=0), along, exclusive=1, **how)
    total = body.add("Add", inner, body.add("Unsqueeze", before, end))
    whole = body.reshaped(total, *rest, parts * width)
    bounds = [body.constant([number], np.int64) for number in (0, count, -1)]
    made = body.add("Slice", whole, *bounds)
    return body.converted(emitter, body.add("Transpose", made, perm=[last.index(i) for i in plain(x.rank)]))


#: Exclusive limit on the height and width of a resized image.
_SIZE_LIMIT = 1 << 20


@converts("Resize", "Upsample", inputs=(1, 4))
def _resize(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    if choice(node, "mode", "nearest", "nearest", "linear", "bilinear", "cubic") != "nearest":
        return _interpolated(emitter, node, inputs)
    x = emitter.movable(emitter.flow(inputs[0]))
    scales, shape = _scales_and_shape(node, x, inputs)
    if x.rank != 4 or shape[:2] != x.shape[:2]:
        raise UnsupportedNodeError(f"resizing shape {list(x.shape)} to {list(shape)}")
    if shape == x.shape:
        return [renamed(x, node.outputs[0])]
    x = emitter.in_order(x, channels_last(4))
    centers = _matching_centers(node, x.shape[2:], shape[2:], scales[2:])
    if centers is None:
        return [_gathered(emitter, node, x, shape, scales)]
    return [
        emitter.emit(
            node, "resize_nearest", [x.tensor], shape, x.order, x.kind, size=shape[2:], centers=centers
        )
    ]


#: Maximum number of elements of an image whose columns have been resized and whose rows have not.
_MAX_BETWEEN = 1 << 16
#: Maximum number of elements of the matrices that interpolate along one axis.
_MAX_MATRIX = 1 << 22


def _interpolated(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert linear or cubic interpolation to a product with a constant matrix for each axis.

    Linear interpolation of images by simple factors is a `resize_bilinear`; only this is possible for quantized values.
    """
    x, *given = inputs
    why = f"resizing by {node.text('mode', '')}"
    if not isinstance(x, DynamicValue) or not 2 <= x.rank <= 5:
        raise UnsupportedNodeError(why)
    quantized = x.quantized and x.tensor.dtype in ("int8", "uint8") and emitter.arithmetic(node, x) == x.kind
    if not quantized and (x.real or x.tensor.dtype != "float32"):
        raise UnsupportedNodeError(
            f"{why} of values that are not float32, or 8-bit integers with the quantization of the result"
        )
    arrays = [None if value is None else known(value, "a size or scale").numbers() for value in given]
    spec = OnnxNodeSpec(node.op, node.opset, node.attributes)
    matrices = interpolation(spec, [np.broadcast_to(np.float32(0), x.shape), *arrays], _MAX_MATRIX)
    if not matrices or not all(part.matrix.size for parts in matrices.values() for part in parts):
        raise UnsupportedNodeError(why)
    sizes = {axis: sum(len(part.matrix) for part in parts) for axis, parts in matrices.items()}
    check_size(tuple(sizes.get(i, n) for i, n in enumerate(x.shape)))
    if x.rank == 4 and sizes.keys() <= {2, 3} and all(len(parts) == 1 for parts in matrices.values()):
        of_axes = {axis: part.matrix for axis, (part,) in matrices.items()}
        how = _bilinear(x.shape[2:], of_axes, quantized=quantized)
        if how is not None:
            x = emitter.in_order(x, channels_last(4))
            shape = (*x.shape[:2], *how["size"])
            return [emitter.emit(node, "resize_bilinear", [x.tensor], shape, x.order, x.kind, **how)]
        if not quantized:
            return [_interpolated_image(emitter, node, x, of_axes)]
    if quantized:
        raise UnsupportedNodeError(_unsupported_quantized(why, x, matrices))
    body = BodyBuilder(node, [x])
    made = body.given(0)
    for axis, parts in sorted(matrices.items(), reverse=True):
        perm = [*(i for i in plain(x.rank) if i != axis), axis]
        rows, products = body.add("Transpose", made, perm=perm), list[str]()
        for part in parts:
            ends = part.start, part.start + part.matrix.shape[1], -1
            bounds = [body.constant([number], np.int64) for number in ends]
            given = rows if len(parts) == 1 else body.add("Slice", rows, *bounds)
            products.append(body.add("MatMul", given, body.constant(part.matrix.T)))
        rows = products[0] if len(products) == 1 else body.add("Concat", *products, axis=-1)
        made = body.add("Transpose", rows, perm=[perm.index(i) for i in plain(x.rank)])
    return body.converted(emitter, made)


#: Number of whose reciprocal all weights of a bilinear resizing of float values on the accelerator are multiples.
_FRACTIONS = 32
#: Maximum number of combinations of weights of rows and of columns, and of units of their products, on the accelerator.
_MAX_KINDS, _MAX_UNITS = 2500, 1 << 15
#: Largest error of weights that are computed in single precision.
_WEIGHT_ERROR = 1e-5


def _bilinear(
    image: tuple[int, ...], matrices: dict[int, np.ndarray], *, quantized: bool
) -> dict[str, Any] | None:
    """Return the attributes of a `resize_bilinear` with the same matrices; None if there is none, or with many weights.

    Parameters
    ----------
    image : (int, int)
        Height and width of the image.
    matrices : dict of int to (outputs, inputs) array
        Matrix of each axis (2 or 3) that is resized.
    quantized : bool
        True if any weights are permitted whose number the accelerator supports. Float values are otherwise multiplied
        by the matrices.
    """
    wanted = [matrices.get(axis, np.eye(total)) for axis, total in zip((2, 3), image, strict=True)]
    size = len(wanted[0]), len(wanted[1])
    if not quantized and any((each * _FRACTIONS % 1).any() for each in wanted):
        return None
    for corners, centers in ((False, True), (True, False), (False, False)):
        pairs = [(made - corners, total - corners) for made, total in zip(size, image, strict=True)]
        if not all(made > 0 < total for made, total in pairs):
            continue
        if quantized:
            units = [2 * made // math.gcd(made, total) for made, total in pairs]
            permitted = math.prod(units) <= _MAX_UNITS and _kinds(wanted) <= _MAX_KINDS
        else:
            permitted = all(max(pair) % min(pair) == 0 for pair in pairs)
        if permitted and all(
            np.allclose(
                _line(made, total, corners=corners, centers=centers), each, rtol=0, atol=_WEIGHT_ERROR
            )
            for made, total, each in zip(size, image, wanted, strict=True)
        ):
            return {"size": size, "corners": corners, "centers": centers}
    return None


def _unsupported_quantized(why: str, x: DynamicValue, matrices: Mapping[int, Sequence[Any]]) -> str:
    """Return the reason for which the accelerator does not resize quantized values."""
    wanted = [part.matrix for parts in matrices.values() for part in parts]
    kinds = _kinds(wanted)
    if x.rank == 4 and matrices.keys() <= {2, 3} and kinds > _MAX_KINDS:
        return (
            f"{why} of quantized values: the pixels of the result have {kinds:,} different sets of weights, more than "
            f"{_MAX_KINDS:,}"
        )
    return f"{why} of quantized values, except linearly along height and width, by an exact ratio of sizes"


def _kinds(matrices: list[np.ndarray]) -> int:
    """Return the number of combinations of different weights of rows and of columns."""
    return math.prod(
        len({tuple(np.round(row[row > _WEIGHT_ERROR], 4)) for row in matrix}) for matrix in matrices
    )


def _line(made: int, total: int, *, corners: bool, centers: bool) -> np.ndarray:
    """Return the matrix (made, total) by which `resize_bilinear` multiplies rows or columns."""
    half, ratio = 0.5 * centers, (total - corners) / (made - corners)
    places = np.clip((np.arange(made) + half) * ratio - half, 0, total - 1)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(total)), 0)


def _interpolated_image(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, matrices: dict[int, np.ndarray]
) -> Value:
    """Convert the interpolation of an image to products whose left operands are the constant matrices.

    The channels of a pixel, or of the pixels of a row, are the columns of the right operand, so that nothing needs to
    be transposed.

    Parameters
    ----------
    matrices : dict of int to (outputs, inputs) array
        Matrix of each axis (2 or 3) that is resized.
    """
    x = emitter.in_order(x, channels_last(4))
    batch, height, width, channels = x.tensor.shape
    count = 1
    if batch == 1 and len(matrices) == 2:
        count = -(-height * len(matrices[3]) * channels // _MAX_BETWEEN)
    if count == 1:
        if 3 in matrices:
            x = _columns(emitter, node, x, matrices[3])
        if 2 in matrices:
            rows = _rows(emitter, node, x, matrices[2])
            shape = batch, len(matrices[2]), x.tensor.shape[2], channels
            x = DynamicValue(x.name, emitter.reshape(rows, shape), x.order)
        return renamed(x, node.outputs[0])
    # Strips of rows, so that the result of the first product can stay in the scratchpad.
    strips, outputs = list[Tensor](), len(matrices[2])
    for number, rows in enumerate(np.array_split(matrices[2], min(count, outputs))):
        (places,) = np.nonzero(rows.any(axis=0))
        first, end = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 1)
        strip, part = (1, end - first, width, channels), f"strip{number}"
        found = emitter.emit(
            node,
            "slice",
            [x.tensor],
            (1, channels, end - first, width),
            x.order,
            FLOAT,
            part,
            starts=(0, first, 0, 0),
            sizes=strip,
            steps=(1, 1, 1, 1),
        )
        columns = _columns(emitter, node, found, matrices[3], f"{part}:")
        strips.append(_rows(emitter, node, columns, rows[:, first:end], f"{part}:"))
    width = len(matrices[3])
    made = emitter.emit(
        node, "concat", strips, (1, outputs, width * channels), plain(3), FLOAT, "strips", axis=1
    )
    image = emitter.reshape(made.tensor, (1, outputs, width, channels))
    return DynamicValue(node.outputs[0], image, x.order)


def _matrix(emitter: OnnxGraphBuilder, node: FileNode, name: str, values: np.ndarray) -> Tensor:
    """Return a constant matrix of a node."""
    return emitter.constant(f"{node.name}:{name}", ConstantValue(name, values.astype(np.float32)))


def _columns(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, matrix: np.ndarray, prefix: str = ""
) -> DynamicValue:
    """Multiply the columns of an image, channels last, by a matrix from the left."""
    batch, height, _, channels = x.tensor.shape
    name = f"{prefix}columns"
    weights = _matrix(emitter, node, name, matrix)
    shape = (batch, channels, height, len(matrix))
    return emitter.emit(node, "matmul", [weights, x.tensor], shape, x.order, FLOAT, name)


def _rows(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, matrix: np.ndarray, prefix: str = ""
) -> Tensor:
    """Multiply the rows of an image, channels last, by a matrix from the left; return [batch, rows, elements]."""
    batch, height, width, channels = x.tensor.shape
    name = f"{prefix}rows"
    weights = _matrix(emitter, node, name, matrix)
    rows = emitter.reshape(x.tensor, (batch, height, width * channels))
    shape = (batch, len(matrix), width * channels)
    return emitter.emit(node, "matmul", [weights, rows], shape, plain(3), FLOAT, name).tensor


def _scales_and_shape(
    node: FileNode, x: DynamicValue, inputs: list[Any]
) -> tuple[list[float], tuple[int, ...]]:
    """Return the scale and the output size of each dimension."""
    scale_input, size_input = (inputs[1], None) if before_11(node) else inputs[2:4]
    axes = node.ints("axes") or plain(x.rank)
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch" or len(set(axes)) != len(axes):
        raise UnsupportedNodeError("resizing that keeps the ratio of the sides")
    scales, shape = [1.0] * x.rank, list(x.shape)
    resized_axes = [counted_from_front(axis, x.rank) for axis in axes]
    if size_input is not None and known(size_input, "sizes").data.size:
        sizes = size_input.integers()
        if len(sizes) != len(resized_axes) or not all(0 < size < _SIZE_LIMIT for size in sizes):
            raise InputError(
                f"sizes {shown(sizes)} do not fit shape {list(x.shape)}; each must be 1 to {_SIZE_LIMIT - 1:,}"
            )
        for i, size in zip(resized_axes, sizes, strict=True):
            scales[i], shape[i] = float(np.float32(size) / np.float32(x.shape[i])), size
        return scales, tuple(shape)
    factors = (
        node.attributes.get("scales") if scale_input is None else known(scale_input, "scales").real().tolist()
    )
    if not isinstance(factors, tuple | list) or len(factors) != len(resized_axes):
        raise InputError(f"must have {len(resized_axes)} scales, one for each resized axis")
    for i, factor in zip(resized_axes, factors, strict=True):
        if not (
            math.isfinite(factor) and factor > 0 and 1 <= (size := resized(x.shape[i], factor)) < _SIZE_LIMIT
        ):
            raise InputError(f"scale {factor} of size {x.shape[i]} does not make 1 to {_SIZE_LIMIT - 1:,}")
        scales[i], shape[i] = factor, size
    return scales, tuple(shape)


def _gathered(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, shape: tuple[int, ...], scales: list[float]
) -> DynamicValue:
    """Convert a resize to a gather of rows and a gather of columns."""
    for axis, part in ((2, "rows"), (3, "")):
        sources = _source_indices(node, x.shape[axis], shape[axis], scales[axis]).astype(np.int32)
        indices = emitter.constant(f"{node.name}:places{axis}", ConstantValue(node.name, sources))
        gathered = (*x.shape[:axis], shape[axis], *x.shape[axis + 1 :])
        x = emitter.emit(
            node, "gather", [x.tensor, indices], gathered, x.order, x.kind, part, axis=x.order.index(axis)
        )
    return x


def _matching_centers(
    node: FileNode, old: tuple[int, ...], new: tuple[int, ...], scales: list[float]
) -> bool | None:
    """Return the attribute `centers` for which `resize_nearest` selects the same elements; None if there is none."""
    wanted = [_source_indices(node, *v) for v in zip(old, new, scales, strict=True)]
    for centers in (False, True):
        selected = [
            np.minimum(np.floor((np.arange(n) + 0.5 * centers) * (size / n)), size - 1)
            for size, n in zip(old, new, strict=True)
        ]
        if all(np.array_equal(a, b) for a, b in zip(wanted, selected, strict=True)):
            return centers
    return None


def _source_indices(node: FileNode, size: int, count: int, scale: float) -> np.ndarray:
    """Return, for each of `count` outputs, the index of its source among `size` elements."""
    if before_11(node):
        return nearest("asymmetric", "simple", ResizeAxis(size, count, scale))
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        raise UnsupportedNodeError(f"resizing by {shown(mode)}")
    return nearest(mode, node.text("nearest_mode", "round_prefer_floor"), ResizeAxis(size, count, scale))


def before_11(node: FileNode) -> bool:
    """Return True for Upsample and for Resize before operator set 11, which have no coordinate modes."""
    return node.op == "Upsample" or node.opset < 11
