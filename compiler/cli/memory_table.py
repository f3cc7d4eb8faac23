"""Formats the memory use of a network."""

from collections.abc import Mapping
from typing import Any


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """Format the JSON field `memory` as two lines: on-chip memories and DRAM."""
    store, dram = memory["instruction_store"], memory["dram"]
    reloaded = "" if store["resident"] else " (reloaded at run time)"
    return [
        f"memory: scratchpad {_peak(memory['scratchpad'])}, accumulator {_peak(memory['accumulator'])}, instruction "
        f"store {store['words']:,} of {store['available']:,} words{reloaded}",
        f"DRAM: weights {dram['weights']:,}, inputs {dram['inputs']:,}, outputs {dram['outputs']:,}, intermediate "
        f"buffers {dram['intermediate']:,}, total {dram['total']:,} bytes",
    ]


def _peak(use: Mapping[str, Any]) -> str:
    """Format the peak use of a memory and its size."""
    if use["peak_bytes"] is None:
        return f"unknown of {use['bytes']:,} bytes"
    return f"{use['peak_bytes']:,} of {use['bytes']:,} bytes ({use['peak_bytes'] / use['bytes']:.0%})"
