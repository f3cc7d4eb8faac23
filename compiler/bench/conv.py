"""Convolution cases: one image, padding of half the kernel, int8 in and out, a scale for each channel."""

import numpy as np

from compiler.bench.case import Case, Work, sizes
from compiler.bench.gemm import random_int8, random_scales
from compiler.bench.reference import conv_sums, depthwise_sums, requantize
from compiler.kernels.conv import Conv, conv_operands, conv_tiles, pack_conv_weights
from compiler.kernels.depthwise import depthwise_operands, depthwise_tiles, pack_depthwise_weights
from compiler.kernels.library import Library
from compiler.kernels.scaling import param_image
from hw.errors import InputError, shown

CASES = (
    "14x14x64-64-3-1",
    "56x56x64-64-3-1",
    "28x28x128-128-3-2",
    "56x56x64-256-1-1",
    "112x112x3-32-3-2",
    "7x7x512-512-3-1-dw",
    "56x56x128-128-3-1-dw",
    "112x112x64-64-3-2-dw",
)
_ZP, _A_ZP = -3, 5


def conv_case(name: str) -> Case:
    """Case of a name HxWxC-O-k-s[-dw].

    Raises
    ------
    InputError
        The name is not of that form, or a depthwise convolution changes the number of channels.
    """
    values = sizes(r"(\d+)x(\d+)x(\d+)-(\d+)-(\d+)-(\d+)(?:-dw)?", name)
    if values is None:
        raise InputError(f"a convolution case must be HxWxC-O-k-s or HxWxC-O-k-s-dw, not {shown(name)}")
    h, w, c, o, k, s = values
    depthwise = name.endswith("-dw")
    if depthwise and c != o:
        raise InputError(f"a depthwise convolution must keep its channels, not turn {c} into {o}: {name!r}")
    conv = Conv(h, w, c, o, (k, k), (s, s), (k // 2, k // 2, k // 2, k // 2))
    weights = k * k * c * (1 if depthwise else o)
    traffic = h * w * c + weights + conv.out_h * conv.out_w * o + 4 * o
    return Case(
        name=name,
        macs=conv.macs // (o if depthwise else 1),
        traffic=traffic,
        dram_bytes=2 * traffic + 64 * (k * k * c + o),
        prepare=lambda library, rng: (_depthwise if depthwise else _normal)(library, rng, conv),
    )


def _normal(library: Library, rng: np.random.Generator, conv: Conv) -> Work:
    config, put = library.config, library.driver.put
    x = random_int8(rng, conv.in_h, conv.in_w, conv.in_c)
    weights = random_int8(rng, conv.out_c, *conv.kernel, conv.in_c)
    bias = rng.integers(-1000, 1000, conv.out_c)
    mult, exp = random_scales(rng, conv.out_c, conv.in_c * conv.kernel[0] * conv.kernel[1])
    y = put(np.zeros((conv.out_h, conv.out_w, conv.out_c), np.int8))
    operands = conv_operands(
        config, conv, conv_tiles(config, conv), x=put(x), w=put(pack_conv_weights(config, weights)), y=y,
        p=put(param_image(config.n, bias, mult, exp)), zp=_ZP, a_zp=_A_ZP,
    )  # fmt: skip
    expected = requantize(conv_sums(x, weights, conv, _A_ZP) + bias, mult, exp, _ZP)
    opcode = library.bind("conv2d_i8")
    return Work(y, expected, lambda: library.driver.enqueue(opcode, operands, irq=True))


def _depthwise(library: Library, rng: np.random.Generator, conv: Conv) -> Work:
    config, put, channels = library.config, library.driver.put, conv.in_c
    x = random_int8(rng, conv.in_h, conv.in_w, channels)
    weights = random_int8(rng, *conv.kernel, channels)
    bias = rng.integers(-1000, 1000, channels)
    mult, exp = random_scales(rng, channels, conv.kernel[0] * conv.kernel[1])
    y = put(np.zeros((conv.out_h, conv.out_w, channels), np.int8))
    operands = depthwise_operands(
        config, conv, depthwise_tiles(config, conv), x=put(x), w=put(pack_depthwise_weights(config, weights)),
        y=y, p=put(param_image(config.n, bias, mult, exp)), zp=_ZP, a_zp=_A_ZP,
    )  # fmt: skip
    expected = requantize(depthwise_sums(x, weights, conv, _A_ZP) + bias, mult, exp, _ZP)
    opcode = library.bind("depthwise_i8")
    return Work(y, expected, lambda: library.driver.enqueue(opcode, operands, irq=True))
