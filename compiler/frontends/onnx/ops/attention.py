"""Conversion of ONNX's attention operators and rotary embeddings, in ONNX's own domain and in com.microsoft."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.values import (
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    check_size,
)
from hw.errors import InputError

#: Number that is added to the score of a masked key; its weight is 0 even in float32.
_MASKED = -1e30
#: Maximum number of scores of a head, for which a mask may have to be constructed.
_MAX_SCORES = 1 << 26


@dataclass(frozen=True)
class HeadShape:
    """Sizes of an attention.

    Parameters
    ----------
    batch : int
        Number of samples.
    heads, kv_heads : int
        Number of heads of the queries, and of the keys and values; `kv_heads` divides `heads`.
    queries, keys : int
        Number of queries, and of keys including those of the past.
    size, value_size : int
        Elements of a query or key, and of a value.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int

    def check(self) -> None:
        """Raise InputError if the sizes contradict each other, or UnsupportedNodeError if there are too many scores."""
        if min(self.heads, self.kv_heads, self.size, self.value_size) < 1 or self.heads % self.kv_heads:
            raise InputError(
                f"the {self.heads} heads of queries must be a multiple of the {self.kv_heads} heads of keys"
            )
        check_size((self.batch, self.heads, self.queries, self.keys))
        if self.queries * self.keys > _MAX_SCORES:
            raise UnsupportedNodeError(f"scores of {self.queries:,} queries for {self.keys:,} keys")


@dataclass(frozen=True)
class Scores:
    """Names of the intermediate results of an attention: scores before and after the soft cap, and weights."""

    raw: str
    capped: str
    weights: str


