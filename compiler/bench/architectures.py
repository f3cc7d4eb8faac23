"""Float32 ONNX files of published architectures with seeded weights, and the builder that writes them."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cosim.rtl.cache import cache_key, cached
from hw.errors import InputError, shown

SIZE, CLASSES, SEED = 224, 1000, 1
WIDTH, HEADS, TOKENS, INNER = 768, 12, 128, 3072
STEPS, FEATURES, UNITS = 16, 64, 128
#: Scale of residual branches, which are smaller than the shortcut.
_BRANCH_GAIN = 0.5


def resnet18() -> onnx.ModelProto:
    """Return ResNet-18 (1.8 GMAC)."""
    return _resnet("resnet18", _basic, (2, 2, 2, 2))


def resnet50() -> onnx.ModelProto:
    """Return ResNet-50 (4.1 GMAC)."""
    return _resnet("resnet50", _bottleneck, (3, 4, 6, 3))


def mobilenet_v1() -> onnx.ModelProto:
    """Return MobileNetV1 with width multiplier 1 (0.57 GMAC)."""
    net = FloatBuilder("mobilenet_v1", SEED)
    x = net.norm_relu(net.conv(net.image("image", SIZE), "stem", 32, 3, 2), most=6)
    width = 32
    layers = (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    )
    for number, (outputs, stride) in enumerate(layers, 1):
        x = net.norm_relu(net.conv(x, f"depthwise{number}", width, 3, stride, width), most=6)
        x = net.norm_relu(net.conv(x, f"pointwise{number}", outputs), most=6)
        width = outputs
    net.classifier(x, "logits", CLASSES)
    return net.finish(logits=(1, CLASSES))


def mobilenet_v2() -> onnx.ModelProto:
    """Return MobileNetV2 with width multiplier 1 (0.3 GMAC)."""
    net = FloatBuilder("mobilenet_v2", SEED)
    x = net.norm_relu(net.conv(net.image("image", SIZE), "stem", 32, 3, 2), most=6)
    width, number = 32, 0
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, outputs, count, first in stages:
        for stride in (first, *[1] * (count - 1)):
            number += 1
            name, inner, y = f"block{number}", width * expansion, x
            if expansion > 1:
                y = net.norm_relu(net.conv(y, f"{name}.expand", inner), most=6)
            y = net.norm_relu(net.conv(y, f"{name}.depthwise", inner, 3, stride, inner), most=6)
            y = net.norm(net.conv(y, f"{name}.project", outputs))
            x = net.add(x, y, f"{name}.sum") if stride == 1 and width == outputs else y
            width = outputs
    x = net.norm_relu(net.conv(x, "last", 1280), most=6)
    net.classifier(x, "logits", CLASSES)
    return net.finish(logits=(1, CLASSES))


def bert_layer() -> onnx.ModelProto:
    """Return one BERT encoder layer: attention and two dense layers, each with residual addition and normalization."""
    net = FloatBuilder("bert_layer", SEED)
    x = net.input("tokens", (1, TOKENS, WIDTH))
    apart = net.constant("apart", np.array([1, TOKENS, HEADS, WIDTH // HEADS], np.int64))
    together = net.constant("together", np.array([1, TOKENS, WIDTH], np.int64))

    def heads(name: str, perm: list[int]) -> str:
        split = net.node("Reshape", [net.linear(x, name, WIDTH, WIDTH), apart], f"{name}.split")
        return net.node("Transpose", [split], f"{name}.heads", perm=perm)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = net.node("MatMul", [query, key], "scores")
    scaled = net.node("Div", [scores, net.constant("root", np.float32(np.sqrt(WIDTH // HEADS)))], "scaled")
    mixed = net.node("MatMul", [net.node("Softmax", [scaled], "attention", axis=-1), value], "mixed")
    back = net.node("Transpose", [mixed], "mixed.back", perm=[0, 2, 1, 3])
    joined = net.node("Reshape", [back, together], "mixed.joined")
    y = _normed(
        net, net.node("Add", [net.linear(joined, "attended", WIDTH, WIDTH), x], "attended.sum"), "middle"
    )
    inner = _gelu(net, net.linear(y, "inner", WIDTH, INNER))
    out = net.node("Add", [net.linear(inner, "outer", INNER, WIDTH), y], "outer.sum")
    _normed(net, out, "encoded")
    return net.finish(encoded=(1, TOKENS, WIDTH))


def lstm() -> onnx.ModelProto:
    """Return one LSTM layer for a single input sequence."""
    net = FloatBuilder("lstm", SEED)
    x = net.input("sequence", (STEPS, 1, FEATURES))
    shapes = {"W": (1, 4 * UNITS, FEATURES), "R": (1, 4 * UNITS, UNITS), "B": (1, 8 * UNITS)}
    constants = [net.constant(n, net.normal(*shape, scale=UNITS**-0.5)) for n, shape in shapes.items()]
    net.node("LSTM", [x, *constants], "states", ["states", "last"], hidden_size=UNITS)
    return net.finish(states=(STEPS, 1, 1, UNITS), last=(1, 1, UNITS))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make for make in (resnet18, resnet50, mobilenet_v1, mobilenet_v2, bert_layer, lstm)
}


def model_file(name: str) -> Path:
    """Return the path of a network's ONNX file, which is generated on first use.

    Raises
    ------
    InputError
        The network is unknown.
    """
    if name not in NETWORKS:
        raise InputError(f"a network must be one of {', '.join(NETWORKS)}, not {shown(name)}")

    def make(folder: Path, _lock: int) -> None:
        onnx.save(NETWORKS[name](), folder / f"{name}.onnx")

    return cached("networks", cache_key([name, Path(__file__).read_bytes()]), make) / f"{name}.onnx"


Array = np.ndarray

OPSET, IR_VERSION = 17, 8
#: Number of images on which batch norm statistics are measured.
_IMAGES = 2


class FloatBuilder:
    """Builder of a float model, operator by operator; methods take and return tensor names.

    Random images are evaluated while the network is built. Each batch norm gets the mean and variance of its input on
    these images, so that activations have the same scale at any depth, as in a trained network.

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
        """Add an operator and return its first output, which has the name of the node."""
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
        """Add an input for RGB images, and generate its sample images with coarse and fine structure."""
        coarse = self.rng.standard_normal((_IMAGES, 7, 7, 3)).repeat(size // 7, 1).repeat(size // 7, 2)
        fine = self.rng.standard_normal((_IMAGES, size, size, 3))
        self.values[name] = ((coarse + fine) / np.sqrt(2)).astype(np.float32)
        return self.input(name, (1, 3, size, size))

    def conv(self, x: str, name: str, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution without bias and with He-initialized weights."""
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
        """Add a batch norm whose output has a mean of about `shift` and a standard deviation of about `gain`."""
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

        The batch norm shifts most values above 0. If half of the values were cut off, random weights, unlike trained
        weights, would amplify any relative error by 1.7 dB per layer.
        """
        normed = self.norm(x, shift=1.0)
        return self.relu(normed) if most is None else self.clip(normed, most)

    def relu(self, x: str) -> str:
        """Add max(x, 0)."""
        self.values[f"{x}.relu"] = np.maximum(self.values[x], 0)
        return self.node("Relu", [x], f"{x}.relu")

    def clip(self, x: str, most: float) -> str:
        """Add an operator that clips values to 0..`most`."""
        limits = [self.constant(f"{x}.{n}", np.float32(v)) for n, v in (("low", 0), ("high", most))]
        self.values[f"{x}.clip"] = np.clip(self.values[x], 0, most)
        return self.node("Clip", [x, *limits], f"{x}.clip")

    def add(self, x: str, y: str, name: str) -> str:
        """Add the sum of two tensors."""
        self.values[name] = self.values[x] + self.values[y]
        return self.node("Add", [x, y], name)

    def max_pool(self, x: str, name: str) -> str:
        """Add a 3x3 max pooling with stride 2 and one pixel of padding."""
        image = np.pad(self.values[x], ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        rows, columns = (size // 2 for size in self.values[x].shape[1:3])
        taps = [image[:, y : y + 2 * rows : 2, z : z + 2 * columns : 2] for y in range(3) for z in range(3)]
        self.values[name] = np.maximum.reduce(taps)
        return self.node("MaxPool", [x], name, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def classifier(self, x: str, name: str, classes: int) -> str:
        """Add a global average pooling and a dense layer."""
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


_Block = Callable[[FloatBuilder, str, str, int, int], str]


def _resnet(name: str, block: _Block, counts: tuple[int, ...]) -> onnx.ModelProto:
    net = FloatBuilder(name, SEED)
    x = net.norm_relu(net.conv(net.image("image", SIZE), "stem", 64, 7, 2))
    x = net.max_pool(x, "pool")
    for stage, count in enumerate(counts):
        for number in range(count):
            stride = 2 if stage and not number else 1
            x = block(net, x, f"block{stage + 1}.{number + 1}", 64 << stage, stride)
    net.classifier(x, "logits", CLASSES)
    return net.finish(logits=(1, CLASSES))


def _joined(net: FloatBuilder, x: str, y: str, name: str, outputs: int, stride: int) -> str:
    """Add the branch y to the shortcut x, which is projected if its shape differs."""
    if stride > 1 or net.values[x].shape[3] != outputs:
        x = net.norm(net.conv(x, f"{name}.project", outputs, 1, stride))
    return net.relu(net.add(y, x, f"{name}.sum"))


def _basic(net: FloatBuilder, x: str, name: str, width: int, stride: int) -> str:
    y = net.norm_relu(net.conv(x, f"{name}.a", width, 3, stride))
    y = net.norm(net.conv(y, f"{name}.b", width, 3), _BRANCH_GAIN)
    return _joined(net, x, y, name, width, stride)


def _bottleneck(net: FloatBuilder, x: str, name: str, width: int, stride: int) -> str:
    y = net.norm_relu(net.conv(x, f"{name}.a", width))
    y = net.norm_relu(net.conv(y, f"{name}.b", width, 3, stride))
    y = net.norm(net.conv(y, f"{name}.c", 4 * width), _BRANCH_GAIN)
    return _joined(net, x, y, name, 4 * width, stride)


def _normed(net: FloatBuilder, x: str, name: str) -> str:
    gamma = net.rng.uniform(0.8, 1.2, WIDTH).astype(np.float32)
    factors = [
        net.constant(f"{name}.weight", gamma),
        net.constant(f"{name}.bias", net.normal(WIDTH, scale=0.05)),
    ]
    return net.node("LayerNormalization", [x, *factors], name, axis=-1, epsilon=1e-12)


def _gelu(net: FloatBuilder, x: str) -> str:
    """Add GELU, x/2 * (1 + erf(x / sqrt(2))), as the operators that exporters write."""
    root, one, half = (
        net.constant(f"{x}.{n}", np.float32(v)) for n, v in (("root", np.sqrt(2)), ("one", 1), ("half", 0.5))
    )
    erf = net.node("Erf", [net.node("Div", [x, root], f"{x}.scaled")], f"{x}.erf")
    product = net.node("Mul", [x, net.node("Add", [erf, one], f"{x}.more")], f"{x}.twice")
    return net.node("Mul", [product, half], f"{x}.gelu")


def _convolved(image: Array, w: Array, stride: int, groups: int) -> Array:
    """Convolve images (batch, height, width, channels) padded by half the kernel size."""
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


def main() -> None:
    """Generate the files of the given networks, or of all networks."""
    parser = argparse.ArgumentParser(
        description="generate float ONNX files of published architectures with seeded weights"
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"one of {', '.join(NETWORKS)} (default: all)"
    )
    for name in parser.parse_args().names or NETWORKS:
        print(model_file(name))


if __name__ == "__main__":
    main()
