"""Merging of layers into chains that FUSE executes in one pass, and splitting of these chains."""

from collections.abc import Iterator

from compiler.initial_schedule.initial import initial_schedule
from compiler.ir.graph import Graph
from compiler.layers.base import Layer
from compiler.layers.lookup_table import is_unary
from compiler.lowering.fusion_groups import ANCHORS
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import Schedule
from hw.errors import InputError

Fusions = tuple[tuple[str, ...], ...]


def merge(schedule: Schedule, first: Layer, second: Layer) -> Fusions:
    """Return the fusions of a schedule with two layers merged into one."""
    both = {*first.nodes, *second.nodes}
    rest = tuple(names for names in schedule.fusions if not both & set(names))
    return (*rest, (*first.nodes, *second.nodes))


def split(schedule: Schedule, layer: Layer) -> Iterator[tuple[str, Fusions]]:
    """Yield each node at which a layer can be split, with the fusions after the split.

    That node and all later nodes of the layer become separate layers.
    """
    rest = tuple(names for names in schedule.fusions if names[0] not in layer.nodes)
    for at in range(1, len(layer.nodes)):
        yield layer.nodes[at], (*rest, layer.nodes[:at]) if at > 1 else rest


def merge_obstacle(
    prepared: ModelCompiler, schedule: Schedule, graph: Graph, first: Layer, second: Layer
) -> str:
    """Return why two layers cannot be merged; empty if they can."""
    last, node = graph.nodes[first.nodes[-1]], graph.nodes[second.nodes[0]]
    if graph.nodes[first.nodes[0]].op not in ANCHORS:
        return f"{first.ops[0]} has no epilogue that can include other operators"
    if len(second.nodes) > 1 or not _fits_epilogue(graph, node.name):
        return f"{node.op} cannot be part of an epilogue"
    name = graph.out(last).name
    if name in graph.outputs:
        return "the intermediate tensor is an output of the model"
    readers = len(graph.consumers(name))
    if readers > 1:
        return f"the intermediate tensor has {readers} readers"
    try:
        prepared.lowered(merge(schedule, first, second))
    except InputError as error:
        return str(error).removeprefix("schedule: ")
    return ""


def _fits_epilogue(graph: Graph, name: str) -> bool:
    """Return True if an epilogue can include a node: a clip, a table lookup or an addition."""
    node = graph.nodes[name]
    return node.op in ("clip", "add") or is_unary(graph, node)


def retile(
    prepared: ModelCompiler, conditions: HardwareProfile, schedule: Schedule, fusions: Fusions
) -> Schedule:
    """Return a schedule for other fusions, in which unchanged layers keep their schedules.

    Changed layers get the schedules with the fewest estimated cycles.

    Raises
    ------
    InputError
        The fusions are not possible, or a layer does not fit the machine.
    """
    before = {
        layer.name: layer.nodes for stage in prepared.lowered(schedule.fusions) for layer in stage.layers
    }
    layers = {}
    for stage in prepared.lowered(fusions):
        first = initial_schedule(prepared.config, stage, fusions, conditions.dram).layers
        for layer in stage.layers:
            same = before.get(layer.name) == layer.nodes
            layers[layer.name] = schedule.layers[layer.name] if same else first[layer.name]
    return Schedule(fusions, layers)
