"""Control-flow passes: removal of unused operands and outputs, resolution of constant conditions, loop unrolling."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.control import loop_operands, truth, whole
from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Tensor
from compiler.reference import run_node
from hw.errors import InputError, shown


def trim_control(graph: Graph) -> Graph:
    """Remove unused operands and outputs of control flow, and move constant operands into the subgraphs."""
    if not any(node.bodies for node in graph):
        return graph
    return rebuild(graph, [_trimmed(graph, node) if node.bodies else node for node in graph])


def _trimmed(graph: Graph, node: Node) -> Node:
    node = _without_outputs(graph, node)
    return _without_operands(graph, node)


def _without_outputs(graph: Graph, node: Node) -> Node:
    """Return the node without unused outputs; loop states remain, because the loop needs them."""
    states = node.attributes.get("states", 0)
    used = [
        number
        for number, name in enumerate(node.outputs)
        if number < states or graph.consumers(name) or name in graph.outputs
    ]
    if len(used) == len(node.outputs):
        return node
    outputs = tuple(node.outputs[number] for number in used)
    attributes, first = dict(node.attributes), 0
    if node.op == "loop":
        first = 1
        attributes["stacked"] = tuple(attributes["stacked"][number - states] for number in used[states:])
    bodies = []
    for body in node.bodies:
        inner = [*body.outputs[:first], *(body.outputs[first + number] for number in used)]
        bodies.append(rebuild(body, body, outputs=inner))
    return replace(node, outputs=outputs, attributes=attributes, bodies=tuple(bodies))


def _without_operands(graph: Graph, node: Node) -> Node:
    """Return the node with constant operands moved into the subgraphs and without operands that no subgraph reads."""
    inner = 1 if node.op == "if" else 2
    first = inner if node.op == "if" else inner + node.attributes["states"] + len(node.attributes["scanned"])
    offset = inner - (0 if node.op == "if" else 1)  # operand index minus index of the subgraph's input
    dropped = {
        number
        for number in range(first, len(node.inputs))
        if graph.tensors[node.inputs[number]].constant
        or not any(_read(body, body.inputs[number - offset]) for body in node.bodies)
    }
    if not dropped:
        return node
    inputs = tuple(name for number, name in enumerate(node.inputs) if number not in dropped)
    constants = {number - offset: graph.tensors[node.inputs[number]] for number in dropped}
    bodies = tuple(_with_constants(body, constants) for body in node.bodies)
    return replace(node, inputs=inputs, bodies=bodies)


def _read(body: Graph, name: str) -> bool:
    return bool(body.consumers(name)) or name in body.outputs


def _with_constants(body: Graph, constants: dict[int, Tensor]) -> Graph:
    """Return a subgraph with the inputs at some indices replaced by constants."""
    changed = {
        body.inputs[number]: replace(body.tensors[body.inputs[number]], data=tensor.data)
        for number, tensor in constants.items()
    }
    inputs: Sequence[str] = [name for number, name in enumerate(body.inputs) if number not in constants]
    return rebuild(body, body, inputs=inputs, changed=changed)


#: Maximum number of iterations of an unrolled loop. Each iteration has separate layers and programs, which is faster
#: only if all programs fit the instruction store; otherwise programs are reloaded for every sample.
MAX_UNROLLED_ITERATIONS = 32
#: Maximum number of nodes from all unrolled loops of a graph.
MAX_UNROLLED_NODES = 1024

#: Maximum number of nodes that nested loops may execute per sample, because calibration executes them in numpy.
MAX_NESTED_NODES = 1 << 18

Known = NDArray | None


def known_trips(node: Node, operands: Sequence[Known], room: int = MAX_UNROLLED_NODES) -> int | None:
    """Return the number of iterations of a loop that is to be unrolled; None if it remains a loop.

    Parameters
    ----------
    node : Node
        The loop node.
    operands : sequence of array or None
        Contents of the loop's operands; None for operands that are unknown.
    room : int
        Maximum number of nodes after unrolling.
    """
    given = loop_operands(node.attributes, operands)
    if given.condition is None or given.trips is None:
        return None
    (body,) = node.bodies
    limit = min(MAX_UNROLLED_ITERATIONS, room // max(_size(body, _known_inputs(node, operands)), 1))
    condition, states, trips = truth(given.condition), given.states, whole(given.trips)
    slices: list[Known] = [None] * len(given.scanned)
    count = 0
    while condition and count < trips:
        if count == limit:
            return None
        inputs = [np.array(count, np.int64), *states, *slices, *given.rest]
        results = _known_outputs(body, inputs)
        if results[0] is None:
            return None
        condition, states = truth(results[0]), results[1 : 1 + len(states)]
        count += 1
    return count


def unrolled_nodes(node: Node, operands: Sequence[Known], trips: int) -> int:
    """Return the maximum number of nodes that result from unrolling the given number of iterations of a loop."""
    (body,) = node.bodies
    return trips * _size(body, _known_inputs(node, operands))


def _known_inputs(node: Node, operands: Sequence[Known]) -> list[Known]:
    """Return the values of a loop subgraph's inputs; None for inputs that are unknown or vary between iterations."""
    given = loop_operands(node.attributes, operands)
    return [*[None] * (1 + len(given.states) + len(given.scanned)), *given.rest]


