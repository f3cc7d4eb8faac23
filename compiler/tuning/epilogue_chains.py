"""Merging of layers into chains that FUSE executes in one pass, and splitting of these chains.

A pool after a convolution that computes its result in blocks of channels runs on FUSE while MATRIX computes the next
block. If the sums of a convolution are split by input channels, it can start before the last input block is available.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from compiler.initial_schedule.block_streaming import FusedPair
from compiler.initial_schedule.initial import initial_schedule
from compiler.ir.graph import Graph
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.lowering_context import is_unary
from compiler.layers.pool import PoolLayer
from compiler.lowering.fusion_groups import ANCHORS, has_epilogue
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.layer_space import LayerSpace, Tiling
from compiler.util.tiles import ceil_div
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
    if not has_epilogue(graph.nodes[first.nodes[0]].op):
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


#: Maximum number of channel blocks of a tile; maximum number of tilings considered per layer.
_MAX_BLOCKS, _MAX_TILINGS = 2, 3


def channel_block_tilings(space: LayerSpace) -> list[Tiling]:
    """Return tilings of a convolution by channel blocks, with split or whole sums, fewest row tiles first."""
    layer = space.layer
    if (
        not isinstance(layer, ConvLayer)
        or layer.groups > 1
        or not (space.context.x_on_chip or space.context.y_on_chip)
    ):
        return []
    found = [t for t in space.tilings if t.schedule.order == "channels" and t.schedule.columns <= _MAX_BLOCKS]
    found.sort(key=lambda tiling: (ceil_div(layer.shapes[layer.y].h, tiling.schedule.rows), tiling.estimate))
    deep = ceil_div(layer.weights.shape[3], space.context.config.n)
    return [
        replace(tiling, schedule=replace(tiling.schedule, depth=depth))
        for tiling in found[:_MAX_TILINGS]
        for depth in _depths(deep, tiling.schedule, cut=space.context.x_on_chip)
    ]


def _depths(deep: int, schedule: LayerSchedule, *, cut: bool) -> Iterator[int]:
    """Yield choices for the number of input channel blocks that one command sums."""
    whole = not cut or schedule.fold_kernel_width or schedule.im2col or deep == 1
    yield from (deep,) if whole else dict.fromkeys((ceil_div(deep, 2), deep - 1, ceil_div(deep, 4), deep))


@dataclass(frozen=True)
class PooledPair:
    """Convolution, and a pool that is the only reader of the convolution's result.

    Parameters
    ----------
    first, second : LayerSpace
        Search spaces of the convolution and of the pool.
    """

    first: LayerSpace
    second: LayerSpace

    def candidates(self) -> list[FusedPair]:
        """Return the convolution's tilings by channel blocks, each with an interleaved schedule of the pool."""
        pools = [tiling for tiling in self.second.tilings if tiling.schedule.columns == 1][:1]
        return [
            FusedPair(
                tiling.estimate,
                replace(tiling.schedule, interleave=True),
                replace(pool.schedule, columns=tiling.schedule.columns, interleave=True),
            )
            for tiling in channel_block_tilings(self.first)
            for pool in pools
        ]


def pooled_pairs(lowered: LoweredNetwork, spaces: Sequence[LayerSpace]) -> dict[int, PooledPair]:
    """Return the pairs of convolution and pool by the index of their first layer."""
    out = {}
    for number, (first, second) in enumerate(pairwise(spaces)):
        conv, pool = first.layer, second.layer
        if not isinstance(conv, ConvLayer) or not isinstance(pool, PoolLayer) or pool.x != conv.y:
            continue
        readers = [layer for layer in lowered.layers if conv.y in layer.inputs]
        if len(readers) == 1 and first.context.y_on_chip:
            out[number] = PooledPair(first, second)
    return out


def movable_additions(graph: Graph, fusions: Fusions) -> list[str]:
    """Return the fused additions that could be fused with the producer of their other operand instead."""
    return [name for names in fusions for name in names[1:] if _other(graph, fusions, name)]


def move_addition(graph: Graph, fusions: Fusions, addition: str) -> Fusions:
    """Move an addition, and its successors in the group, to the epilogue of its other operand's producer.

    The fusions are returned unchanged if there is no such producer. The producer that executes the addition runs after
    the other producer. If the producer with the addition takes longer to compute, it hides the
    epilogue and a subsequent pool.
    """
    other = _other(graph, fusions, addition)
    if other is None:
        return fusions
    groups = {names[0]: names for names in fusions}
    mine = next(names for names in fusions if addition in names)
    at = mine.index(addition)
    groups |= {mine[0]: mine[:at], other[0]: other + mine[at:]}
    return tuple(group for group in groups.values() if len(group) > 1)


def _other(graph: Graph, fusions: Fusions, addition: str) -> tuple[str, ...] | None:
    """Return the other group that could execute an addition in its epilogue, or None."""
    node = graph.nodes.get(addition)
    if node is None or node.op != "add":
        return None
    mine = next((names for names in fusions if addition in names), ())
    heads = (_head(graph, operand, fusions) for operand in node.inputs)
    return next((head for head in heads if head and mine and head[0] != mine[0]), None)


def _head(graph: Graph, operand: str, fusions: Fusions) -> tuple[str, ...] | None:
    """Return the group that computes an operand; None if it has other readers or the group supports no epilogue."""
    maker = graph.producer(operand)
    if maker is None or len(graph.consumers(operand)) > 1 or operand in graph.outputs:
        return None
    group = next((names for names in fusions if names[-1] == maker.name), (maker.name,))
    return group if graph.nodes[group[0]].op in ANCHORS else None
