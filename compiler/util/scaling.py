"""Encoding of scales for the FUSE pipeline: multipliers, exponents and parameter images."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Operators whose sums LiteRT's kernel for dense layers requantizes.
DENSE = ("dense", "block_dense")


@dataclass(frozen=True)
class Affine:
    """Affine quantization: real value = scale * (q - zero_point)."""

    scale: float
    zero_point: int = 0


#: Largest factor of a block of weights, an unsigned 8-bit integer, and the least largest factor of an output.
_MAX_FACTOR, _LEAST_MAX_FACTOR = 255, 32
#: Maximum magnitude of a sum of products with factors, which leaves half of the range for the bias.
_MAX_PRODUCTS = 1 << 30
#: Least scale of an output, the smallest normal float32 number.
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
#: Range of the differences between 8-bit activations and their zero point.
_RANGE = 255
#: Largest root-mean-square error of results due to the rounding of scales to factors, in steps of the result.
MAX_FACTOR_ERROR = 0.5
#: Largest root-mean-square of results for which this error is computed, as a share of the range of their type.
_LARGE_RESULT = 0.25


class BlockFactors(NamedTuple):
    """Weights as integers, with an integer factor for each block of inputs and a scale for each output.

    Parameters
    ----------
    values : (outputs, inputs) int8 array
        Integers of the weights.
    factors : (outputs, blocks) uint8 array
        Factors of the blocks, 0..255.
    scales : (outputs,) float32 array
        Positive scale of each output; a weight is value * factor * scale.
    """

    values: NDArray[np.int8]
    factors: NDArray[np.uint8]
    scales: NDArray[np.float32]


def signed_blocks(values: NDArray, scales: NDArray, block: int) -> NDArray[np.int8] | None:
    """Return integers of weights for positive scales: those of blocks with a negative scale are negated.

    Parameters are those of `block_factors`. Returns None if an integer does not fit int8 or a scale is not finite.
    """
    if not np.isfinite(scales).all():
        return None
    whole = values.astype(np.int64) * along_blocks(np.sign(scales).astype(np.int64), block, values.shape[1])
    return whole.astype(np.int8) if whole.size and whole.min() >= -128 and whole.max() <= 127 else None


def along_blocks(each: NDArray, block: int, inputs: int) -> NDArray:
    """Return an array (outputs, blocks) with each element repeated for the inputs of its block: (outputs, inputs)."""
    return np.repeat(each, min(block, inputs), 1)[:, :inputs]


def block_factors(
    values: NDArray, scales: NDArray, block: int, least: ArrayLike = _LEAST_SCALE
) -> BlockFactors | None:
    """Round the scales of blocks of weights to integer factors of a scale for each output.

    The largest factor of an output is 255, or the largest one with which its sums of products with 8-bit activations,
    for any zero point, do not exceed 2**30. The scale of an output is its largest scale divided by this factor, and the
    other factors are rounded to the nearest integer. Weights of blocks with a negative scale are negated.

    Parameters
    ----------
    values : (outputs, inputs) integer array
        Weights minus zero points, in units of the scales.
    scales : (outputs, blocks) float array
        Scale of each block.
    block : int
        Inputs of a block.
    least : float or (outputs,) array
        Lower limit of the scales of outputs.

    Returns
    -------
    BlockFactors or None
        None if an integer does not fit int8, a scale is not finite, or the largest factor of an output would be less
        than 32.
    """
    signed = signed_blocks(values, scales, block)
    if signed is None:
        return None
    whole = signed.astype(np.int64)
    positive = np.abs(scales).astype(np.float64)
    largest = positive.max(1)
    largest = np.where(largest > 0, largest, 1.0)
    limit = np.full(len(largest), _MAX_FACTOR)
    starts = _starts(values.shape[1], block)
    sums = [np.add.reduceat(np.maximum(each, 0), starts, 1) for each in (whole, -whole)]
    while limit.min() >= _LEAST_MAX_FACTOR:
        units = np.maximum(largest / limit, least).astype(np.float32)
        factors = np.clip(np.rint(positive / units[:, None].astype(np.float64)), 0, limit[:, None])
        reached = np.maximum(*((each * factors).sum(1) for each in sums)) * _RANGE
        if (reached <= _MAX_PRODUCTS).all():
            return BlockFactors(signed, factors.astype(np.uint8), units)
        smaller = np.floor(limit * (_MAX_PRODUCTS / np.maximum(reached, 1))).astype(np.int64)
        limit = np.where(reached > _MAX_PRODUCTS, np.minimum(smaller, limit - 1), limit)
    return None


def _starts(inputs: int, block: int) -> NDArray:
    """Return the first input of each block."""
    return np.arange(0, inputs, min(block, inputs))


def factor_errors(
    found: BlockFactors, scales: NDArray, block: int, ends: tuple[int, int], ratio: float, size: int
) -> NDArray[np.float64]:
    """Return the root-mean-square errors of results that are due to the rounding of scales to factors.

    An activation is a random integer of the type, independent of others. Its amplitude may be smaller in some blocks,
    even zero, and the errors returned are the largest that are possible with a root-mean-square of the result of at
    most a quarter of its range, for larger ones saturate. With e the error of the scale s of a block, and p^2 the mean
    square of its sum of products in steps of the result, the square of the error is the sum of (e/s)^2 t p^2, where
    the shares t of 0..1 have a limited sum of t p^2. It is largest with t = 1 for the blocks with the largest e/s.

    Parameters
    ----------
    found : BlockFactors
        The factors of all blocks.
    scales : (outputs, blocks) float array
        Exact scale of each block.
    block : int
        Inputs of a block.
    ends : pair of int
        Smallest and largest activation, as integers minus the zero point.
    ratio : float
        Scale of the activations divided by that of the results.
    size : int
        Number of integers of the type of the results.

    Returns
    -------
    (outputs,) float64 array
        Errors in steps of the results.
    """
    low, high = ends
    mean, variance = (low + high) / 2, ((high - low + 1) ** 2 - 1) / 12
    starts, weights = _starts(found.values.shape[1], block), found.values.astype(np.float64)
    sums, squares = (np.add.reduceat(each, starts, 1) for each in (weights, np.square(weights)))
    exact = np.abs(scales).astype(np.float64)
    errors = found.factors * found.scales[:, None].astype(np.float64) - exact
    relative = np.square(np.divide(errors, exact, out=np.zeros_like(exact), where=exact > 0))
    order = np.argsort(-relative, 1, kind="stable")
    powers = np.square(exact * ratio) * (mean**2 * np.square(sums) + variance * squares)
    relative, powers = (np.take_along_axis(each, order, 1) for each in (relative, powers))
    before = np.cumsum(powers, 1) - powers
    shares = np.clip((_LARGE_RESULT * size) ** 2 - before, 0, powers)
    return np.sqrt((relative * shares).sum(1))


def quantize_multiplier(scale: float) -> tuple[int, int]:
    """Return the 31-bit multiplier and the exponent of a scale: scale = multiplier * 2**(exponent - 31).

    As in TFLite's QuantizeMultiplier, a scale that rounds to less than 2**-32 becomes 0.

    Raises
    ------
    ValueError
        The scale is negative or not finite.
    """
    if not math.isfinite(scale) or scale < 0:
        raise ValueError(f"scale must be finite and not negative, not {scale!r}")
    if scale == 0:
        return 0, 0
    mantissa, exponent = math.frexp(scale)
    multiplier = math.floor(mantissa * (1 << 31) + 0.5)
    if multiplier == 1 << 31:
        multiplier, exponent = multiplier // 2, exponent + 1
    return (0, 0) if exponent < -31 else (multiplier, exponent)


#: Largest of the 16-bit multipliers by which LiteRT multiplies 64-bit sums.
_MAX_MULTIPLIER_16 = 0x7FFF


def quantize_multiplier_16(scale: float) -> tuple[int, int]:
    """Return the multiplier and the exponent of a scale with a 16-bit multiplier, whose low 16 bits are 0.

    LiteRT's kernels for int16 reduce the 31-bit multiplier of a scale in this way to multiply 64-bit sums.
    """
    multiplier, exponent = quantize_multiplier(scale)
    return min((multiplier + (1 << 15)) >> 16, _MAX_MULTIPLIER_16) << 16, exponent


def float32_ratio(a: float, b: float, y: float) -> float:
    """Return a * b / y, with each step in float32.

    This is how XNNPACK, onnxruntime and LiteRT's PReLU compute the output scales of products.
    """
    return float(np.float32(a) * np.float32(b) / np.float32(y))


def double_ratio(op: str, dtype: str, a: ArrayLike, b: ArrayLike, y: float) -> NDArray[np.float64]:
    """Return a * b / y for float32 scales, in double precision, as LiteRT's reference kernels compute it.

    For uint8 (except dense layers) and for products of two activations, a * b is rounded to float32.
    """
    single = op == "matmul" or (dtype == "uint8" and op not in DENSE)
    kind = np.float32 if single else np.float64
    scales = np.asarray(a, np.float32).astype(kind) * np.asarray(b, np.float32).astype(kind)
    return scales.astype(np.float64) / np.float64(np.float32(y))


def float32_multiplier(scale: float) -> tuple[int, int]:
    """Return the multiplier and the exponent of a float32 scale, with which `Rounding.EVEN` rounds like float32.

    The scale is represented exactly: its 24 significant bits are the highest of the multiplier's 31 bits. A scale below
    2**-32, with which every int32 value rounds to 0, becomes 0.

    Raises
    ------
    ValueError
        The scale is negative, not finite, or not a float32.
    """
    pair = quantize_multiplier(scale)
    if float(np.float32(scale)) != scale:
        raise ValueError(f"scale must be a float32, as {float(np.float32(scale))!r}, not {scale!r}")
    return pair


def param_image(
    n: int,
    bias: ArrayLike,
    multipliers: ArrayLike,
    exponents: ArrayLike,
    negative: tuple[ArrayLike, ArrayLike] | None = None,
) -> NDArray[np.uint8]:
    """Return the parameter image of output channels, in zero-padded blocks of n lanes.

    A block has 9 * n bytes, or 14 * n bytes with multipliers and exponents of sums below zero.

    Parameters
    ----------
    n : int
        Number of lanes per block.
    bias, multipliers : (channels,) int32
        Bias and scale multiplier of each channel.
    exponents : (channels,) int8
        Scale exponent of each channel.
    negative : pair of (channels,) int32 and (channels,) int8, or None
        Multiplier and exponent of each channel for sums below zero.
    """
    channels = np.atleast_1d(np.asarray(bias)).shape[0]
    blocks = -(-channels // n)
    parts = [(0, bias, "<i4"), (4 * n, multipliers, "<i4"), (8 * n, exponents, "i1")]
    if negative is not None:
        parts += [(9 * n, negative[0], "<i4"), (13 * n, negative[1], "i1")]
    image = np.zeros((blocks, (9 if negative is None else 14) * n), np.uint8)
    for start, values, dtype in parts:
        padded = np.zeros(blocks * n, dtype)
        padded[:channels] = values
        image[:, start : start + n * padded.itemsize] = (
            padded.reshape(blocks, n).view(np.uint8).reshape(blocks, -1)
        )
    return image.reshape(-1)


def bias_image(n: int, bias: ArrayLike) -> NDArray[np.uint8]:
    """Return the biases of output channels as little-endian int32 bytes, padded with zeros to whole blocks of n."""
    values = np.atleast_1d(np.asarray(bias)).astype("<i4")
    return np.pad(values, (0, -len(values) % n)).view(np.uint8)


def clip_operand(low: int, high: int) -> int:
    """Pack the clip range of int8 results into an operand for the programs of the library."""
    for value in (low, high):
        if not -128 <= value <= 127:
            raise ValueError(f"clip range must be within -128..127, not {low}..{high}")
    return (low & 0xFF) | (high & 0xFF) << 8


def halves_word(low: int, high: int) -> int:
    """Pack two signed 16-bit values into a word, as in zero-point fields."""
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


def bytes_word(*values: int) -> int:
    """Pack signed bytes into a word, lowest byte first, as in exponent fields."""
    return sum((value & 0xFF) << 8 * position for position, value in enumerate(values))
