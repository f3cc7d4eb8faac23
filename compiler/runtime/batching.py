"""Stacking of samples into batches along the first axis, and splitting of batched outputs."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.runtime.compiled import CompiledNetwork

Arrays = Mapping[str, NDArray]


def stack_batch(network: CompiledNetwork, group: Sequence[Arrays]) -> Arrays:
    """Stack up to `network.batch` samples into inputs; the last sample is repeated to fill the batch."""
    if network.batch == 1:
        return group[0]
    full = [*group, *[group[-1]] * (network.batch - len(group))]
    return {name: np.concatenate([sample[name] for sample in full]) for name in full[0]}


def split_batch(network: CompiledNetwork, outputs: Arrays, count: int) -> list[dict[str, NDArray]]:
    """Split the outputs of a batch and return those of the first `count` samples."""
    if network.batch == 1:
        return [dict(outputs)]
    parts = {name: np.split(array, network.batch) for name, array in outputs.items()}
    return [{name: part[number] for name, part in parts.items()} for number in range(count)]
