"""Driver of the ONNX import, which resolves input sizes, converts the nodes, and adds the declared outputs."""

import logging
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

# Importing these modules registers their conversions.
import compiler.frontends.onnx.ops.attention
import compiler.frontends.onnx.ops.control_flow
import compiler.frontends.onnx.ops.conv
import compiler.frontends.onnx.ops.elementwise
import compiler.frontends.onnx.ops.expansions
import compiler.frontends.onnx.ops.indexing
import compiler.frontends.onnx.ops.matmul
import compiler.frontends.onnx.ops.pool_resize
import compiler.frontends.onnx.ops.quantize
import compiler.frontends.onnx.ops.recurrent
import compiler.frontends.onnx.ops.shape  # noqa: F401
from compiler.frontends.builder import bound_value, check_names
from compiler.frontends.onnx.constant_folding import ConstantFolder, foldable
from compiler.frontends.onnx.file import parsed, read_proto, unknown_nodes, wrong_types
from compiler.frontends.onnx.function_bodies import function_body
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.host import NO_WAY, on_host
from compiler.frontends.onnx.node import (
    DAMAGE,
    Declared,
    FileNode,
    OnnxModel,
    Refused,
    UnsupportedNodesError,
    listed,
    naming,
    taken,
    with_origins,
)
from compiler.frontends.onnx.ops.indexing import SEQUENCE_OPS
from compiler.frontends.onnx.patterns import fuse, recognize
from compiler.frontends.onnx.qdq_analysis import meanings, signed_16, targets
from compiler.frontends.onnx.registry import CONVERSIONS, OnnxConversion, converts
from compiler.frontends.onnx.rewrite import expand
from compiler.frontends.onnx.subgraphs import inline
from compiler.frontends.onnx.values import (
    FLOAT,
    HOST_ONLY,
    INTERFACE_FLOATS,
    ConstantValue,
    DynamicValue,
    SequenceValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    plain,
    type_name,
)
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from hw.errors import InputError, shown


class OpenSizesError(InputError):
    """Error for a model with dimensions that have no size."""


def with_sizes(inputs: list[Declared], sizes: Mapping[str, int]) -> list[Declared]:
    """Return the inputs with all dimensions resolved to integers.

    Parameters
    ----------
    inputs : list of Declared
        Inputs as declared in the file.
    sizes : dict
        Sizes by dimension name, or by `input.index` for a dimension without a name. The first dimension of an input is
        the batch dimension: without a size, it becomes 1, and so do other dimensions of the same name.

    Raises
    ------
    OpenSizesError
        Sizes are missing; the message lists all of them.
    InputError
        An input has no shape, or a given size matches no dimension.
    """
    batches = {v.shape[0] for v in inputs if v.shape and isinstance(v.shape[0], str)}
    used: set[str] = set()
    missing: dict[str, str] = {}
    resolved = [replace(v, shape=tuple(_sizes(v, batches, sizes, used, missing))) for v in inputs]
    if missing:
        dimensions, have = " and ".join(missing.values()), "has" if len(missing) == 1 else "have"
        options, them = (
            " ".join(f"--size {name}=N" for name in missing),
            "it" if len(missing) == 1 else "them",
        )
        raise OpenSizesError(f"{dimensions} {have} no size; give {them} as {options}")
    unused = [name for name in sizes if name not in used]
    if unused:
        raise InputError(f"no input has a dimension {shown(unused[0])} without a size")
    return resolved


def _sizes(
    declared: Declared, batches: set, sizes: Mapping[str, int], used: set[str], missing: dict[str, str]
) -> list[int]:
    """Return the sizes of an input, and add a description of each dimension without a size to `missing`."""
    if declared.shape is None:
        raise InputError(f"input {shown(declared.name)} must have a shape")
    resolved: list[int] = []
    for i, size in enumerate(declared.shape):
        indexed = f"{declared.name}.{i}"
        name = size if isinstance(size, str) else indexed
        given = [key for key in (name, indexed) if key in sizes]
        used.update(given)
        if isinstance(size, int):
            resolved.append(size)
        elif given:
            resolved.append(sizes[given[0]])
        elif i == 0 or name in batches:
            resolved.append(1)
        else:
            missing.setdefault(name, f"dimension {i} of input {shown(declared.name)}")
            resolved.append(1)
    return resolved


