"""Post-training quantization: converts a float32 graph, given samples of its inputs, to a graph of int8 operators."""

from compiler.quantize.quantize import quantize
from compiler.quantize.report import OutputReport, QuantizationReport, TensorReport

__all__ = ["OutputReport", "QuantizationReport", "TensorReport", "quantize"]
