"""Naive and initial schedules of a network, and selection of the layers whose steps are interleaved."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from hashlib import sha256
from math import inf, prod
from typing import NamedTuple

import numpy as np

from compiler.initial_schedule.block_streaming import (
    AttentionTiler,
    AttentionTiling,
    attentions,
    streaming_pairs,
)
from compiler.layers.base import Drain, Image, Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.elementwise import ElementwiseLayer
from compiler.layers.lowering_context import image_of
from compiler.layers.matmul import MatmulLayer
from compiler.layers.move import MoveLayer, copied_by_fuse, from_dram
from compiler.layers.norm import NormLayer
from compiler.layers.pool import PoolLayer
from compiler.layers.reduce import ReduceLayer
from compiler.layers.registry import kind_of
from compiler.layers.softmax import SoftmaxLayer
from compiler.layers.tile_pipeline import simulate_pipeline
from compiler.layers.tiling_context import LayerContext, TilingContext
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.lru_cache import LruCache
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.enums import DTYPE_BYTES

#: Layer schedule with one tile, a separate program, no prefetching and no interleaving.
PLAIN = LayerSchedule(
    x_buffers=1, w_buffers=1, y_buffers=1, acc_buffers=1, param_buffers=1, prefetch=0, on_chip=False
)


def naive_schedule(stages: Iterable[LoweredNetwork]) -> Schedule:
    """Return the baseline schedule for searches, which executes each operator separately, with all tensors in DRAM.

    Parameters
    ----------
    stages : iterable of LoweredNetwork
        All layers of a model, without fusions.
    """
    return Schedule((), {layer.name: PLAIN for stage in stages for layer in stage.layers})


#: Share of the scratchpad for tensors that stay on chip between layers, and the share that is tried if some of them do
#: not fit; relative gain in estimated cycles from which it is chosen, since little memory remains for tiles.
_RESIDENT, _MORE_RESIDENT, _MIN_RESIDENT_GAIN = 0.6, 0.9, 0.02
#: Cycles below which a layer is made part of the previous layer's program.
_MIN_PROGRAM_CYCLES = 1000
#: Number of tilings of a layer, those with the best estimates, that are simulated by the tile model.
_MAX_SIMULATED = 48
#: Number of cycles above a layer's lower bound per tiling that the tile model prices, so that the compile time remains
#: in proportion to what can be gained; maximum number of priced tilings.
_CYCLES_PER_PRICE, _MAX_PRICED = 40, 128
#: Relative gain in priced cycles, and gain in cycles, from which another tiling than that with the best rough estimate
#: is chosen: the error of the tile model within a layer (`python -m scripts.hpm_error --layers FILE`), and the cycles
#: by which layers of a network overlap.
_MIN_GAIN, _MIN_GAIN_CYCLES = 0.03, 128
#: Assumed cycles before the start of a layer at which LOAD is idle and can load its first weights.
_LOAD_LEAD_CYCLES = 1000.0
#: Layer classes that use only FUSE.
FUSE_ONLY = (ElementwiseLayer, NormLayer, PoolLayer, ReduceLayer, SoftmaxLayer)
#: Minimum cycles of a FUSE-only layer at which interleaving outweighs the memory that its neighbors lose.
_MIN_FUSE_CYCLES = 3000
#: Minimum cycles by which reducing the tiles of a convolution while it runs must be faster by estimate.
_MIN_SAVED_REDUCTION = 100
#: Cycles of FUSE per command besides its points, loss of cycles per additional command (both measured), and maximum
#: share of MATRIX's cycles for which FUSE may work during such a convolution.
_FUSE_COMMAND, _SHORT_COMMAND, _MAX_FUSE_LOAD = 30, 10, 0.9
#: Minimum cycles of a copy within the scratchpad at which it is interleaved with a product.
_MIN_COPY_CYCLES = 400
#: Maximum number of layers before and after a layer whose steps may overlap those of the layer.
_MAX_OVERLAPPED_LAYERS = 2
#: Shares of the free scratchpad and of the accumulator for a layer that uses only FUSE, and for other layers.
_FUSE_ONLY_SHARE, _OTHER_SHARE = (0.3, 0.5), (0.6, 0.25)
#: Relative gain in estimated cycles from which a convolution and a depthwise convolution stream channel blocks.
_MIN_STREAMING_GAIN = 0.05
#: Shares of the weights of several layers that may stay in the scratchpad. Tiles that stay and others alternate, so
#: simple ratios give short loops.
_KEPT_SHARES = (1.0, 3 / 4, 2 / 3, 1 / 2, 1 / 3, 1 / 4)
#: Minimum and maximum cycles of MATRIX for a tile of such weights, and number of buffers for those that do not stay.
_MIN_KEPT_TILE, _MAX_KEPT_TILE, _STREAMED_TILES = 128, 512, 4
#: Maximum number of networks whose tilings are cached.
_MAX_KNOWN_NETWORKS = 8
#: Number of preceding independent layers that may run concurrently with a layer that uses only FUSE.
_MAX_PRECEDING = 3
#: Cycles for which a layer waits for the last results of the layer before it.
_LAYER_START = 150
#: Relative gain, by estimates, from which layers stream blocks of rows: separate layers overlap, too.
_MIN_STREAM_GAIN = 0.15


def initial_schedule(
    config: MlaConfig,
    lowered: LoweredNetwork,
    fusions: tuple[tuple[str, ...], ...],
    dram: DramTiming = DEFAULT_DRAM,
    *,
    streams: bool = True,
) -> Schedule:
    """Return the initial schedule of every layer; without `streams`, no layers stream blocks of rows to each other.

    Raises
    ------
    InputError
        No tiling of a layer fits the machine.
    """
    layers = {}
    for number, (name, (cycles, best)) in enumerate(
        estimates(config, lowered, dram, streams=streams).items()
    ):
        layers[name] = (
            replace(best, same_program_as_previous=True) if number and cycles < _MIN_PROGRAM_CYCLES else best
        )
    return Schedule(fusions, layers)


def estimates(
    config: MlaConfig, lowered: LoweredNetwork, dram: DramTiming = DEFAULT_DRAM, *, streams: bool = True
) -> dict[str, tuple[float, LayerSchedule]]:
    """Return the best tiling of every layer, with its estimated cycles; `streams` as for `initial_schedule`.

    Raises
    ------
    InputError
        No tiling of a layer fits the machine.
    """
    chosen = _streams(config, lowered, dram) if streams else {}
    residents, tilings = _alone(config, lowered, dram, frozenset(chosen))
    found, contexts = list(tilings), _tiling_contexts(residents, dram)
    alone = [cycles for cycles, _ in found]
    streamed: set[int] = set()
    for number, best in chosen.items():
        streamed |= {number, number + 1, number + 2}
        found[number : number + 3] = [(best.cycles / 3, schedule) for schedule in best.schedules]
    for number in _co_scheduled(lowered, alone, streamed):
        context = replace(contexts[number], free=residents.free(number, _MAX_OVERLAPPED_LAYERS))
        context = _memory_share(context, lowered, number, alone)
        try:
            cycles, schedule = _schedule(context, lowered.layers[number])
        except InputError:
            continue  # the tiling of the layer needs all memory
        found[number] = cycles, replace(schedule, interleave=True)
    _stream_channel_blocks(lowered, contexts, found)
    for number in _beside_copies(residents, found):
        cycles, schedule = found[number]
        found[number] = cycles, replace(schedule, interleave=True)
    for number in range(1, len(found)):
        _reduce_in_parts(number, residents, contexts, found)
    for group in residents.same_weights if residents.kept_share else ():
        _keep_weights(group, residents.kept_share, lowered, contexts, found)
    return {layer.name: best for layer, best in zip(lowered.layers, found, strict=True)}


def tiling_contexts(
    config: MlaConfig, lowered: LoweredNetwork, dram: DramTiming = DEFAULT_DRAM
) -> list[TilingContext]:
    """Return the tiling context that each layer has if it is not interleaved with other layers.

    Raises
    ------
    InputError
        No tiling of a layer fits the machine.
    """
    chosen = _streams(config, lowered, dram)
    return _tiling_contexts(_alone(config, lowered, dram, frozenset(chosen))[0], dram)


def _tiling_contexts(residents: "_Residents", dram: DramTiming) -> list[TilingContext]:
    return [_tiling_context(residents, number, dram) for number in range(len(residents.lowered.layers))]


def _tiling_context(residents: "_Residents", number: int, dram: DramTiming) -> TilingContext:
    config, layer = residents.config, residents.lowered.layers[number]
    return TilingContext(
        config,
        residents.free(number),
        config.acc_rows,
        residents.on_chip(layer.x),
        residents.on_chip(layer.y),
        residents.on_chip,
        split_last_tile=residents.awaited(number),
        dram=dram,
        first=not number,
    )


@lru_cache(maxsize=_MAX_KNOWN_NETWORKS)
def _streams(config: MlaConfig, lowered: LoweredNetwork, dram: DramTiming) -> Mapping[int, AttentionTiling]:
    """Return the tilings of the products and softmaxes that stream blocks of rows, by the index of the first layer."""
    out = {}
    for number in attentions(lowered):
        _, tilings = _alone(config, lowered, dram, frozenset())
        separate = sum(cycles for cycles, _ in tilings[number : number + 3]) + 2 * _LAYER_START
        best = next(iter(attention_tilings(config, lowered, number, dram)), None)
        if best is not None and best.cycles < (1 - _MIN_STREAM_GAIN) * separate:
            out[number] = best
    return out


@lru_cache(maxsize=3 * _MAX_KNOWN_NETWORKS)
def _alone(
    config: MlaConfig, lowered: LoweredNetwork, dram: DramTiming, streams: frozenset[int]
) -> tuple["_Residents", Sequence[tuple[float, LayerSchedule]]]:
    """Return the tensors that stay in the scratchpad, and the best tiling of each layer if it is not interleaved.

    Results of layers that stream blocks of rows do not stay in the scratchpad; `streams` contains the indices of the
    first layers of such streams.

    Tensors are evicted to DRAM if a layer has too little memory to run. The results of recent networks are cached,
    since searches ask for the contexts of the same layers again and again.
    """
    known: dict[tuple, tuple[float, LayerSchedule]] = {}
    chosen = _with_share(config, lowered, dram, streams, _RESIDENT, known)
    if chosen[0].complete:
        return chosen
    try:
        more = _with_share(config, lowered, dram, streams, _MORE_RESIDENT, known)
    except InputError:
        return chosen
    before, after = (sum(cycles for cycles, _ in found) for _, found in (chosen, more))
    return more if after < (1 - _MIN_RESIDENT_GAIN) * before else chosen


def _with_share(
    config: MlaConfig,
    lowered: LoweredNetwork,
    dram: DramTiming,
    streams: frozenset[int],
    share: float,
    known: dict[tuple, tuple[float, LayerSchedule]],
) -> tuple["_Residents", Sequence[tuple[float, LayerSchedule]]]:
    """Return the result of `_alone` if tensors that stay in the scratchpad take at most a share of it."""
    residents = _Residents(config, lowered, streams, share)
    found: list[tuple[float, LayerSchedule]] = []
    while len(found) < len(lowered.layers):
        number = len(found)
        try:
            found.append(
                _known_schedule(_tiling_context(residents, number, dram), lowered.layers[number], known)
            )
        except InputError:
            if not residents.evict(number):
                raise
            found = []  # layers that use the evicted tensor need buffers for it
    return residents, found


def attention_tilings(
    config: MlaConfig, lowered: LoweredNetwork, number: int, dram: DramTiming = DEFAULT_DRAM
) -> list[AttentionTiling]:
    """Return the tilings with which a product, a softmax and a product can stream blocks of rows, fastest first.

    Parameters
    ----------
    number : int
        Index of the first of the three layers, an element of `attentions(lowered)`.
    """
    residents, _ = _alone(config, lowered, dram, frozenset(attentions(lowered)))
    first, softmax, second = lowered.layers[number : number + 3]
    assert isinstance(first, MatmulLayer) and isinstance(softmax, SoftmaxLayer)
    assert isinstance(second, MatmulLayer)
    tiler = AttentionTiler(config, dram, (first, softmax, second), residents.on_chip)
    return tiler.tilings(residents.free(number + 1, 1))


def _co_scheduled(
    lowered: LoweredNetwork, cycles: Sequence[float], streamed: Collection[int] = ()
) -> list[int]:
    """Return the indices of the layers to interleave: slow FUSE-only layers, their neighbors and independent layers.

    Parameters
    ----------
    lowered : LoweredNetwork
        Layers of the network or stage.
    cycles : sequence of float
        Estimated cycles of each layer.
    streamed : collection of int
        Indices of the layers that stream blocks of rows to each other and are not interleaved with other layers.
    """
    out: set[int] = set()
    for number, layer in enumerate(lowered.layers):
        slow = isinstance(layer, FUSE_ONLY) and cycles[number] >= _MIN_FUSE_CYCLES
        if slow and number not in streamed:
            first = min(_independent_before(lowered, number), default=number - 1)
            together = range(max(first, 0), min(number + 2, len(lowered.layers)))
            out |= set(together) if len(together) > 1 else set()
    return sorted(out - set(streamed))


def _stream_channel_blocks(
    lowered: LoweredNetwork, contexts: list[TilingContext], found: list[tuple[float, LayerSchedule]]
) -> None:
    """Change the schedules of convolutions whose results do not fit the scratchpad, and of depthwise ones after them.

    The intermediate tensor remains in the scratchpad in blocks of channels, where that is faster by estimate.
    """
    for number, pair in streaming_pairs(lowered, contexts).items():
        alone = found[number : number + 2]
        if contexts[number].y_on_chip or any(schedule.interleave for _, schedule in alone):
            continue
        cycles = sum(each for each, _ in alone)
        for fused in pair.candidates()[:1]:
            if fused.estimate < (1 - _MIN_STREAMING_GAIN) * cycles:
                found[number : number + 2] = (
                    (fused.estimate / 2, fused.first),
                    (fused.estimate / 2, fused.second),
                )


def _beside_copies(
    residents: "_Residents", schedules: Sequence[tuple[float, LayerSchedule]]
) -> Iterator[int]:
    """Yield the indices of copies within the scratchpad and of the layers after them that MATRIX computes.

    Such copies need no buffers, so that their neighbors keep their memory. FUSE would otherwise copy while MATRIX waits
    for room in the accumulator.
    """
    layers = residents.lowered.layers
    for number, layer in enumerate(layers[:-1]):
        after = layers[number + 1]
        if (
            isinstance(layer, MoveLayer)
            and schedules[number][0] >= _MIN_COPY_CYCLES
            and isinstance(after, (ConvLayer, MatmulLayer))
            and not any(
                schedules[each][1].interleave
                for each in (number - 1, number, number + 1, number + 2)
                if 0 <= each < len(layers)
            )
            and copied_by_fuse(residents.config, layer, schedules[number][1], residents.on_chip)
            and residents.lowered.root(layer.y) not in {residents.lowered.root(name) for name in after.inputs}
        ):
            yield from (number, number + 1)


def _reduce_in_parts(
    number: int,
    residents: "_Residents",
    contexts: Sequence[TilingContext],
    found: list[tuple[float, LayerSchedule]],
) -> None:
    """Interleave a reduction over all pixels, such as a global average, with the convolution whose result it reduces.

    FUSE reduces the rows of a tile of the convolution while MATRIX computes the next tile, instead of all rows
    afterwards. The tiles of the convolution become smaller if that saves cycles by estimate.

    Parameters
    ----------
    number : int
        Index of the layer, which changes nothing unless it is such a reduction.
    residents : _Residents
        Tensors that stay in the scratchpad.
    contexts : sequence of TilingContext
        Resources of each layer.
    found : list of (float, LayerSchedule)
        Estimated cycles and schedule of each layer; those of two layers may change.
    """
    before, layer = residents.lowered.layers[number - 1 : number + 1]
    (cycles, conv), (_, whole) = found[number - 1 : number + 1]
    root = residents.lowered.root
    if (
        not isinstance(before, ConvLayer)
        or not isinstance(layer, ReduceLayer)
        or layer.lanes
        or root(layer.x) != root(before.y)
        or not residents.on_chip(layer.x)
        or conv.interleave
        or whole.interleave
    ):
        return
    image, n = before.shapes[before.y], residents.config.n
    pixels, blocks = image.h * image.w, ceil_div(image.c, n)
    if layer.dims != (1, pixels, 1, 1, image.c) or min(conv.width, conv.strip_width) < image.w:
        return
    price, rate = _Prices(contexts[number - 1], before), residents.config.fuse_rate
    now, saved, best = price(conv), float(_MIN_SAVED_REDUCTION), 0
    for rows in cuts(min(conv.rows, image.h)):
        last = image.h % rows or rows
        points, commands = rows * image.w * blocks * rate, blocks + 1
        if 2 * points + commands * _FUSE_COMMAND > _MAX_FUSE_LOAD * before.macs / n**2 * rows / image.h:
            continue  # MATRIX would wait for FUSE
        hidden = (image.h - last) * image.w * blocks * rate
        lost = price(replace(conv, rows=rows)) - now + ceil_div(image.h, rows) * commands * _SHORT_COMMAND
        if hidden - lost > saved:
            saved, best = hidden - lost, rows
    if best:
        found[number - 1] = cycles, replace(conv, rows=best, interleave=True)
        found[number] = found[number][0], replace(whole, depth=best * image.w, interleave=True)


def _independent_before(lowered: LoweredNetwork, number: int) -> list[int]:
    """Return the indices of the layers shortly before layer `number` on which layer `number` does not depend."""
    needed = {lowered.root(name) for name in lowered.layers[number].inputs}
    out = []
    for before in range(number - 1, max(number - 1 - _MAX_PRECEDING, -1), -1):
        layer = lowered.layers[before]
        if lowered.root(layer.y) in needed:
            needed |= {lowered.root(name) for name in layer.inputs}
        else:
            out.append(before)
    return out


def _memory_share(
    context: TilingContext, lowered: LoweredNetwork, number: int, cycles: Sequence[float]
) -> TilingContext:
    """Return the tiling context of an interleaved layer: its memory share and the cycles of FUSE-only neighbors."""
    layers = lowered.layers
    free, rows = _FUSE_ONLY_SHARE if isinstance(layers[number], FUSE_ONLY) else _OTHER_SHARE
    neighbour_cycles = sum(
        cycles[other]
        for other in (number - 1, number + 1)
        if 0 <= other < len(layers) and isinstance(layers[other], FUSE_ONLY)
    )
    return replace(
        context,
        split_last_tile=False,
        alone=False,
        free=int(context.free * free),
        acc_rows=int(context.acc_rows * rows),
        neighbour_cycles=neighbour_cycles,
    )


class _SameWeights(NamedTuple):
    """Layers with the same weights, whose loads would delay them, and the bytes of the weights."""

    layers: tuple[int, ...]
    bytes: int


def _same_weights(config: MlaConfig, lowered: LoweredNetwork) -> list[_SameWeights]:
    """Return groups of layers with so few rows that MATRIX takes less time for a tile of weights than LOAD."""
    groups: dict[tuple, list[int]] = {}
    for number, layer in enumerate(lowered.layers):
        if isinstance(layer, ConvLayer) and layer.groups == 1:
            y = layer.shapes[layer.y]
            if y.h * y.w < config.n:
                data = [weights.tobytes() for weights, _ in layer.summands]
                key = layer.weights.shape, layer.weights.dtype.str, sha256(b"".join(data)).digest()
                groups.setdefault(key, []).append(number)
    out = []
    for numbers in groups.values():
        if len(numbers) > 1:
            out_c, *inner = lowered.layers[numbers[0]].weights.shape  # type: ignore[attr-defined]
            out.append(_SameWeights(tuple(numbers), -(-out_c // config.n) * config.n * prod(inner)))
    return out


def _keep_weights(
    group: _SameWeights,
    share: float,
    lowered: LoweredNetwork,
    contexts: Sequence[TilingContext],
    found: list[tuple[float, LayerSchedule]],
) -> None:
    """Change the schedules of layers with the same weights so that a share of their tiles stays in the scratchpad.

    The tiles take long enough for the sequencer to issue the commands of the next one.
    """
    layers = [number for number in group.layers if not found[number][1].interleave]
    if len(layers) < 2:
        return
    context, layer = contexts[layers[0]], lowered.layers[layers[0]]
    assert isinstance(layer, ConvLayer)
    config, (out_c, *taps, in_c) = context.config, layer.weights.shape
    blocks, k_blocks = -(-out_c // config.n), -(-in_c // config.n)
    deep = prod(taps) * config.tile_cycles
    depth = min(k_blocks, max(_MAX_KEPT_TILE // deep, 1))
    columns = min(blocks, max(_MIN_KEPT_TILE // (deep * depth), 1))
    tiles = -(-blocks // columns) * -(-k_blocks // depth)
    saved, array = share * group.bytes / config.n * context.beat, layer.macs / config.n**2
    for number in layers:
        cycles, schedule = found[number]
        if number != layers[0]:
            cycles = max(cycles - saved, min(cycles, array))
        found[number] = (
            cycles,
            replace(
                schedule,
                columns=columns,
                depth=depth,
                param_blocks=columns * max(schedule.param_blocks // columns, 1),
                w_buffers=min(schedule.w_buffers, _STREAMED_TILES),
                kept_weights=int(share * tiles),
            ),
        )


class _Residents:
    """Tensors that stay in the scratchpad, chosen so that tensors live at the same time fit together.

    The rest of their share is for the weights that several layers use.
    """

    def __init__(self, config: MlaConfig, lowered: LoweredNetwork, streams: Iterable[int], share: float):
        self.config, self.lowered = config, lowered
        graph = lowered.graph
        outside = {lowered.root(name) for name in (*graph.inputs, *graph.outputs)}
        for layer in lowered.layers:
            if isinstance(layer, MoveLayer):
                outside |= {lowered.root(name) for name in from_dram(config, layer)}
        for number in streams:
            outside |= {layer.y for layer in lowered.layers[number : number + 2]}
        self.size: dict[str, int] = {}
        self.life: dict[str, tuple[int, int]] = {}
        for number, layer in enumerate(lowered.layers):
            for name in (*layer.inputs, layer.y):
                root = lowered.root(name)
                first, _ = self.life.get(root, (number, number))
                self.life[root] = (first, number)
                self.size[root] = _bytes(image_of(graph.tensors[root]))
        self.inside: set[str] = set()
        budget = int(config.sp_bytes * share)
        count = len(lowered.layers)
        held = np.zeros(count, np.int64)  # bytes in the scratchpad, by layer
        inner = [root for root in self.life if root not in outside]
        for root in sorted(inner, key=lambda r: (self.size[r], self.life[r])):
            first, last = self.life[root]
            if held[first : last + 1].max() + self.size[root] <= budget:
                self.inside.add(root)
                held[first : last + 1] += self.size[root]
        #: True if all tensors fit that need not be in DRAM.
        self.complete = len(self.inside) == len(inner)
        # Bytes of the tensors whose life has begun at a layer, and of those whose life has ended before it.
        self._begun, self._ended = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
        for root in self.inside:
            first, last = self.life[root]
            self._begun[first] += self.size[root]
            self._ended[last + 1] += self.size[root]
        self.same_weights = _same_weights(config, lowered)
        needed = np.zeros(count)
        for group in self.same_weights:
            needed[group.layers[0] : group.layers[-1] + 1] += group.bytes
        share = next((share for share in _KEPT_SHARES if (held + share * needed <= budget).all()), 0.0)
        self._begun, self._ended = np.cumsum(self._begun), np.cumsum(self._ended)
        #: Share of the weights of several layers that stays in the scratchpad.
        self.kept_share = 0.0
        self._keep(share if self.same_weights else 0.0)

    def _keep(self, share: float) -> None:
        """Add a share to that of the weights that stay in the scratchpad."""
        self.kept_share += share
        for layers, size in self.same_weights:
            self._begun[layers[0] :] += int(share * size)
            self._ended[layers[-1] + 1 :] += int(share * size)

    def evict(self, layer: int) -> bool:
        """Load weights for each layer again or, if no weights stay in the scratchpad, move the largest tensor that is
        live at a layer to DRAM; return False if there is none.
        """
        if self.kept_share:
            self._keep(-self.kept_share)
            return True
        live = [root for root in self.inside if self.life[root][0] <= layer <= self.life[root][1]]
        if live:
            root = max(live, key=lambda root: (self.size[root], root))
            self.inside.remove(root)
            self._begun[self.life[root][0] :] -= self.size[root]
            self._ended[self.life[root][1] + 1 :] -= self.size[root]
        return bool(live)

    def on_chip(self, name: str) -> bool:
        """Return True if a tensor stays in the scratchpad."""
        return self.lowered.root(name) in self.inside

    def awaited(self, number: int) -> bool:
        """Return True if the next layer waits for the whole result, which is in DRAM or is read block by block."""
        layers = self.lowered.layers
        if not self.on_chip(layers[number].y):
            return True
        after = layers[number + 1 : number + 2]
        return any(
            isinstance(each, DepthwiseLayer)
            and self.lowered.root(each.x) == self.lowered.root(layers[number].y)
            for each in after
        )

    def free(self, layer: int, around: int = 0) -> int:
        """Return the scratchpad bytes for the buffers of a layer, except a reserve for the next layer's first weights.

        `around` is the number of layers on each side of the layer that may run at the same time.
        """
        first, last = max(layer - around, 0), min(layer + around, len(self._begun) - 1)
        held = int(self._begun[last] - self._ended[first])
        return int((self.config.sp_bytes - held) * 0.9)


def _bytes(image: Image) -> int:
    return image.h * image.w * image.c * DTYPE_BYTES[image.dtype] + 64


def ranked_tilings(context: TilingContext, layer: Layer) -> list[tuple[float, LayerSchedule]]:
    """Return the distinct tilings of a layer that fit, with their estimated cycles, fastest first.

    For layer kinds whose rough estimate does not model stalls between units, the most promising tilings are simulated
    tile by tile. (Simulating convolutions as well makes a single convolution 1 % faster on the RTL, but whole networks
    slower.)
    """
    found: dict[LayerSchedule, float] = {}
    for cycles, schedule in kind_of(layer).tilings(context, layer):
        found[schedule] = min(cycles, found.get(schedule, cycles))
    rough = sorted(((cycles, schedule) for schedule, cycles in found.items()), key=lambda each: each[0])
    # Only the estimate accounts for layers that are interleaved with this layer.
    if not kind_of(layer).rank_by_tile_model or not context.alone:
        return rough
    price = _Prices(context, layer)
    followed = [((cycles + price(schedule)) / 2, schedule) for cycles, schedule in rough[:_MAX_SIMULATED]]
    followed.sort(key=lambda each: each[0])
    return followed + rough[_MAX_SIMULATED:]


class _Prices:
    """Cycles of a layer under tilings, according to simulations of its tile model."""

    def __init__(self, context: TilingContext, layer: Layer):
        self.context, self.layer, self.model = context, layer, kind_of(layer).tile_model
        self.layer_context = LayerContext(
            context.config, context.dram, context.x_on_chip, context.y_on_chip, context.on_chip
        )

    def __call__(self, schedule: LayerSchedule, limit: float = inf) -> float:
        """Return the cycles, infinite if they exceed the limit."""
        context = self.context
        return simulate_pipeline(
            self.model(self.layer, schedule, self.layer_context),
            context.beat,
            context.dram.chip_latency,
            None if context.first else _LOAD_LEAD_CYCLES,
            last=False,
            fuse_rate=context.config.fuse_rate,
            limit=limit,
        ).total

    def bound(self) -> float:
        """Return a lower bound on the cycles: multiply-accumulates, compulsory traffic, latency of the start."""
        context, layer, n = self.context, self.layer, self.context.config.n
        weights = getattr(layer, "weights", None)
        size = 0 if weights is None else weights.size
        for name in dict.fromkeys((*layer.inputs, layer.y)):
            size += 0 if context.on_chip(name) else _bytes(layer.shapes[name])
        start = context.dram.chip_latency * (context.first + (not context.x_on_chip))
        return max(layer.macs / n**2, size / n * context.beat) + start


def _priced(
    context: TilingContext, layer: Layer, ranked: list[tuple[float, LayerSchedule]]
) -> tuple[float, LayerSchedule]:
    """Return the first tiling, or a tiling whose price is lower by more than the error of the prices.

    Prices take the timing of the memory into account. The estimated cycles are always those of the first tiling.
    """
    price, (cycles, first) = _Prices(context, layer), ranked[0]
    now, bound = price(first), price.bound()
    count = min(int((now - bound) / _CYCLES_PER_PRICE), _MAX_PRICED)
    limit, best = min((1 - _MIN_GAIN) * now, now - _MIN_GAIN_CYCLES), 0
    for at in _mixed_kinds(ranked)[: max(count, 0)]:
        found = max(price(ranked[at][1], limit), bound)
        if found < limit or (found == limit and (not best or at < best)):
            limit, best = found, at
    return cycles, ranked[best][1]


#: Number of tilings of one kind that are priced before those of other kinds, and maximum ratio of their estimates to
#: that of the first tiling.
_OF_ONE_KIND, _MAX_KIND_RATIO = 48, 1.2


def _mixed_kinds(ranked: list[tuple[float, LayerSchedule]]) -> list[int]:
    """Return the order in which the tilings after the first one are priced.

    Tilings that divide or lay out images in the same way are of one kind. They are many, and have similar estimates.
    """
    counts: Counter[tuple[int | bool, ...]] = Counter()
    turns = []
    for at, (cycles, schedule) in enumerate(ranked):
        kind = schedule.pixels_per_pass, schedule.fold_kernel_width, schedule.im2col, schedule.strip_width
        near = cycles <= _MAX_KIND_RATIO * ranked[0][0]
        turns.append((counts[kind] // _OF_ONE_KIND if near else len(ranked), at))
        counts[kind] += 1
    return [at for _, at in sorted(turns) if at]


#: Fields of a layer that contain names of nodes.
_UNUSED = frozenset({"name", "nodes"})
#: Fields of a layer on which its tilings do not depend.
_IRRELEVANT = frozenset({"name", "nodes", "ops", "x", "y", "shapes", "x_zp"})


def _known_schedule(
    context: TilingContext, layer: Layer, known: dict[tuple, tuple[float, LayerSchedule]]
) -> tuple[float, LayerSchedule]:
    """Return the result of `_schedule`, which is the same for layers that differ only in names and constants.

    Layers whose weights have few bits, which MATRIX multiplies at twice the rate, differ from others.
    """
    joins = getattr(layer, "joins_tiles", None)
    names = (layer.x, layer.y, *layer.inputs)
    key: tuple = (type(layer), replace(context, on_chip=bool), joins is not None and joins(context.config))
    key += tuple((layer.shapes[name], context.on_chip(name)) for name in names)
    key += tuple(
        _without_values(getattr(layer, item.name)) for item in fields(layer) if item.name not in _IRRELEVANT
    )
    try:
        hash(key)
    except TypeError:  # a field that cannot be compared
        return _schedule(context, layer)
    if key not in known:
        known[key] = _schedule(context, layer)
    return known[key]


def _without_values(value: object) -> object:
    """Return a field of a layer without the values of its arrays."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str
    if isinstance(value, Drain):
        kind = None if value.residual is None else type(value.residual)
        return kind, value.dtype, value.common_scale, value.table is None
    return value


