"""Input samples for a model, read from .npy and .npz files, images and audio, or generated at random."""

import io
import math
import sys
import tokenize
import warnings as python_warnings
import wave
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from compiler.cli.exit_status import warn
from compiler.ir.graph import random_input
from compiler.ir.tensor import Tensor
from compiler.passes.index_bounds import index_bounds
from compiler.util import checks
from hw.errors import InputError, reason_of, shown

if TYPE_CHECKING:
    from PIL.Image import Image

    from compiler.runtime.compiled import CompiledNetwork

#: Maximum total size in bytes of the arrays read from a file in one call.
MAX_READ_BYTES = 2 << 30
_MAGIC_ZIP = b"PK"
_SUFFIX = ".npy"
#: Exceptions raised by damaged headers and archives. Headers are Python literals, so any parser error is possible.
_FORMAT_ERRORS = (
    ValueError,
    SyntaxError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    EOFError,
    MemoryError,
    RecursionError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class StoredArray:
    """Array in an open file, whose header has been read but not its elements.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array; the first axis indexes the samples.
    dtype : numpy.dtype
        Data type of the elements.
    fortran_order : bool
        True for Fortran (column-major) order, in which the first samples are spread over the whole file.
    data : IO of bytes
        The open file, positioned at the first element.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    data: IO[bytes]

    def byte_count(self, count: int) -> int:
        """Return the number of bytes to read for the first `count` samples."""
        whole = self.fortran_order or not self.shape
        shape = self.shape if whole else (min(count, self.shape[0]), *self.shape[1:])
        return math.prod(shape) * self.dtype.itemsize

    def read(self, count: int) -> NDArray:
        """Return the first `count` samples, or all if there are fewer; raise ValueError if the file is truncated."""
        size = self.byte_count(count)
        data = self.data.read(size)
        if len(data) < size:
            raise ValueError(f"truncated: {len(data):,} of {size:,} bytes of data")
        flat = np.frombuffer(data, self.dtype)
        if not self.shape:
            return flat.reshape(()).copy()
        if self.fortran_order:
            return flat.reshape(self.shape[::-1]).T[:count].copy()
        return flat.reshape(-1 if flat.size else 0, *self.shape[1:]).copy()


class ArrayFile:
    """Open .npy or .npz file.

    Attributes
    ----------
    arrays : dict of StoredArray by name
        The arrays of an .npz file by name, or the one array of a .npy file under the name "".
    named : bool
        True for an .npz file, whose arrays have names.
    """

    def __init__(self, path: "Path | io.BytesIO", file: IO[bytes], stack: ExitStack) -> None:
        self._path = path
        magic = file.read(len(_MAGIC_ZIP))
        if not magic:
            raise InputError(f"{path}: is empty")
        self.named = magic == _MAGIC_ZIP
        file.seek(0)
        if not self.named:
            self.arrays = {"": _header(file)}
            return
        archive = stack.enter_context(zipfile.ZipFile(file))
        self.arrays = {
            name.removesuffix(_SUFFIX): _header(stack.enter_context(archive.open(name)))
            for name in archive.namelist()
        }

    def read(self, count: int | None = None) -> dict[str, NDArray]:
        """Return the first samples of all arrays.

        Parameters
        ----------
        count : int or None
            Number of samples along the first axis; None reads all.

        Raises
        ------
        InputError
            The samples occupy more than `MAX_READ_BYTES`; nothing is read in that case.
        """
        counts = {
            name: max(array.shape[0] if count is None and array.shape else count or 0, 0)
            for name, array in self.arrays.items()
        }
        size = sum(array.byte_count(counts[name]) for name, array in self.arrays.items())
        if size > MAX_READ_BYTES:
            raise InputError(
                f"{self._path}: {size:,} bytes of samples exceed the limit of {MAX_READ_BYTES:,} bytes (see --limit)"
            )
        return {name: array.read(counts[name]) for name, array in self.arrays.items()}


@contextmanager
def open_arrays(path: "Path | io.BytesIO") -> Iterator[ArrayFile]:
    """Open a .npy or .npz file and read its headers.

    Parameters
    ----------
    path : Path or BytesIO
        Path of the file, or its contents in memory (error messages show its `str` as the file name).

    Raises
    ------
    InputError
        On opening or inside the `with` block, if the file cannot be read, is damaged, or contains Python objects.
    """
    try:
        with ExitStack() as stack:
            file = path if isinstance(path, io.BytesIO) else stack.enter_context(path.open("rb"))
            yield ArrayFile(path, file, stack)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    except _FORMAT_ERRORS as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{path}: must be a .npy or .npz file of numbers: {lines[0]}") from None


def read_array(path: Path) -> NDArray:
    """Return the array of a .npy file.

    Raises
    ------
    InputError
        The file cannot be read, is damaged or too large, or is an .npz file.
    """
    with open_arrays(path) as file:
        if file.named:
            raise InputError(f"{path}: must be a .npy file with one array, not an .npz file")
        return file.read()[""]


def _header(file: IO[bytes]) -> StoredArray:
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"header version {version[0]}.{version[1]} is not supported")
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("contains Python objects")
    if min(shape, default=0) < 0:
        raise ValueError(f"invalid shape {shape}")
    return StoredArray(shape, dtype, fortran_order, file)


#: Default MEAN,STD of pixels for float32 inputs: maps them to 0..1.
_UNIT = (0.0, 255.0)
#: Pillow mode and display name by number of channels.
_MODES = {1: ("L", "grayscale"), 3: ("RGB", "RGB")}
#: Divisor of 16-bit samples.
_FULL_SCALE = 32768


def read_image(path: Path, tensor: Tensor, scale: tuple[float, float] | None) -> NDArray:
    """Read one sample from a .png file with 8 bits per channel and the size of the input.

    Parameters
    ----------
    path : Path
        Path of the image file.
    tensor : Tensor
        Input tensor: height, width and 1 or 3 channels, channels last or first.
    scale : (float, float) or None
        MEAN and STD in pixel units: values are (p - MEAN) / STD in float32. None: p / 255 for a float32 input, p for
        uint8, p - 128 for int8, so that the pixel range maps to the full integer range.

    Raises
    ------
    InputError
        Pillow is not installed, or the file cannot be read or does not fit the input.
    """
    channels, height, width, first = _layout(path, tensor)
    pixels = _pixels(path, tensor, channels, (width, height))
    pixels = pixels.reshape(height, width, channels)
    if first:
        pixels = pixels.transpose(2, 0, 1)
    return _scaled(path, tensor, pixels, scale).reshape(1, *tensor.shape)


def _layout(path: Path, tensor: Tensor) -> tuple[int, int, int, bool]:
    """Return the channel count, height and width of an input, and whether the channel axis comes first."""
    shape = tensor.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 2 and 1 not in shape:
        return 1, *shape, False
    if len(shape) == 3 and shape[2] in _MODES:
        return shape[2], *shape[:2], False
    if len(shape) == 3 and shape[0] in _MODES:
        return shape[0], *shape[1:], True
    raise InputError(
        f"{path}: input {tensor.name!r} is {tensor.dtype}{list(tensor.shape)}, which is "
        "not an image of 1 or 3 channels: give a .npy or .npz"
    )


def _pixels(path: Path, tensor: Tensor, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Check the image size, then decode the pixels in the color mode of an input."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise InputError(
            f"{path}: reading .png files needs Pillow (extra `media` of this project); or give a .npy"
        ) from None
    try:
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG",)) as image:
                if image.size != size:
                    raise InputError(
                        f"{path} is {image.width} x {image.height} pixels, input {tensor.name!r} takes {size[0]} x "
                        f"{size[1]} (width x height): resize the image first"
                    )
                return np.asarray(_converted(path, image, channels))
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(f"{path}: has too many pixels for input {tensor.name!r}") from None
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        raise InputError(f"{path}: cannot be read as PNG: {reason_of(error)}") from None


def _converted(path: Path, image: "Image", channels: int) -> "Image":
    """Convert an image to grayscale (1 channel) or RGB (3 channels)."""
    mode, name = _MODES[channels]
    gray = image.mode in ("1", "L", "LA")
    if image.mode.startswith("I"):
        raise InputError(f"{path}: must have 8 bits per channel, not 16")
    if image.has_transparency_data:
        if image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
            raise InputError(f"{path}: has transparent pixels: flatten the image onto a background first")
        image = image.convert("RGB")
    if gray != (channels == 1):
        warn(f"{path}: converted to {name}, as the model expects")
    return image.convert(mode)


def _scaled(
    path: Path, tensor: Tensor, pixels: NDArray[np.uint8], scale: tuple[float, float] | None
) -> NDArray:
    """Scale pixels to the range of an input and report the range on standard error."""
    q = tensor.quantization
    if scale is None and tensor.dtype in ("uint8", "int8"):
        offset = 128 if tensor.dtype == "int8" else 0
        stored = (pixels.astype(np.int16) - offset).astype(tensor.dtype)
        meaning = ""
        if q is not None and q.whole:
            low, high = ((end - offset - q.zero_point[0]) * q.scale[0] for end in (0, 255))
            meaning = f", to the model {low:.4g}..{high:.4g}"
        taken = f"{tensor.dtype} {-offset}..{255 - offset}{meaning} (--input-scale MEAN,STD for other values)"
        print(f"{path}: pixels 0..255 are {taken}", file=sys.stderr)
        return stored
    mean, std = scale or _UNIT
    if tensor.dtype != "float32" and (q is None or not q.whole):
        raise InputError(
            f"{path}: input {tensor.name!r} is {tensor.dtype} without a quantization scale, so that "
            "pixels cannot be converted: give a .npy"
        )
    low, high = ((end - mean) / std for end in (0, 255))
    print(f"{path}: pixels 0..255 are {low:.4g}..{high:.4g}", file=sys.stderr)
    return ((pixels.astype(np.float32) - np.float32(mean)) / np.float32(std)).astype(np.float32)


def read_sound(path: Path, tensor: Tensor) -> NDArray[np.float32]:
    """Read one sample from a 16-bit mono .wav with the length of the input, as float32 in -1..1.

    Parameters
    ----------
    path : Path
        Path of the audio file.
    tensor : Tensor
        Input tensor for a waveform: exactly one of its dimensions is larger than 1.

    Raises
    ------
    InputError
        The file cannot be read or does not fit the input.
    """
    length = tensor.elements
    if length == 1 or max(tensor.shape) != length:
        raise InputError(
            f"{path}: input {tensor.name!r} takes features {tensor.dtype}{list(tensor.shape)}, not a waveform: compute "
            "them from the sound as for training, and give a .npy"
        )
    try:
        with path.open("rb") as file, wave.open(file) as sound:
            form = sound.getparams()
            if form.nchannels != 1 or form.sampwidth != 2:
                raise InputError(
                    f"{path}: must be 16-bit mono, not {form.nchannels} channels of {8 * form.sampwidth} bits"
                )
            if form.nframes != length:
                raise InputError(
                    f"{path} has {form.nframes:,} samples, input {tensor.name!r} takes {length:,}: cut or pad it first"
                )
            data = sound.readframes(length)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    except (wave.Error, EOFError) as error:
        raise InputError(f"{path}: must be a PCM .wav file: {str(error) or 'it is cut short'}") from None
    if len(data) != 2 * length:
        raise InputError(f"{path}: must be a PCM .wav file: it is cut short")
    print(f"{path}: {length:,} samples at {form.framerate:,} Hz as -1..1", file=sys.stderr)
    samples = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(_FULL_SCALE)
    return samples.reshape(1, *tensor.shape)


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
        .npy for a model with one input, .npz with one array per input. The first axis indexes samples, and the others
        have the shape of the input (a leading 1 may be omitted). Floating-point values for a quantized input are
        quantized. A .png or .wav file contains one sample (`read_image`, `read_sound`). None: one seeded random sample,
        with a warning.
    limit : int or None
        Maximum number of samples to read; None reads all.
    network : CompiledNetwork or None
        Network whose index bounds random samples respect, and whose rounding mode quantizes floating-point values.
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
        arrays = _media(Path(str(path)), tensors, scale)
        for tensor in tensors:
            _check(path, tensor, arrays[tensor.name])
    else:
        with open_arrays(path) as file:
            keys = _keys(path, file, tensors)
            if network is not None and network.lengths is not None:
                shapes = {name: file.arrays[key].shape[1:] for name, key in keys.items()}
                try:
                    tensors = network.at(network.length_of(shapes)).sample
                except InputError as error:
                    raise InputError(f"{path}: {error}") from None
            arrays = _read(path, file, tensors, keys, limit)
        arrays = {name: arrays[key] for name, key in keys.items()}
    return _samples(path, tensors, arrays, rounding)


#: Names of the arrays of labeled samples: the only input of a model, and the labels.
INPUT_NAME, LABEL_NAME = "x", "y"


def read_labeled(
    path: Path, limit: int | None, tensors: Sequence[Tensor], rounding: str
) -> tuple[list[Sample], NDArray]:
    """Return the labeled samples of an .npz file for a model.

    Parameters
    ----------
    path : Path
        .npz file with one array per input, and labels in `y`; the first axis of each indexes samples. The array of a
        single input may also be named `x`. Floating-point values for a quantized input are quantized.
    limit : int or None
        Maximum number of samples to read; None reads all.
    tensors : sequence of Tensor
        Inputs of the model.
    rounding : str
        Rounding mode that quantizes floating-point values.

    Returns
    -------
    list of dict, array
        The inputs of each sample by name, and the labels.

    Raises
    ------
    InputError
        The file cannot be read, has no labels, or does not fit the model.
    """
    names = [tensor.name for tensor in tensors]
    with open_arrays(path) as file:
        stored = _stored_inputs(path, file)
        short = len(names) == 1 and stored == [INPUT_NAME]
        keys = {names[0]: INPUT_NAME} if short else {name: name for name in names}
        if set(stored) != set(keys.values()):
            wanted = " or ".join(dict.fromkeys((INPUT_NAME, *names))) if len(names) == 1 else ", ".join(names)
            raise InputError(
                f"{path}: besides {LABEL_NAME}, arrays must be named {wanted}, not {', '.join(stored) or 'none'}"
            )
        arrays = _read(path, file, tensors, keys, limit)
    inputs = {name: arrays[key] for name, key in keys.items()}
    return _samples(path, tensors, inputs, rounding), arrays[LABEL_NAME]


def has_labels(path: Path) -> bool:
    """Return True for an .npz file with labels; raise InputError if it cannot be read."""
    if _suffix(path) in _MEDIA:
        return False
    with open_arrays(path) as file:
        return file.named and LABEL_NAME in file.arrays


def read_labels(path: Path, limit: int | None) -> NDArray:
    """Return the labels of an .npz file of labeled samples, without a check of the inputs.

    Raises
    ------
    InputError
        The file cannot be read, or has no labels.
    """
    with open_arrays(path) as file:
        _stored_inputs(path, file)
        return file.read(limit)[LABEL_NAME]


def first_labeled(path: Path) -> Sample | NDArray:
    """Return the inputs of the first sample of a file of labeled samples: an array for `x`, or arrays by name.

    Raises
    ------
    InputError
        The file cannot be read, or contains no labeled samples.
    """
    with open_arrays(path) as file:
        stored = _stored_inputs(path, file)
    sample = first_sample(path)
    assert isinstance(sample, dict)
    return sample[INPUT_NAME] if stored == [INPUT_NAME] else {name: sample[name] for name in stored}


def _stored_inputs(path: Path, file: ArrayFile) -> list[str]:
    """Return the names of the inputs in a file of labeled samples; raise InputError if it has no labels."""
    if not file.named or LABEL_NAME not in file.arrays:
        raise InputError(
            f"{path}: must be an .npz file with inputs in {INPUT_NAME!r} and labels in {LABEL_NAME!r}"
        )
    return [name for name in file.arrays if name != LABEL_NAME]


def read_bound(given: Sequence[tuple[str, Any]]) -> dict[str, NDArray]:
    """Return the values of bound inputs by name, after reading those given as files.

    Raises
    ------
    InputError
        A file cannot be read or is not an array of numbers, an input is bound twice, or a number exceeds 64 bits.
    """
    made: dict[str, NDArray] = {}
    for name, value in given:
        if name in made:
            raise InputError(f"input {shown(name)} is bound twice")
        loaded = read_array(value) if isinstance(value, Path) else value
        made[name] = checks.array(f"value of {name!r}", loaded)
    return made


def first_sample(path: Path | None) -> Sample | NDArray | None:
    """Return the first sample of a file as an array, or arrays by name, of batch size 1; None if `path` is None.

    Raises
    ------
    InputError
        The file cannot be read, or contains no samples.
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
    """Return the suffix of a file name in lower case; an empty string for a stream."""
    return Path(str(path)).suffix.lower()


def _read(
    path: "Path | io.BytesIO",
    file: ArrayFile,
    tensors: Sequence[Tensor],
    keys: dict[str, str],
    limit: int | None,
) -> dict[str, NDArray]:
    """Return the first `limit` samples of all arrays of a file; `keys` names the array of each input.

    Raises
    ------
    InputError
        An array does not fit its input, or the arrays have different numbers of samples.
    """
    for tensor in tensors:
        _check(path, tensor, file.arrays[keys[tensor.name]])
    counts = {array.shape[0] if array.shape else 0 for array in file.arrays.values()}
    if len(counts) != 1 or not min(counts):
        raise InputError(
            f"{path}: all arrays must have the same number of samples, at least one, not {sorted(counts)}"
        )
    return file.read(limit)


def _samples(
    path: "Path | io.BytesIO", tensors: Sequence[Tensor], arrays: dict[str, NDArray], rounding: str
) -> list[Sample]:
    """Return the samples in arrays by input name, with floating-point values quantized for quantized inputs."""
    fitted = {tensor.name: _fit(path, tensor, arrays[tensor.name], rounding) for tensor in tensors}
    return [{name: array[i] for name, array in fitted.items()} for i in range(len(fitted[tensors[0].name]))]


def _keys(path: "Path | io.BytesIO", file: ArrayFile, tensors: Sequence[Tensor]) -> dict[str, str]:
    """Return the name of the array of each input; the only array of a .npy file has the name ""."""
    names = [tensor.name for tensor in tensors]
    if not file.named:
        _check_single(path, tensors)
        return {names[0]: ""}
    if set(file.arrays) != set(names):
        raise InputError(
            f"{path}: arrays must be named {', '.join(names)}, not {', '.join(file.arrays) or 'none'}"
        )
    return {name: name for name in names}


def _check_single(path: "Path | io.BytesIO", tensors: Sequence[Tensor]) -> None:
    """Raise InputError for a file with a single array if the model has more than one input."""
    if len(tensors) != 1:
        names = ", ".join(tensor.name for tensor in tensors)
        raise InputError(f"{path}: the model has inputs {names}: give a .npz with one array for each")


def _check(path: "Path | io.BytesIO", tensor: Tensor, array: StoredArray | NDArray) -> None:
    """Raise InputError unless an array contains samples of a tensor, or floating-point values to quantize for it."""
    inner = tensor.shape[1:] if tensor.shape and tensor.shape[0] == 1 else tensor.shape
    fits = len(array.shape) >= 1 and array.shape[1:] in (tensor.shape, inner)
    if not fits or (array.dtype != tensor.dtype and not _convertible(tensor, array)):
        advice = checks.CONVERT_ADVICE if array.dtype.kind == "V" else ""
        raise InputError(
            f"{path}: input {tensor.name!r} must be {tensor.dtype}[samples, {', '.join(map(str, inner))}], not "
            f"{array.dtype}{list(array.shape)}{tensor.meaning}{advice}"
        )


def _convertible(tensor: Tensor, array: StoredArray | NDArray) -> bool:
    """Return whether an array contains floating-point values for a quantized tensor."""
    return array.dtype.kind == "f" and tensor.meaning != ""


def _media(path: Path, tensors: Sequence[Tensor], scale: tuple[float, float] | None) -> Sample:
    """Return the sample in an image or audio file."""
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
