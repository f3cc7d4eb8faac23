"""Layers under schedules as vectors of fixed length, and the cycles they are measured against."""

from dataclasses import dataclass
from math import log, log2
from typing import NamedTuple

from compiler.hpm.flow import Pace, pace
from compiler.hpm.flows import KINDS, flow_of
from compiler.hpm.place import Place
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Layer
from compiler.lower.matmul import MatmulLayer
from compiler.schedule.schedule import LayerSchedule
from hw.isa.enums import DTYPE_BYTES

#: What the numbers of a vector are. Shares are of the estimate; `log_` is the natural logarithm of 1 and more.
NAMES = (
    "kind",  # number of the layer's kind
    "log_estimate", "log_floor",  # cycles by the flow of the schedule's tiles, and at least
    "floor_share", "array_share", "fuse_share", "load_share", "store_share", "bus_share",  # of each unit, alone
    "start_share", "tail_share", "latency_share",  # before the first tile is computed, behind the last, of the memory
    "log_tiles", "log_tile", "commands_per_tile", "command_share",  # tiles, cycles of one, commands
    "log_tile_array", "log_tile_fuse", "log_tile_load", "log_tile_store",  # of a tile on average
    "rows", "columns", "depth", "band_tiles",  # of a tile, no more than there are; tiles of a band
    "rows_left", "columns_left", "depth_left",  # of the last tile, as a share of a whole one
    "pixels_per_n", "width",  # rows of the array's stream over N, columns of the output
    "out_left", "in_left", "in_whole", "out_whole",  # channels in the last block over N; whether pixels lie at beats
    "log_macs_per_byte", "kernel", "stride", "groups",
    "x_buffers", "w_buffers", "y_buffers", "acc_buffers", "slots", "slot_buffers",
    "order", "fold", "strips", "together", "common_scale", "ramp", "taper", "joined", "overlap", "log_prefetch",
    "x_on_chip", "y_on_chip", "residual", "table", "out_bytes", "inputs",
    "first", "last", "before_share", "after_share",  # in its network; estimates of its neighbours over its own
    "kind_before", "kind_after",  # of its neighbours; -1: there is none
    "lead_share", "own_lead_share",  # how long before their ends LOAD is free: of the layer before it, of itself
    "beat", "log_latency", "n",
)  # fmt: skip
_MOST = 64
#: The number of each kind of layer.
KIND = {kind: number for number, kind in enumerate(KINDS)}


class Row(NamedTuple):
    """Features of a layer under a schedule.

    `numbers` are in the order of NAMES; `base` are the cycles whose ratio to the measured ones is to be learnt: the
    estimate, or the floor if that is more.
    """

    numbers: list[float]
    base: float


@dataclass(frozen=True)
class _Sizes:
    """What tiles are cut of: output rows, blocks of output channels, blocks of input channels."""

    rows: int
    columns: int
    depth: int
    width: int
    in_c: int
    out_c: int


def row_of(layer: Layer, schedule: LayerSchedule, place: Place) -> Row:
    """Features of one layer."""
    found = pace(
        flow := flow_of(layer, schedule, place), place.beat, place.dram.latency,
        (place.lead if schedule.prefetch else 0.0) if place.before else None, last=not place.after,
    )  # fmt: skip
    macs, size = layer.macs / place.config.n**2, _bytes(layer, place)
    floor = max(macs, size / place.config.n * place.beat, 1.0)
    base = float(max(found.total, floor))
    numbers = [
        float(KIND[type(layer)]), *_cycles(found, base, floor, flow.count, place),
        *_tiles(layer, schedule, place), log((1 + layer.macs) / (1 + size)), *_windows(layer),
        *_chosen(layer, schedule, place),
        float(not place.before), float(not place.after), place.before / base, place.after / base,
        float(place.kind_before), float(place.kind_after), place.lead / base, found.lead / base,
        place.beat, log(1 + place.dram.latency), float(place.config.n),
    ]  # fmt: skip
    return Row(numbers, base)


def _bytes(layer: Layer, place: Place) -> float:
    """Bytes that cross the bus at least."""
    total = float(layer.weights.size if isinstance(layer, (ConvLayer, DepthwiseLayer)) else 0)
    for name in dict.fromkeys((*layer.inputs, layer.y)):
        image = layer.shapes[name]
        total += 0 if place.on_chip(name) else image.h * image.w * image.c * DTYPE_BYTES[image.dtype]
    return total


def _cycles(found: Pace, base: float, floor: float, tiles: int, place: Place) -> list[float]:
    units = [found.array, found.fuse, found.load, found.store]
    return [
        log(base), log(floor), floor / base, *(each / base for each in units), (found.load + found.store) / base,
        found.start / base, found.tail / base, place.dram.latency / base,
        log(tiles), log(base / tiles), found.commands / tiles, 25 * found.commands / base,
        *(log(1 + each / tiles) for each in units),
    ]  # fmt: skip


def _sizes(layer: Layer, n: int) -> _Sizes:
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    if isinstance(layer, MatmulLayer):
        m, k, width = layer.size
        return _Sizes(m, -(-width // n), -(-k // n), 1, k, width)
    return _Sizes(max(y.h // layer.batch, 1), -(-y.c // n), -(-x.c // n), y.w, x.c, y.c)


def _tiles(layer: Layer, s: LayerSchedule, place: Place) -> list[float]:
    n = place.config.n
    sizes = _sizes(layer, n)
    cut = [
        (min(size, whole), whole)
        for size, whole in ((s.rows, sizes.rows), (s.columns, sizes.columns), (s.depth, sizes.depth))
    ]
    return [
        *(float(size) for size, _ in cut), min(s.band, sizes.rows) / cut[0][0],
        *(((whole - 1) % size + 1) / size for size, whole in cut),
        cut[0][0] * sizes.width / n, float(sizes.width),
        ((sizes.out_c - 1) % n + 1) / n, ((sizes.in_c - 1) % n + 1) / n,
        float(sizes.in_c % n == 0), float(sizes.out_c % n == 0),
    ]  # fmt: skip


def _windows(layer: Layer) -> list[float]:
    if isinstance(layer, (ConvLayer, DepthwiseLayer)):
        kernel = layer.weights.shape[1]
    else:
        kernel = getattr(layer, "kernel", (1, 1))[0]
    return [float(kernel), float(getattr(layer, "strides", (1, 1))[0]), float(getattr(layer, "groups", 1))]


def _chosen(layer: Layer, s: LayerSchedule, place: Place) -> list[float]:
    drain = getattr(layer, "drain", None)
    table = getattr(drain or layer, "table", None)
    buffers = (s.x_buffers, s.w_buffers, s.y_buffers, s.acc_buffers, s.slots, s.slot_buffers)
    return [
        *(float(min(each, _MOST)) for each in buffers),
        float(s.order == "rows"), float(s.fold), float(s.strips), float(s.together), float(s.common_scale),
        float(s.ramp), float(s.taper), float(s.joined), float(s.overlap), log2(1 + s.prefetch),
        float(place.x_on_chip), float(place.y_on_chip), float(bool(drain and drain.residual)), float(table is not None),
        float(DTYPE_BYTES[layer.shapes[layer.y].dtype]), float(len(layer.inputs)),
    ]  # fmt: skip
