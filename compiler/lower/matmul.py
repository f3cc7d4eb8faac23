"""Products of two stacks of matrices; transposes around them are read and written through, not carried out."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.lower.drains import multiplier_of, rounding_of
from compiler.lower.layer import Layer
from compiler.lower.lowering import DTYPES, Lowering, UnsupportedError, affine, clip_range, image_of
from compiler.lower.transposes import strides_of
from compiler.lower.unary import table_of
from hw.isa.enums import Dtype, Rounding


@identity("Stack", "name", "dtype", "zp", "starts", "pitch", "constant")
@dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """The matrices that a product reads or writes in a tensor.

    Parameters
    ----------
    name : str
        The tensor.
    dtype : Dtype
        Of its elements: one byte each, or of sums four.
    zp : int
        Zero point.
    starts : tuple of int
        Element at which the matrix of each product begins.
    pitch : int
        Elements from row to row.
    constant : bool
        It is part of the model.
    """

    name: str
    dtype: Dtype
    zp: int
    starts: tuple[int, ...]
    pitch: int
    constant: bool = False


@identity(
    "MatmulLayer", "a", "b", "out", "transposed", "size", "mult", "exponent", "rounding", "clip", "table"
)
@dataclass(frozen=True, kw_only=True, eq=False)
class MatmulLayer(Layer):
    """Products of matrices, one after the other.

    Parameters
    ----------
    a, b, out : Stack
        Factors (m, k) and (k, n), products (m, n).
    transposed : bool
        The second factor lies as (n, k).
    size : (int, int, int)
        m, k, n.
    mult, exponent : int
        Scale of the sums.
    rounding : Rounding
        Of that scale.
    clip : (int, int)
        Least and greatest result.
    table : (256,) int16 array or None
        Looked up after clipping; zero point of `out` and clip are of what is looked up.
    """

    a: Stack
    b: Stack
    out: Stack
    transposed: bool
    size: tuple[int, int, int]
    mult: int
    exponent: int
    rounding: Rounding
    clip: tuple[int, int] = field(default=(-128, 127))
    table: NDArray[np.int16] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The factors that are no constants."""
        return tuple(dict.fromkeys(stack.name for stack in (self.a, self.b) if not stack.constant))


def lower_matmul(low: Lowering) -> MatmulLayer:
    """The layer of a product.

    Raises
    ------
    UnsupportedError
        Sizes that the array does not take.
    """
    graph, node = low.graph, low.anchor
    first, second = graph.ins(node)
    made = graph.out(node)
    for tensor in (first, second, made):
        if len(tensor.shape) < 2:
            raise UnsupportedError(f"{tensor.name!r} of shape {list(tensor.shape)} is no matrix")
    m, n = made.shape[-2:]
    k = first.shape[-1]
    batch = made.shape[:-2]
    a, b = _source(low, first), _source(low, second)
    strides_a, strides_b = a[1], b[1]
    if strides_a[-1] != 1 or 1 not in strides_b[-2:]:
        raise UnsupportedError("rows of a factor do not follow one another")
    transposed = strides_b[-1] != 1
    inverse, y = _target(low, made)
    # XNNPACK has no products whose second factor has a zero point; LiteRT's own kernel makes them.
    zero = affine(second).zero_point
    single = zero == 0 or low.rounding != "xnnpack"
    rounding = rounding_of(low, Rounding.DOUBLE) if single else Rounding.DOUBLE
    x, w, y_scale = (affine(tensor).scale for tensor in (first, second, made))
    mult, exponent = multiplier_of(low, x, w, y_scale, rounding)
    shapes = {t.name: image_of(t) for t in (a[0], b[0], y)}
    return MatmulLayer(
        **{**low.common(), "x": a[0].name, "shapes": shapes}, macs=math.prod(batch) * m * n * k,
        a=_stack(a[0], strides_a, batch, first.shape, strides_a[-2]),
        b=_stack(b[0], strides_b, batch, second.shape, strides_b[-1 if transposed else -2]),
        out=replace(_stack(y, inverse, batch, made.shape, inverse[-2]), zp=affine(made).zero_point),
        transposed=transposed, size=(m, k, n), mult=mult, exponent=exponent,
        rounding=rounding, clip=clip_range(made), table=_table(low),
    )  # fmt: skip


def _table(low: Lowering) -> NDArray[np.int16] | None:
    """That of the function behind the product."""
    nodes = [node for node in low.nodes if node is not low.anchor and node.op != "transpose"]
    return table_of(low.graph, nodes[0], low.rounding) if nodes else None


def _source(low: Lowering, tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor a factor is read from, and its strides there."""
    maker = low.graph.producer(tensor.name)
    if maker is None or maker.op != "transpose" or maker not in low.nodes:
        return tensor, strides_of(tensor.shape)
    source = low.graph.ins(maker)[0]
    return source, strides_of(source.shape, maker.attributes["perm"])


def _target(low: Lowering, made: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Strides of the product in the tensor it is written to, and that tensor."""
    last = low.nodes[-1]
    if last.op != "transpose":
        return strides_of(made.shape), low.graph.out(last)
    y, perm = low.graph.out(last), last.attributes["perm"]
    strides = strides_of(y.shape)
    return tuple(strides[perm.index(i)] for i in range(len(perm))), y


def _stack(
    tensor: Tensor, strides: tuple[int, ...], batch: tuple[int, ...], shape: tuple[int, ...], pitch: int
) -> Stack:
    """The matrices of a tensor, repeated where the product's leading dimensions are greater."""
    lead = shape[:-2]
    steps = [0] * (len(batch) - len(lead)) + [
        0 if size == 1 else step for size, step in zip(lead, strides[: len(lead)], strict=True)
    ]
    starts = tuple(int(np.dot(index, steps)) if steps else 0 for index in np.ndindex(*batch))
    return Stack(
        name=tensor.name, dtype=DTYPES[tensor.dtype], zp=affine(tensor).zero_point, starts=starts,
        pitch=pitch, constant=tensor.constant,
    )  # fmt: skip
