"""Golden model: implementation of docs/machine.md in numpy, with the same binaries and registers as the RTL."""

from cosim.golden.device import GoldenDevice

__all__ = ["GoldenDevice"]
