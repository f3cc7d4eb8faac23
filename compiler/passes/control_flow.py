"""Control-flow passes: removal of unused operands and outputs, resolution of constant conditions, loop unrolling."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.control import loop_operands, truth, whole
from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.redundant_nodes import remove_dead
from compiler.reference import Kernels, run_node
from compiler.reference.control import MAX_ITERATIONS
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


#: Maximum number of iterations of a loop that is unrolled before quantization.
MAX_UNROLLED_ITERATIONS = 32
#: Maximum number of nodes from all unrolled loops of a graph, which bounds the time of the compilation.
MAX_UNROLLED_NODES = 1024

#: Maximum number of nodes that nested loops may execute per sample, because calibration executes them in numpy.
MAX_NESTED_NODES = 1 << 18

Known = NDArray | None


def known_trips(node: Node, operands: Sequence[Known], limit: int) -> int | None:
    """Return the number of iterations of a loop; None if it is unknown or exceeds a limit.

    Parameters
    ----------
    node : Node
        The loop node.
    operands : sequence of array or None
        Contents of the loop's operands; None for operands that are unknown.
    limit : int
        Maximum number of iterations.
    """
    found = _simulated(node, operands, limit)
    return None if found is None else found[0]


def _simulated(node: Node, operands: Sequence[Known], limit: int) -> tuple[int, list[Known]] | None:
    """Return the number of iterations and the final states of a loop, as far as these are known; None as above."""
    given = loop_operands(node.attributes, operands)
    if given.condition is None or given.trips is None:
        return None
    (body,) = node.bodies
    condition, states, trips = truth(given.condition), given.states, whole(given.trips)
    again = body.tensors[body.outputs[0]].data
    slices: list[Known] = [None] * len(given.scanned)
    count = 0
    while condition and count < trips:
        if again is not None and truth(again) and all(state is None for state in states):
            return None if trips > limit else (trips, states)
        if count == limit:
            return None
        inputs = [np.array(count, np.int64), *states, *slices, *given.rest]
        results = _known_outputs(body, inputs)
        if results[0] is None:
            return None
        condition, states = truth(results[0]), results[1 : 1 + len(states)]
        count += 1
    return count, states


def _varies(node: Node, operands: Sequence[Known]) -> bool:
    """Return whether nodes of a loop's body read values that are known, but differ from iteration to iteration.

    Such nodes become simpler if the loop is unrolled: an index is a constant then, for example. Nodes that compute
    only such values, like a counter and its comparison with a limit, do not count.
    """
    (body,), given = node.bodies, loop_operands(node.attributes, operands)
    states, scanned = given.states, [None if each is None else each[0] for each in given.scanned]
    first = _known_outputs(body, [np.array(0, np.int64), *states, *scanned, *given.rest])
    always = _values(body, _known_inputs(node, operands))
    second = _values(body, [np.array(1, np.int64), *first[1 : 1 + len(states)], *scanned, *given.rest])
    varying = {name for name, value in second.items() if value is not None and always[name] is None}
    return any(
        varying.intersection(each.inputs) and any(second[name] is None for name in each.outputs)
        for each in body
    )


def _is_float(body: Graph) -> bool:
    """Return whether a loop's body computes with float32 values and no quantized ones."""
    tensors = [graph.tensors[name] for graph, node in body.walk() for name in (*node.inputs, *node.outputs)]
    return any(each.dtype == "float32" and not each.constant for each in tensors) and not any(
        each.quantization is not None for each in tensors
    )


