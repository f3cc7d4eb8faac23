"""Passes over all elements of a tensor as commands of FUSE."""

from collections.abc import Hashable

from compiler.codegen.build import Context, Tiles, Turns, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.home import Home
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import ElementwiseLayer
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Unit


class ElementwiseSteps:
    """The steps of an elementwise layer: a tile is some rows of N elements."""

    def __init__(self, context: Context, layer: ElementwiseLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        image = layer.shapes[layer.y]
        self.total = image.h * image.w * image.c
        self.rows = min(context.schedule.rows, ceil_div(self.total, self.n))
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        self.other = context.homes[layer.other] if layer.other else None
        self.tiles = {
            stream: Tiles(
                Ring(
                    Memory.SP,
                    f"{layer.name}.{stream}",
                    self.rows * self.n * self._size(name),
                    context.schedule.x_buffers,
                ),
                self._loader(name),
            )
            for stream, name in (("a", layer.x), (layer.stream, layer.other))
            if name
        }
        self.out = Turns(
            Memory.SP, f"{layer.name}.y", self.rows * self.n * self._size(layer.y), context.schedule.y_buffers
        )
        self.table = self._table()

    def _size(self, name: str) -> int:
        return DTYPE_BYTES[self.layer.shapes[name].dtype]

    def _loader(self, name: str):  # noqa: ANN202
        home, size = self.context.homes[name], self._size(name)

        def load(key: Hashable, place: Ref) -> list[Command]:
            start, count = key  # type: ignore[misc]
            return [
                self.context.command(Unit.LOAD, dram=_flat(home, start * size), dst=place, len=count * size)
            ]

        return load

    def _table(self) -> Tiles | None:
        table = self.layer.table
        if table is None:
            return None
        source = self.context.constant(f"{self.layer.name}.table", table.astype("<i2"))

        def load(_: Hashable, place: Ref) -> list[Command]:
            to = Ref(place.ring, place.index, 0, 512)
            return [self.context.command(Unit.LOAD, word=2, dram=Ref(source), dst=to, len=512)]

        return Tiles(Ring(Memory.TABLE, f"{self.layer.name}.table", 1), load)

    def steps(self) -> list[Step]:
        """All tiles."""
        return [self._tile(start, count) for start, count in pieces(self.total, self.rows * self.n)]

    def _source(self, stream: str, name: str, start: int, count: int, step: Step) -> Ref:
        home = self.context.homes[name]
        if home.on_chip:
            return _flat(home, start * self._size(name))
        return self.tiles[stream].get((start, count), step)

    def _tile(self, start: int, count: int) -> Step:
        step, layer, n = Step(), self.layer, self.n
        place = _flat(self.y, start * self._size(layer.y)) if self.y.on_chip else self.out.next()
        fields: dict[str, int | Ref] = {
            "src": FUSE_SRC.pack(
                a_src=1, a_dtype=layer.shapes[layer.x].dtype, **layer.src,
                **({"b_src": BSource.SP, "b_dtype": layer.shapes[layer.other].dtype}
                   if layer.other and layer.stream == "b" else {}),
            ),
            "stage": self._stage(step),
            "a_base": self._source("a", layer.x, start, count, step),
            "a_v": n * self._size(layer.x),
            "v_x": 1,
            "x_count": ceil_div(count, n),
            "lanes_tail": (count - 1) % n + 1,
            "d_base": place,
            "d_x": n * self._size(layer.y),
            **layer.fields,
        }  # fmt: skip
        if layer.other:
            fields[f"{layer.stream}_base"] = self._source(layer.stream, layer.other, start, count, step)
            fields[f"{layer.stream}_x"] = n * self._size(layer.other)
        step.fuse.append(self.context.command(Unit.FUSE, **fields))
        if not self.y.on_chip:
            size = self._size(layer.y)
            step.stores.append(
                self.context.command(
                    Unit.STORE, dram=_flat(self.y, start * size), src=place, len=count * size
                )
            )
        return step

    def _stage(self, step: Step) -> int | Ref:
        layer = self.layer
        parts = {"d_dst": 1, "d_dtype": layer.shapes[layer.y].dtype, "tail_dim": FUSE_DIMS.index("x")}
        if layer.other and layer.stream == "r":
            parts |= {"residual": 1, "r_dtype": layer.shapes[layer.other].dtype}
        if self.table is None:
            return FUSE_STAGE.pack(**parts, **layer.stage)
        word = FUSE_STAGE.pack(**parts, **layer.stage, table=1)
        one = FUSE_STAGE.pack(**parts, **layer.stage, table=1, table_slot=1) - word
        slot = self.table.get(0, step)
        return Ref(slot.ring, slot.index, 0, one, word)


def _flat(home: Home, offset: int) -> Ref:
    """The byte at `offset` of a tensor without gaps."""
    return Ref(home.ring, 0, home.offset + offset)


def elementwise_steps(context: Context, layer: ElementwiseLayer) -> list[Step]:
    """The steps of an elementwise layer."""
    return ElementwiseSteps(context, layer).steps()
