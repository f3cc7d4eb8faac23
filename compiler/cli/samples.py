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
from compiler.cli.warn import warn
from compiler.ir.tensor import Tensor
from compiler.made_up import made_up
from compiler.places import places_in
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.network import Network

Sample = dict[str, NDArray]
#: Files that hold one sample each.
_MEDIA = frozenset((".png", ".wav"))
#: What numpy raises for a damaged file; RuntimeError for an encrypted member, zlib's for a compressed one.
_DAMAGE = (ValueError, EOFError, zipfile.BadZipFile, KeyError, MemoryError, RuntimeError, zlib.error)


def read_samples(
    tensors: Sequence[Tensor],
    path: Path | None,
    limit: int | None,
    seed: int,
    network: "Network | None" = None,
    scale: tuple[float, float] | None = None,
) -> list[Sample]:
    """Samples for a model.

    Parameters
    ----------
    tensors : sequence of Tensor
        Its inputs.
    path : Path or None
        .npy for a model of one input, .npz with an array for each input; the first axis counts samples, the others are
        the model's (whose own leading 1 may be left out). Real numbers for a quantized input are quantized. One sample
        may be a .png or .wav file (`compiler.cli.media`). None: one seeded random sample, and a line that says so.
    limit : int or None
        At most so many.
    network : Network or None
        What a random sample is for, and whose rounding quantizes real numbers.
    scale : (float, float) or None
        MEAN and STD of the pixels of a .png.

    Raises
    ------
    InputError
        The file cannot be read or does not fit the model.
    """
    if scale is not None and (path is None or _suffix(path) != ".png"):
        raise InputError("--input-scale is for --input of a .png file")
    if path is None:
        warn(f"no input file: one random sample of seed {seed}")
        rng, places = np.random.default_rng(seed), places_in(network) if network else {}
        return [{tensor.name: made_up(rng, tensor, places) for tensor in tensors}]
    arrays = _arrays(path, tensors, scale)
    rounding = "reference" if network is None else network.rounding
    fitted = {tensor.name: _fit(path, tensor, arrays[tensor.name], rounding) for tensor in tensors}
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
    if _suffix(path) in _MEDIA:
        raise InputError(
            f"{path}: the module's export needs an example with a shape of its own: .npy or .npz"
        )
    loaded = _loaded(path)
    arrays = loaded if isinstance(loaded, dict) else {"": loaded}
    if not arrays or any(not array.ndim or not len(array) for array in arrays.values()):
        raise InputError(f"{path}: must hold at least one sample, along the first axis")
    first = {name: array[:1] for name, array in arrays.items()}
    return first if isinstance(loaded, dict) else first[""]


def _suffix(path: Path) -> str:
    """Of a file's name, in lower case; a stream's is empty."""
    return Path(str(path)).suffix.lower()


def _loaded(path: Path) -> Sample | NDArray:
    try:
        loaded = np.load(path, allow_pickle=False)
        return {name: loaded[name] for name in loaded.files} if hasattr(loaded, "files") else loaded
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        why = "it holds Python objects, or is none" if "pickle" in str(error) else str(error)
        raise InputError(f"{path}: must be a .npy or .npz file of numbers: {why}") from None


def _arrays(path: Path, tensors: Sequence[Tensor], scale: tuple[float, float] | None) -> Sample:
    names, single = [tensor.name for tensor in tensors], _suffix(path) in _MEDIA
    loaded = None if single else _loaded(path)
    if isinstance(loaded, dict):
        if set(loaded) != set(names):
            raise InputError(
                f"{path}: arrays must be named {', '.join(names)}, not {', '.join(loaded) or 'none'}"
            )
        return loaded
    if len(names) != 1:
        raise InputError(
            f"{path}: the model has inputs {', '.join(names)}: give a .npz with one array for each"
        )
    return {names[0]: _media(path, tensors[0], scale) if loaded is None else loaded}


def _media(path: Path, tensor: Tensor, scale: tuple[float, float] | None) -> NDArray:
    """The sample of an image or sound file."""
    from compiler.cli.media import read_image, read_sound

    return read_image(path, tensor, scale) if _suffix(path) == ".png" else read_sound(path, tensor)


def _fit(path: Path, tensor: Tensor, array: NDArray, rounding: str) -> NDArray:
    """The array as samples of the tensor's own shape; real numbers for a quantized tensor are quantized."""
    inner = tensor.shape[1:] if tensor.shape and tensor.shape[0] == 1 else tensor.shape
    convertible = array.dtype.kind == "f" and tensor.meaning != ""
    fits = array.ndim >= 1 and (array.shape[1:] == tensor.shape or array.shape[1:] == inner)
    if not fits or (array.dtype != tensor.dtype and not convertible):
        raise InputError(
            f"{path}: input {tensor.name!r} must be {tensor.dtype}[samples, {', '.join(map(str, inner))}], not "
            f"{array.dtype}{list(array.shape)}{tensor.meaning}"
        )
    array = array.reshape(len(array), *tensor.shape)
    return _quantized(path, tensor, array, rounding) if convertible else array


def _quantized(path: Path, tensor: Tensor, array: NDArray, rounding: str) -> NDArray:
    """Real numbers as the integers of a quantized input, and a line on standard error that says how."""
    from compiler.host.call import limits, quantize_real

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


def read_array(path: Path) -> NDArray:
    """The array of a .npy file; InputError if it cannot be read, or is an .npz file."""
    loaded = _loaded(path)
    if isinstance(loaded, dict):
        raise InputError(f"{path}: must be a .npy file with one array, not an .npz file")
    return loaded
