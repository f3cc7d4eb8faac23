"""TFLite front end: file reader, constant folding, and operator conversions with one module per family."""

from compiler.frontends.tflite import (
    elementwise,
    fallback,
    layers,
    recurrent,
    reshape,
    state,
)
from compiler.frontends.tflite.reader import KNOWN, read_tflite
from compiler.frontends.tflite.registry import CONVERTERS

#: Modules whose import registers all conversions.
FAMILIES = (elementwise, fallback, layers, recurrent, reshape, state)

__all__ = ["CONVERTERS", "FAMILIES", "KNOWN", "read_tflite"]
