"""Changes of a whole network at once, which no layer's own cycles can judge."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from compiler.ir.graph import Graph
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.fusion.residual_add import carried, with_other_carrier

#: Layers of fewer cycles may count with the one before: a change of tag may hold them up by more than a tenth.
_SMALL = 1000
#: Additions that are tried with another carrier at most.
_MOST = 8

Whole = Callable[[Schedule], Schedule]


def network_mutations(graph: Graph, first: Schedule, baseline: Measurement) -> list[Whole]:
    """What to try: small layers without tags of their own, additions carried by other layers."""
    small = {name for name in first.layers if baseline.of(name).cycles < _SMALL}
    moved = [partial(_carried_otherwise, graph, name) for name in carried(graph, first.fusions)[-_MOST:]]
    return [*moved, partial(_uncounted, small)] if small else list(moved)


def _uncounted(names: set[str], schedule: Schedule) -> Schedule:
    layers = {
        name: replace(layer, own_counter_tag=layer.own_counter_tag and name not in names)
        for name, layer in schedule.layers.items()
    }
    return replace(schedule, layers=layers)


def _carried_otherwise(graph: Graph, addition: str, schedule: Schedule) -> Schedule:
    return replace(schedule, fusions=with_other_carrier(graph, schedule.fusions, addition))
