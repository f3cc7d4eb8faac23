"""Fixtures of a small network and its measurer, shared by all tests of serving."""

from tests.support.small_network import graph, measurer

__all__ = ["graph", "measurer"]
