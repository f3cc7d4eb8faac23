"""Search space of a layer: every tiling that fits, and changes to single fields."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from compiler.codegen.weight_formats import may_pack
from compiler.initial_schedule.initial import ranked_tilings, tiling_contexts
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.tiling_context import TilingContext
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DramTiming
from compiler.schedule.schedule import LayerSchedule
from hw.config import MlaConfig

#: Choices for the number of steps by which the first weights are loaded ahead.
_PREFETCH = (0, 1, 4, 16, 64, 256)
#: Fields that count buffers, with their minimum and maximum.
_BUFFERS = {
    "x_buffers": (1, 16),
    "w_buffers": (1, 64),
    "y_buffers": (1, 8),
    "acc_buffers": (1, 8),
    "param_buffers": (1, 4),
}
_SIZES = ("rows", "rows_per_load", "columns", "depth", "width", "param_blocks")
_MAX_SIZE = 1 << 16
#: Half of the draws choose uniformly among this number of best tilings, the other half among all.
_BEST_TILINGS = 16
#: Maximum number of stages whose search spaces are cached.
_MAX_KNOWN_NETWORKS = 8

#: Fields that describe how a layer is executed relative to its neighbors.
_CONTEXT_FIELDS = (
    "prefetch",
    "same_program_as_previous",
    "interleave",
    "on_chip",
    "own_counter_tag",
    "stream_row_blocks",
)

Change = Callable[[random.Random, LayerSchedule], LayerSchedule]


@dataclass(frozen=True)
class Tiling:
    """Layer schedule with the static compiler's estimate of its cycles."""

    estimate: float
    schedule: LayerSchedule


class LayerSpace:
    """Search space of the schedules of one layer.

    Parameters
    ----------
    layer : Layer
        Layer whose schedules are searched.
    context : TilingContext
        Resources available to the layer: free memory, location of its tensors.
    frozen : frozenset of str
        Fields of the layer's schedule that must not change.
    """

    def __init__(self, layer: Layer, context: TilingContext, frozen: frozenset[str] = frozenset()):
        self.layer, self.context, self.frozen = layer, context, frozen

    @cached_property
    def tilings(self) -> list[Tiling]:
        """Tilings that fit the memories, fewest estimated cycles first, without duplicates."""
        return [Tiling(cycles, schedule) for cycles, schedule in ranked_tilings(self.context, self.layer)]

    def draw(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """Return a random tiling; frozen fields and fields that concern neighboring layers keep their values."""
        if not self.tilings:
            return schedule
        among = self.tilings[:_BEST_TILINGS] if rng.random() < 0.5 else self.tilings
        return self.with_context(rng.choice(among).schedule, schedule)

    def with_context(self, tiling: LayerSchedule, schedule: LayerSchedule) -> LayerSchedule:
        """Return a tiling with the fields that are frozen or concern neighboring layers copied from a schedule."""
        return replace(tiling, **{name: getattr(schedule, name) for name in (*_CONTEXT_FIELDS, *self.frozen)})

    def allows(self, schedule: LayerSchedule, now: LayerSchedule) -> bool:
        """Return True if all frozen fields have the same values as in the current schedule `now`."""
        return all(getattr(schedule, name) == getattr(now, name) for name in self.frozen)

    def change(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """Return a schedule with one random change."""
        changed = rng.choice(self._changes)(rng, schedule)
        return replace(changed, **{name: getattr(schedule, name) for name in self.frozen})

    @cached_property
    def _changes(self) -> list[Change]:
        """Functions that make a random change, for this type of layer."""
        out: list[Change] = [
            _prefetch,
            _flip("same_program_as_previous"),
            _flip("interleave"),
            _flip("on_chip"),
            _flip("own_counter_tag"),
            self.draw,
        ]
        if isinstance(self.layer, (ConvLayer, DepthwiseLayer)):
            out += [_buffers(name) for name in _BUFFERS] + [_size(name) for name in _SIZES]
            out += [_flip(name) for name in ("split_first_tile", "split_last_tile")] + [_order, self.draw]
            if self.layer.drain.common_scale:
                out.append(_flip("common_scale"))
            weights = self.layer.weights
            if weights.dtype.itemsize == 1 and may_pack(
                self.context.config, np.ascontiguousarray(weights).reshape(-1).view(np.uint8)
            ):
                out.append(_flip("packed_weights"))
        else:
            out += [
                _size("rows"),
                _size("columns"),
                _size("depth"),
                _buffers("x_buffers"),
                _buffers("y_buffers"),
            ]
        return out


def spaces_of(
    config: MlaConfig, lowered: list[LoweredNetwork], dram: DramTiming, frozen: frozenset[str] = frozenset()
) -> dict[str, LayerSpace]:
    """Return the search space of each layer by name, for all stages of a network; `frozen` as in `LayerSpace`."""
    return {name: space for stage in lowered for name, space in _spaces(config, stage, dram, frozen).items()}


@lru_cache(maxsize=_MAX_KNOWN_NETWORKS)
def _spaces(
    config: MlaConfig, stage: LoweredNetwork, dram: DramTiming, frozen: frozenset[str]
) -> dict[str, LayerSpace]:
    """Return the search space of each layer of a stage; recent ones are cached, since each method asks for them."""
    contexts = tiling_contexts(config, stage, dram)
    return {
        layer.name: LayerSpace(layer, context, frozen)
        for layer, context in zip(stage.layers, contexts, strict=True)
    }


def _prefetch(rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
    return replace(schedule, prefetch=rng.choice([n for n in _PREFETCH if n != schedule.prefetch]))


def _order(_rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
    return replace(schedule, order="channels" if schedule.order == "rows" else "rows")


def _flip(name: str) -> Change:
    return lambda _rng, schedule: replace(schedule, **{name: not getattr(schedule, name)})


def _buffers(name: str) -> Change:
    minimum, maximum = _BUFFERS[name]

    def change(rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        value = getattr(schedule, name)
        others = {value - 1, value + 1, value * 2, value // 2} - {value}
        return replace(
            schedule, **{name: rng.choice([v for v in sorted(others) if minimum <= v <= maximum] or [value])}
        )

    return change


def _size(name: str) -> Change:
    def change(rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        value = getattr(schedule, name)
        others = {value // 2, value * 2, value - 1, value + 1} - {value}
        return replace(
            schedule, **{name: rng.choice([v for v in sorted(others) if 1 <= v <= _MAX_SIZE] or [value])}
        )

    return change
