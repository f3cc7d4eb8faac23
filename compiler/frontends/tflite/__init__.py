"""TFLite front end: file, graphs, and operator conversions with one module per family."""

from compiler.frontends.tflite import (
    control,
    convolution,
    elementwise,
    fallback,
    min_max,
    padding,
    pooling,
    reshape,
    resize,
    slice,
    tile,
)
from compiler.frontends.tflite.constant_folding import KNOWN
from compiler.frontends.tflite.file import read_tflite
from compiler.frontends.tflite.registry import CONVERTERS

#: Modules whose import registers all conversions.
FAMILIES = (
    control,
    convolution,
    elementwise,
    fallback,
    min_max,
    padding,
    pooling,
    reshape,
    resize,
    slice,
    tile,
)

__all__ = ["CONVERTERS", "FAMILIES", "KNOWN", "read_tflite"]
