"""Post-training quantization: converts a float32 graph, given samples of its inputs, to a graph of int8 operators."""

from compiler.quantize.bits import WeightNarrower, fit_bits
from compiler.quantize.quantize import quantize
from compiler.quantize.report import LayerBits, OutputReport, QuantizationReport, TensorReport, WeightReport
from compiler.quantize.weights import (
    GroupWeights,
    WeightReader,
    activation_scales,
    group_weights,
    prune_mask,
    quantize_groups,
    tune_groups,
)

__all__ = [
    "GroupWeights",
    "LayerBits",
    "OutputReport",
    "QuantizationReport",
    "TensorReport",
    "WeightNarrower",
    "WeightReader",
    "WeightReport",
    "activation_scales",
    "fit_bits",
    "group_weights",
    "prune_mask",
    "quantize",
    "quantize_groups",
    "tune_groups",
]
