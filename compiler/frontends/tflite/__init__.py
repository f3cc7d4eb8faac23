"""TFLite files, in parts: the file, a graph of it, and the conversion of its operators, one module for each family."""

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
