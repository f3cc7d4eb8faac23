"""From an ONNX file to a graph: its nodes one after the other."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

# Importing these modules registers their conversions and rewrites.
import compiler.frontends.onnx.integer_ops
import compiler.frontends.onnx.ops.cast
import compiler.frontends.onnx.ops.control_flow
import compiler.frontends.onnx.ops.conv
import compiler.frontends.onnx.ops.elementwise
import compiler.frontends.onnx.ops.gather
import compiler.frontends.onnx.ops.group_norm
import compiler.frontends.onnx.ops.lstm
import compiler.frontends.onnx.ops.matmul
import compiler.frontends.onnx.ops.pad
import compiler.frontends.onnx.ops.pool
import compiler.frontends.onnx.ops.quantize
import compiler.frontends.onnx.ops.resize
import compiler.frontends.onnx.ops.shape
import compiler.frontends.onnx.ops.slice_concat  # noqa: F401
from compiler.frontends.bind import bound_value, check_names
from compiler.frontends.onnx.constant_folding import ConstantFolder, foldable
from compiler.frontends.onnx.errors import DAMAGE, Refused, UnsupportedNodesError, listed, naming
from compiler.frontends.onnx.file import parsed, read_proto
from compiler.frontends.onnx.fuse import fuse
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.host import NO_WAY, on_host
from compiler.frontends.onnx.node import Declared, FileNode, OnnxModel, taken
from compiler.frontends.onnx.outputs import with_outputs
from compiler.frontends.onnx.patterns import recognize
from compiler.frontends.onnx.qdq_analysis import meanings, targets
from compiler.frontends.onnx.registry import CONVERSIONS, OnnxConversion, converts
from compiler.frontends.onnx.rewrite import expand
from compiler.frontends.onnx.sizes import with_sizes
from compiler.frontends.onnx.values import ConstantValue, DynamicValue, UnsupportedNodeError, Value, plain
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from hw.errors import InputError, shown

#: Nodes of subgraphs are converted again where a loop is unrolled or a state gets another type; so many in all.
_MOST_REPEATED = 1 << 14


class GraphReader:
    """One file on its way to a graph."""

    def __init__(self, source: Path | ModelProto, sizes: dict[str, int], bind: dict[str, NDArray]):
        path = source if isinstance(source, Path) else None
        proto = source if isinstance(source, ModelProto) else parsed(source)
        self.name = path.stem if path else proto.graph.name or "model"
        self.refused: list[Refused] = []
        model = read_proto(proto, path.parent if path else None)
        declared = with_sizes(model.inputs, sizes)
        model, declared = _bound(model, declared, bind)
        self.beforehand = ConstantFolder(model)  # shared with the readers of subgraphs
        self.model = replace(model, inputs=declared).used()
        self.left = [_MOST_REPEATED]  # shared with the readers of subgraphs
        self.declared = {output.name: output for output in model.outputs}

    def graph(self) -> Graph:
        """Convert everything."""
        model = self._prepared()
        emitter = self.emitter(self.beforehand.room)
        values: dict[str, Value] = dict(model.constants)
        for declared in model.inputs:
            shape = tuple(n for n in declared.shape or () if isinstance(n, int))
            plainly = declared.dtype in ("float16", "float32", "bool")
            q = None if plainly else emitter.meanings.get(declared.name)
            try:
                tensor = emitter.build.graph.add_input(Tensor(declared.name, shape, declared.dtype, q))
            except ValueError as error:
                raise InputError(f"input {shown(declared.name)}: {error}") from None
            if declared.dtype == "float16":
                wide = Tensor(emitter.build.fresh(f"{declared.name}:wide"), shape, "float32")
                tensor = emitter.build.node(f"{declared.name}:wide", "dequantize", [tensor], wide)
            values[declared.name] = DynamicValue(declared.name, tensor, plain(len(shape)))
        for node in model.nodes:
            self._convert(emitter, node, values)
        missing = [output.name for output in model.outputs if output.name not in values]
        if self.refused and missing:  # else nothing but branches that are never taken reads what they make
            raise UnsupportedNodesError(self.refused)
        if missing:
            raise InputError(f"no node computes the output {shown(missing[0])}")
        return with_outputs(emitter, model.outputs, values)

    def _prepared(self) -> OnnxModel:
        """The nodes after all rewrites."""
        for node in self.model.nodes:
            self._check_inputs(node)
        folded = self.beforehand.folded
        self.ready = fuse(recognize(folded(expand(folded(self.model)))))
        return self.ready

    def emitter(self, room: int) -> OnnxGraphBuilder:
        """What builds the graph."""
        emitter = OnnxGraphBuilder(self.name, targets(self.ready), meanings(self.ready), room)
        emitter.reader = self
        return emitter

    def inside(self, model: OnnxModel, constants: Mapping[str, ConstantValue]) -> "GraphReader":
        """The same for a subgraph, some of whose inputs and captured values are known."""
        self.left[0] -= len(model.nodes) + 1
        if self.left[0] < 0:
            raise InputError(f"subgraphs repeat more than {_MOST_REPEATED:,} nodes")
        inner = copy(self)
        inner.refused = []
        inner.model = replace(model, constants={**model.constants, **constants})
        inner._prepared()
        return inner

    def convert(self, emitter: OnnxGraphBuilder, values: dict[str, Value]) -> None:
        """Add what the nodes of a subgraph become; values get what they make."""
        values |= self.ready.constants
        for node in self.ready.nodes:
            self._convert(emitter, node, values)
        if self.refused:
            raise UnsupportedNodeError(f"in its subgraph, node {', '.join(listed(self.refused))}")

    def _convert(self, emitter: OnnxGraphBuilder, node: FileNode, values: dict[str, Value]) -> None:
        """Add what a node becomes; remember it if there is no conversion."""
        test = values.get(node.inputs[0]) if node.inputs else None
        node = taken(node, test if isinstance(test, ConstantValue) else None)
        inputs = [values.get(name) for name in node.inputs]
        absent = [name for name, value in zip(node.inputs, inputs, strict=True) if name and value is None]
        if absent:
            if node.op not in CONVERSIONS and not foldable(node):
                self.refused.append((node.name, node.op, ""))
            return  # what makes it was refused
        try:
            with naming(node):
                made = self._made(emitter, node, inputs)
        except UnsupportedNodeError as error:
            self.refused.append((node.name, node.attributes.get("op", node.op), str(error)))
            return
        made = self._completed(emitter, node, inputs, made)
        values.update(
            {name: value for name, value in zip(node.outputs, made, strict=False) if name and value}
        )

    def _made(
        self, emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]
    ) -> Sequence[Value | None]:
        """Outputs of a node: known, converted, or left to the host."""
        if foldable(node) and all(value is None or isinstance(value, ConstantValue) for value in inputs):
            return self.beforehand.computed(node, [v for v in inputs if not isinstance(v, DynamicValue)])
        conversion = CONVERSIONS.get(node.op)
        if conversion is None:
            return on_host(emitter, node, inputs, NO_WAY, self.declared)
        return self._converted(conversion, emitter, node, inputs)

    def _converted(
        self,
        conversion: OnnxConversion,
        emitter: OnnxGraphBuilder,
        node: FileNode,
        inputs: list[Value | None],
    ) -> Sequence[Value | None]:
        """What a conversion makes, or where it has no way, the host's version of the operator."""
        try:
            return conversion(emitter, node, inputs)
        except UnsupportedNodeError as error:
            return on_host(emitter, node, inputs, str(error), self.declared)

    @staticmethod
    def _check_inputs(node: FileNode) -> None:
        """Refuse a node with fewer or more inputs than its operator has; what rewrites nodes relies on it."""
        conversion = CONVERSIONS.get(node.op)
        if conversion is not None:
            with naming(node):
                conversion.checked([name or None for name in node.inputs])

    def _completed(
        self,
        emitter: OnnxGraphBuilder,
        node: FileNode,
        inputs: list[Value | None],
        made: Sequence[Value | None],
    ) -> Sequence[Value | None]:
        """Outputs with those that a conversion does not make and something reads."""
        missing = {name for name in node.outputs[len(made) :] if name}
        read = {name for other in self.model.nodes for name in other.inputs} if missing else set()
        if not missing & (read | {output.name for output in self.model.outputs}):
            return made
        first = next(i for i, name in enumerate(node.outputs) if name in missing)
        try:
            rest = on_host(
                emitter, node, inputs, f"its output {first + 1} is no other operator's", self.declared
            )
        except UnsupportedNodeError as error:
            self.refused.append((node.name, node.op, f"output {first + 1} is read: {error}"))
            return made
        return [*made, *rest[len(made) :]]


