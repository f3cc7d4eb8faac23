"""Samples as networks take them that carry out several at a time: one behind the other along the first axis."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.runtime.compiled import CompiledNetwork

Arrays = Mapping[str, NDArray]


def stack_batch(network: CompiledNetwork, group: Sequence[Arrays]) -> Arrays:
    """Inputs of a network from at most as many samples as it takes; the last one fills up the batch."""
    if network.batch == 1:
        return group[0]
    full = [*group, *[group[-1]] * (network.batch - len(group))]
    return {name: np.concatenate([sample[name] for sample in full]) for name in full[0]}


def split_batch(network: CompiledNetwork, outputs: Arrays, count: int) -> list[dict[str, NDArray]]:
    """The outputs of each of the first samples of a batch."""
    if network.batch == 1:
        return [dict(outputs)]
    parts = {name: np.split(array, network.batch) for name, array in outputs.items()}
    return [{name: part[number] for name, part in parts.items()} for number in range(count)]
