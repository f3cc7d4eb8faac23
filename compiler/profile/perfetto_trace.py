"""Conversion of simulator recordings to intervals of unit activity, and to traces for Perfetto."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosim.rtl.abi import BEATS_WINDOW, Recording
from hw.isa.enums import Unit

#: Lanes of a timeline, in pipeline order.
LANES = ("programs", *(unit.name.lower() for unit in Unit))

_UNITS = len(Unit)
_ENTERED, _HALTED = 2 * _UNITS, 2 * _UNITS + 1
_TAG_BITS = 6


@dataclass(frozen=True)
class Span:
    """Interval of activity in one lane.

    Parameters
    ----------
    lane : str
        Lane of the timeline, one of LANES.
    tag : int
        Counter tag of the layer.
    start, end : int
        Cycles since the recording's first event; `end` is exclusive.
    """

    lane: str
    tag: int
    start: int
    end: int


def spans(recording: Recording) -> list[Span]:
    """Return all intervals of activity, lane by lane.

    Commands of a unit overlap: a later command starts while earlier ones are still completing. A span begins no earlier
    than the previous one ends, so that each cycle counts for the oldest active command.
    """
    if not len(recording.events):
        return []
    return [*_programs(recording), *(span for unit in Unit for span in _commands(recording, unit))]


def _at(recording: Recording, bit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cycles, counted from the first event, and the tags of the events in which a signal pulses."""
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


#: Duration of a cycle in microseconds, the unit of the format.
_CYCLE = 0.001
_PROCESS = 1


def trace_json(recording: Recording, layers: Mapping[int, str], row_bytes: int) -> str:
    """Return the trace of a recording as JSON text.

    Parameters
    ----------
    recording : Recording
        Recording of one sample.
    layers : dict
        Layer names by tag.
    row_bytes : int
        Bytes per bus beat.
    """
    events = [*_lanes(), *_work(recording, layers), *_bus(recording, row_bytes)]
    about = {"time_unit": "1 ns of this trace is 1 clock cycle of the simulated chip"}
    return json.dumps({"displayTimeUnit": "ns", "otherData": about, "traceEvents": events})


def _lanes() -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": "MLA (1 ns = 1 cycle)"}}
    for number, lane in enumerate(LANES):
        about = {"ph": "M", "pid": _PROCESS, "tid": number}
        yield about | {"name": "thread_name", "args": {"name": lane}}
        yield about | {"name": "thread_sort_index", "args": {"sort_index": number}}


def _work(recording: Recording, layers: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for span in spans(recording):
        yield {
            "ph": "X",
            "pid": _PROCESS,
            "tid": LANES.index(span.lane),
            "name": layers.get(span.tag, f"tag {span.tag}"),
            "cat": span.lane,
            "ts": span.start * _CYCLE,
            "dur": (span.end - span.start) * _CYCLE,
            "args": {"cycle": span.start, "cycles": span.end - span.start},
        }


def _bus(recording: Recording, row_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield counter events with the DRAM bandwidth in each direction, averaged over windows."""
    if not len(recording.events):
        return
    first = int(recording.events["cycle"][0])
    for number, beats in enumerate(recording.beats):
        start = number * BEATS_WINDOW - first
        if start + BEATS_WINDOW > 0:
            rates = {name: int(beats[name]) * row_bytes / BEATS_WINDOW for name in ("read", "written")}
            yield {
                "ph": "C",
                "pid": _PROCESS,
                "name": "DRAM bytes a cycle",
                "ts": max(start, 0) * _CYCLE,
                "args": rates,
            }
