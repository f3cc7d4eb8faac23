"""Writable instruction store: its words, its segment table, and the rules for changes to both."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hw.config import MlaConfig
from hw.isa.enums import SegmentState

IN_USE, BAD_RANGE, NOT_OPEN, BAD_CRC, BUS, OVERLAP = 1, 2, 3, 4, 5, 6


class RefusedError(Exception):
    """Refusal of a host command by the instruction store.

    Parameters
    ----------
    error : int
        Value that register LOADER_ERROR gets.
    trap : tuple of (int, int) or None
        Segment and word address that a trap reports if the segment cannot be changed because it is in use; otherwise
        None.
    """

    def __init__(self, error: int, trap: tuple[int, int] | None = None):
        super().__init__(f"loader error {error}")
        self.error = error
        self.trap = trap


@dataclass
class StoredSegment:
    """Entry of the segment table.

    Parameters
    ----------
    state : SegmentState
        State of the segment; only VALID segments can run.
    base, length : int
        Address of the first word in the store, and number of words.
    pinned : bool
        True if all programs may call the segment, which then cannot be changed.
    """

    state: SegmentState = SegmentState.FREE
    base: int = 0
    length: int = 0
    pinned: bool = False


class InstructionStore:
    """Words of the instruction store and their segments.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine, which determines the number of words and segments.
    running : Callable
        Function that returns the segments of the running program and its callers.
    """

    def __init__(self, config: MlaConfig, running: Callable[[], set[int]]):
        self.words = [0] * config.wis_words
        self.segments = [StoredSegment() for _ in range(config.segments)]
        self._running = running

    def in_use(self, index: int) -> bool:
        """Return True if a segment cannot be changed: it is pinned, or contains the running program or a caller."""
        return self.segments[index].pinned or index in self._running()

    def open(self, index: int, base: int, length: int) -> None:
        """Open a segment and reserve words base..base + length - 1 for it."""
        segment = self._selected(index)
        self._refuse_in_use(index, segment.base)
        if length == 0 or base + length > len(self.words):
            raise RefusedError(BAD_RANGE)
        for other in self.segments:
            occupied = other is not segment and other.state != SegmentState.FREE
            if occupied and base < other.base + other.length and other.base < base + length:
                raise RefusedError(OVERLAP)
        self.segments[index] = StoredSegment(SegmentState.OPEN, base, length)

    def check(self, index: int, crc: int) -> None:
        """Check the CRC of a segment's words; the state of the segment becomes VALID or FAILED."""
        segment = self._selected(index)
        if segment.state not in (SegmentState.OPEN, SegmentState.FAILED):
            raise RefusedError(NOT_OPEN)
        if zlib.crc32(self.image(segment)) == crc:
            segment.state = SegmentState.VALID
        else:
            segment.state = SegmentState.FAILED

    def free(self, index: int) -> None:
        """Free a segment and its words."""
        segment = self._selected(index)
        self._refuse_in_use(index, segment.base)
        segment.state = SegmentState.FREE

    def pin(self, index: int) -> None:
        """Pin a valid segment, so that every program may call it and it cannot be changed until reset."""
        segment = self._selected(index)
        if segment.state != SegmentState.VALID:
            raise RefusedError(NOT_OPEN)
        segment.pinned = True

    def load(self, index: int, length: int, dram: np.ndarray, source: int) -> None:
        """Copy the words of an open segment from byte address `source` of DRAM."""
        segment = self._selected(index)
        if segment.state not in (SegmentState.OPEN, SegmentState.FAILED):
            raise RefusedError(NOT_OPEN)
        if length != segment.length:
            raise RefusedError(BAD_RANGE)
        if source + 8 * length > dram.size:
            segment.state = SegmentState.FAILED
            raise RefusedError(BUS)
        segment.state = SegmentState.OPEN
        self.words[segment.base : segment.base + length] = (
            dram[source : source + 8 * length].view("<u8").tolist()
        )

    def write(self, address: int, word: int) -> None:
        """Write the word at an address of the store; the state of its segment becomes OPEN."""
        if address >= len(self.words):
            raise RefusedError(BAD_RANGE)
        for index, segment in enumerate(self.segments):
            if segment.state != SegmentState.FREE and segment.base <= address < segment.base + segment.length:
                self._refuse_in_use(index, address)
                self.words[address] = word
                segment.state = SegmentState.OPEN
                return
        raise RefusedError(NOT_OPEN)

    def image(self, segment: StoredSegment) -> bytes:
        """Return the words of a segment as little-endian bytes."""
        return np.array(self.words[segment.base : segment.base + segment.length], "<u8").tobytes()

    def status(self, index: int) -> int:
        """Return the value of register SEG_STATUS for a segment; 0 if no such segment exists."""
        if index >= len(self.segments):
            return 0
        segment = self.segments[index]
        return segment.state | segment.pinned << 3 | self.in_use(index) << 4

    def _selected(self, index: int) -> StoredSegment:
        if index >= len(self.segments):
            raise RefusedError(BAD_RANGE)
        return self.segments[index]

    def _refuse_in_use(self, index: int, address: int) -> None:
        if self.in_use(index):
            raise RefusedError(IN_USE, (index, address))
