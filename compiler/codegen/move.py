"""Moves of data as commands: LOAD, STORE or FUSE alone where one does it, else pieces by way of the scratchpad."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from compiler.codegen.build import Context, Tiles, Turns
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.home import Home
from compiler.codegen.lines import Lines, in_blocks, transposable
from compiler.lower.layer import MoveLayer
from compiler.lower.walk import Copy, Walk
from hw.isa.enums import DTYPE_BYTES, Dtype


@dataclass(frozen=True)
class Place:
    """Where elements lie: in a home, which may have gaps between pixels, or one behind the other.

    Parameters
    ----------
    size : int
        Bytes of an element.
    home : Home or None
        None: no gaps.
    """

    size: int
    home: Home | None = None

    @property
    def gaps(self) -> bool:
        """There are gaps between pixels."""
        return self.home is not None and self.home.pixel != self.home.c * self.size

    def step(self, distance: int) -> int:
        """Bytes for a distance along one axis of the tensor."""
        if self.home is None or not self.gaps or distance % self.home.c:
            return distance * self.size
        return distance // self.home.c * self.home.pixel

    def start(self, element: int) -> int:
        """Bytes from the first element to another."""
        if self.home is None:
            return element * self.size
        return self.home.to(element, self.size)


def placed(walk: Walk, x: Place, y: Place) -> Walk:
    """A walk in bytes."""
    dims = tuple((count, x.step(a), y.step(b)) for count, a, b in walk.dims)
    return Walk(dims, x.start(walk.x), y.start(walk.y))


#: Pieces of copies.
_Batch = tuple[tuple[Copy, Walk], ...]


def _count(batch: _Batch) -> int:
    return sum(piece.count for _, piece in batch)


def _starts(batch: _Batch) -> Iterator[tuple[Copy, Walk, int]]:
    """Each piece, and where it begins in a tile."""
    start = 0
    for copy, piece in batch:
        yield copy, piece, start
        start += piece.count


class MoveSteps:
    """The steps of a move.

    Parameters
    ----------
    context : Context
        Where for.
    layer : MoveLayer
        What. Pieces have at most `rows` times N elements.
    """

    def __init__(self, context: Context, layer: MoveLayer):
        self.context, self.layer, self.lines = context, layer, Lines(context)
        self.y, self.n = context.homes[layer.y], context.config.n
        self.most = context.schedule.rows * self.n
        self.places = {
            name: Place(DTYPE_BYTES[image.dtype], context.homes[name]) for name, image in layer.shapes.items()
        }
        self.place = self.places[layer.y]
        self.batches = list(self._batches())
        self.room = max((_count(batch) for batch in self.batches), default=0)
        size = max(DTYPE_BYTES[image.dtype] for image in layer.shapes.values())
        bytes_, schedule, count = (self.room + self.n) * size, context.schedule, len(self.batches) or 1
        ring = Ring(Memory.SP, f"{layer.name}.x", bytes_, min(schedule.x_buffers, count))
        self.tiles = Tiles(ring, self._load)
        self.out = Turns(Memory.SP, f"{layer.name}.y", bytes_, min(schedule.y_buffers, count))

    def steps(self) -> list[Step]:
        """All of them."""
        direct = [self._alone(copy) for copy in self.layer.copies if self._direct(copy)]
        return direct + [
            self._fill(batch) if batch[0][0].source is None else self._through(batch)
            for batch in self.batches
        ]

    def _source(self, copy: Copy) -> Place:
        assert copy.source is not None
        return self.places[copy.source]

    def _home(self, copy: Copy) -> Home:
        home = self._source(copy).home
        assert home is not None
        return home

    def _direct(self, copy: Copy) -> bool:
        """One unit does it alone."""
        if copy.source is None:
            return self.y.on_chip
        ends = (self._home(copy).on_chip, self.y.on_chip)
        return all(ends) if copy.rescale else any(ends)

    def _pieces(self, copy: Copy) -> Iterator[Walk]:
        """What passes through the scratchpad at a time; blocks that LOAD transposes stay whole."""
        source = self.place if copy.source is None else self._source(copy)
        walk = copy.walk.ordered() if source.gaps or self.place.gaps else copy.walk.merged()
        turned = copy.source is not None and source.size == 1 and transposable(walk)
        for part in in_blocks(walk, self.n) if turned else [walk]:
            yield from part.pieces(self.most)

    def _batches(self) -> Iterator[_Batch]:
        """Pieces that pass together: small ones of the same kind, one behind the other."""
        batch: _Batch = ()
        for copy in self.layer.copies:
            for piece in () if self._direct(copy) else self._pieces(copy):
                more = batch and self._kind(batch[0][0]) == self._kind(copy)
                if more and _count(batch) + piece.count <= self.most:
                    batch = (*batch, (copy, piece))
                    continue
                if batch:
                    yield batch
                batch = ((copy, piece),)
        if batch:
            yield batch

    def _kind(self, copy: Copy) -> Hashable:
        if copy.source is None:
            return copy.fill
        return self._dtypes(copy), copy.rescale, self._home(copy).on_chip

    def _alone(self, copy: Copy) -> Step:
        step, y, lines = Step(), self.y.at(), self.lines
        if copy.source is None:
            walk = placed(copy.walk, self.place, self.place)
            step.loads += lines.fill(walk, copy.fill, y, self.place.size)
            return step
        x = self._source(copy)
        walk, home = placed(copy.walk, x, self.place), self._home(copy)
        if home.on_chip and self.y.on_chip:
            step.fuse += lines.fuse(walk, home.at(), y, self._dtypes(copy), copy.rescale)
        elif home.on_chip:
            step.stores += lines.store(walk, home.at(), y, x.size)
        else:
            step.loads += lines.load(walk, home.at(), y, x.size)
        return step

    def _fill(self, batch: _Batch) -> Step:
        step = Step()
        self._store(step, batch, self.tiles.get(batch[0][0].fill, step))
        return step

    def _through(self, batch: _Batch) -> Step:
        """Into the scratchpad if it is not there, rescaled if need be, out if it does not stay."""
        step, first = Step(), batch[0][0]
        x, dtypes, rescale = self._source(first), self._dtypes(first), first.rescale
        tile = None if self._home(first).on_chip else self.tiles.get(batch, step)
        place = self.y.at() if self.y.on_chip else self.out.next()
        if tile and rescale and not self.y.on_chip:
            whole = placed(Walk(((_count(batch), 1, 1),)), Place(x.size), Place(self.place.size))
            step.fuse += self.lines.fuse(whole, tile, place, dtypes, rescale)
        elif rescale:
            for copy, piece, start in _starts(batch):
                into, out = piece.packed()
                if tile:
                    walk, source = placed(out.at(start, 0), Place(x.size), self.place), tile
                else:
                    source = self._home(copy).at()
                    walk = placed(into.at(0, start), self._source(copy), Place(self.place.size))
                step.fuse += self.lines.fuse(walk, source, place, dtypes, rescale)
        if not self.y.on_chip:
            self._store(step, batch, tile if tile and not rescale else place)
        return step

    def _store(self, step: Step, batch: _Batch, source: Ref) -> None:
        """Out of a tile; what is in order there and in DRAM goes in one line."""
        outs: list[Walk] = []
        for _, piece, start in _starts(batch):
            out = piece.packed()[1].at(start, 0).merged()
            line = all(dim[1:] == (1, 1) for dim in out.dims) and not self.place.gaps
            if line and outs and outs[-1].dims == ((start - outs[-1].x, 1, 1),):
                before = outs[-1]
                if before.y + start - before.x == out.y:
                    outs[-1] = Walk(((start - before.x + out.count, 1, 1),), before.x, before.y)
                    continue
            outs.append(Walk(((out.count, 1, 1),), out.x, out.y) if line else piece.packed()[1].at(start, 0))
        for out in outs:
            walk = placed(out, Place(self.place.size), self.place)
            step.stores += self.lines.store(walk, source, self.y.at(), self.place.size)

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        if isinstance(key, int):
            whole = Walk(((self.room * self.place.size, 1, 1),))
            return list(self.lines.fill(whole, key, place, 1))
        out: list[Command] = []
        for copy, piece, start in _starts(key):  # type: ignore[arg-type]
            x = self._source(copy)
            walk = placed(piece.packed()[0].at(0, start), x, Place(x.size))
            out += self.lines.load(walk, self._home(copy).at(), place, x.size)
        return out

    def _dtypes(self, copy: Copy) -> tuple[Dtype, Dtype]:
        assert copy.source is not None
        return self.layer.shapes[copy.source].dtype, self.layer.shapes[self.layer.y].dtype


def move_steps(context: Context, layer: MoveLayer) -> list[Step]:
    """The steps of a move."""
    return MoveSteps(context, layer).steps()
