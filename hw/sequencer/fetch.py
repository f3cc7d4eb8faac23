"""First stage of the sequencer core, which generates instruction addresses."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.layouts import PC_BITS
from hw.sequencer.layouts import COUNTER_BITS


class Fetch(wiring.Component):
    """Fetch stage, which reads the words of a program in the order of execution.

    After the last word of a hardware loop it continues at the start of the loop, and after a redirect at the target.

    Latency: the store's data are valid one cycle after the address and held while `fetch_en` is low. Throughput: one
    instruction per cycle.

    Members
    -------
    redirect, target : In
        Discard the fetched word and fetch from `target` in this cycle.
    stop : In
        Discard the fetched word.
    loop_back, loop_start : In
        `loop_back` is high if the instruction after `pc` is the start of a loop; `loop_start` is the address of this
        start.
    step : Out
        High if the next stage accepts the instruction, so that the word after it is being fetched.
    fetch_addr, fetch_en : Out
        Read port of the instruction store.
    valid, pc : Out
        `valid` is high if the store's data are the instruction at address `pc`.
    take : In
        High if the next stage accepts the instruction; high only while `valid` is high.
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
        """Return the signal that is high while the store's data are the instruction at `pc`."""
        return self.valid

    def _validate(self, m: Module, fetched: Signal) -> None:
        """Drive `valid` from `fetched` if `fetched` is a separate signal."""


class PipelinedFetch(Fetch):
    """`Fetch` that takes two more cycles, in which the loop stack determines the successor of the fetched word.

    Latency: `valid` is high two cycles later than in `Fetch`. Throughput: one instruction every three cycles. Members
    are the same as for `Fetch`.
    """

    def _make_fetched(self) -> Signal:
        return Signal()

    def _validate(self, m: Module, fetched: Signal) -> None:
        stands, stood = fetched & ~self.fetch_en & ~self.stop, Signal()
        m.d.sync += [stood.eq(stands), self.valid.eq(stands & stood)]
