"""What a search makes small."""

from enum import StrEnum

from compiler.profile.measurement import Measurement


class Objective(StrEnum):
    """What counts."""

    LATENCY = "latency"
    ENERGY = "energy"
    THROUGHPUT = "throughput"

    def cost(self, measured: Measurement) -> float:
        """The less the better: cycles of a sample, or microjoules."""
        return measured.energy_uj if self is Objective.ENERGY else float(measured.cycles)
