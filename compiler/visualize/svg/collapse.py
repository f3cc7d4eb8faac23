"""Collapses repeated parts of a view, such as the steps of a sequence."""

import re
from collections.abc import Hashable, Sequence

from compiler.visualize.graphs.view import Cost, View, add_edge, add_node

#: Minimum number of nodes, and of repetitions, to collapse.
_LEAST_BOXES, _LEAST_TIMES = 4, 5
#: Maximum number of nodes compared as one repetition.
_MOST_BOXES = 64
#: Repetitions shown before the collapsed ones; one more is shown after them.
_BEFORE = 2


def folded(view: View) -> View:
    """Return the view with most repetitions of consecutive nodes collapsed to one node."""
    while (found := _repeated(view)) is not None:
        view = _without(view, *found)
    return view


def _repeated(view: View) -> tuple[list[Hashable], int] | None:
    """Return the nodes to collapse and their number of repetitions; None if there is too little repetition."""
    keys = [key for key, data in view.nodes(data=True) if data["kind"] != "constant"]
    kinds = [_kind(view, key) for key in keys]
    best, saved = None, 0
    for boxes in range(_LEAST_BOXES, min(_MOST_BOXES, len(keys) // _LEAST_TIMES) + 1):
        for start, length in _runs([a == b for a, b in zip(kinds, kinds[boxes:], strict=False)]):
            times = length // boxes + 1
            if times >= _LEAST_TIMES and (times - _BEFORE - 1) * boxes > saved:
                saved = (times - _BEFORE - 1) * boxes
                first = start + _BEFORE * boxes
                best = keys[first : first + saved], times - _BEFORE - 1
    return best


def _kind(view: View, key: Hashable) -> tuple[Hashable, ...]:
    """Return the identity of a node for comparison: all attributes, with numbers removed from names."""
    data = view.nodes[key]
    lines = tuple(line for line in data["text"] if line != key)
    return data["kind"], data["label"], data["group"], lines, re.sub(r"\d+", "#", str(key))


def _runs(same: Sequence[bool]) -> list[tuple[int, int]]:
    """Return start and length of each run of True."""
    out, start = [], 0
    for i, each in enumerate([*same, False]):
        if not each:
            if i > start:
                out.append((start, i - start))
            start = i + 1
    return out


def _without(view: View, keys: list[Hashable], times: int) -> View:
    """Return the view with some nodes replaced by one."""
    inside, made = set(keys), View(**view.graph)
    boxes, first = len(keys) // times, view.nodes[keys[0]]
    called = f"{keys[0]} and {len(keys) - 1} more"
    for key, data in view.nodes(data=True):
        if key == keys[0]:
            cycles = sum(view.nodes[each].get("cycles", 0) for each in keys)
            text = f"{boxes} boxes each, like those before"
            add_node(
                made,
                called,
                first["kind"],
                f"{times} more times",
                text,
                group=first["group"],
                cycles=cycles or None,
            )
        if key not in inside:
            made.add_node(key, **data)
    costs: dict[tuple[Hashable, Hashable], Cost] = {}
    for source, target, edge in view.edges(data=True):
        if source not in inside and target not in inside:
            made.add_edge(source, target, **edge)
        elif (source in inside) != (target in inside):
            ends = (called if source in inside else source, called if target in inside else target)
            costs[ends] = costs.get(ends, Cost()) + Cost(edge["bytes"], edge["cycles"], edge["pj"])
    for (source, target), cost in costs.items():
        add_edge(made, str(source), str(target), f"of {times} times", cost)
    return made
