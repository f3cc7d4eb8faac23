"""Execution of commands by the four units, with counter events and statistics."""

from collections.abc import Callable

from cosim.golden.command import Command
from cosim.golden.dma import Events, run_load, run_store
from cosim.golden.fuse import run_fuse
from cosim.golden.matrix import run_matrix
from cosim.golden.memory import Memories
from cosim.semantics.bounding_box import boxes
from hw.isa.enums import Unit
from hw.isa.micro_instruction import Statistic


class UnitExecutor:
    """Executor of unit commands.

    Parameters
    ----------
    memories : Memories
        Memories that the units read and write.
    """

    def __init__(self, memories: Memories):
        self.memories = memories
        self.statistics = dict.fromkeys(Statistic, 0) | {Statistic.N: memories.config.n}
        self.fault: Callable[[int, int, bool], bool] = lambda low, high, write: False

    def run(self, command: Command) -> Events:
        """Execute a command and return the events to add to the counters of its tag."""
        events = self._run(command)
        return events | {f"{command.unit.name.lower()}_commands": 1}

    def _run(self, command: Command) -> Events:
        c = command.config
        if command.unit == Unit.LOAD:
            return run_load(self.memories, c)
        if command.unit == Unit.STORE:
            return run_store(self.memories, c)
        if command.unit == Unit.MATRIX:
            events = run_matrix(self.memories, c)
            self.statistics[Statistic.MATRIX_ZEROS] = events["matrix_zeros"]
            return events
        events, written = run_fuse(self.memories, c)
        self.statistics |= {
            Statistic.FUSE_ROWS: written.rows,
            Statistic.FUSE_ZEROS: written.zeros,
            Statistic.FUSE_MIN: written.low,
            Statistic.FUSE_MAX: written.high,
        }
        return events

    def faulty(self, command: Command) -> int | None:
        """Return the lowest DRAM address that a command accesses if its accesses get a bus error; otherwise None."""
        if command.unit in (Unit.LOAD, Unit.STORE):
            for item in boxes(self.memories.config, command.unit, command.config):
                if item.space == "dram" and self.bus_error(item.low, item.high, item.write):
                    return item.low
        return None

    def bus_error(self, low: int, high: int, write: bool) -> bool:
        """Return True if the bus answers an access to bytes low..high with an error."""
        return high >= self.memories.dram.size or self.fault(low, high, write)
