"""float32 values as docs/machine.md defines them for FUSE, computed one at a time in plain integers."""

import math
import struct


def significand(bits: int) -> tuple[int, int]:
    """Return a float32 value as a signed integer significand and the exponent of a power of two."""
    bits &= 0xFFFFFFFF
    sign, field, fraction = bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF
    size, power = (fraction | 1 << 23, field - 150) if field else (fraction, -149)
    return -size if sign else size, power


def float32(product: int, power: int) -> int:
    """Return the bits of product * 2**power in float32 as an int32; halves round to even, subnormals become 0."""
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
