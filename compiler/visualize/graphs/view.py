"""Common structure of the graph views.

A view is a networkx MultiDiGraph whose attributes are numbers, strings and lists of strings, so that it can be
written as JSON. Graph attributes: name, stage, target, note. Node attributes: kind (one of `KINDS`), label, text (lines
of detail), group, and, where known, cycles and pj. Edge attributes: tensor, bytes, cycles, pj, and
back for loop-carried edges and accumulations.
"""

from dataclasses import dataclass
from typing import Any

import networkx as nx

from compiler.cost.energy import PJ_PER_BYTE
from compiler.cost.roofline import Floor
from hw.config import MlaConfig

View = nx.MultiDiGraph

#: Node kinds with their descriptions.
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
    """Cost of a node or edge.

    Parameters
    ----------
    bytes : int
        Exact number of bytes.
    cycles : int
        Cycles estimated by the scheduler's cost model.
    pj : float
        Energy in picojoules, estimated from the table of `compiler.cost.energy`.
    """

    bytes: int = 0
    cycles: int = 0
    pj: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.cycles + other.cycles, self.pj + other.pj)


def over_bus(config: MlaConfig, size: int) -> Cost:
    """Return the cost of moving bytes over the bus between chip and DRAM once."""
    return Cost(size, Floor(0, size).cycles(config), size * PJ_PER_BYTE["dram"])


def start(name: str, stage: str, config: MlaConfig, note: str) -> View:
    """Return an empty view."""
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
    """Add a node; attributes that are None are omitted."""
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
