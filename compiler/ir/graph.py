"""Graph of tensors and topologically ordered nodes, and construction of a graph from nodes of another graph."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.ir.control import Ends, mismatch
from compiler.ir.identity import identity
from compiler.ir.ops import KINDS, OPS, Attributes
from compiler.ir.tensor import IDENTITY, Tensor, signature
from hw.errors import InputError, shown

if TYPE_CHECKING:
    import networkx as nx

#: Maximum length of an attribute in a listing, in characters.
_MAX_SHOWN = 120


class GraphError(InputError):
    """Error for a model or a result of a pass that is not a valid graph."""


@identity("Node", "name", "op", "inputs", "outputs", "attributes", "bodies")
@dataclass(frozen=True, eq=False)
class Node:
    """Node of the graph: an operator with its operands, results and attributes.

    Parameters
    ----------
    name : str
        Name that is unique in the graph and is shown to the user.
    op : str
        One of `compiler.ir.ops.OPS`.
    inputs : tuple of str
        Names of the input tensors in the operator's order.
    outputs : tuple of str
        Names of the tensors that the node computes.
    attributes : dict
        Attribute values, as defined by the operator's Spec.
    bodies : tuple of Graph
        Subgraphs of a control-flow node; outer tensors that the subgraphs use are operands of the node.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes = field(default_factory=dict)
    bodies: "tuple[Graph, ...]" = ()

    def __post_init__(self) -> None:
        spec = OPS.get(self.op)
        if spec is None:
            raise GraphError(f"node {self.name!r}: operator must be one of {', '.join(OPS)}, not {self.op!r}")
        least, most = spec.inputs
        if len(self.inputs) < least or (most is not None and len(self.inputs) > most):
            count = (
                f"{least}" if least == most else f"{least} or more" if most is None else f"{least}..{most}"
            )
            raise GraphError(f"node {self.name!r}: {self.op} takes {count} inputs, not {len(self.inputs)}")
        if self.attributes.keys() != spec.attributes.keys():
            wanted, given = (", ".join(sorted(keys)) or "none" for keys in (spec.attributes, self.attributes))
            raise GraphError(f"node {self.name!r}: attributes of {self.op} must be {wanted}, not {given}")
        if len(self.bodies) != len(spec.bodies):
            raise GraphError(
                f"node {self.name!r}: {self.op} has {len(spec.bodies)} subgraphs, not {len(self.bodies)}"
            )
        for key, kind in spec.attributes.items():
            fits, text = KINDS[kind]
            if not fits(self.attributes[key]):
                raise GraphError(f"node {self.name!r}: {key} must be {text}, not {self.attributes[key]!r}")

    @property
    def operator(self) -> str:
        """Name of the operator in the source model."""
        return self.attributes.get("operator", self.op)

    def __str__(self) -> str:
        attributes = ", ".join(f"{key}={_short(value)}" for key, value in self.attributes.items())
        inputs = ", ".join(f"%{name}" for name in self.inputs)
        return f"{self.op}({inputs})" + (f" [{attributes}]" if attributes else "")


def _short(value: object) -> str:
    """Return an attribute as a string for listings, truncated if it is long."""
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@identity("GraphState", "input", "output", "initial")
@dataclass(frozen=True, eq=False)
class GraphState:
    """State of a model: a tensor that keeps its contents from one sample to the next.

    Parameters
    ----------
    input, output : str
        Names of the graph's input that receives the state, and of the output that is the state of the next sample;
        both have the same shape and type.
    initial : array
        Contents for the first sample.
    """

    input: str
    output: str
    initial: NDArray


