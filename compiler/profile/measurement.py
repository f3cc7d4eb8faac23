"""What came of trying a schedule."""

from dataclasses import dataclass

from compiler.ir.identity import identity
from hw.errors import WorkError


@identity("LayerCycles", "names", "cycles", "where")
@dataclass(frozen=True)
class LayerCycles:
    """Cycles of a layer, or of neighbours that share a tag.

    Parameters
    ----------
    names : tuple of str
        The layers.
    cycles : int
        While they were what the machine was at.
    where : dict
        The same by cause.
    """

    names: tuple[str, ...]
    cycles: int
    where: dict[str, int]


@identity("Measurement", "cycles", "layers", "energy_uj", "dram_bytes", "exact", "floor")
@dataclass(frozen=True)
class Measurement:
    """A schedule's cycles on the RTL.

    Parameters
    ----------
    cycles : int
        From doorbells to interrupts, everything cold; or of a request in a stream.
    layers : tuple of LayerCycles
        They add up to `cycles`.
    energy_uj : float
        By the table of compiler.cost.energy.
    dram_bytes : int
        Read and written.
    exact : bool
        Whether all outputs were those of the reference.
    floor : int
        Cycles that nothing that does this work beats.
    """

    cycles: int
    layers: tuple[LayerCycles, ...]
    energy_uj: float
    dram_bytes: int
    exact: bool
    floor: int

    @property
    def believable(self) -> bool:
        """Whether outputs are right and no work can have been left out."""
        return self.exact and self.cycles >= self.floor

    def of(self, name: str) -> LayerCycles:
        """The entry that a layer has a part in.

        Raises
        ------
        WorkError
            No entry has the layer: the measurement is of another network.
        """
        for entry in self.layers:
            if name in entry.names:
                return entry
        known = ", ".join(name for entry in self.layers for name in entry.names)
        raise WorkError(f"layer {name!r} was not measured, only {known or 'none'}")


@identity("Rejected", "stage", "reason")
@dataclass(frozen=True)
class Rejected:
    """A schedule that could not be measured.

    Parameters
    ----------
    stage : str
        Where it ended: "compile", "validate", "trap" or "time"; "same": a text does something else than the program
        it stands for; "search": it was measured before, or is forbidden.
    reason : str
        In words.
    """

    stage: str
    reason: str


#: What comes of a trial.
Result = Measurement | Rejected
