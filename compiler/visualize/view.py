"""Common structure of the graph views.

A view is a networkx MultiDiGraph whose attributes are numbers, strings and lists of strings, so that it can be
written as JSON. A graph has the attributes name, stage, target and note, at stage `reduced` removed (descriptions of
removed nodes and channels), and at stage `plan` summary (lines of text) and plan (a document). A node has the
attributes kind (a key of `KINDS`), label, text (lines of detail) and group, and, where known, cycles and pj. An edge
has the attributes tensor, bytes, cycles and pj; edges for accumulations and for values carried to the next loop
iteration also have back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from compiler.codegen.executable import CommandStream
from compiler.cost.energy import PJ_PER_BYTE
from compiler.cost.roofline import Floor
from compiler.cost.timeline import timeline, waits
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
    "guard": "a choice among programs, which the chip makes by data or by an operand",
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
    "estimate: the sequencer takes one cycle per changed field of a command. A command starts once its queue has had a "
    "free entry, its unit is idle, and the commands that it waits for are done. The bar of a LOAD starts when its data "
    "arrive, one DRAM latency after the request; requests overlap. Conflicts at the banks of a memory are not "
    "modelled. Edges: command order within a unit, and semaphores"
)


def timeline_view(name: str, streams: Sequence[CommandStream], config: MlaConfig, dram: DramTiming) -> View:
    """Return the view of commands with their begin and end; accelerator stages run one after another."""
    view, at = start(name, "timeline", config, _NOTE), 0
    for stage, stream in enumerate(streams):
        prefix, layers = f"{stage} " if len(streams) > 1 else "", stream.lowered.layers
        times = timeline(config, stream, dram)
        last: dict[Unit, int] = {}
        for number, (command, needed) in enumerate(zip(stream.commands, waits(stream), strict=True)):
            begin, end = round(times[number].begin), round(times[number].end)
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
                spent = Cost(0, round(times[before].end) - round(times[before].begin))
                add_edge(view, f"{prefix}{before}", f"{prefix}{number}", what, spent)
            last[command.unit] = number
        at += max((round(each.end) for each in times), default=0)
    view.graph["cycles"] = at
    return view
