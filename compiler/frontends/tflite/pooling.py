"""Pooling, softmax, and reductions over axes."""

from typing import Any

import tflite

from compiler.frontends.tflite.convolution import window
from compiler.frontends.tflite.registry import TfliteConversion, converts

_REDUCTIONS = {
    "SUM": "reduce_sum",
    "MEAN": "reduce_mean",
    "REDUCE_MAX": "reduce_max",
    "REDUCE_MIN": "reduce_min",
}


@converts("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(c: TfliteConversion) -> None:
    options = c.options(tflite.Pool2DOptions)
    x = c.given(1)[0]
    kernel = (options.FilterHeight(), options.FilterWidth())
    strides, pads = window(c, x, kernel, x.shape[-1] if x.shape else 0, options)
    attributes: dict[str, Any] = {"kernel": kernel, "strides": strides, "pads": pads}
    if c.kind == "AVERAGE_POOL_2D":
        attributes["count_pads"] = False
    op = "avg_pool2d" if c.kind == "AVERAGE_POOL_2D" else "max_pool2d"
    c.make_activated(op, [x], options.FusedActivationFunction(), **attributes)


@converts("SOFTMAX")
def _softmax(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    if not x.shape:
        raise c.error("one number has no softmax")
    beta = float(c.options(tflite.SoftmaxOptions).Beta())
    c.make("softmax", [x], axis=len(x.shape) - 1, beta=beta)


@converts(*_REDUCTIONS)
def _reduce(c: TfliteConversion) -> None:
    x, axes = c.given(2)[:2]
    keep = bool(c.options(tflite.ReducerOptions).KeepDims())
    rank = len(x.shape)
    chosen = tuple(dict.fromkeys(c.axis(axis, rank) for axis in c.numbers(axes, "axes")))
    kept = [1 if i in chosen else size for i, size in enumerate(x.shape) if keep or i not in chosen]
    c.expect(kept)
    c.make(_REDUCTIONS[c.kind], [x], axes=chosen, keep=keep)


@converts("CUMSUM")
def _cumulated(c: TfliteConversion) -> None:
    x, along = c.given(2)[:2]
    options = c.options(tflite.CumsumOptions)
    c.expect(x.shape)
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    c.make("cumsum", [x], axis=axis, exclusive=bool(options.Exclusive()), reverse=bool(options.Reverse()))
