"""Windows that go over images of any number of dimensions, one of their elements after the other."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.reference.onnx_ops.registry import Array, Asked
from hw.errors import InputError

#: An image may have so many elements with its padding.
_MOST = 1 << 27


@dataclass(frozen=True)
class Windows:
    """Window geometry over the spatial dimensions.

    Parameters
    ----------
    kernel, strides, dilations : tuple of int
        For each dimension.
    before, after : tuple of int
        Padding.
    counts : tuple of int
        How many windows there are.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    counts: tuple[int, ...]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Offsets within a window."""
        return itertools.product(*(range(size) for size in self.kernel))

    def padded(self, x: Array, value: float | int) -> Array:
        """An image with its padding, and as much behind it as the last windows reach."""
        widths = [(0, 0), (0, 0)]
        for i, size in enumerate(x.shape[2:]):
            reach = (self.counts[i] - 1) * self.strides[i] + (self.kernel[i] - 1) * self.dilations[i] + 1
            widths.append((self.before[i], max(self.after[i], reach - size - self.before[i])))
        check_room([size + sum(width) for size, width in zip(x.shape, widths, strict=True)])
        return np.pad(x, widths, constant_values=value)

    def taken(self, padded: Array, offset: tuple[int, ...]) -> Array:
        """The element at one offset of all windows."""
        spans = tuple(
            slice(place * d, place * d + (count - 1) * stride + 1, stride)
            for place, d, count, stride in zip(offset, self.dilations, self.counts, self.strides, strict=True)
        )
        return padded[(slice(None), slice(None), *spans)]


def check_room(shape: Sequence[int]) -> None:
    """Refuse an image that is too large with its padding.

    Raises
    ------
    InputError
        It would take too much memory.
    """
    if math.prod(shape) > _MOST:
        raise InputError(f"with its padding it would have shape {list(shape)}, more than {_MOST:,} elements")


def windows(asked: Asked, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
    """The windows of a node over an image of these sizes.

    Raises
    ------
    InputError
        The node's attributes do not fit the image.
    """
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = tuple(asked.get("strides", ones)), tuple(asked.get("dilations", ones))
    pads = tuple(asked.get("pads", (0,) * (2 * rank)))
    kernel = tuple(int(n) for n in kernel)
    if not len(kernel) == len(strides) == len(dilations) == rank == len(pads) // 2:
        raise InputError(f"kernel_shape, strides, dilations and pads must be of {rank} dimensions")
    if min((*kernel, *strides, *dilations)) < 1:
        raise InputError("kernel_shape, strides and dilations must be positive")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = asked.text("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto.startswith("SAME"):
        if asked.op.endswith("Pool") and max(dilations) > 1:  # onnxruntime's sizes are other than ONNX's
            raise InputError(f"auto_pad {auto} of windows with dilations is not defined")
        counts = tuple(-(-size // stride) for size, stride in zip(sizes, strides, strict=True))
        total = [
            max(0, (count - 1) * stride + span - size)
            for count, stride, span, size in zip(counts, strides, spans, sizes, strict=True)
        ]
        less, more = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
        return Windows(kernel, strides, dilations, before, after, counts)
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    before, after = pads[:rank], pads[rank:]
    counts = tuple(
        _count(size, span, stride, first, last, bool(asked.get("ceil_mode", 0)))
        for size, span, stride, first, last in zip(sizes, spans, strides, before, after, strict=True)
    )
    return Windows(kernel, strides, dilations, before, after, counts)


def _count(size: int, span: int, stride: int, before: int, after: int, ceil: bool) -> int:
    """Number of windows; with ceil rounding, windows that start in the trailing padding are excluded."""
    room = size + before + after - span
    if room < 0:
        raise InputError(f"a window of {span} does not fit {size} with its padding")
    if not ceil:
        return room // stride + 1
    count = math.ceil(room / stride) + 1
    return count - 1 if (count - 1) * stride >= size + before else count
