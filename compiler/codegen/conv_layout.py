"""What of a convolution's kernel becomes part of the reduction dimension."""

from enum import StrEnum

from compiler.codegen.home import Home
from compiler.lower.layer import ConvLayer
from compiler.schedule.schedule import LayerSchedule


class Layout(StrEnum):
    """What of the kernel is part of the reduction dimension."""

    PIXELS = "pixels"  # nothing: a pixel after the other
    ROWS = "rows"  # its columns: rows with their padding left and right
    STRIPS = "strips"  # all of it: for each output column the pixels that its kernel comes to, row under row


def can_fold(layer: ConvLayer, on_chip: bool, layout: Layout) -> bool:
    """Whether a convolution's image can have a layout: neighbours are neighbours in memory, padding is stored."""
    if on_chip or layer.groups > 1 or layer.dilations[1] > 1 or layer.weights.shape[2] == 1:
        return layout == Layout.PIXELS
    return layout != Layout.STRIPS or layer.dilations[0] == 1


def layout_of(layer: ConvLayer, schedule: LayerSchedule, x: Home) -> Layout:
    """The layout a schedule asks for, if it is possible."""
    if schedule.im2col and x.pixel == x.c and can_fold(layer, x.on_chip, Layout.STRIPS):
        return Layout.STRIPS
    return (
        Layout.ROWS
        if schedule.fold_kernel_width and can_fold(layer, x.on_chip, Layout.ROWS)
        else Layout.PIXELS
    )
