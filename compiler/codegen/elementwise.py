"""Passes over all elements of a tensor as commands of FUSE."""

from collections.abc import Callable, Hashable

from compiler.codegen.build import Context, Tables, Tiles, Turns, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.home import Home
from compiler.codegen.parameters import Slots
from compiler.kernels.tiles import ceil_div
from compiler.lower.elementwise_layer import ElementwiseLayer, Spread
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Requant, Unit


class ElementwiseSteps:
    """The steps of an elementwise layer: a tile is some pixels with all their channels.

    Where nothing depends on the channel and no tensor has gaps, N elements that follow one another are a pixel.
    """

    def __init__(self, context: Context, layer: ElementwiseLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        image = layer.shapes[layer.y]
        self.pixels, self.channels = image.h * image.w, image.c
        self.total = self.pixels * self.channels
        names = (layer.x, layer.y, *([layer.other] if layer.other else []))
        compact = all(context.homes[name].compact(self._bytes(name)) for name in names)
        self.flat = compact and not self._by_channel()
        if self.flat:
            self.pixels, self.channels = ceil_div(self.total, self.n), self.n
        self.blocks = ceil_div(self.channels, self.n)
        self.rows = min(context.schedule.rows, self.pixels)
        self.sources = {"a": self._source("a", layer.x, Spread.ALL)}
        if layer.other:
            self.sources[layer.stream] = self._source(layer.stream, layer.other, layer.spread)
        size = self.rows * self.channels * self._bytes(layer.y) + self.n * self._bytes(layer.y)
        self.out = Turns(Memory.SP, f"{layer.name}.y", size, context.schedule.y_buffers)
        self.table = None if layer.table is None else Tables(context, layer.name, layer.table)
        self.slots = None if layer.drain is None else Slots(context, layer.name, layer.drain, self.blocks)

    def steps(self) -> list[Step]:
        """All tiles."""
        return [self._tile(start, count) for start, count in pieces(self.pixels, self.rows)]

    def _by_channel(self) -> bool:
        """Something is another for each channel."""
        layer = self.layer
        return layer.drain is not None or (layer.other is not None and layer.spread != Spread.ALL)

    def _bytes(self, name: str) -> int:
        return DTYPE_BYTES[self.layer.shapes[name].dtype]

    def _source(self, stream: str, name: str, spread: Spread) -> Tiles:
        """Tiles of a tensor that is not in the scratchpad."""
        size = self._bytes(name)
        count = self.rows if spread in (Spread.ALL, Spread.PIXEL) else 1
        width = self.channels if spread in (Spread.ALL, Spread.CHANNEL) else 1
        ring = Ring(
            Memory.SP, f"{self.layer.name}.{stream}", count * width * size + self.n * size,
            self.context.schedule.x_buffers if count == self.rows else 1,
        )  # fmt: skip
        return Tiles(ring, self._loader(self.context.homes[name], size, spread))

    def _loader(self, home: Home, size: int, spread: Spread) -> Callable[[Hashable, Ref], list[Command]]:
        def load(key: Hashable, place: Ref) -> list[Command]:
            start, count = key  # type: ignore[misc]
            source, width = Ref(home.ring, 0, home.offset), self.channels * size
            if self.flat:
                length = min(count * self.n, self.total - start * self.n) * size
                lines = {"len": length}
                source = source.plus(start * self.n * size)
            elif spread == Spread.ALL:
                source = source.plus(start * home.pixel)
                lines = {"len": width, "y_count": count, "dram_y": home.pixel, "dst_y": width}
                if home.pixel == width:
                    lines = {"len": count * width}
            elif spread == Spread.PIXEL:
                source = source.plus(start * home.pixel)
                lines = {"len": count * size} if home.pixel == size else {
                    "len": size, "y_count": count, "dram_y": home.pixel, "dst_y": size,
                }  # fmt: skip
            else:
                lines = {"len": width if spread == Spread.CHANNEL else size}
            return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

        return load

    def _place(self, stream: str, name: str, start: int, count: int, step: Step) -> tuple[Ref, int]:
        """Address of a source's first pixel of the tile, and bytes from pixel to pixel."""
        home, size = self.context.homes[name], self._bytes(name)
        spread = Spread.ALL if stream == "a" else self.layer.spread
        moving = spread in (Spread.ALL, Spread.PIXEL)
        if not home.on_chip:
            place = self.sources[stream].get((start, count) if moving else (0, 1), step)
            pitch = (self.channels if spread == Spread.ALL else 1) * size
            return place, pitch if moving else 0
        pitch = self.n * size if self.flat else home.pixel
        return Ref(home.ring, 0, home.offset + (start * pitch if moving else 0)), pitch if moving else 0

    def _tile(self, start: int, count: int) -> Step:
        step, layer, n = Step(), self.layer, self.n
        size = self._bytes(layer.y)
        pitch = self.channels * size if self.flat or not self.y.on_chip else self.y.pixel
        place = self.out.next()
        if self.y.on_chip:
            place = Ref(self.y.ring, 0, self.y.offset + start * pitch)
        a, a_pitch = self._place("a", layer.x, start, count, step)
        fields: dict[str, int | Ref] = {
            "src": self._source_word(),
            "stage": self._stage_word(step),
            "a_base": a,
            "a_v": a_pitch,
            "v_x": 1,
            "a_n": n * self._bytes(layer.x),
            "x_count": count,
            "n_count": self.blocks,
            "lanes_tail": self._tail(start, count),
            "d_base": place,
            "d_x": pitch,
            "d_n": n * size,
            **layer.fields,
        }
        if layer.other:
            other, other_pitch = self._place(layer.stream, layer.other, start, count, step)
            fields[f"{layer.stream}_base"] = other
            fields[f"{layer.stream}_x"] = other_pitch
            if layer.spread in (Spread.ALL, Spread.CHANNEL):
                fields[f"{layer.stream}_n"] = n * self._bytes(layer.other)
        if self.slots:
            fields |= {"p_base": self.slots.get(0, step), "p_n": 1}
        step.fuse += self._commands(fields, step, start, count)
        if not self.y.on_chip:
            step.stores.append(self._store(place, start, count, size))
        return step

    def _commands(self, fields: dict[str, int | Ref], step: Step, start: int, count: int) -> list[Command]:
        """What is done with a tile: `count` pixels from `start` on."""
        return [self.context.command(Unit.FUSE, **fields)]

    def _tail(self, start: int, count: int) -> int:
        """Lanes of the last block of channels, or of the last row of all."""
        if self.flat:
            return (min(count * self.n, self.total - start * self.n) - 1) % self.n + 1
        return (self.channels - 1) % self.n + 1

    def _store(self, place: Ref, start: int, count: int, size: int) -> Command:
        target = Ref(self.y.ring, 0, self.y.offset)
        if self.flat:
            length = min(count * self.n, self.total - start * self.n) * size
            target, lines = target.plus(start * self.n * size), {"len": length}
        else:
            width = self.channels * size
            target = target.plus(start * self.y.pixel)
            lines = {"len": count * width} if width == self.y.pixel else {
                "len": width, "y_count": count, "src_y": width, "dram_y": self.y.pixel,
            }  # fmt: skip
        return self.context.command(Unit.STORE, dram=target, src=place, **lines)

    def _source_word(self) -> int:
        layer = self.layer
        parts = dict(layer.src)
        if layer.other and layer.stream == "b":
            parts |= {"b_src": BSource.SP, "b_dtype": layer.shapes[layer.other].dtype}
            parts["b_bcast"] = int(layer.spread in (Spread.PIXEL, Spread.SCALAR))
        if layer.drain:
            parts |= {"requant": Requant.SLOT, "rounding": layer.drain.rounding}
        return FUSE_SRC.pack(a_src=1, a_dtype=layer.shapes[layer.x].dtype, **parts)

    def _stage_word(self, step: Step) -> int | Ref:
        layer = self.layer
        parts = layer.stage | {
            "d_dst": 1, "d_dtype": layer.shapes[layer.y].dtype,
            "tail_dim": FUSE_DIMS.index("x" if self.flat else "n"),
        }  # fmt: skip
        if layer.other and layer.stream == "r":
            parts |= {"residual": 1, "r_dtype": layer.shapes[layer.other].dtype}
        if self.table:
            return self.table.word(step, **parts, table=1)
        return FUSE_STAGE.pack(**parts)


def elementwise_steps(context: Context, layer: ElementwiseLayer) -> list[Step]:
    """The steps of an elementwise layer."""
    return ElementwiseSteps(context, layer).steps()
