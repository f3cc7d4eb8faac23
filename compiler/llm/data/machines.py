"""The machines and memories that samples come from, and those that none may come from."""

from dataclasses import dataclass

from compiler.options import USUAL, CompileOptions, DramTiming, MemoryLimits
from compiler.profile.hardware_profile import HardwareProfile
from hw.config import load_target, targets_by_lanes


@dataclass(frozen=True)
class CorpusMachine:
    """Where samples come from.

    Parameters
    ----------
    target : str
        Name of the configuration.
    latency : int
        Cycles of the memory.
    slow : int
        The memory moves the width of the bus in so many cycles.
    sp_bytes : int or None
        So much of the scratchpad may be used; None: all.
    """

    target: str
    latency: int = USUAL.latency
    slow: int = 1
    sp_bytes: int | None = None

    @property
    def conditions(self) -> HardwareProfile:
        """For measuring."""
        config = load_target(self.target)
        return HardwareProfile(config, DramTiming(self.latency, config.n / self.slow))

    @property
    def options(self) -> CompileOptions:
        """For compiling."""
        return CompileOptions(
            rounding="reference", dram=self.conditions.dram, limits=MemoryLimits(sp_bytes=self.sp_bytes)
        )


_USUAL = "n16"
_HELD_OUT_LANES = 8
_OTHERS = {lanes: name for lanes, name in targets_by_lanes().items() if name != _USUAL}
#: What samples come from, and how often.
TRAINING = {
    "usual": (CorpusMachine(_USUAL), 8),
    "bandwidth / 4": (CorpusMachine(_USUAL, slow=4), 2),
    "latency 400": (CorpusMachine(_USUAL, latency=400), 2),
    "latency 20": (CorpusMachine(_USUAL, latency=20), 1),
    "SP 64 KiB": (CorpusMachine(_USUAL, sp_bytes=1 << 16), 1),
} | {f"N = {lanes}": (CorpusMachine(name), 1) for lanes, name in _OTHERS.items() if lanes != _HELD_OUT_LANES}
#: What the language model is tried on and has never seen.
HELD_OUT = {
    f"N = {_HELD_OUT_LANES}": CorpusMachine(_OTHERS[_HELD_OUT_LANES]),
    "bandwidth / 2": CorpusMachine(_USUAL, slow=2),
    "latency 200": CorpusMachine(_USUAL, latency=200),
}
MACHINES = {name: machine for name, (machine, _) in TRAINING.items()} | HELD_OUT
