"""An independent check for races, which records the golden model's execution as a graph of ordered events.

The check shares no algorithm with the validator. The golden model runs the program on actual data, and the accessed
addresses are computed with the loops of docs/machine.md. Two commands are ordered if a path in the graph connects them,
whereas the validator compares clocks.
"""

from dataclasses import dataclass, field

import networkx as nx

from cosim.golden.command import Command
from cosim.golden.csr import ControlRegisters
from cosim.golden.device import GoldenDevice
from cosim.golden.machine import Machine
from cosim.semantics.limits import MAX_IN_FLIGHT
from hw.config import MlaConfig
from hw.isa.enums import SEQUENCER, Unit
from tests.validate.footprint_reference import touched


@dataclass
class Witness:
    """Graph of all events that order commands, built in the order of the sequencer's steps.

    The graph's nodes are ("start" | "end", unit, number) and, for each step of the sequencer, ("sequencer", number).
    """

    commands: list[list[Command]] = field(default_factory=lambda: [[] for _ in Unit])
    graph: nx.DiGraph = field(default_factory=nx.DiGraph)
    gives: dict[tuple[int, int, int], list] = field(default_factory=dict)
    takes: dict[tuple[int, int, int], list] = field(default_factory=dict)
    steps: int = 0

    def step(self) -> tuple:
        """Add a node for the next step of the sequencer and return it."""
        self.steps += 1
        self.graph.add_edge(("sequencer", self.steps - 1), ("sequencer", self.steps))
        return ("sequencer", self.steps)

    def issue(self, command: Command) -> None:
        unit, number = command.unit, len(self.commands[command.unit])
        start, end = ("start", unit, number), ("end", unit, number)
        self.commands[unit].append(command)
        self.graph.add_edges_from([(self.step(), start), (start, end)])
        if number:
            self.graph.add_edges_from(
                [(("start", unit, number - 1), start), (("end", unit, number - 1), end)]
            )
        for i in command.waits:
            self.takes.setdefault((i >> 2, unit, i & 3), []).append(start)
        for i in command.signals:
            self.gives.setdefault((unit, i >> 2, i & 3), []).append(end)

    def wait(self, semaphore: int) -> None:
        self.takes.setdefault((semaphore >> 2, SEQUENCER, semaphore & 3), []).append(self.step())

    def retired(self, counts: list[int]) -> None:
        """Make the sequencer wait until the given number of commands of each unit have retired."""
        step = self.step()
        self.graph.add_edges_from((("end", unit, counts[unit] - 1), step) for unit in Unit if counts[unit])

    def race(self, config: MlaConfig) -> str:
        """Return the names of two commands with conflicting, unordered accesses, or an empty string."""
        for key, takes in self.takes.items():
            self.graph.add_edges_from(zip(self.gives.get(key, []), takes, strict=False))
        assert nx.is_directed_acyclic_graph(self.graph)
        reach = {node: nx.descendants(self.graph, node) for node in self.graph if node[0] == "end"}
        all_commands = [(unit, number, c) for unit in Unit for number, c in enumerate(self.commands[unit])]
        sets = {(unit, number): touched(config.n, unit, c.config) for unit, number, c in all_commands}
        for index, (unit, number, _) in enumerate(all_commands):
            for other, later, _ in all_commands[index + 1 :]:
                ordered = ("start", other, later) in reach["end", unit, number]
                ordered |= ("start", unit, number) in reach["end", other, later]
                if not ordered and _conflict(sets[unit, number], sets[other, later], unit == other):
                    return f"{unit.name} {number} and {other.name} {later}"
        return ""


def _conflict(first: set, second: set, same: bool) -> bool:
    """Return True if two sets of accesses conflict; in the same unit, only a read after a write conflicts."""
    if same:
        return any((space, address, False) in second for space, address, write in first if write)
    return any(
        (space, address, True) in second or (write and (space, address, False) in second)
        for space, address, write in first
    )


class _Witnessed(Machine):
    """Golden machine that records its execution."""

    def __init__(self, config, dram):
        super().__init__(config, dram)
        self.witness = Witness()
        self.ends: list[list[int]] = []

    def enqueue(self, command):
        super().enqueue(command)
        self.witness.issue(command)

    def take_semaphore(self, semaphore):
        taken = super().take_semaphore(semaphore)
        if taken:
            self.witness.wait(semaphore)
        return taken

    def drained(self, mask):
        drained = super().drained(mask)
        if drained:
            counts = [
                len(commands) if mask >> unit & 1 else 0
                for unit, commands in enumerate(self.witness.commands)
            ]
            self.witness.retired(counts)
        return drained

    def _start(self, macro):
        super()._start(macro)
        self.ends.append([len(commands) for commands in self.witness.commands])
        if len(self.ends) > MAX_IN_FLIGHT:  # counts at a start are those at the previous end
            self.witness.retired(self.ends[-MAX_IN_FLIGHT])


class WitnessedDevice(GoldenDevice):
    """Golden device whose machine records its execution."""

    machine: _Witnessed

    def reset(self) -> None:
        super().reset()
        self.machine = _Witnessed(self.config, self.dram)
        self._host = ControlRegisters(self.machine)
