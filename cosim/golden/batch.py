"""Execution of one sequence of unit commands on several copies of the machine's memories at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from cosim.golden.command import Command
from cosim.golden.fuse import WriteStatistics, run_block
from cosim.golden.matrix import run_copies
from cosim.golden.memory import Memories
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fuse_points import PointBlock, points
from cosim.semantics.packed_weights import expand
from hw.config import MlaConfig
from hw.isa.enums import BSource, Space, Unit

#: Number of elements that a FUSE command computes at once, over all copies.
_CHUNK_ELEMENTS = 1 << 18
#: Bytes after each copy of the scratchpad: rows that begin in a copy may end behind it.
_GUARD_BYTES = 256


@dataclass(frozen=True)
class MemoryImage:
    """Contents of all memories at one moment.

    Parameters
    ----------
    sp, param, table : numpy.ndarray
        Bytes of scratchpad, parameter slots and tables.
    acc : numpy.ndarray
        Accumulator, int32 of shape (row, lane).
    line : numpy.ndarray
        Pixels in the line buffers, of shape (pixel, lane).
    dram : numpy.ndarray
        Bytes of DRAM.
    """

    sp: np.ndarray
    param: np.ndarray
    table: np.ndarray
    acc: np.ndarray
    line: np.ndarray
    dram: np.ndarray

    @staticmethod
    def of(memories: Memories) -> "MemoryImage":
        """Return a copy of a machine's memories."""
        return MemoryImage(**{each.name: getattr(memories, each.name).copy() for each in fields(MemoryImage)})


