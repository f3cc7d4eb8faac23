"""TFLite front end: file, graphs, and operator conversions with one module per family."""

from compiler.frontends.tflite import (
    control,
    convolution,
    elementwise,
    fallback,
    padding,
    pooling,
    reshape,
    slice,
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
    elementwise,
    padding,
    pooling,
    reshape,
    pooling,
    slice,
    reshape,
)

__all__ = ["CONVERTERS", "FAMILIES", "KNOWN", "read_tflite"]
