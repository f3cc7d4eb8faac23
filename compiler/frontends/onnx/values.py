"""Representation of ONNX values during import.

A value is known beforehand (`Fixed`) or flows at run time (`Flow`). The dimensions of a flowing value may lie in
another order in the graph than in the file: transposing it costs nothing until something needs a certain order.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.tensor import MOST_ELEMENTS, Quantization, Tensor
from hw.errors import InputError, shown

#: Which dimension of the file each dimension of the graph's tensor is.
Order = tuple[int, ...]


class UnsupportedNodeError(InputError):
    """A node that is well formed and has no conversion; the message says why."""


@dataclass(frozen=True)
class Kind:
    """Type of a value in the graph.

    Parameters
    ----------
    dtype : str
        Of the graph's tensor.
    quantization : Quantization or None
        What its integers mean.
    real : bool
        The file has real numbers here and the graph their integers.
    """

    dtype: str
    quantization: Quantization | None = None
    real: bool = False


FLOAT = Kind("float32")


@dataclass(frozen=True, eq=False)
class ConstantValue:
    """A value known beforehand.

    Parameters
    ----------
    name : str
        In the file.
    data : array
        Contents; integers if there is a quantization.
    quantization : Quantization or None
        The file has real numbers here, which are these integers.
    narrow : bool
        The file's type has fewer bits than that of `data`.
    """

    name: str
    data: NDArray
    quantization: Quantization | None = None
    narrow: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return self.data.shape

    def numbers(self) -> NDArray:
        """Contents as the file has them."""
        return self.data if self.quantization is None else self.quantization.dequantized(self.data)

    def real(self) -> NDArray[np.float32]:
        """Contents as real numbers."""
        return self.numbers().astype(np.float32)

    def integers(self) -> list[int]:
        """Contents as a list: of a shape, axes, ..."""
        if self.data.dtype.kind not in "iu" or self.quantization is not None:
            raise InputError(f"tensor {self.name!r} must hold integers, not {self.data.dtype}")
        return [int(v) for v in self.data.reshape(-1)]

    def scalar(self) -> float | None:
        """The one number that all its elements are; None if they differ."""
        if not self.data.size or self.data.dtype.kind not in "fiu":
            return None
        numbers = self.real().reshape(-1)
        return float(numbers[0]) if (numbers == numbers[0]).all() else None

    def transposed(self, perm: Order, name: str | None = None) -> "ConstantValue":
        """The dimensions in another order."""
        q = self.quantization
        if q is not None and q.axis is not None:
            q = Quantization(q.scale, q.zero_point, perm.index(q.axis))
        return ConstantValue(name or self.name, self.data.transpose(perm), q)

    def reshaped(self, shape: tuple[int, ...], name: str | None = None) -> "ConstantValue":
        """The same elements in another shape; real numbers where scales do not follow the new dimensions."""
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
    """A value that flows at run time.

    Parameters
    ----------
    name : str
        In the file.
    tensor : Tensor
        The tensor of the graph.
    order : tuple of int
        Which dimension of the file each dimension of the tensor is.
    real : bool
        The file has real numbers here and the tensor their integers.
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
    def kind(self) -> Kind:
        """Its type in the graph."""
        return Kind(self.tensor.dtype, self.tensor.quantization, self.real)

    @property
    def quantized(self) -> bool:
        """The file has real numbers here and the tensor integers with one scale."""
        q = self.tensor.quantization
        return self.real and q is not None and q.whole

    def transposed(self, perm: Order, name: str) -> "DynamicValue":
        """The dimensions in another order; nothing moves."""
        return DynamicValue(name, self.tensor, tuple(perm.index(i) for i in self.order), self.real)


Value = ConstantValue | DynamicValue


def plain(rank: int) -> Order:
    """The file's own order."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """The graph's order of images: dimension 1 of the file comes last."""
    return plain(rank) if rank < 3 else (0, *range(2, rank), 1)


def arranged(per_dimension: tuple | list, order: Order) -> tuple:
    """What is given for each dimension of the file, in the order of the tensor."""
    return tuple(per_dimension[i] for i in order)


def counted_from_front(axis: int, rank: int) -> int:
    """An axis that may be negative, as one that is not."""
    if not -rank <= axis < rank:
        raise InputError(f"axis must be within {-rank}..{rank - 1}, not {axis}")
    return axis % rank


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that operands of these shapes make together."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise InputError(f"shapes {listed} do not go together") from None


def check_size(shape: tuple[int, ...], most: int = MOST_ELEMENTS) -> None:
    """Refuse the shape of an output that nothing can hold, before anybody asks for its memory."""
    if any(size < 1 for size in shape):
        raise InputError(f"its output would have shape {shown(list(shape))}")
    if math.prod(shape) > most:
        raise InputError(f"its output would have shape {shown(list(shape))}, more than {most:,} elements")
