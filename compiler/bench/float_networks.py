"""Float ONNX models whose quality after quantization is measured: small published architectures and their samples.

Weights are seeded, with the statistics of trained networks: batch normalizations are folded into convolutions, gains
of channels are log-normal, and residual streams of transformers have a few channels of large magnitude. The last layer
of classifiers is fitted to classes of structured samples, so that the largest output has the margin of a trained
network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.bench.tiny import model_path, models_folder
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Tensor

Array = NDArray[np.float32]
SEED, CLASSES = 7, 32
#: Samples on which statistics of activations are measured while a network is built, and on which its head is fitted.
_STATISTICS, _FITTED = 2, 192
#: Scale of the logits of a fitted head.
_LOGITS = 10.0
#: Factor of the largest channels in transformers.
_LOUD = 8.0
#: Regularization of a fitted head, relative to the number of features.
_RIDGE = 1.0
OPSET, IR_VERSION = 17, 8

#: Function that returns samples, given a random generator and their number.
Sampler = Callable[[np.random.Generator, int], Array]


@dataclass(frozen=True)
class FloatNetwork:
    """A float model and the source of its samples.

    Parameters
    ----------
    model : onnx.ModelProto or Graph
        The float model with one input.
    samples : Sampler
        Returns different samples, whose first axis is the sample index.
    """

    model: onnx.ModelProto | Graph
    samples: Sampler


class EagerBuilder:
    """Builder of a float ONNX model that evaluates each operator on samples as it is added.

    Methods take and return tensor names.

    Parameters
    ----------
    name : str
        Name of the graph.
    samples : Sampler
        Source of the input's samples, without the batch dimension of 1 that the input has.
    """

    def __init__(self, name: str, samples: Sampler):
        self.name, self.samples = name, samples
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray] = {}
        given = samples(np.random.default_rng(SEED), _STATISTICS)
        self.shape = (1, *given.shape[1:])
        self.values: dict[str, list[NDArray]] = {"x": [each[None] for each in given]}

    def constant(self, value: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def op(self, op: str, *inputs: str | NDArray | float, outputs: int = 1, **attributes: Any) -> str:
        """Add an operator; inputs that are not names become constants."""
        names = [
            each
            if isinstance(each, str)
            else self.constant(np.float32(each) if isinstance(each, float) else each)
            for each in inputs
        ]
        made = [f"t{len(self.nodes)}{'abc'[i] if i else ''}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, name=f"{op}{len(self.nodes)}", **attributes))
        kinds = {name: self._example(name, 0) for name in names if name and name not in self.constants}
        model = self._model([self.nodes[-1]], kinds, made)
        session = _session(model)
        for name in made:
            self.values[name] = []
        for i in range(_STATISTICS):
            results = session.run(None, {name: self._example(name, i) for name in kinds})
            for name, result in zip(made, results, strict=True):
                self.values[name].append(np.asarray(result))
        return made[0]

    def _example(self, name: str, number: int) -> NDArray:
        return self.values[name][number]

    def _model(
        self, nodes: Sequence[onnx.NodeProto], inputs: dict[str, NDArray], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(v, n) for n, v in self.constants.items() if n in used]
        given = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
        ]
        made = [
            helper.make_tensor_value_info(
                name,
                TensorProto.FLOAT,
                self.values[name][0].shape if self.values.get(name) else None,
            )
            for name in outputs
        ]
        graph = helper.make_graph(list(nodes), self.name, given, made, constants)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="mla", opset_imports=[opset], ir_version=IR_VERSION)

    def model(self, output: str) -> onnx.ModelProto:
        """Return the model with one output."""
        return self._model(self.nodes, {"x": self.values["x"][0]}, [output])

    def network(self, output: str) -> FloatNetwork:
        """Return the model with one output, and its samples."""
        return FloatNetwork(self.model(output), self.samples)

    def lognormal(self, count: int, sigma: float) -> Array:
        """Return log-normal gains of `count` channels."""
        return np.exp(self.rng.normal(0, sigma, count)).astype(np.float32)

    def normal(self, *shape: int, scale: float) -> Array:
        """Return normally distributed weights."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: int | tuple[int, ...] = 3,
        stride: int | tuple[int, ...] = 1,
        *,
        groups: int = 1,
        gain: float = 1.0,
        shift: float = 1.0,
        sigma: float = 0.4,
    ) -> str:
        """Add a convolution with a folded batch norm; outputs have about the mean `shift` and deviation `gain`."""
        rank = self.values[x][0].ndim - 2
        kernels = (kernel,) * rank if isinstance(kernel, int) else kernel
        strides = (stride,) * rank if isinstance(stride, int) else stride
        inputs = self.values[x][0].shape[1] // groups
        w = self.normal(outputs, inputs, *kernels, scale=(inputs * np.prod(kernels)) ** -0.5)
        w *= self.lognormal(outputs, 0.5).reshape(-1, *[1] * (rank + 1))
        pads = [k // 2 for k in kernels] + [(k - 1) // 2 for k in kernels]
        form = {"kernel_shape": kernels, "strides": strides, "group": groups, "pads": pads}
        bare = self.op("Conv", x, w, **form)
        sums = np.concatenate([np.moveaxis(v, 1, -1).reshape(-1, outputs) for v in self.values[bare]])
        self.nodes.pop()
        gamma = gain * self.lognormal(outputs, sigma)
        beta = (shift + 0.3 * gain * self.rng.standard_normal(outputs)).astype(np.float32)
        factor = gamma / np.sqrt(sums.var(0) + 1e-5)
        folded = (w * factor.reshape(-1, *[1] * (rank + 1))).astype(np.float32)
        return self.op("Conv", x, folded, (beta - sums.mean(0) * factor).astype(np.float32), **form)

    def linear(self, x: str, outputs: int, *, gain: float = 1.0, sigma: float = 0.3) -> str:
        """Add a MatMul with a bias."""
        inputs = self.values[x][0].shape[-1]
        power = np.sqrt(np.mean([np.square(v).mean() for v in self.values[x]]))
        w = self.normal(inputs, outputs, scale=float(gain * inputs**-0.5 / power))
        w *= self.lognormal(outputs, sigma)
        return self.op("Add", self.op("MatMul", x, w), self.normal(outputs, scale=0.1 * gain))

    def layer_norm(self, x: str, *, sigma: float = 0.4, loud: float = 1.0) -> str:
        """Add a written-out layer normalization over the last axis; two channels are `loud` times larger."""
        width = self.values[x][0].shape[-1]
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, 2.0), axes=[-1])
        normed = self.op("Div", centred, self.op("Sqrt", self.op("Add", variance, 1e-5)))
        gain = self.lognormal(width, sigma)
        gain[np.random.default_rng(SEED).choice(width, 2, replace=False)] *= loud
        scaled = self.op("Mul", normed, gain)
        return self.op("Add", scaled, self.normal(width, scale=0.2))

    def gelu(self, x: str) -> str:
        """Add a written-out GELU, as exporters write it."""
        erf = self.op("Erf", self.op("Div", x, float(np.sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, 1.0)), 0.5)

    def hard_swish(self, x: str) -> str:
        """Add x * HardSigmoid(x)."""
        return self.op("Mul", x, self.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))

    def relu6(self, x: str) -> str:
        """Add a clip to 0..6."""
        return self.op("Clip", x, 0.0, 6.0)

    def attention(self, x: str, heads: int, *, causal: bool = False) -> str:
        """Add multi-head self-attention over (1, tokens, width); `causal` excludes later tokens."""
        _, tokens, width = self.values[x][0].shape
        split, joined = np.array([1, tokens, heads, width // heads]), np.array([1, tokens, width])

        def head(perm: list[int], gain: float) -> str:
            return self.op(
                "Transpose", self.op("Reshape", self.linear(x, width, gain=gain), split), perm=perm
            )

        query, key, value = head([0, 2, 1, 3], 1.5), head([0, 2, 3, 1], 1.5), head([0, 2, 1, 3], 1.0)
        scores = self.op("Mul", self.op("MatMul", query, key), float((width // heads) ** -0.5))
        if causal:
            scores = self.op("Add", scores, np.triu(np.full((tokens, tokens), -1e4, np.float32), 1))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        return self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), joined)

    def projection(self, x: str, width: int, *, gain: float = 0.5) -> str:
        """Add the last dense layer of a residual branch, whose outputs have a few channels of large magnitude."""
        self.linear(x, width, gain=gain)
        product = self.nodes[-2]
        loud = np.ones(width, np.float32)
        loud[np.random.default_rng(SEED).choice(width, 3, replace=False)] = _LOUD
        weights, bias = self.constants[product.input[1]] * loud, self.nodes[-1].input[1]
        del self.nodes[-2:]
        return self.op("Add", self.op("MatMul", x, weights), bias)

    def transformer(self, x: str, heads: int, *, causal: bool = False) -> str:
        """Add a pre-norm transformer block; `causal` as for `attention`."""
        width = self.values[x][0].shape[-1]
        mixed = self.attention(self.layer_norm(x, loud=_LOUD), heads, causal=causal)
        x = self.op("Add", x, self.projection(mixed, width))
        inner = self.gelu(self.linear(self.layer_norm(x, loud=_LOUD), 4 * width))
        return self.op("Add", x, self.projection(inner, width))

    def pooled(self, x: str) -> str:
        """Add a global average pooling and a flattening."""
        return self.op("Flatten", self.op("GlobalAveragePool", x))

    def head(self, x: str, labels: Callable[[np.random.Generator, int], tuple[Array, NDArray]]) -> str:
        """Add a dense layer that is fitted by ridge regression to the classes of labelled samples."""
        given, classes = labels(np.random.default_rng(SEED + 1), _FITTED)
        session = _session(self.model(x))
        features = np.concatenate([session.run(None, {"x": each[None]})[0].reshape(1, -1) for each in given])
        mean, spread = features.mean(0), features.std(0) + 1e-3
        scaled = (features - mean) / spread
        wanted = np.eye(CLASSES)[classes] - 1 / CLASSES
        gram = scaled @ scaled.T + _RIDGE * scaled.shape[1] * np.eye(len(scaled))
        w = scaled.T @ np.linalg.solve(gram, wanted) / spread[:, None] * _LOGITS
        return self.op("Gemm", x, w.astype(np.float32), (-mean @ w).astype(np.float32))


def _session(model: onnx.ModelProto) -> Any:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 3
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _smooth(rng: np.random.Generator, count: int, channels: int, size: tuple[int, int]) -> Array:
    """Return images with the spectrum of natural ones, whose amplitude falls with frequency, and deviation 1."""
    fy, fx = np.fft.fftfreq(size[0])[:, None], np.fft.fftfreq(size[1])[None]
    fall = 1 / (np.hypot(fy * size[0], fx * size[1]) + 1)
    noise = rng.standard_normal((count, channels, *size))
    images = np.fft.ifft2(np.fft.fft2(noise) * fall).real
    return (images / images.std((1, 2, 3), keepdims=True)).astype(np.float32)


def labelled_images(
    channels: int, size: tuple[int, int]
) -> Callable[[np.random.Generator, int], tuple[Array, NDArray]]:
    """Return a source of images with labels: a smooth image of the class, another smooth image, and noise."""
    classes = _smooth(np.random.default_rng(SEED + 2), CLASSES, channels, size)

    def sample(rng: np.random.Generator, count: int) -> tuple[Array, NDArray]:
        labels = rng.integers(0, CLASSES, count)
        noise = 0.1 * rng.standard_normal((count, channels, *size))
        images = classes[labels] + 0.6 * _smooth(rng, count, channels, size) + noise
        contrast = rng.uniform(0.6, 1.4, (count, 1, 1, 1))
        return (images * contrast).astype(np.float32), labels

    return sample


def _images(size: int = 64) -> Callable[[np.random.Generator, int], tuple[Array, NDArray]]:
    return labelled_images(3, (size, size))


def _only(labels: Callable[[np.random.Generator, int], tuple[Array, NDArray]]) -> Sampler:
    return lambda rng, count: labels(rng, count)[0]


def _signals(rng: np.random.Generator, count: int) -> Array:
    """Return audio of 1,536 samples at 16 kHz: harmonics with random levels between silence and full scale."""
    time = np.arange(1536) / 16000
    pitch, level = rng.uniform(80, 400, (count, 1, 1)), 10 ** rng.uniform(-2.5, -0.3, (count, 1))
    order = np.arange(1, 20)[None, :, None]
    amplitude = rng.uniform(0, 1, (count, 19, 1)) / order
    phase = rng.uniform(0, 2 * np.pi, (count, 19, 1))
    wave = (amplitude * np.sin(2 * np.pi * pitch * order * time + phase)).sum(1)
    return (level * wave + 0.003 * rng.standard_normal(wave.shape)).astype(np.float32)[:, None]


def inverted_residuals(
    net: EagerBuilder, x: str, width: int, stages: Sequence[tuple[int, int, int, int, int]]
) -> str:
    """Add the inverted residual blocks of stages: expansion, kernel size, channels, blocks, and stride of the first."""
    for expansion, kernel, outputs, count, first in stages:
        for stride in (first, *[1] * (count - 1)):
            inner = width * expansion
            y = net.relu6(net.conv(x, inner, 1)) if expansion > 1 else x
            y = net.relu6(net.conv(y, inner, kernel, stride, groups=inner))
            y = net.conv(y, outputs, 1, gain=0.7, shift=0.0)
            x = net.op("Add", x, y) if stride == 1 and width == outputs else y
            width = outputs
    return x


def mobilenet_v2() -> FloatNetwork:
    """Return MobileNetV2 of width 0.5 on images of 64 x 64."""
    data = _images()
    net = EagerBuilder("mobilenet_v2", _only(data))
    x, width = net.relu6(net.conv("x", 16, 3, 2)), 16
    stages = ((1, 3, 8, 1, 1), (6, 3, 16, 2, 2), (6, 3, 24, 3, 2), (6, 3, 48, 4, 1))
    x = inverted_residuals(net, x, width, stages)
    x = net.relu6(net.conv(x, 256, 1))
    return net.network(net.head(net.pooled(x), data))


def efficientnet_lite() -> FloatNetwork:
    """Return an EfficientNet-Lite of 10 blocks with kernels of 3 and 5 on images of 64 x 64."""
    data = _images()
    net = EagerBuilder("efficientnet_lite", _only(data))
    x, width = net.relu6(net.conv("x", 24, 3, 2)), 24
    stages = ((6, 3, 24, 2, 2), (6, 5, 40, 3, 2), (6, 3, 80, 3, 2), (6, 5, 112, 2, 1))
    x = inverted_residuals(net, x, width, stages)
    x = net.relu6(net.conv(x, 256, 1))
    return net.network(net.head(net.pooled(x), data))


def resnet() -> FloatNetwork:
    """Return a ResNet of 8 basic blocks on images of 64 x 64."""
    data = _images()
    net = EagerBuilder("resnet", _only(data))
    x = net.op("Relu", net.conv("x", 32, 7, 2))
    for stage in range(4):
        for number in range(2):
            outputs, stride = 32 << stage, 2 if stage and not number else 1
            y = net.op("Relu", net.conv(x, outputs, 3, stride))
            y = net.conv(y, outputs, 3, gain=0.5, shift=0.0)
            if stride > 1:
                x = net.conv(x, outputs, 1, stride, shift=0.0)
            x = net.op("Relu", net.op("Add", x, y))
    return net.network(net.head(net.pooled(x), data))


def squeezenet() -> FloatNetwork:
    """Return a SqueezeNet of 8 fire modules on images of 64 x 64."""
    data = _images()
    net = EagerBuilder("squeezenet", _only(data))
    x = net.op("Relu", net.conv("x", 64, 3, 2))
    for number, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        if number in (0, 2, 4):
            x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        inner = net.op("Relu", net.conv(x, squeeze, 1))
        parts = [net.op("Relu", net.conv(inner, 4 * squeeze, kernel)) for kernel in (1, 3)]
        x = net.op("Concat", *parts, axis=1)
    return net.network(net.head(net.pooled(x), data))


def convnext() -> FloatNetwork:
    """Return a ConvNeXt of 6 blocks with layer scales on images of 64 x 64."""
    data = _images()
    net = EagerBuilder("convnext", _only(data))

    def normed(x: str) -> str:
        last = net.op("Transpose", x, perm=[0, 2, 3, 1])
        return net.op("Transpose", net.layer_norm(last), perm=[0, 3, 1, 2])

    x = normed(net.conv("x", 48, 4, 4, shift=0.0))
    for stage, width in enumerate((48, 96)):
        if stage:
            x = net.conv(normed(x), width, 2, 2, shift=0.0)
        for _ in range(3):
            y = net.conv(x, width, 7, groups=width, shift=0.0)
            y = net.layer_norm(net.op("Transpose", y, perm=[0, 2, 3, 1]))
            y = net.linear(net.gelu(net.linear(y, 4 * width)), width)
            y = net.op("Mul", y, 0.4 * net.lognormal(width, 0.6))
            x = net.op("Add", x, net.op("Transpose", y, perm=[0, 3, 1, 2]))
    flat = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    return net.network(net.head(net.layer_norm(flat), data))


def vit_tiny() -> FloatNetwork:
    """Return a vision transformer of 6 blocks of width 96 on images of 64 x 64 in patches of 8 x 8."""
    data = _images()
    net = EagerBuilder("vit_tiny", _only(data))
    patches = net.op("Reshape", net.conv("x", 96, 8, 8, shift=0.0), np.array([1, 96, -1]))
    x = net.op("Transpose", patches, perm=[0, 2, 1])
    tokens = net.values[x][0].shape[1]
    x = net.op("Add", x, net.normal(1, tokens, 96, scale=0.3))
    for _ in range(6):
        x = net.transformer(x, 3)
    flat = net.op("ReduceMean", net.layer_norm(x), axes=[1], keepdims=0)
    return net.network(net.head(flat, data))


def mlp_mixer() -> FloatNetwork:
    """Return an MLP-Mixer of 6 blocks of width 96 on images of 64 x 64 in patches of 8 x 8."""
    data = _images()
    net = EagerBuilder("mlp_mixer", _only(data))
    patches = net.op("Reshape", net.conv("x", 96, 8, 8, shift=0.0), np.array([1, 96, -1]))
    x = net.op("Transpose", patches, perm=[0, 2, 1])
    tokens = net.values[x][0].shape[1]
    for _ in range(6):
        y = net.op("Transpose", net.layer_norm(x), perm=[0, 2, 1])
        y = net.linear(net.gelu(net.linear(y, 2 * tokens)), tokens, gain=0.5)
        x = net.op("Add", x, net.op("Transpose", y, perm=[0, 2, 1]))
        x = net.op("Add", x, net.projection(net.gelu(net.linear(net.layer_norm(x), 384)), 96))
    flat = net.op("ReduceMean", net.layer_norm(x), axes=[1], keepdims=0)
    return net.network(net.head(flat, data))


def unet() -> FloatNetwork:
    """Return a U-Net of three levels on images of 64 x 64, with an output for each pixel."""
    net = EagerBuilder("unet", _only(_images()))

    def double(x: str, width: int) -> str:
        return net.op("Relu", net.conv(net.op("Relu", net.conv(x, width)), width))

    x, skips = "x", list[str]()
    for width in (16, 32, 64):
        skips.append(double(x, width))
        x = net.op("MaxPool", skips[-1], kernel_shape=[2, 2], strides=[2, 2])
    x = double(x, 128)
    for width, skip in ((64, skips[2]), (32, skips[1]), (16, skips[0])):
        inputs = net.values[x][0].shape[1]
        w = net.normal(inputs, width, 2, 2, scale=inputs**-0.5)
        up = net.op("ConvTranspose", x, w, net.normal(width, scale=0.1), kernel_shape=[2, 2], strides=[2, 2])
        x = double(net.op("Concat", up, skip, axis=1), width)
    return net.network(net.conv(x, 4, 1))


def text_recognizer() -> FloatNetwork:
    """Return a recognizer like PP-OCR's: convolutions with gates, two transformer blocks, softmax at each place."""
    net = EagerBuilder("text_recognizer", _only(labelled_images(3, (32, 128))))
    x = net.hard_swish(net.conv("x", 16, 3, 2))
    for outputs, strides, gated in (
        (32, (1, 1), False),
        (48, (2, 1), False),
        (64, (2, 2), True),
        (96, (2, 1), True),
    ):
        width = net.values[x][0].shape[1]
        x = net.hard_swish(net.conv(x, width, 3, strides, groups=width))
        if gated:
            inner = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), width // 4, 1, sigma=0.1))
            gate = net.op("HardSigmoid", net.conv(inner, width, 1, sigma=0.1), alpha=0.2, beta=0.5)
            x = net.op("Mul", x, gate)
        x = net.hard_swish(net.conv(x, outputs, 1))
    x = net.op("AveragePool", x, kernel_shape=[2, 1], strides=[2, 1])
    width, places = net.values[x][0].shape[1], net.values[x][0].shape[3]
    x = net.op("Transpose", net.op("Reshape", x, np.array([1, width, places])), perm=[0, 2, 1])
    for _ in range(2):
        x = net.transformer(x, 4)
    logits = net.linear(net.layer_norm(x), 97, gain=4.0)
    return net.network(net.op("Softmax", logits, axis=-1))


def voice_detector() -> FloatNetwork:
    """Return a voice detector like Silero's: a Fourier transform as convolution, magnitudes, an LSTM and a sigmoid."""
    net = EagerBuilder("voice_detector", _signals)
    window, order = np.hanning(256), np.arange(129)[:, None] * np.arange(256) * 2 * np.pi / 256
    basis = np.concatenate([np.cos(order), -np.sin(order)]) * window
    padded = net.op("Pad", "x", np.array([0, 0, 64, 0, 0, 64]), mode="reflect")
    spectrum = net.op(
        "Conv", padded, basis.astype(np.float32)[:, None], kernel_shape=[256], strides=[128], pads=[0, 0]
    )
    real, imaginary = (
        net.op("Slice", spectrum, np.array([start]), np.array([stop]), np.array([1]))
        for start, stop in ((0, 129), (129, 258))
    )
    power = net.op("Add", net.op("Pow", real, 2.0), net.op("Pow", imaginary, 2.0))
    x = net.op("Sqrt", power)
    for outputs, stride in ((128, 1), (64, 2), (64, 2), (128, 1)):
        x = net.op("Relu", net.conv(x, outputs, 3, stride))
    x = net.op("Transpose", x, perm=[2, 0, 1])
    units = 128
    gates = [net.normal(1, 4 * units, units, scale=units**-0.5) for _ in range(2)]
    states = net.op("LSTM", x, *gates, net.normal(1, 8 * units, scale=0.1), hidden_size=units, outputs=2)
    joined = net.op("Reshape", states, np.array([-1, units]))
    last = net.op("Relu", joined)
    weights = net.normal(units, 1, scale=2 * units**-0.5)
    return net.network(net.op("Sigmoid", net.op("Add", net.op("MatMul", last, weights), 0.2)))


def whole_norms() -> FloatNetwork:
    """Return a classifier with written-out normalizations over whole feature maps, gain and shift per channel."""
    data = _images()
    net = EagerBuilder("whole_norms", _only(data))

    def normed(x: str) -> str:
        channels = net.values[x][0].shape[1]
        axes = [1, 2, 3]
        centred = net.op("Sub", x, net.op("ReduceMean", x, axes=axes))
        variance = net.op("ReduceMean", net.op("Mul", centred, centred), axes=axes)
        scaled = net.op("Mul", centred, net.op("Reciprocal", net.op("Sqrt", net.op("Add", variance, 1e-5))))
        gain = net.lognormal(channels, 0.4).reshape(-1, 1, 1)
        return net.op("Add", net.op("Mul", scaled, gain), net.normal(channels, 1, 1, scale=0.3))

    x = "x"
    for outputs, stride in ((32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        width = net.values[x][0].shape[1]
        w = net.normal(outputs, width, 3, 3, scale=(9 * width) ** -0.5)
        x = net.op("Conv", x, w, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)
        x = net.op("Relu", normed(x))
    return net.network(net.head(net.pooled(x), data))


def dequantized(graph: Graph) -> Graph:
    """Return the float model of a quantized graph: the same operators on the dequantized constants."""
    changed: dict[str, Tensor] = {}
    for name, tensor in graph.tensors.items():
        if tensor.quantization is not None:
            data = None if tensor.data is None else tensor.quantization.dequantized(tensor.data)
            changed[name] = Tensor(name, tensor.shape, "float32", data=data)
    return rebuild(
        graph, [Node(n.name, n.op, n.inputs, n.outputs, n.attributes) for n in graph], changed=changed
    )


def keyword_spotting() -> FloatNetwork:
    """Return the trained keyword spotting network of MLPerf Tiny in float, with features of spoken words."""
    return _trained("kws_ref_model", "kws_300")


def anomaly_detection() -> FloatNetwork:
    """Return the trained autoencoder of MLPerf Tiny in float, with windows of recorded machines."""
    return _trained("ad01_int8", "ad_196")


def _trained(name: str, data: str) -> FloatNetwork:
    graph = read_model(model_path(name))
    (x,) = (graph.tensors[each] for each in graph.inputs)
    assert x.quantization is not None
    with np.load(models_folder() / "data" / f"{data}.npz") as arrays:
        given = x.quantization.dequantized(arrays["x"]).astype(np.float32)

    def samples(rng: np.random.Generator, count: int) -> Array:
        return given[rng.permutation(len(given))[:count]]

    return FloatNetwork(dequantized(graph), samples)


#: Networks by name.
FLOAT_NETWORKS: dict[str, Callable[[], FloatNetwork]] = {
    make.__name__: make
    for make in (
        mobilenet_v2,
        efficientnet_lite,
        resnet,
        squeezenet,
        convnext,
        vit_tiny,
        mlp_mixer,
        unet,
        text_recognizer,
        voice_detector,
        whole_norms,
        keyword_spotting,
        anomaly_detection,
    )
}


# Blocks of networks, at the sizes of published networks on images of 224 x 224


def _random(*shape: int) -> Sampler:
    return lambda rng, count: rng.standard_normal((count, *shape)).astype(np.float32)


def vit_block() -> FloatNetwork:
    """Return an encoder block of ViT-Ti: 197 tokens of width 192, three heads."""
    net = EagerBuilder("vit_block", _random(197, 192))
    return net.network(net.transformer("x", 3))


def mixer_block() -> FloatNetwork:
    """Return a block of MLP-Mixer-S/16: 196 patches of width 512, inner widths 256 and 2048."""
    net = EagerBuilder("mixer_block", _random(196, 512))
    y = net.op("Transpose", net.layer_norm("x"), perm=[0, 2, 1])
    y = net.linear(net.gelu(net.linear(y, 256)), 196, gain=0.5)
    x = net.op("Add", "x", net.op("Transpose", y, perm=[0, 2, 1]))
    inner = net.gelu(net.linear(net.layer_norm(x), 2048))
    return net.network(net.op("Add", x, net.projection(inner, 512)))


def _convnext_block(size: int, width: int) -> FloatNetwork:
    net = EagerBuilder("convnext_block", _random(width, size, size))
    y = net.conv("x", width, 7, groups=width, shift=0.0)
    y = net.layer_norm(net.op("Transpose", y, perm=[0, 2, 3, 1]))
    y = net.linear(net.gelu(net.linear(y, 4 * width)), width)
    y = net.op("Mul", y, 0.4 * net.lognormal(width, 0.6))
    return net.network(net.op("Add", "x", net.op("Transpose", y, perm=[0, 3, 1, 2])))


def shuffle_unit(net: EagerBuilder, x: str, width: int, stride: int = 1) -> str:
    """Add a unit of ShuffleNetV2 with `width` output channels."""
    _, inputs, size, _ = net.values[x][0].shape
    half = width // 2
    if stride == 1:
        passed, y = (
            net.op("Slice", x, np.array([start]), np.array([start + half]), np.array([1]))
            for start in (0, half)
        )
    else:
        passed = net.conv(x, inputs, 3, stride, groups=inputs, shift=0.0)
        passed, y = net.op("Relu", net.conv(passed, half, 1)), x
    y = net.op("Relu", net.conv(y, half, 1))
    y = net.conv(y, half, 3, stride, groups=half, shift=0.0)
    y = net.op("Concat", passed, net.op("Relu", net.conv(y, half, 1)), axis=1)
    size //= stride
    apart = net.op("Reshape", y, np.array([1, 2, half, size, size]))
    turned = net.op("Transpose", apart, perm=[0, 2, 1, 3, 4])
    return net.op("Reshape", turned, np.array([1, width, size, size]))


def _shuffle_block(size: int, inputs: int, width: int, stride: int, count: int = 1) -> FloatNetwork:
    """Return units of ShuffleNetV2 1x, the first with a stride; after several units, a 1x1 convolution."""
    net = EagerBuilder("shuffle_block", _random(inputs, size, size))
    x = shuffle_unit(net, "x", width, stride)
    for _ in range(count - 1):
        x = shuffle_unit(net, x, width)
    return net.network(net.op("Relu", net.conv(x, width, 1)) if count > 1 else x)


def resnext_blocks() -> FloatNetwork:
    """Return two blocks of ResNeXt on images of 28 x 28: 256, 128 and 256 channels, 32 groups of 4."""
    net = EagerBuilder("resnext_blocks", _random(256, 28, 28))
    x = "x"
    for _ in range(2):
        y = net.op("Relu", net.conv(x, 128, 1))
        y = net.op("Relu", net.conv(y, 128, 3, groups=32))
        x = net.op("Relu", net.op("Add", x, net.conv(y, 256, 1, shift=0.0)))
    return net.network(x)


def _lite_block(
    size: int, inputs: int, expansion: int, kernel: int, outputs: int, stride: int
) -> FloatNetwork:
    """Return an inverted residual block of EfficientNet-Lite0."""
    net = EagerBuilder("lite_block", _random(inputs, size, size))
    return net.network(inverted_residuals(net, "x", inputs, ((expansion, kernel, outputs, 1, stride),)))


#: Blocks by name: network, size of the image, and width or input and output channels; k: kernel, s: stride.
BLOCKS: dict[str, Callable[[], FloatNetwork]] = {
    "vit_197x192": vit_block,
    "mixer_196x512": mixer_block,
    **{
        f"convnext_{size}x{width}": partial(_convnext_block, size, width)
        for size, width in ((56, 96), (28, 192), (14, 384))
    },
    **{
        f"shuffle_{size}x{inputs}-{width}-s{stride}": partial(_shuffle_block, size, inputs, width, stride)
        for size, inputs, width, stride in (
            (28, 116, 116, 1),
            (14, 232, 232, 1),
            (7, 464, 464, 1),
            (56, 24, 116, 2),
            (28, 116, 232, 2),
            (14, 232, 464, 2),
        )
    },
    "shuffle_28x116-232-s2_x8": partial(_shuffle_block, 28, 116, 232, 2, 8),
    "resnext_28x256_x2": resnext_blocks,
    **{
        f"lite_{size}x{inputs}-{outputs}-k{kernel}-s{stride}": partial(
            _lite_block, size, inputs, expansion, kernel, outputs, stride
        )
        for size, inputs, expansion, kernel, outputs, stride in (
            (112, 32, 1, 3, 16, 1),
            (112, 16, 6, 3, 24, 2),
            (56, 24, 6, 3, 24, 1),
            (56, 24, 6, 5, 40, 2),
            (28, 40, 6, 5, 40, 1),
            (28, 40, 6, 3, 80, 2),
            (14, 80, 6, 3, 80, 1),
            (14, 80, 6, 5, 112, 1),
            (14, 112, 6, 5, 112, 1),
            (14, 112, 6, 5, 192, 2),
            (7, 192, 6, 5, 192, 1),
            (7, 192, 6, 3, 320, 1),
        )
    },
}
