"""Bottlenecks of layers, the strategies against each of them, and statistics of which strategy helps where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import TRANSFORMATIONS

#: Transformations (`compiler.tuning.constraints.TRANSFORMATIONS`) of each strategy. A change belongs to the first
#: strategy that has one of its transformations, since a new layout always comes with a new tiling. The strategy "batch"
#: changes no schedule: it is a piece of advice for reports.
STRATEGIES: dict[str, tuple[str, ...]] = {
    "fuse": ("chain", "channel_blocks", "row_blocks", "interleave", "on_chip", "kept_weights"),
    "layout": ("layout", "decomposition"),
    "tiling": ("tiling", "order"),
    "split": ("split_tiles",),
    "prefetch": ("prefetch", "buffers"),
    "kernel": ("scale", "same_program", "counter_tag", "packed_weights", "micro-program"),
    "batch": (),
}
#: Strategies against each bottleneck, the most promising first.
STRATEGY_ORDER: dict[str, tuple[str, ...]] = {
    "array": ("layout", "tiling", "fuse", "split", "prefetch", "kernel"),
    "fill": ("tiling", "layout", "fuse", "prefetch", "split", "kernel"),
    "weight_shift": ("tiling", "batch", "layout", "prefetch", "fuse", "split", "kernel"),
    "banks": ("layout", "tiling", "prefetch", "split", "fuse", "kernel"),
    "bandwidth": ("tiling", "fuse", "batch", "layout", "prefetch", "split", "kernel"),
    "latency": ("prefetch", "split", "tiling", "fuse", "layout", "kernel"),
    "fuse": ("tiling", "split", "kernel", "prefetch", "layout", "fuse"),
    "dispatch": ("tiling", "kernel", "fuse", "prefetch", "layout", "split"),
}
#: A wait for the bus of at most this number of latencies is caused by the latency and not by the bandwidth.
_LATENCIES = 2
#: Number of trials for which the position in the table counts, and maximum number of earlier trials that count.
_TABLE_WEIGHT, _MAX_EARLIER = 2.0, 16


def losses(where: Mapping[str, int], latency: float, ideal: float | None = None) -> dict[str, float]:
    """Return the cycles that each bottleneck costs a layer.

    Parameters
    ----------
    where : dict of str to int
        Cycles of the layer by cause (`compiler.profile.counters.MEANINGS`).
    latency : float
        Latency of the DRAM in cycles: the first program is fetched once, which no schedule avoids.
    ideal : float or None
        Cycles of the layer's multiply-accumulates on the full array; None: all useful cycles are ideal.
    """
    bus, useful = where.get("wait_bus", 0), where.get("useful", 0)
    late = bus <= _LATENCIES * latency
    return {
        "array": max(useful - ideal, 0.0) if ideal is not None else 0.0,
        "fill": where.get("fill_drain", 0),
        "weight_shift": where.get("weight_shift", 0),
        "banks": where.get("wait_weights", 0) + where.get("wait_activations", 0),
        "bandwidth": 0.0 if late else bus,
        "latency": bus if late else 0.0,
        "fuse": where.get("wait_fuse", 0) + where.get("wait_accumulator", 0),
        "dispatch": max(where.get("wait_sequencer", 0) - latency, 0),
    }


def bottleneck_of(where: Mapping[str, int], latency: float, ideal: float | None = None) -> str:
    """Return the bottleneck that costs a layer the most cycles: a key of STRATEGY_ORDER.

    The parameters are those of `losses`. Cycles in which the array does necessary work are no bottleneck, since no
    schedule avoids them.
    """
    lost = losses(where, latency, ideal)
    return max(lost, key=lambda name: lost[name])


def strategy_of(before: LayerSchedule, after: LayerSchedule) -> str | None:
    """Return the strategy by which the schedule of a layer was changed; None if it was not changed."""
    for strategy, transformations in STRATEGIES.items():
        fields = frozenset[str]().union(*(TRANSFORMATIONS[each] for each in transformations))
        if any(getattr(before, name) != getattr(after, name) for name in fields):
            return strategy
    return None


def strategies_between(before: Schedule, after: Schedule) -> str | None:
    """Return the strategies by which two schedules of a network differ, joined by "+"; None if they do not differ."""
    found = {
        strategy_of(before.layers[name], after.layers[name]) for name in before.layers.keys() & after.layers
    }
    if before.fusions != after.fusions:
        found.add("fuse")
    if before.programs != after.programs:
        found.add("kernel")
    return "+".join(name for name in STRATEGIES if name in found) or None


@dataclass
class StrategyRecord:
    """Results of a strategy against a bottleneck.

    Parameters
    ----------
    trials, improvements : int
        Number of layers that were changed by the strategy, and number of those that became faster.
    gain : float
        Sum of the gains of the improvements, relative to the cycles of the layers before.
    """

    trials: int = 0
    improvements: int = 0
    gain: float = 0.0

    @property
    def mean_gain(self) -> float:
        """Mean relative gain of a trial; a trial without an improvement counts as 0."""
        return self.gain / self.trials if self.trials else 0.0


class StrategyStatistics:
    """Contextual bandit: the results of each strategy, with the bottleneck as the context.

    Parameters
    ----------
    earlier : StrategyStatistics or None
        Statistics of earlier searches, of which at most 16 trials of each strategy count.
    """

    def __init__(self, earlier: "StrategyStatistics | None" = None):
        self.records: dict[tuple[str, str], StrategyRecord] = {}
        self.earlier = earlier

    def add(self, bottleneck: str, strategy: str, before: float, after: float) -> None:
        """Count a trial of a strategy on a layer, given the cycles of the layer before and after."""
        record = self.records.setdefault((bottleneck, strategy), StrategyRecord())
        record.trials += 1
        if after < before:
            record.improvements += 1
            record.gain += 1 - after / before

    def rates(self, bottleneck: str) -> dict[str, float]:
        """Return the expected rate of improvements of each strategy against a bottleneck.

        The position of a strategy in STRATEGY_ORDER contributes like two trials with the rate 1 / (1 + position). A
        strategy that fails therefore makes room for the next one.
        """
        return {
            name: self._rate(bottleneck, name, rank) for rank, name in enumerate(STRATEGY_ORDER[bottleneck])
        }

    def order(self, bottleneck: str) -> list[str]:
        """Return the strategies against a bottleneck, the most promising first."""
        rates = self.rates(bottleneck)
        return sorted(rates, key=lambda name: -rates[name])

    def _rate(self, bottleneck: str, strategy: str, rank: int) -> float:
        now = self.records.get((bottleneck, strategy), StrategyRecord())
        earlier = {} if self.earlier is None else self.earlier.records
        old = earlier.get((bottleneck, strategy), StrategyRecord())
        share = min(1.0, _MAX_EARLIER / old.trials) if old.trials else 0.0
        trials = now.trials + share * old.trials
        return (now.improvements + share * old.improvements + _TABLE_WEIGHT / (1 + rank)) / (
            trials + _TABLE_WEIGHT
        )

    def learn(self, trials: Iterable[tuple[Schedule, Result]], latency: float) -> None:
        """Count the strategies in the trials of a network, in chronological order.

        Each trial is compared, layer by layer, with the best earlier one of the same fusions.

        Parameters
        ----------
        trials : iterable of (Schedule, Result)
            Trials under the same conditions.
        latency : float
            Latency of the DRAM in cycles.
        """
        best: dict[tuple, tuple[Schedule, Measurement]] = {}
        for schedule, result in trials:
            if not isinstance(result, Measurement) or not result.valid:
                continue
            known = best.get(tuple(schedule.fusions))
            if known is not None:
                self._compare(known, (schedule, result), latency)
            if known is None or result.cycles < known[1].cycles:
                best[tuple(schedule.fusions)] = schedule, result

    def _compare(
        self, before: tuple[Schedule, Measurement], after: tuple[Schedule, Measurement], latency: float
    ) -> None:
        then = {name: entry for entry in before[1].layers for name in entry.names}
        now: dict[str, LayerCycles] = {name: entry for entry in after[1].layers for name in entry.names}
        for name in before[0].layers.keys() & after[0].layers.keys() & then.keys() & now.keys():
            strategy = strategy_of(before[0].layers[name], after[0].layers[name])
            if strategy is not None and then[name].names == now[name].names:
                self.add(
                    bottleneck_of(then[name].where, latency), strategy, then[name].cycles, now[name].cycles
                )

    def rows(self) -> list[dict[str, object]]:
        """Return one JSON object per bottleneck and strategy that was tried, in the order of STRATEGY_ORDER."""
        keys: Sequence[tuple[str, str]] = [
            (each, name) for each, names in STRATEGY_ORDER.items() for name in names
        ]
        return [
            {
                "bottleneck": key[0],
                "strategy": key[1],
                "trials": record.trials,
                "improvements": record.improvements,
                "mean_gain": record.mean_gain,
            }
            for key in keys
            if (record := self.records.get(key)) is not None
        ]


def learned(
    histories: Iterable[tuple[HardwareProfile, Iterable[tuple[Schedule, Result]]]],
) -> StrategyStatistics:
    """Return the statistics of the strategies in the trials of several networks, given with their conditions."""
    statistics = StrategyStatistics()
    for conditions, trials in histories:
        statistics.learn(trials, conditions.dram.latency)
    return statistics