#: Tilings that were chosen recently: candidates of a compilation, and later compilations, have layers in common.
_chosen = LruCache[tuple[float, LayerSchedule]](16_384)


def _schedule(context: TilingContext, layer: Layer) -> tuple[float, LayerSchedule]:
    """Return the best tiling of a layer and its estimated cycles.

    Raises
    ------
    InputError
        No tiling of the layer fits the machine.
    """
    names = tuple(dict.fromkeys((layer.x, layer.y, *layer.inputs)))
    places = tuple((name, context.on_chip(name)) for name in names)
    key = (replace(context, on_chip=bool), places, _hashable(layer))
    found = _chosen.get(key)
    if found is None:
        _chosen.put(key, found := _chosen_tiling(context, layer))
    return found


def _hashable(value: object) -> Hashable:
    """Return a value that is equal for equal contents of a layer or a component of one."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, sha256(value.tobytes()).digest()
    if is_dataclass(value):
        names = [item.name for item in fields(value) if item.name not in _UNUSED]
        return type(value), tuple(_hashable(getattr(value, name)) for name in names)
    if isinstance(value, Mapping):
        return tuple((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    assert isinstance(value, Hashable)
    return value


def _chosen_tiling(context: TilingContext, layer: Layer) -> tuple[float, LayerSchedule]:
    found = ranked_tilings(context, layer)
    if not found:
        config = context.config
        raise InputError(
            f"layer {layer.name!r} does not fit {config.sp_bytes:,} bytes of scratchpad and {config.acc_bytes:,} bytes "
            "of accumulator with any tiling: raise --sp-limit or --acc-limit, or choose a larger --target"
        )
    return _priced(context, layer, found) if context.alone else found[0]
