"""Balanced trees of named signals: multiplexers, sums, and combinations with a register after every level."""

from collections.abc import Callable, Sequence

from amaranth.hdl import Module, Mux, Signal, Value

from hw.lib.pipeline import pipeline_register


def select_tree(m: Module, name: str, number: Value, values: dict[int, Value]) -> Value:
    """Return values[number], selected by a tree of two-way multiplexers; arbitrary if `number` is not a key.

    Parameters
    ----------
    m : Module
        Module that the tree is added to.
    name : str
        Prefix of the names of the tree's signals.
    number : Value
        Index of the value to select.
    values : dict of int to Value
        Values to select from, at least one; every key fits the width of `number`.
    """
    level = dict(values)
    for bit in range(len(number)):
        merged: dict[int, Value] = {}
        for key in sorted({k >> 1 for k in level}):
            pair = [level[k] for k in (2 * key, 2 * key + 1) if k in level]
            if len(pair) == 2:
                choice = Mux(number[bit], pair[1], pair[0])
                node = Signal(choice.shape(), name=f"{name}_{bit}_{key}")
                m.d.comb += node.eq(choice)
                pair = [node]
            merged[key] = pair[0]
        level = merged
    return level[0]


def tree_sum(m: Module, name: str, terms: list[Value]) -> Value:
    """Return the sum of the terms, formed by a balanced tree of named adders."""
    level = 0
    while len(terms) > 1:
        sums: list[Value] = []
        for i in range(0, len(terms) - 1, 2):
            exact = terms[i] + terms[i + 1]
            node = Signal(exact.shape(), name=f"{name}_{level}_{i // 2}")
            m.d.comb += node.eq(exact)
            sums.append(node)
        terms = sums + terms[len(terms) & ~1 :]
        level += 1
    return terms[0]


def tree_latency(count: int) -> int:
    """Return the number of cycles that `registered_tree` takes for `count` values."""
    return (count - 1).bit_length()


def registered_tree(
    m: Module, name: str, values: Sequence[Value], combine: Callable[[str, int, Value, Value], Value]
) -> Value:
    """Combine the values pairwise in a tree, with a register after every level.

    `combine(name, level, a, b)` returns the signal `name`, which combines a and b in one node of the tree.

    Each level takes one cycle, because a 32-bit comparison and the selection after it need a whole cycle.
    """
    values = list(values)
    for level in range(tree_latency(len(values))):
        pairs = zip(values[::2], values[1::2], strict=True)
        nodes = [combine(f"{name}_{level}_{i}", level, a, b) for i, (a, b) in enumerate(pairs)]
        values = [pipeline_register(m, f"{name}_{level}_{i}_r", node) for i, node in enumerate(nodes)]
    return values[0]
