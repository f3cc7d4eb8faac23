"""Values during ONNX import: constant and dynamic values, their types, and decoding of tensors with external data."""

import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from compiler.ir.tensor import MAX_ELEMENTS, Quantization, Tensor
from hw.errors import InputError, shown

#: For each dimension of the graph's tensor, the index of the corresponding dimension in the file.
Order = tuple[int, ...]


class UnsupportedNodeError(InputError):
    """Error for a valid node that cannot be converted; the message states the reason."""


@dataclass(frozen=True)
class ValueType:
    """Type of a value in the graph.

    Parameters
    ----------
    dtype : str
        Type of the graph's tensor.
    quantization : Quantization or None
        Quantization of the tensor's integers.
    real : bool
        True if the file has floating-point values where the graph has quantized integers.
    """

    dtype: str
    quantization: Quantization | None = None
    real: bool = False


FLOAT = ValueType("float32")


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """Integers with a scale for each block of elements along one dimension, of which the reals of a constant consist.

    Parameters
    ----------
    values : int32 array
        Integers minus zero points, in the shape of the constant.
    scales : float32 array
        Scale of each block.
    size, axis : int
        Elements of a block, and the dimension along which they are adjacent.
    """

    values: NDArray[np.int32]
    scales: NDArray[np.float32]
    size: int
    axis: int

    def transposed(self, perm: Order) -> "BlockWeights":
        """Return the integers with their dimensions permuted."""
        return BlockWeights(
            self.values.transpose(perm), self.scales.transpose(perm), self.size, perm.index(self.axis)
        )

    def as_matrix(self) -> "BlockWeights":
        """Return the integers without dimensions after the first two, which are 1, as those of 1x1 kernels."""
        count = len(self.values)
        return BlockWeights(
            self.values.reshape(count, -1), self.scales.reshape(count, -1), self.size, self.axis
        )

    def real(self) -> NDArray[np.float32]:
        """Return the real numbers."""
        size = min(self.size, self.values.shape[self.axis])
        wide = np.repeat(self.scales, size, self.axis).take(range(self.values.shape[self.axis]), self.axis)
        return np.asarray(self.values * wide, np.float32)


@dataclass(frozen=True, eq=False)
class ConstantValue:
    """A constant value.

    Parameters
    ----------
    name : str
        Name in the file.
    data : array
        Contents; integers if there is a quantization.
    quantization : Quantization or None
        Quantization of `data` if the value is floating-point in the file.
    narrow : bool
        True if the type in the file has fewer bits than the type of `data`.
    blocks : BlockWeights or None
        Integers and scales of which `data` is made, if it is a matrix whose file has scales for blocks.
    """

    name: str
    data: NDArray
    quantization: Quantization | None = None
    narrow: bool = False
    blocks: BlockWeights | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return self.data.shape

    def numbers(self) -> NDArray:
        """Return the contents as they are in the file, that is, dequantized if there is a quantization."""
        return self.data if self.quantization is None else self.quantization.dequantized(self.data)

    def real(self) -> NDArray[np.float32]:
        """Return the contents in float32."""
        return self.numbers().astype(np.float32)

    def integers(self) -> list[int]:
        """Return contents such as a shape or axes as a list of integers, or raise InputError for other types."""
        if self.data.dtype.kind not in "iu" or self.quantization is not None:
            raise InputError(f"tensor {self.name!r} must hold integers, not {self.data.dtype}")
        return [int(v) for v in self.data.reshape(-1)]

    def scalar(self) -> float | None:
        """Return the common value of all elements; None if they differ or are not numbers."""
        if not self.data.size or self.data.dtype.kind not in "fiu":
            return None
        numbers = self.real().reshape(-1)
        return float(numbers[0]) if (numbers == numbers[0]).all() else None

    def transposed(self, perm: Order, name: str | None = None) -> "ConstantValue":
        """Return the value with its dimensions permuted."""
        q = self.quantization
        if q is not None and q.axis is not None:
            q = Quantization(q.scale, q.zero_point, perm.index(q.axis))
        blocks = None if self.blocks is None else self.blocks.transposed(perm)
        return ConstantValue(name or self.name, self.data.transpose(perm), q, blocks=blocks)

    def reshaped(self, shape: tuple[int, ...], name: str | None = None) -> "ConstantValue":
        """Return the value reshaped; it is dequantized if no dimension of the new shape matches the scales."""
        q = self.quantization
        if q is not None and q.axis is not None:
            before = int(np.prod(self.shape[: q.axis]))
            fitting = [
                i for i, n in enumerate(shape) if n == len(q.scale) and int(np.prod(shape[:i])) == before
            ]
            if not fitting:
                return ConstantValue(name or self.name, self.real().reshape(shape))
            q = Quantization(q.scale, q.zero_point, fitting[0])
        return ConstantValue(name or self.name, self.data.reshape(shape), q)