_log = logging.getLogger(__name__)


def with_outputs(emitter: OnnxGraphBuilder, outputs: list[Declared], values: dict[str, Value]) -> Graph:
    """Return the graph with outputs of the declared names and types; declared shapes that differ are ignored."""
    names: dict[str, str] = {}
    for declared in outputs:
        try:
            tensor = _output(emitter, declared, values[declared.name])
        except ValueError as error:
            raise InputError(f"output {declared.name!r}: {error}") from None
        given = tensor.name in emitter.build.graph.inputs and tensor.name != declared.name
        if tensor.constant or given or tensor.name in names:
            copy = emitter.build.between(tensor, f"{tensor.name}:copy")
            tensor = emitter.build.node(
                f"{declared.name}:copy", "reshape", [tensor], copy, shape=tensor.shape
            )
        names[tensor.name] = declared.name
    return _pruned(emitter.build.graph, names)


def _output(emitter: OnnxGraphBuilder, declared: Declared, value: Value) -> Tensor:
    """Return the tensor of a declared output, converted to its declared type."""
    if declared.shape is not None and (
        len(declared.shape) != len(value.shape)
        or any(isinstance(n, int) and n != size for n, size in zip(declared.shape, value.shape, strict=True))
    ):
        sizes = ", ".join(str(size if size is not None else "?") for size in declared.shape)
        _log.warning(
            "output %r is declared as [%s], but has shape %s; the declaration is ignored",
            declared.name,
            sizes,
            list(value.shape),
        )
    flow = emitter.flow(value)
    computed = flow.tensor.dtype
    if flow.real or computed == "float32":
        real = emitter.operand(flow, plain(flow.rank), FLOAT)
        if declared.held == "float32" and declared.dtype != "float32":
            given = Tensor(emitter.build.fresh(f"{declared.name}:given"), real.shape, declared.dtype)
            return emitter.build.node(f"{declared.name}:given", "dequantize", [real], given)
        tensor, computed = real, "float32"
    else:
        tensor = emitter.in_order(flow, plain(flow.rank)).tensor
    if computed != declared.dtype:
        _log.warning(
            "output %r is declared as %s, but is %s; the declaration is ignored",
            declared.name,
            declared.dtype,
            computed,
        )
    return tensor


def _pruned(graph: Graph, names: dict[str, str]) -> Graph:
    """Return the graph without dead nodes and with output tensors renamed; unused inputs remain."""
    needed, live = set(names), list[Node]()
    for node in reversed(list(graph)):
        if needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
            live.append(node)
    output_names = set(names.values())
    renamed = dict(names)
    for name in graph.tensors:
        if name not in renamed and name in output_names:
            renamed[name] = _unused(name, graph, output_names)
    pruned = Graph(graph.name)
    pruned.origins = graph.origins
    for name in graph.inputs:
        pruned.add_input(graph.tensors[name])
    for name, tensor in graph.tensors.items():
        if name in needed and name not in graph.inputs:
            pruned.add_tensor(replace(tensor, name=renamed.get(name, name)))
    for node in reversed(live):
        ins, outs = (tuple(renamed.get(n, n) for n in tensors) for tensors in (node.inputs, node.outputs))
        pruned.add_node(replace(node, inputs=ins, outputs=outs))
    return pruned.finish(list(names.values()))


def _unused(name: str, graph: Graph, output_names: set[str]) -> str:
    """Return a new name for an intermediate tensor whose name an output needs."""
    number, candidate = 1, f"{name}:inside"
    while candidate in graph.tensors or candidate in output_names:
        number += 1
        candidate = f"{name}:inside.{number}"
    return candidate


#: Limit on repeated conversions of subgraph nodes, for unrolled loops and for states that change their type.
_MAX_REPEATED_NODES = 1 << 14


#: Maximum number of tensors of unsupported types listed in an error message.
_MAX_WRONG = 20


def _more(texts: Sequence[str]) -> str:
    return f" and {len(texts) - _MAX_WRONG} more" if len(texts) > _MAX_WRONG else ""


