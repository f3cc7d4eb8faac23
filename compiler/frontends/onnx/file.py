"""Parser of ONNX files into plain data: nodes in topological order, constants, inputs and outputs."""

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto

from compiler.frontends.onnx.node import Declared, FileNode, OnnxModel, OnnxSource
from compiler.frontends.onnx.registry import CONVERSIONS, DEFAULT, MIN_OPSET, check_version, versions_of
from compiler.frontends.onnx.subgraphs import inlined
from compiler.frontends.onnx.values import INTERFACE, NARROW, ConstantValue, read_tensor, type_name, widened
from hw.errors import InputError, shown


def in_order(nodes: "list[FileNode]", known: Iterable[str]) -> "list[FileNode]":
    """Return the nodes in topological order.

    Raises
    ------
    InputError
        Two nodes compute the same tensor, an input has no producer, or the nodes form a cycle.
    """
    producers: dict[str, FileNode | None] = dict.fromkeys(known)
    producers[""] = None
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in producers:
                raise InputError(f"node {shown(node.name)}: its output {shown(name)} already has a producer")
            producers[name] = node
    return _sorted(nodes, producers)


def _sorted(nodes: "list[FileNode]", producers: "dict[str, FileNode | None]") -> "list[FileNode]":
    """Return a topological order that is as close to the file's order as possible."""
    positions = {node: i for i, node in enumerate(nodes)}
    waiting, users = dict.fromkeys(nodes, 0), {node: [] for node in nodes}
    for node in nodes:
        for name in node.inputs:
            if name not in producers:
                raise InputError(f"node {shown(node.name)}: no node computes its input {shown(name)}")
            producer = producers[name]
            if producer is not None:
                users[producer].append(node)
                waiting[node] += 1
    ready = [positions[node] for node, count in waiting.items() if not count]
    done: list[FileNode] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        done.append(node)
        for user in users[node]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, positions[user])
    stuck = [node for node, count in waiting.items() if count]
    if stuck:
        raise InputError(f"node {shown(stuck[0].name)} waits for its own output: there is a cycle")
    return done


_DOMAINS = ("", "ai.onnx", "com.microsoft")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
}


def parsed(path: Path) -> onnx.ModelProto:
    """Parse the protocol buffer in a file; raise InputError if the file cannot be read or parsed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    return from_bytes(data)


def from_bytes(data: bytes) -> onnx.ModelProto:
    """Parse a serialized protocol buffer; raise InputError if it cannot be parsed."""
    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError, RuntimeError):
        raise InputError("is not an ONNX file, or is damaged") from None


def read_proto(model: onnx.ModelProto, folder: Path | None) -> OnnxModel:
    """Convert a protocol buffer to plain data, with all checks that do not depend on the operators.

    Parameters
    ----------
    model : ModelProto
        Parsed contents of the file.
    folder : Path or None
        Directory of external data; if None, external data is an error.

    Raises
    ------
    InputError
        The model is damaged or has a cycle. The message does not contain the file name.
    """
    if not model.HasField("graph") or not model.graph.output:
        raise InputError("is not an ONNX file: it has no graph with outputs")
    others = all(node.domain not in ("", "ai.onnx") for node in model.graph.node)
    opset = versions_of(model.opset_import).get(DEFAULT, MIN_OPSET if others else 1)
    check_version(opset)
    model = inlined(model)
    return _model(model.graph, opset, tuple(model.opset_import), folder)


def read_body(graph: onnx.GraphProto, opset: int, versions: tuple[onnx.OperatorSetIdProto, ...]) -> OnnxModel:
    """Convert the body of a function to plain data.

    Parameters
    ----------
    graph : GraphProto
        Nodes, inputs and outputs of the body, without constants in external files.
    opset : int
        Version of ONNX's operator set in the body.
    versions : tuple of OperatorSetIdProto
        All operator sets that the body imports.
    """
    return _model(graph, opset, versions, None, inside=True)


def _model(
    graph: Any,
    opset: int,
    versions: tuple[onnx.OperatorSetIdProto, ...],
    folder: Path | None,
    *,
    inside: bool = False,
) -> OnnxModel:
    """Convert a graph; a subgraph (`inside`) may read values of the enclosing graph and need not declare types."""
    if graph.sparse_initializer:
        raise InputError("sparse constants are not supported")
    constants: dict[str, ConstantValue] = {}
    for tensor in graph.initializer:
        _check_text(tensor.name)
        if tensor.name in constants:
            raise InputError(f"tensor {shown(tensor.name)} is defined twice")
        constants[tensor.name] = ConstantValue(
            tensor.name, read_tensor(tensor, folder), narrow=tensor.data_type in NARROW
        )
    found = [_narrow_constant(node, folder) for node in graph.node]
    narrow = {i: value for i, value in enumerate(found) if value is not None}
    for value in narrow.values():
        if value.name in constants:
            raise InputError(f"tensor {shown(value.name)} is defined twice")
        constants[value.name] = value
    declared = _named if inside else _declared
    inputs = [declared(v) for v in graph.input if v.name not in constants]
    nodes = [
        _node(i, OnnxSource(node, versions), opset, folder)
        for i, node in enumerate(graph.node)
        if i not in narrow
    ]
    known = [*constants, *(value.name for value in inputs)]
    outputs = [declared(v) for v in graph.output]
    named = [] if inside else [v.name for v in outputs]
    for names, what in ((known, "tensor"), (named, "output")):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InputError(f"{what} {shown(twice[0])} is defined twice")
    if not inside:
        return OnnxModel(in_order(nodes, known), constants, inputs, outputs)
    captured = _captured(nodes, known, outputs)
    return OnnxModel(in_order(nodes, [*known, *captured]), constants, inputs, outputs, captured).used()


def _narrow_constant(node: onnx.NodeProto, folder: Path | None) -> ConstantValue | None:
    """Return the value of a Constant node whose integers are widened; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in _DOMAINS or len(node.output) != 1:
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.t.data_type in NARROW:
            _check_text(node.output[0])
            return ConstantValue(node.output[0], read_tensor(attribute.t, folder), narrow=True)
    return None


