"""Builder of quantized ONNX networks in QDQ form: float operators between DequantizeLinear and QuantizeLinear."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.networks.quantize import Affine, quantize_bias, quantize_weight

OPSET = 17
IR_VERSION = 8


class QdqBuilder:
    """Builder of a chain of quantized operators; each method takes and returns the name of a tensor.

    Parameters
    ----------
    name : str
        Name of the graph.
    input_name : str
        Name of the int8 input tensor.
    input_shape : sequence
        Shape of the input; a string names a symbolic dimension.
    input_affine : Affine
        Scale and zero point of the input.
    """

    def __init__(self, name: str, input_name: str, input_shape: Sequence[int | str], input_affine: Affine):
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.affine: dict[str, Affine] = {}
        self.input = helper.make_tensor_value_info(input_name, TensorProto.INT8, input_shape)
        self.start = self._dequantize(input_name, input_affine, input_name)

    def _constant(self, name: str, value: Any) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _affine_constants(self, name: str, affine: Affine) -> list[str]:
        return [
            self._constant(f"{name}_scale", np.float32(affine.scale)),
            self._constant(f"{name}_zero_point", np.int8(affine.zero_point)),
        ]

    def _dequantize(self, quantized: str, affine: Affine, name: str) -> str:
        self.affine[f"{name}_real"] = affine
        constants = self._affine_constants(name, affine)
        return self._node("DequantizeLinear", [quantized, *constants], f"{name}_real")

    def _requantize(self, x: str, affine: Affine, name: str) -> str:
        """Add QuantizeLinear and DequantizeLinear nodes with shared constants."""
        self.affine[f"{name}_real"] = affine
        constants = self._affine_constants(name, affine)
        quantized = self._node("QuantizeLinear", [x, *constants], f"{name}_int8")
        return self._node("DequantizeLinear", [quantized, *constants], f"{name}_real")

    def _weights(self, name: str, weight: np.ndarray, bias: np.ndarray, input_affine: Affine) -> list[str]:
        """Add int8 weights and an int32 bias as constants that are dequantized per output channel."""
        quantized, scale = quantize_weight(weight)
        quantized_bias, bias_scale = quantize_bias(bias, input_affine.scale, scale)
        names = []
        for part, values, part_scale in (("weight", quantized, scale), ("bias", quantized_bias, bias_scale)):
            inputs = [
                self._constant(f"{name}_{part}", values),
                self._constant(f"{name}_{part}_scale", part_scale),
                self._constant(f"{name}_{part}_zero_point", np.zeros(len(values), values.dtype)),
            ]
            names.append(self._node("DequantizeLinear", inputs, f"{name}_{part}_real", axis=0))
        return names

    def conv(
        self, x: str, name: str, weight: np.ndarray, bias: np.ndarray, affine: Affine, *, relu: bool
    ) -> str:
        """Add a convolution with "same" padding; the weights have the shape O x C x K x K, where K is odd."""
        constants = self._weights(name, weight, bias, self.affine[x])
        pads = [weight.shape[2] // 2] * 4
        y = self._node("Conv", [x, *constants], f"{name}_sum", kernel_shape=weight.shape[2:], pads=pads)
        return self._requantize(self._relu(y, name) if relu else y, affine, name)

    def _relu(self, x: str, name: str) -> str:
        return self._node("Relu", [x], f"{name}_relu")

    def add_relu(self, x: str, y: str, name: str, affine: Affine) -> str:
        """Add a residual addition followed by ReLU."""
        total = self._node("Add", [x, y], f"{name}_sum")
        return self._requantize(self._relu(total, name), affine, name)

    def max_pool(self, x: str, name: str) -> str:
        """Add 2x2 maximum pooling; the output has the scale of the input."""
        y = self._node("MaxPool", [x], f"{name}_max", kernel_shape=[2, 2], strides=[2, 2])
        return self._requantize(y, self.affine[x], name)

    def flatten(self, x: str, name: str) -> str:
        """Add a flatten operator for all dimensions except the batch, in the order C, H, W."""
        return self._requantize(self._node("Flatten", [x], f"{name}_flat", axis=1), self.affine[x], name)

    def dense_output(
        self, x: str, name: str, weight: np.ndarray, bias: np.ndarray, affine: Affine
    ) -> onnx.ModelProto:
        """Add a fully connected layer (weights O x I) with the int8 output `name`, and return the model."""
        constants = self._weights(name, weight, bias, self.affine[x])
        y = self._node("Gemm", [x, *constants], f"{name}_sum", transB=1)
        self._node("QuantizeLinear", [y, *self._affine_constants(name, affine)], name)
        output = helper.make_tensor_value_info(name, TensorProto.INT8, ["batch", len(weight)])
        graph = helper.make_graph(self.nodes, self.name, [self.input], [output], self.initializers)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, producer_name="mla", opset_imports=[opset], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model
