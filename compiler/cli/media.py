"""Reads samples from image and sound files."""

import sys
import warnings as python_warnings
import wave
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.cli.warn import warn
from compiler.ir.tensor import Tensor
from hw.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

#: Default MEAN,STD of pixels for float32 inputs: maps them to 0..1.
_UNIT = (0.0, 255.0)
#: Pillow mode and display name by number of channels.
_MODES = {1: ("L", "grayscale"), 3: ("RGB", "RGB")}
#: Divisor of 16-bit samples.
_FULL_SCALE = 32768


def read_image(path: Path, tensor: Tensor, scale: tuple[float, float] | None) -> NDArray:
    """Read one sample from a .png with 8 bits per channel and the size of the input.

    Parameters
    ----------
    path : Path
        The file.
    tensor : Tensor
        The input tensor: height, width and 1 or 3 channels, channels last or first.
    scale : (float, float) or None
        MEAN and STD in pixel units: values are (p - MEAN) / STD in float32. None: p / 255 for a float32 input, p for
        uint8, p - 128 for int8, so that the pixel range maps to the full integer range.

    Raises
    ------
    InputError
        Pillow is not installed, the file cannot be read, or does not fit the input.
    """
    channels, height, width, first = _layout(path, tensor)
    pixels = _pixels(path, tensor, channels, (width, height))
    pixels = pixels.reshape(height, width, channels)
    if first:
        pixels = pixels.transpose(2, 0, 1)
    return _scaled(path, tensor, pixels, scale).reshape(1, *tensor.shape)


def _layout(path: Path, tensor: Tensor) -> tuple[int, int, int, bool]:
    """Return channels, height and width of an input, and whether the channels come first."""
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
    """Read the pixels in the color mode of an input; the size is checked before decoding."""
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
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read as PNG: {reason}") from None


def _converted(path: Path, image: "Image", channels: int) -> "Image":
    """Convert an image to grayscale or RGB."""
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
        taken = (
            f"{tensor.dtype} {-offset}..{255 - offset}{meaning} (--input-scale MEAN,STD for other numbers)"
        )
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
    """Read one sample from a 16-bit mono .wav of the length of the input, as float32 in -1..1.

    Parameters
    ----------
    path : Path
        The file.
    tensor : Tensor
        The input tensor: a waveform, with one dimension larger than 1.

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
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (wave.Error, EOFError) as error:
        raise InputError(f"{path}: must be a PCM .wav file: {str(error) or 'it is cut short'}") from None
    if len(data) != 2 * length:
        raise InputError(f"{path}: must be a PCM .wav file: it is cut short")
    print(f"{path}: {length:,} samples at {form.framerate:,} Hz as -1..1", file=sys.stderr)
    samples = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(_FULL_SCALE)
    return samples.reshape(1, *tensor.shape)
