"""Golden model: docs/machine.md in numpy. It executes the same binaries through the same registers as the RTL."""

from cosim.golden.device import GoldenDevice

__all__ = ["GoldenDevice"]
