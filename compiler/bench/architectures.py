"""Float32 ONNX files of published architectures, to measure compiler and accelerator on networks of realistic size.

The weights are seeded random numbers: shapes, operators and value ranges are those of the real networks, but their
outputs are meaningless. Batch norms have the statistics of seeded images.

* resnet18, resnet50: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015 (the stride of a
  bottleneck in its 3x3 convolution, as in most implementations)
* mobilenet_v1: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
  Applications", 2017
* mobilenet_v2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018
* bert_layer: one encoder layer of the base size of Devlin et al., "BERT: Pre-training of Deep Bidirectional
  Transformers for Language Understanding", 2018, on 128 tokens
* lstm: Hochreiter, Schmidhuber, "Long Short-Term Memory", 1997, with forget gates; 64 inputs, 128 units, 16 steps

`python -m compiler.bench.architectures` prints where the files are; they are made once and kept in the cache.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from compiler.bench.float_builder import FloatBuilder
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


def mobilenet_v1() -> onnx.ModelProto:
    """Return MobileNetV1 of width 1 (0.57 GMAC)."""
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
    """Return MobileNetV2 of width 1 (0.3 GMAC)."""
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
    """Return one encoder layer: attention and two dense layers, each with residual addition and normalization."""
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


def _normed(net: FloatBuilder, x: str, name: str) -> str:
    gamma = net.rng.uniform(0.8, 1.2, WIDTH).astype(np.float32)
    factors = [
        net.constant(f"{name}.weight", gamma),
        net.constant(f"{name}.bias", net.normal(WIDTH, scale=0.05)),
    ]
    return net.node("LayerNormalization", [x, *factors], name, axis=-1, epsilon=1e-12)


def _gelu(net: FloatBuilder, x: str) -> str:
    """Add x/2 * (1 + erf(x / sqrt(2))) as exporters write it."""
    root, one, half = (
        net.constant(f"{x}.{n}", np.float32(v)) for n, v in (("root", np.sqrt(2)), ("one", 1), ("half", 0.5))
    )
    erf = net.node("Erf", [net.node("Div", [x, root], f"{x}.scaled")], f"{x}.erf")
    product = net.node("Mul", [x, net.node("Add", [erf, one], f"{x}.more")], f"{x}.twice")
    return net.node("Mul", [product, half], f"{x}.gelu")


def lstm() -> onnx.ModelProto:
    """Return one LSTM layer over a sequence of one sample."""
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
    """Return the file of a network, generated on first use.

    Raises
    ------
    InputError
        The network is unknown.
    """
    if name not in NETWORKS:
        raise InputError(f"a network must be one of {', '.join(NETWORKS)}, not {shown(name)}")
    sources = [
        Path(__file__).with_name(each).read_bytes() for each in ("float_builder.py", "architectures.py")
    ]

    def make(folder: Path, _lock: int) -> None:
        onnx.save(NETWORKS[name](), folder / f"{name}.onnx")

    return cached("networks", cache_key([name, *sources]), make) / f"{name}.onnx"


def main() -> None:
    """Generate the named files, or all."""
    parser = argparse.ArgumentParser(
        description="float ONNX files of published architectures, seeded weights"
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"one of {', '.join(NETWORKS)} (default: all)"
    )
    for name in parser.parse_args().names or NETWORKS:
        print(model_file(name))


if __name__ == "__main__":
    main()