class Graph:
    """Model, represented by nodes and tensors.

    Nodes are stored in the order in which they were added, which must be topological. Passes build a new graph instead
    of modifying one.

    Parameters
    ----------
    name : str
        Name of the model for reports.

    Attributes
    ----------
    tensors, nodes : dict
        Tensors and nodes by name.
    inputs, outputs : list of str
        Names of the tensors that the user supplies and receives, followed by those of the states.
    states : tuple of GraphState
        Tensors that keep their contents from one sample to the next.
    origins : dict
        Names and operators, in the source model, of the nodes that a node of this graph stems from, by its name; only
        of nodes for which they may differ from its own name and operator.
    """

    def __init__(self, name: str):
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.nodes: dict[str, Node] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.states: tuple[GraphState, ...] = ()
        self.origins: dict[str, frozenset[str]] = {}
        self._producer: dict[str, Node] = {}
        self._consumers: dict[str, list[Node]] = {}

    def add_tensor(self, tensor: Tensor) -> Tensor:
        """Add a constant, or a tensor whose producer is added later."""
        if tensor.name in self.tensors:
            raise GraphError(f"tensor {tensor.name!r} is defined twice")
        self.tensors[tensor.name] = tensor
        return tensor

    def add_input(self, tensor: Tensor) -> Tensor:
        """Add a tensor that the user supplies."""
        self.inputs.append(tensor.name)
        return self.add_tensor(tensor)

    def add_node(self, node: Node) -> Node:
        """Add a node whose inputs are inputs of the graph, constants, or outputs of nodes that were added before.

        Raises
        ------
        GraphError
            An input is not available, or an output already has a producer.
        """
        if node.name in self.nodes:
            raise GraphError(f"node {node.name!r} is defined twice")
        for name in node.inputs:
            tensor = self._known(name, node)
            if not (tensor.constant or name in self._producer or name in self.inputs):
                raise GraphError(f"node {node.name!r}: its input {name!r} is not computed before it runs")
        for name in node.outputs:
            tensor = self._known(name, node)
            if tensor.constant or name in self._producer or name in self.inputs:
                raise GraphError(f"node {node.name!r}: its output {name!r} already has a producer")
        if node.bodies:
            outputs = [self.tensors[name] for name in node.outputs]
            bodies = [each.ends for each in node.bodies]
            wrong = mismatch(node.op, node.attributes, self.ins(node), bodies, outputs)
            if wrong:
                raise GraphError(f"node {node.name!r} ({node.op}): {wrong}")
        self.nodes[node.name] = node
        self._producer |= dict.fromkeys(node.outputs, node)
        for name in dict.fromkeys(node.inputs):
            self._consumers.setdefault(name, []).append(node)
        return node

    def finish(self, outputs: list[str]) -> "Graph":
        """Set the outputs and return the graph.

        Raises
        ------
        GraphError
            An output is neither computed by a node nor an input or a constant.
        """
        for name in outputs:
            if name not in self.tensors or not self._available(name):
                raise GraphError(f"no node computes the output {name!r}")
        self.outputs = list(outputs)
        return self

    def keep(self, states: Iterable[GraphState]) -> "Graph":
        """Declare the states of a finished graph, and return the graph.

        Raises
        ------
        GraphError
            A state has no input or no output in the graph, or these and the initial contents differ in shape or type.
        """
        self.states = tuple(states)
        for state in self.states:
            if state.input not in self.inputs or state.output not in self.outputs:
                raise GraphError(f"state {state.input!r} must be an input and an output of {self.name!r}")
            given, made = self.tensors[state.input], self.tensors[state.output]
            for other in (made, state.initial):
                if (tuple(other.shape), str(other.dtype)) != (given.shape, given.dtype):
                    raise GraphError(
                        f"state {state.input!r} must remain {given.dtype}{list(given.shape)}, not become "
                        f"{other.dtype}{list(other.shape)}"
                    )
        return self

    @property
    def sample_inputs(self) -> list[str]:
        """Names of the inputs that are not states."""
        states = {state.input for state in self.states}
        return [name for name in self.inputs if name not in states]

    @property
    def sample_outputs(self) -> list[str]:
        """Names of the outputs that are not states."""
        states = {state.output for state in self.states}
        return [name for name in self.outputs if name not in states]

    @property
    def ends(self) -> Ends:
        """Input and output tensors."""
        ins, outs = ([self.tensors[name] for name in names] for names in (self.inputs, self.outputs))
        return ins, outs

    def producer(self, tensor: str) -> Node | None:
        """Return the node that computes a tensor; None for inputs and constants."""
        return self._producer.get(tensor)

    def consumers(self, tensor: str) -> list[Node]:
        """Return the nodes that read a tensor, in order."""
        return self._consumers.get(tensor, [])

    def ins(self, node: Node) -> list[Tensor]:
        """Return the input tensors of a node."""
        return [self.tensors[name] for name in node.inputs]

    def out(self, node: Node) -> Tensor:
        """Return the output tensor of a node with exactly one output."""
        (name,) = node.outputs
        return self.tensors[name]

    def names_of(self, node: Node) -> frozenset[str]:
        """Return all names by which the user may refer to a node: its name and operator, and those of its origins."""
        return self.origins.get(node.name, frozenset()) | {node.name, node.op}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def walk(self) -> "Iterator[tuple[Graph, Node]]":
        """Iterate over all nodes with their graphs, in preorder: a node precedes the nodes of its subgraphs."""
        for node in self:
            yield self, node
            for body in node.bodies:
                yield from body.walk()

    def networkx(self) -> "nx.MultiDiGraph":
        """Return the graph as a networkx graph; each tensor between two nodes is an edge with attribute `bytes`."""
        import networkx as nx  # takes long to load

        view = nx.MultiDiGraph(name=self.name)
        for node in self:
            view.add_node(node.name, node=node)
        for node in self:
            for name in node.inputs:
                producer = self._producer.get(name)
                if producer is not None:
                    view.add_edge(producer.name, node.name, key=name, bytes=self.tensors[name].bytes)
        return view

    def _known(self, name: str, node: Node) -> Tensor:
        if name not in self.tensors:
            raise GraphError(f"node {node.name!r}: there is no tensor {name!r}")
        return self.tensors[name]

    def _available(self, name: str) -> bool:
        return name in self._producer or name in self.inputs or self.tensors[name].constant

    def __repr__(self) -> str:
        return f"<Graph {shown(self.name)}: {len(self.nodes)} nodes; {signature(*self.ends)}>"

    def __str__(self) -> str:
        return "\n".join(self._lines(f"graph {self.name}"))

    def _lines(self, title: str) -> list[str]:
        lines = [f"{title}(", *(f"    {self.tensors[name]}" for name in self.inputs), ") {"]
        for node in self:
            outputs = ", ".join(str(self.tensors[name]) for name in node.outputs)
            lines.append(f"    {outputs} = {node}  ; {node.name}")
            for title, body in zip(OPS[node.op].bodies, node.bodies, strict=True):
                lines += [f"        {line}" for line in body._lines(title)]
        return [*lines, f"    return {', '.join('%' + name for name in self.outputs)}", "}"]


