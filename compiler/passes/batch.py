"""Changes of shapes: batching, and graphs for further lengths of a sequence.

Batching: every tensor holds the data of all samples, stacked along the first axis.

A tensor of shape (d, ...) becomes one of shape (batch * d, ...). This is correct for an operator whose result for the
stacked samples equals the stacked results of the samples; operators that mix the first dimension with others are
rejected.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS, Attributes, BatchRule
from compiler.ir.tensor import Tensor
from hw.errors import InputError


class _MixedError(Exception):
    """Raised if an operator mixes samples; the message describes how."""


def with_batch(graph: Graph, batch: int) -> Graph:
    """Transform a graph to process `batch` samples at a time.

    Raises
    ------
    InputError
        A node cannot process a batch, or the graph has a state; the message names it.
    """
    if batch == 1:
        return graph
    if graph.states:
        raise InputError(
            f"a batch of {batch}: {graph.name!r} keeps state {graph.states[0].input!r} from one sample to the next"
        )
    return _Batcher(graph, batch).run()


class _Batcher:
    def __init__(self, graph: Graph, batch: int):
        self.graph, self.batch = graph, batch
        self.batched = Graph(graph.name)

    def run(self) -> Graph:
        """Return the new graph."""
        for name in self.graph.inputs:
            self.batched.add_input(self._grown(self.graph.tensors[name]))
        for node in self.graph:
            self._node(node)
        for name in self.graph.outputs:
            if self.graph.tensors[name].constant:
                raise InputError(f"a batch of {self.batch}: output {name!r} is a constant")
        return self.batched.finish(self.graph.outputs)

    def _grown(self, tensor: Tensor) -> Tensor:
        if not tensor.shape:
            raise InputError(
                f"a batch of {self.batch}: {tensor.name!r} has no first axis along which to stack samples"
            )
        shape = (self.batch * tensor.shape[0], *tensor.shape[1:])
        try:
            return replace(tensor, shape=shape)
        except ValueError as error:
            raise InputError(f"a batch of {self.batch}: {tensor.name!r}: {error}") from None

    def _node(self, node: Node) -> None:
        try:
            attributes, repeated = self._attributes(node)
        except _MixedError as error:
            raise InputError(f"a batch of {self.batch}: node {node.name!r} ({node.op}) {error}") from None
        for name in node.outputs:
            self.batched.add_tensor(self._grown(self.graph.tensors[name]))
        inputs = tuple(self._constant(name, name in repeated) for name in node.inputs)
        self.batched.add_node(replace(node, inputs=inputs, attributes=attributes))

    def _constant(self, name: str, repeat: bool) -> str:
        """Return the name of an input in the new graph; a constant is repeated for each sample if `repeat` is set."""
        tensor = self.graph.tensors[name]
        if tensor.data is None:
            return name
        new = f"{name} x {self.batch}" if repeat else name
        if new not in self.batched.tensors:
            data = np.concatenate([tensor.data] * self.batch) if repeat else tensor.data
            self.batched.add_tensor(replace(tensor, name=new, data=data, shape=data.shape))
        return new

    def _attributes(self, node: Node) -> tuple[Attributes, set[str]]:
        """Return the attributes of the batched node, and the constants that must be repeated for each sample."""
        rule = OPS[node.op].batch
        if rule is None:
            raise _MixedError("does not support batches")
        return _RULES[rule](self, node)

    def first(self, node: Node) -> int:
        """Return the size of the first dimension of a node's output, for one sample."""
        shape = self.graph.out(node).shape
        return shape[0] if shape else 0

    def always(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for operators that treat all indices of the first dimension independently."""
        return node.attributes, set()

    def weighted(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for operators that need constant weights."""
        if not all(tensor.constant for tensor in self.graph.ins(node)[1:]):
            raise _MixedError("has weights that differ from sample to sample")
        return node.attributes, set()

    def aligned(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for operators with broadcast operands, whose first dimensions must be equal."""
        rank, first, repeated = len(self.graph.out(node).shape), self.first(node), set()
        for tensor in self.graph.ins(node):
            leading = len(tensor.shape) == rank and tensor.shape[0] == first
            if tensor.constant:
                if leading and first > 1:
                    if tensor.quantization is not None and tensor.quantization.axis == 0:
                        raise _MixedError(f"has {tensor.name!r} with scales along the first axis")
                    repeated.add(tensor.name)
            elif not leading:
                raise _MixedError(f"broadcasts {list(tensor.shape)} to {list(self.graph.out(node).shape)}")
        return node.attributes, repeated

    def dense(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for products of rows and constant weights."""
        x, *weights = self.graph.ins(node)
        if len(x.shape) < 2 or not all(tensor.constant for tensor in weights):
            raise _MixedError("takes a vector, or weights that are not constant")
        return node.attributes, set()

    def matmul(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for products of two stacks of matrices, or of rows and a constant right operand."""
        a, b = self.graph.ins(node)
        if len(self.graph.out(node).shape) > 2:
            return self.aligned(node)
        if a.constant or not b.constant or len(a.shape) < 2:
            raise _MixedError("multiplies two matrices of each sample")
        return node.attributes, set()

    def axis(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for operators along an axis other than the first."""
        if not node.attributes["axis"] % len(self.graph.out(node).shape):
            raise _MixedError("works along the first axis")
        return node.attributes, set()

    def concat(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for concatenations along an axis other than the first; constants are repeated per sample."""
        attributes, _ = self.axis(node)
        return attributes, {tensor.name for tensor in self.graph.ins(node) if tensor.constant}

    def reduce(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for reductions over axes other than the first."""
        (x,) = self.graph.ins(node)
        if 0 in {axis % max(len(x.shape), 1) for axis in node.attributes["axes"]} or len(x.shape) < 2:
            raise _MixedError("works along the first axis")
        return node.attributes, set()

    def transpose(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for transpositions that leave the first dimension in place."""
        if node.attributes["perm"][:1] != (0,):
            raise _MixedError("moves the first axis")
        return node.attributes, set()

    def reshape(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for reshapes, which are always possible."""
        _, *rest = shape = self.graph.out(node).shape or (0,)
        return {"shape": (self.batch * shape[0], *rest)}, set()

    def slice(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for slices that contain the whole first dimension."""
        a, (x,) = node.attributes, self.graph.ins(node)
        if (a["starts"][0], a["sizes"][0], a["steps"][0]) != (0, x.shape[0], 1):
            raise _MixedError("takes a part of the first axis")
        return {**a, "sizes": (self.batch * a["sizes"][0], *a["sizes"][1:])}, set()

    def pad(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for paddings that do not pad the first dimension."""
        if any(node.attributes["pads"][0]):
            raise _MixedError("pads the first axis")
        return node.attributes, set()

    def gather(self, node: Node) -> tuple[Attributes, set[str]]:
        """Apply the rule for gathers of rows from a constant table, or with constant indices along another axis."""
        x, indices = self.graph.ins(node)
        axis = node.attributes["axis"] % len(x.shape)
        if not (x.constant and not indices.constant and axis == 0 and indices.shape) and not (
            indices.constant and not x.constant and axis
        ):
            raise _MixedError("gathers along the first axis, or with different indices for each sample")
        return node.attributes, set()


_Rule = Callable[[_Batcher, Node], tuple[Attributes, set[str]]]
_RULES: dict[BatchRule, _Rule] = {
    BatchRule.ALWAYS: _Batcher.always,
    BatchRule.WEIGHTS: _Batcher.weighted,
    BatchRule.ALIGNED: _Batcher.aligned,
    BatchRule.AXIS: _Batcher.axis,
    BatchRule.AXES: _Batcher.reduce,
    BatchRule.DENSE: _Batcher.dense,
    BatchRule.MATMUL: _Batcher.matmul,
    BatchRule.CONCAT: _Batcher.concat,
    BatchRule.TRANSPOSE: _Batcher.transpose,
    BatchRule.RESHAPE: _Batcher.reshape,
    BatchRule.SLICE: _Batcher.slice,
    BatchRule.PAD: _Batcher.pad,
    BatchRule.GATHER: _Batcher.gather,
}


def with_length(graphs: tuple[Graph, Graph], lengths: tuple[int, int], length: int) -> Graph:
    """Return a graph for a length, given graphs for two lengths.

    Sizes in shapes and attributes are linear functions of the length. Everything else, in particular constants and
    quantizations, is that of the second graph; a constant that is longer is cut.

    Parameters
    ----------
    graphs : (Graph, Graph)
        Graphs for two different lengths.
    lengths : (int, int)
        Their lengths, in ascending order.
    length : int
        Length of the result, which does not exceed the second length.

    Raises
    ------
    InputError
        The graphs differ in more than sizes, or a size would not be an integer.
    """
    low, high = graphs
    forms = [
        [(node.name, node.op, _variable(graph, node), node.outputs) for node in graph] for graph in graphs
    ]
    ends = [(graph.inputs, graph.outputs) for graph in graphs]
    if forms[0] != forms[1] or ends[0] != ends[1] or high.states or any(node.bodies for node in high):
        raise InputError(
            f"{high.name!r} has other nodes for length {lengths[0]} than for {lengths[1]}, states, or subgraphs"
        )
    # Constants may have other names, for example if only one of them was corrected when the model was quantized.
    named = {
        high_name: low_name
        for node in high
        for low_name, high_name in zip(low.nodes[node.name].inputs, node.inputs, strict=False)
    }

    def size(one: int, other: int) -> int:
        rise, run = other - one, lengths[1] - lengths[0]
        if rise * (length - lengths[0]) % run:
            raise InputError(
                f"{high.name!r}: sizes {one} and {other} for lengths {lengths[0]} and {lengths[1]} are not linear"
            )
        return one + rise * (length - lengths[0]) // run

    def value(one: Any, other: Any) -> Any:
        if isinstance(other, tuple) and isinstance(one, tuple) and len(one) == len(other):
            return tuple(value(*each) for each in zip(one, other, strict=True))
        if isinstance(one, int) and isinstance(other, int) and not isinstance(other, bool):
            return size(one, other)
        return other

    def tensor(name: str) -> Tensor:
        mine = high.tensors[name]
        its = low.tensors.get(named.get(name, name), mine)
        shape = value(its.shape, mine.shape)
        data = mine.data
        if data is not None and data.shape != shape:
            data = data[tuple(slice(each) for each in shape)]
        return replace(mine, shape=shape, data=data)

    made = Graph(high.name)
    for name in high.tensors:
        (made.add_input if name in high.inputs else made.add_tensor)(tensor(name))
    made.inputs = list(high.inputs)
    for node in high:
        before = low.nodes[node.name].attributes
        attributes = {key: value(before.get(key), each) for key, each in node.attributes.items()}
        made.add_node(replace(node, attributes=attributes))
    made.origins = dict(high.origins)
    return made.finish(high.outputs)


def _variable(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the inputs of a node that are not constants."""
    return tuple(name for name in node.inputs if graph.tensors[name].data is None)