def _all_obstacles(
    texts: list[str], inputs: list[Declared], sizes: Mapping[str, int], proto: ModelProto
) -> str:
    """Return one message about all that is known to prevent an import before nodes are converted.

    Parameters
    ----------
    texts : list of str
        Messages about types or sizes.
    inputs : list of Declared
        Inputs whose sizes were not resolved yet.
    sizes : dict
        Sizes by dimension name.
    proto : ModelProto
        The model, whose nodes without a conversion are listed.
    """
    try:
        with_sizes(inputs, sizes)
    except OpenSizesError as error:
        texts = [*texts, str(error)]
    except InputError:
        pass  # sizes cannot be checked until the types are supported
    unknown = unknown_nodes(proto)
    return "; ".join([*texts, *([str(UnsupportedNodesError(unknown))] if unknown else [])])


class GraphReader:
    """Importer of one ONNX model, including its subgraphs.

    Parameters
    ----------
    source : Path or ModelProto
        Model file, or model in memory.
    sizes : dict
        Sizes of symbolic dimensions of the inputs, by name.
    bind : dict
        Values of inputs that become constants, by name.
    """

    def __init__(self, source: Path | ModelProto, sizes: dict[str, int], bind: dict[str, NDArray]):
        path = source if isinstance(source, Path) else None
        proto = source if isinstance(source, ModelProto) else parsed(source)
        self.name = path.stem if path else proto.graph.name or "model"
        self.refused: list[Refused] = []
        wrong, inputs = wrong_types(proto.graph)
        if wrong:
            strings = all(
                text.endswith(f"type {type_name(TensorProto.STRING)} is not supported") for text in wrong
            )
            advice = "encode strings as numbers" if strings else "convert the model to float32, int8 or int32"
            texts = [f"{', '.join(wrong[:_MAX_WRONG])}{_more(wrong)} ({advice})"]
            raise InputError(_all_obstacles(texts, inputs, sizes, proto))
        model = read_proto(proto, path.parent if path else None)
        try:
            declared = with_sizes(model.inputs, _bound_sizes(model.inputs, bind) | sizes)
        except OpenSizesError as error:
            raise InputError(_all_obstacles([str(error)], [], sizes, proto)) from None
        model, declared = _bound(model, declared, bind)
        self.folder = ConstantFolder(model)  # shared with the readers of subgraphs
        self.model = replace(model, inputs=declared).used()
        self.repeats_left = [_MAX_REPEATED_NODES]  # shared with the readers of subgraphs
        self.declared = {output.name: output for output in model.outputs}

    def graph(self) -> Graph:
        """Convert the whole model."""
        model = self._prepared()
        emitter = self.emitter(self.folder.room)
        values: dict[str, Value] = dict(model.constants)
        for declared in model.inputs:
            shape = tuple(n for n in declared.shape or () if isinstance(n, int))
            if not math.prod(shape):
                raise InputError(
                    f"input {shown(declared.name)} of shape {list(shape)} has no elements; make it a constant: "
                    f"--bind {declared.name}=0"
                )
            unquantized = declared.held in ("float32", "bool")
            q = None if unquantized else emitter.meanings.get(declared.name)
            try:
                tensor = emitter.build.graph.add_input(Tensor(declared.name, shape, declared.dtype, q))
            except ValueError as error:
                raise InputError(f"input {shown(declared.name)}: {error}") from None
            if declared.dtype in INTERFACE_FLOATS:
                wide = Tensor(emitter.build.fresh(f"{declared.name}:wide"), shape, "float32")
                tensor = emitter.build.node(f"{declared.name}:wide", "dequantize", [tensor], wide)
            values[declared.name] = DynamicValue(declared.name, tensor, plain(len(shape)))
        for node in model.nodes:
            self._convert(emitter, node, values)
        missing = [output.name for output in model.outputs if output.name not in values]
        if (
            self.refused and missing
        ):  # otherwise, only branches that are never executed contain unsupported nodes
            raise UnsupportedNodesError(self.refused)
        if missing:
            raise InputError(f"no node computes the output {shown(missing[0])}")
        return with_outputs(emitter, model.outputs, values)

    def _prepared(self) -> OnnxModel:
        """Return the model after all rewrites."""
        for node in self.model.nodes:
            self._check_inputs(node)
        folded = self.folder.folded
        expanded = folded(expand(signed_16(folded(self.model))))
        self.ready = with_origins(expanded, fuse(recognize(expanded)))
        return self.ready

    def emitter(self, room: int, known: Mapping[str, ValueType] | None = None) -> OnnxGraphBuilder:
        """Return a new graph builder, whose new constants may have at most `room` elements in total.

        `known` holds the types of the values of an enclosing model that only quantizations read.
        """
        emitter = OnnxGraphBuilder(self.name, targets(self.ready, known), meanings(self.ready), room)
        emitter.reader = self
        return emitter

    def inside(self, model: OnnxModel, constants: Mapping[str, ConstantValue]) -> "GraphReader":
        """Return a reader for a subgraph; `constants` holds its inputs and captured values that are constant."""
        self.repeats_left[0] -= len(model.nodes) + 1
        if self.repeats_left[0] < 0:
            raise InputError(f"subgraphs repeat more than {_MAX_REPEATED_NODES:,} nodes")
        inner = copy(self)
        inner.refused = []
        inner.model = replace(model, constants={**model.constants, **constants})
        inner._prepared()
        return inner

    def convert(self, emitter: OnnxGraphBuilder, values: dict[str, Value]) -> None:
        """Convert the nodes of a subgraph and add their outputs to `values`."""
        values |= self.ready.constants
        for node in self.ready.nodes:
            self._convert(emitter, node, values)
        if self.refused:
            raise UnsupportedNodeError(f"in its subgraph, node {', '.join(listed(self.refused))}")

    def _convert(self, emitter: OnnxGraphBuilder, node: FileNode, values: dict[str, Value]) -> None:
        """Convert a node and add its outputs to `values`, or record it as unsupported if it cannot be converted."""
        test = values.get(node.inputs[0]) if node.inputs else None
        node = taken(node, test if isinstance(test, ConstantValue) else None)
        inputs = [values.get(name) for name in node.inputs]
        absent = [name for name, value in zip(node.inputs, inputs, strict=True) if name and value is None]
        if absent:
            if node.op not in CONVERSIONS and not foldable(node):
                self.refused.append((node.name, node.op, ""))
            return  # the producer of an input is unsupported
        nodes = emitter.build.graph.nodes
        count = len(nodes)
        try:
            with naming(node):
                outputs = self._outputs(emitter, node, inputs)
        except UnsupportedNodeError as error:
            self.refused.append((node.name, node.attributes.get("op", node.op), str(error)))
            return
        outputs = self._completed(emitter, node, inputs, outputs)
        names, origins = frozenset(node.names), emitter.build.graph.origins
        for name in islice(reversed(nodes), len(nodes) - count):
            origins[name] = origins.get(name, frozenset()) | names
        values.update(
            {name: value for name, value in zip(node.outputs, outputs, strict=False) if name and value}
        )

    def _outputs(
        self, emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]
    ) -> Sequence[Value | None]:
        """Return the outputs of a node: folded, converted, or computed on the host."""
        if foldable(node) and all(value is None or isinstance(value, ConstantValue) for value in inputs):
            return self.folder.computed(node, [v for v in inputs if not isinstance(v, DynamicValue)])
        for value in inputs:
            if isinstance(value, SequenceValue) and node.op not in SEQUENCE_OPS:
                raise UnsupportedNodeError("it must take tensors, not a sequence")
            if isinstance(value, DynamicValue) and value.tensor.dtype in HOST_ONLY:
                return on_host(emitter, node, inputs, f"computes with {value.tensor.dtype}", self.declared)
        return self._converted(CONVERSIONS.get(node.op), emitter, node, inputs)

    def _converted(
        self,
        conversion: OnnxConversion | None,
        emitter: OnnxGraphBuilder,
        node: FileNode,
        inputs: list[Value | None],
    ) -> Sequence[Value | None]:
        """Return the outputs of a conversion, of the operator's function body, or else of a node on the host."""
        why = NO_WAY
        if conversion is not None:
            try:
                return conversion(emitter, node, inputs)
            except UnsupportedNodeError as error:
                why = str(error)
        try:
            return self._expanded(emitter, node, inputs)
        except InputError:  # some of ONNX's bodies are wrong for valid nodes
            return on_host(emitter, node, inputs, why, self.declared)

    def _expanded(
        self, emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]
    ) -> Sequence[Value | None]:
        """Return the outputs of the function body of a node's operator, or raise UnsupportedNodeError."""
        body = function_body(node, inputs)
        if body is None:
            raise UnsupportedNodeError("has no function body")
        values = {name: value for name, value in zip(node.inputs, inputs, strict=True) if name and value}
        made = dict(zip((o.name for o in body.outputs), inline(emitter, body, values), strict=True))
        return [made.get(name) for name in node.outputs]

    @staticmethod
    def _check_inputs(node: FileNode) -> None:
        """Reject a node with a wrong number of inputs, because the rewrites rely on this number."""
        conversion = CONVERSIONS.get(node.op)
        if conversion is not None:
            with naming(node):
                conversion.checked([name or None for name in node.inputs])

    def _completed(
        self,
        emitter: OnnxGraphBuilder,
        node: FileNode,
        inputs: list[Value | None],
        outputs: Sequence[Value | None],
    ) -> Sequence[Value | None]:
        """Return the outputs of a conversion; outputs that are read but were not converted are computed on the host."""
        missing = {name for name in node.outputs[len(outputs) :] if name}
        read = {name for other in self.model.nodes for name in other.inputs} if missing else set()
        if not missing & (read | {output.name for output in self.model.outputs}):
            return outputs
        first = next(i for i, name in enumerate(node.outputs) if name in missing)
        try:
            rest = on_host(
                emitter, node, inputs, f"its output {first + 1} is no other operator's", self.declared
            )
        except UnsupportedNodeError as error:
            self.refused.append((node.name, node.op, f"output {first + 1} is read: {error}"))
            return outputs
        return [*outputs, *rest[len(outputs) :]]


