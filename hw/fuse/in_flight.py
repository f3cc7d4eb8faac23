"""Tracking of the commands in the FUSE pipeline."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.layouts import COMMANDS, INDEX_BITS


class InFlightCommands(wiring.Component):
    """Counts the commands in the pipeline and stores their tags.

    Latency: one cycle. Throughput: one command in and one out per cycle.

    Members
    -------
    load : In(1), index : In, tag : In(6)
        `load`: high if a command enters the pipeline; `index`: the next free index, which is assigned to this command;
        `tag`: tag of this command.
    done : In(1)
        High if the oldest command has finished.
    room : Out(1)
        High if another command may enter the pipeline.
    active : Out(1), active_tag : Out(6)
        High if at least one command is in the pipeline; tag of the oldest command.
    """

    load: In(1)
    index: In(INDEX_BITS)
    tag: In(6)
    done: In(1)
    room: Out(1)
    active: Out(1)
    active_tag: Out(6)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        count, oldest = Signal(range(COMMANDS + 1)), Signal(INDEX_BITS)
        m.d.sync += [count.eq(count + self.load - self.done), oldest.eq(oldest + self.done)]
        m.d.comb += [self.room.eq(count != COMMANDS), self.active.eq(count != 0)]
        for number in range(COMMANDS):
            tag = Signal(6, name=f"tag_{number}")
            with m.If(self.load & (self.index == number)):
                m.d.sync += tag.eq(self.tag)
            with m.If(oldest == number):
                m.d.comb += self.active_tag.eq(tag)
        return m
