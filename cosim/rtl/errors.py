"""Errors in building and caching simulators. This module needs only Python's standard library."""

from hw.errors import WorkError


class BuildError(WorkError):
    """Verilator, make or the C++ compiler failed to build the simulator."""


class ToolMissingError(WorkError):
    """A program needed to build the simulator is not installed."""


class DiskFullError(WorkError):
    """The disk, or the shared memory that contains the DRAM, is full."""
