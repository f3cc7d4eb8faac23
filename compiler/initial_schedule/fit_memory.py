"""Relaxation of a schedule until it fits the memories.

Prefetching is reduced first. Then interleaving is dropped, parameters of normalizations are loaded in parts, and double
buffering is dropped. Last, weights that stay for later layers and then tensors are moved from the scratchpad to DRAM,
and then tiles are halved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from compiler.codegen.buffer_allocation import MemoryFullError
from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.codegen.generate import LayerCodegen, generate
from compiler.commands.commands import BufferMemory
from compiler.commands.tile_buffers import KEPT_SUFFIX
from compiler.layers.norm import NormLayer
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig

#: Divisor of the prefetch distance where memory is full, large because each attempt generates all code again.
_PREFETCH_DIVISOR = 8
#: Number of attempts that only change layers where memory is full. After that, the range around them in which
#: prefetching is reduced doubles with each attempt, because a long network could otherwise need an attempt for each
#: such position. Other changes, which cost more cycles, remain local as long as that helps.
_LOCAL_ATTEMPTS = 8


def fit(
    config: MlaConfig,
    lowered: LoweredNetwork,
    schedule: Schedule,
    layer_counts: tuple[int, int],
    offset: int = 0,
    seen: list[CommandStream] | None = None,
    dram: DramTiming = DEFAULT_DRAM,
    codegen: LayerCodegen | None = None,
) -> tuple[Schedule, StageExecutable]:
    """Relax a schedule until it fits the memories, and return the relaxed schedule and its code.

    The parameters `seen` and `codegen` have the same meaning as in `generate`.

    Raises
    ------
    MemoryFullError
        The schedule does not fit even with all movable tensors in DRAM.
    """
    producers = {layer.y: layer.name for layer in lowered.layers}
    codegen = codegen or LayerCodegen(config)
    for attempt in count():
        try:
            return schedule, generate(config, lowered, schedule, layer_counts, offset, seen, codegen, dram)
        except MemoryFullError as error:
            layers = dict(schedule.layers)
            here = list(error.layers)
            turns = [layer for layer in here if layers[layer].interleave]
            around = _around(list(producers.values()), error.layers, attempt)
            ahead = [layer for layer in around if layers[layer].prefetch]
            kept = [producers[name] for name in error.buffers if name in producers]
            kept = [layer for layer in kept if layers[layer].on_chip and error.memory == BufferMemory.SP]
            split = [layer for layer in here if layers[layer].split_last_tile]
            weights = [name for name, each in layers.items() if each.kept_weights]
            weights = weights if any(name.endswith(KEPT_SUFFIX) for name in error.buffers) else []
            double = [layer for layer in here if layers[layer].param_buffers > 1]
            if split and (error.memory == BufferMemory.ACC or not ahead):
                layers |= {
                    layer: replace(layers[layer], split_last_tile=False, y_buffers=2) for layer in split
                }
                ahead = []
            elif turns and (error.memory != BufferMemory.SP or not ahead):
                layers |= {layer: replace(layers[layer], interleave=False) for layer in turns}
                ahead = []
            elif wide := _wide_norms(config, lowered, layers, error):
                layers |= {
                    layer: replace(layers[layer], param_blocks=config.param_slots // 4) for layer in wide
                }
            elif error.memory == BufferMemory.SLOT and not ahead and double:
                layers |= {layer: replace(layers[layer], param_buffers=1) for layer in double}
            elif not ahead and weights:
                layers |= {layer: replace(layers[layer], kept_weights=0) for layer in weights}
            elif not ahead and not kept:
                halved = _halved_tiles(lowered, layers, here) or _halved_tiles(lowered, layers, around)
                if error.memory not in (BufferMemory.SP, BufferMemory.ACC) or not halved:
                    raise
                layers |= halved
            elif not ahead:
                layers[kept[0]] = replace(layers[kept[0]], on_chip=False, stream_row_blocks=0)
            for layer in ahead:
                layers[layer] = replace(layers[layer], prefetch=layers[layer].prefetch // _PREFETCH_DIVISOR)
            schedule = replace(schedule, layers=layers)
    raise AssertionError("attempts end with a schedule or an error")


def _wide_norms(
    config: MlaConfig, lowered: LoweredNetwork, layers: Mapping[str, LayerSchedule], error: MemoryFullError
) -> list[str]:
    """Return the normalizations whose parameters take more than a quarter of the slots where these are full."""
    return [
        layer.name
        for layer in lowered.layers
        if error.memory == BufferMemory.SLOT
        and isinstance(layer, NormLayer)
        and f"{layer.name}.p" in error.buffers
        and layers[layer.name].param_blocks > config.param_slots // 4
        and ceil_div(layer.shapes[layer.x].c, config.n) > config.param_slots // 4
    ]


def _halved_tiles(
    lowered: LoweredNetwork, layers: Mapping[str, LayerSchedule], names: Sequence[str]
) -> dict[str, LayerSchedule]:
    """Return schedules of the named layers with half of the rows or, of single rows, half of the columns per tile."""
    out = {}
    for layer in lowered.layers:
        mine = layers[layer.name]
        if layer.name not in names:
            continue
        y = layer.shapes[layer.y]
        rows, loaded, width = min(mine.rows, y.h), min(mine.rows_per_load, y.h), min(mine.strip_width, y.w)
        if max(rows, loaded) > 1:
            out[layer.name] = replace(mine, rows=ceil_div(rows, 2), rows_per_load=ceil_div(loaded, 2))
        elif width > 1:
            out[layer.name] = replace(mine, strip_width=ceil_div(width, 2))
    return out


def _around(names: list[str], layers: Sequence[str], attempt: int) -> list[str]:
    """Return the layers where memory is full and, in later attempts, a growing range of layers around them."""
    if attempt < _LOCAL_ATTEMPTS or not layers:
        return list(layers)
    reach = 1 << min(attempt - _LOCAL_ATTEMPTS, len(names).bit_length())
    indices = [names.index(layer) for layer in layers]
    return names[max(min(indices) - reach, 0) : max(indices) + reach + 1]
