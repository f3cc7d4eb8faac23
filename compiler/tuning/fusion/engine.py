"""The fusion engine: where layers could go together, or apart, other ways to carry them out, by predicted gain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from compiler.cost.learned.model import CycleModel
from compiler.layers.base import Layer
from compiler.layers.lowering_context import image_of
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.scheduler.initial import initial_schedule, tiling_contexts
from compiler.tuning.fusion.channel_streaming import PlanePair, apply, pair_refusal, streaming_pairs
from compiler.tuning.fusion.epilogue_chains import merge, refusal, retile, split
from compiler.tuning.fusion.network_model import NetworkCostModel, NetworkPrediction
from hw.errors import InputError
from hw.isa.enums import DTYPE_BYTES

#: Ways to hand planes over that are looked at for each pair.
_PAIRS = 8
#: A gain of less than this part of a network's cycles is less than predictions can tell.
_WORTH = 0.005


def _changed(schedule: Schedule, names: Sequence[str], **values: bool) -> Schedule:
    changed: dict[str, LayerSchedule] = {name: replace(schedule.layers[name], **values) for name in names}
    return replace(schedule, layers=schedule.layers | changed)


def _compared(
    now: dict[str, NetworkPrediction], then: dict[str, NetworkPrediction]
) -> tuple[NetworkPrediction, float]:
    """Cycles of a network, with the error of those layers that are other than now; and how many fewer they are."""
    cycles = sum(each.cycles for each in then.values())
    changed = [each for name, each in then.items() if now.get(name) != each]
    error = sum(each.error**2 for each in changed) ** 0.5
    return NetworkPrediction(cycles, error), sum(each.cycles for each in now.values()) - cycles


class FusionKind(StrEnum):
    """Ways in which layers can be carried out together."""

    CHAIN = "chain"  # one pass through FUSE
    ON_CHIP = "on_chip"  # the result between them stays in the scratchpad
    PLANES = "planes"  # it is handed over in blocks of channels, depth first
    TURNS = "turns"  # tiles of both in turn, as soon as what they need is there
    PROGRAM = "program"  # one program: no dispatch between them


@dataclass(frozen=True)
class FusionOpportunity:
    """A way to carry out a layer and the one that reads its result together.

    Parameters
    ----------
    kind : Kind
        Which way.
    layers : tuple of str
        Both layers; of a chain that is carried out now, the one that it is.
    done : bool
        It is so now.
    reason : str
        Why it cannot be; empty if it can.
    bytes : int
        Of the tensor between them.
    stage : int
        Of those on the accelerator.
    """

    kind: FusionKind
    layers: tuple[str, ...]
    done: bool
    reason: str
    bytes: int
    stage: int

    @property
    def possible(self) -> bool:
        """Whether it can be."""
        return not self.reason


@dataclass(frozen=True)
class FusionOption:
    """Another way to carry out the layers of a site.

    Parameters
    ----------
    site : Site
        Where.
    what : str
        What would be other than now.
    schedule : Schedule
        Of the whole network then.
    forecast : Forecast
        Its cycles.
    gain : float
        Cycles fewer than now, predicted; below 0: more.
    """

    site: FusionOpportunity
    what: str
    schedule: Schedule
    forecast: NetworkPrediction
    gain: float

    @property
    def optimistic_gain(self) -> float:
        """Its gain if the prediction is off by as much as is to be expected, to the good side."""
        return self.gain + self.forecast.error


class FusionEngine:
    """Walks a network.

    Parameters
    ----------
    prepared : Prepared
        The network.
    conditions : Conditions
        The machine and its memory.
    model : Model
        What predicts cycles.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile, model: CycleModel):
        self.prepared, self.conditions = prepared, conditions
        self.cost_model = NetworkCostModel(prepared, conditions, model)

    def sites(self, schedule: Schedule) -> list[FusionOpportunity]:
        """All sites, with reasons why or why not. Errors as in `sites_of`."""
        return fusion_opportunities(self.prepared, self.conditions, schedule)

    def options(self, schedule: Schedule, sites: Sequence[FusionOpportunity]) -> list[FusionOption]:
        """Other ways for some sites, the greatest predicted gain first; what cannot be predicted is left out."""
        schedule = replace(schedule, programs={})
        now = self.cost_model.predict_layers(schedule)
        out: dict[Schedule | str, FusionOption] = {}
        for site in sites:
            for what, made in self._ways(schedule, site) if site.possible else ():
                try:
                    then = self.cost_model.predict_layers(made)
                except InputError:
                    continue
                option = FusionOption(site, what, made, *_compared(now, then))
                out.setdefault(made.to_json(), option)
        return sorted(out.values(), key=lambda option: -option.gain)

    def choose(self, schedule: Schedule, options: Sequence[FusionOption]) -> Schedule:
        """The option that is predicted best, or the schedule as it is if none is worth a change."""
        best = max(options, key=lambda option: option.gain, default=None)
        worth = best is not None and best.gain > _WORTH * self.cost_model.predict(schedule).cycles
        return best.schedule if best is not None and worth else schedule

    def unfused(self) -> Schedule:
        """Every operator by itself, from DRAM to DRAM.

        Raises
        ------
        InputError
            An operator cannot be carried out by itself.
        """
        layers: dict[str, LayerSchedule] = {}
        for stage in self.prepared.lowered(()):
            layers |= initial_schedule(self.prepared.config, stage, (), self.conditions.dram).layers
        apart = {name: replace(each, on_chip=False, interleave=False) for name, each in layers.items()}
        return Schedule((), apart)

    def combine(self, schedule: Schedule, options: Sequence[FusionOption]) -> Schedule | None:
        """All that promise something and have no layer in common; None if these are fewer than two."""
        layers, taken, count = dict(schedule.layers), set[str](), 0
        for option in options:
            changed = {
                name: mine
                for name, mine in option.schedule.layers.items()
                if mine != schedule.layers.get(name)
            }
            fits = option.schedule.fusions == schedule.fusions and not taken & changed.keys()
            if option.gain > 0 and fits:
                layers |= changed
                taken |= changed.keys() | set(option.site.layers)
                count += 1
        return Schedule(schedule.fusions, layers) if count > 1 else None

    def _ways(self, schedule: Schedule, site: FusionOpportunity) -> Iterator[tuple[str, Schedule]]:
        """What would be other than now, and the schedule of that."""
        stage = self.prepared.lowered(schedule.fusions)[site.stage]
        layers = [layer for name in site.layers for layer in stage.layers if layer.name == name]
        if site.kind is FusionKind.CHAIN:
            yield from self._chains(schedule, site, layers)
        elif site.kind is FusionKind.ON_CHIP:
            what = "through DRAM" if site.done else "stays on chip"
            yield what, _changed(schedule, site.layers[:1], on_chip=not site.done)
        elif site.kind is FusionKind.TURNS:
            yield (
                "one after the other" if site.done else "in turns",
                _changed(schedule, site.layers, interleave=not site.done),
            )
        elif site.kind is FusionKind.PROGRAM:
            what = "programs apart" if site.done else "one program"
            yield what, _changed(schedule, site.layers[1:], same_program_as_previous=not site.done)
        else:
            number = [layer.name for layer in stage.layers].index(site.layers[0])
            yield from self._planes(schedule, site, number)

    def _chains(
        self, schedule: Schedule, site: FusionOpportunity, layers: Sequence[Layer]
    ) -> Iterator[tuple[str, Schedule]]:
        ways = [("one pass", merge(schedule, *layers))] if not site.done else []
        if site.done:
            ways = [(f"split before {node}", fusions) for node, fusions in split(schedule, layers[0])]
        for what, fusions in ways:
            try:
                yield what, retile(self.prepared, self.conditions, schedule, fusions)
            except InputError:  # what is left cannot be carried out
                continue

    def _planes(
        self, schedule: Schedule, site: FusionOpportunity, number: int
    ) -> Iterator[tuple[str, Schedule]]:
        stage = self.prepared.lowered(schedule.fusions)[site.stage]
        if site.done:
            first = initial_schedule(self.prepared.config, stage, schedule.fusions, self.conditions.dram)
            apart = {name: first.layers[name] for name in site.layers}
            yield "whole", replace(schedule, layers=schedule.layers | apart)
            return
        pair: PlanePair = streaming_pairs(
            stage, tiling_contexts(self.prepared.config, stage, self.conditions.dram)
        )[number]
        for fused in islice(pair.candidates(), _PAIRS):
            what = (
                f"{fused.first.stream_channel_blocks} planes, {fused.first.rows} and {fused.second.rows} rows"
            )
            yield what, apply(schedule, pair, fused)


