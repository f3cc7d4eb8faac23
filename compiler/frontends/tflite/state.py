"""Control flow, comparisons and state of TFLite models.

State consists of resource variables, and of variable tensors that recurrent operators keep between samples.

Each state becomes an input of the graph, which holds the state before a sample, and an output, which is the state of
the next sample. LiteRT keeps states from one invocation of the interpreter to the next in the same way.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import tflite
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.frontends.tflite.elementwise import broadcast
from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.graph import Graph, GraphState
from compiler.ir.tensor import Tensor, same_values
from hw.errors import InputError, shown

#: Identity of a state: container and name of a resource variable, or the index of a variable tensor.
StateKey = tuple[str, str] | int


@dataclass
class TfliteStates:
    """States of one graph while its operators are converted in order.

    Parameters
    ----------
    build : GraphBuilder
        Builder of the graph.
    reserved : set of str
        Names of the tensors of the file, which states must not use.
    nested : bool
        True in a subgraph of control flow, where states are not supported.
    handles : dict
        Resource variables by the index of the tensor that refers to them.
    initial : dict
        Contents that the initialization subgraphs assign to resource variables.
    current : dict
        Tensor with the contents of each state after the operators so far.
    inputs : dict
        Input of the graph for each state that is read before it is assigned.
    """

    build: GraphBuilder
    reserved: set[str]
    nested: bool
    handles: dict[int, StateKey] = field(default_factory=dict)
    initial: dict[StateKey, NDArray] = field(default_factory=dict)
    current: dict[StateKey, Tensor] = field(default_factory=dict)
    inputs: dict[StateKey, Tensor] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InputError in a subgraph of control flow."""
        if self.nested:
            raise InputError(
                "variables in a subgraph of control flow are not supported; read them before the control flow and "
                "assign them after it"
            )

    def key(self, index: int) -> StateKey:
        """Return the variable to which a tensor refers.

        Raises
        ------
        InputError
            No operator so far has computed the tensor as a reference to a variable.
        """
        if index not in self.handles:
            raise InputError(f"tensor {index} refers to no variable")
        return self.handles[index]

    def read(self, key: StateKey, like: Tensor, initial: NDArray | None) -> Tensor:
        """Return the contents of a state; the first read of a state that is not yet assigned adds an input.

        Parameters
        ----------
        key : StateKey
            State to be read.
        like : Tensor
            Tensor with the name, type and quantization of the input.
        initial : array or None
            Contents for the first sample; None if the model defines none.

        Raises
        ------
        InputError
            The state has no initial contents, or its contents have another shape, type or quantization.
        """
        if key not in self.current:
            name = shown(like.name)
            if initial is None:
                raise InputError(f"variable {name} is read before it has contents")
            if initial.shape != like.shape or initial.dtype != like.dtype:
                raise InputError(
                    f"variable {name} starts as {initial.dtype}{list(initial.shape)} but is read as "
                    f"{like.dtype}{list(like.shape)}"
                )
            self.initial[key] = initial
            self.current[key] = self.inputs[key] = self.build.graph.add_input(like)
        tensor = self.current[key]
        wrong = (tensor.shape, tensor.dtype) != (like.shape, like.dtype)
        if wrong or not same_values(tensor.quantization, like.quantization):
            raise InputError(
                f"variable {shown(like.name)} is read with another type or scale than it was assigned"
            )
        return tensor

    def unused(self, name: str) -> str:
        """Return a name for a state that no tensor of the file or of the graph has."""
        while name in self.reserved:
            name += ":state"
        return self.build.fresh(name)

    def finish(self, outputs: list[str]) -> tuple[list[str], list[GraphState]]:
        """Return the outputs of the graph, including those of the states, and the states."""
        made, states = list(outputs), []
        for key, given in self.inputs.items():
            last = self.current[key]
            if self.build.graph.producer(last.name) is None or last.name in made:
                copy = replace(last, name=self.build.fresh(f"{given.name}:next"), data=None)
                last = self.build.node(f"{given.name}:keep", "reshape", [last], copy, shape=last.shape)
            made.append(last.name)
            states.append(GraphState(given.name, last.name, self.initial[key]))
        return made, states


def read_state(c: TfliteConversion, index: int) -> Tensor:
    """Return the contents of the variable tensor that is an input of an operator.

    Raises
    ------
    InputError
        The input is omitted or is not a variable.
    """
    tensor = c.inputs[index] if index < len(c.inputs) else None
    if tensor is None or c.operator.inputs[index] not in c.variables:
        raise c.error(f"input {index} must be a variable tensor, which keeps the state")
    c.states.check()
    # LiteRT fills int8 variables with their zero point, and other variables with zeros.
    q = tensor.quantization
    start = q.zero_point[0] if q is not None and tensor.dtype == "int8" else 0
    return c.states.read(c.operator.inputs[index], tensor, np.full(tensor.shape, start, tensor.dtype))


def write_state(c: TfliteConversion, index: int, value: Tensor) -> None:
    """Make a tensor the new contents of the variable tensor that is an input of an operator."""
    held = c.states.current[c.operator.inputs[index]]
    if (held.shape, held.dtype) != (value.shape, value.dtype):
        raise c.error(f"its state must remain {held.dtype}{list(held.shape)}")
    c.states.current[c.operator.inputs[index]] = value


@converts("VAR_HANDLE")
def _handle(c: TfliteConversion) -> None:
    options = c.options(tflite.VarHandleOptions)
    container, name = ((text or b"").decode() for text in (options.Container(), options.SharedName()))
    if len(c.operator.outputs) != 1:
        raise c.error("must have one output")
    c.states.check()
    c.states.handles[c.operator.outputs[0]] = (container, name)


