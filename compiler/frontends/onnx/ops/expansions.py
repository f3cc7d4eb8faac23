"""Conversion of ONNX reductions, normalizations and fused operators by expansion into other ONNX operators."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.pool_resize import reduced
from compiler.frontends.onnx.registry import CONVERSIONS, converts, integers, known
from compiler.frontends.onnx.values import (
    BlockWeights,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    counted_from_front,
    plain,
)
from compiler.ir.tensor import Quantization
from compiler.layers.lowering_context import EIGHT_BITS
from hw.errors import InputError, shown

#: Terms of sums of exponentials are at least this fraction of the largest term, divided by the number of terms.
_LEAST_TERM = 2.0**-14
#: Maximum number of factors of a product on the accelerator, each of which is rounded to 8 bits.
_MAX_FACTORS = 4


def float_only(*values: Value | None) -> None:
    """Raise UnsupportedNodeError unless all dynamic values are those of a float model."""
    for value in values:
        if isinstance(value, DynamicValue) and (value.real or value.tensor.dtype != "float32"):
            raise UnsupportedNodeError("its input must be real and not quantized")


_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ReduceProd")


@converts(*_REDUCTIONS, inputs=(1, 2))
def _reduction(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    x, given = inputs
    rank, axes = len(x.shape), integers(node, "axes", given)
    if not axes and node.int("noop_with_empty_axes", 0):
        raise UnsupportedNodeError("it must reduce at least one axis")
    over = sorted({counted_from_front(axis, rank) for axis in axes or range(rank)})
    if node.op == "ReduceL1" and isinstance(x, DynamicValue) and x.real:
        return [_sum_of_magnitudes(emitter, node, x, over)]
    float_only(x)
    body, keep = BodyBuilder(node, [x]), node.int("keepdims", 1)
    along = body.constant(over, np.int64)
    source = body.given(0)

    def total(terms: str, keepdims: int = keep) -> str:
        return body.add("ReduceSum", terms, along, keepdims=keepdims)

    if node.op == "ReduceLogSumExp":
        made = _log_sum_exp(body, source, x.shape, over)
        if not keep:
            made = body.reshaped(made, *(n for i, n in enumerate(x.shape) if i not in over))
    elif node.op == "ReduceProd":
        made = _product(body, source, x.shape, over)
        shape = [1 if i in over else n for i, n in enumerate(x.shape) if keep or i not in over]
        made = body.reshaped(made, *shape)
    elif node.op == "ReduceL1":
        made = total(body.add("Abs", source))
    elif node.op == "ReduceLogSum":
        made = body.add("Log", total(source))
    else:
        made = total(body.add("Mul", source, source))
        made = body.add("Sqrt", made) if node.op == "ReduceL2" else made
    return body.converted(emitter, made)


def _sum_of_magnitudes(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, axes: list[int]
) -> DynamicValue:
    """Add the sum of the magnitudes of quantized values, which uint8 represents exactly without a zero point."""
    q = x.tensor.quantization
    kind = emitter.arithmetic(node, x)
    if kind.quantization is None or q is None or not q.whole or x.tensor.dtype not in EIGHT_BITS:
        raise UnsupportedNodeError("values that are not those of a float model")
    size = ValueType("uint8", Quantization.per_tensor(q.scale[0]), real=True)
    magnitudes = emitter.emit(node, "abs", [x.tensor], x.shape, x.order, size, "magnitudes")
    return reduced(emitter, node, "reduce_sum", magnitudes, set(axes), keep=bool(node.int("keepdims", 1)))


def _log_sum_exp(body: BodyBuilder, x: str, shape: tuple[int, ...], axes: list[int]) -> str:
    """Add the logarithm of the sum of exponentials over axes, which remain with size 1.

    The largest exponent is factored out, and terms that are too small to affect the result are clipped.
    """
    along = body.constant(axes, np.int64)
    largest = body.add("ReduceMax", x, along, keepdims=1)
    least = math.log(_LEAST_TERM / math.prod(shape[i] for i in axes))
    powers = body.add("Exp", body.add("Clip", body.add("Sub", x, largest), body.constant(least)))
    return body.add("Add", body.add("Log", body.add("ReduceSum", powers, along, keepdims=1)), largest)


def _product(body: BodyBuilder, x: str, shape: tuple[int, ...], axes: list[int]) -> str:
    """Add a product over axes as a tree of products of halves."""
    count = math.prod(shape[i] for i in axes)
    if count > _MAX_FACTORS:
        raise UnsupportedNodeError(f"a product of {count:,} factors, each rounded to 8 bits")
    others = [i for i in range(len(shape)) if i not in axes]
    rest = math.prod(shape[i] for i in others)
    rows = body.reshaped(body.add("Transpose", x, perm=[*axes, *others]), count, rest)
    factors = [_row(body, rows, i) for i in range(count)]
    while len(factors) > 1:  # each product has its own scale
        pairs = [body.add("Mul", a, b) for a, b in zip(factors[::2], factors[1::2], strict=False)]
        factors = [*pairs, *factors[2 * len(pairs) :]]
    return factors[0]


def _row(body: BodyBuilder, x: str, index: int) -> str:
    """Add a slice of one index of the first dimension."""
    bounds = [body.constant([number], np.int64) for number in (index, index + 1, 0)]
    return body.add("Slice", x, *bounds)


@converts("LpNormalization", inputs=(1, 1))
def _lp_normalization(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert division by the sum of magnitudes, or by the root of the sum of squares: an RMS normalization."""
    (x,) = inputs
    float_only(x)
    axis, p = counted_from_front(node.int("axis", -1), len(x.shape)), node.int("p", 2)
    if p not in (1, 2):
        raise InputError(f"p must be 1 or 2, not {p}")
    body = BodyBuilder(node, inputs)
    if p == 1:
        norm = body.add("ReduceL1", body.given(0), body.constant([axis], np.int64), keepdims=1)
        return body.converted(emitter, body.add("Div", body.given(0), norm))
    last = [i for i in range(len(x.shape)) if i != axis] + [axis]
    rows = body.add("Transpose", body.given(0), perm=last)
    gamma = body.constant(np.full(x.shape[axis], x.shape[axis] ** -0.5))
    normal = body.add("SimplifiedLayerNormalization", rows, gamma, epsilon=NO_EPSILON, axis=-1)
    return body.converted(
        emitter, body.add("Transpose", normal, perm=[last.index(i) for i in range(len(last))])
    )