@dataclass(frozen=True, eq=False)
class DynamicValue:
    """A value computed at run time.

    Parameters
    ----------
    name : str
        Name in the file.
    tensor : Tensor
        Tensor of the graph that holds the value.
    order : tuple of int
        For each dimension of the tensor, the index of the corresponding dimension in the file.
    real : bool
        True if the file has floating-point values where the tensor has quantized integers.
    """

    name: str
    tensor: Tensor
    order: Order
    real: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return tuple(self.tensor.shape[self.order.index(i)] for i in range(len(self.order)))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.order)

    @property
    def kind(self) -> ValueType:
        """Type of the value in the graph."""
        return ValueType(self.tensor.dtype, self.tensor.quantization, self.real)

    @property
    def quantized(self) -> bool:
        """True if the file has floating-point values where the tensor has integers with a per-tensor scale."""
        q = self.tensor.quantization
        return self.real and q is not None and q.whole

    def transposed(self, perm: Order, name: str) -> "DynamicValue":
        """Return the value with its dimensions permuted; the tensor remains unchanged."""
        return DynamicValue(name, self.tensor, tuple(perm.index(i) for i in self.order), self.real)


Value = ConstantValue | DynamicValue


@dataclass(frozen=True, eq=False)
class SequenceValue:
    """A sequence of tensors, whose length and order are known at compile time.

    Parameters
    ----------
    name : str
        Name in the file.
    items : tuple of Value
        Elements of the sequence.
    """

    name: str
    items: tuple[Value, ...]


def plain(rank: int) -> Order:
    """Return the file's order of dimensions, which is the identity permutation."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Return the channels-last order: dimension 1 of the file is the last if there are at least three dimensions."""
    return plain(rank) if rank < 3 else (0, *range(2, rank), 1)


def arranged(per_dimension: tuple | list, order: Order) -> tuple:
    """Permute a sequence with one value per dimension of the file to the tensor's order of dimensions."""
    return tuple(per_dimension[i] for i in order)


def counted_from_front(axis: int, rank: int) -> int:
    """Return a possibly negative axis as a non-negative index."""
    if not -rank <= axis < rank:
        raise InputError(f"axis must be within {-rank}..{rank - 1}, not {axis}")
    return axis % rank


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which operands of the given shapes are broadcast."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise InputError(f"shapes {listed} cannot be broadcast") from None


def check_size(shape: tuple[int, ...], most: int = MAX_ELEMENTS) -> None:
    """Raise InputError for an output shape that is empty or too large, before memory is allocated for it."""
    if any(size < 1 for size in shape):
        raise InputError(f"its output would have shape {shown(list(shape))}, without elements")
    if math.prod(shape) > most:
        raise InputError(f"its output would have shape {shown(list(shape))}, more than {most:,} elements")


#: Types supported by the graph, by ONNX type number.
DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
}
#: Types on which only the host computes.
HOST_ONLY = frozenset(("uint16", "uint32", "uint64"))
#: Types of inputs and outputs that are converted to and from float32.
INTERFACE_FLOATS = frozenset(("float16", "float64"))
#: Types of inputs and outputs.
INTERFACE: dict[int, str] = DTYPES | {TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64"}
#: Types of constants that are converted to another type: exactly, except for double, which is rounded.
_WIDENED: dict[int, str] = {
    TensorProto.FLOAT16: "float32",
    TensorProto.BFLOAT16: "float32",
    TensorProto.DOUBLE: "float32",
    TensorProto.INT4: "int8",
    TensorProto.UINT4: "uint8",
}
_BITS = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.BOOL: 8}
#: Exceptions raised while decoding a damaged tensor that passed the checks.
_DAMAGE = (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError)


def type_name(number: int) -> str:
    """Return the name of an ONNX type, given its number."""
    names = TensorProto.DataType
    return names.Name(number).lower() if number in names.values() else f"number {number}"


def widened(number: int) -> str | None:
    """Return the name of the numpy type to which constants of an ONNX type are decoded; None if unsupported."""
    return DTYPES.get(number) or _WIDENED.get(number)


