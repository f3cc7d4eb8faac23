"""Compulsory DRAM traffic of a stage: each byte counts once, however often it is moved."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.command_stream import CommandStream
from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import Unit


@dataclass(frozen=True)
class Crossing:
    """Bytes that must cross the bus.

    Parameters
    ----------
    ends : dict
        Bytes of each tensor that comes into the stage or leaves it; of those that share their place, of one.
    constants : dict
        Bytes of weights, parameters and tables, by the number of the layer that first needs them.
    """

    ends: dict[str, int]
    constants: dict[int, int]


class _Lines(NamedTuple):
    """Lines that a LOAD or STORE moves."""

    word: int = 0
    len: int = 1
    y_count: int = 1
    z_count: int = 1
    dram_y: int = 0
    dram_z: int = 0


def _numbers(command: Command) -> Iterator[tuple[str, int]]:
    """Fields that are no addresses."""
    return ((name, value) for name, value in command.fields.items() if not isinstance(value, BufferRef))


@cache
def _fills(word: int) -> bool:
    return bool(LOAD_WORD.unpack(word)["fill"])


def crossing(stream: CommandStream) -> Crossing:
    """The bytes that the commands of a stage move, with none counted twice."""
    touched, layers = _touched(stream)
    graph = stream.lowered.graph
    rings = {stream.homes[name].ring: name for name in (*graph.inputs, *graph.outputs)}
    ends = {name: touched.get(ring, 0) for ring, name in rings.items()}
    constants: dict[int, int] = defaultdict(int)
    for ring, size in touched.items():
        if ring.data is not None:
            constants[layers[ring]] += size
    return Crossing(ends, dict(constants))


def _touched(stream: CommandStream) -> tuple[dict[CircularBuffer, int], dict[CircularBuffer, int]]:
    """Bytes of each ring in DRAM that are moved, and the first layer that moves any."""
    masks: dict[CircularBuffer, NDArray[np.bool_]] = {}
    layers: dict[CircularBuffer, int] = {}
    for command in stream.commands:
        place = command.fields.get("dram")
        if command.unit not in (Unit.LOAD, Unit.STORE) or not isinstance(place, BufferRef):
            continue
        c = _Lines(**{name: value for name, value in _numbers(command) if name in _Lines._fields})
        if command.unit == Unit.LOAD and _fills(c.word):
            continue
        ring = place.ring
        assert ring.memory == BufferMemory.DRAM
        layers[ring] = min(layers.get(ring, command.layer), command.layer)
        if ring not in masks:
            masks[ring] = np.zeros(ring.total, np.bool_)
        _mark(masks[ring], place.resolve(0), c.len, ((c.y_count, c.dram_y), (c.z_count, c.dram_z)))
    return {ring: int(np.count_nonzero(mask)) for ring, mask in masks.items()}, layers


def _mark(mask: NDArray[np.bool_], start: int, size: int, steps: tuple[tuple[int, int], ...]) -> None:
    """Mark lines of `size` bytes; `steps` are (count, distance)."""
    if all(count == 1 for count, _ in steps):
        mask[start : start + size] = True
        return
    places = np.array([start])
    for count, distance in sorted(steps, key=lambda step: abs(step[1])):
        if distance == size and len(places) == 1:
            size *= count  # without gaps
        elif distance:
            places = (places[:, None] + np.arange(count) * distance).reshape(-1)
    if len(places) == 1:
        mask[start : start + size] = True
    else:
        mask[places[:, None] + np.arange(size)] = True
