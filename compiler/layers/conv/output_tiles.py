"""Output tiles of a convolution, and the parts that the first and the last one are split into."""

from dataclasses import dataclass, replace

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer
from compiler.util.tiles import ceil_div

#: Parts of a first tile: each costs commands.
_RAMP = 3


@dataclass(frozen=True)
class TilePart:
    """Output rows and blocks of output channels: a tile, or some of one.

    `pitch` are the rows of sums from block to block: those of the whole tile if its parts lie in one.
    """

    start: int
    rows: int
    block: int
    blocks: int
    pitch: int


def ramped(part: TilePart, acc: BufferRef, few: int, width: int) -> list[tuple[TilePart, BufferRef]]:
    """Rows of a first tile, the first of them few: MATRIX begins when those of the image are there.

    Parameters
    ----------
    acc : Ref
        Where the sums of all of it go.
    few : int
        Rows that fill the array.
    width : int
        Pixels of a row.
    """
    *halves, last = _halves(part.rows, few)
    sizes = [last, *reversed(halves)]
    if len(sizes) > _RAMP:
        sizes = [sum(sizes[: 1 - _RAMP]), *sizes[1 - _RAMP :]]
    out, start = [], part.start
    for rows in sizes:
        out.append((replace(part, start=start, rows=rows), acc.plus((start - part.start) * width)))
        start += rows
    return out


def tapered(tile: TilePart, name: str, few: int, width: int) -> list[tuple[TilePart, BufferRef]]:
    """The parts of a last tile: all blocks but the last, then half of what is left while that fills the array.

    Each has sums of its own, in another bank if it can: FUSE would wait for the bank that MATRIX works on.
    """
    start, last = tile.start, tile.block + tile.blocks - 1
    parts = [replace(tile, blocks=tile.blocks - 1)] if tile.blocks > 1 else []
    for rows in _halves(tile.rows, few):
        parts.append(TilePart(start, rows, last, 1, rows))
        start += rows
    return [
        (
            part,
            BufferRef(
                CircularBuffer(
                    BufferMemory.ACC,
                    f"{name}.part{i}",
                    part.rows * width * part.blocks,
                    family=f"{name}.part",
                )
            ),
        )
        for i, part in enumerate(parts)
    ]


def _halves(rows: int, few: int) -> list[int]:
    """Half of some rows, half of the others, ... while that is `few` or more."""
    out = []
    while rows:
        out.append(rows if rows < 2 * few else ceil_div(rows, 2))
        rows -= out[-1]
    return out
