"""Lossless compression of constants: loads of weights that need fewer than eight bits read packed weights instead."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.util.tiles import ceil_div
from cosim.semantics.packed_weights import pack, packed_bytes
from hw.config import MlaConfig
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import Unit

#: Maximum share of the bytes of a buffer's loads that packed loads may read; above it, packing is not worthwhile.
_WORTHWHILE = 0.97
#: Maximum number of lines of a constant that may differ in length, so that loads of them are not a loop of a program.
_MAX_LENGTHS = 64
#: Number of groups of a constant whose widths decide whether all of it is examined.
_SAMPLE = 512


class _Lines(NamedTuple):
    """Bytes of a buffer in DRAM that a load reads, in the order in which it writes them without a gap."""

    start: int
    length: int
    steps: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        size = self.length
        for count, _ in self.steps:
            size *= count
        return size

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes."""
        starts = np.array([self.start])
        for count, distance in self.steps:
            starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
        return data[starts[:, None] + np.arange(self.length)].reshape(-1)


def may_pack(config: MlaConfig, data: NDArray[np.uint8]) -> bool:
    """Return False if the first bytes of a constant show that its loads are not worth packing."""
    group = 2 * config.n
    first = data[: min(data.size // group, _SAMPLE) * group]
    return bool(config.packed_loads) and packed_bytes(first, config.n) <= _WORTHWHILE * first.size


def pack_loads(config: MlaConfig, steps: Sequence[TileStep]) -> list[TileStep]:
    """Replace loads of constants by loads of packed weights wherever these read fewer bytes.

    If a constant has many loads, those of equal size read lines of equal length, at equal distances, so that loops of a
    program still advance through them; shorter lines are padded.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    steps : sequence of TileStep
        Steps of a layer.

    Returns
    -------
    list of TileStep
        Steps of the layer; those whose loads do not change are the same objects.
    """
    loads: dict[CircularBuffer, list[Command]] = defaultdict(list)
    for step in steps:
        for command in step.commands():
            for ref in command.reads():
                if ref.buffer.memory == BufferMemory.DRAM and ref.buffer.data is not None:
                    loads[ref.buffer].append(command)
    packed: dict[int, Command] = {}
    for buffer, commands in loads.items():
        packed |= _packed(config, buffer, commands)
    if not packed:
        return list(steps)
    return [
        replace(step, unit_cycles=None, loads=[packed.get(id(command), command) for command in step.loads])
        if any(id(command) in packed for command in step.loads)
        else step
        for step in steps
    ]


def _packed(config: MlaConfig, buffer: CircularBuffer, commands: Sequence[Command]) -> dict[int, Command]:
    """Return the packed loads by the identity of the loads that they replace; none if it is not worthwhile."""
    n, data = config.n, buffer.data
    assert data is not None
    if not may_pack(config, data):
        return {}
    lines = [_lines(command, n) for command in commands]
    known: dict[_Lines, NDArray[np.uint8]] = {}
    for each in lines:
        if each is None:
            return {}
        if each not in known:
            known[each] = pack(each.read(data), n)
    lengths = {each: ceil_div(line.size, n) * n for each, line in known.items()}
    if len(known) > _MAX_LENGTHS:
        longest: dict[int, int] = {}
        for each, length in lengths.items():
            longest[each.size] = max(longest.get(each.size, 0), length)
        lengths = {each: longest[each.size] for each in known}
    if sum(lengths.values()) > _WORTHWHILE * sum(each.size for each in known):
        return {}
    places, at = {}, 0
    for each in sorted(known, key=lambda each: (each.size, each.start)):
        places[each] = at
        at += lengths[each]
    contents = np.zeros(at, np.uint8)
    for each, line in known.items():
        contents[places[each] : places[each] + line.size] = line
    target = CircularBuffer(BufferMemory.DRAM, buffer.name, at, data=contents, family=buffer.family)
    word = LOAD_WORD.pack(packed=1)
    return {
        id(command): Command(
            Unit.LOAD,
            command.layer,
            {
                "word": word,
                "dram": BufferRef(target, 0, places[each]),
                "dst": command.fields["dst"],
                "len": lengths[each],
                "z_count": each.size // (2 * n),
                "dst_z": 2 * n,
            },
        )
        for command, each in zip(commands, lines, strict=True)
        if each is not None
    }


def _lines(command: Command, n: int) -> _Lines | None:
    """Return what a load reads; None if it cannot be packed."""
    fields = dict(command.fields)
    source, target = fields.pop("dram", None), fields.pop("dst", None)
    numbers = {name: value for name, value in fields.items() if isinstance(value, int)}
    if (
        command.unit != Unit.LOAD
        or not isinstance(source, BufferRef)
        or not isinstance(target, BufferRef)
        or target.buffer.memory != BufferMemory.SP
        or len(numbers) != len(fields)
        or numbers.get("word", 0) != 0
        or target.buffer.size % n
        or target.offset % n
    ):
        return None
    length = size = numbers.get("len", 1)
    steps = []
    for axis in "yz":
        count = numbers.get(f"{axis}_count", 1)
        if count > 1 and numbers.get(f"dst_{axis}", 0) != size:
            return None
        steps.append((count, numbers.get(f"dram_{axis}", 0)))
        size *= count
    if size % (2 * n) or size // (2 * n) >= 1 << 16:
        return None
    return _Lines(source.resolve(0), length, tuple(reversed(steps)))
