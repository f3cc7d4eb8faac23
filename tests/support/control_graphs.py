"""Small graphs with control flow in the compiler's own representation."""

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.options import DEFAULT_HOST_COSTS
from compiler.passes.loop_unrolling import LoopUnroller, StepCost
from compiler.reference import Kernels
from hw.config import MlaConfig

MEANING = Quantization.per_tensor(0.1, 3)


def row(name: str, rows: int = 0) -> Tensor:
    """Return a row of 16 int8 values or, with `rows`, a stack of that many rows."""
    return Tensor(name, (rows, 1, 16) if rows else (1, 16), "int8", MEANING)


def constant(name: str, value: bool | int) -> Tensor:
    """Return a scalar constant: a condition or a trip count."""
    data = np.array(value) if isinstance(value, bool) else np.array(value, np.int64)
    return Tensor(name, (), data.dtype.name, None, data)


def body(*, stacked: bool = True) -> Graph:
    """Return a loop body with the next state s + x_t + w; with `stacked`, the first sum is a stacked output."""
    graph = Graph("body")
    graph.add_input(Tensor("i", (), "int64"))
    for name in ("s", "x_t", "w"):
        graph.add_input(row(name))
    graph.add_tensor(constant("go", True))
    for name, terms in (("a", ("s", "x_t")), ("b", ("a", "w"))):
        graph.add_tensor(row(name))
        graph.add_node(Node(f"make {name}", "add", terms, (name,)))
    return graph.finish(["go", "b", "a"] if stacked else ["go", "b"])


def loop(
    length: int, trips: int, inside: Graph | None = None, sign: int = 1, scanned: int | None = None
) -> Graph:
    """Return a graph with a loop over the rows of x, of which there are `scanned` (default: `length`)."""
    graph = Graph("looped")
    for tensor in (row("s0"), row("x", length if scanned is None else scanned), row("w")):
        graph.add_input(tensor)
    inside = inside or body()
    stacked = len(inside.outputs) - 2
    outputs = ("y", "ys")[: 1 + stacked]
    for tensor in (constant("c", True), constant("m", trips), row("y"), row("ys", length)):
        if tensor.name != "ys" or stacked:
            graph.add_tensor(tensor)
    attributes = {"states": 1, "scanned": (sign,), "stacked": (sign,) * stacked}
    graph.add_node(Node("again", "loop", ("c", "m", "s0", "x", "w"), outputs, attributes, (inside,)))
    return graph.finish(list(outputs))


def choice(*ops: str) -> Graph:
    """Return a graph in which an input selects the operator that is applied to x and y."""
    graph, bodies = Graph("chosen"), []
    graph.add_input(Tensor("p", (), "bool"))
    for name in ("x", "y"):
        graph.add_input(row(name))
    for op in ops or ("add", "mul"):
        inside = Graph(op)
        for name in ("a", "b"):
            inside.add_input(row(name))
        inside.add_tensor(row("z"))
        inside.add_node(Node("compute", op, ("a", "b"), ("z",)))
        bodies.append(inside.finish(["z"]))
    graph.add_tensor(row("z"))
    graph.add_node(Node("choose", "if", ("p", "x", "y"), ("z",), {}, tuple(bodies)))
    return graph.finish(["z"])


def rows(seed: int, **counts: int) -> dict[str, np.ndarray]:
    """Return random rows by name; a count of 0 gives a single row."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-128, 128, (count, 1, 16) if count else (1, 16)).astype(np.int8)
        for name, count in counts.items()
    }


def unrolled(graph: Graph, factor: int, rounding: Kernels = "reference") -> Graph:
    """Unroll all loops with a known number of iterations by a factor; 0 to unroll them fully."""
    forced = {"loop": factor} if any(node.op == "loop" for _, node in graph.walk()) else {}
    unroller = LoopUnroller(
        MlaConfig(), rounding, DEFAULT_HOST_COSTS, lambda _: StepCost(), forced, chooses=False, whole=False
    )
    return unroller.run(graph)[0]
