"""The golden model: docs/machine.md in numpy, executing the same binaries through the same registers."""

from cosim.golden.device import GoldenDevice

__all__ = ["GoldenDevice"]
