"""Allocation of addresses to circular buffers, without overlap while in use, and peak use of the memories."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.commands.commands import BufferMemory, CircularBuffer
from hw.config import MlaConfig
from hw.errors import InputError

#: An accumulator row holds one int32 for each lane.
_ACC_BYTES = 4


@dataclass(frozen=True)
class Peak:
    """Peak use of the on-chip memories over the command sequence.

    Parameters
    ----------
    sp : int
        Peak of the scratchpad, in bytes.
    acc : int
        Peak of the accumulator, in bytes.
    """

    sp: int
    acc: int


def joint_peak(peaks: Iterable[Peak | None]) -> Peak | None:
    """Return the joint peak of programs that do not run at the same time; None if one of the peaks is unknown."""
    found = Peak(0, 0)
    for peak in peaks:
        if peak is None:
            return None
        found = Peak(max(found.sp, peak.sp), max(found.acc, peak.acc))
    return found


def peak_use(config: MlaConfig, lives: Mapping[CircularBuffer, tuple[int, int]]) -> Peak:
    """Return the peak memory use of a command sequence.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    lives : dict
        First and last position in the sequence at which each buffer is in use.
    """
    return Peak(_peak(lives, BufferMemory.SP), _peak(lives, BufferMemory.ACC) * _ACC_BYTES * config.n)


def _peak(lives: Mapping[CircularBuffer, tuple[int, int]], memory: BufferMemory) -> int:
    """Return the maximum total size of buffers that are live at the same time, in the memory's units."""
    changes: dict[int, int] = {}
    for buffer, (first, last) in lives.items():
        if buffer.memory == memory:
            changes[first] = changes.get(first, 0) + buffer.total
            changes[last + 1] = changes.get(last + 1, 0) - buffer.total
    peak = used = 0
    for at in sorted(changes):
        used += changes[at]
        peak = max(peak, used)
    return peak


class MemoryFullError(InputError):
    """Error for buffers that do not fit a memory of the machine.

    Attributes
    ----------
    memory : BufferMemory
        Memory that is full.
    first, last : int
        First and last position in the command sequence at which the memory is full.
    buffers : tuple of str
        Names of the buffers in use between these positions, by decreasing lifetime.
    layers : tuple of str
        Names of the layers that use these buffers.
    """

    def __init__(
        self,
        message: str,
        memory: BufferMemory,
        first: int,
        last: int,
        buffers: tuple[str, ...],
        layers: tuple[str, ...] = (),
    ):
        super().__init__(message)
        self.memory, self.first, self.last, self.buffers, self.layers = memory, first, last, buffers, layers


@dataclass(frozen=True)
class _Taken:
    start: int
    end: int
    first: int
    last: int
    users: frozenset[int]


#: Commands at most this many positions apart may execute concurrently.
_CONCURRENT_DISTANCE = 8
#: Number of positions of the sequence per bucket of the lifetime index.
_BUCKET = 64


