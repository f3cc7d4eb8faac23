"""Splitting of convolutions and pools whose output rows are too wide for the accumulator or the scratchpad."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Tensor
from compiler.layers.lookup_table import is_unary
from compiler.layers.lowering_context import EIGHT_BITS
from hw.config import MlaConfig

_CONVOLUTIONS = ("conv2d", "depthwise_conv2d")
_POOLS = ("max_pool2d", "avg_pool2d")
#: Divisor of the scratchpad: nodes whose input rows of one output row take less are assumed to fit.
_SCRATCHPAD_SHARE = 4
#: Axis of the columns in a tensor with dimensions batch, height, width, channels.
_WIDTH = 2


@dataclass(frozen=True)
class Strip:
    """Adjacent output columns, and the input columns that they need.

    Parameters
    ----------
    first, count : int
        First output column, and the number of output columns.
    start, size : int
        First input column, and the number of input columns.
    left, right : int
        Columns of padding before and after the input columns.
    """

    first: int
    count: int
    start: int
    size: int
    left: int
    right: int


#: Decides whether a graph, whose only node is a convolution or a pool, fits the memories of the machine.
Fits = Callable[[Graph], bool]


def split_columns(graph: Graph, config: MlaConfig, fits: Fits) -> Graph:
    """Split quantized convolutions and pools that do not fit the memories into strips of columns.

    A strip reads a slice of the input, which includes the columns that adjacent strips also need. Functions of single
    elements that follow are applied to each strip, so that they remain in its epilogue. Nodes that do not fit in strips
    of one column remain unchanged.

    Parameters
    ----------
    graph : Graph
        Graph after quantization.
    config : MlaConfig
        Configuration of the machine, reduced to the memory limits.
    fits : callable
        Function that returns whether a graph with one node fits the memories.
    """
    made: dict[str, Tensor] = {}
    replaced: dict[str, list[Node]] = {}
    for node in graph:
        if not _is_candidate(graph, node, config) or fits(_alone(graph, node)):
            continue
        strips = _fitting_strips(graph, node, fits)
        if strips:
            chain = [node, *_followers(graph, node)]
            replaced |= {each.name: [] for each in chain[:-1]}
            replaced[chain[-1].name] = list(_split(graph, chain, strips, made))
    if not replaced:
        return graph
    nodes = [new for node in graph for new in replaced.get(node.name, [node])]
    return rebuild(graph, nodes, changed=made)


def _is_candidate(graph: Graph, node: Node, config: MlaConfig) -> bool:
    """Return whether a node can be split and has rows so large that it may not fit."""
    if node.op not in (*_CONVOLUTIONS, *_POOLS):
        return False
    x, y = graph.ins(node)[0], graph.out(node)
    if x.constant or x.dtype not in (*EIGHT_BITS, "int16") or len(x.shape) != 4 or y.shape[_WIDTH] < 2:
        return False
    window = _window(graph, node)
    rows = min((window.height - 1) * window.dilations[0] + 1, x.shape[1])
    wide = y.shape[_WIDTH] > config.acc_rows // 2
    size = np.dtype(x.dtype).itemsize
    return wide or rows * x.shape[_WIDTH] * x.shape[3] * size > config.sp_bytes // _SCRATCHPAD_SHARE


@dataclass(frozen=True)
class _Window:
    """Kernel size and dilations of a convolution or a pool."""

    height: int
    width: int
    dilations: tuple[int, int]


def _window(graph: Graph, node: Node) -> _Window:
    if node.op in _POOLS:
        height, width = node.attributes["kernel"]
        return _Window(height, width, (1, 1))
    shape = graph.ins(node)[1].shape
    height, width = shape[1:3] if node.op == "conv2d" else shape[:2]
    return _Window(height, width, node.attributes["dilations"])


def _alone(graph: Graph, node: Node, made: Mapping[str, Tensor] | None = None) -> Graph:
    """Return a graph with one node, whose tensors are in `graph` or `made`."""
    tensors = graph.tensors | dict(made or {})
    inputs = [name for name in node.inputs if name and not tensors[name].constant]
    return rebuild(graph, [node], inputs=inputs, outputs=node.outputs, changed=made)


def _fitting_strips(graph: Graph, node: Node, fits: Fits) -> list[Strip]:
    """Return strips of a node that fit, about as few as possible; empty if none fit."""
    width, count = graph.out(node).shape[_WIDTH], 2
    while True:
        count = min(count, width)
        strips = _strips(graph, node, count)
        if not strips:
            return []
        widest = max(strips, key=lambda strip: (strip.size, strip.count))
        made: dict[str, Tensor] = {}
        *_, strip_node, _ = _split(graph, [node], [widest], made)
        if fits(_alone(graph, strip_node, made)):
            return strips
        if count == width:
            return []
        count += max(1, count // 4)


def _strips(graph: Graph, node: Node, count: int) -> list[Strip]:
    """Return `count` strips of a node; empty if a strip would consist of padding only."""
    x, y, window = graph.ins(node)[0], graph.out(node), _window(graph, node)
    step, left = node.attributes["strides"][1], node.attributes["pads"][1]
    reach = (window.width - 1) * window.dilations[1] + 1
    strips = []
    for number in range(count):
        first, last = (y.shape[_WIDTH] * index // count for index in (number, number + 1))
        start, end = first * step - left, (last - 1) * step + reach - left
        inside = max(start, 0), min(end, x.shape[_WIDTH])
        if inside[0] >= inside[1]:
            return []
        size = inside[1] - inside[0]
        strips.append(Strip(first, last - first, inside[0], size, inside[0] - start, end - inside[1]))
    return strips


def _followers(graph: Graph, node: Node) -> list[Node]:
    """Return the functions of single elements that are applied to the output of a node and to nothing else."""
    found: list[Node] = []
    output = graph.out(node).name
    while output not in graph.outputs:
        consumers = graph.consumers(output)
        if len(consumers) != 1 or consumers[0].inputs.count(output) != 1 or not is_unary(graph, consumers[0]):
            break
        found.append(consumers[0])
        output = graph.out(consumers[0]).name
    return found


def _split(graph: Graph, chain: list[Node], strips: list[Strip], made: dict[str, Tensor]) -> Iterator[Node]:
    """Yield the nodes of all strips, and the node that joins their outputs."""
    node = chain[0]
    x = graph.ins(node)[0]
    outputs: list[str] = []
    for strip in strips:
        mark = f":columns{strip.first}"
        shape = (*x.shape[:_WIDTH], strip.size, *x.shape[_WIDTH + 1 :])
        piece = replace(x, name=f"{node.name}{mark}:input", shape=shape)
        made[piece.name] = piece
        where = {"starts": (0, 0, strip.start, 0), "sizes": shape, "steps": (1, 1, 1, 1)}
        yield Node(piece.name, "slice", (x.name,), (piece.name,), where)
        before, value = x.name, piece.name
        for each in chain:
            y = graph.out(each)
            size = (*y.shape[:_WIDTH], strip.count, *y.shape[_WIDTH + 1 :])
            out = replace(y, name=f"{each.name}{mark}", shape=size)
            made[out.name] = out
            top, _, bottom, _ = each.attributes.get("pads", (0, 0, 0, 0))
            own = {"pads": (top, strip.left, bottom, strip.right)} if each is node else {}
            inputs = tuple(value if name == before else name for name in each.inputs)
            yield replace(
                each, name=out.name, inputs=inputs, outputs=(out.name,), attributes=each.attributes | own
            )
            before, value = y.name, out.name
        outputs.append(value)
    last = chain[-1]
    yield Node(last.name, "concat", tuple(outputs), last.outputs, {"axis": _WIDTH})
