"""Convolution cases: one image, padded by half the kernel size."""

import numpy as np

from compiler.bench.case import Case, Work, sizes
from compiler.bench.reference import REFERENCE, WindowShape, conv_sums, depthwise_sums, requantize
from compiler.bench.single_layer import X_ZERO, Y_ZERO, OneLayer, random_int8
from hw.errors import InputError, shown

CASES = (
    "14x14x64-64-3-1",
    "56x56x64-64-3-1",
    "28x28x128-128-3-2",
    "7x7x512-512-3-1",
    "56x56x64-256-1-1",
    "112x112x3-32-3-2",
    "7x7x512-512-3-1-dw",
    "56x56x128-128-3-1-dw",
    "112x112x64-64-3-2-dw",
)


def conv_case(name: str) -> Case:
    """Return the case for a name of the form HxWxC-O-k-s[-dw].

    Raises
    ------
    InputError
        The name is malformed, or a depthwise convolution changes the number of channels.
    """
    values = sizes(r"(\d+)x(\d+)x(\d+)-(\d+)-(\d+)-(\d+)(?:-dw)?", name)
    if values is None:
        raise InputError(f"a convolution case must be HxWxC-O-k-s or HxWxC-O-k-s-dw, not {shown(name)}")
    h, w, c, o, k, s = values
    if name.endswith("-dw") and c != o:
        raise InputError(f"a depthwise convolution must keep its channels, not turn {c} into {o}: {name!r}")
    window = WindowShape(h, w, k, s)
    prepare = _depthwise if name.endswith("-dw") else _normal
    return Case(name, REFERENCE, lambda rng: prepare(rng, window, c, o))


def _normal(rng: np.random.Generator, window: WindowShape, c: int, o: int) -> Work:
    k = window.kernel
    layer = OneLayer(rng, (o, k, k, c), 0, k * k * c)
    return _work(rng, window, "conv2d", layer, c, o, groups=1)


def _depthwise(rng: np.random.Generator, window: WindowShape, c: int, o: int) -> Work:
    k = window.kernel
    return _work(rng, window, "depthwise_conv2d", OneLayer(rng, (k, k, c), 2, k * k), c, o)


def _work(
    rng: np.random.Generator, window: WindowShape, op: str, layer: OneLayer, c: int, o: int, **more: int
) -> Work:
    x = random_int8(rng, window.h, window.w, c)
    sums = (conv_sums if op == "conv2d" else depthwise_sums)(
        x.astype(np.int64) - X_ZERO, layer.weights, window
    )
    expected = requantize(sums + layer.bias, layer.ratios(), Y_ZERO)
    graph = layer.graph(
        op,
        (1, *x.shape),
        (1, *expected.shape),
        strides=(window.stride,) * 2,
        pads=(window.pad,) * 4,
        dilations=(1, 1),
        **more,
    )
    return Work(graph, {"x": x[None]}, {"y": expected[None]})
