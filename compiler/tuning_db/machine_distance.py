"""Distance between hardware profiles: a weighted metric over the logarithms of their sizes."""

import math
from dataclasses import fields

from compiler.profile.hardware_profile import HardwareProfile
from hw.config import MlaConfig

#: Distance per factor of two. The array size weighs most, because tile sizes are multiples of it.
_WEIGHTS = {"n": 4.0, "sp_bytes": 1.0, "acc_bytes": 1.0, "latency": 1.0, "rate": 1.0}
#: Weight of all other parameters: small, but different machines never have distance 0.
_DEFAULT_WEIGHT = 0.125
#: Boolean parameters, with coordinates 0 or 1.
_FLAGS = ("serial_commands", "pipelined")


def distance(one: HardwareProfile, other: HardwareProfile) -> float:
    """Sum over all sizes of their ratio's logarithm (base 2) times its weight; 0 only for equal conditions."""
    a, b = _coordinates(one), _coordinates(other)
    return sum(_WEIGHTS.get(name, _DEFAULT_WEIGHT) * abs(a[name] - b[name]) for name in a)


def _coordinates(conditions: HardwareProfile) -> dict[str, float]:
    """Logarithms of sizes, unchanged flags, and DRAM bandwidth per bus lane."""
    config = conditions.config
    sizes = {item.name: getattr(config, item.name) for item in fields(MlaConfig)}
    out = {name: float(size) if name in _FLAGS else math.log2(size) for name, size in sizes.items()}
    rate = conditions.rate / config.n
    return out | {"latency": math.log2(conditions.dram.latency), "rate": math.log2(rate)}