class BatchMemories:
    """Copies of the machine's memories, all of which execute the same commands.

    Parameter slots and tables exist once: commands must load the same constants into them in every copy.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    image : MemoryImage
        Initial contents of every copy.
    copies : int
        Number of copies.
    first : int
        First DRAM address that commands may write; the DRAM below it exists once.

    Attributes
    ----------
    sp : numpy.ndarray
        Scratchpads, of shape (copy, byte).
    dram : numpy.ndarray
        DRAM from address `first` on, of shape (copy, byte).
    """

    def __init__(self, config: MlaConfig, image: MemoryImage, copies: int, first: int = 0):
        self.copies, self.first, self._shared = copies, first, image.dram
        spacing = config.sp_bytes + _GUARD_BYTES
        self._sp = np.zeros((copies, spacing), np.uint8)
        self.sp = self._sp[:, : config.sp_bytes]
        self.sp[:] = image.sp
        self.acc = np.repeat(image.acc[None], copies, axis=0)
        self.dram = np.repeat(image.dram[None, first:], copies, axis=0)
        #: All copies as one memory, in which FUSE commands address points of all copies.
        self._flat = Memories(config, image.dram)
        self._flat.sp, self._flat.acc = self._sp.reshape(-1), self.acc.reshape(-1, config.n)
        self._flat.param, self._flat.table = image.param.copy(), image.table.copy()
        self._each = [Memories(config, image.dram) for _ in range(copies)]
        for number, memories in enumerate(self._each):
            memories.sp, memories.acc = self.sp[number], self.acc[number]
            memories.line = image.line

    def run(self, commands: Iterable[Command]) -> None:
        """Execute commands in order."""
        for command in commands:
            if command.unit == Unit.LOAD:
                self._load(command.config)
            elif command.unit == Unit.STORE:
                self._store(command.config)
            elif command.unit == Unit.FUSE:
                self._fuse(command.config)
            else:
                run_copies(self._each, command.config)

    def _load(self, c: CommandFields) -> None:
        if c.packed:
            self._load_packed(c)
            return
        space = Space(c.space)
        target = self.sp if space == Space.SP else (None, self._flat.param, self._flat.table)[space]
        assert target is not None
        for z in range(c.z_count):
            if c.transpose:
                starts = [c.dram + z * c.dram_z + y * c.dram_y for y in range(c.y_count)]
                plane = np.stack([self._line(start, c.len, target) for start in starts], axis=-1)
                for column in range(c.len):
                    start = c.dst + z * c.dst_z + column * c.dst_y
                    target[..., start : start + c.y_count] = plane[..., column, :]
                continue
            for y in range(c.y_count):
                start = c.dst + z * c.dst_z + y * c.dst_y
                if c.fill:
                    target[..., start : start + c.len] = c.fill_value
                    continue
                line = self._line(c.dram + z * c.dram_z + y * c.dram_y, c.len, target)
                target[..., start : start + line.shape[-1]] = line

    def _load_packed(self, c: CommandFields) -> None:
        n = self._flat.config.n
        for y in range(c.y_count):
            line = self._line(c.dram + y * c.dram_y, c.len, self.sp)
            lines = [expand(each, c.z_count, n) for each in line.reshape(-1, c.len)]
            groups = np.stack(lines).reshape(*line.shape[:-1], c.z_count, 2 * n)
            for z in range(c.z_count):
                start = c.dst + y * c.dst_y + z * c.dst_z
                self.sp[..., start : start + 2 * n] = groups[..., z, :]

    def _line(self, start: int, size: int, target: np.ndarray) -> np.ndarray:
        """Return bytes of DRAM for a target: of shape (byte) if either exists once, otherwise of shape (copy, byte)."""
        if start >= self.first:
            line = self.dram[:, start - self.first : start - self.first + size]
            return line if target.ndim == 2 else line[0]
        assert start + size <= self.first, "a line of a LOAD begins in constants and ends behind them"
        return self._shared[start : start + size]

    def _store(self, c: CommandFields) -> None:
        for z in range(c.z_count):
            for y in range(c.y_count):
                source = c.src + z * c.src_z + y * c.src_y
                target = c.dram + z * c.dram_z + y * c.dram_y - self.first
                self.dram[:, target : target + c.len] = self.sp[:, source : source + c.len]

    def _fuse(self, c: CommandFields) -> None:
        config = self._flat.config
        count, size = c.n_count * c.y_count * c.x_count, c.wy_count * c.wx_count
        copies = max(1, min(self.copies, _CHUNK_ELEMENTS // (count * size * config.n)))
        step = max(1, _CHUNK_ELEMENTS // (copies * size * config.n))
        # Blocks of copies outermost: the points of one copy keep their order.
        for start in range(0, self.copies, copies):
            which = np.arange(start, min(self.copies, start + copies))
            for first in range(0, count, step):
                block = points(c, config.n, first, min(count, first + step))
                run_block(self._flat, c, _CopiedBlock.of(block, which, self._spacing(c)), WriteStatistics())

    def _spacing(self, c: CommandFields) -> dict[str, int]:
        """Return the distance between copies in each stream's memory."""
        sp, acc = self._sp.shape[1], self.acc.shape[1]
        return {
            "a": sp if c.a_src else acc,
            "b": acc if c.b_src == BSource.ACC else sp,
            "r": sp,
            "d": sp if c.d_dst else acc,
        }


@dataclass
class _CopiedBlock(PointBlock):
    """Points of several copies.

    Parameters
    ----------
    copy : numpy.ndarray
        Number of the copy to which each point belongs.
    spacing : dict
        Distance between copies in the memory of each stream.
    """

    copy: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    spacing: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(block: PointBlock, copies: np.ndarray, spacing: dict[str, int]) -> "_CopiedBlock":
        """Return the points of a block in each of the given copies."""
        number = copies.size

        def tiled(array: np.ndarray) -> np.ndarray:
            return np.tile(array, number)

        return _CopiedBlock(
            {dim: tiled(array) for dim, array in block.index.items()},
            tiled(block.valid),
            tiled(block.u),
            tiled(block.v),
            tiled(block.lanes),
            block.width,
            np.repeat(copies, block.valid.size),
            spacing,
        )

    def address(self, c: CommandFields, stream: str) -> np.ndarray:
        """Return the address of every point in a stream, in the copy of the point."""
        return super().address(c, stream) + self.copy * self.spacing[stream]
