"""A TFLite file and the conversion of its graphs."""

import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tflite
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.frontends.tflite.constant_folding import KNOWN, known
from compiler.frontends.tflite.control import STATE
from compiler.frontends.tflite.registry import CONVERTERS, TfliteConversion, TfliteOperator
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError

_IDENTIFIER = b"TFL3"
#: A file may have so many graphs, and with each as often as it is used so many nodes.
_MOST_GRAPHS, _MOST_NODES = 1 << 10, 1 << 18


def read_tflite(path: Path) -> Graph:
    """The graph of a TFLite file.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or has an operator that there is no conversion for; all such are named
        at once.
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
    """A file, whose first graph is the model; others are subgraphs of it."""

    def __init__(self, name: str, data: bytes):
        self.model, self.name, self.size = tflite.Model.GetRootAsModel(data, 0), name, len(data)
        count = self.model.SubgraphsLength()
        if not 1 <= count <= _MOST_GRAPHS:
            raise InputError(f"must hold 1..{_MOST_GRAPHS} graphs, not {count}")
        self._made: dict[int, Graph | None] = {}  # None while it is under way
        self._nodes = 0

    def graph(self, index: int) -> Graph:
        """A graph of the file.

        Raises
        ------
        InputError
            There is none, it is part of itself, or all together are too large.
        """
        if not 0 <= index < self.model.SubgraphsLength():
            raise InputError(f"there is no graph {index}, only {self.model.SubgraphsLength()}")
        if index not in self._made:
            self._made[index] = None
            self._made[index] = TfliteReader(self.model, index, self.name, self.size, self.graph).graph()
        made = self._made[index]
        if made is None:
            raise InputError(f"graph {index} is a subgraph of itself")
        self._nodes += sum(1 for _ in made.walk())
        if self._nodes > _MOST_NODES:
            raise InputError(f"its subgraphs have more than {_MOST_NODES:,} nodes")
        return made


#: numpy's names of the format's types.
DTYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.BOOL: "bool",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT8: "int8",
}
_TYPE_NAMES = {number: name for name, number in vars(tflite.TensorType).items() if name.isupper()}
#: What the accessors of a damaged file raise: offsets that point outside, sizes that are none.
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
#: So many nodes are named in one message.
_MOST_NAMED = 20
#: Index of an optional input that is not there.
_ABSENT = -1


class TfliteReader:
    """Converts one graph of a file.

    Parameters
    ----------
    model : tflite.Model
        The file.
    index : int
        Which of its graphs.
    name : str
        Of the file.
    size : int
        Of the file, in bytes.
    subgraph : function
        Gives a graph of the file by its number.
    """

    def __init__(
        self, model: tflite.Model, index: int, name: str, size: int, subgraph: Callable[[int], Graph]
    ):
        self.model, self.size, self.subgraph = model, size, subgraph
        self.source = model.Subgraphs(index)
        self.build = GraphBuilder(name if not index else f"{name}:{index}")

    def graph(self) -> Graph:
        """Convert everything."""
        count = self._count(self.source.OperatorsLength(), "operators")
        operators = [self._operator(i) for i in range(count)]
        for operator in operators:
            if operator.kind in STATE:
                raise InputError(
                    f"operator {operator.name!r}: models that keep state from one sample to the next are not "
                    "supported; make the state an input and an output"
                )
        unknown = [f"{o.name!r} ({o.kind})" for o in operators if o.kind not in CONVERTERS.keys() | KNOWN]
        if unknown:
            more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
            raise InputError(f"there is no conversion for node {', '.join(unknown[:_MOST_NAMED])}{more}")
        made = {index for operator in operators for index in operator.outputs}
        self.tensors = [self._tensor(i, name) for i, name in enumerate(self._names())]
        for i in _indices(self.source.InputsAsNumpy()):
            self.build.graph.add_input(self._at(i))
        for i, tensor in enumerate(self.tensors):
            if tensor is not None and tensor.constant and i not in made:
                self.build.graph.add_tensor(tensor)
        self.results = {self._at(i).name for i in _indices(self.source.OutputsAsNumpy())}
        for operator in operators:
            self._convert(operator)
        return self.build.graph.finish([self._at(i).name for i in _indices(self.source.OutputsAsNumpy())])

    def _convert(self, operator: TfliteOperator) -> None:
        try:
            inputs = [None if i == _ABSENT else self._found(i) for i in operator.inputs]
            outputs = [self._at(i) for i in operator.outputs]
            conversion = TfliteConversion(self.build, operator, inputs, outputs)
            # Results of the graph are made by nodes where they can be.
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
            subgraph=self.subgraph,
        )

    def _tensor(self, index: int, name: str) -> Tensor | None:
        """A tensor; None if it has no elements. Constants of float16 are the same numbers in float32."""
        source = self.source.Tensors(index)
        shape = tuple(int(size) for size in _array(source.ShapeAsNumpy()))
        if source.Type() not in DTYPES:
            called = _TYPE_NAMES.get(source.Type(), f"number {source.Type()}")
            raise InputError(f"tensor {name!r}: type {called} is not supported")
        if 0 in shape:
            return None
        dtype = DTYPES[source.Type()]
        try:
            data = self._data(source, shape, dtype)
            if dtype == "float16":
                if data is None:
                    raise ValueError("float16 is supported for constants only")
                dtype, data = "float32", data.astype(np.float32)
            return Tensor(name, shape, dtype, self._quantization(source), data)
        except ValueError as error:
            raise InputError(f"tensor {name!r}: {error}") from None

    def _names(self) -> list[str]:
        """Names of the tensors, made unique: in a file they need not be."""
        names: list[str] = []
        taken: set[str] = set()
        for i in range(self._count(self.source.TensorsLength(), "tensors")):
            name = (self.source.Tensors(i).Name() or b"").decode() or f"tensor_{i}"
            names.append(f"{name}#{i}" if name in taken else name)
            taken.add(names[-1])
        return names

    def _count(self, count: int, what: str) -> int:
        """A number of things that each take four bytes or more."""
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
        wanted = math.prod(shape) * np.dtype(dtype).itemsize
        if data.nbytes != wanted:
            raise ValueError(f"{dtype}{list(shape)} takes {wanted} bytes, but its buffer holds {data.nbytes}")
        return data.view(np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)


def _array(values: object) -> Sequence:
    """A vector of the file; the accessors give 0 for one that is absent."""
    return () if isinstance(values, int) else values  # type: ignore[return-value]


def _indices(values: object) -> tuple[int, ...]:
    return tuple(int(v) for v in _array(values))
