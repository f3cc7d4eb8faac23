"""Reader of TFLite files, which decodes tensors and operators, folds constants and converts each graph."""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tflite
from numpy.typing import NDArray

from compiler.frontends.builder import WHERE_LISTED, GraphBuilder
from compiler.frontends.tflite.registry import CONVERTERS, TfliteConversion, TfliteOperator
from compiler.frontends.tflite.state import TfliteStates
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from hw.errors import InputError

_IDENTIFIER = b"TFL3"
#: Limits on the number of graphs of a file, and on the number of nodes, with each graph counted once per use.
_MAX_GRAPHS, _MAX_NODES = 1 << 10, 1 << 18


def read_tflite(path: Path) -> Graph:
    """Import a TFLite file as a graph.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or has operators that cannot be converted; the message lists these.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if data[4:8] != _IDENTIFIER:
        raise InputError(f"{path}: not a TFLite file: bytes 4..7 must be {_IDENTIFIER!r}, not {data[4:8]!r}")
    try:
        return _File(path.stem, data).graph(0)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"{path}: damaged TFLite file: {error or type(error).__name__}") from None


class _File:
    """TFLite file, whose first graph is the model and whose other graphs are subgraphs of nodes."""

    def __init__(self, name: str, data: bytes):
        self.model, self.name, self.size = tflite.Model.GetRootAsModel(data, 0), name, len(data)
        count = self.model.SubgraphsLength()
        if not 1 <= count <= _MAX_GRAPHS:
            raise InputError(f"must hold 1..{_MAX_GRAPHS} graphs, not {count}")
        self._graphs: dict[int, Graph | None] = {}  # None while a graph is being converted
        self._nodes = 0

    def graph(self, index: int) -> Graph:
        """Return a graph of the file, converted on first use.

        Raises
        ------
        InputError
            The graph does not exist or contains itself, or the graphs have too many nodes in total.
        """
        if not 0 <= index < self.model.SubgraphsLength():
            raise InputError(f"there is no graph {index}, only {self.model.SubgraphsLength()}")
        if index not in self._graphs:
            self._graphs[index] = None
            self._graphs[index] = self._reader(index).graph()
        graph = self._graphs[index]
        if graph is None:
            raise InputError(f"graph {index} is a subgraph of itself")
        self._nodes += sum(1 for _ in graph.walk())
        if self._nodes > _MAX_NODES:
            raise InputError(f"its subgraphs have more than {_MAX_NODES:,} nodes")
        return graph

    def initialized(self, index: int) -> dict[tuple[str, str], NDArray]:
        """Return the contents that a graph assigns to resource variables, by container and name.

        Raises
        ------
        InputError
            The graph does not exist, or assigns contents that are not constants.
        """
        if not 0 < index < self.model.SubgraphsLength():
            raise InputError(f"there is no graph {index} to initialize variables")
        return self._reader(index).assigned()

    def _reader(self, index: int) -> "TfliteReader":
        return TfliteReader(self.model, index, self.name, self.size, self)


#: Numpy names of TFLite types.
DTYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.BOOL: "bool",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT8: "int8",
    tflite.TensorType.INT4: "int4",
}
_TYPE_NAMES = {number: name for name, number in vars(tflite.TensorType).items() if name.isupper()}
#: Exceptions that accessors raise for a damaged file, for example for offsets outside the file or invalid sizes.
DAMAGE = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    OverflowError,
    AttributeError,
    UnicodeDecodeError,
    MemoryError,
)
#: Maximum number of operators or tensors listed in an error message.
_MAX_LISTED = 20
#: Index of an omitted optional input.
_ABSENT = -1


class TfliteReader:
    """Converter of one graph of a file.

    Parameters
    ----------
    model : tflite.Model
        Root table of the file.
    index : int
        Index of the graph in the file.
    name : str
        Name of the file.
    size : int
        Size of the file in bytes.
    file : _File
        The file, which converts other graphs.
    """

    def __init__(self, model: tflite.Model, index: int, name: str, size: int, file: _File):
        self.model, self.size, self.file, self.index = model, size, file, index
        self.source = model.Subgraphs(index)
        self.build = GraphBuilder(name if not index else f"{name}:{index}")

    def graph(self) -> Graph:
        """Convert the whole graph."""
        self._convert_all(nested=self.index > 0)
        outputs = [self._at(i).name for i in _indices(self.source.OutputsAsNumpy())]
        ends, states = self.states.finish(outputs)
        return self.build.graph.finish(ends).keep(states)

    def assigned(self) -> dict[tuple[str, str], NDArray]:
        """Convert an initialization graph, and return the contents that it assigns to resource variables."""
        self._convert_all(nested=False)
        out: dict[tuple[str, str], NDArray] = {}
        for key, tensor in self.states.current.items():
            if tensor.data is None or not isinstance(key, tuple):
                raise InputError(f"graph {self.index}: initial contents of variables must be constants")
            out[key] = tensor.data
        return out

    def _convert_all(self, *, nested: bool) -> None:
        """Convert all operators; `nested` is True in a subgraph of control flow."""
        count = self._count(self.source.OperatorsLength(), "operators")
        operators = [self._operator(i) for i in range(count)]
        obstacles = self._obstacles(operators)
        if obstacles:
            raise InputError("; ".join(obstacles))
        computed = {index for operator in operators for index in operator.outputs}
        names = self._names()
        self.tensors = [self._tensor(i, name) for i, name in enumerate(names)]
        self.states = TfliteStates(self.build, set(names), nested)
        held = [self.source.Tensors(i) for i in range(len(names))]
        self.resources = {i for i, each in enumerate(held) if each.Type() == tflite.TensorType.RESOURCE}
        self.variables = frozenset(i for i, each in enumerate(held) if each.IsVariable())
        for i in _indices(self.source.InputsAsNumpy()):
            self.build.graph.add_input(self._at(i))
        for i, tensor in enumerate(self.tensors):
            if tensor is not None and tensor.constant and i not in computed:
                self.build.graph.add_tensor(tensor)
        self.results = {self._at(i).name for i in _indices(self.source.OutputsAsNumpy())}
        self._convert_each(operators)

    def _obstacles(self, operators: Sequence[TfliteOperator]) -> list[str]:
        """Return messages about all operators without a conversion and all tensors of unsupported types."""
        texts: list[str] = []
        unknown = [f"{o.name!r} ({o.kind})" for o in operators if o.kind not in CONVERTERS.keys() | KNOWN]
        if unknown:
            texts.append(f"there is no conversion for node {_listed(unknown)}{WHERE_LISTED}")
        types = [(name, self.source.Tensors(i).Type()) for i, name in enumerate(self._names())]
        refused = [
            f"tensor {name!r}: type {_TYPE_NAMES.get(number, f'number {number}')} is not supported"
            for name, number in types
            if number not in DTYPES and number != tflite.TensorType.RESOURCE
        ]
        return [*texts, *([_listed(refused)] if refused else [])]

    def _convert_each(self, operators: Sequence[TfliteOperator]) -> None:
        """Convert all operators; the message about those that cannot be converted names all of them.

        The conversion of operators that read results of an unconverted operator is not attempted.
        """
        failed: list[str] = []
        broken: set[int] = set()
        for operator in operators:
            if broken.isdisjoint(operator.inputs):
                try:
                    self._convert(operator)
                    continue
                except InputError as error:
                    failed.append(str(error))
            broken.update(operator.outputs)
        if failed:
            raise InputError(_listed(failed, "; "))

    def _convert(self, operator: TfliteOperator) -> None:
        try:
            inputs = [None if i == _ABSENT else self._found(i) for i in operator.inputs]
            outputs = [self._at(i) for i in operator.outputs if i not in self.resources]
            conversion = TfliteConversion(self.build, operator, inputs, outputs, self.states, self.variables)
            # Outputs of the graph are computed by nodes even if they are constant, provided that a conversion exists.
            wanted = any(tensor.name in self.results for tensor in outputs)
            constants = None if wanted and operator.kind in CONVERTERS else known(conversion)
            if constants is None:
                CONVERTERS[operator.kind](conversion)
                return
            for i, tensor in zip(operator.outputs, constants, strict=True):
                self.tensors[i] = self.build.graph.add_tensor(tensor)
        except InputError as error:
            if operator.name in str(error):
                raise
            raise InputError(f"operator {operator.name!r}: {error}") from None
        except DAMAGE as error:
            raise InputError(
                f"operator {operator.name!r} is damaged: {error or type(error).__name__}"
            ) from None

    def _found(self, index: int) -> Tensor | None:
        if not 0 <= index < len(self.tensors):
            raise ValueError(f"there is no tensor {index}, only {len(self.tensors)} of them")
        return self.tensors[index]

    def _at(self, index: int) -> Tensor:
        tensor = self._found(index)
        if tensor is None:
            raise InputError(f"tensor {self._names()[index]!r} has no elements")
        return tensor

    def _operator(self, index: int) -> TfliteOperator:
        operator = self.source.Operators(index)
        code = self.model.OperatorCodes(operator.OpcodeIndex())
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        kind = tflite.BUILTIN_OPCODE2NAME.get(number, f"number {number}")
        if number == tflite.BuiltinOperator.CUSTOM:
            kind = f"custom {(code.CustomCode() or b'?').decode(errors='replace')}"
        return TfliteOperator(
            name=f"{kind.lower()}_{index}",
            kind=kind,
            options=operator.BuiltinOptions(),
            inputs=_indices(operator.InputsAsNumpy()),
            outputs=_indices(operator.OutputsAsNumpy()),
            subgraph=self.file.graph,
            initialized=self.file.initialized,
            intermediates=tuple(
                self._quantization(self.source.Tensors(i)) if 0 <= i < self.source.TensorsLength() else None
                for i in _indices(operator.IntermediatesAsNumpy())
            ),
        )

    def _tensor(self, index: int, name: str) -> Tensor | None:
        """Decode and return a tensor, or return None if it has no elements or refers to a variable.

        Constants in float16 are converted to float32, and constants in int4 to int8.
        """
        source = self.source.Tensors(index)
        shape = tuple(int(size) for size in _array(source.ShapeAsNumpy()))
        if 0 in shape or source.Type() == tflite.TensorType.RESOURCE:
            return None
        dtype = DTYPES[source.Type()]
        try:
            data = self._data(source, shape, dtype)
            if dtype == "float16":
                if data is None:
                    raise ValueError("float16 is supported for constants only")
                dtype, data = "float32", data.astype(np.float32)
            if dtype == "int4":
                if data is None:
                    raise ValueError("int4 is supported for constants only")
                dtype = "int8"
            return Tensor(name, shape, dtype, self._quantization(source), data)
        except ValueError as error:
            raise InputError(f"tensor {name!r}: {error}") from None

    def _names(self) -> list[str]:
        """Return unique names for the tensors, because names in the file may occur repeatedly."""
        names: list[str] = []
        used: set[str] = set()
        for i in range(self._count(self.source.TensorsLength(), "tensors")):
            name = (self.source.Tensors(i).Name() or b"").decode() or f"tensor_{i}"
            names.append(f"{name}#{i}" if name in used else name)
            used.add(names[-1])
        return names

    def _count(self, count: int, what: str) -> int:
        """Return `count`, or raise ValueError if `count` entries of four bytes would exceed the file's size."""
        if count > self.size // 4:
            raise ValueError(f"{count:,} {what} do not fit {self.size:,} bytes")
        return count

    def _quantization(self, source: tflite.Tensor) -> Quantization | None:
        parameters = source.Quantization()
        if parameters is None or not parameters.ScaleLength():
            return None
        scales = tuple(float(v) for v in _array(parameters.ScaleAsNumpy()))
        zero_points = tuple(int(v) for v in _array(parameters.ZeroPointAsNumpy())) or (0,) * len(scales)
        return Quantization(scales, zero_points, parameters.QuantizedDimension() if len(scales) > 1 else None)

    def _data(self, source: tflite.Tensor, shape: tuple[int, ...], dtype: str) -> NDArray | None:
        buffer = self.model.Buffers(source.Buffer())
        if buffer is None or not buffer.DataLength():
            return None
        data = np.asarray(buffer.DataAsNumpy())
        if dtype == "int4":
            return _unpacked(data, shape)
        wanted = math.prod(shape) * np.dtype(dtype).itemsize
        if data.nbytes != wanted:
            raise ValueError(f"{dtype}{list(shape)} takes {wanted} bytes, but its buffer holds {data.nbytes}")
        return data.view(np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)


