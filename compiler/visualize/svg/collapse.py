"""What repeats in a view, such as the steps of a sequence, is drawn a few times only."""

import re
from collections.abc import Hashable, Sequence

from compiler.visualize.graphs.view import Cost, View, add_edge, add_node

#: Fewer boxes, or fewer repetitions of them, are drawn as they are.
_LEAST_BOXES, _LEAST_TIMES = 4, 5
#: No more boxes than these are compared as one repetition.
_MOST_BOXES = 64
#: So many repetitions are drawn before those that are left out; one is drawn behind them.
_BEFORE = 2


def folded(view: View) -> View:
    """The same view, in which one box stands for most repetitions of nodes that follow one another."""
    while (found := _repeated(view)) is not None:
        view = _without(view, *found)
    return view


def _repeated(view: View) -> tuple[list[Hashable], int] | None:
    """The nodes to be left out, and how many repetitions they are; None if too little repeats."""
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
    """What makes a node the same as others: all of it but the numbers in its name."""
    data = view.nodes[key]
    lines = tuple(line for line in data["text"] if line != key)
    return data["kind"], data["label"], data["group"], lines, re.sub(r"\d+", "#", str(key))


def _runs(same: Sequence[bool]) -> list[tuple[int, int]]:
    """Where True follows True: first place and length."""
    out, start = [], 0
    for i, each in enumerate([*same, False]):
        if not each:
            if i > start:
                out.append((start, i - start))
            start = i + 1
    return out


def _without(view: View, keys: list[Hashable], times: int) -> View:
    """The view with one node in place of some."""
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
