"""What a search makes small."""

from enum import StrEnum

from compiler.measure.measurement import Measurement


class Goal(StrEnum):
    """What counts."""

    LATENCY = "latency"
    ENERGY = "energy"
    THROUGHPUT = "throughput"

    def cost(self, measured: Measurement) -> float:
        """The less the better: cycles of a sample, or microjoules."""
        return measured.energy_uj if self is Goal.ENERGY else float(measured.cycles)
