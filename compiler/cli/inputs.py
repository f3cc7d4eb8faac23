"""Reads samples for the inputs of a model, or generates random ones."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.cli.arrays import ArrayFile, StoredArray, open_arrays, read_array
from compiler.cli.warn import warn
from compiler.ir.random_inputs import random_input
from compiler.ir.tensor import Tensor
from compiler.passes.index_bounds import index_bounds
from compiler.util import checks
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork

Sample = dict[str, NDArray]
#: Suffixes of files with one sample each.
_MEDIA = frozenset((".png", ".wav"))


def read_samples(
    tensors: Sequence[Tensor],
    path: "Path | io.BytesIO | None",
    limit: int | None,
    seed: int,
    network: "CompiledNetwork | None" = None,
    scale: tuple[float, float] | None = None,
) -> list[Sample]:
    """Return samples for a model.

    Parameters
    ----------
    tensors : sequence of Tensor
        Inputs of the model.
    path : Path or None
        .npy for a model with one input, .npz with one array per input; the first axis indexes samples, the others
        are the shape of the input (a leading 1 may be omitted). Floating-point values for a quantized input are
        quantized. A .png or .wav file holds one sample (`compiler.cli.media`). None: one seeded random sample, with a
        warning.
    limit : int or None
        Maximum number of samples to read; None reads all.
    network : CompiledNetwork or None
        Network that random samples are valid for, and whose rounding mode quantizes floating-point values.
    scale : (float, float) or None
        MEAN and STD of `--input-scale`, for the pixels of a .png.

    Raises
    ------
    InputError
        The file cannot be read or does not fit the model.
    """
    if scale is not None and (path is None or _suffix(path) != ".png"):
        raise InputError("--input-scale requires --input with a .png file")
    if path is None:
        warn(f"no --input file: using one random sample (seed {seed})")
        rng, bounds = np.random.default_rng(seed), index_bounds(network) if network else {}
        return [{tensor.name: random_input(rng, tensor, bounds) for tensor in tensors}]
    rounding = "reference" if network is None else network.rounding
    if _suffix(path) in _MEDIA:
        arrays = _media(path, tensors, scale)
        for tensor in tensors:
            _check(path, tensor, arrays[tensor.name])
    else:
        with open_arrays(path) as file:
            stored = _stored(path, file, tensors)
            for tensor in tensors:
                _check(path, tensor, stored[tensor.name])
            counts = {array.shape[0] for array in stored.values()}
            if len(counts) != 1 or not min(counts):
                raise InputError(
                    f"{path}: all arrays must have the same number of samples, at least one, not {sorted(counts)}"
                )
            arrays = file.read(limit)
        if not file.named:
            arrays = {tensors[0].name: arrays[""]}
    fitted = {tensor.name: _fit(path, tensor, arrays[tensor.name], rounding) for tensor in tensors}
    return [{name: array[i] for name, array in fitted.items()} for i in range(len(fitted[tensors[0].name]))]


def read_bound(given: Sequence[tuple[str, Any]]) -> dict[str, NDArray]:
    """Return the values of bound inputs by name, reading those that are files.

    Raises
    ------
    InputError
        A file cannot be read or is not an array of numbers; an input is bound twice; a number exceeds 64 bits.
    """
    made: dict[str, NDArray] = {}
    for name, value in given:
        if name in made:
            raise InputError(f"input {shown(name)} is bound twice")
        loaded = read_array(value) if isinstance(value, Path) else value
        made[name] = checks.array(f"value of {name!r}", loaded)
    return made


def first_sample(path: Path | None) -> Sample | NDArray | None:
    """Return the first sample of a file as a batch of one: an array, or arrays by name; None without a file.

    Raises
    ------
    InputError
        The file cannot be read, or holds no samples.
    """
    if path is None:
        return None
    if _suffix(path) in _MEDIA:
        raise InputError(
            f"{path}: exporting a PyTorch module needs an example of known shape: give a .npy or .npz"
        )
    with open_arrays(path) as file:
        if not file.arrays or any(not array.shape or not array.shape[0] for array in file.arrays.values()):
            raise InputError(f"{path}: must hold at least one sample, along the first axis")
        first = file.read(1)
    return first if file.named else first[""]


def _suffix(path: "Path | io.BytesIO") -> str:
    """Return the suffix of a file name in lower case; empty for a stream."""
    return Path(str(path)).suffix.lower()


def _stored(path: "Path | io.BytesIO", file: ArrayFile, tensors: Sequence[Tensor]) -> dict[str, StoredArray]:
    """Return the arrays of a file by input name of the model."""
    names = [tensor.name for tensor in tensors]
    if not file.named:
        _check_single(path, tensors)
        return {names[0]: file.arrays[""]}
    if set(file.arrays) != set(names):
        raise InputError(
            f"{path}: arrays must be named {', '.join(names)}, not {', '.join(file.arrays) or 'none'}"
        )
    return file.arrays


def _check_single(path: "Path | io.BytesIO", tensors: Sequence[Tensor]) -> None:
    """Raise InputError if a model has more than one input, for files with one array."""
    if len(tensors) != 1:
        names = ", ".join(tensor.name for tensor in tensors)
        raise InputError(f"{path}: the model has inputs {names}: give a .npz with one array for each")


def _check(path: "Path | io.BytesIO", tensor: Tensor, array: StoredArray | NDArray) -> None:
    """Raise InputError unless an array holds samples of a tensor, or floating-point values to quantize for it."""
    inner = tensor.shape[1:] if tensor.shape and tensor.shape[0] == 1 else tensor.shape
    fits = len(array.shape) >= 1 and array.shape[1:] in (tensor.shape, inner)
    if not fits or (array.dtype != tensor.dtype and not _convertible(tensor, array)):
        raise InputError(
            f"{path}: input {tensor.name!r} must be {tensor.dtype}[samples, {', '.join(map(str, inner))}], not "
            f"{array.dtype}{list(array.shape)}{tensor.meaning}"
        )


def _convertible(tensor: Tensor, array: StoredArray | NDArray) -> bool:
    """Return whether an array holds floating-point values for a quantized tensor."""
    return array.dtype.kind == "f" and tensor.meaning != ""


def _media(path: Path, tensors: Sequence[Tensor], scale: tuple[float, float] | None) -> Sample:
    """Return the sample of an image or sound file."""
    from compiler.cli.media import read_image, read_sound

    _check_single(path, tensors)
    (tensor,) = tensors
    return {
        tensor.name: read_image(path, tensor, scale) if _suffix(path) == ".png" else read_sound(path, tensor)
    }


def _fit(path: "Path | io.BytesIO", tensor: Tensor, array: NDArray, rounding: str) -> NDArray:
    """Reshape an array to samples of a tensor and quantize floating-point values for a quantized tensor."""
    shaped = array.reshape(len(array), *tensor.shape)
    return _quantized(path, tensor, shaped, rounding) if _convertible(tensor, array) else shaped


def _quantized(path: "Path | io.BytesIO", tensor: Tensor, array: NDArray, rounding: str) -> NDArray:
    """Quantize floating-point values for an input and report scale, zero point and clipping on standard error."""
    from compiler.reference.node_invocation import limits, quantize_real

    if not np.isfinite(array).all():
        raise InputError(f"{path}: input {tensor.name!r} must be finite numbers")
    q = tensor.quantization
    assert q is not None
    steps = quantize_real(array, tensor, rounding)  # type: ignore[arg-type]
    made = np.clip(steps, *limits(tensor.dtype))
    clipped = int((made != steps).sum())
    say = warn if clipped else _note
    say(
        f"{path}: input {tensor.name!r} quantized to {tensor.dtype} with scale {q.scale[0]:.6g}, zero point "
        f"{q.zero_point[0]}; {clipped:,} of {array.size:,} values clipped"
    )
    return made.astype(tensor.dtype)


def _note(text: str) -> None:
    print(text, file=sys.stderr)
