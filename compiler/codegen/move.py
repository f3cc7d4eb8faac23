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
        through = [piece for copy in layer.copies for piece in self._pieces(copy)]
        most = max((piece.count for piece in through), default=0)
        size = max(DTYPE_BYTES[image.dtype] for image in layer.shapes.values())
        room, schedule = (most + self.n) * size, context.schedule
        self.tiles = Tiles(
            Ring(Memory.SP, f"{layer.name}.x", room, min(schedule.x_buffers, len(through) or 1)), self._load
        )
        self.out = Turns(Memory.SP, f"{layer.name}.y", room, min(schedule.y_buffers, len(through) or 1))
        self.room = most

    def steps(self) -> list[Step]:
        """All of them."""
        return [step for copy in self.layer.copies for step in self._copy(copy)]

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
        if self._direct(copy):
            return
        source = self.place if copy.source is None else self._source(copy)
        walk = copy.walk.ordered() if source.gaps or self.place.gaps else copy.walk.merged()
        turned = copy.source is not None and source.size == 1 and transposable(walk)
        for part in in_blocks(walk, self.n) if turned else [walk]:
            yield from part.pieces(self.most)

    def _copy(self, copy: Copy) -> Iterator[Step]:
        if self._direct(copy):
            yield self._alone(copy)
        for piece in self._pieces(copy):
            yield self._fill(copy, piece) if copy.source is None else self._through(copy, piece)

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

    def _fill(self, copy: Copy, piece: Walk) -> Step:
        step = Step()
        self._store(step, piece.packed()[1], self.tiles.get(copy.fill, step))
        return step

    def _through(self, copy: Copy, piece: Walk) -> Step:
        """Into the scratchpad if it is not there, rescaled if need be, out if it does not stay."""
        step, x, packed = Step(), self._source(copy), Place(self.place.size)
        into, out = piece.packed()
        walk, source, dtypes = placed(into, x, packed), self._home(copy).at(), self._dtypes(copy)
        if not self._home(copy).on_chip:
            source = self.tiles.get((copy, piece), step)
            walk = placed(Walk(((piece.count, 1, 1),)), Place(x.size), packed)
        if self.y.on_chip:
            walk = placed(out, Place(x.size), self.place)
            step.fuse += self.lines.fuse(walk, source, self.y.at(), dtypes, copy.rescale)
            return step
        if copy.rescale:
            place = self.out.next()
            step.fuse += self.lines.fuse(walk, source, place, dtypes, copy.rescale)
            source = place
        self._store(step, out, source)
        return step

    def _store(self, step: Step, out: Walk, source: Ref) -> None:
        walk = placed(out, Place(self.place.size), self.place)
        step.stores += self.lines.store(walk, source, self.y.at(), self.place.size)

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        if isinstance(key, int):
            whole = Walk(((self.room * self.place.size, 1, 1),))
            return list(self.lines.fill(whole, key, place, 1))
        copy, piece = key  # type: ignore[misc]
        x = self._source(copy)
        walk = placed(piece.packed()[0], x, Place(x.size))
        return list(self.lines.load(walk, self._home(copy).at(), place, x.size))

    def _dtypes(self, copy: Copy) -> tuple[Dtype, Dtype]:
        assert copy.source is not None
        return self.layer.shapes[copy.source].dtype, self.layer.shapes[self.layer.y].dtype


def move_steps(context: Context, layer: MoveLayer) -> list[Step]:
    """The steps of a move."""
    return MoveSteps(context, layer).steps()
