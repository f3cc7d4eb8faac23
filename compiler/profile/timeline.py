"""Unit activity over time, from a recording of the simulator."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cosim.rtl.abi import Recording
from hw.isa.enums import Unit

#: Lanes of a timeline, in pipeline order.
LANES = ("programs", *(unit.name.lower() for unit in Unit))

_UNITS = len(Unit)
_ENTERED, _HALTED = 2 * _UNITS, 2 * _UNITS + 1
_TAG_BITS = 6


@dataclass(frozen=True)
class Span:
    """An interval of activity in one lane.

    Parameters
    ----------
    lane : str
        One of LANES.
    tag : int
        Tag of the layer.
    start, end : int
        Cycles since the recording's first event; `end` is the first one after it.
    """

    lane: str
    tag: int
    start: int
    end: int


def spans(recording: Recording) -> list[Span]:
    """All intervals of activity, lane by lane.

    Commands of a unit overlap: a later one starts while earlier ones are still completing. A span begins where the one
    before ends, so that each cycle counts for the oldest active command.
    """
    if not len(recording.events):
        return []
    return [*_programs(recording), *(span for unit in Unit for span in _commands(recording, unit))]


def _at(recording: Recording, bit: int) -> tuple[np.ndarray, np.ndarray]:
    """Cycles (from the first event) and tags of the events with a pulse."""
    events = recording.events
    chosen = events[(events["pulses"] >> bit & 1) == 1]
    return (chosen["cycle"] - events["cycle"][0]).astype(np.int64), chosen["tags"]


def _tag(tags: int, index: int) -> int:
    return int(tags) >> (_TAG_BITS * index) & (1 << _TAG_BITS) - 1


def _programs(recording: Recording) -> Iterator[Span]:
    starts, tags = _at(recording, _ENTERED)
    ends, _ = _at(recording, _HALTED)
    for start, end, tag in zip(starts, ends, tags, strict=False):
        yield Span("programs", _tag(tag, _UNITS), int(start), int(end))


def _commands(recording: Recording, unit: Unit) -> Iterator[Span]:
    starts, tags = _at(recording, unit)
    ends, _ = _at(recording, _UNITS + unit)
    free = 0
    for start, end, tag in zip(starts, ends, tags, strict=False):
        begin = max(int(start), free)
        free = max(int(end) + 1, begin)
        if free > begin:
            yield Span(unit.name.lower(), _tag(tag, unit), begin, free)
