"""Unit commands whose addresses are not fixed yet.

A generator of a layer writes commands over *rings*: stretches of a memory that hold one tile, or `depth` of them in
turn. Where a ring lies is decided when all commands are known and in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cosim.semantics.bounding_box import BoundingBox
from hw.isa.enums import Unit


class BufferMemory(StrEnum):
    """Memory of a ring, which determines its unit of size."""

    SP = "sp"  # bytes
    ACC = "acc"  # rows
    SLOT = "slot"  # parameter slots
    TABLE = "table"  # table slots
    DRAM = "dram"  # bytes


@dataclass(eq=False)
class CircularBuffer:
    """Room for `depth` tiles.

    Parameters
    ----------
    memory : BufferMemory
        Memory that contains the buffer.
    name : str
        Name shown in listings.
    size : int
        Size of one tile, in the units of the memory.
    depth : int
        Number of tiles it holds; tile i has index i modulo depth.
    data : array or None
        Initial contents of a ring in DRAM: weights, parameters, tables.
    family : str
        Common name of rings that are used in rotation; empty for a single ring.
    """

    memory: BufferMemory
    name: str
    size: int
    depth: int = 1
    data: NDArray[np.uint8] | None = field(default=None, repr=False)
    family: str = ""

    @property
    def total(self) -> int:
        """Size of all tiles."""
        return self.size * self.depth


@dataclass(frozen=True)
class BufferRef:
    """An address in a ring: (start of tile `index` + offset) * scale + base."""

    ring: CircularBuffer
    index: int = 0
    offset: int = 0
    scale: int = 1
    base: int = 0

    def plus(self, offset: int) -> "BufferRef":
        """An address further on."""
        return BufferRef(self.ring, self.index, self.offset + offset, self.scale, self.base)

    def resolve(self, start: int) -> int:
        """The number, given where the ring starts."""
        tile = self.index % self.ring.depth
        return (start + tile * self.ring.size + self.offset) * self.scale + self.base


#: Fields that say where a command reads and writes.
READS = {
    Unit.LOAD: ("dram",),
    Unit.MATRIX: ("a_base", "w_base"),
    Unit.FUSE: ("a_base", "b_base", "r_base", "p_base", "stage"),
    Unit.STORE: ("src",),
}
WRITES = {Unit.LOAD: "dst", Unit.MATRIX: "acc_base", Unit.FUSE: "d_base", Unit.STORE: "dram"}


#: A ring and which of its places.
Tile = tuple[CircularBuffer, int]


class Numbers(NamedTuple):
    """Field values of a command for given ring addresses.

    Parameters
    ----------
    starts : tuple of int
        Start addresses of its rings.
    values : tuple of int
        All fields of the unit, in the order of its table.
    region : int
        Operand that the address in DRAM is relative to.
    reach : list of Box
        Memory regions it reads and writes.
    """

    starts: tuple[int, ...]
    values: tuple[int, ...]
    region: int
    reach: list[BoundingBox]


@dataclass(eq=False)
class Command:
    """One unit command; it does not change once it is made.

    Parameters
    ----------
    unit : Unit
        Unit that executes it.
    layer : int
        Layer it belongs to: its tag.
    fields : dict
        Values of the fields that are not at their defaults.
    cycles : int or None
        Lower bound of its cycles, once computed (`compiler.commands.command_cycles`).
    numbers : Numbers or None
        Field values for the last addresses of its rings.
    """

    unit: Unit
    layer: int
    fields: dict[str, int | BufferRef]
    cycles: int | None = field(default=None, repr=False)
    numbers: Numbers | None = field(default=None, repr=False)

    def reads(self) -> Iterator[BufferRef]:
        """Addresses that it reads."""
        for name in READS[self.unit]:
            value = self.fields.get(name)
            if isinstance(value, BufferRef):
                yield value

    def write(self) -> BufferRef:
        """Address that it writes."""
        value = self.fields[WRITES[self.unit]]
        assert isinstance(value, BufferRef)
        return value

    def refs(self) -> Iterator[BufferRef]:
        """All addresses that it reads or writes."""
        yield from self.reads()
        yield self.write()

    @cached_property
    def sources(self) -> frozenset[Tile]:
        """Tiles that it reads."""
        return frozenset((ref.ring, ref.index % ref.ring.depth) for ref in self.reads())

    @cached_property
    def target(self) -> Tile:
        """The tile that it writes."""
        ref = self.write()
        return ref.ring, ref.index % ref.ring.depth

    @cached_property
    def rings(self) -> tuple[CircularBuffer, ...]:
        """All rings that it touches."""
        return tuple(dict.fromkeys(ref.ring for ref in self.refs()))


class UnitCycles(NamedTuple):
    """Cycles of a step's commands of MATRIX and STORE, and of the slowest of its units."""

    matrix: int
    stores: int
    whole: int


@dataclass(eq=False)
class TileStep:
    """The commands of one tile. MATRIX of the next step may run beside FUSE of this one.

    `block` is its first block of output channels, of layers that hand blocks over; `effort` what it takes, once
    somebody has counted (`compiler.commands.command_cycles`).
    """

    block: int = 0
    effort: UnitCycles | None = field(default=None, repr=False)
    loads: list[Command] = field(default_factory=list)
    matrix: list[Command] = field(default_factory=list)
    fuse: list[Command] = field(default_factory=list)
    stores: list[Command] = field(default_factory=list)

    def commands(self) -> Iterator[Command]:
        """All of them."""
        yield from self.loads
        yield from self.matrix
        yield from self.fuse
        yield from self.stores
