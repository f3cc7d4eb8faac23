"""Operators as a graph, for the compiler stages from the front end to the partition into stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.cost.energy import MAC_PJ
from compiler.cost.roofline import Floor
from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.ir.tensor import Tensor
from compiler.lowering.lower import lower
from compiler.lowering.partition import GraphPart
from compiler.visualize.graphs.view import View, add_edge, add_node, over_bus, size, start
from hw.config import MlaConfig

_NOTE = "edges: bytes, and cycles and energy of moving them over the bus once; nodes: multiply-accumulates"


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
    view = start(graph.name, stage, config, _NOTE)
    made: dict[str, str] = {}
    add_inputs(view, graph, made)
    adder = _Adder(view, config, rounding, dict(groups or {}), dict(reasons or {}))
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
class _Adder:
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
