"""The machines and memories that samples come from, and those that none may come from."""

from dataclasses import dataclass

from compiler.limits import Limits
from compiler.measure.conditions import Conditions
from compiler.options import Options
from compiler.schedule.dram import USUAL, Dram
from hw.config import load_target


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


#: What samples come from, and how often.
TRAINING = {
    "usual": (Machine("n16"), 8), "bandwidth / 4": (Machine("n16", slow=4), 2),
    "latency 400": (Machine("n16", latency=400), 2), "latency 20": (Machine("n16", latency=20), 1),
    "SP 64 KiB": (Machine("n16", sp_bytes=1 << 16), 1), "N = 4": (Machine("n4"), 1), "N = 32": (Machine("n32"), 1),
}  # fmt: skip
#: What the language model is tried on and has never seen.
HELD_OUT = {
    "N = 8": Machine("n8"), "bandwidth / 2": Machine("n16", slow=2), "latency 200": Machine("n16", latency=200),
}  # fmt: skip
MACHINES = {name: machine for name, (machine, _) in TRAINING.items()} | HELD_OUT
