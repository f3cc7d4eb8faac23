"""TFLite files, in parts: the file, a graph of it, and the conversion of its operators, one module for each family."""

from compiler.frontends.tflite import (
    control,
    convolution,
    elementwise,
    extremes,
    fallback,
    functions,
    padding,
    parts,
    pooling,
    products,
    repeating,
    resizing,
    shaping,
    strides,
)
from compiler.frontends.tflite.file import read_tflite
from compiler.frontends.tflite.known import KNOWN
from compiler.frontends.tflite.registry import CONVERTERS

#: Modules whose import enters all conversions.
FAMILIES = (
    control, convolution, elementwise, extremes, fallback, functions, padding, parts, pooling, products, repeating,
    resizing, shaping, strides,
)  # fmt: skip

__all__ = ["CONVERTERS", "FAMILIES", "KNOWN", "read_tflite"]
