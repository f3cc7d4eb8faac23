"""Layers: groups of operators that the machine carries out in one go, with the estimates that schedules go by."""

from collections.abc import Iterator, Sequence

from compiler.codegen.making import Making
from compiler.ir.graph import Graph
from compiler.lower.layer import Layer
from compiler.lower.lower import Lowered
from compiler.lower.partition import Part
from compiler.profile.energy import MAC_PJ
from compiler.schedule.heuristic import estimates
from compiler.views.operators import shape_of, title
from compiler.views.view import View, add_edge, add_node, over_bus, size, start
from hw.config import MlaConfig

_NOTE = (
    "nodes: cycles of the best tiling by the schedule's estimate; edges: bytes, and cycles and energy of moving "
    "them over the bus once, which tensors that stay on the chip are spared"
)


def layers_view(graph: Graph, parts: Sequence[Part], makings: Sequence[Making], config: MlaConfig) -> View:
    """Layers of the accelerator and nodes of the host, and the tensors between them."""
    view = start(graph.name, "layers", config, _NOTE)
    for name in graph.inputs:
        add_node(view, f"in {name}", "input", "input", shape_of(graph.tensors[name]), name)
    made: dict[str, tuple[str, ...]] = {}
    left = iter(makings)
    for number, part in enumerate(parts):
        group = f"stage {number}: {'accelerator' if part.device else 'host'}" if len(parts) > 1 else ""
        if part.device:
            _device(view, next(left).lowered, config, group, made)
        else:
            _host(view, part.graph, config, group, made)
    for name in graph.outputs:
        add_node(view, f"out {name}", "output", "output", shape_of(graph.tensors[name]), name)
        _feed(view, graph, config, name, f"out {name}", made)
    return view


def _device(
    view: View, lowered: Lowered, config: MlaConfig, group: str, made: dict[str, tuple[str, ...]]
) -> None:
    graph, known = lowered.graph, estimates(config, lowered)
    for layer in lowered.layers:
        cycles, schedule = known[layer.name]
        constants = _constants(graph, layer)
        add_node(
            view, layer.name, "layer", " + ".join(title(graph, graph.nodes[name]) for name in layer.nodes),
            layer.name, shape_of(graph.tensors[layer.y]),
            f"{layer.macs:,} MACs" if layer.macs else "",
            f"weights {size(sum(graph.tensors[name].bytes for name in constants))}" if constants else "",
            f"≈ {cycles:,.0f} cycles", "output stays on the chip" if schedule.on_chip else "output to DRAM",
            group=group, cycles=cycles, pj=layer.macs * MAC_PJ, ops=list(layer.ops),
        )  # fmt: skip
    for name in (*graph.outputs, *(name for layer in lowered.layers for name in layer.inputs)):
        root = lowered.root(name)
        made.setdefault(name, tuple(makers(lowered, name)) or made.get(root, (f"in {root}",)))
    for layer in lowered.layers:
        for name in (*dict.fromkeys(layer.inputs), *_constants(graph, layer)):
            _feed(view, graph, config, name, layer.name, made)


def makers(lowered: Lowered, name: str) -> Iterator[str]:
    """Names of the layers that write a tensor, or parts of it."""
    whole = name
    while whole in lowered.views:
        whole = lowered.views[whole]
    exact = [layer.name for layer in lowered.layers if layer.y in (name, whole)]
    root = lowered.root(name)
    yield from exact or (layer.name for layer in lowered.layers if lowered.root(layer.y) == root)


def _constants(graph: Graph, layer: Layer) -> list[str]:
    names = dict.fromkeys(name for node in layer.nodes for name in graph.nodes[node].inputs)
    return [name for name in names if graph.tensors[name].constant]


def _host(view: View, graph: Graph, config: MlaConfig, group: str, made: dict[str, tuple[str, ...]]) -> None:
    for node in graph:
        text = shape_of(graph.tensors[node.outputs[0]])
        add_node(view, node.name, "host", title(graph, node), node.name, text, group=group)
        for name in dict.fromkeys(node.inputs):
            _feed(view, graph, config, name, node.name, made)
        made |= dict.fromkeys(node.outputs, (node.name,))


def _feed(
    view: View, graph: Graph, config: MlaConfig, name: str, reader: str, made: dict[str, tuple[str, ...]]
) -> None:
    tensor = graph.tensors[name]
    sources = made.get(name, (f"in {name}",))
    if tensor.constant:
        sources = (f"const {name}",)
        add_node(view, sources[0], "constant", "constant", shape_of(tensor), name)
    for source in sources:
        add_edge(view, source, reader, name, over_bus(config, tensor.bytes))
