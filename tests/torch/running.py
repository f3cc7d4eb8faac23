"""Execution of modules in PyTorch, for comparison."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

torch: Any = importlib.import_module("torch")  # the type checker may not find torch
pytree: Any = importlib.import_module("torch.utils._pytree")

#: Exclusive upper bound of embedding indices.
WORDS = 50


def samples_like(example: Sequence[Any], count: int = 4, seed: int = 1) -> list[tuple[Any, ...]]:
    """Return random inputs with the shapes and types of the example."""
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
    """Return a sample as a dictionary by the names of the inputs."""
    return {name: x.numpy() for name, x in zip(names, sample, strict=True)}


def answers(module: Any, sample: Sequence[Any]) -> list[np.ndarray]:
    """Return a module's outputs for a sample."""
    if not isinstance(module, torch.fx.GraphModule):
        module.eval()
    with torch.no_grad():
        return [leaf.numpy() for leaf in pytree.tree_leaves(module(*sample))]
