"""FUSE parameters that reproduce LiteRT's kernels, and the arithmetic steps of FUSE on whole arrays."""

import math

import numpy as np

from tests.numerics.reference import DOUBLE, EVEN, MAX, MIN, SINGLE, recip

Values = np.ndarray


def half_up(p: Values, s: int) -> Values:
    """Divide by 2**s and round halves towards plus infinity, without an intermediate sum that could overflow."""
    return ((p >> (s - 1)) + 1) >> 1 if s else p


def half_away(p: Values, s: int) -> Values:
    """Divide by 2**s and round halves away from zero."""
    return np.where(p < 0, -half_up(-p, s), half_up(p, s))


def half_even(p: Values, s: int) -> Values:
    """Divide by 2**s and round halves to even."""
    if s == 0:
        return p
    rest, half, floor = p & ((1 << s) - 1), 1 << (s - 1), p >> s
    return floor + ((rest > half) | ((rest == half) & (floor & 1 == 1)))


def single_even(p: Values, s: int) -> Values:
    """Divide by 2**s, with two roundings of halves to even.

    The first rounding is to 24 significant bits, but drops at most s bits; the second gives the integer result.
    """
    drop, limit = np.zeros(p.shape, np.int64), np.abs(p)
    for bits in range(24, 63):
        drop += limit >> bits != 0
    result = np.zeros(p.shape, np.int64)
    for t in np.unique(drop):
        here, coarse = drop == t, min(int(t), s)
        result[here] = half_even(half_even(p[here], coarse), s - coarse)
    return result


def scale(x: Values, m: int, e: int, ls: int, mode: int) -> Values:
    """Compute `scale` of docs/machine.md for an array of values and one multiplier."""
    p, s = x.astype(np.int64) * m, min(max(31 - ls - e, 0), 63)
    if mode == DOUBLE and e < 0:
        result = half_away(np.clip(half_up(p, 31 - ls), MIN, MAX), min(-e, 31))
    elif mode in (DOUBLE, SINGLE):
        result = half_up(p, s)
    else:
        result = single_even(p, s) if mode == EVEN else half_away(p, s)
    return np.clip(result, MIN, MAX)


def quantize(real: float) -> tuple[int, int]:
    """Return a 31-bit multiplier and an exponent, like TFLite's QuantizeMultiplier."""
    if real == 0:
        return 0, 0
    fraction, exponent = math.frexp(real)
    mult = math.floor(fraction * (1 << 31) + 0.5)
    if mult == 1 << 31:
        mult, exponent = mult >> 1, exponent + 1
    return (0, 0) if exponent < -31 else (mult, exponent)


def add_reference(x_scale: float, r_scale: float, o_scale: float) -> dict[str, int]:
    """Return the parameters of the reference kernels' ADD: left shift 20, double rounding."""
    twice = 2 * max(x_scale, r_scale)
    pairs = {"x": x_scale / twice, "r": r_scale / twice, "o": twice / ((1 << 20) * o_scale)}
    fields = {"r_ls": 20, "r_raw": 0, "rounding": DOUBLE}
    for name, real in pairs.items():
        fields[f"{name}_mult"], fields[f"{name}_exponent"] = quantize(real)
    return fields


def add_xnnpack(x_scale: float, r_scale: float, o_scale: float) -> dict[str, int]:
    """Return the parameters of XNNPACK's ADD: 21-bit multipliers, and one rounding shift at the end."""
    x_real, r_real = np.float32(x_scale) / np.float32(o_scale), np.float32(r_scale) / np.float32(o_scale)
    exponent = math.frexp(float(max(x_real, r_real)))[1] - 1
    shift = 20 - exponent
    fields = {"r_ls": 0, "r_raw": 1, "rounding": SINGLE, "o_mult": 1, "o_exponent": 31 - shift}
    for name, real in (("x", x_real), ("r", r_real)):
        fields |= {f"{name}_mult": round(float(real) * 2.0**shift), f"{name}_exponent": 0}
    return fields


def add(f: dict[str, int], x: Values, x_zp: int, r: Values, r_zp: int, o_zp: int) -> Values:
    """Apply FUSE step 4 to int8 values."""
    xs, rs = x.astype(np.int64) - x_zp, r.astype(np.int64) - r_zp
    if f["r_raw"]:
        total = xs * f["x_mult"] + rs * f["r_mult"]
    else:
        total = scale(xs, f["x_mult"], f["x_exponent"], f["r_ls"], f["rounding"])
        total = total + scale(rs, f["r_mult"], f["r_exponent"], f["r_ls"], f["rounding"])
    assert np.abs(total).max() < 1 << 31
    return np.clip(scale(total, f["o_mult"], f["o_exponent"], 0, f["rounding"]) + o_zp, -128, 127)


def multiply(real: float, mode: int, a: Values, a_zp: int, b: Values, b_zp: int, o_zp: int) -> Values:
    """Apply FUSE step 1 with op mul, then FUSE step 2."""
    product = (a.astype(np.int64) - a_zp) * (b.astype(np.int64) - b_zp)
    return np.clip(scale(product, *quantize(real), 0, mode) + o_zp, -128, 127)


def divide(value: Values, count: Values) -> Values:
    """Apply the post-scale "count", which divides by the count."""
    magnitude = (np.abs(value) + count // 2) // count
    return np.where(value < 0, -magnitude, magnitude)


def softmax_tables(scale_in: float, width: int) -> tuple[Values, Values]:
    """Return fixed-point tables of exp(-d * scale), indexed by -d modulo 256: the high parts and the low 15 bits.

    The fixed-point unit is chosen so that the sum over `width` values fits an int32.
    """
    unit = 30 - (width - 1).bit_length()
    exact = np.floor(np.exp(-np.arange(256) * float(np.float32(scale_in))) * 2.0**unit + 0.5).astype(np.int64)
    table = np.roll(exact[::-1], 1)
    return table >> 15, table & 0x7FFF


def softmax(scale_in: float, x: Values) -> Values:
    """Return the softmax of each row with the tables and steps that FUSE uses."""
    difference = x.astype(np.int64) - x.max(-1, keepdims=True)
    high, low = softmax_tables(scale_in, x.shape[-1])
    powers = high[difference & 255] * (1 << 15) + low[difference & 255]
    rows = [scale(row, *recip(int(row.sum()), 8), 0, EVEN) for row in powers]
    return np.clip(np.array(rows) - 128, -128, 127)
