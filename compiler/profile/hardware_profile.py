"""What a measurement holds for: a machine and its memory."""

from dataclasses import dataclass
from functools import cached_property

from compiler.cache import digest
from compiler.options import USUAL, DramTiming
from hw.config import MlaConfig


@dataclass(frozen=True)
class HardwareProfile:
    """A machine and the memory behind it: the first half of a hardware profile.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    dram : Dram
        Its memory.
    """

    config: MlaConfig
    dram: DramTiming = USUAL

    @cached_property
    def key(self) -> str:
        """A name that no other conditions have (SHA-256)."""
        return digest.name(self.config, self.dram.latency, self.rate)

    @property
    def rate(self) -> float:
        """Bytes that the memory moves in a cycle, reads and writes together."""
        return float(self.dram.bytes_per_cycle or self.config.n)
