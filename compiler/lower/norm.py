"""Normalizations over the last axis."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.lower.layer import Layer
from compiler.lower.lowering import Lowering, UnsupportedError, affine, clip_range

#: Most elements of a row: more could lose a small variance among large squares.
_MOST = 8192
#: What the result may be beyond the range of a byte's zero points and values before it is sure to be clipped.
_MARGIN = 257


@identity("NormLayer", "centred", "x_zp", "epsilon", "gamma", "beta", "bits", "shift", "y_zp", "clip")
@dataclass(frozen=True, kw_only=True, eq=False)
class NormLayer(Layer):
    """Rows less their mean (or not), divided by the root of mean square and epsilon, times gamma, plus beta.

    Parameters
    ----------
    centred : bool
        The mean is taken away.
    x_zp : int
        Zero point of x.
    epsilon : float
        In squares of steps of x.
    gamma : (columns,) int16 array
        Factors, times 2**(shift) / sqrt(columns), in steps of the result times 2**bits.
    beta : (columns,) int16 array
        Summands, in steps of the result times 2**bits.
    bits, shift : int
        See above.
    y_zp : int
        Zero point of the result.
    clip : (int, int)
        Least and greatest result.
    """

    centred: bool
    x_zp: int
    epsilon: float
    gamma: NDArray[np.int16]
    beta: NDArray[np.int16]
    bits: int
    shift: int
    y_zp: int
    clip: tuple[int, int]


def lower_norm(low: Lowering) -> NormLayer:
    """The layer of a normalization.

    Raises
    ------
    UnsupportedError
        Another axis, or numbers that its fixed point does not take.
    """
    x, y, node = low.x, low.y, low.anchor
    if not x.shape or node.attributes["axis"] % len(x.shape) != len(x.shape) - 1:
        raise UnsupportedError("a normalization is along the last dimension only")
    columns = x.shape[-1]
    if columns > _MOST:
        raise UnsupportedError(f"a normalization over {columns} elements, more than {_MOST}")
    given = [_row(tensor, columns) for tensor in low.graph.ins(node)[1:]]
    gamma = given[0] if given else np.ones(columns)
    beta = given[1] if len(given) > 1 else np.zeros(columns)
    step = affine(y).scale
    bits = 15 - int(np.ceil(np.log2(np.abs(beta).max() / step + _MARGIN)))
    if bits < 0:
        raise UnsupportedError("beta is more than 32,510 steps of the result")
    greatest = np.abs(gamma).max() or 1.0
    unit = np.sqrt(columns) * 2.0**bits / step
    shift = int(np.ceil(np.log2(unit * greatest / np.iinfo(np.int16).max)))
    if not -64 <= shift <= 64:
        raise UnsupportedError(f"gamma of up to {greatest:.3g} in steps of {step:.3g}")
    centred = node.op == "layer_norm"
    return NormLayer(
        **low.common(), centred=centred, x_zp=0 if centred else affine(x).zero_point,
        epsilon=float(node.attributes["epsilon"]) / affine(x).scale ** 2,
        gamma=np.rint(gamma * unit / 2.0**shift).astype(np.int16),
        beta=np.rint(beta / step * 2.0**bits).astype(np.int16), bits=bits, shift=shift,
        y_zp=affine(y).zero_point, clip=clip_range(y),
    )  # fmt: skip


def _row(tensor: Tensor, columns: int) -> NDArray[np.float64]:
    """A constant for each column, in real numbers."""
    if tensor.data is None:
        raise UnsupportedError(f"{tensor.name!r} must be constant")
    if tensor.elements not in (1, columns):
        raise UnsupportedError(f"{tensor.name!r} must have {columns} elements, not {tensor.elements}")
    q = tensor.quantization
    real = tensor.data if q is None else q.dequantized(tensor.data)
    row = np.broadcast_to(real.astype(np.float64).reshape(-1), columns)
    if not np.isfinite(row).all():
        raise UnsupportedError(f"{tensor.name!r} has elements that are not finite")
    return row
