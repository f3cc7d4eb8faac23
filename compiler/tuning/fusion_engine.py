"""Fusion engine: finds opportunities to fuse or separate layers and ranks the options by predicted gain."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, product
from typing import Any

from compiler.codegen.block_streaming import row_stream_obstacle
from compiler.cost.learned_model import CycleModel
from compiler.initial_schedule.block_streaming import (
    AttentionTiling,
    ChannelBlockPair,
    apply,
    streaming_obstacle,
    streaming_pairs,
)
from compiler.initial_schedule.initial import attention_tilings, initial_schedule, tiling_contexts
from compiler.layers.base import Layer
from compiler.layers.lowering_context import image_of
from compiler.layers.matmul import MatmulLayer
from compiler.layers.softmax import SoftmaxLayer
from compiler.layers.tiling_context import TilingContext
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.epilogue_chains import merge, merge_obstacle, pooled_pairs, retile, split
from compiler.tuning.layer_space import LayerSpace, spaces_of
from compiler.tuning.network_cost_model import NetworkCostModel, NetworkPrediction
from compiler.util.tiles import ceil_div
from hw.errors import InputError
from hw.isa.enums import DTYPE_BYTES

#: Maximum number of channel-streaming schedules considered for each pair.
_MAX_PAIR_CANDIDATES = 8
#: Number of expected errors by which a gain must exceed the minimum gain if it is not measured.
CONFIDENCE = 1.0
#: Number of expected errors that are added to the gains of options to be measured; 0 to 3 made little difference.
OPTIMISM = 1.5
#: Maximum number of rounds of the choice of options.
_MAX_ROUNDS = 8
#: Number of tilings of each layer of a pair that are combined.
_BEST_TILINGS = 2
#: Maximum number of tilings of attention that are considered, with different rows of a block.
_MAX_ATTENTION_TILINGS = 6
#: Numbers of tiles of interleaved layers that are considered.
_TILE_COUNTS = (2, 4, 8)
#: Minimum gain as a fraction of a network's cycles.
_MIN_GAIN = 0.001
#: Minimum and maximum number of options that are compiled and simulated at a time, and maximum number of their commands
#: beyond the minimum number of options: 32,768 commands take one to two seconds.
_MIN_SIMULATED, _MAX_SIMULATED, _MAX_COMMANDS = 4, 24, 1 << 15
#: Maximum number of alternatives, times the layers of the network that are predicted for each of them: about four
#: seconds.
_MAX_PREDICTED = 100_000
#: Expected error of a simulated gain, relative to the predicted cycles of the layers that change.
_SIMULATION_ERROR = 0.03


def _changed(schedule: Schedule, names: Sequence[str], **values: Any) -> Schedule:
    changed: dict[str, LayerSchedule] = {name: replace(schedule.layers[name], **values) for name in names}
    return replace(schedule, layers=schedule.layers | changed)


def _difference(base: Schedule, made: Schedule) -> Hashable:
    """Return a key that is equal for schedules that differ from a schedule in the same way."""
    layers = base.layers
    changed = {name: mine for name, mine in made.layers.items() if mine is not layers.get(name)}
    return made.fusions, frozenset(item for item in changed.items() if item[1] != layers.get(item[0]))


def _total(layers: Mapping[str, NetworkPrediction]) -> float:
    return sum(each.cycles for each in layers.values())


def _optimism(option: "FusionOption") -> float:
    """Return the key that sorts options by their gains plus expected errors, largest first."""
    return -(option.gain + OPTIMISM * option.prediction.error)


def _moved(space: LayerSpace, stage: LoweredNetwork, root: str, size: int) -> TilingContext:
    """Return the context of a layer after a tensor of `size` bytes has moved to the scratchpad, or out of it if < 0."""
    context = space.context

    def on_chip(name: str) -> bool:
        return size > 0 if stage.root(name) == root else context.on_chip(name)

    return replace(
        context,
        free=max(context.free - size, 0),
        x_on_chip=on_chip(space.layer.x),
        y_on_chip=on_chip(space.layer.y),
        on_chip=on_chip,
    )


def _tiling_of(space: LayerSpace, count: int) -> LayerSchedule | None:
    """Return the tiling of a layer by rows with a number of tiles and the best estimate; None if there is none."""
    height = space.layer.shapes[space.layer.y].h
    rows = ceil_div(height, count)
    return next(
        (
            each.schedule
            for each in space.tilings
            if each.schedule.order == "rows" and min(each.schedule.rows, height) == rows
        ),
        None,
    )


def _compare(
    now: dict[str, NetworkPrediction], then: dict[str, NetworkPrediction]
) -> tuple[NetworkPrediction, float]:
    """Return the predicted cycles of a changed network, with the error of its changed layers, and the cycles saved."""
    cycles = sum(each.cycles for each in then.values())
    changed = [each for name, each in then.items() if now.get(name) != each]
    error = sum(each.error**2 for each in changed) ** 0.5
    return NetworkPrediction(cycles, error), sum(each.cycles for each in now.values()) - cycles


class FusionKind(StrEnum):
    """Kind of fusion of two layers."""

    CHAIN = "chain"  # one pass through FUSE
    ON_CHIP = "on_chip"  # the intermediate tensor stays in the scratchpad
    CHANNEL_BLOCKS = (
        "channel_blocks"  # the intermediate tensor is streamed in blocks of channels, depth first
    )
    ROW_BLOCKS = "row_blocks"  # scores and softmax of attention are streamed in blocks of rows
    INTERLEAVE = "interleave"  # tiles of both layers are interleaved, as soon as their inputs are ready
    SAME_PROGRAM = "same_program"  # one program, without a dispatch between the layers


@dataclass(frozen=True)
class FusionOpportunity:
    """Possible or impossible fusion of a layer and a layer that reads its result.

    Parameters
    ----------
    kind : FusionKind
        Kind of the fusion.
    layers : tuple of str
        Names of both layers, and of the product that reads the softmax for a stream of blocks of rows; for an existing
        chain, the name of its single layer.
    applied : bool
        True if the current schedule contains this fusion.
    reason : str
        Reason why the fusion is impossible; empty if it is possible.
    bytes : int
        Size of the intermediate tensor.
    stage : int
        Index of the accelerator stage.
    """

    kind: FusionKind
    layers: tuple[str, ...]
    applied: bool
    reason: str
    bytes: int
    stage: int

    @property
    def possible(self) -> bool:
        """True if the fusion is possible."""
        return not self.reason


@dataclass(frozen=True)
class FusionOption:
    """Alternative schedule for the layers of a fusion opportunity.

    Parameters
    ----------
    opportunity : FusionOpportunity
        Opportunity that the option changes.
    description : str
        Short description of the change.
    schedule : Schedule
        Schedule of the whole network with the change.
    prediction : NetworkPrediction
        Predicted cycles of the network under `schedule`.
    gain : float
        Predicted decrease in cycles; negative if they increase.
    programs : tuple or None
        Words of the compiled programs, whose commands were simulated; None if the prediction is that of the layers.
    """

    opportunity: FusionOpportunity
    description: str
    schedule: Schedule
    prediction: NetworkPrediction
    gain: float
    programs: tuple[tuple[int, ...], ...] | None = None

    @property
    def optimistic_gain(self) -> float:
        """Predicted gain plus the expected error of the prediction."""
        return self.gain + self.prediction.error


class FusionEngine:
    """Engine that finds and ranks fusion options of a network.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    model : CycleModel
        Learned cost model that predicts cycles.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile, model: CycleModel):
        self.prepared, self.conditions = prepared, conditions
        self.cost_model = NetworkCostModel(prepared, conditions, model)
        self._known_spaces: dict[int, dict[str, LayerSpace]] = {}
        self._known_tilings: dict[tuple[str, str, int, int], list[LayerSchedule]] = {}

    def opportunities(self, schedule: Schedule) -> list[FusionOpportunity]:
        """Return all fusion opportunities, including impossible ones; raise the errors of `fusion_opportunities`."""
        return fusion_opportunities(self.prepared, self.conditions, schedule)

    def predict(self, schedule: Schedule) -> NetworkPrediction:
        """Predict the cycles of the network under a schedule as for options: by simulation if it compiles.

        Raises
        ------
        InputError
            The fusions of the schedule are not possible.
        """
        prediction = self.cost_model.predict(schedule)
        found = self.cost_model.simulate(schedule) if self.cost_model.simulates else None
        return prediction if found is None else prediction._replace(cycles=found.cycles)

    def options(self, schedule: Schedule, opportunities: Sequence[FusionOpportunity]) -> list[FusionOption]:
        """Return the possible options for some opportunities, largest predicted gain first.

        The options that are most promising by the predictions for their layers are compiled, and their gains are
        predicted anew by simulating the commands. In large networks, the opportunities of the layers with the fewest
        cycles have no options.
        """
        schedule = replace(schedule, programs={})
        now = self.cost_model.predict_layers(schedule)
        found: dict[Hashable, tuple[FusionOpportunity, str, Schedule]] = {}
        for opportunity, alternatives in self._considered(schedule, opportunities, now):
            for description, made in alternatives:
                found.setdefault(_difference(schedule, made), (opportunity, description, made))
        found.pop(_difference(schedule, schedule), None)
        predictions = self.cost_model.predict_many([made for _, _, made in found.values()])
        options = [
            FusionOption(*each, *_compare(now, then))
            for each, then in zip(found.values(), predictions, strict=True)
            if not isinstance(then, InputError)
        ]
        options.sort(key=lambda option: -option.gain)
        return self._simulated(schedule, options)

    def _considered(
        self,
        schedule: Schedule,
        opportunities: Sequence[FusionOpportunity],
        predicted: Mapping[str, NetworkPrediction],
    ) -> list[tuple[FusionOpportunity, list[tuple[str, Schedule]]]]:
        """Return the possible opportunities with their alternatives, without those beyond `_MAX_PREDICTED`."""
        possible = [each for each in opportunities if each.possible]
        cycles = [sum(predicted[name].cycles for name in each.layers) for each in possible]
        left = _MAX_PREDICTED // max(len(schedule.layers), 1)
        found: dict[int, list[tuple[str, Schedule]]] = {}
        for number in sorted(range(len(possible)), key=lambda number: -cycles[number]):
            if left > 0:
                found[number] = list(self._alternatives(schedule, possible[number]))
                left -= len(found[number])
        return [(possible[number], found[number]) for number in sorted(found)]

    def _simulated(self, schedule: Schedule, options: Sequence[FusionOption]) -> list[FusionOption]:
        """Replace the gains of the most promising options by simulated gains; largest gain first."""
        now = self.cost_model.simulate(schedule) if options and self.cost_model.simulates else None
        if now is None:
            return list(options)
        count = max(_MIN_SIMULATED, min(_MAX_SIMULATED, _MAX_COMMANDS // max(now.commands, 1)))
        promising = sorted(options, key=_optimism)[:count]
        simulated: dict[int, FusionOption] = {}
        for option in promising:
            found = self.cost_model.simulate(option.schedule)
            if found is not None:
                prediction = NetworkPrediction(
                    found.cycles, self._simulation_error(schedule, option.schedule)
                )
                gain = now.cycles - found.cycles
                simulated[id(option)] = replace(
                    option, prediction=prediction, gain=gain, programs=found.programs
                )
        return sorted(
            (simulated.get(id(option), option) for option in options), key=lambda option: -option.gain
        )

    def _simulation_error(self, now: Schedule, then: Schedule) -> float:
        """Return the expected error of the difference between the simulated cycles of two schedules."""
        before, after = (self.cost_model.predict_layers(each) for each in (now, then))
        same = {
            name
            for name, mine in now.layers.items()
            if now.fusions == then.fusions and then.layers.get(name) == mine
        }
        return _SIMULATION_ERROR * max(
            sum(each.cycles for name, each in layers.items() if name not in same)
            for layers in (before, after)
        )

    def shortlist(self, options: Sequence[FusionOption], count: int = 3) -> list[FusionOption]:
        """Return the options to measure, in addition to the present schedule.

        Options with simulated gains come first, the largest gain first. Options with equal gains differ only in what
        the simulation excludes, so only one of them is among these, and none without a gain or loss. Without
        simulation, the best prediction comes first, then the options that may be best within the expected errors.
        Options that only join or split programs, which change few cycles, come last.
        """
        minor = [option for option in options if option.opportunity.kind is FusionKind.SAME_PROGRAM]
        major = [option for option in options if option.opportunity.kind is not FusionKind.SAME_PROGRAM]
        distinct = {option.gain: option for option in reversed(major) if option.programs and option.gain}
        chosen = [distinct[gain] for gain in sorted(distinct, reverse=True)]
        if not chosen:
            chosen = sorted(major, key=lambda option: -option.gain)[:1]
        others = sorted(major, key=_optimism), sorted(minor, key=lambda option: -option.gain)
        rest = [option for each in others for option in each if not any(option is one for one in chosen)]
        return [*chosen, *rest][:count]

    def fixed_point(
        self, schedule: Schedule, confidence: float = 0.0, layers: Collection[str] | None = None
    ) -> Schedule:
        """Repeat the choice of options until no option promises a gain, and return the schedule.

        In each round, the best options that share no layers are taken together, if the prediction for all of them is a
        gain, too, else the best one alone. Each taken option may enable others.

        Parameters
        ----------
        schedule : Schedule
            Schedule to start from.
        confidence : float
            Number of expected errors by which the predicted gain of an option must exceed the minimum gain.
        layers : collection of str or None
            Names of the layers that may change; None for all layers.
        """
        for _ in range(_MAX_ROUNDS):
            now = self.predict(schedule).cycles
            sites = self.opportunities(schedule)
            chosen = [site for site in sites if layers is None or set(site.layers) <= set(layers)]
            least = _MIN_GAIN * now
            options = self.options(schedule, chosen)
            simulated = [option for option in options if option.programs is not None]
            worth = [
                option
                for option in simulated or options
                if option.gain - confidence * option.prediction.error > least
            ]
            if not worth:
                break
            whole, best = self.combine(schedule, worth), worth[0].schedule
            if whole is not None and self._faster(whole, best):
                best = whole
            schedule = best
        return schedule

    def _faster(self, first: Schedule, second: Schedule) -> bool:
        """Return True if the first of two schedules is possible and is predicted to be faster than the second."""
        if self.cost_model.simulates:
            one, other = self.cost_model.simulate(first), self.cost_model.simulate(second)
            return one is not None and (other is None or one.cycles < other.cycles)
        joint, single = self.cost_model.predict_many([first, second])
        return not isinstance(joint, InputError) and (
            isinstance(single, InputError) or _total(joint) < _total(single)
        )

    def unfused(self) -> Schedule:
        """Return the schedule without fusion: each operator is a layer with inputs and outputs in DRAM.

        Raises
        ------
        InputError
            An operator cannot be executed separately.
        """
        layers: dict[str, LayerSchedule] = {}
        for stage in self.prepared.lowered(()):
            config, dram = self.prepared.config, self.conditions.dram
            layers |= initial_schedule(config, stage, (), dram, streams=False).layers
        separate = {name: replace(each, on_chip=False, interleave=False) for name, each in layers.items()}
        return Schedule((), separate)

    def combine(self, schedule: Schedule, options: Sequence[FusionOption]) -> Schedule | None:
        """Combine the options that have a gain and share no layers; return None if there are fewer than two."""
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
                taken |= changed.keys() | set(option.opportunity.layers)
                count += 1
        return Schedule(schedule.fusions, layers) if count > 1 else None

    def _alternatives(
        self, schedule: Schedule, opportunity: FusionOpportunity
    ) -> Iterator[tuple[str, Schedule]]:
        """Yield a description and a schedule for each way to apply an opportunity, or to undo it if it is applied."""
        stage = self.prepared.lowered(schedule.fusions)[opportunity.stage]
        layers = [layer for name in opportunity.layers for layer in stage.layers if layer.name == name]
        if opportunity.kind is FusionKind.CHAIN:
            yield from self._chains(schedule, opportunity, layers)
        elif opportunity.kind is FusionKind.ON_CHIP:
            yield from self._placed(schedule, opportunity, stage)
        elif opportunity.kind is FusionKind.ROW_BLOCKS:
            yield from self._row_blocks(schedule, opportunity, stage)
        elif opportunity.kind is FusionKind.INTERLEAVE:
            yield from self._interleaved(schedule, opportunity, stage)
        elif opportunity.kind is FusionKind.SAME_PROGRAM:
            description = "separate programs" if opportunity.applied else "one program"
            yield (
                description,
                _changed(schedule, opportunity.layers[1:], same_program_as_previous=not opportunity.applied),
            )
        else:
            number = [layer.name for layer in stage.layers].index(opportunity.layers[0])
            yield from self._planes(schedule, opportunity, number)

    def _placed(
        self, schedule: Schedule, opportunity: FusionOpportunity, stage: LoweredNetwork
    ) -> Iterator[tuple[str, Schedule]]:
        """Yield the other place of the intermediate tensor, and tilings of both layers for either place."""
        names, other = opportunity.layers, not opportunity.applied
        places = {True: "stays on chip", False: "through DRAM"}
        blocks = schedule.layers[names[0]].stream_row_blocks if other else 0
        moved = _changed(schedule, names[:1], on_chip=other, stream_row_blocks=blocks)
        yield places[other], moved
        spaces = self._spaces(stage)
        root = stage.root(spaces[names[0]].layer.y)
        for base, on_chip in ((schedule, not other), (moved, other)):
            size = 0 if base is schedule else opportunity.bytes if on_chip else -opportunity.bytes
            tilings = [self._best_tilings(spaces[name], stage, root, size) for name in names]
            for both in product(*tilings):
                tiled = {
                    name: spaces[name].with_context(each, base.layers[name])
                    for name, each in zip(names, both, strict=True)
                }
                yield f"{places[on_chip]}, tiled for it", replace(base, layers=base.layers | tiled)

    def _best_tilings(
        self, space: LayerSpace, stage: LoweredNetwork, root: str, size: int
    ) -> list[LayerSchedule]:
        """Return the best tilings of a layer by estimate if a tensor of `size` bytes is moved (see `_moved`)."""
        key = space.layer.name, root, size, id(stage)
        if key not in self._known_tilings:
            moved = LayerSpace(space.layer, _moved(space, stage, root, size)) if size else space
            self._known_tilings[key] = [each.schedule for each in moved.tilings[:_BEST_TILINGS]]
        return self._known_tilings[key]

    def _interleaved(
        self, schedule: Schedule, opportunity: FusionOpportunity, stage: LoweredNetwork
    ) -> Iterator[tuple[str, Schedule]]:
        """Yield the layers interleaved, with the present tilings and with tilings of the same number of tiles."""
        names = opportunity.layers
        if opportunity.applied:
            yield "sequential", _changed(schedule, names, interleave=False)
            return
        yield "interleaved", _changed(schedule, names, interleave=True)
        spaces = self._spaces(stage)
        first, second = (spaces[name] for name in names)
        number = [layer.name for layer in stage.layers].index(names[0])
        pooled = pooled_pairs(stage, list(spaces.values())).get(number)
        pairs = [
            (f"interleaved, {each.first.columns} channel blocks", each.first, each.second)
            for each in (pooled.candidates() if pooled else ())
        ]
        for count in _TILE_COUNTS:
            mine, its = _tiling_of(first, count), _tiling_of(second, count)
            if mine is not None and its is not None:
                pairs.append((f"interleaved, {count} tiles", mine, its))
        for description, *tilings in pairs[:_MAX_PAIR_CANDIDATES]:
            tiled = {
                name: replace(spaces[name].with_context(tiling, schedule.layers[name]), interleave=True)
                for name, tiling in zip(names, tilings, strict=True)
            }
            yield description, replace(schedule, layers=schedule.layers | tiled)

    def _row_blocks(
        self, schedule: Schedule, opportunity: FusionOpportunity, stage: LoweredNetwork
    ) -> Iterator[tuple[str, Schedule]]:
        """Yield attention with streams of blocks of rows, or without them if they are in use."""
        config, dram, names = self.prepared.config, self.conditions.dram, opportunity.layers
        if opportunity.applied:
            first = initial_schedule(config, stage, schedule.fusions, dram, streams=False)
            whole = {name: first.layers[name] for name in names}
            yield "whole tensors", replace(schedule, layers=schedule.layers | whole)
        number = [layer.name for layer in stage.layers].index(names[0])
        known: dict[int, AttentionTiling] = {}
        for tiling in attention_tilings(config, stage, number, dram):
            known.setdefault(tiling.schedules[0].rows, tiling)
        for rows, tiling in islice(known.items(), _MAX_ATTENTION_TILINGS):
            kept = {
                name: replace(
                    each,
                    same_program_as_previous=schedule.layers[name].same_program_as_previous,
                    on_chip=each.on_chip if name != names[2] else schedule.layers[name].on_chip,
                )
                for name, each in zip(names, tiling.schedules, strict=True)
            }
            yield f"blocks of {rows} rows", replace(schedule, layers=schedule.layers | kept)

    def _spaces(self, stage: LoweredNetwork) -> dict[str, LayerSpace]:
        """Return the search spaces of the layers of a stage, by name in order."""
        if id(stage) not in self._known_spaces:  # `prepared` keeps its stages alive, so ids are not reused
            config, dram = self.prepared.config, self.conditions.dram
            self._known_spaces[id(stage)] = spaces_of(config, [stage], dram)
        return self._known_spaces[id(stage)]

    def _chains(
        self, schedule: Schedule, opportunity: FusionOpportunity, layers: Sequence[Layer]
    ) -> Iterator[tuple[str, Schedule]]:
        changes = [("one pass", merge(schedule, *layers))] if not opportunity.applied else []
        if opportunity.applied:
            changes = [(f"split before {node}", fusions) for node, fusions in split(schedule, layers[0])]
        for description, fusions in changes:
            try:
                yield description, retile(self.prepared, self.conditions, schedule, fusions)
            except InputError:  # a remaining layer cannot be executed
                continue

    def _planes(
        self, schedule: Schedule, opportunity: FusionOpportunity, number: int
    ) -> Iterator[tuple[str, Schedule]]:
        stage = self.prepared.lowered(schedule.fusions)[opportunity.stage]
        if opportunity.applied:
            first = initial_schedule(self.prepared.config, stage, schedule.fusions, self.conditions.dram)
            separate = {name: first.layers[name] for name in opportunity.layers}
            yield "whole tensor", replace(schedule, layers=schedule.layers | separate)
            return
        pair: ChannelBlockPair = streaming_pairs(
            stage, tiling_contexts(self.prepared.config, stage, self.conditions.dram)
        )[number]
        for fused in islice(pair.candidates(), _MAX_PAIR_CANDIDATES):
            description = (
                f"{fused.first.stream_channel_blocks} planes, {fused.first.rows} and {fused.second.rows} rows"
            )
            yield description, apply(schedule, pair, fused)


def fusion_opportunities(
    prepared: ModelCompiler, conditions: HardwareProfile, schedule: Schedule
) -> list[FusionOpportunity]:
    """Return all fusion opportunities of a network under a schedule, in layer order.

    Raises
    ------
    InputError
        The fusions of the schedule are not possible.
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
    """Enumerator of the fusion opportunities in one stage."""

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
        """Yield the opportunity to split a layer that is a chain of several nodes."""
        if len(layer.nodes) > 1:
            yield FusionOpportunity(FusionKind.CHAIN, (layer.name,), True, "", 0, self.number)

    def edges(self) -> Iterator[tuple[Layer, Layer]]:
        """Yield each pair of a layer and another layer that reads its result, without duplicates."""
        makers = {self.stage.root(layer.y): layer for layer in self.stage.layers}
        for layer in self.stage.layers:
            before = [makers.get(self.stage.root(name)) for name in layer.inputs]
            for maker in dict.fromkeys(each for each in before if each is not None and each is not layer):
                yield maker, layer

    def between(self, first: Layer, second: Layer) -> Iterator[FusionOpportunity]:
        """Yield the fusion opportunities of one pair of layers, one per kind of fusion."""
        size, names = self._bytes(first), (first.name, second.name)
        mine, its = (self.schedule.layers[name] for name in names)
        adjacent = self.at[second.name] == self.at[first.name] + 1
        apart = "" if adjacent else "the layers are not adjacent"
        why = merge_obstacle(self.prepared, self.schedule, self.stage.graph, first, second)
        yield FusionOpportunity(FusionKind.CHAIN, names, False, why, size, self.number)
        why = self._no_room(first, size)
        yield FusionOpportunity(
            FusionKind.ON_CHIP, names, mine.on_chip and not self._crosses(first), why, size, self.number
        )
        why = apart or streaming_obstacle(self.stage, self.at[first.name]) or self._no_tiling(first)
        yield FusionOpportunity(
            FusionKind.CHANNEL_BLOCKS, names, bool(mine.stream_channel_blocks), why, size, self.number
        )
        if isinstance(first, MatmulLayer) and isinstance(second, SoftmaxLayer):
            yield self._attention(first, second, mine, size)
        yield FusionOpportunity(
            FusionKind.INTERLEAVE, names, mine.interleave and its.interleave, apart, size, self.number
        )
        yield FusionOpportunity(
            FusionKind.SAME_PROGRAM, names, its.same_program_as_previous, apart, size, self.number
        )

    def _attention(self, first: Layer, softmax: Layer, mine: LayerSchedule, size: int) -> FusionOpportunity:
        """Return the opportunity to stream scores, and the softmax of them, in blocks of rows to another product."""
        number = self.at[first.name]
        after = [layer.name for layer in self.stage.layers[number + 2 : number + 3]]
        why = row_stream_obstacle(self.stage, number) or row_stream_obstacle(self.stage, number + 1)
        tilings = (
            () if why else attention_tilings(self.prepared.config, self.stage, number, self.conditions.dram)
        )
        if not why and not tilings:
            why = "no tiling fits the scratchpad and the accumulator"
        applied = bool(mine.stream_row_blocks)
        names = (first.name, softmax.name, *(after if not why else ()))
        return FusionOpportunity(FusionKind.ROW_BLOCKS, names, applied, why, size, self.number)

    def _bytes(self, layer: Layer) -> int:
        image = image_of(self.stage.graph.tensors[self.stage.root(layer.y)])
        return image.h * image.w * image.c * DTYPE_BYTES[image.dtype]

    def _crosses(self, layer: Layer) -> bool:
        return self.stage.root(layer.y) in self.outside

    def _no_room(self, layer: Layer, size: int) -> str:
        if self._crosses(layer):
            return "the intermediate tensor is an output or is read by the host"
        capacity = self.prepared.config.sp_bytes
        return "" if size < capacity else f"{size:,} bytes exceed the scratchpad's {capacity:,}"

    def _no_tiling(self, first: Layer) -> str:
        """Return why no tiling lets a suitable pair of layers stream channel blocks; empty if one does."""
        pair = self.pairs.get(self.at[first.name])
        return (
            "" if pair and pair.candidates() else "no tiling of both fits the scratchpad and the accumulator"
        )
