"""The first schedule of a network: an estimate of cycles for each tiling that fits, the least of them taken."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from compiler.kernels.tiles import ceil_div, cuts
from compiler.lower.conv_transpose import ConvTransposeLayer
from compiler.lower.layer import (
    ConvLayer,
    DepthwiseLayer,
    ElementwiseLayer,
    Image,
    Layer,
    MoveLayer,
    PoolLayer,
    SoftmaxLayer,
)
from compiler.lower.lower import Lowered
from compiler.lower.lowering import image_of
from compiler.lower.matmul import MatmulLayer
from compiler.lower.norm import NormLayer
from compiler.lower.reduce import ReduceLayer
from compiler.schedule.compute import check_row, matmul_tilings, norm_tilings, reduce_tilings
from compiler.schedule.moves import from_dram, move_tilings
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.enums import DTYPE_BYTES

#: Part of the scratchpad that tensors may stay in from layer to layer.
_RESIDENT = 0.6
#: Steps that weights are brought in ahead, if memory allows: as good as any number.
_PREFETCH = 256
#: A layer of fewer cycles is not worth a dispatch of its own.
_SMALL = 1000
#: Cycles the sequencer takes for the commands of a tile.
_TILE = 60


def first_schedule(config: MlaConfig, lowered: Lowered, fusions: tuple[tuple[str, ...], ...]) -> Schedule:
    """A schedule for every layer.

    Raises
    ------
    InputError
        A layer does not fit the machine however it is cut.
    """
    homes = _Residents(config, lowered)
    layers = {}
    for number, layer in enumerate(lowered.layers):
        spot = Spot(config, homes.free(number), homes.on_chip(layer.x), homes.on_chip(layer.y), homes.on_chip)
        cycles, layers[layer.name] = _schedule(spot, layer)
        if number and cycles < _SMALL:
            layers[layer.name] = replace(layers[layer.name], joined=True)
    return Schedule(fusions, layers)


class _Residents:
    """Which tensors stay in the scratchpad: those that fit beside the others alive at the same time."""

    def __init__(self, config: MlaConfig, lowered: Lowered):
        self.config, self.lowered = config, lowered
        graph = lowered.graph
        outside = {lowered.root(name) for name in (*graph.inputs, *graph.outputs)}
        for layer in lowered.layers:
            if isinstance(layer, MoveLayer):
                outside |= {lowered.root(name) for name in from_dram(layer)}
        self.size: dict[str, int] = {}
        self.life: dict[str, tuple[int, int]] = {}
        for number, layer in enumerate(lowered.layers):
            for name in (*layer.inputs, layer.y):
                root = lowered.root(name)
                first, _ = self.life.get(root, (number, number))
                self.life[root] = (first, number)
                self.size[root] = _bytes(image_of(graph.tensors[root]))
        self.inside: set[str] = set()
        budget = int(config.sp_bytes * _RESIDENT)
        for root in sorted(self.life, key=lambda r: (self.size[r], self.life[r])):
            first, last = self.life[root]
            fits = all(self._held(at) + self.size[root] <= budget for at in range(first, last + 1))
            if root not in outside and fits:
                self.inside.add(root)

    def _held(self, layer: int) -> int:
        return sum(self.size[r] for r in self.inside if self.life[r][0] <= layer <= self.life[r][1])

    def on_chip(self, name: str) -> bool:
        """Whether a tensor stays in the scratchpad."""
        return self.lowered.root(name) in self.inside

    def free(self, layer: int) -> int:
        """Bytes of the scratchpad left for the buffers of a layer; a part is for the next one's first weights."""
        return int((self.config.sp_bytes - self._held(layer)) * 0.9)


def _bytes(image: Image) -> int:
    return image.h * image.w * image.c * DTYPE_BYTES[image.dtype] + 64


@dataclass(frozen=True)
class Spot:
    """What a layer finds: the machine, free bytes, where its tensors are."""

    config: MlaConfig
    free: int
    x_on_chip: bool
    y_on_chip: bool
    on_chip: Callable[[str], bool]


def _schedule(spot: Spot, layer: Layer) -> tuple[float, LayerSchedule]:
    tilings = {
        ConvLayer: _conv_tilings, DepthwiseLayer: _depthwise_tilings, PoolLayer: _pool_tilings,
        ElementwiseLayer: _elementwise_tilings, SoftmaxLayer: _softmax_tilings, MoveLayer: move_tilings,
        ConvTransposeLayer: _transposed_tilings, MatmulLayer: matmul_tilings, ReduceLayer: reduce_tilings,
        NormLayer: norm_tilings,
    }[type(layer)]  # fmt: skip
    best = min(tilings(spot, layer), key=lambda tiling: tiling[0], default=None)
    if best is None:
        raise InputError(f"layer {layer.name!r} does not fit the machine however it is cut")
    return best


