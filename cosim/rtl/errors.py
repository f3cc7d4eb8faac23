"""Errors that occur when simulators are built or cached.

This module does not import any third-party package.
"""

from hw.errors import WorkError


class BuildError(WorkError):
    """Verilator, make or the C++ compiler failed to build the simulator."""


class ToolMissingError(WorkError):
    """A program needed to build the simulator is not installed."""


class DiskFullError(WorkError):
    """The disk, or the shared memory that contains the DRAM, is full."""
