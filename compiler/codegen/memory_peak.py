"""Peak use of the on-chip memories by a network."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.commands.commands import BufferMemory, CircularBuffer
from hw.config import MlaConfig

#: An accumulator row holds one int32 for each lane.
_ACC_BYTES = 4


@dataclass(frozen=True)
class Peak:
    """Greatest use of the memories on the chip at any point of the command sequence.

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
    """The peak of programs that do not run at the same time; None if one of them is not known."""
    found = Peak(0, 0)
    for peak in peaks:
        if peak is None:
            return None
        found = Peak(max(found.sp, peak.sp), max(found.acc, peak.acc))
    return found


def peak_use(config: MlaConfig, lives: Mapping[CircularBuffer, tuple[int, int]]) -> Peak:
    """The peak of a command sequence.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    lives : dict
        First and last position in the sequence at which each ring is in use.
    """
    return Peak(_peak(lives, BufferMemory.SP), _peak(lives, BufferMemory.ACC) * _ACC_BYTES * config.n)


def _peak(lives: Mapping[CircularBuffer, tuple[int, int]], memory: BufferMemory) -> int:
    """Largest sum of the sizes of rings that are alive together, in the memory's units."""
    changes: dict[int, int] = {}
    for ring, (first, last) in lives.items():
        if ring.memory == memory:
            changes[first] = changes.get(first, 0) + ring.total
            changes[last + 1] = changes.get(last + 1, 0) - ring.total
    peak = used = 0
    for at in sorted(changes):
        used += changes[at]
        peak = max(peak, used)
    return peak