def _bound(
    model: OnnxModel, inputs: list[Declared], bind: Mapping[str, NDArray]
) -> tuple[OnnxModel, list[Declared]]:
    """The model and its inputs with constants in place of some of these."""
    check_names([declared.name for declared in inputs], bind)
    constants, left = dict(model.constants), list[Declared]()
    for declared in inputs:
        name, shape = declared.name, tuple(n for n in declared.shape or () if isinstance(n, int))
        if name in bind:
            constants[name] = ConstantValue(
                name, bound_value(name, bind[name], shape, declared.dtype).astype(declared.held)
            )
        else:
            left.append(declared)
    return replace(model, constants=constants), left


@converts(":refused", inputs=(0, None))
def _refuse(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]) -> list[Value]:
    """A node that a rewrite refused."""
    raise node.attributes["error"]


def read_onnx(
    source: Path | ModelProto,
    sizes: Mapping[str, int] | None = None,
    bind: Mapping[str, NDArray] | None = None,
) -> Graph:
    """The graph of an ONNX model.

    Inputs and outputs keep the file's names, shapes and types; inside, images have their channels last. Quantized
    models, in any of the forms that there are, become nodes on integers; what is not quantized becomes float32.

    Parameters
    ----------
    source : Path or ModelProto
        A file, whose external data must lie below its folder; or a model in memory, which cannot have any.
    sizes : dict
        Sizes of dimensions that the file only names. A first dimension that is not named here is 1.
    bind : dict
        Values of inputs that become constants, by name: one number, or an array of the input's shape.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or a size is missing.
    UnsupportedNodesError
        It has nodes that there is no conversion for; all such are named at once.
    """
    called = source if isinstance(source, Path) else shown(source.graph.name or "model")
    try:
        with np.errstate(all="ignore"):  # what overflows in a damaged file is seen by its result
            return GraphReader(source, dict(sizes or {}), dict(bind or {})).graph()
    except UnsupportedNodesError as error:
        error.args = (f"{called}: {error}",)
        raise
    except InputError as error:
        raise InputError(f"{called}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"{called}: damaged ONNX file: {error or type(error).__name__}") from None
