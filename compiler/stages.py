"""Stages of a compiled network, in turn on the accelerator and on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.codegen.code import Code
from compiler.ir.graph import Graph
from compiler.ir.identity import identity
from compiler.ir.ops import Attributes
from compiler.ir.tensor import Tensor
from compiler.lower.groups import anchor_index
from compiler.profile.floors import Floor


@identity("LayerInfo", "nodes", "ops", "floor", "tag", "program")
@dataclass(frozen=True)
class LayerInfo:
    """A layer as reports show it.

    Parameters
    ----------
    nodes, ops : tuples of str
        Nodes of the model that it carries out, and their operators.
    floor : Floor
        Its work.
    tag : int
        What its cycles are counted under.
    program : str
        The first program that has a part in it.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    floor: Floor
    tag: int
    program: str

    @property
    def name(self) -> str:
        """Name of the layer, by which schedules and measurements know it: that of its anchor."""
        return self.nodes[anchor_index(self.ops)]


@dataclass(frozen=True, eq=False)
class Stage:
    """Nodes that run in one go.

    Parameters
    ----------
    inputs, outputs : tuples of Tensor
        What comes in and goes out.
    code : Code or None
        Programs of a stage on the accelerator.
    graph : Graph or None
        Nodes of a stage on the host.
    infos : tuple of LayerInfo
        Layers of a stage on the accelerator.
    control : Control or None
        A node of control flow.
    floor : Floor or None
        Work of a stage on the accelerator in a subgraph: its bytes are those of its weights.
    spared : Floor or None
        Work that is not done where the program behind the guard of a stage that may be skipped runs.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    code: Code | None = None
    graph: Graph | None = None
    infos: tuple[LayerInfo, ...] = ()
    control: "Control | None" = None
    floor: Floor | None = None
    spared: Floor | None = None

    def walk(self) -> "Iterator[Stage]":
        """It, and the stages of its subgraphs."""
        yield self
        for body in self.control.bodies if self.control else ():
            for stage in body.stages:
                yield from stage.walk()


@dataclass(frozen=True, eq=False)
class Body:
    """A subgraph of control flow: what comes in and goes out (constants among it), and its stages."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Control:
    """A node of control flow, as in compiler/ir/control.py: the host decides which of its bodies runs how often.

    Parameters
    ----------
    name, op, attributes
        The node's.
    operands, outputs : tuples of Tensor
        In the node's order; constants have their contents.
    bodies : tuple of Body
        Its subgraphs.
    """

    name: str
    op: str
    attributes: Attributes
    operands: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    bodies: tuple[Body, ...]


def control_of(graph: Graph, stages: Sequence[tuple[Stage, ...]]) -> Control:
    """The one node of a graph that is control flow, with the stages of its subgraphs."""
    (node,) = graph
    bodies = (
        Body(
            tuple(body.tensors[n] for n in body.inputs), tuple(body.tensors[n] for n in body.outputs), inside
        )
        for body, inside in zip(node.bodies, stages, strict=True)
    )
    outputs = tuple(graph.tensors[n] for n in node.outputs)
    return Control(node.name, node.op, node.attributes, tuple(graph.ins(node)), outputs, tuple(bodies))


@identity("Smaller", "batch", "floor", "infos")
@dataclass(frozen=True)
class Smaller:
    """The programs of a network that are for fewer samples.

    Parameters
    ----------
    batch : int
        At most so many.
    floor : Floor
        Their work.
    infos : tuple of LayerInfo
        Layers of all stages.
    """

    batch: int
    floor: Floor
    infos: tuple[LayerInfo, ...]
