"""Measurements of schedules, and the hardware profile for which they are valid."""

from dataclasses import dataclass
from functools import cached_property

from compiler.cache import digest
from compiler.ir.identity import identity
from compiler.options import DEFAULT_DRAM, DramTiming
from hw.config import MlaConfig
from hw.errors import WorkError


@dataclass(frozen=True)
class HardwareProfile:
    """Hardware configuration, and timing of the DRAM and of the clock.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the chip.
    dram : DramTiming
        Latency and bandwidth of the DRAM, and throttling of the clock.
    """

    config: MlaConfig
    dram: DramTiming = DEFAULT_DRAM

    @cached_property
    def key(self) -> str:
        """SHA-256 digest that identifies the profile."""
        throttle = (self.dram.throttle,) if self.dram.throttle else ()
        return digest.name(self.config, self.dram.latency, self.rate, *throttle)

    @property
    def text(self) -> str:
        """Short description of the profile."""
        throttle = f", throttle {self.dram.throttle:g}" if self.dram.throttle else ""
        bus = f", bus of {self.config.bus_bytes} bytes" if self.config.bus_bytes else ""
        return f"n{self.config.n}{bus}, latency {self.dram.latency}, {self.rate:g} bytes per cycle{throttle}"

    @property
    def rate(self) -> float:
        """DRAM bandwidth in bytes per cycle, reads and writes together."""
        return float(self.dram.bytes_per_cycle or self.config.beat_bytes)


@identity(
    "LayerCycles", "names", "cycles", "where", "energy_uj", "conflicts", added=("energy_uj", "conflicts")
)
@dataclass(frozen=True)
class LayerCycles:
    """Cycles, energy and bank conflicts of a layer, or of adjacent layers that share a tag.

    Parameters
    ----------
    names : tuple of str
        Names of the layers.
    cycles : int
        Cycles attributed to these layers.
    where : dict
        Cycles of these layers by cause.
    energy_uj : float
        Energy in microjoules, from the table of `compiler.cost.energy`; 0 if it was not recorded.
    conflicts : int
        Number of accesses that a bank of the scratchpad or accumulator refused, and which therefore waited.
    """

    names: tuple[str, ...]
    cycles: int
    where: dict[str, int]
    energy_uj: float = 0.0
    conflicts: int = 0


@identity(
    "Measurement",
    "cycles",
    "layers",
    "energy_uj",
    "dram_bytes",
    "exact",
    "floor",
    "test_inputs",
    added=("test_inputs",),
)
@dataclass(frozen=True)
class Measurement:
    """Measured cost of a schedule on the simulated chip.

    Parameters
    ----------
    cycles : int
        Cycles of a run from a cold start, from doorbells to interrupts, or cycles per request in a stream.
    layers : tuple of LayerCycles
        Breakdown by layer, which adds up to `cycles`.
    energy_uj : float
        Energy in microjoules, from the table of `compiler.cost.energy`.
    dram_bytes : int
        DRAM bytes read and written.
    exact : bool
        True if all outputs equal the reference.
    floor : int
        Lower bound on the cycles of this work.
    test_inputs : int
        Number of inputs with which the schedule's program texts were tested; 0 if they were proved to be equivalent
        for all inputs, or if there are none.
    """

    cycles: int
    layers: tuple[LayerCycles, ...]
    energy_uj: float
    dram_bytes: int
    exact: bool
    floor: int
    test_inputs: int = 0

    @property
    def conflicts(self) -> int:
        """Number of accesses of all layers that a memory bank refused."""
        return sum(entry.conflicts for entry in self.layers)

    @property
    def valid(self) -> bool:
        """True if the outputs are correct and the cycles are not below the lower bound."""
        return self.exact and self.cycles >= self.floor

    def layer_entry(self, name: str) -> LayerCycles:
        """Return the entry that contains a layer.

        Raises
        ------
        WorkError
            The layer was not measured.
        """
        for entry in self.layers:
            if name in entry.names:
                return entry
        known = ", ".join(name for entry in self.layers for name in entry.names)
        raise WorkError(f"layer {name!r} was not measured, only {known or 'none'}")


@identity("Rejected", "stage", "reason", "form", added=("form",))
@dataclass(frozen=True)
class Rejected:
    """Result for a schedule that could not be measured.

    Parameters
    ----------
    stage : str
        Stage that rejected the schedule: "compile", "validate", "trap" or "time"; "same": a program text differs in
        behaviour from the program it replaces; "search": the schedule was measured before, or is forbidden.
    reason : str
        Human-readable reason for the rejection.
    form : str
        For the stage "same", digest of the program that differs, without instructions that have no effect: all
        programs with this digest are rejected. Empty if unknown.
    """

    stage: str
    reason: str
    form: str = ""


#: Result of a trial.
Result = Measurement | Rejected
