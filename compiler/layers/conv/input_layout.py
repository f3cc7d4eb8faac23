"""Input layouts of convolutions: im2col, and output pixels packed into channels."""

from dataclasses import replace
from enum import StrEnum

import numpy as np

from compiler.commands.commands import TensorLayout
from compiler.layers.base import Drain
from compiler.layers.conv.layer import ConvLayer
from compiler.schedule.schedule import LayerSchedule


class Im2colLayout(StrEnum):
    """Kernel dimensions that are folded into the reduction dimension."""

    PIXELS = "pixels"  # no dimension: pixels are separate
    ROWS = "rows"  # the columns; rows are stored with left and right padding
    STRIPS = "strips"  # both; for each output column, the pixels under its kernel are stored row by row


def can_fold(layer: ConvLayer, on_chip: bool, layout: Im2colLayout) -> bool:
    """Return True if a convolution supports a layout.

    `PIXELS` is always supported. The other layouts store padding and need pixels that are contiguous in memory.
    """
    if on_chip or layer.groups > 1 or layer.dilations[1] > 1 or layer.weights.shape[2] == 1:
        return layout == Im2colLayout.PIXELS
    return layout != Im2colLayout.STRIPS or layer.dilations[0] == 1


def layout_of(layer: ConvLayer, schedule: LayerSchedule, x: TensorLayout) -> Im2colLayout:
    """Return the layout that a schedule selects, or `PIXELS` if the convolution does not support it."""
    if schedule.im2col and x.pixel == x.c and can_fold(layer, x.on_chip, Im2colLayout.STRIPS):
        return Im2colLayout.STRIPS
    return (
        Im2colLayout.ROWS
        if schedule.fold_kernel_width and can_fold(layer, x.on_chip, Im2colLayout.ROWS)
        else Im2colLayout.PIXELS
    )


def can_pack_pixels(layer: ConvLayer, pixels: int) -> bool:
    """Return True if `pixels` adjacent output pixels can be computed as one."""
    y = layer.shapes[layer.y]
    return (
        layer.groups == 1 and layer.dilations[1] == 1 and layer.drain.residual is None and y.w % pixels == 0
    )


def pack_pixels(layer: ConvLayer, pixels: int) -> ConvLayer:
    """Return the convolution that computes `pixels` adjacent output pixels as one pixel with concatenated channels.

    The bytes of the result are unchanged. The new kernel covers the kernels of all these pixels; the weights
    outside the kernel of a pixel are set to the zero point.
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
        drain=repeated(drain, pixels),
        strides=(layer.strides[0], stride * pixels),
        shapes=layer.shapes | {layer.y: image},
    )


def repeated(drain: Drain, pixels: int) -> Drain:
    """Return the drain of `pixels` adjacent pixels, whose channels are concatenated."""
    parameters = {name: np.tile(getattr(drain, name), pixels) for name in ("bias", "mult", "exponent")}
    return replace(drain, **parameters)
