"""Storage for the controls of one stage, for all commands in the pipeline."""

from amaranth.hdl import Elaboratable, Module, Shape, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.layouts import COMMANDS, INDEX_BITS
from hw.lib.ram import Ram


class ControlStore(wiring.Component):
    """Stores the controls of one stage for every command in the pipeline; the index that travels with a beat selects a
    command.

    Latency: combinational read; a write is visible in the next cycle. Throughput: one read and one write per cycle.

    Parameters
    ----------
    layout : data.StructLayout
        Layout of the stored controls.

    Members
    -------
    write, w_index, w_data : In
        Write port for the controls of a command that enters the pipeline.
    index : In(2)
        Index of the command to look up.
    data : Out(layout)
        Controls of the command `index`.
    """

    def __init__(self, layout: data.StructLayout):
        self._layout = layout
        super().__init__(
            {
                "write": In(1),
                "w_index": In(INDEX_BITS),
                "w_data": In(layout),
                "index": In(INDEX_BITS),
                "data": Out(layout),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        width = Shape.cast(self._layout).width
        m.submodules.ram = ram = Ram(width=width, depth=COMMANDS, comb=True)
        m.d.comb += [
            ram.w_addr.eq(self.w_index),
            ram.w_data.eq(self.w_data.as_value()),
            ram.w_en.eq(self.write),
            ram.r0_addr.eq(self.index),
            self.data.as_value().eq(ram.r0_data),
        ]
        return m


def fetch(m: Module, name: str, source: data.View, names: tuple[str, ...], index: Value) -> data.View:
    """Store the named controls of `source` (a view of `control_write`) in a separate memory, and return the controls of
    command `index`.
    """
    members = source.control.shape().members
    layout = data.StructLayout({n: members[n] for n in names})
    m.submodules[f"{name}_controls"] = store = ControlStore(layout)
    m.d.comb += [store.write.eq(source.write), store.w_index.eq(source.index), store.index.eq(index)]
    m.d.comb += [store.w_data[n].eq(source.control[n]) for n in names]
    found = Signal(layout, name=f"{name}_control")
    m.d.comb += found.eq(store.data)
    return found
