"""Units that a search changes: a layer, a pair of layers, or the whole network."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from compiler.initial_schedule.block_streaming import ChannelBlockPair, streaming_pairs
from compiler.initial_schedule.initial import tiling_contexts
from compiler.ir.graph import Graph
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DramTiming
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.epilogue_chains import (
    PooledPair,
    channel_block_tilings,
    movable_additions,
    move_addition,
    pooled_pairs,
)
from compiler.tuning.layer_space import LayerSpace
from compiler.tuning.strategies import STRATEGIES, strategy_of
from hw.config import MlaConfig

#: Number of fused schedules of a pair that are tried first; number of tilings per layout and order of a layer.
_FUSED_CANDIDATES, _TILINGS_PER_VARIANT = 16, 4
#: Number of tilings per layout and order of a layer whose gain is predicted for an order of strategies, and number of
#: random changes that are drawn per candidate.
_EXPECTED_TILINGS, _DRAWS = 16, 16

#: Schedules of the layers of a unit, by layer name; the same as a key of dictionaries.
Choice = dict[str, LayerSchedule]
ChoiceKey = tuple[tuple[str, LayerSchedule], ...]
StrategyRates = Callable[["SearchUnit"], Mapping[str, float]]
ExpectedGains = Callable[["SearchUnit", Sequence[Choice]], Sequence[float]]


@dataclass
class SearchUnit:
    """One or two layers, their best schedules so far, and candidate schedules to try.

    Parameters
    ----------
    spaces : tuple of LayerSpace
        Search spaces of the layers.
    pair : ChannelBlockPair, PooledPair or None
        Fusion of the two layers; None if the unit is a single layer.
    best : Choice
        Best schedules of the layers so far.
    cycles : int
        Cycles of the layers under `best`, measured as part of the network.
    """

    spaces: tuple[LayerSpace, ...]
    pair: ChannelBlockPair | PooledPair | None
    best: Choice
    cycles: int
    candidates: Iterator[Choice] = field(init=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers in the unit."""
        return tuple(space.layer.name for space in self.spaces)

    def start(self, rng: random.Random) -> None:
        """Create the iterator of candidates: fused schedules, tilings, then an endless series of changes to `best`."""
        self.candidates = self._all(rng)

    def cycles_in(self, result: Measurement) -> int:
        """Return the cycles of the unit's layers in a measurement."""
        return sum({entry.names: entry.cycles for entry in map(result.layer_entry, self.names)}.values())

    def strategy_of(self, choice: Choice) -> str | None:
        """Return the strategy by which a choice differs from the best one; None if it does not differ."""
        found = {strategy_of(self.best[name], choice[name]) for name in self.names}
        return next((each for each in STRATEGIES if each in found), None)

    def start_by_strategy(self, rng: random.Random, rates: StrategyRates, gains: ExpectedGains) -> None:
        """Create the iterator of the candidates of `start` and of more tilings, ordered by strategy and expected gain.

        The next candidate is the one with the largest product of its expected gain and of the rate of its strategy.

        Parameters
        ----------
        rng : random.Random
            Random number generator of the search.
        rates : callable
            Function that returns the expected rate of improvements of the strategies to try in the unit. Others are
            tried when there is no candidate of these.
        gains : callable
            Function that returns the expected gain of each of some choices, in cycles.
        """
        self.candidates = self._by_strategy(rng, rates, gains)

    def _by_strategy(
        self, rng: random.Random, rates: StrategyRates, gains: ExpectedGains
    ) -> Iterator[Choice]:
        listed = {_key(choice): choice for choice in self._listed(_EXPECTED_TILINGS)}
        tried, drawn, best = {_key(self.best)}, dict[ChoiceKey, Choice](), self.best
        while True:
            if self.best != best:
                best, drawn = self.best, {}
            drawn |= {_key(choice): choice for choice in islice(self._drawn(rng), _DRAWS)}
            waiting = {key: choice for key, choice in (listed | drawn).items() if key not in tried}
            rate = rates(self)
            known = [
                (rate.get(strategy, 0.0), gain, key)
                for (key, choice), gain in zip(waiting.items(), gains(self, [*waiting.values()]), strict=True)
                if (strategy := self.strategy_of(choice)) is not None
            ]
            if not known:
                yield dict(self.best)
                continue
            *_, key = max(known, key=lambda each: (each[0] * each[1], each[0]))
            tried.add(key)
            yield waiting[key]

    def _all(self, rng: random.Random) -> Iterator[Choice]:
        yield from self._listed(_TILINGS_PER_VARIANT)
        yield from self._drawn(rng)

    def _listed(self, tilings: int) -> Iterator[Choice]:
        if self.pair:
            named = list(zip(self.names, self.spaces, strict=True))
            for fused in islice(self.pair.candidates(), _FUSED_CANDIDATES):
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
            for tiling in (
                *(each.schedule for each in channel_block_tilings(space)),
                *_various(space, tilings),
            ):
                yield self.best | {name: space.with_context(tiling, self.best[name])}

    def _drawn(self, rng: random.Random) -> Iterator[Choice]:
        while True:
            space = rng.choice(self.spaces)
            name = space.layer.name
            yield self.best | {name: space.change(rng, self.best[name])}