#: Integer types that are stored in a wider type.
NARROW = frozenset((TensorProto.INT4, TensorProto.UINT4))


def read_tensor(tensor: Any, folder: Path | None) -> NDArray:
    """Return the contents of a constant.

    Parameters
    ----------
    tensor : onnx.TensorProto
        The constant's protocol buffer.
    folder : Path or None
        Directory of the model, which must contain all external data; None: external data is an error.

    Raises
    ------
    InputError
        The type is not supported, or shape and contents do not match; the message names the tensor.
    """
    try:
        return _decoded(tensor, folder)
    except InputError as error:
        raise InputError(f"tensor {shown(tensor.name)}: {error}") from None
    except _DAMAGE as error:
        raise InputError(f"tensor {shown(tensor.name)}: damaged: {error}") from None


def _decoded(tensor: Any, folder: Path | None) -> NDArray:
    number = tensor.data_type
    dtype = widened(number)
    if dtype is None:
        raise InputError(f"type {type_name(number)} is not supported")
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape) or math.prod(shape) > MAX_ELEMENTS:
        raise InputError(
            f"shape {shown(list(shape))} must be of at most {MAX_ELEMENTS:,} elements, none negative"
        )
    elements, bits = (
        math.prod(shape),
        _BITS.get(number) or onnx.helper.tensor_dtype_to_np_dtype(number).itemsize * 8,
    )
    size = -(-elements * bits // 8)
    if tensor.data_location == TensorProto.EXTERNAL:
        inner = TensorProto()
        inner.CopyFrom(tensor)
        inner.ClearField("external_data")
        inner.data_location = TensorProto.DEFAULT
        inner.raw_data = _external(tensor, size, folder)
        tensor = inner
    if tensor.HasField("raw_data"):
        actual, expected = len(tensor.raw_data), size
    else:
        actual, expected = len(_typed(tensor, number)), -(-elements // 2) if bits == 4 else elements
    if actual != expected:
        unit = "bytes" if tensor.HasField("raw_data") else "numbers"
        raise InputError(
            f"{type_name(number)}{list(shape)} takes {expected:,} {unit}, but there are {actual:,}"
        )
    data = np.asarray(numpy_helper.to_array(tensor)).reshape(shape)
    return data.astype(dtype)


def _typed(tensor: Any, number: int) -> Any:
    """Return the typed field that holds the contents of a tensor that has no raw data."""
    if number == TensorProto.FLOAT:
        return tensor.float_data
    if number == TensorProto.INT64:
        return tensor.int64_data
    if number == TensorProto.DOUBLE:
        return tensor.double_data
    if number in (TensorProto.UINT32, TensorProto.UINT64):
        return tensor.uint64_data
    return tensor.int32_data


def _external(tensor: Any, size: int, folder: Path | None) -> bytes:
    """Return the bytes of a tensor from an external file in the model's directory."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(entries.get("location", ""), folder)
    offset, length = (_number(entries, key, default) for key, default in (("offset", 0), ("length", size)))
    if length != size:
        raise InputError(f"takes {size:,} bytes, but its external data is {length:,} bytes long")
    try:
        information = path.stat()
        if not stat.S_ISREG(information.st_mode):
            raise InputError(f"external data {shown(path.name)} must be a file")
        if offset + size > information.st_size:
            raise InputError(
                f"external data {shown(path.name)} must hold bytes {offset:,}..{offset + size:,}, "
                f"but has {information.st_size:,}"
            )
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise InputError(f"external data {shown(path.name)} cannot be read: {error.strerror}") from None


def _inside(location: str, folder: Path | None) -> Path:
    """Return the path of external data; raise InputError if it is outside the model's directory, even via a link."""
    if folder is None:
        raise InputError("external data needs a model that is a file")
    if not location or "\0" in location or Path(location).is_absolute() or ".." in Path(location).parts:
        raise InputError(f"external data must be in a file below the model's folder, not {shown(location)}")
    try:
        path = (folder / location).resolve()
        root = folder.resolve()
    except (OSError, RuntimeError):
        raise InputError(f"external data {shown(location)} cannot be found") from None
    if not path.is_relative_to(root):
        raise InputError(f"external data {shown(location)} is a link that leads out of the model's folder")
    return path


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InputError(f"{key} of external data must be a number, not {shown(text)}")
    return int(text)
