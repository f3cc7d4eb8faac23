"""The machines and memories that samples come from, and those that none may come from."""

from dataclasses import dataclass

from compiler.limits import Limits
from compiler.measure.conditions import Conditions
from compiler.options import Options
from compiler.schedule.dram import USUAL, Dram
from hw.config import load_target, targets_by_lanes


@dataclass(frozen=True)
class Machine:
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
    def conditions(self) -> Conditions:
        """For measuring."""
        config = load_target(self.target)
        return Conditions(config, Dram(self.latency, config.n / self.slow))

    @property
    def options(self) -> Options:
        """For compiling."""
        return Options(rounding="reference", dram=self.conditions.dram, limits=Limits(sp_bytes=self.sp_bytes))


_USUAL = "n16"
_HELD_OUT_LANES = 8
_OTHERS = {lanes: name for lanes, name in targets_by_lanes().items() if name != _USUAL}
#: What samples come from, and how often.
TRAINING = {
    "usual": (Machine(_USUAL), 8), "bandwidth / 4": (Machine(_USUAL, slow=4), 2),
    "latency 400": (Machine(_USUAL, latency=400), 2), "latency 20": (Machine(_USUAL, latency=20), 1),
    "SP 64 KiB": (Machine(_USUAL, sp_bytes=1 << 16), 1),
} | {
    f"N = {lanes}": (Machine(name), 1) for lanes, name in _OTHERS.items() if lanes != _HELD_OUT_LANES
}  # fmt: skip
#: What the language model is tried on and has never seen.
HELD_OUT = {
    f"N = {_HELD_OUT_LANES}": Machine(_OTHERS[_HELD_OUT_LANES]), "bandwidth / 2": Machine(_USUAL, slow=2),
    "latency 200": Machine(_USUAL, latency=200),
}  # fmt: skip
MACHINES = {name: machine for name, (machine, _) in TRAINING.items()} | HELD_OUT