def _unpacked(data: NDArray, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Widen int4 values, of which each byte holds two, the first in its low bits, to int8."""
    count = math.prod(shape)
    if len(data) != (count + 1) // 2:
        raise ValueError(
            f"int4{list(shape)} takes {(count + 1) // 2} bytes, but its buffer holds {len(data)}"
        )
    bytes_ = data.astype(np.uint8)
    nibbles = np.stack([bytes_ << 4, bytes_ & 0xF0], -1).reshape(-1)[:count]
    return (nibbles.view(np.int8) >> 4).reshape(shape)


def _listed(texts: Sequence[str], between: str = ", ") -> str:
    """Return texts as a list; if there are many, it ends with the number of texts that are left out."""
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return f"{between.join(texts[:_MAX_LISTED])}{more}"


def _array(values: object) -> Sequence:
    """Return a vector of the file, or an empty one for an absent vector, for which the accessors return 0."""
    return () if isinstance(values, int) else values  # type: ignore[return-value]


def _indices(values: object) -> tuple[int, ...]:
    return tuple(int(v) for v in _array(values))


#: Limit on the elements of a folded constant; _MAX_GROWTH times the elements of an operand are always allowed.
_MAX_ELEMENTS, _MAX_GROWTH = 1 << 24, 4


def _range(c: TfliteConversion) -> NDArray:
    start, limit, step = (np.asarray(tensor.data).reshape(-1)[0].item() for tensor in c.given(3)[:3])
    if step == 0 or abs((limit - start) / step) > _MAX_ELEMENTS:
        raise c.error(f"{start}..{limit} by {step} is not a range of at most {_MAX_ELEMENTS:,} numbers")
    return np.arange(start, limit, step)


def _filled(c: TfliteConversion) -> NDArray:
    _, value = c.given(2)[:2]
    if value.data is None or value.data.size != 1:
        raise c.error("its value must be one constant")
    return np.full(c.output.shape, value.data.reshape(()))


#: Operators whose result depends only on the shape of their input.
_SHAPES: dict[str, Callable[[TfliteConversion], NDArray]] = {
    "SHAPE": lambda c: np.array(c.given(1)[0].shape),
    "RANK": lambda c: np.array(len(c.given(1)[0].shape)),
    "ZEROS_LIKE": lambda c: np.zeros(c.given(1)[0].shape),
}
#: Operators that are supported on constants only or have no equivalent in the graph.
_CONSTANTS: dict[str, Callable[[TfliteConversion], NDArray]] = {
    "RANGE": _range,
    "FILL": _filled,
    "CAST": lambda c: np.asarray(c.given(1)[0].data),
}
KNOWN = frozenset((*_SHAPES, *_CONSTANTS))
#: Control flow, which later passes resolve.
_CONTROL_FLOW = ("IF", "WHILE")


def known(c: TfliteConversion) -> Sequence[Tensor] | None:
    """Return the outputs of an operator as constants; None if they depend on the model's inputs.

    Raises
    ------
    InputError
        The operator is supported for constants only but has other operands, or its operands are invalid.
    """
    if c.kind in _SHAPES:
        return [_stored(c, _SHAPES[c.kind](c))]
    given = c.given(0)
    if not given or c.kind in _CONTROL_FLOW or not all(tensor.constant for tensor in given):
        if c.kind not in CONVERTERS:
            raise c.error(f"{c.kind} is supported for constants only")
        return None
    limit = max(_MAX_ELEMENTS, *(_MAX_GROWTH * tensor.elements for tensor in given))
    if any(output.elements > limit for output in c.outputs):
        raise c.error(f"its constant result has more than {limit:,} elements")
    if c.kind in _CONSTANTS:
        return [_stored(c, _CONSTANTS[c.kind](c))]
    build = GraphBuilder(c.operator.name)
    for tensor in {tensor.name: tensor for tensor in given}.values():
        build.graph.add_tensor(tensor)
    CONVERTERS[c.kind](replace(c, build=build))
    values = evaluate(build.graph.finish([output.name for output in c.outputs]), {})
    return [replace(output, data=values[output.name]) for output in c.outputs]


def _stored(c: TfliteConversion, data: NDArray) -> Tensor:
    c.expect(data.shape)
    q = c.output.quantization
    if q is not None and c.kind == "ZEROS_LIKE":
        data = data + q.zero_point[0]
    return replace(c.output, data=np.ascontiguousarray(data.astype(c.output.dtype)).reshape(data.shape))
