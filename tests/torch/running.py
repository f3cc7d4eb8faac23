"""Modules run by PyTorch, for comparison."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

torch: Any = importlib.import_module("torch")  # which the type checker need not find
pytree: Any = importlib.import_module("torch.utils._pytree")

#: Words of embeddings are below this.
WORDS = 50


def samples_like(example: Sequence[Any], count: int = 4, seed: int = 1) -> list[tuple[Any, ...]]:
    """Random inputs of the shapes and types of the example."""
    print(f"seed {seed}")
    source = torch.Generator().manual_seed(seed)
    return [
        tuple(
            torch.randn(x.shape, generator=source)
            if x.is_floating_point()
            else torch.randint(0, WORDS, x.shape, generator=source)
            for x in example
        )
        for _ in range(count)
    ]


def arrays(names: Sequence[str], sample: Sequence[Any]) -> dict[str, np.ndarray]:
    """A sample by the names of the inputs."""
    return {name: x.numpy() for name, x in zip(names, sample, strict=True)}


def answers(module: Any, sample: Sequence[Any]) -> list[np.ndarray]:
    """What a module makes of a sample, one array for each output."""
    if not isinstance(module, torch.fx.GraphModule):
        module.eval()
    with torch.no_grad():
        return [leaf.numpy() for leaf in pytree.tree_leaves(module(*sample))]
