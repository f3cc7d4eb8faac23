"""Execution of LOAD and STORE commands."""

import numpy as np

from cosim.golden.memory import Memories
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.packed_weights import expand
from hw.isa.enums import Space

#: Increments of performance counters, by name.
Events = dict[str, int]


def run_load(memories: Memories, c: CommandFields) -> Events:
    """Execute a LOAD command and return its counter events."""
    if c.packed:
        return _load_packed(memories, c)
    target = (memories.sp, memories.param, memories.table)[Space(c.space)]
    for z in range(c.z_count):
        if c.transpose:
            _load_plane_transposed(memories.dram, target, c, z)
            continue
        for y in range(c.y_count):
            start = c.dst + z * c.dst_z + y * c.dst_y
            if c.fill:
                target[start : start + c.len] = c.fill_value
                continue
            source = c.dram + z * c.dram_z + y * c.dram_y
            line = memories.dram[source : source + c.len]
            target[start : start + line.size] = line
    return {"load_bytes": 0 if c.fill else c.len * c.y_count * c.z_count}


def _load_packed(memories: Memories, c: CommandFields) -> Events:
    n = memories.config.n
    for y in range(c.y_count):
        source, start = c.dram + y * c.dram_y, c.dst + y * c.dst_y
        groups = expand(memories.dram[source : source + c.len], c.z_count, n).reshape(c.z_count, 2 * n)
        for z, group in enumerate(groups):
            memories.sp[start + z * c.dst_z :][: 2 * n] = group
    return {"load_bytes": c.len * c.y_count, "load_expanded": 2 * n * c.z_count * c.y_count}


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
