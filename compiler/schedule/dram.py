"""The memory that a schedule is made for."""

from dataclasses import dataclass

from compiler.ir.identity import identity


@identity("Dram", "latency", "bytes_per_cycle")
@dataclass(frozen=True)
class Dram:
    """What is known of the DRAM. It decides when transfers are issued and how layers are cut, never a result.

    Parameters
    ----------
    latency : int
        Cycles from an address to its first beat.
    bytes_per_cycle : float or None
        Reads and writes together; None: a beat, n bytes, a cycle.
    """

    latency: int = 100
    bytes_per_cycle: float | None = None

    def beat(self, n: int) -> float:
        """Cycles of a beat of n bytes; never less than one."""
        return max(1.0, n / (self.bytes_per_cycle or n))


#: The one that programs are made for if nobody says otherwise.
USUAL = Dram()