def fusion_opportunities(
    prepared: ModelCompiler, conditions: HardwareProfile, schedule: Schedule
) -> list[FusionOpportunity]:
    """All sites of a network under a schedule, in its order.

    Raises
    ------
    InputError
        The schedule's fusions cannot be carried out.
    """
    out: list[FusionOpportunity] = []
    for number, stage in enumerate(prepared.lowered(schedule.fusions)):
        walk = _Walk(prepared, conditions, schedule, stage, number)
        for layer in stage.layers:
            out += walk.inside(layer)
        for first, second in walk.edges():
            out += walk.between(first, second)
    return out


class _Walk:
    """One stage."""

    def __init__(
        self,
        prepared: ModelCompiler,
        conditions: HardwareProfile,
        schedule: Schedule,
        stage: LoweredNetwork,
        number: int,
    ):
        self.prepared, self.conditions, self.schedule = prepared, conditions, schedule
        self.stage, self.number = stage, number
        self.at = {layer.name: at for at, layer in enumerate(stage.layers)}
        self.contexts = tiling_contexts(prepared.config, stage, conditions.dram)
        self.pairs = streaming_pairs(stage, self.contexts)
        graph = stage.graph
        self.outside = {stage.root(name) for name in (*graph.inputs, *graph.outputs)}

    def inside(self, layer: Layer) -> Iterator[FusionOpportunity]:
        """Chains that are carried out as one layer."""
        if len(layer.nodes) > 1:
            yield FusionOpportunity(FusionKind.CHAIN, (layer.name,), True, "", 0, self.number)

    def edges(self) -> Iterator[tuple[Layer, Layer]]:
        """Layers and those that read their results, each pair once."""
        makers = {self.stage.root(layer.y): layer for layer in self.stage.layers}
        for layer in self.stage.layers:
            before = [makers.get(self.stage.root(name)) for name in layer.inputs]
            for maker in dict.fromkeys(each for each in before if each is not None and each is not layer):
                yield maker, layer

    def between(self, first: Layer, second: Layer) -> Iterator[FusionOpportunity]:
        """All ways for one pair."""
        size, names = self._bytes(first), (first.name, second.name)
        mine, its = (self.schedule.layers[name] for name in names)
        beside = self.at[second.name] == self.at[first.name] + 1
        apart = "" if beside else "other layers come between them"
        why = refusal(self.prepared, self.schedule, self.stage.graph, first, second)
        yield FusionOpportunity(FusionKind.CHAIN, names, False, why, size, self.number)
        why = self._no_room(first, size)
        yield FusionOpportunity(
            FusionKind.ON_CHIP, names, mine.on_chip and not self._crosses(first), why, size, self.number
        )
        why = apart or pair_refusal(self.stage, self.at[first.name]) or self._no_way(first)
        yield FusionOpportunity(
            FusionKind.PLANES, names, bool(mine.stream_channel_blocks), why, size, self.number
        )
        yield FusionOpportunity(
            FusionKind.TURNS, names, mine.interleave and its.interleave, apart, size, self.number
        )
        yield FusionOpportunity(
            FusionKind.PROGRAM, names, its.same_program_as_previous, apart, size, self.number
        )

    def _bytes(self, layer: Layer) -> int:
        image = image_of(self.stage.graph.tensors[self.stage.root(layer.y)])
        return image.h * image.w * image.c * DTYPE_BYTES[image.dtype]

    def _crosses(self, layer: Layer) -> bool:
        return self.stage.root(layer.y) in self.outside

    def _no_room(self, layer: Layer, size: int) -> str:
        if self._crosses(layer):
            return "the result is an output, or goes to the host"
        most = self.prepared.config.sp_bytes
        return "" if size < most else f"{size:,} bytes are more than the scratchpad's {most:,}"

    def _no_way(self, first: Layer) -> str:
        """Why a pair of the right kind cannot hand planes over."""
        pair = self.pairs.get(self.at[first.name])
        return (
            "" if pair and pair.candidates() else "no tiling of both fits the scratchpad and the accumulator"
        )