def _counters(node: Node, last: Sequence[Known]) -> set[int]:
    """Return the states of a loop that are known after it, and that only such states and its condition read."""
    (body,) = node.bodies
    found = {number for number, value in enumerate(last) if value is not None}
    while found:
        outputs = [name for number, name in enumerate(body.outputs) if number and number - 1 not in found]
        live = remove_dead(rebuild(body, body, outputs=outputs))
        read = {
            number
            for number in found
            if live.consumers(live.inputs[1 + number]) or live.inputs[1 + number] in outputs
        }
        if not read:
            break
        found -= read
    return found


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
    """Resolve control flow with constant conditions, and unroll loops whose nodes become simpler thereby.

    These are loops of one iteration, those whose nodes depend on the number of the iteration (`_varies`), and loops of
    float nodes, which are quantized more accurately with ranges of their own for each step, within limits on iterations
    and nodes. `unroll_loops` decides about other loops.
    """
    if not any(node.bodies for node in graph):
        return graph
    check_work(graph)
    return _Resolver(graph).run()


def unroll_loops(graph: Graph, factors: Mapping[str, int], rounding: Kernels) -> Graph:
    """Unroll loops of a graph, without those of its subgraphs; the results remain equal.

    A loop of T iterations that is unrolled by a factor k < T becomes a loop of T // k iterations, each of which
    computes k steps, and a loop of one iteration for the remaining T % k steps. Conditions and counters that are known
    at compile time disappear, also with a factor of 1.

    Parameters
    ----------
    graph : Graph
        Graph with loops.
    factors : mapping of str to int
        Factor for each loop to unroll, by name of the node; a factor of at least T removes the loop. The numbers of
        iterations of these loops must be known.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding with which nodes with constant operands are computed.
    """
    return remove_dead(_Resolver(graph, rounding, factors).run()) if factors else graph


def several_steps(graph: Graph, node: Node, factor: int, rounding: Kernels) -> Graph:
    """Return the body of a loop that computes several steps in each iteration, as `unroll_loops` makes it.

    Parameters
    ----------
    graph : Graph
        Graph with the loop.
    node : Node
        The loop, whose number of iterations is known.
    factor : int
        Number of steps.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding with which nodes with constant operands are computed.
    """
    simulated = _simulated(node, [tensor.data for tensor in graph.ins(node)], MAX_ITERATIONS)
    assert simulated is not None, f"the number of iterations of {node.name!r} must be known"
    body = _several_steps(node, factor, _counters(node, simulated[1]), rounding)
    return remove_dead(body)


