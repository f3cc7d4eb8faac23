"""Tracking of the commands in the FUSE pipeline."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.layouts import COMMANDS, INDEX_BITS


class InFlightCommands(wiring.Component):
    """Counts the commands in the pipeline, and stores their tags and which of them leave it early.

    Results are written in order, so a command may leave early only while no other command takes all steps.

    Latency: one cycle. Throughput: one command in and one out per cycle.

    Members
    -------
    load : In(1), index : In, tag : In(6)
        `load`: high if a command enters the pipeline; `index`: the next free index, which is assigned to this command;
        `tag`: tag of this command.
    early : In(1)
        Valid with `load`: high if the command leaves the pipeline early.
    written : In(1)
        High if the results of the oldest command whose results were not written are written.
    done : In(1)
        High if the oldest command has finished.
    may_leave : Out(1)
        High if a command that enters the pipeline may leave it early.
    room : Out(1)
        High if another command may enter the pipeline.
    active : Out(1), active_tag : Out(6)
        High if at least one command is in the pipeline; tag of the oldest command.
    """

    load: In(1)
    index: In(INDEX_BITS)
    tag: In(6)
    early: In(1)
    written: In(1)
    done: In(1)
    may_leave: Out(1)
    room: Out(1)
    active: Out(1)
    active_tag: Out(6)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        count, oldest = Signal(range(COMMANDS + 1)), Signal(INDEX_BITS)
        m.d.sync += [count.eq(count + self.load - self.done), oldest.eq(oldest + self.done)]
        m.d.comb += [self.room.eq(count != COMMANDS), self.active.eq(count != 0)]
        unwritten, whole = Signal(INDEX_BITS), Signal(COMMANDS)
        m.d.sync += unwritten.eq(unwritten + self.written)
        m.d.comb += self.may_leave.eq(whole == 0)
        with m.If(self.written):
            m.d.sync += whole.bit_select(unwritten, 1).eq(0)
        with m.If(self.load):
            m.d.sync += whole.bit_select(self.index, 1).eq(~self.early)
        for number in range(COMMANDS):
            tag = Signal(6, name=f"tag_{number}")
            with m.If(self.load & (self.index == number)):
                m.d.sync += tag.eq(self.tag)
            with m.If(oldest == number):
                m.d.comb += self.active_tag.eq(tag)
        return m