def _bound_sizes(inputs: list[Declared], bind: Mapping[str, NDArray]) -> dict[str, int]:
    """Return the sizes of named dimensions of inputs that are bound to arrays."""
    return {
        name if isinstance(name, str) else f"{declared.name}.{i}": size
        for declared in inputs
        if declared.name in bind and len(declared.shape or ()) == bind[declared.name].ndim
        for i, (name, size) in enumerate(zip(declared.shape or (), bind[declared.name].shape, strict=True))
        if not isinstance(name, int)
    }


def _bound(
    model: OnnxModel, inputs: list[Declared], bind: Mapping[str, NDArray]
) -> tuple[OnnxModel, list[Declared]]:
    """Return the model with bound inputs replaced by constants, and its remaining inputs."""
    check_names([declared.name for declared in inputs], bind)
    constants, remaining = dict(model.constants), list[Declared]()
    for declared in inputs:
        name, shape = declared.name, tuple(n for n in declared.shape or () if isinstance(n, int))
        if name in bind:
            constants[name] = ConstantValue(
                name, bound_value(name, bind[name], shape, declared.dtype).astype(declared.held)
            )
        else:
            remaining.append(declared)
    return replace(model, constants=constants), remaining


@converts(":refused", inputs=(0, None))
def _refuse(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]) -> list[Value]:
    """Raise the error of a node that a rewrite rejected."""
    raise node.attributes["error"]


