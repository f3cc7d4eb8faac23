"""TFLite padding with a constant value or by mirroring."""

import tflite

from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor

_Pairs = tuple[tuple[int, int], ...]


def _pairs(c: TfliteConversion, x: Tensor, pads: Tensor) -> _Pairs:
    """Padding before and after each dimension."""
    flat = c.numbers(pads, "paddings", 2 * len(x.shape))
    pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
    if min(flat, default=0) < 0:
        raise c.error(f"paddings must not be negative: {list(pairs)}")
    c.expect([size + sum(pair) for size, pair in zip(x.shape, pairs, strict=True)])
    return pairs


@converts("PAD", "PADV2")
def _pad(c: TfliteConversion) -> None:
    x, pads, *fill = c.given(3 if c.kind == "PADV2" else 2)
    pairs, value = _pairs(c, x, pads), 0.0
    if fill and c.kind == "PADV2":
        data, q = fill[0].data, fill[0].quantization
        if data is None or data.size != 1:
            raise c.error("its value must be one constant")
        value = float((data if q is None else q.dequantized(data)).reshape(-1)[0])
    elif x.quantization is None and x.dtype.startswith(("int", "uint")):
        value = 0
    c.make("pad", [x], pads=pairs, value=value)


@converts("MIRROR_PAD")
def _mirror_pad(c: TfliteConversion) -> None:
    """Rows gathered along one dimension after the other."""
    x, pads = c.given(2)[:2]
    symmetric = c.options(tflite.MirrorPadOptions).Mode() == tflite.MirrorPadMode.SYMMETRIC
    chosen = []
    for axis, (before, after) in enumerate(_pairs(c, x, pads)):
        size, again = x.shape[axis], int(symmetric)
        if max(before, after) > size - 1 + again:
            raise c.error(f"axis {axis} of {size} has no {max(before, after)} elements to mirror")
        left = range(before - again, -again, -1)
        right = range(size - 2 + again, size - 2 + again - after, -1)
        if before or after:
            chosen.append((axis, [*left, *range(size), *right]))
    c.make_rows(x, chosen)
