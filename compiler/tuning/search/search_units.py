"""The units a search changes: a layer, a pair of layers, or the whole network."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from compiler.ir.graph import Graph
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DramTiming
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.scheduler.initial import tiling_contexts
from compiler.tuning.fusion.channel_streaming import (
    PlanePair,
    PooledPair,
    by_blocks,
    carried,
    pairs_of,
    pooled_pairs,
    with_other_carrier,
)
from compiler.tuning.search.layer_space import LayerSpace
from hw.config import MlaConfig

#: Ways to carry a pair out together that are tried before anything else, and tilings of each kind of a layer.
_PAIRS, _TILINGS = 16, 4

#: Schedules of the layers of a unit, by name.
Choice = dict[str, LayerSchedule]


@dataclass
class SearchUnit:
    """One or two layers, the best choice for them so far, and what else may be tried.

    Parameters
    ----------
    spaces : tuple of LayerSpace
        Of its layers.
    pair : PlanePair, PooledPair or None
        If they may be carried out together.
    best : Choice
        The best so far.
    cycles : int
        What it took, in the network.
    """

    spaces: tuple[LayerSpace, ...]
    pair: PlanePair | PooledPair | None
    best: Choice
    cycles: int
    candidates: Iterator[Choice] = field(init=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Its layers."""
        return tuple(space.layer.name for space in self.spaces)

    def begin(self, rng: random.Random) -> None:
        """Have candidates: those by estimate first, then changes of the best for as long as anybody asks."""
        self.candidates = self._all(rng)

    def measured(self, result: Measurement) -> int:
        """Its cycles in a measurement."""
        return sum({entry.names: entry.cycles for entry in map(result.of, self.names)}.values())

    def _all(self, rng: random.Random) -> Iterator[Choice]:
        if self.pair:
            named = list(zip(self.names, self.spaces, strict=True))
            for fused in islice(self.pair.candidates(), _PAIRS):
                made = zip(self.names, (fused.first, fused.second), self.best.values(), strict=True)
                choice = {
                    name: replace(
                        layer,
                        same_program_as_previous=now.same_program_as_previous,
                        own_counter_tag=now.own_counter_tag,
                    )
                    for name, layer, now in made
                }
                if all(space.allows(choice[name], self.best[name]) for name, space in named):
                    yield choice
        for space in self.spaces:
            name = space.layer.name
            for tiling in (*(each.schedule for each in by_blocks(space)), *_various(space)):
                yield self.best | {name: space.beside(tiling, self.best[name])}
        while True:
            space = rng.choice(self.spaces)
            name = space.layer.name
            yield self.best | {name: space.change(rng, self.best[name])}


def _various(space: LayerSpace) -> Iterator[LayerSchedule]:
    """The best tilings by estimate of each layout and order, all kinds in turn.

    Where the image comes from DRAM so are those of each size of tile: a small first one is there sooner.
    """
    kinds: dict[tuple, list[LayerSchedule]] = {}
    for tiling in space.tilings:
        each = tiling.schedule
        size = 0 if space.spot.x_on_chip else each.rows.bit_length()
        kinds.setdefault(
            (each.fold_kernel_width, each.im2col, each.pixels_per_pass, each.order, size), []
        ).append(each)
    for rank in range(_TILINGS):
        yield from (mine[rank] for mine in kinds.values() if rank < len(mine))


def units_of(
    config: MlaConfig,
    stages: list[LoweredNetwork],
    dram: DramTiming,
    first: Schedule,
    baseline: Measurement,
    rng: random.Random,
    kept: frozenset[str] = frozenset(),
) -> list[SearchUnit]:
    """All units of a network, in order; `kept` are fields of schedules that must not change."""
    out: list[SearchUnit] = []
    for lowered in stages:
        spots = tiling_contexts(config, lowered, dram)
        spaces = [LayerSpace(layer, spot, kept) for layer, spot in zip(lowered.layers, spots, strict=True)]
        pairs = {**pooled_pairs(lowered, spaces), **pairs_of(lowered, spots)}
        number = 0
        while number < len(spaces):
            count = 2 if number in pairs else 1
            mine = tuple(spaces[number : number + count])
            best = {space.layer.name: first.layers[space.layer.name] for space in mine}
            unit = SearchUnit(mine, pairs.get(number), best, 0)
            unit.cycles = unit.measured(baseline)
            unit.begin(rng)
            out.append(unit)
            number += count
    return out


def neighbour_loss(more: Sequence[int], number: int) -> float:
    """Cycles that neighbours in a row lose by a change; of what one gains half counts: its other side changed too."""
    beside = *more[max(number - 1, 0) : number], *more[number + 1 : number + 2]
    return sum(max(each, each / 2) for each in beside)


def with_choices(schedule: Schedule, choices: list[Choice]) -> Schedule:
    """A schedule with choices for some of its layers."""
    layers = dict(schedule.layers)
    for choice in choices:
        layers |= choice
    return replace(schedule, layers=layers)


#: Layers of fewer cycles may count with the one before: a change of tag may hold them up by more than a tenth.
_SMALL = 1000
#: Additions that are tried with another carrier at most.
_MOST = 8

Whole = Callable[[Schedule], Schedule]


def network_mutations(graph: Graph, first: Schedule, baseline: Measurement) -> list[Whole]:
    """What to try: small layers without tags of their own, additions carried by other layers."""
    small = {name for name in first.layers if baseline.layer_entry(name).cycles < _SMALL}
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