def _attend(
    body: BodyBuilder,
    operands: tuple[str, str, str],
    shape: HeadShape,
    scale: float,
    cap: float,
    biases: Sequence[str],
) -> tuple[str, Scores]:
    """Add softmax(scale * q k^T + biases) v for queries, keys and values of shape (batch, heads, length, size).

    Queries that share a head of keys are rows of one product, so that keys and values are not repeated.
    """
    q, k, v = operands
    if not (math.isfinite(scale) and math.isfinite(cap) and cap >= 0):
        raise InputError(
            f"its scale and soft cap must be finite, the cap not negative, not {scale} and {cap}"
        )
    b, h, s, t = shape.batch, shape.heads, shape.queries, shape.keys
    rows = (b, shape.kv_heads, h // shape.kv_heads * s)
    if scale != 1:
        q = body.add("Mul", q, body.constant(scale))
    turned = body.add("Transpose", k, perm=[0, 1, 3, 2])
    product = body.add("MatMul", body.reshaped(q, *rows, shape.size), turned)
    raw = capped = body.reshaped(product, b, h, s, t)
    if cap:
        limit = body.constant(cap)
        capped = body.add("Mul", body.add("Tanh", body.add("Div", raw, limit)), limit)
    total = capped
    for bias in biases:
        total = body.add("Add", total, bias)
    weights = body.add("Softmax", total, axis=-1)
    made = body.add("MatMul", body.reshaped(weights, *rows, t), v)
    return body.reshaped(made, b, h, s, shape.value_size), Scores(raw, capped, weights)


def _split_heads(body: BodyBuilder, x: str, batch: int, length: int, heads: int, size: int) -> str:
    """Return rows of all heads, (batch, length, heads * size), as (batch, heads, length, size)."""
    return body.add("Transpose", body.reshaped(x, batch, length, heads, size), perm=[0, 2, 1, 3])


def _joined_heads(body: BodyBuilder, x: str, shape: HeadShape) -> str:
    """Return values of shape (batch, heads, length, size) as rows of all heads."""
    rows = body.add("Transpose", x, perm=[0, 2, 1, 3])
    return body.reshaped(rows, shape.batch, shape.queries, shape.heads * shape.value_size)


def _visible(queries: int, keys: int, offset: int, left: int, right: int) -> np.ndarray:
    """Return a mask of the keys for each query: up to `left` before and `right` after its position; -1: unlimited."""
    distance = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    allowed = np.ones((queries, keys), bool)
    if right >= 0:
        allowed &= distance <= right
    if left >= 0:
        allowed &= distance >= -left
    return allowed


def _bias(body: BodyBuilder, allowed: str, masked: float = _MASKED) -> str:
    """Return 0 for keys that are attended to, and a negative number for the others."""
    return body.add("Where", allowed, body.constant(0.0), body.constant(masked))


def _divided(count: int, heads: int) -> int:
    """Return the size of a head; raise InputError if the number of heads does not divide the number of elements."""
    if heads < 1 or count % heads:
        raise InputError(f"a size of {count} must be a multiple of the number of heads, {heads}")
    return count // heads


def _domain(node: FileNode) -> str:
    return node.source.proto.domain if node.source is not None else ""


@converts("Attention", inputs=(2, 7))
def _attention(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    if _domain(node) == "com.microsoft":
        return _packed_attention(emitter, node, inputs)
    q, k, v, mask, past_k, past_v, lengths = inputs
    if v is None:
        raise InputError("input 3 must not be omitted")
    rank = len(q.shape)
    if rank not in (3, 4) or {len(k.shape), len(v.shape)} != {rank} or (past_k is None) != (past_v is None):
        raise InputError(
            f"queries, keys and values must all have 3 or all 4 dimensions, not shapes {list(q.shape)}, "
            f"{list(k.shape)} and {list(v.shape)}, and past keys need past values"
        )
    mode, causal = node.int("qk_matmul_output_mode", 0), node.int("is_causal", 0)
    if (mode == 2 and node.outputs[3:]) or lengths is not None:
        raise UnsupportedNodeError(
            "its output of scores after masking, or its input of lengths of the keys, is in use"
        )
    body, names = BodyBuilder(node, inputs), list[str]()
    for index, (value, key) in enumerate(
        zip((q, k, v), ("q_num_heads", "kv_num_heads", "kv_num_heads"), strict=True)
    ):
        name = body.given(index)
        if rank == 3:
            heads = node.int(key, 0)
            name = _split_heads(
                body, name, value.shape[0], value.shape[1], heads, _divided(value.shape[2], heads)
            )
        names.append(name)
    heads, kv_heads = (
        (q.shape[1], k.shape[1]) if rank == 4 else (node.int("q_num_heads", 0), node.int("kv_num_heads", 0))
    )
    past = 0 if past_k is None else past_k.shape[2]
    if past_k is not None:
        names[1:] = [body.add("Concat", body.given(4 + i), names[1 + i], axis=2) for i in (0, 1)]
    size, value_size = (
        n if rank == 4 else _divided(n, h) for n, h in ((q.shape[-1], heads), (v.shape[-1], kv_heads))
    )
    shape = HeadShape(q.shape[0], heads, kv_heads, q.shape[-2], past + k.shape[-2], size, value_size)
    shape.check()
    left, right = node.int("left_window_size", -1), node.int("right_window_size", -1)
    allowed = _visible(shape.queries, shape.keys, past, left, 0 if causal else right)
    biases, alive = _masks(body, mask, allowed, shape)
    scale = node.float("scale", 0.0) or shape.size**-0.5
    made, scores = _attend(
        body, (names[0], names[1], names[2]), shape, scale, node.float("softcap", 0.0), biases
    )
    if alive:
        made = body.add("Mul", made, alive)
        if mode == 3 and node.outputs[3:]:
            scores = Scores(scores.raw, scores.capped, body.add("Mul", scores.weights, alive))
    made = _joined_heads(body, made, shape) if rank == 3 else made
    seen = {0: scores.raw, 1: scores.capped, 3: scores.weights}.get(mode, "")
    return body.converted(emitter, *(made, names[1], names[2], seen)[: len(node.outputs)])


def _masks(
    body: BodyBuilder, mask: Value | None, allowed: np.ndarray, shape: HeadShape
) -> tuple[list[str], str]:
    """Return the biases of the scores, and a factor that is 0 for queries without keys; "" if no query lacks keys."""
    if mask is None:
        return _constant_masks(body, allowed, np.where(allowed, 0.0, _MASKED))
    rank, width = len(mask.shape), mask.shape[-1]
    if not 2 <= rank <= 4 or width > shape.keys:
        raise InputError(
            f"its mask must broadcast to {shape.queries} queries and {shape.keys} keys, not have shape "
            f"{list(mask.shape)}"
        )
    allowed = allowed & (np.arange(shape.keys) < width)
    widths = [(0, 0)] * (rank - 1) + [(0, shape.keys - width)]
    boolean = (mask.data if isinstance(mask, ConstantValue) else mask.tensor).dtype == "bool"
    if isinstance(mask, ConstantValue):
        numbers = np.where(mask.data, 0.0, _MASKED) if boolean else mask.real()
        bias = np.where(allowed, np.pad(numbers, widths), _MASKED)
        return _constant_masks(body, bias > _MASKED, bias)
    name = body.given(3)
    edges = body.constant([*[low for low, _ in widths], *[high for _, high in widths]], np.int64)
    if boolean:
        flags = body.add("Cast", name, to=TensorProto.FLOAT)
        flags = body.add("Pad", flags, edges) if width < shape.keys else flags
        if not allowed.all():
            flags = body.add("Mul", flags, body.constant(allowed))
        some = body.add("ReduceMax", flags, body.constant([-1], np.int64), keepdims=1)
        return [_bias(body, body.add("Cast", flags, to=TensorProto.BOOL))], some
    name = body.add("Pad", name, edges) if width < shape.keys else name
    biases, alive = _constant_masks(body, allowed, np.where(allowed, 0.0, _MASKED))
    return [name, *biases], alive


def _constant_masks(body: BodyBuilder, allowed: np.ndarray, bias: np.ndarray) -> tuple[list[str], str]:
    """Return biases and factor as `_masks` does, given the allowed keys and the biases of all keys as constants."""
    alive = allowed.any(-1, keepdims=True)
    biases = [body.constant(np.maximum(bias, _MASKED))] if bias.any() else []
    return biases, "" if alive.all() else body.constant(alive)


@converts("MultiHeadAttention", inputs=(1, 10))
def _multi_head(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    q, k, v, bias, mask, _added, past_k, _past_v, past_length, indirection = inputs
    if past_length is not None or indirection is not None:
        raise UnsupportedNodeError("keys must be appended to the past keys, not written to a shared buffer")
    heads, body = node.int("num_heads", 0), BodyBuilder(node, inputs)
    batch, queries = q.shape[:2]
    names, sizes = list[str](), list[int]()
    if k is None or v is None or len(q.shape) != 3 or len(k.shape) not in (3, 4):
        raise UnsupportedNodeError(
            "queries, keys and values must be separate inputs, the queries of shape [batch, length, width]"
        )
    starts, keys = 0, k.shape[-2]
    for index, value in enumerate((q, k, v)):
        if len(value.shape) == 4:
            names.append(body.given(index))
            sizes.append(value.shape[3])
            continue
        name, width = body.given(index), value.shape[2]
        if bias is not None:
            ends = [body.constant([n], np.int64) for n in (starts, starts + width, 0)]
            name = body.add("Add", name, body.add("Slice", body.given(3), *ends))
            starts += width
        sizes.append(_divided(width, heads))
        names.append(_split_heads(body, name, batch, value.shape[1], heads, sizes[-1]))
    past = 0 if past_k is None else past_k.shape[2]
    if past_k is not None:
        names[1:] = [body.add("Concat", body.given(6 + i), names[1 + i], axis=2) for i in (0, 1)]
    shape = HeadShape(batch, heads, heads, queries, past + keys, sizes[0], sizes[2])
    shape.check()
    made, scores = _attend(
        body,
        (names[0], names[1], names[2]),
        shape,
        node.float("scale", 0.0) or shape.size**-0.5,
        0.0,
        _padding(body, node, 4, mask, 5, shape),
    )
    results = (_joined_heads(body, made, shape), names[1], names[2], scores.raw)
    return body.converted(emitter, *results[: len(node.outputs)])


def _padding(
    body: BodyBuilder, node: FileNode, index: int, mask: Value | None, bias: int, shape: HeadShape
) -> list[str]:
    """Return the biases of the scores in com.microsoft's operators: key mask, additive bias and causal mask."""
    b, s, t = shape.batch, shape.queries, shape.keys
    biases = [body.given(bias)] if body.given(bias) else []
    filled = node.float("mask_filter_value", -10000.0)
    if mask is not None:
        kinds: dict[tuple[int, ...], tuple[int, ...]] = {(b, t): (b, 1, 1, t), (b, s, t): (b, 1, s, t)}
        name = body.given(index)
        if mask.shape == (b,):
            lengths = body.reshaped(body.add("Cast", name, to=TensorProto.INT64), b, 1, 1, 1)
            kept = body.add("Less", body.constant(np.arange(t).reshape(1, 1, 1, t), np.int64), lengths)
        elif mask.shape in kinds:
            kept = body.add("Cast", body.reshaped(name, *kinds[mask.shape]), to=TensorProto.BOOL)
        else:
            raise UnsupportedNodeError(f"a mask of shape {list(mask.shape)}")
        biases.append(_bias(body, kept, filled))
    if node.int("unidirectional", 0):
        allowed = _visible(s, t, t - s, -1, 0)
        if not allowed.all():
            biases.append(body.constant(np.where(allowed, 0.0, _MASKED)))
    return biases


def _packed_attention(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert com.microsoft's Attention, whose queries, keys and values are one product with packed weights."""
    x, weights, bias, mask, past, _added, past_length = inputs
    heads, body = node.int("num_heads", 0), BodyBuilder(node, inputs)
    if node.int("do_rotary", 0) or past_length is not None or len(x.shape) != 3 or len(weights.shape) != 2:
        raise UnsupportedNodeError(
            "rotary positions and a shared buffer of past keys are not supported; input and weights must have 3 and 2 "
            "dimensions"
        )
    total = weights.shape[1]
    widths = node.ints("qkv_hidden_sizes") or (total // 3,) * 3
    if len(widths) != 3 or sum(widths) != total or widths[0] != widths[1]:
        raise InputError(
            f"qkv_hidden_sizes must be three sizes, the first two equal, that add up to {total}, not {list(widths)}"
        )
    rows = body.add("MatMul", body.given(0), body.given(1))
    if bias is not None:
        rows = body.add("Add", rows, body.given(2))
    batch, queries = x.shape[:2]
    split = body.add("Split", rows, body.constant(widths, np.int64), outputs=3, axis=2)
    sizes = [_divided(width, heads) for width in widths]
    names = [
        _split_heads(body, name, batch, queries, heads, size)
        for name, size in zip((split, f"{split}:1", f"{split}:2"), sizes, strict=True)
    ]
    before = 0
    if past is not None:
        before = past.shape[3]
        old = [body.add("Gather", body.given(4), body.constant(i, np.int64), axis=0) for i in (0, 1)]
        names[1:] = [body.add("Concat", old[i], names[1 + i], axis=2) for i in (0, 1)]
    shape = HeadShape(batch, heads, heads, queries, before + queries, sizes[0], sizes[2])
    shape.check()
    scale = node.float("scale", 0.0) or shape.size**-0.5
    biases = _padding(body, node, 3, mask, 5, shape)
    made, _ = _attend(body, (names[0], names[1], names[2]), shape, scale, 0.0, biases)
    results = [_joined_heads(body, made, shape)]
    if node.outputs[1:] and node.outputs[1]:
        parts = [body.add("Unsqueeze", name, body.constant([0], np.int64)) for name in names[1:]]
        results.append(body.add("Concat", *parts, axis=0))
    return body.converted(emitter, *results)


@converts("GroupQueryAttention", inputs=(1, 14))
def _group_query(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    q, k, v, past_k, past_v, lengths, total_length, cos, _sin, positions, _added, *more = inputs
    heads, kv_heads = node.int("num_heads", 0), node.int("kv_num_heads", 0)
    if any(value is not None for value in more) or node.int("smooth_softmax", 0) > 0:
        raise UnsupportedNodeError("attention sinks and quantized keys are not supported")
    if len(q.shape) != 3 or (k is None) != (v is None) or (past_k is None) != (past_v is None):
        raise InputError(
            f"queries must have shape [batch, length, width], not {list(q.shape)}, and keys need values"
        )
    body, (batch, queries, width) = BodyBuilder(node, inputs), q.shape
    size = _divided(width, heads if k is not None else heads + 2 * kv_heads)
    names = [body.given(i) for i in range(3)]
    if k is None:
        widths = body.constant([heads * size, kv_heads * size, kv_heads * size], np.int64)
        split = body.add("Split", body.given(0), widths, outputs=3, axis=2)
        names = [split, f"{split}:1", f"{split}:2"]
    counts = (heads, kv_heads, kv_heads)
    names = [_split_heads(body, name, batch, queries, n, size) for name, n in zip(names, counts, strict=True)]
    ends = known(lengths, "a length of the keys").data.reshape(-1)
    known(total_length, "a length of the keys")
    if ends.size != batch or (ends != ends[0]).any():
        raise UnsupportedNodeError("all samples of a batch must have the same length")
    before = int(ends[0]) + 1 - queries
    if before < 0 or (past_k is None and before) or (past_k is not None and past_k.shape[2] < before):
        past = 0 if past_k is None else past_k.shape[2]
        raise InputError(
            f"its {int(ends[0]) + 1} keys must be {queries} new ones and at most {past} past ones"
        )
    if node.int("do_rotary", 0):
        places = (
            body.given(9)
            if positions is not None
            else body.constant(np.arange(before, before + queries)[None], np.int64)
        )
        turn = _rotation(
            body, [body.add("Gather", body.given(i), places, axis=0) for i in (7, 8)], cos.shape[-1], node
        )
        names[:2] = [_rotated(body, name, turn, size, 2 * cos.shape[-1]) for name in names[:2]]
    present = [names[1], names[2]]
    if past_k is not None and past_k.shape[2]:
        room = past_k.shape[2]
        for i in (0, 1):
            parts = [_span(body, body.given(3 + i), 0, before)] if before else []
            names[1 + i] = body.add("Concat", *parts, names[1 + i], axis=2)
            rest = [_span(body, body.given(3 + i), before + queries, room)] if room > before + queries else []
            present[i] = body.add("Concat", names[1 + i], *rest, axis=2) if rest else names[1 + i]
    shape = HeadShape(batch, heads, kv_heads, queries, before + queries, size, size)
    shape.check()
    window = node.int("local_window_size", -1)
    allowed = _visible(queries, shape.keys, before, window - 1 if window > 0 else -1, 0)
    biases = [body.given(10)] if body.given(10) else []
    if not allowed.all():
        biases.append(body.constant(np.where(allowed, 0.0, _MASKED)))
    scale = node.float("scale", 0.0) or size**-0.5
    made, _ = _attend(body, (names[0], names[1], names[2]), shape, scale, node.float("softcap", 0.0), biases)
    results = (_joined_heads(body, made, shape), *present)
    return body.converted(emitter, *results[: len(node.outputs)])


def _span(body: BodyBuilder, x: str, start: int, end: int) -> str:
    """Return positions `start` to `end` of keys or values of shape (batch, heads, length, size)."""
    return body.add("Slice", x, *(body.constant([number], np.int64) for number in (start, end, 2)))


def _rotation(
    body: BodyBuilder, turns: Sequence[str], half: int, node: FileNode
) -> tuple[str, str, np.ndarray]:
    """Return cosines and signed sines for each element of a head, and the partner of each element.

    `turns` are the cosines and sines of shape (batch or 1, length, half).
    """
    interleaved = bool(node.int("interleaved", 0) or node.int("rotary_interleaved", 0))
    pair = np.arange(2 * half) // 2 if interleaved else np.arange(2 * half) % half
    first = np.arange(2 * half) % 2 == 0 if interleaved else np.arange(2 * half) < half
    partner = np.arange(2 * half) ^ 1 if interleaved else np.roll(np.arange(2 * half), half)
    index = body.constant(pair, np.int64)
    cos, sin = (
        body.add("Unsqueeze", body.add("Gather", turn, index, axis=2), body.constant([1], np.int64))
        for turn in turns
    )
    return cos, body.add("Mul", sin, body.constant(np.where(first, -1.0, 1.0))), partner


def _rotated(body: BodyBuilder, x: str, turn: tuple[str, str, np.ndarray], size: int, turned: int) -> str:
    """Rotate pairs of the first `turned` elements of each head in values of shape (batch, heads, length, size)."""
    cos, sin, partner = turn
    if partner.size != turned or turned > size:
        raise InputError(
            f"{turned} rotated elements must be {partner.size}, twice the columns of the cosines, and at most {size}"
        )
    part, rest = x, ""
    if turned < size:
        widths = body.constant([turned, size - turned], np.int64)
        part = body.add("Split", x, widths, outputs=2, axis=3)
        rest = f"{part}:1"
    swapped = body.add("Gather", part, body.constant(partner, np.int64), axis=3)
    made = body.add("Add", body.add("Mul", part, cos), body.add("Mul", swapped, sin))
    return body.add("Concat", made, rest, axis=3) if rest else made


@converts("RotaryEmbedding", inputs=(3, 4))
def _rotary(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert rotary position embeddings; com.microsoft's operator has its position ids before the caches."""
    microsoft = _domain(node) == "com.microsoft"
    order = (2, 3, 1) if microsoft else (1, 2, 3)
    x, (cos, sin, places) = inputs[0], (inputs[i] for i in order)
    if cos is None or sin is None or cos.shape != sin.shape or not 3 <= len(x.shape) <= 4:
        raise InputError("its cosines and sines must have equal shapes, and its input 3 or 4 dimensions")
    if isinstance(x, DynamicValue) and (x.real or x.tensor.dtype != "float32"):
        raise UnsupportedNodeError("its input must be real and not quantized")
    body, half = BodyBuilder(node, inputs), cos.shape[-1]
    turned, heads = node.int("rotary_embedding_dim", 0) or 0, node.int("num_heads", 0)
    name, batch = body.given(0), x.shape[0]
    if len(x.shape) == 4:
        size, length = x.shape[3], x.shape[2]
    else:
        length, size = x.shape[1], _divided(x.shape[2], heads) if heads else 2 * half
        heads = _divided(x.shape[2], size)
        name = _split_heads(body, name, batch, length, heads, size)
    turns = [body.given(i) for i in order[:2]]
    if places is not None:
        where = body.given(order[2])
        if microsoft and places.shape == (1,):  # position of the first element
            where = body.add("Add", body.constant(np.arange(length)[None], np.int64), where)
        turns = [body.add("Gather", turn, where, axis=0) for turn in turns]
    factor = node.float("scale", 1.0)
    if factor != 1 or node.int("is_packed_batching", 0) or len(cos.shape) != (3 if places is None else 2):
        raise UnsupportedNodeError(
            "its scale must be 1, its batches not packed, and its cosines of 2 dimensions (3 without positions)"
        )
    made = _rotated(body, name, _rotation(body, turns, half, node), size, turned or 2 * half)
    if len(x.shape) == 3:
        made = body.reshaped(body.add("Transpose", made, perm=[0, 2, 1, 3]), *x.shape)
    return body.converted(emitter, made)
