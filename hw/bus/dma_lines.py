"""The lines of a DMA command: two nested loops, y inside z, that advance several addresses in parallel."""

from amaranth.hdl import Elaboratable, Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.lib.pipeline import vacancy


def walk_layout(addresses: dict[str, int], context: ShapeLike) -> data.StructLayout:
    """Return the layout of the payload that starts a LineWalk: loop counts, and each address's base and strides."""
    members: dict = {"y_count": 16, "z_count": 16}
    for name, width in addresses.items():
        members |= {name: width, f"{name}_y": width, f"{name}_z": width}
    return data.StructLayout(members | {"context": context})


def line_layout(addresses: dict[str, int], context: ShapeLike) -> data.StructLayout:
    """Return the layout of a line: its addresses, flags for the last line of a plane and of the walk, and the walk's
    context.
    """
    return data.StructLayout({**addresses, "plane_end": 1, "end": 1, "context": context})


class LineWalk(wiring.Component):
    """Emits the lines of z_count planes, each of which has y_count lines.

    Latency: the first line is valid one cycle after the walk has been accepted. Throughput: one line per cycle;
    the next walk is accepted in the cycle of the last line, so walks follow each other without a gap.

    Parameters
    ----------
    addresses : dict of str to int
        Width in bits of each address, by name; all addresses advance in the same step and wrap at their width.
    context : ShapeLike
        Layout of the data that each line copies from its walk.

    Members
    -------
    walk : In(stream of walk_layout)
        Walks to split into lines.
    line : Out(stream of line_layout)
        Lines of the walks, in order.
    clear : In
        Discard the walk in progress and accept none.
    """

    def __init__(self, *, addresses: dict[str, int], context: ShapeLike):
        self._addresses = addresses
        super().__init__(
            {
                "walk": In(stream.Signature(walk_layout(addresses, context))),
                "line": Out(stream.Signature(line_layout(addresses, context))),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        walk, line = self.walk.payload, self.line.payload
        active, step, load = Signal(), Signal(), Signal()
        y_left, z_left, y_count = Signal(16), Signal(16), Signal(16)
        last_y, last_z = self._last(y_left, z_left)
        m.d.comb += [
            self.line.valid.eq(active),
            line.plane_end.eq(last_y),
            line.end.eq(last_y & last_z),
            step.eq(active & self.line.ready),
            self.walk.ready.eq(~self.clear & self._vacancy(active, step & line.end)),
            load.eq(self.walk.valid & self.walk.ready),
        ]
        with m.If(load):
            m.d.sync += [
                active.eq(1),
                y_left.eq(walk.y_count),
                z_left.eq(walk.z_count),
                y_count.eq(walk.y_count),
                line.context.eq(walk.context),
            ]
        with m.Elif(self.clear | (step & line.end)):
            m.d.sync += active.eq(0)
        with m.Elif(step):
            m.d.sync += [
                y_left.eq(Mux(line.plane_end, y_count, y_left - 1)),
                z_left.eq(z_left - line.plane_end),
            ]
        self._find_last(m, load, step, (y_left, z_left), (last_y, last_z))
        for name, width in self._addresses.items():
            plane, y_step, z_step = (
                Signal(width, name=f"{name}_{part}") for part in ("plane", "y_step", "z_step")
            )
            following = Signal(width, name=f"{name}_next")
            m.d.comb += following.eq(
                Mux(line.plane_end, plane, line[name]) + Mux(line.plane_end, z_step, y_step)
            )
            with m.If(load):
                m.d.sync += [
                    line[name].eq(walk[name]),
                    plane.eq(walk[name]),
                    y_step.eq(walk[f"{name}_y"]),
                    z_step.eq(walk[f"{name}_z"]),
                ]
            with m.Elif(step):
                m.d.sync += line[name].eq(following)
                with m.If(line.plane_end):
                    m.d.sync += plane.eq(following)
        return m

    def _last(self, y_left: Signal, z_left: Signal) -> tuple[Value, Value]:
        """Return two values: high in the last line of a plane, and high in the last plane of the walk."""
        return y_left == 1, z_left == 1

    def _vacancy(self, active: Signal, ends: Value) -> Value:
        """Return a value that is high if the next walk can be accepted."""
        return vacancy(active, ends, 0)

    def _find_last(
        self, m: Module, load: Signal, step: Signal, left: tuple[Signal, ...], last: tuple[Value, ...]
    ) -> None:
        """Drive the results of `_last` if they are registers."""


class PipelinedLineWalk(LineWalk):
    """`LineWalk` in which registers determine the end of a plane, the end of a walk and the acceptance of a walk.

    Latency: as for `LineWalk`. Throughput: one line per cycle; the next walk is accepted a cycle after the last line.
    Parameters and members are those of `LineWalk`.
    """

    def _last(self, y_left: Signal, z_left: Signal) -> tuple[Value, Value]:
        return Signal(), Signal()

    def _vacancy(self, active: Signal, ends: Value) -> Value:
        return vacancy(active, ends, 1)

    def _find_last(
        self, m: Module, load: Signal, step: Signal, left: tuple[Signal, ...], last: tuple[Value, ...]
    ) -> None:
        walk, single = self.walk.payload, Signal()
        with m.If(load):
            m.d.sync += [
                single.eq(walk.y_count == 1),
                last[0].eq(walk.y_count == 1),
                last[1].eq(walk.z_count == 1),
            ]
        with m.Elif(step):
            m.d.sync += last[0].eq(Mux(last[0], single, left[0] == 2))
            with m.If(last[0]):
                m.d.sync += last[1].eq(left[1] == 2)