#: Epsilon for a normalization that has none, so that zeros are normalized to zeros.
NO_EPSILON = 1e-12


@converts("MeanVarianceNormalization", inputs=(1, 1))
def _mean_variance(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    (x,) = inputs
    float_only(x)
    rank = len(x.shape)
    axes = [counted_from_front(axis, rank) for axis in node.ints("axes") or (0, 2, 3)]
    others = [i for i in plain(rank) if i not in axes]
    perm = [*others, *axes]
    moved = [x.shape[i] for i in perm]
    body = BodyBuilder(node, inputs)
    rows = body.reshaped(
        body.add("Transpose", body.given(0), perm=perm),
        math.prod(moved[: len(others)]),
        math.prod(moved[len(others) :]),
    )
    normal = body.add(
        "LayerNormalization", rows, body.constant(np.ones(math.prod(moved[len(others) :]))), epsilon=1e-9
    )
    back = body.add("Transpose", body.reshaped(normal, *moved), perm=[perm.index(i) for i in plain(rank)])
    return body.converted(emitter, back)


#: Maximum number of channels of a local response normalization, whose sums are products with a matrix of this size.
_MAX_LRN_CHANNELS = 2048


@converts("LRN", inputs=(1, 1))
def _local_response(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert x * (bias + alpha / size * sum of squares of adjacent channels) ** -beta; a matrix computes the sums."""
    (x,) = inputs
    float_only(x)
    rank, size = len(x.shape), node.int("size", 0)
    channels = x.shape[1] if rank > 1 else 0
    if rank < 3 or size < 1 or channels > _MAX_LRN_CHANNELS:
        raise UnsupportedNodeError(f"sums of {size} channels of shape {list(x.shape)}")
    distance = np.arange(channels)[:, None] - np.arange(channels)
    before, after = (size - 1) // 2, size // 2
    band = ((distance >= -before) & (distance <= after)) * (node.float("alpha", 1e-4) / size)
    last = [0, *range(2, rank), 1]
    body = BodyBuilder(node, inputs)
    rows = body.add("Transpose", body.given(0), perm=last)
    sums = body.add("MatMul", body.add("Mul", rows, rows), body.constant(band))
    scale = body.add(
        "Pow",
        body.add("Add", sums, body.constant(node.float("bias", 1.0))),
        body.constant(-node.float("beta", 0.75)),
    )
    made = body.add("Mul", rows, scale)
    return body.converted(emitter, body.add("Transpose", made, perm=[last.index(i) for i in plain(rank)]))


@converts("SkipLayerNormalization", inputs=(3, 5))
def _skip_layer_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    return _skip_norm(emitter, node, inputs, "LayerNormalization", 1e-5)


@converts("SkipSimplifiedLayerNormalization", inputs=(3, 4))
def _skip_rms_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    x, skip, gamma, bias = inputs
    return _skip_norm(emitter, node, [x, skip, gamma, None, bias], "SimplifiedLayerNormalization", 1e-5)


def _skip_norm(
    emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any], op: str, epsilon: float
) -> Sequence[Value | None]:
    """Convert to a sum of x, skip and an optional bias, followed by a normalization over the last dimension."""
    body = BodyBuilder(node, inputs)
    total = body.add("Add", body.given(0), body.given(1))
    if body.given(4):
        total = body.add("Add", total, body.given(4))
    parameters = [body.given(index) for index in (2, 3) if body.given(index)]
    normal = body.add(op, total, *parameters, axis=-1, epsilon=node.float("epsilon", epsilon))
    if any(node.outputs[1:3]):
        raise UnsupportedNodeError("its outputs 2 and 3, mean and deviation, are not supported")
    return body.converted(emitter, normal, *(["", "", total] if node.outputs[3:] else []))


@converts("EmbedLayerNormalization", inputs=(7, 9))
def _embed_layer_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert to look-ups of words, positions and segments, whose sum is normalized."""
    ids, segments, _words, _positions, kinds, _gamma, _beta, mask, places = inputs
    if len(ids.shape) != 2:
        raise InputError(f"its ids must have shape [batch, length], not {list(ids.shape)}")
    body = BodyBuilder(node, inputs)
    total = body.add("Gather", body.given(2), body.given(0), axis=0)
    if places is None:
        where = body.constant(np.arange(ids.shape[1])[None], np.int64)
    else:
        where = body.given(8)
    total = body.add("Add", total, body.add("Gather", body.given(3), where, axis=0))
    if segments is not None and kinds is not None:
        total = body.add("Add", total, body.add("Gather", body.given(4), body.given(1), axis=0))
    normal = body.add(
        "LayerNormalization",
        total,
        body.given(5),
        body.given(6),
        axis=-1,
        epsilon=node.float("epsilon", 1e-12),
    )
    count = ""
    if node.outputs[1:] and node.outputs[1]:
        numbers = np.zeros(ids.shape[0]) if mask is None else known(mask, "a mask").data.sum(1)
        count = body.constant(numbers, np.int32)
    return body.converted(emitter, normal, count, total if node.outputs[2:] else "")


@converts("BiasGelu", inputs=(2, 2))
def _bias_gelu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    body = BodyBuilder(node, inputs)
    return body.converted(emitter, body.add("Gelu", body.add("Add", body.given(0), body.given(1))))


@converts("FusedMatMul", "TransposeMatMul", inputs=(2, 2))
def _fused_matmul(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert a product of optionally transposed stacks of matrices, times alpha."""
    if node.int("transBatchA", 0) or node.int("transBatchB", 0):
        raise UnsupportedNodeError("its attributes transBatchA and transBatchB must be 0")
    body, operands = BodyBuilder(node, inputs), list[str]()
    for index, key in enumerate(("transA", "transB")):
        name, rank = body.given(index), len(inputs[index].shape)
        if node.int(key, 0) and rank > 1:
            name = body.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        operands.append(name)
    made = body.add("MatMul", *operands)
    alpha = node.float("alpha", 1.0)
    return body.converted(emitter, made if alpha == 1 else body.add("Mul", made, body.constant(alpha)))


@converts("MatMulNBits", inputs=(3, 6))
def _matmul_n_bits(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert a product with weights of 2, 4 or 8 bits and a scale for each block."""
    x, packed, scales, zeros, order, bias = inputs
    if order is not None:
        raise UnsupportedNodeError("weights must be in the order of the columns, without g_idx")
    rows, columns = node.int("N", 0), node.int("K", 0)
    data, scale = known(packed, "a weight").data, known(scales, "a scale").real()
    zero = None if zeros is None else known(zeros, "a zero point").numbers()
    weights = widened_blocks(data, scale, zero, rows, columns, node.int("bits", 4), node.int("block_size", 0))
    weights = weights.transposed((1, 0), packed.name)
    if isinstance(bias, ConstantValue):
        return list(CONVERSIONS[":linear"](emitter, node, [x, weights, bias]))
    body = BodyBuilder(node, [x, bias, weights])
    made = body.add("MatMul", body.given(0), body.given(2))
    return body.converted(emitter, made if bias is None else body.add("Add", made, body.given(1)))


def widened_blocks(
    packed: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    rows: int,
    columns: int,
    bits: int,
    block: int,
) -> ConstantValue:
    """Return weights of a few bits, quantized by blocks along their rows.

    Parameters
    ----------
    packed : uint8 array
        Weights, packed from the lowest bits of a byte, in `rows` times the number of blocks of a row.
    scales : float array
        A scale for each block.
    zeros : array or None
        Zero points, packed like the weights, or one float for each block; None: the middle of the range.
    rows, columns : int
        Shape of the weights.
    bits, block : int
        Bits of a weight, and weights of a block.
    """
    if bits not in (2, 4, 8) or block < 1 or min(rows, columns) < 1:
        raise InputError(f"{bits} bits in blocks of {block} for weights {[rows, columns]} are not supported")
    blocks, each = -(-columns // block), 8 // bits
    if (
        packed.dtype != np.uint8
        or packed.size != rows * blocks * -(-block // each)
        or scales.size != rows * blocks
    ):
        raise InputError(
            f"weights {list(packed.shape)} and scales {list(scales.shape)} do not fit {[rows, columns]}"
        )
    numbers = _unpacked(packed.reshape(rows * blocks, -1), bits)[:, :block].reshape(rows, blocks, block)
    middle: np.ndarray = np.full((rows, blocks), 1 << (bits - 1))
    if zeros is not None and zeros.dtype == np.uint8:
        if zeros.size != rows * -(-blocks // each):
            raise InputError(f"zero points {list(zeros.shape)} do not fit {rows} rows of {blocks} blocks")
        middle = _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
    elif zeros is not None:
        if zeros.size != rows * blocks:
            raise InputError(f"zero points {list(zeros.shape)} do not fit {rows} rows of {blocks} blocks")
        middle = zeros.reshape(rows, blocks)
    steps = (numbers - middle[:, :, None]).reshape(rows, blocks * block)[:, :columns]
    scales = scales.reshape(rows, blocks)
    if middle.dtype.kind == "f" and (middle != np.rint(middle)).any():
        wide = np.repeat(scales, block, 1)[:, :columns]
        return ConstantValue("weights", (steps * wide).astype(np.float32))
    made = BlockWeights(steps.astype(np.int32), scales, block, 1)
    return ConstantValue("weights", made.real(), blocks=made)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers of `bits` bits in the last dimension of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits)
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1).astype(np.float32)


#: Maximum number of operands of an Einsum on the accelerator.
_MAX_TERMS = 8


@converts("Einsum", inputs=(1, None))
def _einsum(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert an equation to transposes, sums and one product of stacks of matrices for each further operand."""
    terms, result = _equation(node.text("equation", ""), [value.shape for value in inputs])
    body, sizes = BodyBuilder(node, inputs), dict[str, int]()
    for term, value in zip(terms, inputs, strict=True):
        for label, size in zip(term, value.shape, strict=True):
            if sizes.setdefault(label, size) not in (size, 1) and size != 1:
                raise InputError(f"index {shown(label)} has sizes {sizes[label]} and {size}")
            sizes[label] = max(size, sizes[label])
    name, labels = body.given(0), terms[0]
    name, labels = _diagonal(body, name, labels, inputs[0].shape)
    for index in range(1, len(terms)):
        other, more = _diagonal(body, body.given(index), terms[index], inputs[index].shape)
        later = {label for term in terms[index + 1 :] for label in term} | set(result)
        name, labels = _contracted(body, (name, labels), (other, more), later, sizes)
    name, labels = _summed(body, name, labels, set(result))
    if labels != result:
        name = body.add("Transpose", name, perm=[labels.index(label) for label in result])
    body.check_exact(emitter)
    return body.converted(emitter, body.add("Identity", name))


def _equation(text: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """Return the indices of each operand and of the result; dimensions of an ellipsis are numbered from the last.

    An invalid equation raises InputError, because ONNX's shape inference does not terminate for some of them.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(shapes) or not text.isascii():
        raise InputError(f"equation {shown(text)} must name the indices of {len(shapes)} operands")
    if len(parts) > _MAX_TERMS:
        raise UnsupportedNodeError(f"an equation of {len(shapes)} operands")
    terms, widest = [], 0
    for part, shape in zip(parts, shapes, strict=True):
        before, dots, after = part.partition("...")
        count = len(shape) - len(before) - len(after)
        if (not (before + after).isalpha() and before + after) or count < 0 or (count and not dots):
            raise InputError(
                f"equation {shown(text)} must name one index for each dimension of shape {list(shape)}"
            )
        widest = max(widest, count)
        terms.append([*before, *(f".{i}" for i in range(count, 0, -1)), *after])
    open_ = [f".{i}" for i in range(widest, 0, -1)]
    if arrow:
        before, dots, after = right.partition("...")
        result = [*before, *(open_ if dots else []), *after]
    else:
        once = [label for term in terms for label in term if not label.startswith(".")]
        result = [*open_, *sorted(label for label in once if once.count(label) == 1)]
    if len(set(result)) != len(result) or not set(result) <= {label for term in terms for label in term}:
        raise InputError(f"equation {shown(text)} has an unknown or a repeated index in its result")
    return terms, result


def _diagonal(
    body: BodyBuilder, name: str, labels: list[str], shape: tuple[int, ...]
) -> tuple[str, list[str]]:
    """Return an operand with each repeated index replaced by the diagonal of its two dimensions."""
    labels, sizes = list(labels), list(shape)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size = sizes[first]
            if size != sizes[second]:
                raise InputError(f"index {shown(label)} has sizes {size} and {sizes[second]}")
            rest = [i for i in range(len(labels)) if i not in (first, second)]
            moved = body.add("Transpose", name, perm=[first, second, *rest])
            flat = body.reshaped(moved, size * size, *(sizes[i] for i in rest))
            name = body.add("Gather", flat, body.constant(np.arange(size) * (size + 1), np.int64), axis=0)
            labels, sizes = [label, *(labels[i] for i in rest)], [size, *(sizes[i] for i in rest)]
    return name, labels


def _summed(body: BodyBuilder, name: str, labels: list[str], needed: set[str]) -> tuple[str, list[str]]:
    """Return an operand summed over all indices that are not needed."""
    axes = [i for i, label in enumerate(labels) if label not in needed]
    if not axes:
        return name, labels
    total = body.add("ReduceSum", name, body.constant(axes, np.int64), keepdims=0)
    return total, [label for label in labels if label in needed]


_Operand = tuple[str, list[str]]


def _contracted(
    body: BodyBuilder, a: _Operand, b: _Operand, later: set[str], sizes: dict[str, int]
) -> tuple[str, list[str]]:
    """Return the product of two operands, summed over the indices that both have and that are not read later."""
    a, b = (_summed(body, *one, later | set(other[1])) for one, other in ((a, b), (b, a)))
    batch = [label for label in a[1] if label in b[1] and label in later]
    inner = [label for label in a[1] if label in b[1] and label not in later]
    rows = [label for label in a[1] if label not in b[1]]
    columns = [label for label in b[1] if label not in a[1]]

    def count(labels: list[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    def stack(operand: _Operand, groups: Sequence[list[str]]) -> str:
        wanted = [label for group in groups for label in group]
        name = operand[0]
        if wanted != operand[1]:
            name = body.add("Transpose", name, perm=[operand[1].index(label) for label in wanted])
        name = body.add("Expand", name, body.constant([sizes[label] for label in wanted], np.int64))
        return body.reshaped(name, *(count(group) for group in groups))

    if not inner and not (rows and columns):  # element by element
        wanted = [*batch, *rows, *columns]
        shape = [sizes[label] for label in wanted]
        left = body.reshaped(stack(a, (batch, rows)), *shape[: len(batch) + len(rows)], *[1] * len(columns))
        right = stack(b, (batch, columns))
        right = body.reshaped(right, *shape[: len(batch)], *[1] * len(rows), *shape[len(batch) + len(rows) :])
        return body.add("Mul", left, right), wanted
    product = body.add("MatMul", stack(a, (batch, rows, inner)), stack(b, (batch, inner, columns)))
    labels = [*batch, *rows, *columns]
    return body.reshaped(product, *(sizes[label] for label in labels)), labels


@converts("Trilu", inputs=(1, 2))
def _triangle(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert the triangle of matrices of a float model to a product with ones and zeros."""
    x, given = inputs
    float_only(x)
    if len(x.shape) < 2:
        raise InputError(f"its input must have at least two dimensions, not shape {list(x.shape)}")
    k = 0 if given is None else known(given, "a diagonal").integers()[0]
    k = max(-x.shape[-2], min(k, x.shape[-1]))
    triangle = (np.triu if node.int("upper", 1) else np.tril)(np.ones(x.shape[-2:]), k)
    body = BodyBuilder(node, [x])
    return body.converted(emitter, body.add("Mul", body.given(0), body.constant(triangle)))


#: Maximum length of a Fourier transform, which is a product with a matrix of this size.
_MAX_TRANSFORM = 1 << 11


def _fourier(length: int, count: int, parts: int, *, onesided: bool, inverse: bool) -> np.ndarray:
    """Return the matrix, (count * parts, outputs * 2), of a Fourier transform of `count` values, padded with zeros.

    Parameters
    ----------
    length : int
        Length of the transform; further values are ignored.
    count, parts : int
        Number of values, and 1 if they are real or 2 if they are complex.
    onesided : bool
        True for the first half of the outputs.
    inverse : bool
        True for the inverse transform.
    """
    outputs = length // 2 + 1 if onesided else length
    n = np.arange(count)[:, None]
    angles = 2 * np.pi / length * (n * np.arange(outputs) % length) * (1 if inverse else -1)
    cos, sin = (np.where(n < length, f(angles), 0) / (length if inverse else 1) for f in (np.cos, np.sin))
    matrix = np.empty((count, parts, outputs, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = cos, sin
    if parts == 2:
        matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -sin, cos
    return matrix.reshape(count * parts, outputs * 2)


@converts("DFT", inputs=(1, 3))
def _dft(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert a Fourier transform to a product with a constant matrix."""
    x, length, axis = inputs
    float_only(x)
    rank, parts = len(x.shape), x.shape[-1]
    along = node.int("axis", 1) if node.opset < _DFT_INPUT_OPSET else -2
    along = counted_from_front(along if axis is None else known(axis, "an axis").integers()[0], rank)
    size = x.shape[along] if length is None else known(length, "a length").integers()[0]
    inverse, onesided = bool(node.int("inverse", 0)), bool(node.int("onesided", 0))
    if rank < 2 or along == rank - 1 or parts not in (1, 2) or size < 1:
        raise InputError(f"a transform of length {size} along dimension {along} of shape {list(x.shape)}")
    if max(size, x.shape[along]) > _MAX_TRANSFORM or (inverse and onesided):
        raise UnsupportedNodeError(f"a transform of length {size:,}, or an inverse of half a spectrum")
    matrix = _fourier(size, x.shape[along], parts, onesided=onesided, inverse=inverse)
    perm = [*(i for i in range(rank - 1) if i != along), along, rank - 1]
    body, others = BodyBuilder(node, [x]), [x.shape[i] for i in perm[:-2]]
    rows = body.reshaped(body.add("Transpose", body.given(0), perm=perm), *others, len(matrix))
    made = body.reshaped(body.add("MatMul", rows, body.constant(matrix)), *others, -1, 2)
    return body.converted(emitter, body.add("Transpose", made, perm=[perm.index(i) for i in range(rank)]))


#: First operator set in which the axis of DFT is an input.
_DFT_INPUT_OPSET = 20


@converts("STFT", inputs=(2, 4))
def _stft(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert Fourier transforms of overlapping frames to a convolution with windowed cosines and sines."""
    x, step, window, length = inputs
    float_only(x)
    stride = known(step, "a step").integers()[0]
    shape = x.shape if len(x.shape) == 3 else (*x.shape, 1)
    weights = None if window is None else known(window, "a window").real()
    size = shape[1] if weights is None else weights.size
    size = size if length is None else known(length, "a length").integers()[0]
    if len(shape) != 3 or shape[2] not in (1, 2) or stride < 1 or not 1 <= size <= shape[1]:
        raise InputError(f"frames of {size} every {stride} elements do not fit shape {list(x.shape)}")
    if size > _MAX_TRANSFORM or (weights is not None and weights.size != size):
        raise UnsupportedNodeError(f"a transform of length {size:,}")
    matrix = _fourier(size, size, shape[2], onesided=bool(node.int("onesided", 1)), inverse=False)
    kernel = matrix.reshape(size, shape[2], -1) * (1 if weights is None else weights.reshape(-1, 1, 1))
    body = BodyBuilder(node, [x])
    signal = body.add("Transpose", body.reshaped(body.given(0), *shape), perm=[0, 2, 1])
    frames = body.add("Conv", signal, body.constant(kernel.transpose(2, 1, 0)), strides=[stride])
    rows = body.add("Transpose", frames, perm=[0, 2, 1])
    return body.converted(emitter, body.reshaped(rows, shape[0], (shape[1] - size) // stride + 1, -1, 2))
