"""TFLite files with several graphs, which control flow requires."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from compiler.ir.tensor import Quantization
from tests.numerics.litert import tensor


@dataclass
class Operator:
    """An operator, identified by its name in the format; inputs and outputs are names of tensors, "" if omitted."""

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    options: tuple[int, object] | None = None
    version: int = 1
    intermediates: Sequence[str] = ()


@dataclass
class FileGraph:
    """A graph; each tensor is (shape, type), or an array for a constant, which is stored as int4 if it is in `int4`."""

    tensors: dict[str, Any]
    operators: list[Operator]
    inputs: Sequence[str]
    outputs: Sequence[str]
    meaning: dict[str, Any] = field(default_factory=dict)
    variables: Sequence[str] = ()
    int4: set[str] = field(default_factory=set)


def packed(graphs: Sequence[FileGraph]) -> bytes:
    """Return the contents of a TFLite file with these graphs."""
    whole = schema.ModelT()
    kinds = sorted({(each.kind, each.version) for graph in graphs for each in graph.operators})
    whole.version, whole.operatorCodes = 3, [_code(*kind) for kind in kinds]
    whole.buffers = [schema.BufferT()]
    whole.subgraphs = [_graph(graph, whole.buffers, kinds) for graph in graphs]
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _code(kind: str, version: int) -> schema.OperatorCodeT:
    code, number = schema.OperatorCodeT(), getattr(schema.BuiltinOperator, kind)
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), version
    return code


def _graph(graph: FileGraph, buffers: list, kinds: list[tuple[str, int]]) -> schema.SubGraphT:
    made, places = schema.SubGraphT(), {name: i for i, name in enumerate(graph.tensors)}
    made.tensors = [_tensor(name, each, graph, buffers) for name, each in graph.tensors.items()]
    made.inputs, made.outputs = ([places[name] for name in part] for part in (graph.inputs, graph.outputs))
    for name in graph.variables:
        made.tensors[places[name]].isVariable = True
    places[""] = -1
    made.operators = []
    for each in graph.operators:
        operator = schema.OperatorT()
        operator.opcodeIndex = kinds.index((each.kind, each.version))
        operator.inputs, operator.outputs = (
            [places[name] for name in part] for part in (each.inputs, each.outputs)
        )
        operator.intermediates = [places[name] for name in each.intermediates]
        if each.options is not None:
            operator.builtinOptionsType, operator.builtinOptions = each.options
        made.operators.append(operator)
    return made


def _tensor(name: str, given: Any, graph: FileGraph, buffers: list) -> schema.TensorT:
    meaning = graph.meaning.get(name)
    q = Quantization.per_tensor(*meaning) if isinstance(meaning, tuple) else meaning
    scales, zeros, axis = ([], [], 0) if q is None else (q.scale, q.zero_point, q.axis or 0)
    if not isinstance(given, np.ndarray):
        shape, dtype = given
        return tensor(name, shape, getattr(schema.TensorType, dtype.upper()), scales, zeros, axis=axis)
    buffer = schema.BufferT()
    buffers.append(buffer)
    dtype = getattr(schema.TensorType, given.dtype.name.upper())
    buffer.data = np.frombuffer(given.tobytes(), np.uint8)
    if name in graph.int4:
        dtype = schema.TensorType.INT4
        even = np.append(given.reshape(-1), [0] * (given.size % 2)).astype(np.uint8) & 15
        buffer.data = even[::2] | even[1::2] << 4
    return tensor(name, given.shape, dtype, scales, zeros, len(buffers) - 1, axis)
