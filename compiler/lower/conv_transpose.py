"""Transposed convolutions as convolutions, one for each phase of the strides.

Output pixels whose position, leading pads added, leaves the same remainder by the strides see the same taps of the
kernel, in the opposite order: together they are an ordinary convolution, whose results lie some pixels apart.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.lower.drains import drain_of, rounding_of, weights_of, zero_of
from compiler.lower.layer import ConvLayer, Layer
from compiler.lower.lowering import Lowering, UnsupportedError, affine
from hw.isa.enums import Rounding


@identity("Phase", "conv", "offset")
@dataclass(frozen=True, eq=False)
class Phase:
    """The pixels of the output that are `strides` apart, from `offset` (row, column) on."""

    conv: ConvLayer
    offset: tuple[int, int]


@identity("ConvTransposeLayer", "phases", "strides")
@dataclass(frozen=True, kw_only=True, eq=False)
class ConvTransposeLayer(Layer):
    """Convolutions whose results are interleaved, `strides` (rows, columns) apart."""

    phases: tuple[Phase, ...]
    strides: tuple[int, int]


@dataclass(frozen=True)
class _Line:
    """One phase along one dimension: first output, number of outputs, taps in order (None: zero), padding before."""

    offset: int
    count: int
    taps: tuple[int | None, ...]
    pad: int


def lower_conv_transpose(low: Lowering) -> ConvTransposeLayer:
    """The layer of a transposed convolution.

    Raises
    ------
    UnsupportedError
        As of convolutions.
    """
    weights, bias = weights_of(low)
    assert weights.data is not None
    a, common = low.anchor.attributes, low.common()
    x, y = common["shapes"][common["x"]], common["shapes"][common["y"]]
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    batch, height = low.x.shape[0], low.y.shape[1]
    if batch > 1 and height % a["strides"][0]:
        raise UnsupportedError(f"images of a batch whose {height} rows are no multiple of the stride")
    lines = [
        _lines(size, kernel, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, (size, kernel) in enumerate(zip((height, y.w), weights.shape[1:3], strict=True))
    ]
    phases = []
    for number, (rows, columns) in enumerate((r, c) for r in lines[0] for c in lines[1]):
        image = replace(y, h=batch * rows.count, w=columns.count)
        part = _taps(weights.data, rows.taps, columns.taps, zero_of(weights))
        conv = ConvLayer(
            **common | {"name": f"{common['name']}.{number}", "shapes": common["shapes"] | {common["y"]: image}},
            macs=image.h * image.w * part.size, weights=part, drain=drain, groups=a["groups"],
            batch=batch, pads=(rows.pad, columns.pad, 0, 0), x_zp=affine(low.x).zero_point, w_zp=zero_of(weights),
        )  # fmt: skip
        phases.append(Phase(conv, (rows.offset, columns.offset)))
    reached = [
        _reached(size, made, kernel, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, (size, made, kernel) in enumerate(
            zip((low.x.shape[1], x.w), (height, y.w), weights.shape[1:3], strict=True)
        )
    ]
    taps = weights.shape[1] * weights.shape[2]
    macs = batch * reached[0] * reached[1] * (weights.elements // taps)
    return ConvTransposeLayer(**common, macs=macs, phases=tuple(phases), strides=a["strides"], batch=batch)


def _reached(size: int, made: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    """Pairs of an input and a tap along a dimension that reach an output: padding cuts some off."""
    places = (i * stride + k * dilation - pad for i in range(size) for k in range(kernel))
    return sum(0 <= place < made for place in places)


def _lines(size: int, kernel: int, stride: int, dilation: int, pad: int) -> list[_Line]:
    """All phases along a dimension of `size` outputs."""
    out = []
    for offset in range(min(stride, size)):
        # Output offset + stride * t gets tap k of input t - distance, which is a whole number of pixels away.
        distances = {
            (k * dilation - offset - pad) // stride: k
            for k in range(kernel)
            if (k * dilation - offset - pad) % stride == 0
        }
        far = max(distances, default=0)
        near = min(min(distances, default=0), far)
        # A convolution pads, it does not skip: inputs before the first that counts get taps of zero.
        far = max(far, 0)
        taps = tuple(distances.get(distance) for distance in range(far, near - 1, -1))
        out.append(_Line(offset, -(-(size - offset) // stride), taps, far))
    return out


def _taps(
    weights: NDArray, rows: tuple[int | None, ...], columns: tuple[int | None, ...], zero: int
) -> NDArray:
    """The weights of a phase; taps that are none have the value that stands for zero."""
    out_c, _, _, in_c = weights.shape
    out = np.full((out_c, len(rows), len(columns), in_c), zero, weights.dtype)
    for i, ky in enumerate(rows):
        for j, kx in enumerate(columns):
            if ky is not None and kx is not None:
                out[:, i, j] = weights[:, ky, kx]
    return out
