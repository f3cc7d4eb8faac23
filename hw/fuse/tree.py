"""Balanced trees with a register after every two levels."""

from collections.abc import Callable, Sequence

from amaranth.hdl import Module, Value

from hw.fuse.layouts import register

LEVELS_PER_STAGE = 2


def tree_latency(count: int) -> int:
    """Cycles `registered_tree` takes for `count` values."""
    levels = (count - 1).bit_length()
    return -(-levels // LEVELS_PER_STAGE)


def registered_tree(
    m: Module, name: str, values: Sequence[Value], combine: Callable[[str, int, Value, Value], Value]
) -> Value:
    """Combine the values pairwise; `combine(name, stage, a, b)` returns a named signal of one node in
    pipeline stage `stage`.
    """
    level = 0
    values = list(values)
    while len(values) > 1:
        stage = level // LEVELS_PER_STAGE
        values = [
            combine(f"{name}_{level}_{i}", stage, values[2 * i], values[2 * i + 1])
            for i in range(len(values) // 2)
        ]
        level += 1
        if level % LEVELS_PER_STAGE == 0 or len(values) == 1:
            values = [register(m, f"{name}_{level}_{i}_r", value) for i, value in enumerate(values)]
    return values[0]
