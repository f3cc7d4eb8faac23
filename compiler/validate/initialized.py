"""Tracks the on-chip bytes and rows that a stream has written."""

import hashlib
from collections.abc import Iterator

import numpy as np

from compiler.validate.footprint import StridedRegion, accumulates, intervals, streams
from cosim.semantics.command_fields import CommandFields
from hw.config import MlaConfig
from hw.isa.enums import Unit


class InitializedMemory:
    """A written flag for each byte of scratchpad, slots and tables, and for each row of the accumulator.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration, for the memory sizes.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        self._flags = {
            "sp": np.zeros(config.sp_bytes, bool),
            "acc": np.zeros(config.acc_rows, bool),
            "param": np.zeros(config.param_slots * 16 * config.n, bool),
            "table": np.zeros(config.table_slots * 512, bool),
        }

    @property
    def size(self) -> int:
        """Memory of all flags in bytes."""
        return sum(flags.nbytes for flags in self._flags.values())

    def copy(self) -> "InitializedMemory":
        """Copy the flags so that another path can continue from here."""
        other = InitializedMemory(self._config)
        other._flags = {space: flags.copy() for space, flags in self._flags.items()}
        return other

    def digest(self) -> bytes:
        """SHA-256 digest of the flags."""
        return hashlib.sha256(b"".join(flags.tobytes() for flags in self._flags.values())).digest()

    def enter(self, unit: Unit, c: CommandFields) -> tuple[str, int] | None:
        """Record a command; returns memory and first address that it reads before any write, or None."""
        regions = streams(self._config, unit, c, used=True)
        for item in regions:
            if item.space == "dram" or (item.write and not accumulates(unit, c)):
                continue
            for start, end in _stretches(item):
                missing = np.flatnonzero(~self._flags[item.space][start:end])
                if missing.size:
                    return item.space, start + int(missing[0])
        for item in regions:
            if item.write and item.space != "dram":
                for start, end in _stretches(item):
                    self._flags[item.space][start:end] = True
        return None


def _stretches(item: StridedRegion) -> Iterator[tuple[int, int]]:
    starts, ends = intervals(item.steps, item.run, item.high - item.low)
    return zip((starts + item.low).tolist(), (ends + item.low).tolist(), strict=True)
