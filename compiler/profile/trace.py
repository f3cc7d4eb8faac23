"""Converts recordings to traces for Perfetto (ui.perfetto.dev) and chrome://tracing.

Format: "Trace Event Format", the JSON of Chrome's tracing. A cycle is shown as a nanosecond.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from compiler.profile.timeline import LANES, spans
from cosim.rtl.abi import BEATS_WINDOW, Recording

#: Duration of a cycle in microseconds, the unit of the format.
_CYCLE = 0.001
_PROCESS = 1


def trace_json(recording: Recording, layers: Mapping[int, str], row_bytes: int) -> str:
    """Trace as JSON text.

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
    """DRAM bandwidth in each direction, averaged over windows."""
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