_Tilings = Iterator[tuple[float, LayerSchedule]]


def _image_rows(rows: int, stride: int, reach: int, height: int) -> int:
    return min(height, (rows - 1) * stride + reach)


def _slots(config: MlaConfig, blocks: int, columns: int) -> int:
    """All parameters at once if a quarter of the slots holds them, else two tiles in turn."""
    return blocks if blocks <= config.param_slots // 4 else columns


def _conv_tilings(spot: Spot, layer: ConvLayer) -> _Tilings:
    config, n = spot.config, spot.config.n
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    out_c, kernel_h, kernel_w, in_c = layer.weights.shape
    blocks, taps = ceil_div(out_c // layer.groups, n), kernel_h * kernel_w
    fold = (
        not spot.x_on_chip and layer.groups == 1 and layer.dilations[1] == 1
        and ceil_div(in_c * kernel_w, n) < kernel_w * ceil_div(in_c, n)
    )  # fmt: skip
    passes = kernel_h * ceil_div(in_c * kernel_w, n) if fold else taps * ceil_div(in_c, n)
    reach = (kernel_h - 1) * layer.dilations[0] + 1
    pitch = (x.w + (layer.pads[1] + layer.pads[3] if fold else 0)) * x.c
    for k_blocks in cuts(ceil_div(in_c, n)):
        fits = False
        whole_k = k_blocks == ceil_div(in_c, n)
        part = 1.0 if whole_k else k_blocks * n / in_c
        w_block = taps * min(k_blocks * n, in_c) * n
        for columns in cuts(min(blocks, config.param_slots // 2)):
            groups = ceil_div(blocks, columns)
            for rows in cuts(y.h):
                tiles = ceil_div(y.h, rows)
                acc = rows * y.w * columns
                if acc * min(2, tiles * groups) > config.acc_rows:
                    continue
                for band, (order, resident) in product(
                    _bands(rows, y.h, spot.x_on_chip), (("rows", True), ("rows", False), ("channels", False))
                ):
                    bands = ceil_div(y.h, band)
                    x_bytes = int(_image_rows(band, layer.strides[0], reach, x.h) * pitch * part) + n
                    w_tiles = groups * (1 if whole_k else ceil_div(in_c, k_blocks * n))
                    w_buffers = w_tiles if resident else min(2, w_tiles)
                    x_buffers = min(2, bands)
                    used = columns * w_block * w_buffers
                    used += 0 if spot.x_on_chip else x_bytes * x_buffers
                    used += 0 if spot.y_on_chip else 2 * rows * y.w * columns * n
                    used += 2 * rows * y.w * columns * n if layer.drain.residual and not spot.y_on_chip else 0
                    if used > spot.free:
                        continue
                    w_times = tiles if order == "rows" and w_buffers < w_tiles else 1
                    x_times = groups if order == "channels" and bands > x_buffers else 1
                    array = tiles * blocks * passes * max(y.h * y.w / tiles, n)
                    bus = w_times * blocks * taps * in_c
                    bus += 0 if spot.x_on_chip else x_times * bands * x_bytes / part / n
                    bus += 0 if spot.y_on_chip else y.h * y.w * blocks
                    fuse = y.h * y.w * blocks
                    steps = tiles * groups * (1 if whole_k else w_tiles // groups)
                    start = columns * w_block / n + (0 if spot.x_on_chip else x_bytes / n)
                    cycles = max(array, bus, fuse, steps * _TILE) + acc + start + steps * 8
                    cycles += 0 if spot.x_on_chip else bands * (_TILE if fold else 20)
                    fits = True
                    yield cycles * layer.groups, LayerSchedule(
                        rows=rows, band=band, columns=columns,
                        depth=k_blocks * kernel_w if fold else k_blocks, order=order,
                        slots=_slots(config, blocks, columns), w_buffers=w_buffers, x_buffers=x_buffers,
                        prefetch=_PREFETCH,
                        fold=fold, on_chip=spot.y_on_chip,
                    )  # fmt: skip
        if fits:  # cutting the sums costs more than it saves
            return


def _transposed_tilings(spot: Spot, layer: ConvTransposeLayer) -> _Tilings:
    """Those of the greatest phase; the buffers of all of them may be in use at a time."""
    heaviest = max((phase.conv for phase in layer.phases), key=lambda conv: conv.macs)
    for free in (spot.free // len(layer.phases), spot.free):
        found = list(_conv_tilings(replace(spot, free=free), heaviest))
        for cycles, schedule in found:
            yield cycles * len(layer.phases), schedule
        if found:
            return


def _bands(rows: int, height: int, on_chip: bool) -> list[int]:
    """Rows brought in together: some tiles, or all."""
    if on_chip:
        return [height]
    return sorted({min(rows * times, height) for times in (1, 2, 4, 8)} | {height})


def _depthwise_tilings(spot: Spot, layer: DepthwiseLayer) -> _Tilings:
    config, n = spot.config, spot.config.n
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    kernel_h, taps, channels = layer.weights.shape
    blocks = ceil_div(channels, n)
    for columns in cuts(min(blocks, config.param_slots // 2)):
        for rows in cuts(y.h):
            if 2 * rows * y.w * columns > config.acc_rows:
                continue
            for band in (y.h, rows) if not spot.x_on_chip else (y.h,):
                x_bytes = _image_rows(band, layer.strides[0], kernel_h, x.h) * x.w * columns * n + n
                used = columns * kernel_h * taps * n * 2
                used += 0 if spot.x_on_chip else 2 * x_bytes
                used += 0 if spot.y_on_chip else 2 * rows * y.w * columns * n
                if used > spot.free:
                    continue
                keep = columns == 1
                tiles = ceil_div(blocks, columns) * ceil_div(y.h, rows)
                again = 0 if keep else (kernel_h - 1) * tiles * columns
                stream = (blocks * y.h * layer.strides[0] + again) * (x.w + 1)
                array = stream * ceil_div(kernel_h, max(1, min(3, n // taps)))
                bus = 0 if spot.x_on_chip else ceil_div(y.h, band) * blocks * x_bytes / (columns * n)
                bus += 0 if spot.y_on_chip else y.h * y.w * blocks
                cycles = max(array, bus, tiles * _TILE) + rows * y.w * columns + tiles * 10
                yield cycles, LayerSchedule(
                    rows=rows, band=band, columns=columns, slots=_slots(config, blocks, columns),
                    prefetch=_PREFETCH,
                    on_chip=spot.y_on_chip,
                )  # fmt: skip


def _pool_tilings(spot: Spot, layer: PoolLayer) -> _Tilings:
    n = spot.config.n
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    blocks = ceil_div(x.c, n)
    for columns in cuts(blocks):
        for rows in cuts(y.h):
            x_bytes = _image_rows(rows, layer.strides[0], layer.kernel[0], x.h) * x.w * columns * n + n
            used = 0 if spot.x_on_chip else 2 * x_bytes
            used += 0 if spot.y_on_chip else 2 * rows * y.w * columns * n
            if used > spot.free:
                continue
            tiles = ceil_div(blocks, columns) * ceil_div(y.h, rows)
            work = y.h * y.w * blocks * layer.kernel[0] * layer.kernel[1]
            start = 0 if spot.x_on_chip else x_bytes / n
            cycles = max(work, tiles * _TILE) + start + tiles * 4
            yield cycles, LayerSchedule(rows=rows, columns=columns, on_chip=spot.y_on_chip)


def _elementwise_tilings(spot: Spot, layer: ElementwiseLayer) -> _Tilings:
    n, y = spot.config.n, layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, n)
    sizes = [DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)]
    for rows in cuts(total):
        used = 2 * rows * n * sum(sizes)
        if (used > spot.free and not (spot.x_on_chip and spot.y_on_chip)) or rows > 0xFFFF:
            continue
        tiles = ceil_div(total, rows)
        yield max(total, tiles * _TILE) + 2 * rows, LayerSchedule(rows=rows, on_chip=spot.y_on_chip)


def _softmax_tilings(spot: Spot, layer: SoftmaxLayer) -> _Tilings:
    n, x = spot.config.n, layer.shapes[layer.x]
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    check_row(spot, layer, x.c, blocks + 1)
    for rows in cuts(total):
        used = rows * (
            2 * blocks * n + (0 if spot.x_on_chip else 2 * x.c) + (0 if spot.y_on_chip else 2 * x.c)
        )
        if used > spot.free or rows * (1 + blocks) > spot.config.acc_rows:
            continue
        tiles = ceil_div(total, rows)
        yield (
            total * blocks * 5 + tiles * 5 * _TILE + rows * blocks,
            LayerSchedule(rows=rows, on_chip=spot.y_on_chip),
        )
