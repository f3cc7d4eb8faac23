"""Chains that FUSE can carry out in one pass: which layers could take the next one along, or be split again."""

from collections.abc import Iterator

from compiler.ir.graph import Graph
from compiler.layers.base import Layer
from compiler.layers.lowering_context import is_unary
from compiler.lowering.fusion_groups import ANCHORS
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import Schedule
from compiler.scheduler.initial import initial_schedule
from hw.errors import InputError

Fusions = tuple[tuple[str, ...], ...]


def merge(schedule: Schedule, first: Layer, second: Layer) -> Fusions:
    """The fusions of a schedule with two layers as one."""
    both = {*first.nodes, *second.nodes}
    rest = tuple(names for names in schedule.fusions if not both & set(names))
    return (*rest, (*first.nodes, *second.nodes))


def split(schedule: Schedule, layer: Layer) -> Iterator[tuple[str, Fusions]]:
    """The fusions with less in one layer: cut before each of its nodes, of which all from that one on are layers."""
    rest = tuple(names for names in schedule.fusions if names[0] not in layer.nodes)
    for at in range(1, len(layer.nodes)):
        yield layer.nodes[at], (*rest, layer.nodes[:at]) if at > 1 else rest


def refusal(prepared: ModelCompiler, schedule: Schedule, graph: Graph, first: Layer, second: Layer) -> str:
    """Why two layers cannot be one; empty if they can."""
    last, node = graph.nodes[first.nodes[-1]], graph.nodes[second.nodes[0]]
    if graph.nodes[first.nodes[0]].op not in ANCHORS:
        return f"{first.ops[0]} has no drain that takes others along"
    if len(second.nodes) > 1 or not _step(graph, node.name):
        return f"{node.op} is no step of a drain"
    name = graph.out(last).name
    if name in graph.outputs:
        return "the result between them is an output of the model"
    readers = len(graph.consumers(name))
    if readers > 1:
        return f"the result between them has {readers} readers"
    try:
        prepared.lowered(merge(schedule, first, second))
    except InputError as error:
        return str(error).removeprefix("schedule: ")
    return ""


def _step(graph: Graph, name: str) -> bool:
    """Whether a node is something that a drain may do: a clip, a function by table, an addition."""
    node = graph.nodes[name]
    return node.op in ("clip", "add") or is_unary(graph, node)


def retile(
    prepared: ModelCompiler, conditions: HardwareProfile, schedule: Schedule, fusions: Fusions
) -> Schedule:
    """A schedule under other fusions: layers that there were before keep theirs, others have their best by estimate.

    Raises
    ------
    InputError
        The fusions cannot be carried out, or a layer does not fit the machine.
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
