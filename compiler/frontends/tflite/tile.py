"""TFLite TILE, BROADCAST_TO and REVERSE."""

import math

from compiler.frontends.tflite.registry import TfliteConversion, converts

#: Most elements that may be made so.
_MOST = 1 << 28


@converts("TILE")
def _tile(c: TfliteConversion) -> None:
    x, copies = c.given(2)[:2]
    times = c.numbers(copies, "numbers of copies", len(x.shape))
    if min(times, default=1) < 1 or math.prod(times) * x.elements > _MOST:
        raise c.error(f"cannot make {list(times)} copies of {list(x.shape)}")
    c.expect([size * count for size, count in zip(x.shape, times, strict=True)])
    again = enumerate(zip(x.shape, times, strict=True))
    c.make_rows(x, [(axis, [*range(size)] * count) for axis, (size, count) in again if count > 1])


@converts("BROADCAST_TO")
def _broadcast(c: TfliteConversion) -> None:
    x, wanted = c.given(2)[:2]
    shape = c.output.shape
    c.expect(c.numbers(wanted, "shape"))
    if len(shape) < len(x.shape) or c.output.elements > _MOST:
        raise c.error(f"{list(x.shape)} cannot become {list(shape)}")
    ranked = (1,) * (len(shape) - len(x.shape)) + x.shape
    if any(size not in (1, whole) for size, whole in zip(ranked, shape, strict=True)):
        raise c.error(f"{list(x.shape)} cannot become {list(shape)}")
    spread = [axis for axis, size in enumerate(shape) if ranked[axis] != size]
    x = c.reshaped("rank", x, ranked) if spread else x
    c.make_rows(x, [(axis, [0] * shape[axis]) for axis in spread])


@converts("REVERSE_V2")
def _reverse(c: TfliteConversion) -> None:
    x, axes = c.given(2)[:2]
    turned = {c.axis(axis, len(x.shape)) for axis in c.numbers(axes, "axes")}
    c.expect(x.shape)
    starts = tuple(size - 1 if i in turned else 0 for i, size in enumerate(x.shape))
    steps = tuple(-1 if i in turned and size > 1 else 1 for i, size in enumerate(x.shape))
    c.make("slice", [x], starts=starts, sizes=x.shape, steps=steps)
