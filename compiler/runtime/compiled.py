"""Compiled network that users can call, and stacking of samples into batches."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.stages import StagedNetwork
from cosim.golden import GoldenDevice
from hw.errors import InputError

Arrays = Mapping[str, NDArray]


class CompiledNetwork(StagedNetwork):
    """Compiled model: programs, constants and memory layout; created by `compile` and executed by `Session`.

    Calling the object with arrays runs the network on the golden model and returns a dict of outputs.

    Examples
    --------
    >>> network = compiler.compile("network.tflite", target="n4")
    >>> outputs = network(image)  # or by the input's name: network(image=image)
    >>> network.schedule.layers  # how each layer is tiled and ordered
    """

    def __call__(self, *inputs: NDArray, **named: NDArray) -> dict[str, NDArray]:
        """Run one sample on the golden model and return the outputs by name.

        Raises
        ------
        InputError
            An input is missing, unknown, given twice, or has another shape or type than the model's.
        """
        names = [tensor.name for tensor in self.inputs]
        positional = dict(zip(names, inputs, strict=False))
        if len(inputs) + len(named) > len(positional | named):
            given = ", ".join([f"{len(inputs)} by position", *named])
            raise InputError(f"inputs must be {', '.join(names) or 'none'}, each given once, not {given}")
        return self.step(positional | named, self.initial)[0]

    def step(self, inputs: Arrays, states: Arrays) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Run one sample on the golden model and return the outputs and the states after it, by name.

        Parameters
        ----------
        inputs, states : dict
            Input arrays, and states before the sample, by name.

        Raises
        ------
        InputError
            An input or a state is missing or unknown, or has another shape or type than the model's.
        """
        with GoldenDevice(self.config, dram_bytes(self)) as device:
            session = Session(device, self)
            session.states = dict(states)
            return session.run(dict(inputs)), session.states


def stack_batch(network: CompiledNetwork, group: Sequence[Arrays]) -> Arrays:
    """Stack up to `network.batch` samples into batched inputs; repeat the last sample to fill the batch."""
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
