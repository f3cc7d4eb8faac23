"""Graphs of operators, for the compiler stages from the front end to the partition, and of layers: operators that the
accelerator runs together, with the scheduler's estimates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.codegen.executable import CommandStream
from compiler.cost.energy import MAC_PJ
from compiler.cost.roofline import Floor
from compiler.initial_schedule.initial import estimates
from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.ir.tensor import Tensor
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork, lower
from compiler.lowering.partition import GraphPart
from compiler.visualize.view import View, add_edge, add_node, over_bus, size, start
from hw.config import MlaConfig

_OPERATOR_NOTE = (
    "edges: bytes, and cycles and energy of moving them over the bus once; nodes: multiply-accumulates"
)
_LAYER_NOTE = (
    "nodes: cycles of the best tiling by the schedule's estimate; edges: bytes, and cycles and energy of moving "
    "them over the bus once, which tensors that stay on the chip are spared"
)


def graph_view(
    graph: Graph,
    stage: str,
    config: MlaConfig,
    rounding: str,
    *,
    groups: Mapping[str, str] | None = None,
    reasons: Mapping[str, str] | None = None,
) -> View:
    """Return the view of a graph, with operators as nodes and tensors as edges.

    Parameters
    ----------
    graph : Graph
        Graph to show.
    stage : str
        Name of the compiler stage.
    config : MlaConfig
        Hardware configuration for which cycles are estimated.
    rounding : str
        Rounding mode, which the lowering needs in order to count MACs.
    groups : mapping, optional
        Group names, by node name.
    reasons : mapping, optional
        Reasons why nodes run on the host, by node name.
    """
    view = start(graph.name, stage, config, _OPERATOR_NOTE)
    made: dict[str, str] = {}
    add_inputs(view, graph, made)
    adder = _OperatorAdder(view, config, rounding, dict(groups or {}), dict(reasons or {}))
    adder.add(graph, made, "", "")
    for name in graph.outputs:
        add_node(view, f"out {name}", "output", "output", shape_text(graph.tensors[name]), name)
        adder.feed(graph, made, name, f"out {name}", "")
    return view


def partition_view(
    graph: Graph, parts: Sequence[GraphPart], reasons: Mapping[str, str], config: MlaConfig, rounding: str
) -> View:
    """Return the view of a partitioned graph, in which each stage, also in subgraphs, is a group of nodes."""
    groups = dict(_stages(parts, ""))
    return graph_view(graph, "partitioned", config, rounding, groups=groups, reasons=reasons)


def _stages(parts: Sequence[GraphPart], inside: str) -> Iterator[tuple[str, str]]:
    for number, part in enumerate(parts):
        for node in part.graph:
            yield node.name, f"{inside}stage {number}: {'accelerator' if part.device else 'host'}"
            for body, called in zip(part.bodies, OPS[node.op].bodies, strict=True):
                yield from _stages(body, f"{node.name}: {called}, ")


def add_inputs(view: View, graph: Graph, made: dict[str, str]) -> None:
    """Add a node for each input of the model, and record it in `made`."""
    for name in graph.inputs:
        made[name] = f"in {name}"
        add_node(view, made[name], "input", "input", shape_text(graph.tensors[name]), name)


@dataclass(frozen=True)
class _OperatorAdder:
    """Builder that adds the nodes of a graph and its subgraphs to a view.

    In its methods, `made` maps tensors to the view nodes that produce them, and `scope` is the name prefix for a
    subgraph.
    """

    view: View
    config: MlaConfig
    rounding: str
    groups: dict[str, str]
    reasons: dict[str, str]

    def add(self, graph: Graph, made: dict[str, str], scope: str, inside: str) -> None:
        """Add all nodes of a graph; `inside` is the group of the enclosing control node."""
        macs = _macs(graph, self.rounding, self.config)
        for node in graph:
            key = f"{scope}{node.name}"
            self._node(graph, node, key, macs.get(node.name, 0), self.groups.get(node.name, inside))
            for name in dict.fromkeys(node.inputs):
                self.feed(graph, made, name, key, scope)
            made |= dict.fromkeys(node.outputs, self._bodies(node, key) if node.bodies else key)

    def _node(self, graph: Graph, node: Node, key: str, count: int, group: str) -> None:
        why = self.reasons.get(node.name, "")
        cycles, pj = (Floor(count, 0).cycles(self.config), count * MAC_PJ) if count else (None, None)
        text = (shape_text(graph.tensors[node.outputs[0]]), f"{count:,} MACs" if count else "")
        kind = "control" if node.bodies else "host" if why else "operator"
        add_node(
            self.view,
            key,
            kind,
            title(graph, node),
            node.name,
            *text,
            why,
            group=group,
            cycles=cycles,
            pj=pj,
            op=node.op,
        )

    def _bodies(self, node: Node, key: str) -> str:
        """Add subgraphs between their control node and a merge node; return the merge node."""
        end = f"{key} end"
        add_node(
            self.view, end, "control", f"end of {node.op}", node.name, group=self.view.nodes[key]["group"]
        )
        for body, called in zip(node.bodies, OPS[node.op].bodies, strict=True):
            scope, inner = f"{key}.{called}/", dict.fromkeys(body.inputs, key)
            self.add(body, inner, scope, f"{node.name}: {called}")
            for name in dict.fromkeys(body.outputs):
                self.feed(body, inner, name, end, scope)
            if node.op == "loop":
                size = sum(body.tensors[name].bytes for name in dict.fromkeys(body.outputs))
                add_edge(self.view, end, key, "next iteration", over_bus(self.config, size), back=True)
        return end

    def feed(self, graph: Graph, made: Mapping[str, str], name: str, reader: str, scope: str) -> None:
        """Add the edge from the producer of a tensor to a node; a constant gets a node as its producer."""
        tensor = graph.tensors[name]
        source = made.get(name)
        if source is None:
            source = f"const {scope}{name}"
            if source not in self.view:
                add_node(self.view, source, "constant", "constant", shape_text(tensor), name)
        add_edge(self.view, source, reader, name, over_bus(self.config, tensor.bytes))


def _macs(graph: Graph, rounding: str, config: MlaConfig) -> dict[str, int]:
    """Return, by node name, the MACs that the lowering counts for nodes that become layers."""
    lowered = lower(graph, [(node,) for node in graph if not node.bodies], rounding, config)
    return {layer.name: layer.macs for layer in lowered.layers}


def shape_text(tensor: Tensor) -> str:
    """Return the shape, type and size of a tensor as one line of text."""
    shape = "x".join(str(each) for each in tensor.shape) or "scalar"
    return f"{shape} {tensor.dtype}, {size(tensor.bytes)}"


def title(graph: Graph, node: Node) -> str:
    """Return the operator name with its most important attributes."""
    a = node.attributes
    kernel = a.get("kernel")
    if kernel is None and "conv" in node.op:
        shape = graph.ins(node)[1].shape
        kernel = shape[:2] if node.op == "depthwise_conv2d" else shape[1:3]
    parts = [node.op]
    if kernel:
        parts.append("x".join(str(each) for each in kernel))
    if a.get("strides", (1, 1)) != (1, 1):
        parts.append(f"/{'x'.join(str(each) for each in dict.fromkeys(a['strides']))}")
    if node.op == "clip":
        known = {(0, float("inf")): "relu", (0, 6): "relu6"}
        return known.get((a["low"], a["high"]), f"clip {a['low']:g}..{a['high']:g}")
    return " ".join(parts)


def layers_view(
    graph: Graph, parts: Sequence[GraphPart], streams: Sequence[CommandStream], config: MlaConfig
) -> View:
    """Return the view of the layers on the accelerator, the nodes on the host, and the tensors between them."""
    view = start(graph.name, "layers", config, _LAYER_NOTE)
    inputs: dict[str, str] = {}
    add_inputs(view, graph, inputs)
    adder = _LayerAdder(view, config, iter(streams))
    made = {name: (key,) for name, key in inputs.items()}
    adder.add(parts, made, "", "")
    for name in graph.outputs:
        add_node(view, f"out {name}", "output", "output", shape_text(graph.tensors[name]), name)
        adder.feed(graph, name, f"out {name}", made, "")
    return view


#: View nodes that produce a tensor, or parts of it.
_Made = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _LayerAdder:
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