class _Resolver:
    """Copies a graph node by node, folding constants and resolving control flow.

    Parameters
    ----------
    graph : Graph
        Graph to copy.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding of nodes with constant operands.
    factors : mapping of str to int, or None
        The loops to unroll, as in `unroll_loops`; None to choose them as in `unroll_control_flow`.
    """

    def __init__(
        self, graph: Graph, rounding: Kernels = "reference", factors: Mapping[str, int] | None = None
    ):
        self.old, self.new = graph, Graph(graph.name)
        self.rounding: Kernels = rounding
        self.factors = factors
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
            results = run_node(source, node, known, rounding=self.rounding)
            for name, data in zip(node.outputs, results, strict=True):
                names[name] = self._add(replace(source.tensors[name], data=data), prefix)
            return
        outputs = tuple(self._add(source.tensors[name], prefix) for name in node.outputs)
        names |= zip(node.outputs, outputs, strict=True)
        moved = replace(node, name=prefix + node.name, inputs=tuple(inputs), outputs=outputs)
        added = self._node(moved, own=not prefix)
        if prefix or node.name in source.origins:
            self.new.origins[added.name] = source.names_of(node)

    def _resolved(
        self, node: Node, source: Graph, inputs: list[str], values: list[NDArray | None], prefix: str
    ) -> list[str] | None:
        """Inline or unroll a control-flow node and return its output names; None if that is not possible."""
        here = f"{prefix}{node.name}/"
        if node.op == "if":
            if values[0] is None:
                return None
            return self.inline(node.bodies[0 if truth(values[0]) else 1], inputs[1:], here)
        stacks = [source.tensors[name] for name in node.outputs[node.attributes["states"] :]]
        if self.factors is not None:
            if prefix or node.name not in self.factors:
                return None
            trips = known_trips(node, values, MAX_ITERATIONS)
            assert trips is not None, f"the number of iterations of {node.name!r} must be known"
            if self.factors[node.name] < trips:
                return self._partly(node, inputs, self.factors[node.name], stacks)
            return self._unrolled(node, inputs, range(trips), stacks, here)
        # Loops inside of an unrolled loop were counted with it.
        room = MAX_UNROLLED_NODES if self.unrolling else self.nodes_left
        limit = min(MAX_UNROLLED_ITERATIONS, room // max(unrolled_nodes(node, values, 1), 1))
        trips = known_trips(node, values, limit)
        scanned = [self.new.tensors[name] for name in loop_operands(node.attributes, inputs).scanned]
        if trips is None or any(stack.shape[0] != trips for stack in stacks):
            return None
        if any(tensor.shape[0] < trips for tensor in scanned):
            return None  # executing the loop raises an error
        if trips > 1 and not _is_float(node.bodies[0]) and not _varies(node, values):
            return None
        if self.unrolling:
            return self._unrolled(node, inputs, range(trips), stacks, here)
        self.nodes_left -= unrolled_nodes(node, values, trips)
        self.unrolling = True
        outputs = self._unrolled(node, inputs, range(trips), stacks, here)
        self.unrolling = False
        return outputs

    def _unrolled(
        self, node: Node, inputs: list[str], steps: range, stacks: list[Tensor], here: str
    ) -> list[str]:
        """Add the nodes of some iterations of a loop, and return the final states and the stacked slices of these."""
        states, slices_out = self._steps(node, inputs, steps, here)
        signs = node.attributes["stacked"]
        return states + [
            self.stack(replace(tensor, shape=(len(steps), *tensor.shape[1:])), parts[::sign], here)
            for tensor, parts, sign in zip(stacks, slices_out, signs, strict=True)
        ]

    def _steps(
        self, node: Node, inputs: list[str], steps: range, here: str
    ) -> tuple[list[str], list[list[str]]]:
        """Add the nodes of some iterations; return the states, and for each stacked output the slices in order."""
        given, (body,) = loop_operands(node.attributes, inputs), node.bodies
        states = given.states
        slices_out: list[list[str]] = [[] for _ in node.attributes["stacked"]]
        for count in steps:
            prefix = f"{here}{count}/"
            number = self._add(Tensor(body.inputs[0], (), "int64", None, np.array(count, np.int64)), prefix)
            slices = [
                self.slice(name, count if sign > 0 else self.new.tensors[name].shape[0] - 1 - count, prefix)
                for name, sign in zip(given.scanned, node.attributes["scanned"], strict=True)
            ]
            _, *results = self.inline(body, [number, *states, *slices, *given.rest], prefix)
            states = results[: len(states)]
            for parts, name in zip(slices_out, results[len(states) :], strict=True):
                parts.append(name)
        return states, slices_out

    def _partly(self, node: Node, inputs: list[str], factor: int, stacks: list[Tensor]) -> list[str]:
        """Add a loop that computes `factor` steps in each iteration, and one of one iteration for the remaining steps.

        A state that is known in each iteration and that only such states and the condition read is a constant after
        the loop, and no state of the new loops.
        """
        given, signs = loop_operands(node.attributes, inputs), node.attributes["stacked"]
        simulated = _simulated(node, [self.new.tensors[name].data for name in inputs], MAX_ITERATIONS)
        assert simulated is not None, f"the number of iterations of {node.name!r} must be known"
        trips, last = simulated
        count, rest = divmod(trips, factor)
        counters = _counters(node, last)
        states = list(given.states)
        rows: list[list[str]] = [[] for _ in stacks]
        pieces = [(node.name, 0, count, factor)]
        if rest:
            pieces.append((f"{node.name}/rest", count * factor, 1, rest))
        for name, first, iterations, steps in pieces:
            made = self._counted(node, name, inputs, states, (first, iterations, steps), counters)
            states = made[: len(states)]
            for row, part in zip(rows, made[len(states) :], strict=True):
                row.append(part)
        here = f"{node.name}/"
        for number in counters:
            quantization = self.new.tensors[given.states[number]].quantization
            states[number] = self.constant("counter", last[number], here, quantization)
        return states + [
            parts[0] if len(parts) == 1 else self._emit("concat", parts[::sign], stack, "", axis=0)
            for stack, parts, sign in zip(stacks, rows, signs, strict=True)
        ]

    def _counted(
        self,
        node: Node,
        name: str,
        inputs: list[str],
        states: list[str],
        span: tuple[int, int, int],
        counters: Collection[int],
    ) -> list[str]:
        """Add a loop over some iterations of a loop; return the states, and the rows of the stacked outputs.

        Parameters
        ----------
        node : Node
            The original loop.
        name : str
            Name of the new loop.
        inputs, states : list of str
            Names of the operands, and of the states before the new loop.
        span : (int, int, int)
            Number of the first iteration of the original loop, iterations of the new loop, and steps in each of these.
        counters : collection of int
            Indices of states that the new loop does not need.
        """
        (first, count, factor), here = span, f"{name}/"
        given = loop_operands(node.attributes, inputs)
        kept = [number for number in range(len(states)) if number not in counters]
        operands = [
            self.constant("condition", np.array(True), here),
            self.constant("iterations", np.array(count, np.int64), here),
            *(states[number] for number in kept),
            *(
                self._blocks(each, sign, span, here)
                for each, sign in zip(given.scanned, node.attributes["scanned"], strict=True)
            ),
            *given.rest,
        ]
        made = [self.old.tensors[each] for each in node.outputs]
        block = (factor,) if factor > 1 else ()
        after = {number: self._add(made[number], here) for number in kept}
        stacks = made[len(states) :]
        rows = [self._add(replace(each, shape=(count, *block, *each.shape[1:])), here) for each in stacks]
        attributes = {**node.attributes, "states": len(kept)}
        body = _several_steps(node, factor, counters, self.rounding, first)
        self._node(
            Node(name, "loop", tuple(operands), (*after.values(), *rows), attributes, (body,)), own=True
        )
        self.new.origins[name] = self.old.names_of(node)
        shaped = [
            self._shaped(row, (count * factor, *each.shape[1:])) if block else row
            for row, each in zip(rows, stacks, strict=True)
        ]
        return [*(after.get(number, name) for number, name in enumerate(states)), *shaped]

    def _blocks(self, name: str, sign: int, span: tuple[int, int, int], prefix: str) -> str:
        """Return the slices that a loop scans, as a block of slices for each iteration."""
        x, (begin, count, factor) = self.new.tensors[name], span
        rows, row = count * factor, x.shape[1:]
        first = begin if sign > 0 else x.shape[0] - begin - rows
        if rows < x.shape[0]:
            part = replace(x, name=f"{name}:rows", shape=(rows, *row))
            if x.data is not None:
                name = self._add(replace(part, data=x.data[first : first + rows]), prefix)
            else:
                spans = {"starts": (first, *(0,) * len(row)), "sizes": part.shape}
                name = self._emit("slice", [name], part, prefix, **spans, steps=(1,) * len(x.shape))
        return self._shaped(name, (count, factor, *row)) if factor > 1 else name

    def iteration(self, number: str, factor: int, step: int, prefix: str) -> str:
        """Add the nodes that compute `factor` times a number plus `step`, and return the name of the result."""
        like = self.new.tensors[number]
        for op, value in (("mul", factor), ("add", step)):
            constant = self.constant(op, np.array(value, np.int64), prefix)
            number = self._emit(op, [number, constant], replace(like, name=f"{like.name}:{op}"), prefix)
        return number

    def constant(
        self, name: str, data: Known, prefix: str | None, quantization: Quantization | None = None
    ) -> str:
        """Add a constant and return its name."""
        assert data is not None
        return self._add(Tensor(name, data.shape, data.dtype.name, quantization, data), prefix)

    def inline(self, body: Graph, inputs: Sequence[str], prefix: str) -> list[str]:
        names = dict(zip(body.inputs, inputs, strict=True))
        for node in body:
            self._copy(node, body, names, prefix)
        return [self._name(name, body, names, prefix) for name in body.outputs]

    def slice(self, name: str, index: int, prefix: str) -> str:
        """Add slice `index` of a tensor that a loop scans, and return the name of the slice."""
        x = self.new.tensors[name]
        if x.data is not None:
            return self._add(replace(x, name=f"{name}:{index}", shape=x.shape[1:], data=x.data[index]), None)
        spans = {"starts": (index, *(0,) * (len(x.shape) - 1)), "sizes": (1, *x.shape[1:])}
        row = replace(x, name=f"{name}:row", shape=spans["sizes"])
        cut = self._emit("slice", [name], row, prefix, **spans, steps=(1,) * len(x.shape))
        return self._shaped(cut, x.shape[1:])

    def stack(self, tensor: Tensor, parts: list[str], prefix: str | None) -> str:
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


def _several_steps(
    node: Node, factor: int, counters: Collection[int], rounding: Kernels, first: int = 0
) -> Graph:
    """Return the body of a loop that computes `factor` steps of a loop in each iteration, without counters.

    `first` is the number of the original loop's iteration that the new loop computes first.
    """
    (old,) = node.bodies
    outputs = [name for number, name in enumerate(old.outputs) if number and number - 1 not in counters]
    body = remove_dead(rebuild(old, old, outputs=outputs))
    inner = _Resolver(Graph(old.name), rounding, {})
    inner.tensors |= old.tensors.keys()
    inner.nodes |= old.nodes.keys()
    tensors = [old.tensors[name] for name in old.inputs]
    given = loop_operands(node.attributes, [tensors[0], *tensors])
    number = inner.new.add_input(tensors[0]).name
    states = [
        "" if index in counters else inner.new.add_input(tensor).name
        for index, tensor in enumerate(given.states)
    ]
    blocks = [
        inner.new.add_input(replace(tensor, shape=(factor, *tensor.shape)) if factor > 1 else tensor).name
        for tensor in given.scanned
    ]
    rest = [inner.new.add_input(tensor).name for tensor in given.rest]
    counted = bool(body.consumers(number)) or number in body.outputs
    kept = [index for index in range(len(states)) if index not in counters]
    parts: list[list[str]] = [[] for _ in node.attributes["stacked"]]
    for step in range(factor):
        prefix = f"{node.name}/{step}/" if factor > 1 else ""
        slices = [
            inner.slice(name, step if sign > 0 else factor - 1 - step, prefix) if factor > 1 else name
            for name, sign in zip(blocks, node.attributes["scanned"], strict=True)
        ]
        here = (
            inner.iteration(number, factor, first + step, prefix)
            if counted and factor + first > 1
            else number
        )
        results = inner.inline(body, [here, *states, *slices, *rest], prefix)
        for index, name in zip(kept, results, strict=False):
            states[index] = name
        for part, name in zip(parts, results[len(kept) :], strict=True):
            part.append(name)
    stacks = [
        part[0]
        if factor == 1
        else inner.stack(
            replace(old.tensors[name], shape=(factor, *old.tensors[name].shape), data=None),
            part[::sign],
            None,
        )
        for name, part, sign in zip(
            old.outputs[1 + len(states) :], parts, node.attributes["stacked"], strict=True
        )
    ]
    again = inner.constant("again", np.array(True), None)
    return inner.new.finish([again, *(states[index] for index in kept), *stacks])


def _unused(base: str, used: set[str]) -> str:
    """Reserve an unused name: `base`, with a number appended if it is in use."""
    name, number = base, 1
    while name in used:
        number += 1
        name = f"{base}.{number}"
    used.add(name)
    return name
