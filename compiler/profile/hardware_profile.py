"""Hardware profile: the machine and DRAM timing that a measurement applies to."""

from dataclasses import dataclass
from functools import cached_property

from compiler.cache import digest
from compiler.options import USUAL, DramTiming
from hw.config import MlaConfig


@dataclass(frozen=True)
class HardwareProfile:
    """A machine configuration and its DRAM timing.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram : DramTiming
        Timing of its DRAM.
    """

    config: MlaConfig
    dram: DramTiming = USUAL

    @cached_property
    def key(self) -> str:
        """Unique digest of the conditions (SHA-256)."""
        return digest.name(self.config, self.dram.latency, self.rate)

    @property
    def rate(self) -> float:
        """DRAM bandwidth in bytes per cycle, reads and writes together."""
        return float(self.dram.bytes_per_cycle or self.config.n)
