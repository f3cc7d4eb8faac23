"""Builds float32 ONNX networks with seeded weights whose batch norms fit what comes through them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray

OPSET, IR_VERSION = 17, 8
#: Images that the statistics of batch norms are measured on.
_IMAGES = 2


class FloatBuilder:
    """Adds one float operator after another; each method takes and returns names of tensors.

    Images run through the network as it is built, so that each batch norm gets the mean and variance that its input
    has on them, as it would have after training: activations keep their scale at any depth.

    Parameters
    ----------
    name : str
        Of the graph.
    seed : int
        Of the weights and images.
    """

    def __init__(self, name: str, seed: int):
        self.name, self.rng = name, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.values: dict[str, Array] = {}

    def constant(self, name: str, value: Any) -> str:
        """A constant."""
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(
        self, op: str, inputs: Sequence[str], name: str, outputs: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Any operator; its first output has the node's name."""
        self.nodes.append(
            helper.make_node(op, list(inputs), list(outputs or [name]), name=name, **attributes)
        )
        return name

    def normal(self, *shape: int, scale: float) -> Array:
        """Weights."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def input(self, name: str, shape: Sequence[int]) -> str:
        """An input of the network."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def image(self, name: str, size: int) -> str:
        """An input of the network: three channels. The images measured on have coarse and fine structure."""
        coarse = self.rng.standard_normal((_IMAGES, 7, 7, 3)).repeat(size // 7, 1).repeat(size // 7, 2)
        fine = self.rng.standard_normal((_IMAGES, size, size, 3))
        self.values[name] = ((coarse + fine) / np.sqrt(2)).astype(np.float32)
        return self.input(name, (1, 3, size, size))

    def conv(self, x: str, name: str, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        """Convolution without bias, He-initialised."""
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
        """Batch norm; mean and standard deviation of its result are about `shift` and `gain`."""
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
        """Batch norm and ReLU, or ReLU6.

        Most of what comes is positive: were half of it cut off, random weights would raise any error by 1.7 dB a layer
        relative to the signal, as trained ones do not.
        """
        normed = self.norm(x, shift=1.0)
        return self.relu(normed) if most is None else self.clip(normed, most)

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        self.values[f"{x}.relu"] = np.maximum(self.values[x], 0)
        return self.node("Relu", [x], f"{x}.relu")

    def clip(self, x: str, most: float) -> str:
        """X within 0 and a limit."""
        limits = [self.constant(f"{x}.{n}", np.float32(v)) for n, v in (("low", 0), ("high", most))]
        self.values[f"{x}.clip"] = np.clip(self.values[x], 0, most)
        return self.node("Clip", [x, *limits], f"{x}.clip")

    def add(self, x: str, y: str, name: str) -> str:
        """The sum."""
        self.values[name] = self.values[x] + self.values[y]
        return self.node("Add", [x, y], name)

    def max_pool(self, x: str, name: str) -> str:
        """Maximum of 3x3 windows, stride 2, padded by one pixel."""
        image = np.pad(self.values[x], ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        rows, columns = (size // 2 for size in self.values[x].shape[1:3])
        taps = [image[:, y : y + 2 * rows : 2, z : z + 2 * columns : 2] for y in range(3) for z in range(3)]
        self.values[name] = np.maximum.reduce(taps)
        return self.node("MaxPool", [x], name, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def classifier(self, x: str, name: str, classes: int) -> str:
        """Mean over the image, and a dense layer."""
        channels = self.values[x].shape[3]
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x], f"{name}.mean")], f"{name}.flat")
        self.values.clear()
        return self.linear(flat, name, channels, classes, gemm=True)

    def linear(self, x: str, name: str, inputs: int, outputs: int, *, gemm: bool = False) -> str:
        """Dense layer with bias: a Gemm, or a MatMul and an Add."""
        w, b = self.normal(outputs, inputs, scale=inputs**-0.5), self.normal(outputs, scale=0.02)
        bias = self.constant(f"{name}.bias", b)
        if gemm:
            return self.node("Gemm", [x, self.constant(f"{name}.weight", w), bias], name, transB=1)
        product = self.node("MatMul", [x, self.constant(f"{name}.weight", w.T.copy())], f"{name}.product")
        return self.node("Add", [product, bias], name)

    def finish(self, **outputs: Sequence[int]) -> onnx.ModelProto:
        """The model; outputs with their shapes."""
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, made, self.initializers)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="mla", opset_imports=[opset], ir_version=IR_VERSION)


def _convolved(image: Array, w: Array, stride: int, groups: int) -> Array:
    """Convolution of images (batch, height, width, channels), with half a kernel of padding."""
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