@converts("READ_VARIABLE")
def _read(c: TfliteConversion) -> None:
    if len(c.operator.inputs) != 1:
        raise c.error("must have one input")
    key = c.states.key(c.operator.inputs[0])
    name = key[1] if isinstance(key, tuple) and key[1] else "variable"
    held = c.states.inputs.get(key)
    like = replace(c.output, name=c.states.unused(name) if held is None else held.name)
    c.make_shaped(c.states.read(key, like, c.states.initial.get(key)))


@converts("ASSIGN_VARIABLE")
def _assign(c: TfliteConversion) -> None:
    if len(c.operator.inputs) != 2:
        raise c.error("must have two inputs")
    key, (value,) = c.states.key(c.operator.inputs[0]), c.given(1)
    held = c.states.inputs.get(key)
    if held is not None and (held.shape, held.dtype) != (value.shape, value.dtype):
        raise c.error(
            f"variable {shown(held.name)} must remain {held.dtype}{list(held.shape)}, not become "
            f"{value.dtype}{list(value.shape)}"
        )
    c.states.current[key] = value


@converts("CALL_ONCE")
def _call_once(c: TfliteConversion) -> None:
    """Take the initial contents of variables from a subgraph, which LiteRT runs before the first sample only."""
    options = c.options(tflite.CallOnceOptions)
    for key, value in c.operator.initialized(options.InitSubgraphIndex()).items():
        if key in c.states.current or key in c.states.initial:
            raise c.error(
                f"variable {shown(key[1])} is in use before its initialization, or is initialized twice"
            )
        c.states.initial[key] = value


#: Trip count of a loop; TFLite's loops have no limit.
_ENDLESS = (1 << 63) - 1
#: Operator of the graph, and True if the operands are swapped, for each TFLite operator.
_COMPARISONS = {
    "LESS": ("less", False),
    "LESS_EQUAL": ("less_equal", False),
    "GREATER": ("less", True),
    "GREATER_EQUAL": ("less_equal", True),
    "EQUAL": ("equal", False),
    "LOGICAL_AND": ("logical_and", False),
    "LOGICAL_OR": ("logical_or", False),
}


def inline(build: GraphBuilder, graph: Graph, inputs: list[Tensor], prefix: str) -> list[Tensor]:
    """Inline the nodes of a subgraph into a graph and return the outputs of the subgraph."""
    if len(inputs) != len(graph.inputs):
        raise InputError(f"a subgraph takes {len(graph.inputs)} inputs, not {len(inputs)}")
    tensors = dict(zip(graph.inputs, inputs, strict=True))

    def tensor_of(name: str) -> Tensor:
        if name not in tensors:
            tensors[name] = replace(graph.tensors[name], name=build.fresh(prefix + name))
            if tensors[name].constant:
                build.graph.add_tensor(tensors[name])
        return tensors[name]

    for node in graph:
        ins, outs = ([tensor_of(name) for name in names] for names in (node.inputs, node.outputs))
        build.nodes(prefix + node.name, node.op, ins, outs, node.bodies, **node.attributes)
    return [tensor_of(name) for name in graph.outputs]


@converts("IF")
def _if(c: TfliteConversion) -> None:
    options = c.options(tflite.IfOptions)
    bodies = [c.operator.subgraph(i) for i in (options.ThenSubgraphIndex(), options.ElseSubgraphIndex())]
    c.build.nodes(c.operator.name, "if", c.given(1), c.outputs, tuple(bodies))


@converts("WHILE")
def _while(c: TfliteConversion) -> None:
    """Convert to a loop whose condition is evaluated once before the loop and at the end of each iteration."""
    name, build = c.operator.name, c.build
    options, states = c.options(tflite.WhileOptions), c.given(1)
    condition, body = (
        c.operator.subgraph(i) for i in (options.CondSubgraphIndex(), options.BodySubgraphIndex())
    )
    if len(condition.outputs) != 1:
        raise c.error("its condition must have one output")
    (first,) = inline(build, condition, states, f"{name}/first/")
    inner = GraphBuilder(name)
    inner.graph.add_input(Tensor("iteration", (), "int64"))
    given = [
        inner.graph.add_input(replace(body.tensors[each], name=inner.fresh(each))) for each in body.inputs
    ]
    results = inline(inner, body, given, "body/")
    (again,) = inline(inner, condition, results, "condition/")
    inner.graph.finish([tensor.name for tensor in (again, *results)])
    trips = build.constant(f"{name}:trips", np.array(_ENDLESS, np.int64))
    build.nodes(
        name,
        "loop",
        [first, trips, *states],
        c.outputs,
        (inner.graph,),
        states=len(states),
        scanned=(),
        stacked=(),
    )


def _compared(c: TfliteConversion) -> tuple[Tensor, Tensor]:
    """Return the operands of a comparison; LiteRT compares stored integers of int16, except for equality."""
    a, b = c.given(2)[:2]
    broadcast(c, a, b)
    if a.dtype == "int16" and c.kind not in ("EQUAL", "NOT_EQUAL"):
        c.expect_equal_scales(a, b)
    return a, b


@converts(*_COMPARISONS)
def _compare(c: TfliteConversion) -> None:
    op, swapped = _COMPARISONS[c.kind]
    a, b = _compared(c)
    c.make(op, [b, a] if swapped else [a, b])


@converts("NOT_EQUAL")
def _differ(c: TfliteConversion) -> None:
    a, b = _compared(c)
    same = c.build.between(c.output, f"{c.output.name}:same")
    c.make("logical_not", [c.build.node(f"{c.operator.name}:same", "equal", [a, b], same)])


@converts("LOGICAL_NOT")
def _not(c: TfliteConversion) -> None:
    c.make("logical_not", c.given(1)[:1])