def unused_name(name: str, *used: Container[str]) -> str:
    """Return `name`, with apostrophes appended until none of the collections contains it."""
    while any(name in names for names in used):
        name += "'"
    return name


def rebuild(
    graph: Graph,
    nodes: Iterable[Node],
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    changed: Mapping[str, Tensor] | None = None,
) -> Graph:
    """Build a graph from the given nodes and the tensors that they use; a state remains if its input and output do.

    Parameters
    ----------
    graph : Graph
        Source of the tensors.
    nodes : iterable of Node
        Nodes of the new graph in topological order.
    inputs, outputs : iterables of str, optional
        Names of the inputs and outputs of the new graph; by default, those of `graph`.
    changed : mapping, optional
        Tensors that replace tensors of `graph`, by name.
    """
    new = Graph(graph.name)
    new.origins = graph.origins
    chosen = list(nodes)
    ins = list(graph.inputs if inputs is None else inputs)
    outs = list(graph.outputs if outputs is None else outputs)
    tensors = graph.tensors | dict(changed or {})
    for name in ins:
        new.add_input(tensors[name])
    for name in dict.fromkeys(name for node in chosen for name in (*node.inputs, *node.outputs)):
        if name not in new.tensors:
            new.add_tensor(tensors[name])
    for name in outs:
        if name not in new.tensors:
            new.add_tensor(tensors[name])
    for node in chosen:
        new.add_node(node)
    kept = [state for state in graph.states if state.input in ins and state.output in outs]
    return new.finish(outs).keep(kept)


_TIMES = ":times_over_"


def times_over(graph: Graph, name: str) -> int:
    """Return how many copies of its data a tensor holds: one for each part of its consumer's split weights."""
    producer = graph.producer(name)
    _, found, count = producer.name.rpartition(_TIMES) if producer else ("", "", "")
    return int(count) if found else 1


def random_input(rng: np.random.Generator, tensor: Tensor, bounds: Mapping[str, int]) -> NDArray:
    """Generate a random value for an input.

    Floats are standard normal. Integers of an input that has a bound in `bounds`, such as indices, are less than the
    bound. Other 8-bit, 16-bit or quantized integers cover the range of their type, like images and audio. Other wider
    integers are 0 or 1, like masks.

    Raises
    ------
    InputError
        The input does not fit in memory.
    """
    dtype = np.dtype(tensor.dtype)
    try:
        if dtype.kind == "f":
            return rng.standard_normal(tensor.shape).astype(dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, tensor.shape).astype(dtype)
        limits = np.iinfo(dtype)
        plain = dtype.itemsize > 2 and tensor.quantization in (None, IDENTITY)
        end = bounds.get(tensor.name, 2 if plain else None)
        if end is not None:
            return rng.integers(0, min(end - 1, limits.max), tensor.shape, dtype, endpoint=True)
        return rng.integers(limits.min, limits.max, tensor.shape, dtype, endpoint=True)
    except MemoryError:
        raise InputError(
            f"input {tensor.name!r} of {tensor.elements:,} elements does not fit in memory"
        ) from None
