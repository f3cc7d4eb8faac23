"""Repeated steps of a graph as loops.

Importers unroll recurrent operators over their time steps. In the quantized graph, the nodes of a step equal those of
the preceding step except for the results that they read. `with_loops` replaces such a sequence of steps by a loop, so
that `loop_unrolling` can choose how many steps the body of the loop computes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Tensor

#: Minimum number of steps of a loop.
_MIN_STEPS = 4
#: Maximum number of nodes of a step, and number of its lengths that are tried at a node.
_MAX_NODES, _MAX_TRIED = 256, 4

#: Output of a node of a step: number of the node in the step, and index of the output.
_Place = tuple[int, int]


def with_loops(graph: Graph, least: int) -> Graph:
    """Replace sequences of equal steps that have at least `least` nodes in total by loops; all results remain equal.

    The nodes of a step may read results of the same step, of the preceding step, and of nodes before all steps, whose
    slices along the first axis are scanned. Results of any step may be read by later nodes.
    """
    nodes = _by_demand(graph)
    if len(nodes) < max(least, 2 * _MIN_STEPS):
        return graph
    kinds: dict[object, int] = {}
    keys = np.array([kinds.setdefault(_kind(graph, node), len(kinds)) for node in nodes])
    start = 0
    while start < len(nodes):
        found = next(
            (
                each
                for size in _distances(keys, start)
                for each in _sequences(graph, nodes, keys, start, size, least)
            ),
            None,
        )
        if found is None:
            start += 1
            continue
        made = found.with_loop()
        if len(made.nodes) >= len(nodes):
            return graph
        # Search on after the loop: later sequences have other nodes.
        return made if found.end >= len(nodes) else with_loops(made, least)
    return graph


def _by_demand(graph: Graph) -> list[Node]:
    """Return the nodes in depth-first order from the outputs, in which steps consist of the same nodes in order.

    Of the operands of a node, the one with the longest chain of nodes before it, such as a state, comes first.

    The order in which importers emit the nodes of a step varies, for example if a step is the last of a block.
    """
    depth: dict[str, int] = {}
    for node in graph:
        before = (depth.get(name, 0) for name in node.inputs)
        depth |= dict.fromkeys(node.outputs, 1 + max(before, default=0))
    found: dict[str, Node] = {}
    waiting = [(node, False) for node in reversed(list(graph))]
    waiting += [(node, False) for name in reversed(graph.outputs) if (node := graph.producer(name))]
    while waiting:
        node, ready = waiting.pop()
        if node.name in found:
            continue
        if ready:
            found[node.name] = node
            continue
        names = sorted(dict.fromkeys(reversed(node.inputs)), key=lambda name: depth.get(name, 0))
        sources = [source for name in names if (source := graph.producer(name))]
        waiting.append((node, True))
        waiting += [(source, False) for source in sources if source.name not in found]
    return _with_late_joins(found.values())


def _with_late_joins(order: Iterable[Node]) -> list[Node]:
    """Move concatenations, which may be between two steps, directly before their first readers or to the end."""
    nodes: list[Node] = []
    joins: dict[str, Node] = {}  # by result

    def add(node: Node) -> None:
        for name in node.inputs:
            if name in joins:
                add(joins.pop(name))
        nodes.append(node)

    for node in order:
        if node.op == "concat":
            joins[node.outputs[0]] = node
        else:
            add(node)
    while joins:
        add(joins.pop(next(iter(joins))))
    return nodes


def _kind(graph: Graph, node: Node) -> object:
    """Return the properties that a node has in common with the same node of other steps."""
    attributes = dict(node.attributes)
    if _takes_row(node):
        attributes["starts"] = attributes["starts"][1:]
    tensors = [*graph.ins(node), *(graph.tensors[name] for name in node.outputs)]
    types = tuple((each.shape, each.dtype, each.quantization, each.constant) for each in tensors)
    return node.op, repr(sorted(attributes.items())), types, bool(node.bodies)


def _takes_row(node: Node) -> bool:
    """Return whether a node is a slice of one row along the first axis."""
    return node.op == "slice" and bool(node.attributes["sizes"]) and node.attributes["sizes"][0] == 1


def _distances(keys: np.ndarray, start: int) -> list[int]:
    """Return the distances from a node to the next nodes of its kind, as possible numbers of nodes of a step."""
    following = np.flatnonzero(keys[start + 1 : start + 1 + _MAX_NODES] == keys[start])
    return [int(each) + 1 for each in following[:_MAX_TRIED]]


def _sequences(
    graph: Graph, nodes: Sequence[Node], keys: np.ndarray, start: int, size: int, least: int
) -> "list[_Steps]":
    """Return the sequence of steps of `size` nodes that begins near a node; empty if there is none."""
    if (
        keys[start + size : start + 2 * size] != keys[start : start + size][: len(keys) - start - size]
    ).any():
        return []
    differs = np.flatnonzero(keys[start + size :] != keys[start : len(keys) - size])
    length = (int(differs[0]) if len(differs) else len(keys) - size - start) + size
    # A step may begin at any of its nodes; results must not be read later than in the next step.
    for first in range(start, start + size):
        count = (length - (first - start)) // size
        if count < _MIN_STEPS or count * size < least:
            return []
        steps = _Steps(graph, nodes, first, size, count)
        if steps.analyze():
            return [steps]
    return []


@dataclass
class _Steps:
    """A sequence of equal steps.

    Parameters
    ----------
    graph : Graph
        Graph with the steps.
    nodes : sequence of Node
        Nodes of the graph in order.
    first, size, count : int
        Index of the first node, nodes of a step, and number of steps.
    """

    graph: Graph
    nodes: Sequence[Node]
    first: int
    size: int
    count: int
    #: Place at which each result of the steps is computed, with the number of the step.
    places: dict[str, tuple[int, _Place]] = field(default_factory=dict)
    #: States: place of the result, and name of the initial value.
    states: list[tuple[_Place, str]] = field(default_factory=list)
    #: Scanned slices: name of the tensor, first row and sign, by number of the node.
    scanned: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    captured: list[str] = field(default_factory=list)
    #: Places of results that later nodes read in several steps, with the direction in which they are stacked.
    stacked: dict[_Place, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Index of the first node after the steps."""
        return self.first + self.size * self.count

    def node(self, step: int, number: int) -> Node:
        """Return a node of a step."""
        return self.nodes[self.first + step * self.size + number]

    def result(self, step: int, place: _Place) -> str:
        """Return the name of a result of a step."""
        return self.node(step, place[0]).outputs[place[1]]

    def analyze(self) -> bool:
        """Find states, scanned and stacked tensors; return False if the steps cannot become a loop."""
        for step in range(self.count):
            for number in range(self.size):
                for index, name in enumerate(self.node(step, number).outputs):
                    self.places[name] = step, (number, index)
        return (
            all(
                self._operand(number, index)
                for number in range(self.size)
                for index in self._operands(number)
            )
            and bool(self.states)
            and not any(self.node(0, number).bodies for number in range(self.size))
            and self._readers()
        )

    def _operands(self, number: int) -> range:
        return range(len(self.node(0, number).inputs))

    def _operand(self, number: int, index: int) -> bool:
        """Classify an operand of a node; return False if it differs from step to step in an unknown way."""
        graph, names = self.graph, [self.node(step, number).inputs[index] for step in range(self.count)]
        tensors = [graph.tensors[name] for name in names]
        first = tensors[0].data
        if first is not None:
            others = (each.data for each in tensors if each.data is not None)
            return all(each is first or np.array_equal(each, first) for each in others)
        sources = [self.places.get(name) for name in names]
        second = sources[1]
        if second is None:
            if set(names) != {names[0]}:
                return False
            return (
                self._scan(number, names[0]) if _takes_row(self.node(0, number)) else self._capture(names[0])
            )
        distance = 1 - second[0]
        if distance not in (0, 1) or any(
            source != (step - distance, second[1]) for step, source in enumerate(sources) if step
        ):
            return False
        if distance == 0:
            return sources[0] == (0, second[1])
        if sources[0] is not None:
            return False
        if (second[1], names[0]) not in self.states:
            self.states.append((second[1], names[0]))
        return True

    def _capture(self, name: str) -> bool:
        if name not in self.captured:
            self.captured.append(name)
        return True

    def _scan(self, number: int, name: str) -> bool:
        """Classify a slice of a row: the same row in each step, or the next or the preceding one."""
        spans = [self.node(step, number).attributes for step in range(self.count)]
        rows, shape = [each["starts"][0] for each in spans], self.graph.tensors[name].shape
        if len(set(rows)) == 1:
            return self._capture(name)
        sign = rows[1] - rows[0]
        whole = spans[0]["sizes"][1:] == shape[1:] and not any(spans[0]["starts"][1:])
        if abs(sign) != 1 or not whole or set(spans[0]["steps"]) != {1}:
            return False
        if rows != [rows[0] + sign * step for step in range(self.count)]:
            return False
        self.scanned[number] = name, rows[0], sign
        return True

    def _readers(self) -> bool:
        """Find the results that later nodes read; return False if that is not possible with a loop."""
        final = {place for place, _ in self.states}
        last = self.count - 1
        for node in self.nodes[self.end :]:
            for name in node.inputs:
                step, place = self.places.get(name, (last, None))
                if place is not None and not (step == last and place in final):
                    self.stacked.setdefault(place, self._direction(node, place))
        for name in self.graph.outputs:
            step, place = self.places.get(name, (last, None))
            if place is not None and not (step == last and place in final):
                return False
        shapes = [self.graph.tensors[self.result(0, place)].shape for place in self.stacked]
        return all(shape and shape[0] == 1 for shape in shapes)

    def _direction(self, node: Node, place: _Place) -> int:
        """Return -1 if a node reads the results of a place from the last step to the first, else 1."""
        read = [self.places[name][0] for name in node.inputs if self.places.get(name, (0, None))[1] == place]
        return -1 if len(read) > 1 and read[1] < read[0] else 1

    def with_loop(self) -> Graph:
        """Return the graph with a loop instead of the steps."""
        return _Rolling(self).run()


