"""Random numbers whose seed is printed, as in tests/compiler."""

from tests.compiler.conftest import rng

__all__ = ["rng"]
