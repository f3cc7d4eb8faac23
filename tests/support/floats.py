"""float32 values as docs/machine.md defines them for FUSE, computed one at a time in plain integers."""

import math
import struct


def significand(bits: int) -> tuple[int, int]:
    """Return the signed significand of a float32 value and the power of two to multiply it by."""
    bits &= 0xFFFFFFFF
    sign, field, fraction = bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF
    size, power = (fraction | 1 << 23, field - 150) if field else (fraction, -149)
    return -size if sign else size, power


def float32(product: int, power: int) -> int:
    """Return product * 2**power as the bits of a float32, in an int32; halves round to even, subnormal values become
    0.
    """
    size = abs(product)
    dropped = max(size.bit_length() - 24, 0)
    rest, half = size & (1 << dropped) - 1, 1 << dropped >> 1
    size >>= dropped
    size += dropped > 0 and (rest > half or (rest == half and size & 1))
    least = math.frexp(size)[1] + dropped + power  # 2**(least - 1) <= magnitude < 2**least
    if size == 0 or least <= -126:
        return 0
    number = math.inf if least > 128 else math.ldexp(size, dropped + power)
    return struct.unpack("<i", struct.pack("<f", -number if product < 0 else number))[0]
