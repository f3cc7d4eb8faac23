"""Roofline of layers and networks: lower bounds from multiply-accumulates and from compulsory DRAM traffic."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import CommandStream
from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command
from compiler.ir.graph import Graph
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork
from hw.config import MlaConfig
from hw.isa.commands import LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Unit


@identity("Floor", "macs", "bytes", "skipped", added=("skipped",))
@dataclass(frozen=True)
class Floor:
    """Minimum work of a layer or network.

    Parameters
    ----------
    macs : int
        Multiply-accumulates, as defined by the model.
    bytes : int
        Bytes that must be transferred over the bus at least once.
    skipped : int
        Multiply-accumulates for which MATRIX needs no time: those with tiles of weights that are zero, and half of
        those in wide and in sparse mode.
    """

    macs: int
    bytes: int
    skipped: int = 0

    def __add__(self, other: "Floor") -> "Floor":
        """Return the minimum work of both."""
        return Floor(self.macs + other.macs, self.bytes + other.bytes, self.skipped + other.skipped)

    def cycles(self, config: MlaConfig, rate: float | None = None) -> int:
        """Return the lower bound on cycles, at N*N multiply-accumulates and `rate` bytes (None: a beat) per cycle."""
        return max(
            -(-(self.macs - self.skipped) // config.n**2), ceil(self.bytes / (rate or config.beat_bytes))
        )


def bus_rate(config: MlaConfig, rate: float | None) -> float:
    """Return the maximum bytes per cycle on the bus: a beat, or up to N more if the DRAM can also write N bytes."""
    width = config.beat_bytes
    return max(width, min(rate or width, width + config.n))


def _constants(graph: Graph, layers: Iterable[Layer]) -> int:
    """Return the total bytes of the constants of the given layers, as defined by the model."""
    read = {name for layer in layers for node in layer.nodes for name in graph.nodes[node].inputs}
    return sum(graph.tensors[name].bytes for name in read if graph.tensors[name].constant)


@dataclass(frozen=True)
class CompulsoryTraffic:
    """Bytes that a stage must transfer over the bus at least once.

    Parameters
    ----------
    ends : dict
        Bytes of each input and output tensor of the stage; tensors that share memory are counted once.
    constants : dict
        Bytes of weights, parameters and tables, by the index of the first layer that needs them.
    products : dict
        Multiply-accumulates for which MATRIX has time, by the index of the layer; fewer than the model defines if tiles
        of weights are skipped, or multiplied in wide mode.
    """

    ends: dict[str, int]
    constants: dict[int, int]
    products: dict[int, int]

    def skipped(self, lowered: LoweredNetwork) -> list[int]:
        """Return the multiply-accumulates of each layer for which MATRIX needs no time."""
        layers = enumerate(lowered.layers)
        return [max(0, layer.macs - self.products.get(number, layer.macs)) for number, layer in layers]


def _weights(graph: Graph, layers: Sequence[Layer], traffic: CompulsoryTraffic) -> int:
    """Return the bytes of transferred constants, without those encoded in commands or merged into other constants."""
    each = (
        min(_constants(graph, [layer]), traffic.constants.get(number, 0))
        for number, layer in enumerate(layers)
    )
    return min(_constants(graph, layers), sum(each))


def layer_floors(lowered: LoweredNetwork, traffic: CompulsoryTraffic) -> list[Floor]:
    """Return the minimum work of each layer of a stage, if all tensors are in DRAM."""
    graph = lowered.graph
    ends = {lowered.root(name): size for name, size in traffic.ends.items()}
    floors = []
    for number, (layer, skipped) in enumerate(zip(lowered.layers, traffic.skipped(lowered), strict=True)):
        names = {name for name in (*layer.inputs, layer.y) if not graph.tensors[name].constant}
        sizes = ((graph.tensors[name].bytes, ends.get(lowered.root(name))) for name in names)
        size = sum(own if moved is None else min(own, moved) for own, moved in sizes)
        weights = min(_constants(graph, [layer]), traffic.constants.get(number, 0))
        floors.append(Floor(layer.macs, size + weights, skipped))
    return floors


def network_floor(stages: Sequence[tuple[LoweredNetwork, CompulsoryTraffic]]) -> Floor:
    """Return the minimum work of a network, if only inputs, outputs and weights are transferred.

    Parameters
    ----------
    stages : sequence of (LoweredNetwork, CompulsoryTraffic)
        Stages on the accelerator, with their traffic. Tensors passed between stages are counted once.
    """
    ends: dict[str, int] = {}
    for _, traffic in stages:
        ends |= {name: max(size, ends.get(name, 0)) for name, size in traffic.ends.items()}
    macs = sum(layer.macs for lowered, _ in stages for layer in lowered.layers)
    skipped = sum(sum(traffic.skipped(lowered)) for lowered, traffic in stages)
    weights = sum(_weights(lowered.graph, lowered.layers, traffic) for lowered, traffic in stages)
    return Floor(macs, sum(ends.values()) + weights, skipped)


def body_floor(lowered: LoweredNetwork, traffic: CompulsoryTraffic) -> Floor:
    """Return the minimum work of a stage in a control-flow subgraph, whose inputs and outputs may stay on chip."""
    macs = sum(layer.macs for layer in lowered.layers)
    return Floor(macs, _weights(lowered.graph, lowered.layers, traffic), sum(traffic.skipped(lowered)))


class _Lines(NamedTuple):
    """Fields of a LOAD or STORE command that determine which lines it transfers."""

    len: int = 1
    y_count: int = 1
    z_count: int = 1
    dram_y: int = 0
    dram_z: int = 0


def _numbers(command: Command) -> Iterator[tuple[str, int]]:
    """Yield the fields of a command that are not addresses."""
    return ((name, value) for name, value in command.fields.items() if not isinstance(value, BufferRef))


@cache
def _fills(word: int) -> bool:
    return bool(LOAD_WORD.unpack(word)["fill"])


def compulsory_traffic(stream: CommandStream, n: int) -> CompulsoryTraffic:
    """Return the bytes that the commands of a stage transfer, with each address counted once.

    `n` is the number of rows and columns of the array.
    """
    touched, layers = _touched(stream)
    graph = stream.lowered.graph
    rings = {stream.layouts[name].buffer: name for name in (*graph.inputs, *graph.outputs)}
    ends = {name: touched.get(ring, 0) for ring, name in rings.items()}
    constants: dict[int, int] = defaultdict(int)
    for ring, size in touched.items():
        if ring.data is not None:
            constants[layers[ring]] += size
    products: dict[int, int] = defaultdict(int)
    for command in stream.commands:
        if command.unit == Unit.MATRIX:
            products[command.layer] += _rows_times_tiles(command) * n**2
    return CompulsoryTraffic(ends, dict(constants), dict(products))


def _rows_times_tiles(command: Command) -> int:
    """Return the number of rows of activations of a MATRIX command, each counted once per tile of weights."""
    numbers = dict(_numbers(command))
    if MATRIX_WORD.unpack(numbers.get("word", MATRIX_WORD.pack()))["dw"]:
        return numbers.get("oc_count", 1) * numbers.get("dw_len", 1)
    return prod(numbers.get(f"{dim}_count", 1) for dim in ("oc", "ic", "ky", "kx", "y", "x"))


def _touched(stream: CommandStream) -> tuple[dict[CircularBuffer, int], dict[CircularBuffer, int]]:
    """Return, for each circular buffer in DRAM, the transferred bytes and the first layer that accesses it."""
    users: dict[CircularBuffer, list[Command]] = {}
    layers: dict[CircularBuffer, int] = {}
    for command in stream.commands:
        source = command.fields.get("dram")
        if command.unit not in (Unit.LOAD, Unit.STORE) or not isinstance(source, BufferRef):
            continue
        if command.unit == Unit.LOAD and _fills(_word(command)):
            continue
        ring = source.buffer
        assert ring.memory == BufferMemory.DRAM
        layers[ring] = min(layers.get(ring, command.layer), command.layer)
        users.setdefault(ring, []).append(command)
    return {ring: _transferred(ring, commands) for ring, commands in users.items()}, layers


def _word(command: Command) -> int:
    word = command.fields.get("word", 0)
    assert isinstance(word, int)
    return word


def _transferred(ring: CircularBuffer, commands: list[Command]) -> int:
    """Return the bytes of a buffer that commands transfer; the buffer remembers them for the last commands."""
    if ring.transferred is None or ring.transferred[0] != commands:
        mask = np.zeros(ring.total, np.bool_)
        for command in commands:
            source = command.fields["dram"]
            assert isinstance(source, BufferRef)
            c = _Lines(**{name: value for name, value in _numbers(command) if name in _Lines._fields})
            _mark(mask, source.resolve(0), c.len, ((c.y_count, c.dram_y), (c.z_count, c.dram_z)))
        ring.transferred = commands, int(np.count_nonzero(mask))
    return ring.transferred[1]


def _mark(mask: NDArray[np.bool_], start: int, size: int, steps: tuple[tuple[int, int], ...]) -> None:
    """Mark lines of `size` bytes in a mask; `steps` holds (count, distance) of two nested loops."""
    if all(count == 1 for count, _ in steps):
        mask[start : start + size] = True
        return
    starts = np.array([start])
    for count, distance in sorted(steps, key=lambda step: abs(step[1])):
        if distance == size and len(starts) == 1:
            size *= count  # without gaps
        elif distance:
            starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
    if len(starts) == 1:
        mask[start : start + size] = True
    else:
        mask[starts[:, None] + np.arange(size)] = True
