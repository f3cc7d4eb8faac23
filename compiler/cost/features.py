"""Features of the learned cost model: layers under schedules as vectors of fixed length."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log, log2
from typing import Any, NamedTuple

from compiler.cost.energy import expected_energy_nj
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer
from compiler.layers.registry import kind_number, kind_of
from compiler.layers.tile_pipeline import PipelineTiming, simulate_pipeline
from compiler.layers.tiling_context import LayerContext
from compiler.lowering.lower import LoweredNetwork
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES

#: Names of the features; a comment describes the features up to it. `estimate`: the larger of the tile
#: model's cycles and `floor`, the lower bound; shares are relative to it; `log_`: natural logarithm.
NAMES = (
    "kind",  # index of the layer kind
    "log_estimate",
    "log_floor",  # estimate and lower bound in cycles
    "floor_share",
    "array_share",
    "fuse_share",
    "load_share",
    "store_share",
    "bus_share",  # cycles of each unit by itself
    "start_share",
    "tail_share",
    "latency_share",  # cycles before the first tile is computed, after the last one, and of the DRAM latency
    "log_tiles",
    "log_tile",
    "commands_per_tile",
    "command_share",  # number of tiles, cycles of a tile, commands
    "log_tile_array",
    "log_tile_fuse",
    "log_tile_load",
    "log_tile_store",  # mean cycles of each unit per tile
    "rows",
    "columns",
    "depth",
    "band_tiles",  # size of a tile, limited to the layer's; tiles per band
    "rows_left",
    "columns_left",
    "depth_left",  # size of the last tile as a share of a full one
    "pixels_per_n",
    "width",  # pixels of a tile over N, columns of the output
    "out_left",
    "in_left",
    "in_whole",
    "out_whole",  # share of used channels in the last block; flags: channels are a multiple of N
    "log_macs_per_byte",
    "kernel",
    "stride",
    "groups",
    "x_buffers",
    "w_buffers",
    "y_buffers",
    "acc_buffers",
    "slots",
    "slot_buffers",
    "order",
    "fold",
    "strips",
    "together",
    "common_scale",
    "ramp",
    "taper",
    "joined",
    "overlap",
    "log_prefetch",
    "planes",
    "counted",
    "x_on_chip",
    "y_on_chip",
    "residual",
    "table",
    "out_bytes",
    "inputs",
    "first",
    "last",
    "before_share",
    "after_share",  # flags of the first and last layer; estimates of the neighbours relative to its own
    "kind_before",
    "kind_after",  # kinds of the neighbours; -1: none
    "turns_before",
    "turns_after",
    "joined_after",  # flags: the neighbours are interleaved, the next layer is in the same program
    "lead_share",
    "own_lead_share",  # cycles for which LOAD is idle at the end of the previous layer, and of this one
    "beat",
    "log_latency",
    "n",
)
#: Features that the energy depends on, in addition to its expected value and the shares of its parts.
_OF_ENERGY = (
    *("kind", "rows", "columns", "depth", "band_tiles", "rows_left", "columns_left", "depth_left"),
    *("pixels_per_n", "width", "out_left", "in_left", "in_whole", "out_whole", "log_macs_per_byte"),
    *("kernel", "stride", "groups", "order", "fold", "strips", "together", "planes"),
    *("x_on_chip", "y_on_chip", "residual", "table", "out_bytes", "inputs", "n"),
)
#: Names of the features of models of the energy.
ENERGY_NAMES = ("log_energy", "array_energy", "fuse_energy", "transfer_energy", *_OF_ENERGY)
_ENERGY_INDICES = tuple(map(NAMES.index, _OF_ENERGY))
#: Share of the scratchpad above which the buffers of a layer are likely to share banks.
_CROWDED_SHARE = 0.5
#: Maximum value of the features that count buffers.
_MAX_FEATURE_SIZE = 64


class FeatureRow(NamedTuple):
    """Features of a layer under a schedule.

    `numbers` are in the order of NAMES. The model learns the ratio of measured cycles to `base`, the estimated cycles.
    On a throttled clock, `numbers` refer to the cycles of the chip's clock, and `base` includes the stalled cycles.
    """

    numbers: list[float]
    base: float
    work: "LayerWork | None" = None

    @property
    def for_energy(self) -> "FeatureRow":
        """Row with the features `ENERGY_NAMES`, whose base is the expected energy in nanojoules."""
        assert self.work is not None
        parts = self.work.energy
        energy = max(sum(parts), 1.0)
        shares = [log(energy), *(part / energy for part in parts)]
        return FeatureRow(shares + [self.numbers[index] for index in _ENERGY_INDICES], energy)


class LayerWork(NamedTuple):
    """Expected work of a layer under a schedule, from which its energy and its bank conflicts are predicted.

    `energy`: energy in nanojoules of array, FUSE and transfers (`compiler.cost.energy`); `shared_banks`: True if
    buffers that are in use at the same time are likely to share banks of the accumulator or of the scratchpad.
    """

    energy: tuple[float, float, float]
    shared_banks: bool


class LayerFeatures:
    """Features of a layer that do not depend on its schedule.

    Parameters
    ----------
    layer : Layer
        Layer to describe.
    config : MlaConfig
        Configuration of the machine.
    """

    def __init__(self, layer: Layer, config: MlaConfig):
        n = config.n
        x, y = layer.shapes[layer.x], layer.shapes[layer.y]
        drain = getattr(layer, "drain", None)
        in_c, out_c, self.width = x.c, y.c, y.w
        #: Output rows, and blocks of output and of input channels.
        self.rows = max(y.h // layer.batch, 1)
        if isinstance(layer, MatmulLayer):
            self.rows, in_c, out_c = layer.size
            self.width = 1
        self.columns, self.depth = -(-out_c // n), -(-in_c // n)
        self.kind, self.macs, self.useful = float(kind_number(layer)), layer.macs, layer.macs / n**2
        weighted = isinstance(layer, (ConvLayer, DepthwiseLayer))
        #: Bytes of the layer's weights, and of each of its tensors.
        self.weights = float(layer.weights.size if weighted else 0)
        if isinstance(layer, ConvLayer):
            work, rows = layer.weight_work(config, depth=self.depth, packed=True), self.weights / n
            self.useful, self.weights = self.useful * work.products, n * work.beats(rows, rows)
        self.tensors = [
            (name, image.h * image.w * image.c * DTYPE_BYTES[image.dtype])
            for name, image in (
                (name, layer.shapes[name]) for name in dict.fromkeys((*layer.inputs, layer.y))
            )
        ]
        self.left = [
            ((out_c - 1) % n + 1) / n,
            ((in_c - 1) % n + 1) / n,
            float(in_c % n == 0),
            float(out_c % n == 0),
        ]
        kernel = layer.weights.shape[1] if weighted else getattr(layer, "kernel", (1, 1))[0]
        self.windows = [
            float(kernel),
            float(getattr(layer, "strides", (1, 1))[0]),
            float(getattr(layer, "groups", 1)),
        ]
        table = getattr(drain or layer, "table", None)
        self.about = [
            float(bool(drain and drain.residual)),
            float(table is not None),
            float(DTYPE_BYTES[y.dtype]),
            float(len(layer.inputs)),
        ]


def row_of(layer: Layer, fixed: LayerFeatures, schedule: LayerSchedule, context: LayerContext) -> FeatureRow:
    """Return the features of a layer under a schedule."""
    found = simulate_pipeline(
        pipeline := kind_of(layer).tile_model(layer, schedule, context),
        context.beat,
        context.dram.chip_latency,
        (context.lead if schedule.prefetch else 0.0) if context.before else None,
        last=not context.after,
        fuse_rate=context.config.fuse_rate,
    )
    n = context.config.n
    size = fixed.weights + sum(each for name, each in fixed.tensors if not context.on_chip(name))
    floor = max(fixed.useful, size / n * context.beat, 1.0)
    base = float(max(found.total, floor))
    numbers = [
        fixed.kind,
        *_cycles(found, base, floor, pipeline.count, context),
        *_tiles(fixed, schedule, n),
        log((1 + fixed.macs) / (1 + size)),
        *fixed.windows,
        *_chosen(schedule),
        float(context.x_on_chip),
        float(context.y_on_chip),
        *fixed.about,
        float(not context.before),
        float(not context.after),
        context.before / base,
        context.after / base,
        float(context.kind_before),
        float(context.kind_after),
        float(context.interleaved_before),
        float(context.interleaved_after),
        float(context.same_program_after),
        context.lead / base,
        found.lead / base,
        context.beat,
        log(1 + context.dram.chip_latency),
        float(n),
    ]
    return FeatureRow(numbers, base * context.dram.stretch, _work(found, schedule, context))


def _work(found: PipelineTiming, schedule: LayerSchedule, context: LayerContext) -> LayerWork:
    config = context.config
    beats = (found.load + found.store) / context.beat
    share = found.sp_rows * config.n / config.sp_bytes
    shared = found.array > 0 and (schedule.acc_buffers > config.acc_banks or share > _CROWDED_SHARE)
    return LayerWork(
        expected_energy_nj(config, found.array, found.fuse / config.fuse_rate, beats), bool(shared)
    )


def _cycles(
    found: PipelineTiming, base: float, floor: float, tiles: int, context: LayerContext
) -> list[float]:
    array, fuse, load, store = found.array, found.fuse, found.load, found.store
    return [
        log(base),
        log(floor),
        floor / base,
        array / base,
        fuse / base,
        load / base,
        store / base,
        (load + store) / base,
        found.start / base,
        found.tail / base,
        context.dram.chip_latency / base,
        log(tiles),
        log(base / tiles),
        found.commands / tiles,
        25 * found.commands / base,
        log(1 + array / tiles),
        log(1 + fuse / tiles),
        log(1 + load / tiles),
        log(1 + store / tiles),
    ]


def _tiles(fixed: LayerFeatures, s: LayerSchedule, n: int) -> list[float]:
    rows, columns, depth = min(s.rows, fixed.rows), min(s.columns, fixed.columns), min(s.depth, fixed.depth)
    return [
        float(rows),
        float(columns),
        float(depth),
        min(s.rows_per_load, fixed.rows) / rows,
        ((fixed.rows - 1) % rows + 1) / rows,
        ((fixed.columns - 1) % columns + 1) / columns,
        ((fixed.depth - 1) % depth + 1) / depth,
        rows * fixed.width / n,
        float(fixed.width),
        *fixed.left,
    ]


def _chosen(s: LayerSchedule) -> list[float]:
    buffers = (s.x_buffers, s.w_buffers, s.y_buffers, s.acc_buffers, s.param_blocks, s.param_buffers)
    return [
        *(float(min(each, _MAX_FEATURE_SIZE)) for each in buffers),
        float(s.order == "rows"),
        float(s.fold_kernel_width),
        float(s.im2col),
        float(s.pixels_per_pass),
        float(s.common_scale),
        float(s.split_first_tile),
        float(s.split_last_tile),
        float(s.same_program_as_previous),
        float(s.interleave),
        log2(1 + s.prefetch),
        float(s.stream_channel_blocks),
        float(s.own_counter_tag),
    ]


#: Number of preceding layers that are simulated to find how far ahead LOAD is.
_PRECEDING_LAYERS = 2


#: Maximum number of stages whose features are cached for all searches.
_MAX_KNOWN_STAGES = 8


class RowMaker:
    """Calculator of the features of a stage's layers, with a cache for later schedules.

    Parameters
    ----------
    stage : LoweredNetwork
        Layers of the stage.
    conditions : HardwareProfile
        Configuration of the machine and timing of its memory.
    """

    def __init__(self, stage: LoweredNetwork, conditions: HardwareProfile):
        self.layers, self.conditions = stage.layers, conditions
        graph = stage.graph
        self._outside = {stage.root(name) for name in (*graph.inputs, *graph.outputs)}
        names = {name for layer in stage.layers for name in (*layer.inputs, layer.y, *layer.shapes)}
        self._root = {name: stage.root(name) for name in names}
        self._tensors = [
            tuple(dict.fromkeys((layer.x, layer.y, *layer.inputs, *layer.shapes))) for layer in stage.layers
        ]
        self._numbers = {layer.name: number for number, layer in enumerate(stage.layers)}
        self._fixed = [LayerFeatures(layer, conditions.config) for layer in stage.layers]
        self._states: dict[tuple, int] = {}
        self._timings: dict[tuple, PipelineTiming] = {}
        self._rows: dict[tuple, FeatureRow] = {}

    def rows(
        self, schedules: Mapping[str, LayerSchedule], only: Sequence[str] | None = None
    ) -> dict[str, FeatureRow]:
        """Return the features of all layers by name, or only of the layers named in `only`."""
        contexts = _Contexts(self, schedules)
        numbers = range(len(self.layers)) if only is None else (self._numbers[name] for name in only)
        return {self.layers[number].name: self._row(number, contexts) for number in numbers}

    def lead(self, number: int, schedules: Mapping[str, LayerSchedule]) -> float:
        """Return the number of cycles that LOAD is idle at the end of the previous layer; 0 for the first layer."""
        return (
            self.timing_after(number - 1, _PRECEDING_LAYERS, _Contexts(self, schedules)).lead
            if number
            else 0.0
        )

    def context(self, number: int, inside: frozenset[str], **neighbours: Any) -> LayerContext:
        """Return the context of a layer; `neighbours` holds the context fields that describe adjacent layers."""
        layer, root, conditions = self.layers[number], self._root, self.conditions
        return LayerContext(
            conditions.config,
            conditions.dram,
            root[layer.x] in inside,
            root[layer.y] in inside,
            lambda name: root[name] in inside,
            **neighbours,
        )

    def inside(self, schedules: Mapping[str, LayerSchedule]) -> frozenset[str]:
        """Return the root tensors that stay on chip under the given schedules."""
        return frozenset(
            {self._root[layer.y] for layer in self.layers if schedules[layer.name].on_chip} - self._outside
        )

    def state(self, number: int, schedules: Mapping[str, LayerSchedule], inside: frozenset[str]) -> int:
        """Return the index of the combination of schedule and tensor locations that determines a layer's timing."""
        root = self._root
        here = tuple(root[name] in inside for name in self._tensors[number])
        return self._states.setdefault((schedules[self.layers[number].name], here), len(self._states))

    def timing_after(self, number: int, predecessors: int, contexts: "_Contexts") -> PipelineTiming:
        """Return the timing of a layer, simulated after the given number of preceding layers."""
        first = max(number - predecessors, 0)
        key = (number, predecessors, *(contexts.state(each) for each in range(first, number + 1)))
        if key not in self._timings:
            context = self.context(number, contexts.inside)
            before = (
                self.timing_after(number - 1, predecessors - 1, contexts).lead
                if predecessors and number
                else None
            )
            layer = self.layers[number]
            pipeline = kind_of(layer).tile_model(layer, contexts.schedules[layer.name], context)
            self._timings[key] = simulate_pipeline(
                pipeline,
                context.beat,
                context.dram.chip_latency,
                before,
                last=False,
                fuse_rate=context.config.fuse_rate,
            )
        return self._timings[key]

    def _row(self, number: int, contexts: "_Contexts") -> FeatureRow:
        layers = self.layers
        first, last = max(number - 1 - _PRECEDING_LAYERS, 0), min(number + 1, len(layers) - 1)
        key = (number, *(contexts.state(each) for each in range(first, last + 1)))
        if key not in self._rows:
            neighbours: dict[str, Any] = {}
            if number:
                neighbours |= {
                    "before": self.timing_after(number - 1, 0, contexts).total,
                    "lead": self.timing_after(number - 1, _PRECEDING_LAYERS, contexts).lead,
                    "kind_before": kind_number(layers[number - 1]),
                    "interleaved_before": contexts.schedules[layers[number - 1].name].interleave,
                }
            if number < last:
                following = contexts.schedules[layers[last].name]
                neighbours |= {
                    "after": self.timing_after(last, 0, contexts).total,
                    "kind_after": kind_number(layers[last]),
                    "interleaved_after": following.interleave,
                    "same_program_after": following.same_program_as_previous,
                }
            context, schedule = (
                self.context(number, contexts.inside, **neighbours),
                contexts.schedules[layers[number].name],
            )
            self._rows[key] = row_of(layers[number], self._fixed[number], schedule, context)
        return self._rows[key]


@lru_cache(maxsize=_MAX_KNOWN_STAGES)
def row_maker(stage: LoweredNetwork, conditions: HardwareProfile) -> RowMaker:
    """Return the calculator of the features of a stage, which all searches of the stage share."""
    return RowMaker(stage, conditions)


class _Contexts:
    """Contexts of the layers of a stage under their schedules."""

    def __init__(self, maker: RowMaker, schedules: Mapping[str, LayerSchedule]):
        self.maker, self.schedules, self.inside = maker, schedules, maker.inside(schedules)
        self._states: dict[int, int] = {}

    def state(self, number: int) -> int:
        """Return the cached result of `RowMaker.state` for a layer."""
        if number not in self._states:
            self._states[number] = self.maker.state(number, self.schedules, self.inside)
        return self._states[number]


def rows_of(
    lowered: LoweredNetwork,
    schedules: Mapping[str, LayerSchedule],
    conditions: HardwareProfile,
    only: Sequence[str] | None = None,
) -> dict[str, FeatureRow]:
    """Return the features of a stage's layers by name, or only of the layers named in `only`."""
    return RowMaker(lowered, conditions).rows(schedules, only)
