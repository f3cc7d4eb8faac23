"""Hardware configurations of the training data, and those that are held out."""

from dataclasses import dataclass

from compiler.options import USUAL, CompileOptions, DramTiming, MemoryLimits
from compiler.profile.hardware_profile import HardwareProfile
from hw.config import load_target, targets_by_lanes


@dataclass(frozen=True)
class CorpusMachine:
    """Hardware configuration and memory timing of measurements.

    Parameters
    ----------
    target : str
        Name of the target.
    latency : int
        DRAM latency in cycles.
    slow : int
        Cycles per bus width of DRAM data; 1 is the full rate.
    sp_bytes : int or None
        Usable bytes of the scratchpad; None for all.
    """

    target: str
    latency: int = USUAL.latency
    slow: int = 1
    sp_bytes: int | None = None

    @property
    def conditions(self) -> HardwareProfile:
        """Hardware profile for measuring."""
        config = load_target(self.target)
        return HardwareProfile(config, DramTiming(self.latency, config.n / self.slow))

    @property
    def options(self) -> CompileOptions:
        """Options for compiling."""
        return CompileOptions(
            rounding="reference", dram=self.conditions.dram, limits=MemoryLimits(sp_bytes=self.sp_bytes)
        )


_USUAL = "n16"
_HELD_OUT_LANES = 8
_OTHERS = {lanes: name for lanes, name in targets_by_lanes().items() if name != _USUAL}
#: Configurations of the training data with their sampling weights.
TRAINING = {
    "usual": (CorpusMachine(_USUAL), 8),
    "bandwidth / 4": (CorpusMachine(_USUAL, slow=4), 2),
    "latency 400": (CorpusMachine(_USUAL, latency=400), 2),
    "latency 20": (CorpusMachine(_USUAL, latency=20), 1),
    "SP 64 KiB": (CorpusMachine(_USUAL, sp_bytes=1 << 16), 1),
} | {f"N = {lanes}": (CorpusMachine(name), 1) for lanes, name in _OTHERS.items() if lanes != _HELD_OUT_LANES}
#: Held-out configurations for evaluation.
HELD_OUT = {
    f"N = {_HELD_OUT_LANES}": CorpusMachine(_OTHERS[_HELD_OUT_LANES]),
    "bandwidth / 2": CorpusMachine(_USUAL, slow=2),
    "latency 200": CorpusMachine(_USUAL, latency=200),
}
MACHINES = {name: machine for name, (machine, _) in TRAINING.items()} | HELD_OUT
