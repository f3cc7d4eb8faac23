"""Layers as a graph: operators that the accelerator runs together form one node, with the scheduler's estimates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.codegen.executable import CommandStream
from compiler.cost.energy import MAC_PJ
from compiler.initial_schedule.initial import estimates
from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork
from compiler.lowering.partition import GraphPart
from compiler.visualize.graphs.operators import add_inputs, shape_text, title
from compiler.visualize.graphs.view import View, add_edge, add_node, over_bus, size, start
from hw.config import MlaConfig

_NOTE = (
    "nodes: cycles of the best tiling by the schedule's estimate; edges: bytes, and cycles and energy of moving "
    "them over the bus once, which tensors that stay on the chip are spared"
)


def layers_view(
    graph: Graph, parts: Sequence[GraphPart], streams: Sequence[CommandStream], config: MlaConfig
) -> View:
    """Return the view of the layers on the accelerator, the nodes on the host, and the tensors between them."""
    view = start(graph.name, "layers", config, _NOTE)
    inputs: dict[str, str] = {}
    add_inputs(view, graph, inputs)
    adder = _Adder(view, config, iter(streams))
    made = {name: (key,) for name, key in inputs.items()}
    adder.add(parts, made, "", "")
    for name in graph.outputs:
        add_node(view, f"out {name}", "output", "output", shape_text(graph.tensors[name]), name)
        adder.feed(graph, name, f"out {name}", made, "")
    return view


#: View nodes that produce a tensor, or parts of it.
_Made = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Adder:
    """Builder that adds the stages of a model to a view; `scope` is the name prefix for a subgraph's constants."""

    view: View
    config: MlaConfig
    streams: Iterator[CommandStream]

    def add(self, parts: Sequence[GraphPart], made: _Made, scope: str, inside: str) -> None:
        """Add the nodes and edges of stages in order; `inside` is the name prefix for groups."""
        for number, part in enumerate(parts):
            where = "accelerator" if part.device else "host"
            group = f"{inside}stage {number}: {where}" if len(parts) > 1 or inside else ""
            if part.device:
                self._device(next(self.streams).lowered, group, made, scope)
                continue
            for node in part.graph:
                text = shape_text(part.graph.tensors[node.outputs[0]])
                kind = "control" if node.bodies else "host"
                add_node(self.view, node.name, kind, title(part.graph, node), node.name, text, group=group)
                for name in dict.fromkeys(node.inputs):
                    self.feed(part.graph, name, node.name, made, scope)
                made |= dict.fromkeys(node.outputs, (self._bodies(node, part, group) or node.name,))

    def _bodies(self, node: Node, part: GraphPart, group: str) -> str:
        """Add subgraphs between their control node and a merge node; return the merge node (empty: no subgraphs)."""
        if not node.bodies:
            return ""
        end = f"{node.name} end"
        add_node(self.view, end, "control", f"end of {node.op}", node.name, group=group)
        for body, parts, called in zip(node.bodies, part.bodies, OPS[node.op].bodies, strict=True):
            scope, inner = f"{node.name}.{called}/", dict.fromkeys(body.inputs, (node.name,))
            self.add(parts, inner, scope, f"{node.name}: {called}, ")
            for name in dict.fromkeys(body.outputs):
                self.feed(body, name, end, inner, scope)
        return end

    def _device(self, lowered: LoweredNetwork, group: str, made: _Made, scope: str) -> None:
        graph, known = lowered.graph, estimates(self.config, lowered)
        for layer in lowered.layers:
            cycles, schedule = known[layer.name]
            weights = sum(graph.tensors[name].bytes for name in _constants(graph, layer))
            add_node(
                self.view,
                layer.name,
                "layer",
                " + ".join(title(graph, graph.nodes[name]) for name in layer.nodes),
                layer.name,
                shape_text(graph.tensors[layer.y]),
                f"{layer.macs:,} MACs" if layer.macs else "",
                f"weights {size(weights)}" if weights else "",
                f"≈ {cycles:,.0f} cycles",
                "output stays on the chip" if schedule.on_chip else "output to DRAM",
                group=group,
                cycles=cycles,
                pj=layer.macs * MAC_PJ,
                ops=list(layer.ops),
            )
        for name in (*graph.outputs, *(name for layer in lowered.layers for name in layer.inputs)):
            before = made.get(lowered.root(name), (f"const {scope}{lowered.root(name)}",))
            made.setdefault(name, tuple(makers(lowered, name)) or before)
        for layer in lowered.layers:
            for name in (*dict.fromkeys(layer.inputs), *_constants(graph, layer)):
                self.feed(graph, name, layer.name, made, scope)

    def feed(self, graph: Graph, name: str, reader: str, made: _Made, scope: str) -> None:
        """Add the edges from the producers of a tensor to a node."""
        tensor = graph.tensors[name]
        sources = made.get(name, (f"const {scope}{name}",))
        if tensor.constant and name not in made:
            add_node(self.view, sources[0], "constant", "constant", shape_text(tensor), name)
        for source in sources:
            add_edge(self.view, source, reader, name, over_bus(self.config, tensor.bytes))


def makers(lowered: LoweredNetwork, name: str) -> Iterator[str]:
    """Yield the names of the layers that write a tensor or a part of it."""
    whole = name
    while whole in lowered.views:
        whole = lowered.views[whole]
    exact = [layer.name for layer in lowered.layers if layer.y in (name, whole)]
    root = lowered.root(name)
    yield from exact or (layer.name for layer in lowered.layers if lowered.root(layer.y) == root)


def _constants(graph: Graph, layer: Layer) -> list[str]:
    names = dict.fromkeys(name for node in layer.nodes for name in graph.nodes[node].inputs)
    return [name for name in names if graph.tensors[name].constant]
