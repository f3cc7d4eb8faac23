"""Tensors of the graph and their quantization."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from hw.errors import shown

#: Maximum number of elements, so that 32-bit addresses suffice for a tensor.
MAX_ELEMENTS = 1 << 31
#: Maximum number of tensors listed per side of a signature.
_MAX_SHOWN = 2


def same_values(a: "Quantization | None", b: "Quantization | None") -> bool:
    """Return True if two quantizations are equal except for the position of the axis."""
    return a == b or (a is not None and b is not None and (a.scale, a.zero_point) == (b.scale, b.zero_point))


@identity("Quantization", "scale", "zero_point", "axis")
@dataclass(frozen=True)
class Quantization:
    """Affine quantization of integers: real = scale * (q - zero_point).

    Parameters
    ----------
    scale : tuple of float
        One scale for the tensor, or one for each index of `axis`; the values are float32.
    zero_point : tuple of int
        One zero point for each scale.
    axis : int or None
        Dimension with one scale per index; None: one scale for the tensor.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise ValueError(f"{len(self.scale)} scales need as many zero points, not {len(self.zero_point)}")
        if self.axis is None and len(self.scale) != 1:
            raise ValueError(f"{len(self.scale)} scales need an axis")
        for scale in self.scale:
            if not (math.isfinite(scale) and scale > 0):
                raise ValueError(f"a scale must be finite and positive, not {scale!r}")

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int = 0) -> "Quantization":
        """Return a quantization with one scale for the whole tensor."""
        return cls((float(np.float32(scale)),), (int(zero_point),))

    @property
    def whole(self) -> bool:
        """True if there is one scale for the whole tensor."""
        return self.axis is None

    def dequantized(self, values: NDArray) -> NDArray[np.float32]:
        """Convert integers to the real numbers that they represent."""
        shape = [1] * values.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        scale = np.array(self.scale, np.float32).reshape(shape)
        zero = np.array(self.zero_point, np.int64).reshape(shape)
        return ((values.astype(np.int64) - zero) * scale).astype(np.float32)


#: Identity quantization, for integers that represent their own value.
IDENTITY = Quantization((1.0,), (0,))


@identity("Tensor", "name", "shape", "dtype", "quantization", "data", "group", added=("group",))
@dataclass(frozen=True, eq=False)
class Tensor:
    """Tensor of the graph: an input, a constant or a result of a node.

    Parameters
    ----------
    name : str
        Name that is unique in the graph.
    shape : tuple of int
        Sizes of the dimensions, all positive; () for a scalar.
    dtype : str
        Numpy's name of the type: int8, uint8, int16, int32, int64, float32 or bool.
    quantization : Quantization or None
        Quantization of the integers; None: the values are not quantized.
    data : array or None
        Contents of a constant; None for other tensors.
    group : str
        Name of a group of tensors that share one quantization when a float model is quantized, for example the results
        of one operation in all steps of an unrolled recurrent network; "" for no group.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    quantization: Quantization | None = None
    data: NDArray | None = field(default=None, repr=False)
    group: str = ""

    def __post_init__(self) -> None:
        for size in self.shape:
            if size < 1:
                raise ValueError(f"a dimension must be positive, not {size!r}")
        if math.prod(self.shape) > MAX_ELEMENTS:
            raise ValueError(f"shape {list(self.shape)} has more than {MAX_ELEMENTS:,} elements")
        if self.data is not None and (self.data.shape != self.shape or self.data.dtype != self.dtype):
            raise ValueError(
                f"data must be {self.dtype}{list(self.shape)}, not {self.data.dtype}{list(self.data.shape)}"
            )
        q = self.quantization
        if q is None:
            return
        if not self.dtype.startswith(("int", "uint")):
            raise ValueError(f"{self.dtype} has no quantization")
        limits = np.iinfo(self.dtype)
        if min(q.zero_point) < limits.min or max(q.zero_point) > limits.max:
            raise ValueError(f"the zero point of {self.dtype} cannot be {max(q.zero_point, key=abs)}")
        if q.axis is None:
            return
        if not 0 <= q.axis < len(self.shape) or len(q.scale) != self.shape[q.axis]:
            raise ValueError(f"{len(q.scale)} scales along axis {q.axis} do not fit shape {list(self.shape)}")

    @property
    def constant(self) -> bool:
        """True if the contents are part of the model."""
        return self.data is not None

    @property
    def meaning(self) -> str:
        """Suffix for messages that states scale and zero point; empty if there is no per-tensor quantization or it is
        the identity.
        """
        q = self.quantization
        if q is None or not q.whole or q == IDENTITY:
            return ""
        return f"; its scale is {q.scale[0]:.6g}, its zero point {q.zero_point[0]}"

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        text = f"%{self.name}: {self.dtype}{list(self.shape)}"
        q = self.quantization
        if q is None:
            return text
        if q.whole:
            return f"{text} * {q.scale[0]:.6g}" + (f" @ {q.zero_point[0]}" if q.zero_point[0] else "")
        return f"{text} * {len(q.scale)} scales along {q.axis}"


def signature(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Return names, types and shapes of inputs and outputs on one line; long lists are truncated."""
    return " -> ".join(
        ", ".join(
            [f"{shown(each.name)} {each.dtype}{list(each.shape)}" for each in tensors[:_MAX_SHOWN]]
            + (["..."] if len(tensors) > _MAX_SHOWN else [])
        )
        for tensors in (inputs, outputs)
    )
