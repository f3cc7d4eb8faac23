"""Surroundings of a layer under a whole schedule: machine, memory, tensor locations, neighbours."""

from collections.abc import Callable
from dataclasses import dataclass

from compiler.options import DramTiming
from hw.config import MlaConfig


@dataclass(frozen=True)
class LayerContext:
    """Surroundings of a layer.

    Parameters
    ----------
    config, dram : MlaConfig, Dram
        The machine and its memory.
    x_on_chip, y_on_chip : bool
        Its input, its output stay in the scratchpad.
    on_chip : callable
        The same of any tensor by name.
    before, after : float
        Estimated cycles of the layers before and behind it; 0: there is none.
    lead : float
        So many cycles before the end of the layer before it LOAD is free.
    kind_before, kind_after : int
        Numbers of the kinds of the layers before and behind it; -1: there is none.
    turns_before, turns_after : bool
        The schedules of the layers before and behind it let their steps take turns with others.
    joined_after : bool
        The layer behind it is part of its program.
    """

    config: MlaConfig
    dram: DramTiming
    x_on_chip: bool
    y_on_chip: bool
    on_chip: Callable[[str], bool]
    before: float = 0.0
    after: float = 0.0
    lead: float = 0.0
    kind_before: int = -1
    kind_after: int = -1
    turns_before: bool = False
    turns_after: bool = False
    joined_after: bool = False

    @property
    def beat(self) -> float:
        """Cycles that the bus takes for N bytes."""
        return self.dram.beat(self.config.n)