def _size(graph: Graph, inputs: Sequence[Known]) -> int:
    """Return the maximum number of nodes of a graph after unrolling its loops."""
    values, size = _values(graph, inputs), 0
    for node in graph:
        size += 1
        operands = [values[name] for name in node.inputs]
        if node.op == "loop":
            trips = loop_operands(node.attributes, operands).trips
            size += unrolled_nodes(
                node, operands, MAX_UNROLLED_ITERATIONS if trips is None else _clamped_trips(trips)
            )
        else:
            size += sum(_size(body, operands[1:]) for body in node.bodies)
    return size


def check_work(graph: Graph) -> None:
    """Check that nested loops do not execute an excessive number of nodes.

    Raises
    ------
    InputError
        The limit is exceeded; the message names the outermost loop.
    """
    values = _values(graph, [None] * len(graph.inputs))
    for node in graph:
        if node.op == "loop" and any(inner.op == "loop" for _, inner in node.bodies[0].walk()):
            work = _work(node, [values[name] for name in node.inputs])
            if work > MAX_NESTED_NODES:
                raise InputError(
                    f"loop {shown(node.name)} and its inner loops execute {work:,} nodes per sample; "
                    f"the limit is {MAX_NESTED_NODES:,}"
                )


def _work(node: Node, operands: Sequence[Known]) -> int:
    """Return the minimum number of nodes that a loop executes; one iteration if the trip count is data-dependent."""
    (body,), trips = node.bodies, loop_operands(node.attributes, operands).trips
    values, work = _values(body, _known_inputs(node, operands)), 0
    for inner in body:
        known = [values[name] for name in inner.inputs]
        work += 1 + (_work(inner, known) if inner.op == "loop" else 0)
    condition = values[body.outputs[0]]
    certain = trips is not None and condition is not None and truth(condition)
    return work * (whole(trips) if certain else 1)


def _clamped_trips(trips: NDArray) -> int:
    """Return the number of iterations to assume for a loop: at least 1, because the loop may remain a loop."""
    return max(1, min(whole(trips), MAX_UNROLLED_ITERATIONS))


def _known_outputs(graph: Graph, inputs: Sequence[Known]) -> list[Known]:
    """Return the values of a graph's outputs; None for outputs that do not follow from the known inputs."""
    values = _values(graph, inputs)
    return [values[name] for name in graph.outputs]


def _values(graph: Graph, inputs: Sequence[Known]) -> dict[str, Known]:
    """Return the values of a graph's tensors; None for tensors that do not follow from the known inputs."""
    values: dict[str, Known] = {name: tensor.data for name, tensor in graph.tensors.items()}
    values |= zip(graph.inputs, inputs, strict=True)
    for node in graph:
        operands = [values[name] for name in node.inputs]
        known = [value for value in operands if value is not None]
        if not node.bodies and operands and len(known) == len(operands):
            values |= zip(node.outputs, run_node(graph, node, known), strict=True)
    return values


Names = dict[str, str]


def unroll_control_flow(graph: Graph) -> Graph:
    """Resolve control flow with constant conditions and unroll loops with constant trip counts."""
    if not any(node.bodies for node in graph):
        return graph
    check_work(graph)
    return _Resolver(graph).run()


