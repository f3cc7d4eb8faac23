"""Strided copies: regular walks over two tensors, and the LOAD, FUSE and STORE commands that execute them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from compiler.commands.commands import BufferRef, Command, TensorLayout
from compiler.commands.tile_buffers import CodegenContext
from compiler.ir.identity import identity
from compiler.layers.tile_pipeline import line_beats
from compiler.util.scaling import bytes_word, halves_word
from compiler.util.tiles import ceil_div
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Requant, Rounding, Unit

#: Steps of one dimension: number, distance in the source, distance in the destination.
Dim = tuple[int, int, int]


@identity("Walk", "dims", "x", "y")
@dataclass(frozen=True)
class Walk:
    """Strided walk over a source and a destination simultaneously.

    Parameters
    ----------
    dims : tuple of (int, int, int)
        Number of steps and distance between steps in source and destination, for each dimension, in elements or bytes.
        No two steps write the same element.
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
        """Return the walk without one-step dimensions, with dimensions in the order of the destination."""
        dims = sorted((dim for dim in self.dims if dim[0] > 1), key=lambda dim: -dim[2])
        return Walk(tuple(dims), self.x, self.y)

    def merged(self) -> "Walk":
        """Return the walk with as few dimensions as possible, in the order of the destination."""
        out: list[Dim] = []
        for size, x, y in self.ordered().dims:
            if out and out[-1][1:] == (size * x, size * y):
                out[-1] = (out[-1][0] * size, x, y)
            else:
                out.append((size, x, y))
        return Walk(tuple(out), self.x, self.y)

    def shifted(self, x: int, y: int) -> "Walk":
        """Return the walk with both offsets increased by the given distances."""
        return Walk(self.dims, self.x + x, self.y + y)

    def blocks(self, index: int, size: int) -> Iterator["Walk"]:
        """Split the walk along a dimension into a walk over full blocks and a walk over the remainder.

        The last dimension of both walks covers the elements of a block. The first dimension of the walk over full
        blocks covers the blocks.
        """
        total, x, y = self.dims[index]
        others = self.dims[:index] + self.dims[index + 1 :]
        whole, rest = divmod(total, size)
        if whole:
            yield Walk(((whole, size * x, size * y), *others, (size, x, y)), self.x, self.y)
        if rest:
            yield Walk((*others, (rest, x, y)), self.x, self.y).shifted(whole * size * x, whole * size * y)

    def pieces(self, most: int) -> Iterator["Walk"]:
        """Yield pieces of at most `most` elements; outer dimensions are split first."""
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
            yield Walk(dims, self.x, self.y).shifted(
                sum(s * x for s, x, _ in starts), sum(s * y for s, _, y in starts)
            )

    def packed(self) -> tuple["Walk", "Walk"]:
        """Return the walks into and out of a contiguous buffer whose elements have the order of the destination."""
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
        Ratio of the scales as 31-bit multiplier and exponent.
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
        Byte with which the destination is filled if the source is None.
    """

    source: str | None
    walk: Walk
    rescale: Rescale | None = None
    fill: int = 0


@dataclass(frozen=True)
class Stretch:
    """Range of indices along an axis of the source and of the destination, as dimensions of a walk."""

    dims: tuple[Dim, ...]
    x: int
    y: int


def runs(indices: Sequence[int]) -> list[Stretch]:
    """Split a list of indices into stretches of equidistant indices."""
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
    """Split a list of indices into few stretches by detecting periods; 0 0 1 1 2 2 is one two-dimensional stretch."""
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


#: Maximum count of a command's dimension.
_MAX_COUNT = 0xFFFF
_PART = 0x8000


#: Stretches of each axis of a tensor.
Axes = Sequence[Sequence[Stretch]]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the stride in elements of each dimension of a contiguous tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def whole(size: int) -> list[Stretch]:
    """Return the stretch that covers a whole axis of the given size."""
    return [Stretch(((size, 1, 1),), 0, 0)]


def walks(x: Sequence[int], y: Sequence[int], axes: Axes) -> Iterator[Walk]:
    """Yield one walk for each combination of stretches, with one stretch per axis.

    Parameters
    ----------
    x, y : sequence of int
        Stride of each axis in source and destination, in elements.
    axes : sequence of lists of Stretch
        Index ranges of each axis.
    """
    for parts in product(*axes):
        dims = tuple(
            (count, a * x_step, b * y_step)
            for part, x_step, y_step in zip(parts, x, y, strict=True)
            for count, a, b in part.dims
        )
        starts = list(zip(parts, x, y, strict=True))
        yield Walk(dims, sum(p.x * step for p, step, _ in starts), sum(p.y * step for p, _, step in starts))


def transposable(walk: Walk) -> tuple[int, int] | None:
    """Return the dimensions contiguous in the source and in the destination; None unless both exist and differ."""
    (source,) = [i for i, (_, x, _) in enumerate(walk.dims) if x == 1][:1] or [None]
    (target,) = [i for i, (_, _, y) in enumerate(walk.dims) if y == 1][:1] or [None]
    if source is None or target is None or source == target:
        return None
    return source, target


def in_blocks(walk: Walk, n: int) -> Iterator[Walk]:
    """Split a walk into blocks of at most n x n; the last two dimensions of a result cover a block, line by line."""
    both = transposable(walk)
    assert both is not None
    along, across = both
    for columns in walk.blocks(along, n):
        others, line = columns.dims[:-1], columns.dims[-1]
        shift = len(others) - len(walk.dims) + 1 - (across > along)
        for lines in Walk(others, columns.x, columns.y).blocks(across + shift, n):
            rest = lines.dims[:-1]
            if len(lines.dims) > len(others):  # blocks of lines are consecutive in the destination
                rest = (*rest[1:], rest[0])
            yield Walk((*rest, lines.dims[-1], line), lines.x, lines.y)


def walk_beats(walk: Walk, size: int, n: int) -> tuple[float, float]:
    """Return the mean bus beats for source and destination of a walk, as contiguous lines or as blocks of n x n.

    Parameters
    ----------
    walk : Walk
        Walk in elements.
    size : int
        Bytes of an element.
    n : int
        Bytes of a bus beat.
    """
    walk = walk.merged()
    both = transposable(walk) if size == 1 else None
    if both:
        return _block_beats(walk, both[0], n, 1), _block_beats(walk, both[1], n, 2)
    return run_beats(walk, size, n, 1), run_beats(walk, size, n, 2)


def _block_beats(walk: Walk, inner: int, n: int, side: int) -> float:
    """Return the bus beats for lines of at most n bytes along dimension `inner`."""
    length, others = walk.dims[inner][0], [dim for at, dim in enumerate(walk.dims) if at != inner]
    count, steps = walk.count // length, [dim[side] for dim in others]
    whole_lines, rest = divmod(length, n)
    beats = line_beats(count * whole_lines, n, (*steps, n), n) if whole_lines else 0.0
    return beats + (line_beats(count, rest, steps, n) if rest else 0.0)


def run_beats(walk: Walk, size: int, n: int, side: int, steps: Sequence[int] = ()) -> float:
    """Return the mean bus beats for the contiguous runs of a walk of elements.

    Parameters
    ----------
    walk : Walk
        Walk in elements.
    size : int
        Bytes of an element.
    n : int
        Bytes of a bus beat.
    side : int
        1 for the source, 2 for the destination.
    steps : sequence of int
        Distances between this walk and similar ones, in bytes.
    """
    dims = list(walk.merged().dims)
    length = dims.pop()[0] if dims and dims[-1][1:] == (1, 1) else 1
    count, between = prod(dim[0] for dim in dims), [dim[side] * size for dim in dims]
    if count == 1 and steps:
        return line_beats(2, length * size, steps, n) / 2
    return line_beats(count, length * size, (*between, *steps), n)


@dataclass(frozen=True)
class CopyOperand:
    """Layout of the source or destination of a copy: the layout of a tensor, or contiguous elements.

    Parameters
    ----------
    size : int
        Bytes of an element.
    layout : TensorLayout or None
        Layout of the tensor; None: elements are contiguous.
    """

    size: int
    layout: TensorLayout | None = None

    @property
    def gaps(self) -> bool:
        """True if pixels are not contiguous."""
        return self.layout is not None and self.layout.pixel != self.layout.c * self.size

    def step(self, distance: int) -> int:
        """Convert a distance along an axis of the tensor from elements to bytes."""
        if self.layout is None or not self.gaps or distance % self.layout.c:
            return distance * self.size
        return distance // self.layout.c * self.layout.pixel

    def start(self, element: int) -> int:
        """Return the offset of an element from the first element, in bytes."""
        if self.layout is None:
            return element * self.size
        return self.layout.byte_offset(element, self.size)


def in_bytes(walk: Walk, x: CopyOperand, y: CopyOperand) -> Walk:
    """Convert a walk from elements to bytes."""
    dims = tuple((count, x.step(a), y.step(b)) for count, a, b in walk.dims)
    return Walk(dims, x.start(walk.x), y.start(walk.y))


class StridedCopy:
    """Generator of the commands that execute walks; the distances of the walks are in bytes.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts that code is generated for.
    """

    def __init__(self, context: CodegenContext):
        self.context, self.n = context, context.config.n

    def load(self, walk: Walk, source: BufferRef, address: BufferRef, size: int) -> Iterator[Command]:
        """Yield LOAD commands from DRAM to the scratchpad, for elements of `size` bytes."""
        walk = walk.merged()
        if size == 1 and transposable(walk):
            yield from self._transposed(walk, source, address)
            return
        for fields, x, y in self._lines(walk, size, "dram", "dst"):
            yield self.context.command(Unit.LOAD, dram=source.plus(x), dst=address.plus(y), **fields)

    def fill(self, walk: Walk, value: int, address: BufferRef, size: int) -> Iterator[Command]:
        """Yield LOAD commands that fill the destination of a walk in the scratchpad with a byte."""
        flat = Walk(tuple((count, y, y) for count, _, y in walk.dims), walk.y, walk.y)
        word = LOAD_WORD.pack(fill=1, fill_value=value)
        for fields, _, y in self._lines(flat.merged(), size, "dram", "dst"):
            kept = {name: number for name, number in fields.items() if not name.startswith("dram")}
            yield self.context.command(Unit.LOAD, word=word, dram=0, dst=address.plus(y), **kept)

    def store(self, walk: Walk, source: BufferRef, address: BufferRef, size: int) -> Iterator[Command]:
        """Yield STORE commands from the scratchpad to DRAM, for elements of `size` bytes."""
        for fields, x, y in self._lines(walk.merged(), size, "src", "dram"):
            yield self.context.command(Unit.STORE, src=source.plus(x), dram=address.plus(y), **fields)

    def _lines(self, walk: Walk, size: int, x: str, y: str) -> Iterator[tuple[dict[str, int], int, int]]:
        """Yield the fields of commands, with the offsets in source and destination."""
        dims, length = list(walk.dims), size
        if dims and dims[-1][1:] == (size, size):
            length = dims.pop()[0] * size
        for part in _bounded(Walk(tuple(dims), walk.x, walk.y)):
            inner, starts = _command_dims(part, 2)
            fields = {"len": length}
            for axis, (count, x_step, y_step) in zip("yz", inner, strict=False):
                fields |= {f"{axis}_count": count, f"{x}_{axis}": x_step, f"{y}_{axis}": y_step}
            for x_start, y_start in starts:
                yield fields, x_start, y_start

    def _transposed(self, walk: Walk, source: BufferRef, address: BufferRef) -> Iterator[Command]:
        """Yield LOAD commands that transpose lines of the source to columns of the destination."""
        word = LOAD_WORD.pack(transpose=1)
        for blocks in in_blocks(walk, self.n):
            *rest, (count, line, _), (length, _, column) = blocks.dims
            fields = {"word": word, "len": length, "y_count": count, "dram_y": line, "dst_y": column}
            for part in _bounded(Walk(tuple(rest), blocks.x, blocks.y)):
                planes, starts = _command_dims(part, 1)
                for planes_count, x, y in planes:
                    fields |= {"z_count": planes_count, "dram_z": x, "dst_z": y}
                for x, y in starts:
                    yield self.context.command(Unit.LOAD, dram=source.plus(x), dst=address.plus(y), **fields)

    def fuse(
        self,
        walk: Walk,
        source: BufferRef,
        address: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Iterator[Command]:
        """Yield FUSE commands that copy within the scratchpad, optionally with a conversion."""
        walk, sizes = walk.merged(), [DTYPE_BYTES[dtype] for dtype in dtypes]
        dims, length = list(walk.dims), 1
        if dims and dims[-1][1:] == tuple(sizes):
            length = dims.pop()[0]
        for start in range(0, length, _PART * self.n):
            count = min(_PART * self.n, length - start)
            rest = Walk(tuple(dims), walk.x, walk.y).shifted(start * sizes[0], start * sizes[1])
            for part in _bounded(rest):
                yield from self._rows(part, count, source, address, dtypes, rescale)

    def _rows(
        self,
        walk: Walk,
        length: int,
        source: BufferRef,
        address: BufferRef,
        dtypes: tuple[Dtype, Dtype],
        rescale: Rescale | None,
    ) -> Iterator[Command]:
        n, rows = self.n, ceil_div(length, self.n)
        inner, starts = _command_dims(walk, 3 if rows == 1 else 2)
        fields, tail = requantization(rescale, dtypes[0]), 7
        if rows == 1:
            fields["lanes"] = length % n
        else:
            tail = FUSE_DIMS.index("x")
            inner = [(rows, *(n * DTYPE_BYTES[dtype] for dtype in dtypes)), *inner]
            fields["lanes_tail"] = (length - 1) % n + 1
        for axis, step, (count, x, y) in zip("xyn", ("a_v", "a_u", "a_n"), inner, strict=False):
            fields |= {f"{axis}_count": count, step: x, f"d_{axis}": y}
        stage = FUSE_STAGE.pack(d_dst=1, d_dtype=dtypes[1], tail_dim=tail)
        for x, y in starts:
            yield self.context.command(
                Unit.FUSE, stage=stage, a_base=source.plus(x), d_base=address.plus(y), **fields
            )


def requantization(rescale: Rescale | None, dtype: Dtype | None) -> dict[str, int]:
    """Return the FUSE fields that select operand A and convert it.

    Parameters
    ----------
    rescale : Rescale or None
        Conversion; None: elements do not change.
    dtype : Dtype or None
        Type of elements in the scratchpad; None: the elements are in the accumulator.
    """
    where = {} if dtype is None else {"a_src": 1, "a_dtype": dtype}
    if rescale is None:
        return {"src": FUSE_SRC.pack(**where)}
    fields = {"mult": rescale.mult, "shifts": bytes_word(rescale.exponent), "zp": rescale.y_zp}
    convert = {"requant": Requant.IMM, "rounding": rescale.rounding}
    if dtype is None:
        return fields | {"src": FUSE_SRC.pack(**convert, bias_en=1), "bias": -rescale.x_zp}
    return fields | {"src": FUSE_SRC.pack(**where, **convert), "zp_ab": halves_word(rescale.x_zp, 0)}


def _bounded(walk: Walk) -> Iterator[Walk]:
    """Split a walk so that no dimension exceeds the limit of a command."""
    for index, (size, _, _) in enumerate(walk.dims):
        if size > _MAX_COUNT:
            for part in walk.blocks(index, _PART):
                yield from _bounded(part)
            return
    yield walk


def _command_dims(walk: Walk, most: int) -> tuple[list[Dim], list[tuple[int, int]]]:
    """Return the longest dimensions (at most `most`), innermost first, and the offsets of commands for the other
    dimensions.
    """
    chosen = sorted(range(len(walk.dims)), key=lambda i: -walk.dims[i][0])[:most]
    inner = [walk.dims[i] for i in sorted(chosen, reverse=True)]
    outer: Sequence[Dim] = [dim for i, dim in enumerate(walk.dims) if i not in chosen]
    starts = [
        (
            walk.x + sum(i * x for i, (_, x, _) in zip(at, outer, strict=True)),
            walk.y + sum(i * y for i, (_, _, y) in zip(at, outer, strict=True)),
        )
        for at in product(*(range(size) for size, _, _ in outer))
    ]
    return inner, starts
