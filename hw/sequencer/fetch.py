"""First stage of the sequencer core: instruction addresses."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.layouts import PC_BITS
from hw.sequencer.layouts import COUNTER_BITS


class Fetch(wiring.Component):
    """Fetches consecutive words; continues at the start of a hardware loop after its end, and at the target after a
    redirect.

    Latency: the store's data are valid one cycle after the address and held while `fetch_en` is low.
    Throughput: one instruction a cycle.

    Members
    -------
    redirect, target : In
        Discard the fetched word and fetch from `target` in this cycle.
    stop : In
        Discard the fetched word.
    loop_back, loop_start : In
        Flag that the instruction after `pc` is the start of a loop, and its address.
    step : Out
        The word after `pc`, or the word at `target`, is being fetched.
    fetch_addr, fetch_en : Out
        Read port of the instruction store.
    valid, pc : Out
        Flag that the store's data are the instruction at `pc`.
    take : In
        The next stage accepts the instruction; only while `valid`.
    """

    redirect: In(1)
    target: In(COUNTER_BITS)
    stop: In(1)
    loop_back: In(1)
    loop_start: In(COUNTER_BITS)
    step: Out(1)
    fetch_addr: Out(PC_BITS)
    fetch_en: Out(1)
    valid: Out(1)
    pc: Out(COUNTER_BITS)
    take: In(1)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        following, chosen = Signal(COUNTER_BITS), Signal(COUNTER_BITS)
        m.d.comb += [
            following.eq(Mux(self.loop_back, self.loop_start, self.pc + 1)),
            chosen.eq(Mux(self.redirect, self.target, following)),
            self.step.eq(self.take),
            self.fetch_addr.eq(chosen),
            self.fetch_en.eq(self.redirect | self.take),
        ]
        fetched = self._make_fetched()
        with m.If(self.fetch_en):
            m.d.sync += [fetched.eq(1), self.pc.eq(chosen)]
        with m.If(self.stop):
            m.d.sync += fetched.eq(0)
        self._validate(m, fetched)
        return m

    def _make_fetched(self) -> Signal:
        """Return the signal that is set while the store's data are the instruction at `pc`."""
        return self.valid

    def _validate(self, m: Module, fetched: Signal) -> None:
        """Drive `valid` from `fetched` if they are not the same signal."""


class PipelinedFetch(Fetch):
    """`Fetch` that takes two cycles, in which the word is valid, to decide its successor.

    Latency: that of `Fetch`, but `valid` is set two cycles later. Throughput: one instruction in three cycles.
    Members are those of `Fetch`.
    """

    def _make_fetched(self) -> Signal:
        return Signal()

    def _validate(self, m: Module, fetched: Signal) -> None:
        stands, stood = fetched & ~self.fetch_en & ~self.stop, Signal()
        m.d.sync += [stood.eq(stands), self.valid.eq(stands & stood)]