class _Rolling:
    """Construction of a graph with a loop.

    Parameters
    ----------
    steps : _Steps
        The steps, after `analyze`.
    """

    def __init__(self, steps: _Steps):
        self.steps, self.graph = steps, steps.graph
        self.used = {*steps.graph.tensors, *steps.graph.nodes}
        self.tensors: dict[str, Tensor] = {}
        same = takewhile(
            lambda pair: pair[0] == pair[1], zip(steps.node(1, 0).name, steps.node(2, 0).name, strict=False)
        )
        self.name = self._fresh("".join(a for a, _ in same).rstrip(":0123456789") or "steps")

    def run(self) -> Graph:
        """Return the graph with a loop instead of the steps."""
        s, made = self.steps, list[Node]()
        trips = self._tensor(Tensor("steps", (), "int64", None, np.array(s.count, np.int64)))
        first = self._tensor(Tensor("first", (), "bool", None, np.array(True)))
        operands = [first, trips, *(initial for _, initial in s.states)]
        operands += [self._rows(made, *each) for each in s.scanned.values()]
        operands += s.captured
        outputs, seen = list[str](), set[_Place]()
        for place, _ in s.states:
            last = s.result(s.count - 1, place)
            outputs.append(self._like(last, last) if place in seen else last)
            seen.add(place)
        stacks = dict[_Place, str]()
        for place in s.stacked:
            row = self.graph.tensors[s.result(0, place)]
            stacks[place] = self._like(row.name, f"{self.name}:all", (s.count, *row.shape))
        attributes = {
            "states": len(s.states),
            "scanned": tuple(sign for _, _, sign in s.scanned.values()),
            "stacked": tuple(s.stacked.values()),
        }
        made.append(
            Node(
                self.name, "loop", tuple(operands), (*outputs, *stacks.values()), attributes, (self._body(),)
            )
        )
        rows = {}
        for place, name in stacks.items():
            shape = (s.count, *self.graph.tensors[s.result(0, place)].shape[1:])
            rows[place] = self._emit(made, "reshape", name, shape, shape=shape)
        after = [self._reader(made, node, rows, seen) for node in s.nodes[s.end :]]
        nodes = [*s.nodes[: s.first], *made, *after]
        return rebuild(self.graph, nodes, changed=self.tensors)

    def _reader(self, made: list[Node], node: Node, rows: dict[_Place, str], final: set[_Place]) -> Node:
        """Return a later node that reads results of the loop instead of those of the steps."""
        s, inputs, spans = self.steps, list[str](), list[tuple[_Place, int, int]]()

        def flush() -> None:
            for place, begin, end in spans:
                inputs.append(self._part(made, rows[place], begin, end))
            spans.clear()

        for name in node.inputs:
            step, place = s.places.get(name, (0, None))
            if place is None or place not in rows or (step == s.count - 1 and place in final):
                flush()
                inputs.append(name)
                continue
            position = step if s.stacked[place] > 0 else s.count - 1 - step
            joins = node.op == "concat" and node.attributes["axis"] == 0
            if joins and spans and spans[-1][0] == place and spans[-1][2] == position:
                spans[-1] = place, spans[-1][1], position + 1
            else:
                spans.append((place, position, position + 1))
        flush()
        return node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs))

    def _part(self, made: list[Node], name: str, begin: int, end: int) -> str:
        """Return some rows of a tensor."""
        x = self.tensors[name]
        if end - begin == x.shape[0]:
            return name
        shape = (end - begin, *x.shape[1:])
        starts = (begin, *(0,) * (len(shape) - 1))
        return self._emit(made, "slice", name, shape, starts=starts, sizes=shape, steps=(1,) * len(shape))

    def _rows(self, made: list[Node], name: str, first: int, sign: int) -> str:
        """Return the rows that the loop scans."""
        count = self.steps.count
        self.tensors.setdefault(name, self.graph.tensors[name])
        begin = first if sign > 0 else first - count + 1
        return self._part(made, name, begin, begin + count)

    def _body(self) -> Graph:
        """Return the body: the nodes of the second step, which reads results of the first one as states."""
        s, body = self.steps, Graph(self.name)
        body.add_input(Tensor("iteration", (), "int64"))
        names: dict[str, str] = {}  # of operands of the second step

        def add(like: str, name: str, shape: tuple[int, ...] | None = None) -> str:
            x = self.graph.tensors[like]
            return body.add_input(replace(x, name=name, shape=shape or x.shape, data=None)).name

        slots: dict[tuple[_Place, str], str] = {
            state: add(s.result(0, state[0]), f"state{number}") for number, state in enumerate(s.states)
        }
        scanned = {
            number: add(name, f"row{number}", self.graph.tensors[name].shape[1:])
            for number, (name, _, _) in s.scanned.items()
        }
        for number, name in enumerate(s.captured):
            names[name] = add(name, f"outer{number}")
        for number in range(s.size):
            initial, node = s.node(0, number), s.node(1, number)
            inputs: list[str] = []
            for before, name in zip(initial.inputs, node.inputs, strict=True):
                tensor = self.graph.tensors[name]
                if tensor.constant:
                    if name not in body.tensors:
                        body.add_tensor(tensor)
                    inputs.append(name)
                elif name in s.places and s.places[name][0] == 0:
                    inputs.append(slots[s.places[name][1], before])
                elif number not in scanned:
                    inputs.append(names.get(name, name))
            for name in node.outputs:
                body.add_tensor(self.graph.tensors[name])
            if number in scanned:
                shape = self.graph.out(node).shape
                node = replace(node, op="reshape", attributes={"shape": shape})
                inputs = [scanned[number]]
            body.add_node(replace(node, inputs=tuple(inputs)))
        again = body.add_tensor(Tensor(self._fresh("again"), (), "bool", None, np.array(True))).name
        results = [s.result(1, place) for place in (*(place for place, _ in s.states), *s.stacked)]
        return body.finish([again, *results])

    def _emit(
        self, made: list[Node], op: str, name: str, out_shape: tuple[int, ...], **attributes: Any
    ) -> str:
        """Add a node with one operand, and return the name of its result."""
        out = self._like(name, f"{name}:{op}", out_shape)
        made.append(Node(self._fresh(f"{out}:{op}"), op, (name,), (out,), attributes))
        return out

    def _like(self, like: str, name: str, shape: tuple[int, ...] | None = None) -> str:
        """Add a tensor of the type of another one under an unused name."""
        x = self.tensors.get(like) or self.graph.tensors[like]
        return self._tensor(replace(x, name=name, shape=shape or x.shape, data=None))

    def _tensor(self, tensor: Tensor) -> str:
        tensor = replace(tensor, name=self._fresh(tensor.name))
        self.tensors[tensor.name] = tensor
        return tensor.name

    def _fresh(self, base: str) -> str:
        name, number = base, 1
        while name in self.used:
            number += 1
            name = f"{base}.{number}"
        self.used.add(name)
        return name
