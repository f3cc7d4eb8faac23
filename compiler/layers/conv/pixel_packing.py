"""Packs adjacent output pixels into channels so that a convolution with few output channels fills the array."""

from dataclasses import replace

import numpy as np

from compiler.layers.base import Drain
from compiler.layers.conv.layer import ConvLayer


def can_pack_pixels(layer: ConvLayer, pixels: int) -> bool:
    """True if `pixels` neighbouring output pixels can be computed as one."""
    y = layer.shapes[layer.y]
    return (
        layer.groups == 1 and layer.dilations[1] == 1 and layer.drain.residual is None and y.w % pixels == 0
    )


def pack_pixels(layer: ConvLayer, pixels: int) -> ConvLayer:
    """The convolution that computes `pixels` output pixels as one, whose channels are theirs one after the other.

    The bytes of the result are the same. Its kernel is as wide as all of theirs; a weight of the zero point stands
    where one of them does not reach.
    """
    out_c, kernel_h, kernel_w, in_c = layer.weights.shape
    stride, y, drain = layer.strides[1], layer.shapes[layer.y], layer.drain
    width = kernel_w + (pixels - 1) * stride
    weights = np.full((pixels, out_c, kernel_h, width, in_c), layer.w_zp, layer.weights.dtype)
    for pixel in range(pixels):
        weights[pixel, :, :, pixel * stride : pixel * stride + kernel_w] = layer.weights
    image = replace(y, w=y.w // pixels, c=y.c * pixels)
    return replace(
        layer,
        weights=weights.reshape(pixels * out_c, kernel_h, width, in_c),
        drain=_repeated(drain, pixels),
        strides=(layer.strides[0], stride * pixels),
        shapes=layer.shapes | {layer.y: image},
    )


def _repeated(drain: Drain, pixels: int) -> Drain:
    parameters = {name: np.tile(getattr(drain, name), pixels) for name in ("bias", "mult", "exponent")}
    return replace(drain, **parameters)
