"""Execution of LOAD and STORE commands."""

import numpy as np

from cosim.golden.memory import Memories
from cosim.semantics.command_fields import CommandFields
from hw.isa.enums import Space

#: Increments of performance counters, by name.
Events = dict[str, int]


def run_load(memories: Memories, c: CommandFields) -> Events:
    """Execute a LOAD command and return its counter events."""
    target = (memories.sp, memories.param, memories.table)[Space(c.space)]
    for z in range(c.z_count):
        if c.transpose:
            _load_plane_transposed(memories.dram, target, c, z)
            continue
        for y in range(c.y_count):
            start = c.dst + z * c.dst_z + y * c.dst_y
            if c.fill:
                target[start : start + c.len * (2 if c.int4 else 1)] = c.fill_value
                continue
            source = c.dram + z * c.dram_z + y * c.dram_y
            line = memories.dram[source : source + c.len]
            if c.int4:
                line = expand_nibbles(line)
            target[start : start + line.size] = line
    return {"load_bytes": 0 if c.fill else c.len * c.y_count * c.z_count}


def expand_nibbles(line: np.ndarray) -> np.ndarray:
    """Expand bytes with pairs of int4 values to sign-extended bytes, with the low nibble first."""
    pairs = np.stack([line & 15, line >> 4], axis=-1).reshape(-1)
    return ((pairs ^ 8) - 8).astype(np.uint8)


def _load_plane_transposed(dram: np.ndarray, target: np.ndarray, c: CommandFields, z: int) -> None:
    lines = c.dram + z * c.dram_z + np.arange(c.y_count) * c.dram_y
    for column in range(c.len):
        start = c.dst + z * c.dst_z + column * c.dst_y
        target[start : start + c.y_count] = dram[lines + column]


def run_store(memories: Memories, c: CommandFields) -> Events:
    """Execute a STORE command and return its counter events."""
    for z in range(c.z_count):
        for y in range(c.y_count):
            source = c.src + z * c.src_z + y * c.src_y
            target = c.dram + z * c.dram_z + y * c.dram_y
            memories.dram[target : target + c.len] = memories.sp[source : source + c.len]
    return {"store_bytes": c.len * c.y_count * c.z_count}
