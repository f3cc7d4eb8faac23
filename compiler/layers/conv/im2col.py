"""Layouts of convolution inputs that make kernel dimensions part of the reduction (im2col)."""

from enum import StrEnum

from compiler.commands.tensor_layout import TensorLayout
from compiler.layers.conv.layer import ConvLayer
from compiler.schedule.schedule import LayerSchedule


class Im2colLayout(StrEnum):
    """Kernel dimensions that are part of the reduction dimension."""

    PIXELS = "pixels"  # nothing: a pixel after the other
    ROWS = "rows"  # its columns: rows with their padding left and right
    STRIPS = "strips"  # all of it: for each output column the pixels that its kernel comes to, row under row


def can_fold(layer: ConvLayer, on_chip: bool, layout: Im2colLayout) -> bool:
    """True if a convolution's image can have a layout: neighbours are neighbours in memory, padding is stored."""
    if on_chip or layer.groups > 1 or layer.dilations[1] > 1 or layer.weights.shape[2] == 1:
        return layout == Im2colLayout.PIXELS
    return layout != Im2colLayout.STRIPS or layer.dilations[0] == 1


def layout_of(layer: ConvLayer, schedule: LayerSchedule, x: TensorLayout) -> Im2colLayout:
    """The layout a schedule asks for, if it is possible."""
    if schedule.im2col and x.pixel == x.c and can_fold(layer, x.on_chip, Im2colLayout.STRIPS):
        return Im2colLayout.STRIPS
    return (
        Im2colLayout.ROWS
        if schedule.fold_kernel_width and can_fold(layer, x.on_chip, Im2colLayout.ROWS)
        else Im2colLayout.PIXELS
    )
