"""Time and power at the clock of `--clock`, as text."""

from collections.abc import Mapping
from typing import Any


def clock_lines(document: Mapping[str, Any]) -> list[str]:
    """A line about a report's time and power; none without `--clock`, or where there are no cycles."""
    if document["milliseconds"] is None:
        return []
    host = ", without the host's operators" if document["host_ops"] else ""
    return [
        f"at {document['clock_mhz']:g} MHz: {document['milliseconds']:,.4g} ms an inference, "
        f"{document['inferences_per_second']:,.1f} inferences per second{host}; about "
        f"{document['milliwatts']:,.3g} mW, estimated with energies of a 45 nm process"
    ]
