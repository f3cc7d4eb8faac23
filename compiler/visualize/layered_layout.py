"""Layered (Sugiyama) layout of a graph, and the folding of repeated nodes."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from compiler.visualize.view import Cost, View, add_edge, add_node

#: Number of sweeps over all ranks, for ordering and for coordinates.
_SWEEPS = 8

Key = Hashable


@dataclass
class Layered:
    """Result of the layout.

    Parameters
    ----------
    ranks : list of lists
        Keys of the nodes in each rank, from left to right; an edge has a dummy key (source, target, rank) in each
        rank that it passes.
    x : dict
        Horizontal center of each key.
    routes : dict
        Keys along each edge, from its source to its target.
    """

    ranks: list[list[Key]] = field(default_factory=list)
    x: dict[Key, float] = field(default_factory=dict)
    routes: dict[tuple[Key, Key], list[Key]] = field(default_factory=dict)


def layered(graph: nx.DiGraph, width: dict[Key, float], gap: float, bend: float = 14) -> Layered:
    """Lay out a graph; an edge that passes a rank occupies the width `bend` in that rank."""
    out = Layered()
    _rank(graph, out)
    near: dict[Key, list[Key]] = {key: [] for rank in out.ranks for key in rank}
    for route in out.routes.values():
        for a, b in pairwise(route):
            near[a].append(b)
            near[b].append(a)
    level = {key: number for number, rank in enumerate(out.ranks) for key in rank}
    for sweep in range(_SWEEPS):
        _order(out.ranks, near, level, down=sweep % 2 == 0)
    room = {key: width.get(key, bend) for key in near}
    _places(out, near, room, gap)
    return out


def _rank(graph: nx.DiGraph, out: Layered) -> None:
    """Assign each node the rank of its longest path from a source; put sources directly above their first reader."""
    level: dict[Key, int] = {}
    for key in nx.topological_sort(graph):
        level[key] = max((level[before] + 1 for before in graph.predecessors(key)), default=0)
    for key in graph:
        if not graph.in_degree(key) and graph.out_degree(key):
            level[key] = min(level[after] for after in graph.successors(key)) - 1
    out.ranks = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for key in graph:
        out.ranks[level[key]].append(key)
    for a, b in graph.edges():
        between: list[Key] = [(a, b, rank) for rank in range(level[a] + 1, level[b])]
        out.routes[a, b] = [a, *between, b]
        for rank, key in enumerate(between, level[a] + 1):
            out.ranks[rank].append(key)


def _order(ranks: list[list[Key]], near: dict[Key, list[Key]], level: dict[Key, int], *, down: bool) -> None:
    """Sort the keys in each rank by the mean position of their neighbors in the rank above or below."""
    for number in range(len(ranks)) if down else reversed(range(len(ranks))):
        place = {key: i for rank in ranks for i, key in enumerate(rank)}
        side = number - 1 if down else number + 1

        def mean(key: Key, place: dict[Key, int] = place, side: int = side) -> float:
            there = [place[other] for other in near[key] if level[other] == side]
            return sum(there) / len(there) if there else place[key]

        ranks[number].sort(key=mean)


def _places(out: Layered, near: dict[Key, list[Key]], room: dict[Key, float], gap: float) -> None:
    for rank in out.ranks:
        at = 0.0
        for key in rank:
            out.x[key] = at + room[key] / 2
            at += room[key] + gap
        for key in rank:
            out.x[key] -= (at - gap) / 2
    for sweep in range(2 * _SWEEPS):
        for rank in out.ranks if sweep % 2 == 0 else reversed(out.ranks):
            wanted = [_mean([out.x[other] for other in near[key]], out.x[key]) for key in rank]
            for key, x in zip(rank, _apart(wanted, [room[key] for key in rank], gap), strict=True):
                out.x[key] = x


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _apart(wanted: list[float], room: list[float], gap: float) -> list[float]:
    """Return non-overlapping positions close to the desired positions, in order; boxes that touch move together."""
    runs: list[tuple[float, float, list[int]]] = []  # (left edge wanted, width, members)
    for index, (x, w) in enumerate(zip(wanted, room, strict=True)):
        left, width, members = x - w / 2, w, [index]
        while runs and runs[-1][0] + runs[-1][1] + gap > left:
            before_left, before_width, before = runs.pop()
            shift = before_width + gap
            count = len(before)
            left = (before_left * count + (left - shift) * len(members)) / (count + len(members))
            width, members = shift + width, before + members
        runs.append((left, width, members))
    out = [0.0] * len(wanted)
    for left, _, members in runs:
        at = left
        for index in members:
            out[index] = at + room[index] / 2
            at += room[index] + gap
    return out


def cut(heights: list[float], passing: list[int], count: int) -> list[range]:
    """Divide ranks into columns of similar height.

    Parameters
    ----------
    heights : list of float
        Height of each rank.
    passing : list of int
        Number of edges that would cross a cut after each rank.
    count : int
        Number of columns.
    """
    total = sum(heights)
    wanted = max(total / count, 1e-9)
    ends = [0.0]
    for height in heights:
        ends.append(ends[-1] + height)
    best: list[tuple[float, int]] = [
        (0.0, 0)
    ]  # for the first ranks: the least cost, and the start of the last column
    for end in range(1, len(heights) + 1):
        crossed = 0.1 * passing[end - 1] if end < len(heights) else 0.0
        costs = [
            (best[start][0] + ((ends[end] - ends[start]) / wanted - 1) ** 2 + crossed, start)
            for start in range(end)
        ]
        best.append(min(costs))
    pieces: list[range] = []
    end = len(heights)
    while end:
        start = best[end][1]
        pieces.insert(0, range(start, end))
        end = start
    return pieces


#: Minimum number of nodes, and of repetitions, to collapse.
_LEAST_BOXES, _LEAST_TIMES = 4, 5
#: Maximum number of nodes compared as one repetition.
_MOST_BOXES = 64
#: Number of repetitions shown before the collapsed ones; one more is shown after them.
_BEFORE = 2


def folded(view: View) -> View:
    """Return a view in which most repetitions of a sequence of consecutive nodes are collapsed into one node."""
    while (found := _repeated(view)) is not None:
        view = _without(view, *found)
    return view


def _repeated(view: View) -> tuple[list[Hashable], int] | None:
    """Return the nodes to collapse and the number of repetitions that they contain; None if there are too few."""
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
    """Return the attributes by which nodes are compared, with the numbers in the node's name replaced."""
    data = view.nodes[key]
    lines = tuple(line for line in data["text"] if line != key)
    return data["kind"], data["label"], data["group"], lines, re.sub(r"\d+", "#", str(key))


def _runs(same: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the start and the length of each run of True values."""
    out, start = [], 0
    for i, each in enumerate([*same, False]):
        if not each:
            if i > start:
                out.append((start, i - start))
            start = i + 1
    return out


def _without(view: View, keys: list[Hashable], times: int) -> View:
    """Return a view in which the given nodes, `times` repetitions of a sequence, are replaced with one node."""
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
