"""Common structure of the graph views.

A view is a networkx MultiDiGraph whose attributes are numbers, strings and lists of strings, so that it can be
written as JSON. A graph has the attributes name, stage, target and note, and at stage `reduced` removed
(descriptions of removed nodes and channels). A node has the attributes kind (a key of
`KINDS`), label, text (lines of detail) and group, and, where known, cycles and pj. An edge has the attributes tensor,
bytes, cycles and pj; edges for accumulations and for values carried to the next loop iteration also have back.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from compiler.codegen.executable import CommandStream
from compiler.commands.command_cycles import cycles
from compiler.commands.commands import Command
from compiler.cost.energy import PJ_PER_BYTE
from compiler.cost.roofline import Floor
from compiler.options import DramTiming
from hw.config import MlaConfig
from hw.isa.enums import Unit

View = nx.MultiDiGraph

#: Node kinds with their descriptions.
KINDS = {
    "input": "an input of the model",
    "output": "an output of the model",
    "constant": "weights, parameters, tables",
    "operator": "a node of the model",
    "host": "a node that runs on the host",
    "control": "a branch or loop: the host selects the subgraph to run, or repeats it",
    "layer": "nodes that the accelerator executes together",
    "buffer": "a range of a memory",
    "load": "a transfer from DRAM to the chip",
    "matrix": "sums of products in the array",
    "fuse": "rows through the fusion pipeline",
    "store": "a transfer from the chip to DRAM",
    "program": "a micro-program",
}


@dataclass(frozen=True)
class Cost:
    """Cost of a node or edge.

    Parameters
    ----------
    bytes : int
        Exact number of bytes.
    cycles : int
        Number of cycles, estimated by the scheduler's cost model.
    pj : float
        Energy in picojoules, estimated with the table in `compiler.cost.energy`.
    """

    bytes: int = 0
    cycles: int = 0
    pj: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.cycles + other.cycles, self.pj + other.pj)


def over_bus(config: MlaConfig, size: int) -> Cost:
    """Return the cost of moving `size` bytes once over the bus between the chip and DRAM."""
    return Cost(size, Floor(0, size).cycles(config), size * PJ_PER_BYTE["dram"])


def start(name: str, stage: str, config: MlaConfig, note: str) -> View:
    """Return a view without nodes."""
    return View(name=name, stage=stage, target=f"N = {config.n}", note=note)


def add_node(
    view: View,
    key: str,
    kind: str,
    label: str,
    *text: str,
    group: str = "",
    cycles: float | None = None,
    pj: float | None = None,
    **more: Any,
) -> None:
    """Add a node; `cycles` and `pj` are omitted if they are None."""
    known = {"cycles": None if cycles is None else round(cycles), "pj": None if pj is None else round(pj, 1)}
    kept = {name: value for name, value in known.items() if value is not None}
    view.add_node(
        key, kind=kind, label=label, text=[line for line in text if line], group=group, **kept, **more
    )


def add_edge(view: View, source: str, target: str, tensor: str, cost: Cost, **more: Any) -> None:
    """Add an edge between two nodes."""
    view.add_edge(
        source, target, tensor=tensor, bytes=cost.bytes, cycles=cost.cycles, pj=round(cost.pj, 1), **more
    )


def size(count: float) -> str:
    """Format a number of bytes for display."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


_NOTE = (
    "estimate: each command takes the cycles of the schedule's cost model. A command starts once its queue has had a "
    "free entry, its unit is idle, and the commands that it waits for are done. The bar of a LOAD starts when its data "
    "arrive, one DRAM latency after the request; requests overlap. Contention between LOAD and STORE, and the time of "
    "the sequencer, are not modelled. Edges: command order within a unit, and semaphores"
)
#: Cycles from the last beat of a write to its response.
_ANSWER = 10


def waits(stream: CommandStream) -> list[list[int]]:
    """Return, for each command, the numbers of the commands for which it waits.

    For each pair of units, the i-th wait consumes the i-th signal.
    """
    given: dict[tuple[int, int], deque[int]] = {}
    out = []
    for number, issued in enumerate(stream.issued):
        taken = [
            given[producer, issued.unit].popleft() for producer in Unit if issued.wait >> (producer << 2) & 1
        ]
        out.append(taken)
        for consumer in Unit:
            if issued.signal >> (consumer << 2) & 1:
                given.setdefault((issued.unit, consumer), deque()).append(number)
    return out


def timeline(config: MlaConfig, stream: CommandStream, dram: DramTiming) -> list[tuple[int, int]]:
    """Return the first cycle of each command and the cycle after its last, in which dependent commands may start."""
    free: dict[Unit, int] = dict.fromkeys(Unit, 0)
    queues: dict[Unit, deque[int]] = {unit: deque(maxlen=config.queue_depth) for unit in Unit}
    out: list[tuple[int, int]] = []
    issued = loaded = 0
    for command, needed in zip(stream.commands, waits(stream), strict=True):
        queue = queues[command.unit]
        if len(queue) == config.queue_depth:
            issued = max(issued, queue[0])  # an entry is free once the oldest command has started
        begin = max([issued, free[command.unit], *(out[number][1] for number in needed)])
        taken = _taken(config, command, dram)
        free[command.unit] = begin + taken
        queue.append(begin)
        if command.unit == Unit.LOAD:  # LOADs complete in order, including those that only fill
            begin = max(begin + (dram.latency if taken else 0), loaded)
            loaded = begin + taken
        out.append((begin, begin + taken))
    return out


def _taken(config: MlaConfig, command: Command, dram: DramTiming) -> int:
    """Return the number of cycles during which a command occupies its unit."""
    taken = cycles(command, config.n)
    if command.unit not in (Unit.LOAD, Unit.STORE):
        return taken
    taken = math.ceil(taken * config.n / (dram.bytes_per_cycle or config.n))
    return taken + (_ANSWER if command.unit == Unit.STORE else 0)


def timeline_view(name: str, streams: Sequence[CommandStream], config: MlaConfig, dram: DramTiming) -> View:
    """Return the view of commands with their begin and end; accelerator stages run one after another."""
    view, at = start(name, "timeline", config, _NOTE), 0
    for stage, stream in enumerate(streams):
        prefix, layers = f"{stage} " if len(streams) > 1 else "", stream.lowered.layers
        times = timeline(config, stream, dram)
        last: dict[Unit, int] = {}
        for number, (command, needed) in enumerate(zip(stream.commands, waits(stream), strict=True)):
            begin, end = times[number]
            add_node(
                view,
                f"{prefix}{number}",
                command.unit.name.lower(),
                command.unit.name,
                group=layers[command.layer].name,
                cycles=end - begin,
                begin=at + begin,
                end=at + end,
            )
            previous = [last[command.unit]] if command.unit in last else []
            for before in dict.fromkeys([*previous, *needed]):
                what = "order" if stream.commands[before].unit == command.unit else "semaphore"
                spent = Cost(0, times[before][1] - times[before][0])
                add_edge(view, f"{prefix}{before}", f"{prefix}{number}", what, spent)
            last[command.unit] = number
        at += max((end for _, end in times), default=0)
    view.graph["cycles"] = at
    return view