def _key(choice: Choice) -> ChoiceKey:
    return tuple(choice.items())


def _various(space: LayerSpace, count: int) -> Iterator[LayerSchedule]:
    """Yield the `count` tilings with the best estimates for each layout and order, alternating between the variants.

    If the image is read from DRAM, tilings whose numbers of rows round to different powers of two are also variants,
    since a small first tile arrives earlier.
    """
    variants: dict[tuple, list[LayerSchedule]] = {}
    for tiling in space.tilings:
        each = tiling.schedule
        size = 0 if space.context.x_on_chip else each.rows.bit_length()
        variants.setdefault(
            (each.fold_kernel_width, each.im2col, each.pixels_per_pass, each.order, size), []
        ).append(each)
    for rank in range(count):
        yield from (tilings[rank] for tilings in variants.values() if rank < len(tilings))


def units_of(
    config: MlaConfig,
    stages: list[LoweredNetwork],
    dram: DramTiming,
    first: Schedule,
    baseline: Measurement,
    rng: random.Random,
    frozen: frozenset[str] = frozenset(),
) -> list[SearchUnit]:
    """Return the search units of a network in execution order; `frozen` names schedule fields that must not change."""
    out: list[SearchUnit] = []
    for lowered in stages:
        contexts = tiling_contexts(config, lowered, dram)
        spaces = [
            LayerSpace(layer, context, frozen)
            for layer, context in zip(lowered.layers, contexts, strict=True)
        ]
        pairs = {**pooled_pairs(lowered, spaces), **streaming_pairs(lowered, contexts)}
        number = 0
        while number < len(spaces):
            count = 2 if number in pairs else 1
            mine = tuple(spaces[number : number + count])
            best = {space.layer.name: first.layers[space.layer.name] for space in mine}
            unit = SearchUnit(mine, pairs.get(number), best, 0)
            unit.cycles = unit.cycles_in(baseline)
            unit.start(rng)
            out.append(unit)
            number += count
    return out


def neighbour_loss(increases: Sequence[int], number: int) -> float:
    """Return the additional cycles of the neighbors of a changed unit.

    Only half of a neighbor's gain counts, since the unit on the other side of the neighbor changed too.

    Parameters
    ----------
    increases : sequence of int
        Increase in the cycles of each unit of the network, in execution order.
    number : int
        Index of the changed unit.
    """
    neighbours = *increases[max(number - 1, 0) : number], *increases[number + 1 : number + 2]
    return sum(max(each, each / 2) for each in neighbours)


def with_choices(schedule: Schedule, choices: list[Choice]) -> Schedule:
    """Return a schedule in which the schedules of some layers are replaced with those in `choices`."""
    layers = dict(schedule.layers)
    for choice in choices:
        layers |= choice
    return replace(schedule, layers=layers)


#: Layers with fewer cycles may share the tag of the previous layer: a tag change may cost over a tenth of their cycles.
_SMALL_LAYER_CYCLES = 1000
#: Maximum number of additions that are tried in the epilogue of another layer.
_MAX_MOVED_ADDITIONS = 8

NetworkMutation = Callable[[Schedule], Schedule]


def network_mutations(graph: Graph, first: Schedule, baseline: Measurement) -> list[NetworkMutation]:
    """Return the mutations of the network to try: shared tags for small layers, additions fused into other layers."""
    small = {name for name in first.layers if baseline.layer_entry(name).cycles < _SMALL_LAYER_CYCLES}
    additions = movable_additions(graph, first.fusions)[-_MAX_MOVED_ADDITIONS:]
    moved = [partial(_move_addition, graph, name) for name in additions]
    return [*moved, partial(_share_tags, small)] if small else list(moved)


def _share_tags(names: set[str], schedule: Schedule) -> Schedule:
    layers = {
        name: replace(layer, own_counter_tag=layer.own_counter_tag and name not in names)
        for name, layer in schedule.layers.items()
    }
    return replace(schedule, layers=layers)


def _move_addition(graph: Graph, addition: str, schedule: Schedule) -> Schedule:
    return replace(schedule, fusions=move_addition(graph, schedule.fusions, addition))