class _Times:
    """Index of the allocations by position in the command sequence; few allocations are live at each position."""

    def __init__(self) -> None:
        self.spans: dict[int, list[_Taken]] = {}

    def add(self, taken: _Taken) -> None:
        """Add an allocation."""
        for span in range(taken.first // _BUCKET, taken.last // _BUCKET + 1):
            self.spans.setdefault(span, []).append(taken)

    def between(self, first: int, last: int) -> list[_Taken]:
        """Return the allocations that are live anywhere from the first to the last position."""
        spans = range(first // _BUCKET, last // _BUCKET + 1)
        return [
            taken
            for span in spans
            for taken in self.spans.get(span, ())
            # Return each allocation only for the first bucket that it shares with the range.
            if max(taken.first // _BUCKET, spans[0]) == span and taken.first <= last and first <= taken.last
        ]


def allocate_buffers(
    config: MlaConfig,
    lives: Mapping[CircularBuffer, tuple[int, int]],
    users: Mapping[CircularBuffer, frozenset[int]],
    reference: Mapping[CircularBuffer, int] | None = None,
) -> dict[CircularBuffer, int]:
    """Return the start address of every on-chip buffer; buffers in DRAM are ignored.

    Buffers are placed in order of decreasing size. Banks that the buffer's layers do not otherwise use are preferred,
    followed by banks without other live buffers. Among equally good addresses, the one in `reference` is used if it is
    among them, else the lowest.

    Parameters
    ----------
    lives : dict
        First and last position in the command sequence at which each buffer is in use.
    users : dict
        Layers that access each buffer, except those that only prefetch into it.
    reference : dict or None
        Addresses of buffers in another command sequence, so that programs of unchanged layers remain the same; ignored
        for a memory in which the buffers would otherwise not fit.

    Raises
    ------
    MemoryFullError
        The buffers do not fit.
    """
    starts: dict[CircularBuffer, int] = {}
    pairs = any(buffer.wide for buffer in lives)
    for memory, sizes in _sizes(config, 2 * config.n if pairs else config.n).items():
        buffers = [buffer for buffer in lives if buffer.memory == memory]
        packed: set[CircularBuffer] = set()
        preferred = reference or {}
        while True:
            try:
                starts |= _allocate(buffers, lives, users, sizes, packed, preferred)
                break
            except _NoRoomError as error:
                if preferred:
                    preferred = {}
                    continue
                if error.here <= packed:
                    raise error.full from None
                packed |= error.here
    return starts


class _NoRoomError(Exception):
    """Error for a buffer that does not fit between other live buffers; tighter packing may succeed."""

    def __init__(self, full: MemoryFullError, here: set[CircularBuffer]):
        super().__init__(str(full))
        self.full, self.here = full, here


def _sizes(config: MlaConfig, align: int) -> dict[BufferMemory, tuple[int, int, int]]:
    """Return capacity, bank size and alignment of each on-chip memory, in units of the memory; `align`: scratchpad."""
    return {
        BufferMemory.SP: (config.sp_bytes, config.sp_bytes // config.sp_banks, align),
        BufferMemory.ACC: (config.acc_rows, config.acc_rows // config.acc_banks, 1),
        BufferMemory.SLOT: (config.param_slots, config.param_slots, 1),
        BufferMemory.TABLE: (config.table_slots, config.table_slots, 1),
    }


def _allocate(
    buffers: list[CircularBuffer],
    lives: Mapping[CircularBuffer, tuple[int, int]],
    users: Mapping[CircularBuffer, frozenset[int]],
    sizes: tuple[int, int, int],
    packed: set[CircularBuffer],
    preferred: Mapping[CircularBuffer, int],
) -> dict[CircularBuffer, int]:
    """Return the start addresses of buffers; those in `packed` are placed as low as possible, regardless of banks.

    Raises
    ------
    _NoRoomError
        A buffer does not fit.
    """
    capacity, bank, align = sizes
    starts: dict[CircularBuffer, int] = {}
    taken = _Times()
    for buffer in sorted(buffers, key=lambda r: (-r.total, lives[r])):
        first, last = lives[buffer]
        wide, soon = (capacity, 0) if buffer in packed else (bank, _CONCURRENT_DISTANCE)
        around = taken.between(max(first - soon, 0), last + soon)
        near = [t for t in around if t.first <= last and first <= t.last]
        before = preferred.get(buffer)
        if before is not None and buffer.wide and before % align:
            before = None
        start = _start(buffer.total, users[buffer], near, around, capacity, wide, align, before)
        if start is None:
            here = [r for r in buffers if lives[r][0] <= last and first <= lives[r][1]]
            names = tuple(r.name for r in sorted(here, key=lambda r: lives[r][0] - lives[r][1]))
            full = MemoryFullError(_message(buffer, here, capacity), buffer.memory, first, last, names)
            raise _NoRoomError(full, set(here))
        starts[buffer] = start
        taken.add(_Taken(start, start + buffer.total, first, last, users[buffer]))
    return starts


def _start(
    size: int,
    users: frozenset[int],
    near: list[_Taken],
    around: list[_Taken],
    capacity: int,
    bank: int,
    align: int,
    preferred: int | None,
) -> int | None:
    """Return an address at which a buffer shares the fewest banks with live buffers; None if none fits.

    Among several such addresses, `preferred` is returned if it is one of them, else the lowest.

    Addresses of buffers in use shortly before or after (`around`) are avoided, because accesses to one buffer would
    wait for accesses to the other.
    """
    candidates = {0, *(-(-t.end // align) * align for t in around), *range(0, capacity, bank)}
    busy = _banks([t for t in near if t.users & users], bank)
    used = _banks(near, bank)
    best: tuple[tuple[int, int, int], int] | None = None
    for start in (*(() if preferred is None else (preferred,)), *sorted(candidates)):
        end = start + size
        if end > capacity or any(t.start < end and start < t.end for t in near):
            continue
        banks = range(start // bank, (end - 1) // bank + 1)
        soon = sum(t.start < end and start < t.end for t in around)
        shared = sum(b in busy for b in banks), soon, sum(b in used for b in banks)
        if best is None or shared < best[0]:
            best = shared, start
        if shared == (0, 0, 0):
            break
    return best and best[1]


def _banks(taken: list[_Taken], bank: int) -> set[int]:
    return {b for t in taken for b in range(t.start // bank, (t.end - 1) // bank + 1)}


def _message(buffer: CircularBuffer, here: list[CircularBuffer], capacity: int) -> str:
    others = sorted((r for r in here if r is not buffer), key=lambda r: -r.total)
    most = ", ".join(f"{r.name} {r.total}" for r in others[:4])
    return f"{buffer.name} of {buffer.total} does not fit {buffer.memory.value} of {capacity}" + (
        f" in addition to {most}" if most else ""
    )
