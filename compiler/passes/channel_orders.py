"""Orders of channels that make channel shuffles vanish.

`absorb_shuffles` stores channels in another order than the model states, so that the products that read them, whose
weights are reordered likewise, need no shuffles. All results remain exactly the same.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.tensor import Tensor
from compiler.passes.channels import (
    KINDS,
    Indices,
    channel_count,
    channel_range,
    is_quantized,
    narrowed,
    part_offsets,
)
from compiler.passes.kernel_sizes import Rewritten
from compiler.passes.redundant_nodes import remove_dead


@dataclass(frozen=True)
class _Shuffle:
    """Consecutive moves that permute the channels of every pixel alike: channel i of y is channel `perm[i]` of x."""

    nodes: tuple[Node, ...]
    x: str
    y: str
    perm: Indices


#: Operators of a shuffle, and maximum number of nodes that form one.
_SHUFFLING, _MAX_SHUFFLE = ("reshape", "transpose", "gather"), 4


def _shuffles(graph: Graph, pinned: Collection[str]) -> dict[str, _Shuffle]:
    """Return the shuffles of channels in a graph, by name of their first node."""
    found: dict[str, _Shuffle] = {}
    seen: set[str] = set()
    for node in graph:
        if node.name in seen or node.op not in _SHUFFLING:
            continue
        chain = [node]
        while (made := _shuffle_of(graph, chain)) is None and len(chain) < _MAX_SHUFFLE:
            y = graph.out(chain[-1]).name
            after = graph.consumers(y)
            if len(after) != 1 or after[0].op not in _SHUFFLING or y in graph.outputs or y in pinned:
                break
            chain.append(after[0])
        if made is not None and not {made.x, made.y} & {*graph.outputs, *pinned}:
            found[node.name] = made
            seen |= {each.name for each in chain}
    return found


def _shuffle_of(graph: Graph, chain: Sequence[Node]) -> _Shuffle | None:
    """Return the shuffle that consecutive nodes form together; None if they do not."""
    x, y = graph.ins(chain[0])[0], graph.out(chain[-1])
    if x.constant or x.shape != y.shape or not x.shape or not _same_integers(x, y):
        return None
    if len(chain) == 1 and chain[0].op != "gather":
        return None
    moved = np.arange(x.elements).reshape(x.shape)
    for node in chain:
        if node.op == "gather":
            indices = graph.ins(node)[1]
            if indices.data is None or indices.data.ndim != 1:
                return None
            moved = np.take(moved, indices.data, node.attributes["axis"])
        else:
            moved = (
                moved.transpose(node.attributes["perm"])
                if node.op == "transpose"
                else moved.reshape(graph.out(node).shape)
            )
    rows = moved.reshape(-1, channel_count(x)) - np.arange(0, x.elements, channel_count(x))[:, None]
    perm = rows[0]
    if (rows != perm).any() or not np.array_equal(np.sort(perm), np.arange(channel_count(x))):
        return None
    return _Shuffle(tuple(chain), x.name, y.name, perm)


def _same_integers(x: Tensor, y: Tensor) -> bool:
    return is_quantized(x) and (x.dtype, x.quantization) == (y.dtype, y.quantization)


def _inverse(order: Indices) -> Indices:
    return np.argsort(order).astype(np.intp)


#: Adjacent channels of a tensor: its name, the first one in the order in which they are stored, and their number.
_Run = tuple[str, int, int]
#: Bytes that a unit moves at a time, and cycles by which the moves that replace a shuffle of a pixel may exceed those
#: of the shuffle, which transposes all bytes twice.
_ROW, _MORE = 16, 4
#: Destination of channels that no node reads.
_NEVER = 1 << 30


def absorb_shuffles(graph: Graph, pinned: Collection[str] = ()) -> tuple[Graph, tuple[Rewritten, ...]]:
    """Make shuffles of channels vanish: store the channels of tensors in orders that need few moves.

    A product reads and writes channels in any order if its weights have the same order, as do operators that keep
    channels apart. Each tensor between these gets an order: products write the channels that the next node reads beside
    each other, and concatenations put them where the next slice finds them, so that slices and concatenations need no
    copies, or copies of many adjacent channels. A shuffle only renames the channels of its operand. Shuffles remain
    where the inputs and outputs of the model, or operators that mix channels, would require single channels to be
    copied.
    """
    shuffles = _shuffles(graph, pinned)
    while shuffles:
        orders = _Orders(graph, shuffles, pinned)
        refused = orders.refused()
        if refused is None:
            break
        if not refused:
            made = orders.rebuilt()
            changes = [
                Rewritten(each.nodes[-1].name, each.nodes[-1].op, "absorb_shuffles", _CHANGE)
                for each in shuffles.values()
            ]
            return made, tuple(changes)
        shuffles = {first: each for first, each in shuffles.items() if first not in refused}
    return graph, ()


_CHANGE = "the channels are stored in the order of the shuffle, to which weights are adapted"


class _Orders:
    """Orders in which the channels of tensors are stored.

    Parameters
    ----------
    graph : Graph
        Graph with shuffles.
    shuffles : dict
        Shuffles that are to vanish, by name of their first node.
    pinned : collection of str
        Names of tensors that keep their order.

    Attributes
    ----------
    order : dict
        For each tensor, the channel that is stored at each position.
    """

    def __init__(self, graph: Graph, shuffles: dict[str, _Shuffle], pinned: Collection[str]):
        self.graph, self.shuffles = graph, shuffles
        inner = {node.name for each in shuffles.values() for node in each.nodes}
        self.kinds = {node.name: "shuffled" if node.name in inner else self._kind(node) for node in graph}
        self.shuffled = {each.y: first for first, each in shuffles.items()}
        self.leader: dict[str, str] = {}
        self.fixed: set[str] = set()
        self._unite(pinned)
        self.reader = self._readers()
        self.order: dict[str, Indices] = {}
        self._by_leader: dict[str, Indices] = {}
        for name in graph.inputs:
            self._set(name, None)
        for node in graph:
            for name in node.outputs:
                self._set(name, node)

    def _kind(self, node: Node) -> str:
        for kind in ("product", "aligned", "joined", "part"):
            if KINDS[kind](self.graph, node):
                same = kind != "part" or _same_integers(self.graph.ins(node)[0], self.graph.out(node))
                return kind if same else ""
        return "output" if self._leaves(node) else ""

    def _leaves(self, node: Node) -> bool:
        """Return True for a conversion of a tensor to real numbers that are moved only by the host before they leave.

        The host then moves channels as well.
        """
        graph = self.graph
        if node.op != "dequantize" or not is_quantized(graph.ins(node)[0]) or graph.ins(node)[0].constant:
            return False
        names = [node.outputs[0]]
        for name in names:
            after = graph.consumers(name)
            if any(each.op not in ("transpose", "reshape") for each in after):
                return False
            names += [each.outputs[0] for each in after]
        return all(name in graph.outputs or graph.consumers(name) for name in names)

    # Tensors whose channels have the same order

    def _find(self, name: str) -> str:
        while name in self.leader:
            name = self.leader[name]
        return name

    def _unite(self, pinned: Collection[str]) -> None:
        graph = self.graph
        fixed = {*pinned, *graph.inputs, *graph.outputs}
        for node in graph:
            kind, (y, *_) = self.kinds[node.name], node.outputs
            if kind == "aligned":
                for tensor in graph.ins(node):
                    if (
                        not tensor.constant
                        and tensor.shape
                        and channel_count(tensor) == channel_count(graph.tensors[y])
                    ):
                        a, b = self._find(tensor.name), self._find(y)
                        if a != b:
                            self.leader[a] = b
            elif not kind:
                fixed |= {*node.inputs, *node.outputs}
        self.fixed = {self._find(name) for name in fixed}

    # Which node reads channels first

    def _readers(self) -> dict[str, Indices]:
        """Return the number of the first node other than a move that reads each channel of each tensor."""
        graph = self.graph
        names = [*graph.inputs, *(name for node in graph for name in node.outputs)]
        first = {name: np.full(channel_count(graph.tensors[name]), _NEVER, np.intp) for name in names}
        numbers = {node.name: number for number, node in enumerate(graph)}
        for node in reversed(list(graph)):
            kind, y = self.kinds[node.name], node.outputs[0]
            if kind == "shuffled":
                if node.name in self.shuffles:
                    each = self.shuffles[node.name]
                    np.minimum.at(first[each.x], each.perm, first[each.y])
            elif kind == "part":
                mine = first[node.inputs[0]][channel_range(node)]
                np.minimum(mine, first[y], out=mine)
            elif kind == "joined":
                for name, at in part_offsets(graph, node):
                    np.minimum(first[name], first[y][at], out=first[name])
            else:
                through = first[y] if kind == "aligned" else None
                for name in node.inputs:
                    if name in first:
                        same = through is not None and len(through) == len(first[name])
                        found = through if same and through is not None else numbers[node.name]
                        np.minimum(first[name], found, out=first[name])
        return first

    # Orders

    def _set(self, name: str, node: Node | None) -> None:
        """Choose the order of a tensor, unless a tensor whose channels have the same order has one."""
        leader, count = self._find(name), channel_count(self.graph.tensors[name])
        if leader not in self._by_leader:
            order = np.arange(count)
            if node is not None and leader not in self.fixed:
                order = self._chosen(name, node)
            self._by_leader[leader] = order
        self.order[name] = self._by_leader[leader]

    def _chosen(self, name: str, node: Node) -> Indices:
        kind, graph = self.kinds[node.name], self.graph
        if kind == "shuffled" and name in self.shuffled:
            each = self.shuffles[self.shuffled[name]]
            return _inverse(each.perm)[self.order[each.x]]
        if kind == "part":
            at, stored = channel_range(node), self.order[node.inputs[0]]
            return stored[(stored >= at.start) & (stored < at.stop)] - at.start
        if kind == "joined":
            return self._arranged(node)
        if kind == "product":
            first = self.reader[name]
            return np.argsort(-first if self._comes_first(name) else first, kind="stable").astype(np.intp)
        return np.arange(channel_count(graph.tensors[name]))

    def _comes_first(self, name: str) -> bool:
        """Return True if a concatenation joins a tensor with others after it, but with none before it."""
        while True:
            after = self.graph.consumers(name)
            if len(after) != 1:
                return False
            kind = self.kinds[after[0].name]
            if kind == "joined":
                return after[0].inputs[0] == name and len(after[0].inputs) > 1
            if kind != "aligned":
                return False
            name = after[0].outputs[0]

    def _arranged(self, node: Node) -> Indices:
        """Return an order of a concatenation in which the channels of a slice that is read are adjacent.

        The last operand keeps its order if its first channels are those of the slice.
        """
        parts = [at.start + self.order[name] for name, at in part_offsets(self.graph, node)]
        whole = np.concatenate(parts)
        groups = self._read_parts(node.outputs[0])
        if not groups:
            return whole
        label = np.zeros(len(whole), np.intp)
        for number, channels in enumerate(groups, 1):
            label[channels] = number
        if len(groups) == 1 and len(parts) == 2:
            before, after = parts
            kept = np.argsort(label[before], kind="stable"), np.argsort(-label[after], kind="stable")
            return np.concatenate([before[kept[0]], after[kept[1]]])
        return whole[np.argsort(label[whole], kind="stable")]

    def _read_parts(self, name: str) -> list[Indices]:
        """Return the channels of a tensor that slices, possibly after shuffles, give to other nodes than moves."""
        found: list[Indices] = []
        names = [(name, np.arange(channel_count(self.graph.tensors[name])))]
        for each, channels in names:  # `channels` are those of `name` in the order of `each`
            for node in self.graph.consumers(each):
                if self.kinds[node.name] == "part" and self._read(node.outputs[0]):
                    found.append(channels[channel_range(node)])
                elif node.name in self.shuffles:
                    shuffle = self.shuffles[node.name]
                    names.append((shuffle.y, channels[shuffle.perm]))
        return found

    def _read(self, name: str) -> bool:
        """Return True if another node than a move reads a tensor."""
        moves = ("part", "joined", "shuffled")
        return any(self.kinds[node.name] not in moves for node in self.graph.consumers(name))

    # Moves

    def _places(self, name: str) -> list[tuple[str, int]]:
        """Return the tensor that contains each channel of a tensor, in the order of `name`, and its place there."""
        node, stored = self.graph.producer(name), self.order[name]
        kind = "" if node is None else self.kinds[node.name]
        if node is not None and kind == "part":
            x, channels = node.inputs[0], stored + channel_range(node).start
        elif name in self.shuffled:
            each = self.shuffles[self.shuffled[name]]
            x, channels = each.x, each.perm[stored]
        else:
            return [(name, place) for place in range(len(stored))]
        inside = self._places(x)
        return [inside[place] for place in _inverse(self.order[x])[channels]]

    def _sources(self, name: str) -> list[_Run]:
        """Return the runs of channels of which a tensor that a move computes consists."""
        node = self.graph.producer(name)
        if node is None or self.kinds[node.name] != "joined":
            return _runs(self._places(name))
        places = [place for operand in node.inputs for place in self._places_in(operand)]
        return _runs([places[channel] for channel in self.order[name]])

    def _places_in(self, operand: str) -> list[tuple[str, int]]:
        """Return the places of the channels of a tensor in the order of the model."""
        inside = self._places(operand)
        return [inside[place] for place in _inverse(self.order[operand])]

    def _moved(self) -> Iterator[str]:
        """Yield the tensors that moves of the new graph compute."""
        for node in self.graph:
            kind, y = self.kinds[node.name], node.outputs[0]
            if kind == "joined" or (
                (kind == "part" or y in self.shuffled) and (self._read(y) or y in self.graph.outputs)
            ):
                yield y

    def refused(self) -> set[str] | None:
        """Return the first nodes of shuffles that must remain; None if no shuffle is the reason for short runs."""
        out: set[str] = set()
        for name in self._moved():
            runs = self._sources(name)
            total = sum(math.ceil(count / _ROW) for _, _, count in runs)
            if total > 2 * math.ceil(channel_count(self.graph.tensors[name]) / _ROW) + _MORE:
                responsible = self._shuffles_before(name)
                if not responsible:
                    return None
                out |= responsible
        return out

    def _shuffles_before(self, name: str) -> set[str]:
        """Return the first nodes of the shuffles between a tensor and the tensors that contain its channels."""
        node = self.graph.producer(name)
        found: set[str] = set()
        names = list(node.inputs) if node is not None and self.kinds[node.name] == "joined" else [name]
        for each in names:
            node = self.graph.producer(each)
            if each in self.shuffled:
                found.add(self.shuffled[each])
                names.append(self.shuffles[self.shuffled[each]].x)
            elif node is not None and self.kinds[node.name] == "part":
                names.append(node.inputs[0])
        return found

    # The new graph

    def rebuilt(self) -> Graph:
        """Return the graph with all tensors in their orders."""
        graph = self.graph
        changed: dict[str, Tensor] = {}
        renamed: dict[str, str] = {}
        moved = set(self._moved())
        parts: dict[str, list[Node]] = {}  # moves of channels that precede a node
        made: dict[str, list[Node]] = {}
        for node in graph:
            kind, y = self.kinds[node.name], node.outputs[0]
            if kind in ("part", "joined") or y in self.shuffled:
                mine = self._move(node, renamed, changed) if y in moved else []
                before = self._before(node, mine[:-1])
                parts.setdefault(before, []).extend(mine[:-1])
                made[node.name] = mine[-1:]
            elif kind == "output":
                made[node.name] = self._output(node, changed)
            elif kind in ("product", "aligned"):
                new, tensors = narrowed(graph, node, kind, self.order, {})
                changed |= tensors
                made[node.name] = [new]
            elif kind != "shuffled":
                made[node.name] = [node]
        nodes = [new for node in graph for new in (*parts.get(node.name, ()), *made.get(node.name, ()))]

        def present(name: str) -> str:
            while name in renamed:
                name = renamed[name]
            return name

        nodes = [replace(node, inputs=tuple(present(name) for name in node.inputs)) for node in nodes]
        return remove_dead(rebuild(graph, nodes, changed=changed))

    def _before(self, node: Node, copies: Sequence[Node]) -> str:
        """Return the node before which the channels for a move are copied: itself, or the product that it joins.

        While MATRIX computes that product, FUSE copies the others; it would compete with MATRIX for the tensor that
        contains them before.
        """
        numbers = {each.name: number for number, each in enumerate(self.graph)}
        sources = [self.graph.producer(name) for each in copies for name in each.inputs]
        last, place = max((numbers[each.name] for each in sources if each is not None), default=-1), node.name
        for name in node.inputs if self.kinds[node.name] == "joined" else ():
            producer = self.graph.producer(name)
            while producer is not None and self.kinds[producer.name] == "aligned":
                producer = self.graph.producer(producer.inputs[0])
            if (
                producer is not None
                and self.kinds[producer.name] == "product"
                and numbers[producer.name] > last
            ):
                last, place = numbers[producer.name], producer.name
        return place

    def _move(self, node: Node, renamed: dict[str, str], changed: dict[str, Tensor]) -> list[Node]:
        """Return the nodes that compute the result of a move from runs of channels; none if it exists already."""
        graph, y = self.graph, self.graph.out(node)
        nodes: list[Node] = []
        operands: list[str] = []

        def joined(names: Sequence[str], name: str) -> Node:
            return Node(name, "concat", tuple(names), (name,), {"axis": len(y.shape) - 1})

        for source, part in groupby(self._sources(y.name), key=lambda run: run[0]):
            x = graph.tensors[source]
            pieces: list[str] = []
            for _, start, count in part:
                if count == channel_count(x):
                    pieces.append(source)
                    continue
                pieces.append(self._unused(f"{node.name}:part{len(nodes)}", changed))
                changed[pieces[-1]] = replace(x, name=pieces[-1], shape=(*x.shape[:-1], count))
                attributes: dict[str, Any] = {
                    "starts": (*[0] * (len(x.shape) - 1), start),
                    "sizes": changed[pieces[-1]].shape,
                    "steps": (1,) * len(x.shape),
                }
                nodes.append(Node(pieces[-1], "slice", (source,), (pieces[-1],), attributes))
            if len(pieces) > 1:
                name = self._unused(f"{node.name}:part{len(nodes)}", changed)
                count = sum(channel_count(changed.get(piece, x)) for piece in pieces)
                changed[name] = replace(x, name=name, shape=(*x.shape[:-1], count))
                nodes.append(joined(pieces, name))
                pieces = [name]
            operands += pieces
        only = changed.get(operands[0]) or graph.tensors[operands[0]]
        if len(operands) == 1 and y.name not in graph.outputs and _same_integers(only, y):
            renamed[y.name] = operands[0]
            return nodes
        return [*nodes, replace(joined(operands, node.name), outputs=node.outputs)]

    def _output(self, node: Node, changed: dict[str, Tensor]) -> list[Node]:
        """Return the nodes that convert a tensor to real numbers, and move their channels to the order of the model."""
        x, y = node.inputs[0], self.graph.out(node)
        order = self.order[x]
        if np.array_equal(order, np.arange(len(order))):
            return [node]
        name, indices = (self._unused(f"{y.name}:{part}", changed) for part in ("stored", "channels"))
        changed[name] = replace(y, name=name)
        changed[indices] = Tensor(indices, order.shape, "int64", None, _inverse(order).astype(np.int64))
        last = unused_name(f"{node.name}:channels", self.graph.nodes)
        gather = Node(last, "gather", (name, indices), node.outputs, {"axis": len(y.shape) - 1})
        return [replace(node, outputs=(name,)), gather]

    def _unused(self, name: str, changed: dict[str, Tensor]) -> str:
        """Return a name that neither a tensor nor a node has."""
        return unused_name(name, self.graph.tensors, self.graph.nodes, changed)


def _runs(places: Sequence[tuple[str, int]]) -> list[_Run]:
    """Return runs of adjacent channels."""
    out: list[_Run] = []
    for name, place in places:
        if out and out[-1][0] == name and out[-1][1] + out[-1][2] == place:
            out[-1] = (name, out[-1][1], out[-1][2] + 1)
        else:
            out.append((name, place, 1))
    return out
