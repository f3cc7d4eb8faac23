"""Training of the network of `make sim`, its quantization to int8, and export to `scripts/networks/digits_int8.onnx`.

The network maps 8 x 8 images of handwritten digits to ten scores by two 3x3 convolutions, maximum pooling, a residual
block, maximum pooling, and a fully connected layer. The script prints the accuracy on 360 held-out images before and
after quantization. It takes a few seconds on one core and is reproducible on the same computer. Other processors round
floats differently, so the committed file is authoritative.

Example: .venv/bin/python -m scripts.train_digits
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx

from hw.errors import MlaError, WorkError
from scripts.networks.digits import MODEL, Digits, load_digits_split
from scripts.networks.layers import Adam, Conv3x3, Dense, Layer, MaxPool2x2, Relu, Residual, cross_entropy
from scripts.networks.qdq import QdqBuilder
from scripts.networks.quantize import Affine

EPOCHS = 60
BATCH = 64
RATE = 2e-3
SEED = 1
LOWEST_ACCURACY = 0.97
#: Quantization of pixels: values 0..16 are stored as int8 and represent pixel / 16.
PIXEL = Affine(1 / 16, 0)


class DigitsNet:
    """Float network for handwritten digits."""

    def __init__(self, rng: np.random.Generator):
        self.conv1 = Conv3x3(rng, 1, 16)
        self.conv2 = Conv3x3(rng, 16, 32)
        self.conv3 = Conv3x3(rng, 32, 32)
        self.dense = Dense(rng, 2 * 2 * 32, 10)
        self.layers: list[Layer] = [
            self.conv1,
            Relu(),
            self.conv2,
            Relu(),
            MaxPool2x2(),
            Residual(self.conv3),
            Relu(),
            MaxPool2x2(),
            self.dense,
        ]

    def forward(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of all layers, scores last."""
        outputs = []
        for layer in self.layers:
            x = layer.forward(x)
            outputs.append(x)
        return outputs

    def backward(self, grad: np.ndarray) -> None:
        """Compute the gradients of all layers from the gradient of the scores."""
        for layer in reversed(self.layers):
            grad = layer.backward(grad)


def to_float(images: np.ndarray) -> np.ndarray:
    """Convert pixels to the input of the float network, N x H x W x C."""
    return (images.transpose(0, 2, 3, 1) * np.float32(PIXEL.scale)).astype(np.float32)


def shift(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shift all images randomly by up to one pixel in each direction."""
    row, column = rng.integers(0, 3, 2)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return padded[:, row : row + images.shape[1], column : column + images.shape[2]]


def train(data: Digits) -> DigitsNet:
    """Train the network with a cosine learning rate schedule."""
    rng = np.random.default_rng(SEED)
    net = DigitsNet(rng)
    optimizer = Adam([p for layer in net.layers for p in layer.parameters()])
    images = to_float(data.images)
    batches = len(images) // BATCH
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        losses = []
        for batch in range(batches):
            chosen = order[batch * BATCH : (batch + 1) * BATCH]
            scores = net.forward(shift(images[chosen], rng))[-1]
            loss, grad = cross_entropy(scores, data.labels[chosen])
            losses.append(loss)
            net.backward(grad)
            progress = (epoch + batch / batches) / EPOCHS
            optimizer.step(RATE * (1 + np.cos(np.pi * progress)) / 2)
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", file=sys.stderr)
    return net


def export(net: DigitsNet, images: np.ndarray) -> onnx.ModelProto:
    """Return the int8 network, quantized by the tensor ranges that `images` produce."""
    x = to_float(images)
    _, relu1, _, relu2, pool, _, total, _, scores = net.forward(x)
    branch = net.conv3.forward(pool)

    def weight(conv: Conv3x3) -> np.ndarray:
        return conv.weight.value.transpose(3, 2, 0, 1)

    # The float network flattens in the order H, W, C; ONNX flattens in the order C, H, W.
    dense = net.dense.weight.value.reshape(2, 2, 32, 10).transpose(3, 2, 0, 1).reshape(10, -1)

    b = QdqBuilder("digits", "image", ["batch", 1, 8, 8], PIXEL)
    y = b.conv(b.start, "conv1", weight(net.conv1), net.conv1.bias.value, Affine.of_values(relu1), relu=True)
    y = b.conv(y, "conv2", weight(net.conv2), net.conv2.bias.value, Affine.of_values(relu2), relu=True)
    skip = b.max_pool(y, "pool1")
    y = b.conv(skip, "conv3", weight(net.conv3), net.conv3.bias.value, Affine.of_values(branch), relu=False)
    y = b.add_relu(y, skip, "add", Affine.of_values(total))
    y = b.flatten(b.max_pool(y, "pool2"), "flatten")
    return b.dense_output(y, "scores", dense, net.dense.bias.value, Affine.of_values(scores))


def accuracy_int8(model: onnx.ModelProto, data: Digits) -> float:
    """Return the accuracy of the int8 network in onnxruntime without graph optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (scores,) = session.run(["scores"], {"image": data.images})
    return float((np.asarray(scores).argmax(axis=1) == data.labels).mean())


def run(output: Path) -> None:
    """Train, export and verify the network, and write it to a file."""
    from threadpoolctl import threadpool_limits

    training, held_out = load_digits_split()
    # A single thread, since the rounding of float sums depends on how they are split among threads.
    with threadpool_limits(1):
        net = train(training)
        scores = net.forward(to_float(held_out.images))[-1]
        model = export(net, training.images)
    float_accuracy = float((scores.argmax(axis=1) == held_out.labels).mean())
    int8_accuracy = accuracy_int8(model, held_out)
    count = len(held_out.labels)
    print(f"accuracy on {count} held-out images: float {float_accuracy:.4f}, int8 {int8_accuracy:.4f}")
    if int8_accuracy < LOWEST_ACCURACY:
        raise WorkError(f"int8 accuracy must be at least {LOWEST_ACCURACY}, not {int8_accuracy:.4f}")
    output.write_bytes(model.SerializeToString(deterministic=True))
    print(f"wrote {output} ({output.stat().st_size} bytes)")


def main() -> int:
    """Parse the command line and train; return the exit status."""
    parser = argparse.ArgumentParser(description="Train, quantize and store the digits network.")
    parser.add_argument("-o", "--output", type=Path, default=MODEL, help="ONNX file (default: %(default)s)")
    try:
        run(parser.parse_args().output)
    except MlaError as error:
        print(f"train_digits: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
