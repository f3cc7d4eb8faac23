"""Inputs of a model from a file, or made up."""

import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler import arguments
from compiler.ir.tensor import Tensor
from compiler.made_up import made_up
from compiler.places import places_in
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.network import Network

Sample = dict[str, NDArray]
#: What numpy raises for a damaged file; RuntimeError for an encrypted member, zlib's for a compressed one.
_DAMAGE = (ValueError, EOFError, zipfile.BadZipFile, KeyError, MemoryError, RuntimeError, zlib.error)


def read_samples(
    tensors: Sequence[Tensor],
    path: Path | None,
    limit: int | None,
    seed: int,
    network: "Network | None" = None,
) -> list[Sample]:
    """Samples for a model.

    Parameters
    ----------
    tensors : sequence of Tensor
        Its inputs.
    path : Path or None
        .npy for a model of one input, .npz with an array for each input; the first axis counts samples, the others are
        the model's (whose own leading 1 may be left out). None: one seeded random sample, and a line that says so.
    limit : int or None
        At most so many.
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
    arrays = _arrays(path, tensors)
    fitted = {tensor.name: _fit(path, tensor, arrays[tensor.name]) for tensor in tensors}
    counts = {len(array) for array in fitted.values()}
    if len(counts) != 1 or not min(counts):
        raise InputError(f"{path}: all inputs must have as many samples, at least one, not {sorted(counts)}")
    count = min(counts.pop(), limit or 1 << 62)
    return [{name: array[i] for name, array in fitted.items()} for i in range(count)]


def read_bound(given: Sequence[tuple[str, Any]]) -> dict[str, NDArray]:
    """Values of bound inputs by name, those in files read.

    Raises
    ------
    InputError
        A file cannot be read or holds no array of numbers; an input is bound twice; a number is beyond 64 bits.
    """
    made: dict[str, NDArray] = {}
    for name, value in given:
        if name in made:
            raise InputError(f"input {shown(name)} is bound twice")
        loaded = _loaded(value) if isinstance(value, Path) else value
        made[name] = arguments.array(f"value of {name!r}", loaded)
    return made


def first_sample(path: Path | None) -> Sample | NDArray | None:
    """The first sample of a file as a batch of one: an array, or arrays by name; None without a file.

    Raises
    ------
    InputError
        The file cannot be read, or holds no samples.
    """
    if path is None:
        return None
    loaded = _loaded(path)
    arrays = loaded if isinstance(loaded, dict) else {"": loaded}
    if not arrays or any(not array.ndim or not len(array) for array in arrays.values()):
        raise InputError(f"{path}: must hold at least one sample, along the first axis")
    first = {name: array[:1] for name, array in arrays.items()}
    return first if isinstance(loaded, dict) else first[""]


def _loaded(path: Path) -> Sample | NDArray:
    try:
        loaded = np.load(path, allow_pickle=False)
        return {name: loaded[name] for name in loaded.files} if hasattr(loaded, "files") else loaded
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        why = "it holds Python objects, or is none" if "pickle" in str(error) else str(error)
        raise InputError(f"{path}: must be a .npy or .npz file of numbers: {why}") from None


def _arrays(path: Path, tensors: Sequence[Tensor]) -> Sample:
    arrays = _loaded(path)
    names = [tensor.name for tensor in tensors]
    if not isinstance(arrays, dict):
        if len(names) != 1:
            raise InputError(
                f"{path}: the model has inputs {', '.join(names)}: give a .npz with one array for each"
            )
        return {names[0]: arrays}
    if set(arrays) != set(names):
        raise InputError(
            f"{path}: arrays must be named {', '.join(names)}, not {', '.join(arrays) or 'none'}"
        )
    return arrays


def _fit(path: Path, tensor: Tensor, array: NDArray) -> NDArray:
    """The array as samples of the tensor's own shape."""
    inner = tensor.shape[1:] if tensor.shape and tensor.shape[0] == 1 else tensor.shape
    fits = array.ndim >= 1 and (array.shape[1:] == tensor.shape or array.shape[1:] == inner)
    if not fits or array.dtype != tensor.dtype:
        raise InputError(
            f"{path}: input {tensor.name!r} must be {tensor.dtype}[samples, {', '.join(map(str, inner))}], not "
            f"{array.dtype}{list(array.shape)}"
        )
    return array.reshape(len(array), *tensor.shape)
