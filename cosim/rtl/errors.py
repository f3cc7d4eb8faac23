"""Errors of building and caching simulators. This module needs nothing but Python's standard library."""

from hw.errors import WorkError


class BuildError(WorkError):
    """Verilator, make or the C++ compiler refused the simulator."""


class ToolMissingError(WorkError):
    """A program needed to build the simulator is not installed."""


class DiskFullError(WorkError):
    """The disk, or the memory that holds the DRAM, is full."""
