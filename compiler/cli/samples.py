"""Inputs of a model from a file, or made up."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.cli.arrays import ArrayFile, StoredArray, open_arrays
from compiler.ir.tensor import Tensor
from compiler.made_up import made_up
from compiler.places import places_in
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.network import Network

Sample = dict[str, NDArray]


def read_samples(
    tensors: Sequence[Tensor],
    path: "Path | io.BytesIO | None",
    limit: int | None,
    seed: int,
    network: "Network | None" = None,
) -> list[Sample]:
    """Samples for a model.

    Parameters
    ----------
    tensors : sequence of Tensor
        Its inputs.
    path : Path, BytesIO or None
        A file, or its contents: .npy for a model of one input, .npz with an array for each input; the first axis counts
        samples, the others are the model's (whose own leading 1 may be left out). None: one seeded random sample, and a
        line that says so.
    limit : int or None
        Most samples to read; None: all.
    network : Network or None
        What a random sample is for.

    Raises
    ------
    InputError
        The file cannot be read or does not fit the model.
    """
    if path is None:
        print(f"no input file: one random sample of seed {seed}", file=sys.stderr)
        rng, places = np.random.default_rng(seed), places_in(network) if network else {}
        return [{tensor.name: made_up(rng, tensor, places) for tensor in tensors}]
    with open_arrays(path) as file:
        stored = _stored(path, file, tensors)
        for tensor in tensors:
            _check(path, tensor, stored[tensor.name])
        counts = {array.shape[0] for array in stored.values()}
        if len(counts) != 1 or not min(counts):
            raise InputError(
                f"{path}: all inputs must have as many samples, at least one, not {sorted(counts)}"
            )
        arrays = file.read(limit)
    if not file.named:
        arrays = {tensors[0].name: arrays[""]}
    fitted = {
        tensor.name: arrays[tensor.name].reshape(len(arrays[tensor.name]), *tensor.shape)
        for tensor in tensors
    }
    return [{name: array[i] for name, array in fitted.items()} for i in range(len(arrays[tensors[0].name]))]


def first_sample(path: Path | None) -> Sample | NDArray | None:
    """The first sample of a file as a batch of one: an array, or arrays by name; None without a file.

    Raises
    ------
    InputError
        The file cannot be read, or holds no samples.
    """
    if path is None:
        return None
    with open_arrays(path) as file:
        if not file.arrays or any(not array.shape[0] for array in file.arrays.values()):
            raise InputError(f"{path}: must hold at least one sample, along the first axis")
        first = file.read(1)
    return first if file.named else first[""]


def _stored(path: "Path | io.BytesIO", file: ArrayFile, tensors: Sequence[Tensor]) -> dict[str, StoredArray]:
    """Arrays of a file by names of a model's inputs."""
    names = [tensor.name for tensor in tensors]
    if not file.named:
        if len(names) != 1:
            raise InputError(
                f"{path}: the model has inputs {', '.join(names)}: give a .npz with one array for each"
            )
        return {names[0]: file.arrays[""]}
    if set(file.arrays) != set(names):
        raise InputError(
            f"{path}: arrays must be named {', '.join(names)}, not {', '.join(file.arrays) or 'none'}"
        )
    return file.arrays


def _check(path: "Path | io.BytesIO", tensor: Tensor, array: StoredArray) -> None:
    """InputError if an array does not hold samples of a tensor."""
    inner = tensor.shape[1:] if tensor.shape and tensor.shape[0] == 1 else tensor.shape
    if array.shape[1:] not in (tensor.shape, inner) or array.dtype != tensor.dtype:
        raise InputError(
            f"{path}: input {tensor.name!r} must be {tensor.dtype}[samples, {', '.join(map(str, inner))}], not "
            f"{array.dtype}{list(array.shape)}"
        )
