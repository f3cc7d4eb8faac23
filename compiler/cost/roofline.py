"""Roofline of layers and networks: multiply-accumulates over the array, bytes over the bus."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from compiler.cost.compulsory_traffic import Crossing
from compiler.ir.graph import Graph
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork
from hw.config import MlaConfig


@identity("Floor", "macs", "bytes")
@dataclass(frozen=True)
class Floor:
    """Minimum work of a layer or network.

    Parameters
    ----------
    macs : int
        Multiply-accumulates by the model's definition.
    bytes : int
        Bytes that must cross the bus once.
    """

    macs: int
    bytes: int

    def cycles(self, config: MlaConfig, rate: float | None = None) -> int:
        """Lower bound of cycles, at N*N multiply-accumulates and `rate` bytes (default: N) a cycle."""
        return max(-(-self.macs // config.n**2), ceil(self.bytes / (rate or config.n)))


def bus_rate(config: MlaConfig, rate: float | None) -> float:
    """Bytes a cycle that no memory of this rate beats: a row of N; of a faster one up to a row read and one written."""
    return max(config.n, min(rate or config.n, 2 * config.n))


def _constants(graph: Graph, layers: Iterable[Layer]) -> int:
    """Bytes of the constants of some layers, by the model's definition."""
    read = {name for layer in layers for node in layer.nodes for name in graph.nodes[node].inputs}
    return sum(graph.tensors[name].bytes for name in read if graph.tensors[name].constant)


def _weights(graph: Graph, layers: Sequence[Layer], crossed: Crossing) -> int:
    """Bytes of the constants that cross the bus: many go into commands, or into other constants, and never do."""
    each = (
        min(_constants(graph, [layer]), crossed.constants.get(number, 0))
        for number, layer in enumerate(layers)
    )
    return min(_constants(graph, layers), sum(each))


def layer_floors(lowered: LoweredNetwork, crossed: Crossing) -> list[Floor]:
    """Minimum work of each layer of a stage, with its tensors in DRAM."""
    graph = lowered.graph
    ends = {lowered.root(name): size for name, size in crossed.ends.items()}
    floors = []
    for number, layer in enumerate(lowered.layers):
        names = {name for name in (*layer.inputs, layer.y) if not graph.tensors[name].constant}
        sizes = ((graph.tensors[name].bytes, ends.get(lowered.root(name))) for name in names)
        size = sum(own if crosses is None else min(own, crosses) for own, crosses in sizes)
        weights = min(_constants(graph, [layer]), crossed.constants.get(number, 0))
        floors.append(Floor(layer.macs, size + weights))
    return floors


def network_floor(stages: Sequence[tuple[LoweredNetwork, Crossing]]) -> Floor:
    """Minimum work of a network: only its inputs, outputs and weights cross the bus.

    Parameters
    ----------
    stages : sequence of (LoweredNetwork, Crossing)
        Stages on the accelerator. Tensors passed from one to another count once.
    """
    ends: dict[str, int] = {}
    for _, crossed in stages:
        ends |= {name: max(size, ends.get(name, 0)) for name, size in crossed.ends.items()}
    macs = sum(layer.macs for lowered, _ in stages for layer in lowered.layers)
    weights = sum(_weights(lowered.graph, lowered.layers, crossed) for lowered, crossed in stages)
    return Floor(macs, sum(ends.values()) + weights)


def body_floor(lowered: LoweredNetwork, crossed: Crossing) -> Floor:
    """Minimum work of a stage in a subgraph of control flow: its inputs and outputs may stay on chip."""
    return Floor(
        sum(layer.macs for layer in lowered.layers), _weights(lowered.graph, lowered.layers, crossed)
    )
