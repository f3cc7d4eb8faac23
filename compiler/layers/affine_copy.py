"""Walks over two tensors at once, whose steps in both are regular: what a move of data is made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from compiler.ir.identity import identity
from hw.isa.enums import Rounding

#: Steps of one dimension: number, distance in the source, distance in the destination.
Dim = tuple[int, int, int]


@identity("Walk", "dims", "x", "y")
@dataclass(frozen=True)
class Walk:
    """Strided walk over a source and a destination at once.

    Parameters
    ----------
    dims : tuple of (int, int, int)
        Number of steps, distance in the source, distance in the destination, in elements or bytes. No two steps write
        the same element.
    x, y : int
        Offset of the first element in the source and in the destination.
    """

    dims: tuple[Dim, ...]
    x: int = 0
    y: int = 0

    @property
    def count(self) -> int:
        """Number of elements copied."""
        total = 1
        for size, _, _ in self.dims:
            total *= size
        return total

    def ordered(self) -> "Walk":
        """The same without dimensions of one step, in the destination's order."""
        dims = sorted((dim for dim in self.dims if dim[0] > 1), key=lambda dim: -dim[2])
        return Walk(tuple(dims), self.x, self.y)

    def merged(self) -> "Walk":
        """The same with as few dimensions as possible, in the destination's order."""
        out: list[Dim] = []
        for size, x, y in self.ordered().dims:
            if out and out[-1][1:] == (size * x, size * y):
                out[-1] = (out[-1][0] * size, x, y)
            else:
                out.append((size, x, y))
        return Walk(tuple(out), self.x, self.y)

    def at(self, x: int, y: int) -> "Walk":
        """The same walk with both offsets moved."""
        return Walk(self.dims, self.x + x, self.y + y)

    def blocks(self, index: int, size: int) -> Iterator["Walk"]:
        """A dimension cut into blocks: a walk over the whole ones, one over the rest; the blocks
        are the first dimension, a block is the last.
        """
        total, x, y = self.dims[index]
        others = self.dims[:index] + self.dims[index + 1 :]
        whole, rest = divmod(total, size)
        if whole:
            yield Walk(((whole, size * x, size * y), *others, (size, x, y)), self.x, self.y)
        if rest:
            yield Walk((*others, (rest, x, y)), self.x, self.y).at(whole * size * x, whole * size * y)

    def pieces(self, most: int) -> Iterator["Walk"]:
        """Pieces of at most `most` elements; the last dimensions stay whole as long as possible."""
        sizes, room = [], max(most, 1)
        for total, _, _ in reversed(self.dims):
            parts = -(-total // min(total, room))
            sizes.append(-(-total // parts))
            room //= sizes[-1]
        sizes.reverse()
        cuts = [
            [(start, min(size, total - start)) for start in range(0, total, size)]
            for size, (total, _, _) in zip(sizes, self.dims, strict=True)
        ]
        for piece in product(*cuts):
            dims = tuple((count, x, y) for (_, count), (_, x, y) in zip(piece, self.dims, strict=True))
            starts = [(start, x, y) for (start, _), (_, x, y) in zip(piece, self.dims, strict=True)]
            yield Walk(dims, self.x, self.y).at(
                sum(s * x for s, x, _ in starts), sum(s * y for s, _, y in starts)
            )

    def packed(self) -> tuple["Walk", "Walk"]:
        """By way of a place where the elements lie without gaps, in the destination's order: to there, from there."""
        into: list[Dim] = []
        out: list[Dim] = []
        pitch = 1
        for size, x, y in sorted(self.dims, key=lambda dim: dim[2]):
            into.append((size, x, pitch))
            out.append((size, pitch, y))
            pitch *= size
        return Walk(tuple(into), self.x, 0), Walk(tuple(out), 0, self.y)


@identity("Rescale", "x_zp", "y_zp", "mult", "exponent", "rounding")
@dataclass(frozen=True)
class Rescale:
    """Conversion from one quantization to another.

    Parameters
    ----------
    x_zp, y_zp : int
        Zero points of source and destination.
    mult, exponent : int
        Quotient of the scales as 31-bit multiplier and exponent.
    rounding : Rounding
        Rounding mode of the scaled product.
    """

    x_zp: int
    y_zp: int
    mult: int
    exponent: int
    rounding: Rounding


@identity("Copy", "source", "walk", "rescale", "fill")
@dataclass(frozen=True)
class Copy:
    """Copy of elements from one tensor to another.

    Parameters
    ----------
    source : str or None
        Name of the source tensor; None: every element of the destination is `fill`.
    walk : Walk
        Elements to copy, with distances in elements of contiguous tensors.
    rescale : Rescale or None
        Conversion of each element; None: elements are copied unchanged.
    fill : int
        Byte that fills the destination if there is no source.
    """

    source: str | None
    walk: Walk
    rescale: Rescale | None = None
    fill: int = 0


@dataclass(frozen=True)
class Stretch:
    """Indices along an axis of the source for places along an axis of the destination, as dimensions of a walk."""

    dims: tuple[Dim, ...]
    x: int
    y: int


def runs(indices: Sequence[int]) -> list[Stretch]:
    """Regular stretches that a list of indices consists of."""
    out, at = [], 0
    while at < len(indices):
        step = indices[at + 1] - indices[at] if at + 1 < len(indices) else 0
        end = at + 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        out.append(Stretch(((end - at, step, 1),), indices[at], at))
        at = end
    return out


def stretches(indices: Sequence[int]) -> list[Stretch]:
    """The same in as few stretches as periods allow: 0 0 1 1 2 2 is one of two dimensions."""
    best, total = runs(indices), len(indices)
    for period in (p for p in range(1, min(total // 2, 64) + 1) if total % p == 0):
        step = indices[period] - indices[0]
        if all(indices[i + period] - indices[i] == step for i in range(total - period)):
            inner = runs(indices[:period])
            if len(inner) < len(best):
                best = [
                    Stretch(((total // period, step, period), *part.dims), part.x, part.y) for part in inner
                ]
    return best
