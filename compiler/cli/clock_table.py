"""Formats time and power at the clock frequency of `--clock`."""

from collections.abc import Mapping
from typing import Any


def clock_lines(document: Mapping[str, Any]) -> list[str]:
    """Return one line with time and power; none without `--clock` or if cycles were not measured."""
    if document["milliseconds"] is None:
        return []
    host = ", excluding host operators" if document["host_ops"] else ""
    return [
        f"at {document['clock_mhz']:g} MHz: {document['milliseconds']:,.4g} ms per inference, "
        f"{document['inferences_per_second']:,.1f} inferences per second{host}; about "
        f"{document['milliwatts']:,.3g} mW, estimated for a 45 nm process"
    ]
