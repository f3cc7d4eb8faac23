"""The least cycles that a layer or a network can take: multiply-accumulates over the array, bytes over the bus."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from compiler.ir.graph import Graph
from compiler.lower.layer import Layer
from hw.config import MlaConfig


@dataclass(frozen=True)
class Floor:
    """Work that cannot be avoided.

    Parameters
    ----------
    macs : int
        Multiply-accumulates by the model's definition.
    bytes : int
        What must cross the bus once.
    """

    macs: int
    bytes: int

    def cycles(self, config: MlaConfig, rate: float | None = None) -> int:
        """At least so many: N*N multiply-accumulates, or `rate` bytes (left out: N), a cycle."""
        return max(-(-self.macs // config.n**2), ceil(self.bytes / (rate or config.n)))


def _constants(graph: Graph, layer: Layer) -> set[str]:
    names = {name for node in layer.nodes for name in graph.nodes[node].inputs}
    return {name for name in names if graph.tensors[name].constant}


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(graph.tensors[name].bytes for name in names)


def layer_floor(graph: Graph, layer: Layer) -> Floor:
    """Of one layer, its tensors coming from and going to DRAM."""
    activations = {name for name in (*layer.inputs, layer.y) if not graph.tensors[name].constant}
    return Floor(layer.macs, _bytes(graph, activations | _constants(graph, layer)))


def network_floor(graph: Graph, layers: Sequence[Layer]) -> Floor:
    """Of a whole network: only its inputs, outputs and weights cross the bus."""
    constants = set().union(*(_constants(graph, layer) for layer in layers))
    names = {*graph.inputs, *graph.outputs} | constants
    return Floor(sum(layer.macs for layer in layers), _bytes(graph, names))


def body_floor(graph: Graph, layers: Sequence[Layer]) -> Floor:
    """Of a stage in a subgraph of control flow: what comes in and goes out may stay on chip."""
    constants = set().union(*(_constants(graph, layer) for layer in layers))
    return Floor(sum(layer.macs for layer in layers), _bytes(graph, constants))