def _captured(nodes: list[FileNode], known: Iterable[str], outputs: list[Declared]) -> tuple[str, ...]:
    """Return the names that a subgraph reads from the enclosing graph."""
    defined = {*known, "", *(name for node in nodes for name in node.outputs)}
    read = [*(name for node in nodes for name in node.inputs), *(output.name for output in outputs)]
    return tuple(dict.fromkeys(name for name in read if name not in defined))


def _check_text(text: str | bytes) -> None:
    """Raise InputError if a name is not valid UTF-8, in which case the decoder returns it as bytes."""
    if not isinstance(text, str):
        raise InputError(f"a name must be a UTF-8 string, not {shown(text)}")


def _named(value: Any) -> Declared:
    """Return an input or output of a subgraph, without a type; types are inferred from the values passed in."""
    _check_text(value.name)
    if not value.name:
        raise InputError("an input or output of a subgraph must have a name")
    return Declared(value.name, "", None)


def _declared(value: Any) -> Declared:
    _check_text(value.name)
    kind = value.type.tensor_type
    if not value.name:
        raise InputError("every input and output of the graph must have a name")
    form = value.type.WhichOneof("value")
    if form != "tensor_type":
        what = (
            "have a type, and has none"
            if form is None
            else f"be a tensor, not a {form.removesuffix('_type')}"
        )
        raise InputError(f"input or output {shown(value.name)} must {what}")
    if kind.elem_type not in INTERFACE:
        raise InputError(f"tensor {shown(value.name)}: type {type_name(kind.elem_type)} is not supported")
    shape = None
    if kind.HasField("shape"):
        for size in kind.shape.dim:
            _check_text(size.dim_param)
        shape = tuple(d.dim_value if d.dim_value > 0 else d.dim_param or None for d in kind.shape.dim)
    return Declared(value.name, INTERFACE[kind.elem_type], shape)


def wrong_types(graph: Any) -> tuple[list[str], list[Declared]]:
    """Return messages about unsupported types of inputs, outputs and constants, and the inputs of supported types.

    Parameters
    ----------
    graph : onnx.GraphProto
        Graph of a model, which may be damaged; damage is left to `read_proto`.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    typed = [v for v in (*inputs, *graph.output) if v.type.WhichOneof("value") == "tensor_type"]
    types = {v.name: v.type.tensor_type.elem_type for v in typed}
    refused = {name: number for name, number in types.items() if number and number not in INTERFACE}
    refused |= {t.name: t.data_type for t in graph.initializer if widened(t.data_type) is None}
    texts = [
        f"tensor {shown(name)}: type {type_name(number)} is not supported" for name, number in refused.items()
    ]
    return texts, [_declared(v) for v in inputs if v.name not in refused] if texts else []


def unknown_nodes(model: onnx.ModelProto) -> list[tuple[str, str, str]]:
    """Return name, operator and an empty reason of each node whose operator is neither in ONNX nor converted."""
    functions = {(each.domain, each.name) for each in model.functions}
    found: list[tuple[str, str, str]] = []
    for index, node in enumerate(model.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        op = node.op_type if node.domain in _DOMAINS else f"{node.domain}.{node.op_type}"
        defined = op in CONVERSIONS or onnx.defs.has(node.op_type, domain)
        if not defined and (node.domain, node.op_type) not in functions:
            found.append((node.name or f"{op.lower()}_{index}", op, ""))
    return found


def _node(index: int, source: OnnxSource, opset: int, folder: Path | None) -> FileNode:
    node: Any = source.proto
    for text in (node.op_type, node.domain, node.name, *node.input, *node.output):
        _check_text(text)
    known = node.domain in _DOMAINS and _IDENTIFIER.fullmatch(node.op_type)
    op = node.op_type if known else f"{node.domain}.{node.op_type}"
    name = node.name or f"{op.lower()}_{index}"
    if not any(node.output):
        raise InputError(f"node {shown(name)} has no outputs")
    attributes = {a.name: _attribute(name, a, folder) for a in node.attribute}
    bodies = [
        _body(name, a, opset, source.versions, folder)
        for a in node.attribute
        if a.type == AttributeProto.GRAPH
    ]
    attributes |= dict(bodies)
    captured = tuple(dict.fromkeys(name for _, body in bodies for name in body.captured))
    return FileNode(name, op, (*node.input, *captured), tuple(node.output), attributes, opset, source)


def _body(
    node: str,
    attribute: Any,
    opset: int,
    versions: tuple[onnx.OperatorSetIdProto, ...],
    folder: Path | None,
) -> tuple[str, OnnxModel]:
    """Return the name of a graph attribute and its parsed subgraph."""
    try:
        return attribute.name, _model(attribute.g, opset, versions, folder, inside=True)
    except InputError as error:
        raise InputError(f"{shown(attribute.name)} of node {shown(node)}: {error}") from None


def _attribute(node: str, attribute: Any, folder: Path | None) -> Any:
    """Return an attribute as a Python value; None for a graph attribute."""
    field = _FIELDS.get(attribute.type)
    if field is None:
        return None
    value = getattr(attribute, field)
    if field == "t":
        try:
            if value.data_type in NARROW:
                raise InputError(f"a constant of type {type_name(value.data_type)} is not supported")
            return read_tensor(value, folder)
        except InputError as error:
            raise InputError(f"node {shown(node)}: {error}") from None
    return tuple(value) if field.endswith("s") and field != "s" else value
