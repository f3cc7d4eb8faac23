"""Golden model: numpy implementation of docs/machine.md with the same binaries and registers as the RTL."""

from cosim.golden.device import GoldenDevice

__all__ = ["GoldenDevice"]
