"""Balanced trees with a register after every level."""

from collections.abc import Callable, Sequence

from amaranth.hdl import Module, Value

from hw.lib.pipeline import register


def tree_latency(count: int) -> int:
    """Cycles `registered_tree` takes for `count` values."""
    return (count - 1).bit_length()


def registered_tree(
    m: Module, name: str, values: Sequence[Value], combine: Callable[[str, int, Value, Value], Value]
) -> Value:
    """Combine the values pairwise; `combine(name, level, a, b)` returns a named signal of one node.

    A comparison of 32 bits and the choice after it fill a cycle: each level has its own.
    """
    values = list(values)
    for level in range(tree_latency(len(values))):
        pairs = zip(values[::2], values[1::2], strict=True)
        nodes = [combine(f"{name}_{level}_{i}", level, a, b) for i, (a, b) in enumerate(pairs)]
        values = [register(m, f"{name}_{level}_{i}_r", node) for i, node in enumerate(nodes)]
    return values[0]
