"""Post-training quantization: a float32 graph and samples of its inputs become a graph of int8 operators."""

from compiler.quantize.quantize import quantize
from compiler.quantize.report import OutputReport, QuantizationReport, TensorReport

__all__ = ["OutputReport", "QuantizationReport", "TensorReport", "quantize"]
