"""Approximations with a proved bound on the difference of the results, which are off by default (docs/passes.md).

A pass replaces a node by an approximate operator if that is cheaper and the bound is at most one step of the result's
quantization. The reference implementation of an approximate operator computes the accelerator's integers.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild
from compiler.kernel_library.reduce import softmax_exponentials
from compiler.layers.softmax import MAX_SAME_UNIT
from compiler.passes.kernel_sizes import Result, Rewritten

#: Largest error before the last rounding, in steps of the result; below 1, rounded results differ by at most 1. The
#: rest covers the error of the runtime's own softmax.
_MAX_ERROR = 0.95
#: Relative error of the arithmetic after the sum: a reciprocal of 31 bits, and a product rounded to 24 bits.
_ARITHMETIC = 2.0**-23

_Real = NDArray[np.float64]


def softmax_error(scale: float, cols: int, step: float) -> float:
    """Return a bound on the error of a softmax without the maximum over all rows, before the last rounding.

    With the exact exponentials e and the fixed-point ones E, both relative to that of the largest integer, the error of
    element j is E[j] / sum(E) - e[j] / sum(e). The pair of sums is a sum of one pair (e, E) for each element of the
    row, so it lies in a polygon: the pair of element j, plus the convex hull of all pairs times the number of the other
    elements. The error rises with sum(e) and falls with sum(E), so that it is largest on the polygon's boundary: at a
    corner or, within an edge on which sum(E) is a + b * sum(e), where sum(E) / sum(e) is the square root of b * E[j] /
    e[j].

    Parameters
    ----------
    scale : float
        Softmax's beta times the scale of the input.
    cols : int
        Number of elements of a row.
    step : float
        Scale of the result.

    Returns
    -------
    float
        Largest error in steps of the result.
    """
    exact = np.exp(-scale * np.arange(256))
    held = softmax_exponentials(scale, cols)
    unit = float(held[0])
    rounded = held / unit
    low, high = _hull(exact, rounded), _hull(exact, -rounded)
    largest = least = 0.0
    for number, corners in enumerate((low, high)):
        s = exact[:, None] + (cols - 1) * _coordinate(corners, 0)
        t = rounded[:, None] + (cols - 1) * _coordinate(corners, 1) * (1 if number == 0 else -1)
        least = min(least or math.inf, float(t.min()))
        for a, b in ((s, t), *_stationary(s, t, exact, rounded)):
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(rounded[:, None] > 0, rounded[:, None] / b, 0)
            largest = max(largest, float(np.abs(share - exact[:, None] / a).max()))
    part = step / 2.0 ** math.ceil(math.log2(step))
    relative = _ARITHMETIC + (0.5 / (part * least * unit) if part != 1 and least > 0 else part != 1)
    return float((largest + relative) / step)


def _coordinate(corners: list[tuple[float, float]], which: int) -> _Real:
    """Return one coordinate of the corners of a hull."""
    return np.array([corner[which] for corner in corners])


def _hull(x: _Real, y: _Real) -> list[tuple[float, float]]:
    """Return the corners of the lower convex hull of points, from left to right."""
    corners: list[tuple[float, float]] = []
    for point in sorted(set(zip(x.tolist(), y.tolist(), strict=True))):
        while len(corners) > 1 and _turn(corners[-2], corners[-1], point) <= 0:
            corners.pop()
        corners.append(point)
    return corners


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _stationary(s: _Real, t: _Real, exact: _Real, rounded: _Real) -> Iterator[tuple[_Real, _Real]]:
    """Yield the points of the edges between corners (s, t) at which the error of each element may be extreme."""
    if s.shape[1] < 2:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.diff(t) / np.diff(s)
        offset = t[:, :-1] - slope * s[:, :-1]
        ratio = np.sqrt(np.maximum(slope, 0) * (rounded / exact)[:, None])
        at = offset / (ratio - slope)
    at = np.where(np.isfinite(at), at, s[:, :-1])
    at = np.minimum(np.maximum(at, s[:, :-1]), s[:, 1:])
    yield at, np.where(np.isfinite(slope), offset + slope * at, t[:, :-1])


def approximate_softmax(graph: Graph, pinned: Collection[str] = ()) -> Result:
    """Compute softmaxes of 8-bit integers without the maxima of rows where results differ by at most one step.

    Parameters
    ----------
    graph : Graph
        Graph after quantization.
    pinned : collection of str
        Names of tensors that remain as they are; a softmax changes none of them but its result.

    Returns
    -------
    graph, rewritten
        The new graph, which is the same object if nothing changed, and a description of each changed node.
    """

    def replaced(inside: Graph, node: Node) -> tuple[Node, Rewritten] | None:
        return None if node.outputs[0] in pinned else _cheaper_softmax(inside, node)

    return _each(graph, replaced)


def _cheaper_softmax(graph: Graph, node: Node) -> tuple[Node, Rewritten] | None:
    """Return a softmax without the maximum if its error is within the bound, with its description."""
    if node.op != "softmax":
        return None
    x, y = graph.ins(node)[0], graph.out(node)
    axis, beta = node.attributes["axis"], node.attributes["beta"]
    known = all(
        each.dtype in ("int8", "uint8") and each.quantization is not None and each.quantization.whole
        for each in (x, y)
    )
    if not known or x.constant or axis != len(x.shape) - 1 or not 0 < x.shape[-1] <= MAX_SAME_UNIT:
        return None
    assert x.quantization is not None and y.quantization is not None
    scale, step = beta * x.quantization.scale[0], y.quantization.scale[0]
    if not (0 < scale < math.inf and 0 < step <= 1):
        return None
    error = softmax_error(scale, x.shape[-1], step)
    if error > _MAX_ERROR:
        return None
    bound = math.floor(error) + 1
    change = f"no maximum of each row; results differ by at most {bound} step ({error:.2g} before rounding)"
    made = replace(node, op="approximate_softmax")
    return made, Rewritten(node.name, node.operator, "approximate_softmax", change, bound)


_Replaced = Callable[[Graph, Node], tuple[Node, Rewritten] | None]


def _each(graph: Graph, replaced: _Replaced) -> Result:
    """Replace nodes of a graph and of its subgraphs."""
    nodes: list[Node] = []
    found: list[Rewritten] = []
    for node in graph:
        bodies = [_each(body, replaced) for body in node.bodies]
        found += [one for _, more in bodies for one in more]
        if any(new is not old for (new, _), old in zip(bodies, node.bodies, strict=True)):
            node = replace(node, bodies=tuple(body for body, _ in bodies))
        made = replaced(graph, node)
        if made is not None:
            node = made[0]
            found.append(made[1])
        nodes.append(node)
    return (rebuild(graph, nodes) if found else graph), tuple(found)


#: Passes in order.
APPROXIMATIONS: tuple[Callable[[Graph, Collection[str]], Result], ...] = (approximate_softmax,)
