"""Call stack of the sequencer."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.sequencer.layouts import return_layout


class CallStack(wiring.Component):
    """Stack of the running program's callers; the innermost caller is always visible.

    Latency: a push or pop is visible in the next cycle. Throughput: one push or pop per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `call_depth`, the capacity in calls.

    Members
    -------
    clear : In
        Remove all callers from the stack.
    push, entry : In
        Push `entry`, the state of a caller.
    pop : In
        Remove the innermost caller.
    top : Out
        State of the innermost caller.
    empty, full : Out
        `empty` is high if the stack is empty, `full` if it is full.
    in_use : Out
        Mask of the segments of all callers.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        layout = return_layout(config)
        super().__init__(
            {
                "clear": In(1),
                "push": In(1),
                "entry": In(layout),
                "pop": In(1),
                "top": Out(layout),
                "empty": Out(1),
                "full": Out(1),
                "in_use": Out(config.segments),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        depth, segments = self.config.call_depth, self.config.segments
        entries = [Signal(return_layout(self.config), name=f"entry{i}") for i in range(depth)]
        used = Signal(depth)
        for i, entry in enumerate(entries):
            with m.If(self.push):
                m.d.sync += entry.eq(entries[i - 1] if i else self.entry)
            if i < depth - 1:
                with m.Elif(self.pop):
                    m.d.sync += entry.eq(entries[i + 1])
        with m.If(self.clear):
            m.d.sync += used.eq(0)
        with m.Elif(self.push):
            m.d.sync += used.eq(Cat(1, used[:-1]))
        with m.Elif(self.pop):
            m.d.sync += used.eq(used >> 1)
        mask = Signal(segments)
        for i, entry in enumerate(entries):
            one = Signal(segments, name=f"segment{i}")
            m.d.comb += one.eq(Mux(used[i], 1 << entry.frame.segment[: (segments - 1).bit_length()], 0))
            mask_next = Signal(segments, name=f"mask{i}")
            m.d.comb += mask_next.eq(one | (mask if i else 0))
            mask = mask_next
        m.d.comb += [
            self.top.eq(entries[0]),
            self.empty.eq(~used[0]),
            self.full.eq(used[-1]),
            self.in_use.eq(mask),
        ]
        return m
