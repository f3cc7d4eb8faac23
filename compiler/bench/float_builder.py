"""Builder of float32 ONNX networks with seeded weights and calibrated batch norms."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray

OPSET, IR_VERSION = 17, 8
#: Number of images on which batch norm statistics are measured.
_IMAGES = 2


class FloatBuilder:
    """Adds float operators one by one; methods take and return tensor names.

    Images are evaluated while the network is built, so that each batch norm gets the mean and variance of its input, as
    after training: activations keep their scale at any depth.

    Parameters
    ----------
    name : str
        Name of the graph.
    seed : int
        Random seed of weights and images.
    """

    def __init__(self, name: str, seed: int):
        self.name, self.rng = name, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.values: dict[str, Array] = {}

    def constant(self, name: str, value: Any) -> str:
        """Add a constant."""
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(
        self, op: str, inputs: Sequence[str], name: str, outputs: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Add an operator; its first output has the name of the node."""
        self.nodes.append(
            helper.make_node(op, list(inputs), list(outputs or [name]), name=name, **attributes)
        )
        return name

    def normal(self, *shape: int, scale: float) -> Array:
        """Return random weights."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def input(self, name: str, shape: Sequence[int]) -> str:
        """Add an input of the network."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def image(self, name: str, size: int) -> str:
        """Add an input with three channels; the measured images have coarse and fine structure."""
        coarse = self.rng.standard_normal((_IMAGES, 7, 7, 3)).repeat(size // 7, 1).repeat(size // 7, 2)
        fine = self.rng.standard_normal((_IMAGES, size, size, 3))
        self.values[name] = ((coarse + fine) / np.sqrt(2)).astype(np.float32)
        return self.input(name, (1, 3, size, size))

    def conv(self, x: str, name: str, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution without bias, He-initialised."""
        image = self.values[x]
        inputs = image.shape[3] // groups
        w = self.normal(outputs, inputs, kernel, kernel, scale=np.sqrt(2 / (inputs * kernel * kernel)))
        self.values[name] = _convolved(image, w, stride, groups)
        pads = [kernel // 2] * 4
        return self.node(
            "Conv",
            [x, self.constant(f"{name}.weight", w)],
            name,
            kernel_shape=[kernel] * 2,
            pads=pads,
            strides=[stride] * 2,
            group=groups,
        )

    def norm(self, x: str, gain: float = 1.0, shift: float = 0.0) -> str:
        """Add a batch norm whose output has about mean `shift` and standard deviation `gain`."""
        image, name = self.values[x], f"{x}.norm"
        count = image.shape[3]
        mean, variance = image.mean((0, 1, 2)), image.var((0, 1, 2)) + np.float32(1e-3)
        gamma = (gain * self.rng.uniform(0.8, 1.2, count)).astype(np.float32)
        beta = self.normal(count, scale=0.1 * gain) + np.float32(shift)
        self.values[name] = (image - mean) * (gamma / np.sqrt(variance + np.float32(1e-5))) + beta
        parts = {"weight": gamma, "bias": beta, "mean": mean, "variance": variance}
        constants = [self.constant(f"{name}.{part}", value) for part, value in parts.items()]
        return self.node("BatchNormalization", [x, *constants], name)

    def norm_relu(self, x: str, *, most: float | None = None) -> str:
        """Add a batch norm followed by ReLU, or by clipping to 0..`most`.

        Most inputs are positive: if half were cut off, random weights would amplify any relative error by 1.7 dB per
        layer, unlike trained ones.
        """
        normed = self.norm(x, shift=1.0)
        return self.relu(normed) if most is None else self.clip(normed, most)

    def relu(self, x: str) -> str:
        """Add max(x, 0)."""
        self.values[f"{x}.relu"] = np.maximum(self.values[x], 0)
        return self.node("Relu", [x], f"{x}.relu")

    def clip(self, x: str, most: float) -> str:
        """Add a clip to 0..`most`."""
        limits = [self.constant(f"{x}.{n}", np.float32(v)) for n, v in (("low", 0), ("high", most))]
        self.values[f"{x}.clip"] = np.clip(self.values[x], 0, most)
        return self.node("Clip", [x, *limits], f"{x}.clip")

    def add(self, x: str, y: str, name: str) -> str:
        """Add the sum of two tensors."""
        self.values[name] = self.values[x] + self.values[y]
        return self.node("Add", [x, y], name)

    def max_pool(self, x: str, name: str) -> str:
        """Add a 3x3 maximum pooling of stride 2, padded by one pixel."""
        image = np.pad(self.values[x], ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        rows, columns = (size // 2 for size in self.values[x].shape[1:3])
        taps = [image[:, y : y + 2 * rows : 2, z : z + 2 * columns : 2] for y in range(3) for z in range(3)]
        self.values[name] = np.maximum.reduce(taps)
        return self.node("MaxPool", [x], name, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def classifier(self, x: str, name: str, classes: int) -> str:
        """Add a global average and a dense layer."""
        channels = self.values[x].shape[3]
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x], f"{name}.mean")], f"{name}.flat")
        self.values.clear()
        return self.linear(flat, name, channels, classes, gemm=True)

    def linear(self, x: str, name: str, inputs: int, outputs: int, *, gemm: bool = False) -> str:
        """Add a dense layer with bias: a Gemm, or a MatMul and an Add."""
        w, b = self.normal(outputs, inputs, scale=inputs**-0.5), self.normal(outputs, scale=0.02)
        bias = self.constant(f"{name}.bias", b)
        if gemm:
            return self.node("Gemm", [x, self.constant(f"{name}.weight", w), bias], name, transB=1)
        product = self.node("MatMul", [x, self.constant(f"{name}.weight", w.T.copy())], f"{name}.product")
        return self.node("Add", [product, bias], name)

    def finish(self, **outputs: Sequence[int]) -> onnx.ModelProto:
        """Return the model with the given outputs and their shapes."""
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, made, self.initializers)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="mla", opset_imports=[opset], ir_version=IR_VERSION)


def _convolved(image: Array, w: Array, stride: int, groups: int) -> Array:
    """Convolve images (batch, height, width, channels) with half the kernel as padding."""
    kernel = w.shape[2]
    edge = kernel // 2
    padded = np.pad(image, ((0, 0), (edge, edge), (edge, edge), (0, 0))) if edge else image
    rows, columns = ((size - 1) // stride + 1 for size in image.shape[1:3])
    total = np.zeros((len(image), rows, columns, len(w)), np.float32)
    for y in range(kernel):
        for x in range(kernel):
            tap = padded[
                :, y : y + (rows - 1) * stride + 1 : stride, x : x + (columns - 1) * stride + 1 : stride
            ]
            total += tap @ w[:, :, y, x].T if groups == 1 else tap * w[:, 0, y, x]
    return total
