"""A small quantized classifier with a softmax, and samples of its input that lie around prototypes of classes."""

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from tests.support.graphs import Draft

CLASSES, CHANNELS, SIZE = 5, 8, 8
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def classifier(rng: np.random.Generator, dtype: str = "int8") -> Graph:
    """Return a graph of two convolutions with ReLU, a mean, a dense layer and a softmax; the input is `x1`."""
    draft = Draft(rng)
    low = np.iinfo(dtype).min
    quantization = Quantization.per_tensor(0.05, low + 128)
    x = draft.graph.add_input(Tensor("x1", (1, SIZE, SIZE, CHANNELS), dtype, quantization))
    for number, (channels, scale) in enumerate(((16, 0.4), (16, 1.5))):
        filters = draft.constant((channels, 3, 3, x.shape[-1]), quantization=Quantization.per_tensor(0.01, 0))
        meaning = Quantization.per_tensor(scale, low)
        y = draft.into(
            "conv2d", [x, filters], Tensor(f"y{number}", (1, SIZE, SIZE, channels), dtype, meaning), **WINDOW
        )
        x = draft.into("clip", [y], Tensor(f"z{number}", y.shape, dtype, meaning), low=0.0, high=1e6)
    mean = draft.into(
        "reduce_mean",
        [x],
        Tensor("mean", (1, x.shape[-1]), dtype, x.quantization),
        axes=(1, 2),
        keep=False,
    )
    weights = draft.constant((CLASSES, mean.shape[-1]), quantization=Quantization.per_tensor(0.01, 0))
    scores = draft.into(
        "dense",
        [mean, weights],
        Tensor("scores", (1, CLASSES), dtype, Quantization.per_tensor(5.0, low + 128)),
    )
    share = Tensor("share", scores.shape, dtype, Quantization.per_tensor(1 / 256, low))
    draft.into("softmax", [scores], share, axis=1, beta=0.05)
    return draft.graph.finish([share.name])


def samples_of_classes(
    graph: Graph, count: int, seed: int, mixing: float = 0.3, noise: float = 12.0, spread: float = 60.0
) -> list[dict[str, NDArray]]:
    """Return samples: mixtures of prototypes of channels, which are the same for all seeds, and noise of each pixel.

    The smaller `mixing` is, the more does one prototype dominate each sample, so that its label is certain.
    """
    (tensor,) = (graph.tensors[name] for name in graph.inputs)
    prototypes = np.random.default_rng(7).normal(0, spread, (12, 1, 1, CHANNELS))
    rng, limits = np.random.default_rng(seed), np.iinfo(tensor.dtype)
    found = []
    for _ in range(count):
        mixed = rng.dirichlet(np.full(len(prototypes), mixing))
        centre = 2 * np.tensordot(mixed, prototypes, 1)
        values = centre + rng.normal(0, noise, tensor.shape[1:]) + limits.min + 128
        found.append(
            {tensor.name: np.clip(np.rint(values), limits.min, limits.max).astype(tensor.dtype)[None]}
        )
    return found
