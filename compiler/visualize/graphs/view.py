"""What the graphs of all stages have in common.

A view is a MultiDiGraph of networkx whose attributes are plain numbers, texts and lists of texts, so that it can be
written as JSON. Of the graph: name, stage, target, note. Of a node: kind (one of `KINDS`), label, text (lines of
detail), group (what it is part of), and where they are known cycles and pj. Of an edge: tensor, bytes, cycles, pj, and
back where a loop begins again or sums are added to.
"""

from dataclasses import dataclass
from typing import Any

import networkx as nx

from compiler.cost.energy import PJ_PER_BYTE
from compiler.cost.roofline import Floor
from hw.config import MlaConfig

View = nx.MultiDiGraph

#: Kinds of nodes, and what they are.
KINDS = {
    "input": "what the user supplies",
    "output": "what the user gets",
    "constant": "weights, parameters, tables",
    "operator": "a node of the model",
    "host": "a node that runs on the host",
    "control": "where the host decides which subgraph runs, or whether again, and where that ends",
    "layer": "nodes that the machine carries out in one go",
    "buffer": "a place in a memory",
    "load": "a transfer from DRAM to the chip",
    "matrix": "sums of products in the array",
    "fuse": "rows through the fusion pipeline",
    "store": "a transfer from the chip to DRAM",
    "program": "a micro-program",
}


@dataclass(frozen=True)
class Cost:
    """What an edge or a node costs.

    Parameters
    ----------
    bytes : int
        Exactly.
    cycles : int
        Estimated, as the schedule does.
    pj : float
        Estimated energy in picojoules, from the table of `compiler.cost.energy`.
    """

    bytes: int = 0
    cycles: int = 0
    pj: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.cycles + other.cycles, self.pj + other.pj)


def over_bus(config: MlaConfig, size: int) -> Cost:
    """Bytes that cross the bus between chip and DRAM once."""
    return Cost(size, Floor(0, size).cycles(config), size * PJ_PER_BYTE["dram"])


def start(name: str, stage: str, config: MlaConfig, note: str) -> View:
    """A view without nodes."""
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
    """Add a node; what is None is left out."""
    known = {"cycles": None if cycles is None else round(cycles), "pj": None if pj is None else round(pj, 1)}
    kept = {name: value for name, value in known.items() if value is not None}
    view.add_node(
        key, kind=kind, label=label, text=[line for line in text if line], group=group, **kept, **more
    )


def add_edge(view: View, source: str, target: str, tensor: str, cost: Cost, **more: Any) -> None:
    """Add an edge."""
    view.add_edge(
        source, target, tensor=tensor, bytes=cost.bytes, cycles=cost.cycles, pj=round(cost.pj, 1), **more
    )


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