def read_onnx(
    source: Path | ModelProto,
    sizes: Mapping[str, int] | None = None,
    bind: Mapping[str, NDArray] | None = None,
) -> Graph:
    """Import an ONNX model as a graph.

    Inputs and outputs have the file's names, shapes and types. Inside the graph, images are channels-last. All forms of
    quantized models (QDQ, QOperator, integer operators) are converted to nodes that operate on integers. Other
    floating-point values become float32.

    Parameters
    ----------
    source : Path or ModelProto
        Model file, whose external data must be in the file's folder, or a model in memory without external data.
    sizes : dict
        Sizes of symbolic dimensions, by name. A symbolic first dimension of an input is 1 if it is not listed.
    bind : dict
        Values of the inputs that become constants, by name: scalars, or arrays of the inputs' shapes.

    Raises
    ------
    InputError
        The file cannot be read or is damaged, or a size is missing.
    UnsupportedNodesError
        The model has nodes without a conversion; the message lists all of them.
    """
    title = source if isinstance(source, Path) else shown(source.graph.name or "model")
    try:
        with np.errstate(all="ignore"):  # overflow in a damaged file is detected in the results
            return GraphReader(source, dict(sizes or {}), dict(bind or {})).graph()
    except UnsupportedNodesError as error:
        error.args = (f"{title}: {error}",)
        raise
    except InputError as error:
        raise InputError(f"{title}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"{title}: damaged ONNX file: {error or type(error).__name__}") from None
