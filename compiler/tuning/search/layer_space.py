"""The schedules a layer may have: every tiling that fits, and changes of single fields."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.tiling_context import TilingContext
from compiler.options import DramTiming
from compiler.schedule.schedule import LayerSchedule
from compiler.scheduler.initial import ranked_tilings, tiling_contexts
from hw.config import MlaConfig

#: Steps ahead that the first weights may come.
_PREFETCH = (0, 1, 4, 16, 64, 256)
#: Fields of counts of buffers, and their least and most.
_BUFFERS = {
    "x_buffers": (1, 16),
    "w_buffers": (1, 64),
    "y_buffers": (1, 8),
    "acc_buffers": (1, 8),
    "param_buffers": (1, 4),
}
_SIZES = ("rows", "rows_per_load", "columns", "depth", "width", "param_blocks")
_MOST_SIZE = 1 << 16
#: Tilings are drawn from among so many of the best with equal chance, in half of the draws.
_BEST = 16

#: What says how a layer goes with its neighbours.
_BESIDE = ("prefetch", "same_program_as_previous", "interleave", "on_chip", "own_counter_tag")

Change = Callable[[random.Random, LayerSchedule], LayerSchedule]


@dataclass(frozen=True)
class Tiling:
    """A way to cut a layer, with the static compiler's estimate of its cycles."""

    estimate: float
    schedule: LayerSchedule


class LayerSpace:
    """The schedules of one layer.

    Parameters
    ----------
    layer : Layer
        Which.
    context : Spot
        What it finds: free memory, where its tensors are.
    frozen : frozenset of str
        Fields of its schedule that must not change.
    """

    def __init__(self, layer: Layer, context: TilingContext, frozen: frozenset[str] = frozenset()):
        self.layer, self.context, self.frozen = layer, context, frozen

    @cached_property
    def tilings(self) -> list[Tiling]:
        """All that fit by the static compiler's reckoning, best first, each once."""
        return [Tiling(cycles, schedule) for cycles, schedule in ranked_tilings(self.context, self.layer)]

    def draw(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """A tiling at random; what says how the layer goes with its neighbours stays."""
        if not self.tilings:
            return schedule
        among = self.tilings[:_BEST] if rng.random() < 0.5 else self.tilings
        return self.with_context(rng.choice(among).schedule, schedule)

    def with_context(self, tiling: LayerSchedule, schedule: LayerSchedule) -> LayerSchedule:
        """A tiling with those fields of a schedule that log how the layer goes with others, or must not change."""
        return replace(tiling, **{name: getattr(schedule, name) for name in (*_BESIDE, *self.frozen)})

    def allows(self, schedule: LayerSchedule, now: LayerSchedule) -> bool:
        """Whether nothing is other than now that must not change."""
        return all(getattr(schedule, name) == getattr(now, name) for name in self.frozen)

    def change(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """A schedule that differs in one thing."""
        changed = rng.choice(self._changes)(rng, schedule)
        return replace(changed, **{name: getattr(schedule, name) for name in self.frozen})

    @cached_property
    def _changes(self) -> list[Change]:
        """What can be changed, by kind of layer."""
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
    config: MlaConfig, lowered: list, dram: DramTiming, frozen: frozenset[str] = frozenset()
) -> dict[str, LayerSpace]:
    """The space of each layer of a network's stages, by name; `frozen` are fields that must not change."""
    return {
        layer.name: LayerSpace(layer, context, frozen)
        for stage in lowered
        for layer, context in zip(stage.layers, tiling_contexts(config, stage, dram), strict=True)
    }


def _prefetch(rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
    return replace(schedule, prefetch=rng.choice([n for n in _PREFETCH if n != schedule.prefetch]))


def _order(_rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
    return replace(schedule, order="channels" if schedule.order == "rows" else "rows")


def _flip(name: str) -> Change:
    return lambda _rng, schedule: replace(schedule, **{name: not getattr(schedule, name)})


def _buffers(name: str) -> Change:
    least, most = _BUFFERS[name]

    def change(rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        value = getattr(schedule, name)
        others = {value - 1, value + 1, value * 2, value // 2} - {value}
        return replace(
            schedule, **{name: rng.choice([v for v in sorted(others) if least <= v <= most] or [value])}
        )

    return change


def _size(name: str) -> Change:
    def change(rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        value = getattr(schedule, name)
        others = {value // 2, value * 2, value - 1, value + 1} - {value}
        return replace(
            schedule, **{name: rng.choice([v for v in sorted(others) if 1 <= v <= _MOST_SIZE] or [value])}
        )

    return change
