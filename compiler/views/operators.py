"""The graph of operators, from the front end to the stages on accelerator and host."""

from collections.abc import Mapping, Sequence

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.lower.lower import lower
from compiler.lower.partition import Part
from compiler.profile.energy import MAC_PJ
from compiler.profile.floors import Floor
from compiler.views.view import View, add_edge, add_node, over_bus, size, start
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
    """Operators, and tensors as edges.

    Parameters
    ----------
    graph : Graph
        What to show.
    stage : str
        What it is called.
    config : MlaConfig
        The machine that cycles are for.
    rounding : str
        Whose rounding, for the lowering that counts multiply-accumulates.
    groups : mapping, optional
        What each node is part of.
    reasons : mapping, optional
        Why nodes run on the host.
    """
    view = start(graph.name, stage, config, _NOTE)
    for name in graph.inputs:
        tensor = graph.tensors[name]
        add_node(view, f"in {name}", "input", "input", shape_of(tensor), name)
    macs, why = _macs(graph, rounding), dict(reasons or {})
    for node in graph:
        kind, group = "host" if node.name in why else "operator", (groups or {}).get(node.name, "")
        count = macs.get(node.name, 0)
        cycles, pj = (Floor(count, 0).cycles(config), count * MAC_PJ) if count else (None, None)
        text = (shape_of(graph.tensors[node.outputs[0]]), f"{count:,} MACs" if count else "")
        add_node(
            view, node.name, kind, title(graph, node), node.name, *text, why.get(node.name, ""), group=group,
            cycles=cycles, pj=pj, op=node.op,
        )  # fmt: skip
        for name in dict.fromkeys(node.inputs):
            _feed(view, graph, config, name, node.name)
    for name in graph.outputs:
        add_node(view, f"out {name}", "output", "output", shape_of(graph.tensors[name]), name)
        _feed(view, graph, config, name, f"out {name}")
    return view


def partition_view(
    graph: Graph, parts: Sequence[Part], reasons: Mapping[str, str], config: MlaConfig, rounding: str
) -> View:
    """The graph with its stages as groups."""
    groups = {
        name: f"stage {number}: {'accelerator' if part.device else 'host'}"
        for number, part in enumerate(parts)
        for name in part.graph.nodes
    }
    return graph_view(graph, "partitioned", config, rounding, groups=groups, reasons=reasons)


def _feed(view: View, graph: Graph, config: MlaConfig, name: str, reader: str) -> None:
    """The edge by which a tensor comes to a node; a constant is a node of its own."""
    tensor, maker = graph.tensors[name], graph.producer(name)
    source = maker.name if maker else f"in {name}"
    if tensor.constant and not maker:
        source = f"const {name}"
        if source not in view:
            add_node(view, source, "constant", "constant", shape_of(tensor), name)
    add_edge(view, source, reader, name, over_bus(config, tensor.bytes))


def _macs(graph: Graph, rounding: str) -> dict[str, int]:
    """Multiply-accumulates of the nodes that have layers; lowering is what knows them."""
    lowered = lower(graph, [(node,) for node in graph], rounding)
    return {layer.nodes[0]: layer.macs for layer in lowered.layers}


def shape_of(tensor: Tensor) -> str:
    """Shape, type and size as a line."""
    shape = "x".join(str(each) for each in tensor.shape) or "scalar"
    return f"{shape} {tensor.dtype}, {size(tensor.bytes)}"


def title(graph: Graph, node: Node) -> str:
    """An operator with what matters most of its attributes."""
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
