"""Cumulated sums as products with a triangle of ones."""

import numpy as np

from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.epilogue_lowering import drain_of, rounding_of
from compiler.layers.layer_kind import BYTES_TO_BYTES, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from hw.isa.enums import Rounding

#: Longest sum: its triangle takes the square of that in DRAM.
_MOST = 2048


def lower_cumsum(low: LoweringContext) -> ConvLayer:
    """Each output is the product of all elements with a row of ones and zeros.

    Raises
    ------
    UnsupportedLoweringError
        It is not along the last dimension, or too long.
    """
    a, x = low.anchor.attributes, low.x
    if a["axis"] % len(x.shape) != len(x.shape) - 1:
        raise UnsupportedLoweringError("sums are cumulated along the last dimension only")
    size = x.shape[-1]
    if size > _MOST:
        raise UnsupportedLoweringError(f"{size:,} elements are cumulated, more than {_MOST:,}")
    ones = np.tril(np.ones((size, size), np.int8), -1 if a["exclusive"] else 0)
    data = np.ascontiguousarray(ones.T if a["reverse"] else ones)
    triangle = Tensor(f"{low.anchor.name}:triangle", data.shape, "int8", Quantization.of(1.0), data)
    drain = drain_of(low, triangle, None, rounding_of(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    return ConvLayer(**common, weights=data[:, None, None, :], drain=drain, x_zp=affine(x).zero_point)


LOWERINGS = {"cumsum": Lowering(lower_cumsum, BYTES_TO_BYTES, epilogue=True)}