class _Resolver:
    """Copies a graph node by node, folding constants and resolving control flow."""

    def __init__(self, graph: Graph):
        self.old, self.new = graph, Graph(graph.name)
        self.tensors, self.nodes = set(graph.tensors), set(graph.nodes)  # names in use
        self.constants: dict[int, str] = {}  # by identity
        self.nodes_left = MAX_UNROLLED_NODES  # remaining limit on the nodes of unrolled loops
        self.unrolling = False
        self.renamed: Names = {}  # names of the graph's outputs by name of the tensor

    def run(self) -> Graph:
        names: Names = {}
        for name in self.old.inputs:
            self.new.add_input(self.old.tensors[name])
            names[name] = name
        for node in self.old:
            self._copy(node, self.old, names, "")
        self.new.finish([self._output(name, names) for name in self.old.outputs])
        return self._renamed().keep(self.old.states)

    def _copy(self, node: Node, source: Graph, names: Names, prefix: str) -> None:
        """Copy a node of `source`, folded or resolved if possible; `names` maps its tensor names to new names."""
        inputs = [self._name(name, source, names, prefix) for name in node.inputs]
        values = [self.new.tensors[name].data for name in inputs]
        known = [value for value in values if value is not None]
        if node.bodies:
            outputs_inside = self._resolved(node, source, inputs, values, prefix)
            if outputs_inside is not None:
                names |= zip(node.outputs, outputs_inside, strict=True)
                return
        elif known and len(known) == len(values):
            for name, data in zip(node.outputs, run_node(source, node, known), strict=True):
                names[name] = self._add(replace(source.tensors[name], data=data), prefix)
            return
        outputs = tuple(self._add(source.tensors[name], prefix) for name in node.outputs)
        names |= zip(node.outputs, outputs, strict=True)
        moved = replace(node, name=prefix + node.name, inputs=tuple(inputs), outputs=outputs)
        added = self._node(moved, own=not prefix)
        if node.name in source.origins:
            self.new.origins[added.name] = source.origins[node.name]

    def _resolved(
        self, node: Node, source: Graph, inputs: list[str], values: list[NDArray | None], prefix: str
    ) -> list[str] | None:
        """Inline or unroll a control-flow node and return its output names; None if that is not possible."""
        here = f"{prefix}{node.name}/"
        if node.op == "if":
            if values[0] is None:
                return None
            return self._inline(node.bodies[0 if truth(values[0]) else 1], inputs[1:], here)
        # Loops inside of an unrolled loop were counted with it.
        trips = known_trips(node, values, MAX_UNROLLED_NODES if self.unrolling else self.nodes_left)
        stacks = [source.tensors[name] for name in node.outputs[node.attributes["states"] :]]
        scanned = [self.new.tensors[name] for name in loop_operands(node.attributes, inputs).scanned]
        if trips is None or any(stack.shape[0] != trips for stack in stacks):
            return None
        if any(tensor.shape[0] < trips for tensor in scanned):
            return None  # executing the loop raises an error
        if self.unrolling:
            return self._unrolled(node, inputs, trips, stacks, here)
        self.nodes_left -= unrolled_nodes(node, values, trips)
        self.unrolling = True
        outputs = self._unrolled(node, inputs, trips, stacks, here)
        self.unrolling = False
        return outputs

    def _unrolled(
        self, node: Node, inputs: list[str], trips: int, stacks: list[Tensor], here: str
    ) -> list[str]:
        given, (body,) = loop_operands(node.attributes, inputs), node.bodies
        states = given.states
        slices_out: list[list[str]] = [[] for _ in stacks]
        for count in range(trips):
            prefix = f"{here}{count}/"
            number = self._add(Tensor(body.inputs[0], (), "int64", None, np.array(count, np.int64)), prefix)
            slices = [
                self._slice(name, count if sign > 0 else self.new.tensors[name].shape[0] - 1 - count, prefix)
                for name, sign in zip(given.scanned, node.attributes["scanned"], strict=True)
            ]
            _, *results = self._inline(body, [number, *states, *slices, *given.rest], prefix)
            states = results[: len(states)]
            for parts, name in zip(slices_out, results[len(states) :], strict=True):
                parts.append(name)
        signs = node.attributes["stacked"]
        return states + [
            self._stack(tensor, parts[::sign], here)
            for tensor, parts, sign in zip(stacks, slices_out, signs, strict=True)
        ]

    def _inline(self, body: Graph, inputs: Sequence[str], prefix: str) -> list[str]:
        names = dict(zip(body.inputs, inputs, strict=True))
        for node in body:
            self._copy(node, body, names, prefix)
        return [self._name(name, body, names, prefix) for name in body.outputs]

    def _slice(self, name: str, index: int, prefix: str) -> str:
        """Add slice `index` of a tensor that a loop scans, and return the name of the slice."""
        x = self.new.tensors[name]
        if x.data is not None:
            return self._add(replace(x, name=f"{name}:{index}", shape=x.shape[1:], data=x.data[index]), None)
        spans = {"starts": (index, *(0,) * (len(x.shape) - 1)), "sizes": (1, *x.shape[1:])}
        row = replace(x, name=f"{name}:row", shape=spans["sizes"])
        cut = self._emit("slice", [name], row, prefix, **spans, steps=(1,) * len(x.shape))
        return self._shaped(cut, x.shape[1:])

    def _stack(self, tensor: Tensor, parts: list[str], prefix: str) -> str:
        """Stack slices along a new first dimension and return the name of the result."""
        rows = [self._shaped(name, (1, *tensor.shape[1:])) for name in parts]
        return self._emit("concat", rows, tensor, prefix, axis=0)

    def _shaped(self, name: str, shape: tuple[int, ...]) -> str:
        x = self.new.tensors[name]
        if x.data is not None:
            return self._add(replace(x, name=f"{name}:shaped", shape=shape, data=x.data.reshape(shape)), None)
        return self._emit(
            "reshape", [name], replace(x, name=f"{name}:shaped", shape=shape), None, shape=shape
        )

    def _emit(
        self, op: str, inputs: list[str], output: Tensor, prefix: str | None, **attributes: object
    ) -> str:
        name = self._add(output, prefix)
        self._node(Node(f"{name}:{op}", op, tuple(inputs), (name,), attributes))
        return name

    def _node(self, node: Node, *, own: bool = False) -> Node:
        return self.new.add_node(node if own else replace(node, name=_unused(node.name, self.nodes)))

    def _name(self, name: str, source: Graph, names: Names, prefix: str) -> str:
        """Return the name of a tensor in the new graph; a constant is copied once, when it is first used."""
        if name not in names:
            tensor = source.tensors[name]
            if id(tensor) not in self.constants:
                self.constants[id(tensor)] = self._add(tensor, prefix)
            names[name] = self.constants[id(tensor)]
        return names[name]

    def _add(self, tensor: Tensor, prefix: str | None) -> str:
        """Add a tensor under its own name if it is not from a subgraph (prefix ""), otherwise under an unused name."""
        name = tensor.name if prefix == "" else _unused((prefix or "") + tensor.name, self.tensors)
        return self.new.add_tensor(replace(tensor, name=name)).name

    def _output(self, name: str, names: Names) -> str:
        """Return the tensor of an output: a constant or copy that has its name, or a tensor to be renamed later."""
        current = self._name(name, self.old, names, "")
        if current == name:
            return name
        tensor = self.new.tensors[current]
        if tensor.data is not None:
            return self.new.add_tensor(replace(tensor, name=name)).name
        if self.new.producer(current) and current not in self.old.outputs and current not in self.renamed:
            self.renamed[current] = name
            return current
        self.new.add_tensor(replace(tensor, name=name))
        self._node(Node(f"{name}:copy", "reshape", (current,), (name,), {"shape": tensor.shape}))
        return name

    def _renamed(self) -> Graph:
        """Return the new graph with the tensors of outputs renamed to the outputs' names."""
        if not self.renamed:
            return self.new
        new_names = {name: self.renamed.get(name, name) for name in self.new.tensors}
        result = Graph(self.new.name)
        result.origins = self.new.origins
        for name, tensor in self.new.tensors.items():
            add = result.add_input if name in self.new.inputs else result.add_tensor
            add(replace(tensor, name=new_names[name]))
        for node in self.new:
            inputs, outputs = (tuple(new_names[n] for n in names) for names in (node.inputs, node.outputs))
            result.add_node(replace(node, inputs=inputs, outputs=outputs))
        return result.finish([new_names[name] for name in self.new.outputs])


def _unused(base: str, used: set[str]) -> str:
    """Reserve an unused name: `base`, with a number appended if it is in use."""
    name, number = base, 1
    while name in used:
        number += 1
        name = f"{base}.{number}"
    used.add(name)
    return name
