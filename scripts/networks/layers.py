"""Layers of small convolutional networks in numpy, with gradients.

Tensors are float32; images have the shape N x H x W x C. `forward` stores intermediate values for `backward`, which
must be called once after each `forward`. `backward` returns the gradient of the input and sets the gradients of the
parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray


class Parameter:
    """Trainable values and their gradient."""

    def __init__(self, value: Array):
        self.value = value.astype(np.float32)
        self.grad = np.zeros_like(self.value)


class Layer(ABC):
    """Differentiable function; an optimizer updates its `parameters`."""

    def parameters(self) -> Iterator[Parameter]:
        """Return the trainable parameters."""
        return iter(())

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """Return the output of the layer."""

    @abstractmethod
    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input, given the gradient of the output."""


class Conv3x3(Layer):
    """3x3 convolution with one pixel of zero padding and stride 1; the weights have the shape 3 x 3 x C x O."""

    def __init__(self, rng: np.random.Generator, channels: int, outputs: int):
        scale = np.sqrt(2 / (9 * channels))
        self.weight = Parameter(rng.normal(0, scale, (3, 3, channels, outputs)))
        self.bias = Parameter(np.zeros(outputs))

    def parameters(self) -> Iterator[Parameter]:
        """Yield the weight and the bias."""
        yield from (self.weight, self.bias)

    def forward(self, x: Array) -> Array:
        """Compute the convolution as one matrix product over all windows."""
        self.shape = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = sliding_window_view(padded, (3, 3), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
        self.columns = windows.reshape(-1, 9 * x.shape[3])
        product = self.columns @ self.weight.value.reshape(self.columns.shape[1], -1)
        return product.reshape(*x.shape[:3], -1) + self.bias.value

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input, which is the sum of the gradients of all windows that contain a pixel."""
        n, h, w, c = self.shape
        flat = grad.reshape(-1, grad.shape[3])
        self.weight.grad = (self.columns.T @ flat).reshape(self.weight.value.shape)
        self.bias.grad = flat.sum(axis=0)
        windows = (flat @ self.weight.value.reshape(9 * c, -1).T).reshape(n, h, w, 3, 3, c)
        padded = np.zeros((n, h + 2, w + 2, c), np.float32)
        for row in range(3):
            for column in range(3):
                padded[:, row : row + h, column : column + w] += windows[:, :, :, row, column]
        return padded[:, 1:-1, 1:-1]


class Dense(Layer):
    """Fully connected layer on flattened input; the weights have the shape inputs x outputs."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int):
        self.weight = Parameter(rng.normal(0, np.sqrt(1 / inputs), (inputs, outputs)))
        self.bias = Parameter(np.zeros(outputs))

    def parameters(self) -> Iterator[Parameter]:
        """Yield the weight and the bias."""
        yield from (self.weight, self.bias)

    def forward(self, x: Array) -> Array:
        """Return the matrix product with the weights, plus the bias."""
        self.shape = x.shape
        self.flat = x.reshape(len(x), -1)
        return self.flat @ self.weight.value + self.bias.value

    def backward(self, grad: Array) -> Array:
        """Return the matrix product of the gradient with the transposed weights."""
        self.weight.grad = self.flat.T @ grad
        self.bias.grad = grad.sum(axis=0)
        return (grad @ self.weight.value.T).reshape(self.shape)


class Relu(Layer):
    """Rectified linear unit: max(x, 0)."""

    def forward(self, x: Array) -> Array:
        """Return max(x, 0)."""
        self.mask = x > 0
        return x * self.mask

    def backward(self, grad: Array) -> Array:
        """Return the gradient where the input was positive, and zero elsewhere."""
        return grad * self.mask


class MaxPool2x2(Layer):
    """Maximum pooling over 2x2 tiles."""

    def forward(self, x: Array) -> Array:
        """Return the maximum of each 2x2 tile; height and width must be even."""
        n, h, w, c = x.shape
        tiles = x.reshape(n, h // 2, 2, w // 2, 2, c)
        out = tiles.max(axis=(2, 4), keepdims=True)
        mask = tiles == out
        self.share = mask / mask.sum(axis=(2, 4), keepdims=True, dtype=np.float32)
        return out.reshape(n, h // 2, w // 2, c)

    def backward(self, grad: Array) -> Array:
        """Assign the gradient to the maximum of each tile, divided equally if several values are the maximum."""
        n, h, w, c = grad.shape
        return (self.share * grad.reshape(n, h, 1, w, 1, c)).reshape(n, 2 * h, 2 * w, c)


class Residual(Layer):
    """Residual connection: x + inner(x)."""

    def __init__(self, inner: Layer):
        self.inner = inner

    def parameters(self) -> Iterator[Parameter]:
        """Return the parameters of the inner layer."""
        return self.inner.parameters()

    def forward(self, x: Array) -> Array:
        """Add the input to the output of the inner layer."""
        return x + self.inner.forward(x)

    def backward(self, grad: Array) -> Array:
        """Return the sum of the gradients of both branches."""
        return grad + self.inner.backward(grad)


def cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Return the mean cross-entropy of softmax(logits) and its gradient."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(probability[rows, labels] + 1e-12).mean())
    probability[rows, labels] -= 1
    return loss, probability / len(labels)


class Adam:
    """Adam optimizer with decoupled weight decay."""

    def __init__(self, parameters: list[Parameter], decay: float = 1e-3):
        self.parameters = parameters
        self.decay = decay
        self.steps = 0
        self.mean = [np.zeros_like(p.value) for p in parameters]
        self.square = [np.zeros_like(p.value) for p in parameters]

    def step(self, rate: float) -> None:
        """Update every parameter with the current gradients."""
        self.steps += 1
        for p, mean, square in zip(self.parameters, self.mean, self.square, strict=True):
            mean += 0.1 * (p.grad - mean)
            square += 0.001 * (p.grad**2 - square)
            unbiased = np.sqrt(square / (1 - 0.999**self.steps)) + 1e-8
            p.value -= rate * (mean / (1 - 0.9**self.steps) / unbiased + self.decay * p.value)
