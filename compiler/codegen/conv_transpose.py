"""Transposed convolutions as commands: convolutions whose results lie apart from one another."""

from dataclasses import replace

from compiler.codegen.build import Context
from compiler.codegen.command import Step
from compiler.codegen.conv import conv_steps
from compiler.codegen.home import Home
from compiler.lower.conv_transpose import ConvTransposeLayer, Phase


def conv_transpose_steps(context: Context, layer: ConvTransposeLayer) -> list[Step]:
    """The steps of a transposed convolution, phase by phase."""
    y = context.homes[layer.y]
    return [
        step
        for phase in layer.phases
        for step in conv_steps(
            replace(context, homes=context.homes | {layer.y: _home(y, layer.strides, phase)}), phase.conv
        )
    ]


def _home(y: Home, strides: tuple[int, int], phase: Phase) -> Home:
    """The pixels of a phase as an image."""
    image = phase.conv.shapes[phase.conv.y]
    first = y.at(*phase.offset)
    return Home(
        y.ring, image.h, image.w, y.c, strides[1] * y.pixel, strides[0] * y.row, first.offset
    )  # fmt: skip
