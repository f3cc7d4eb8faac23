"""Engines of the small test chip that read or write DRAM and record the cycles of their transfers."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from tests.support.sim_pins import read_pins, write_pins

BURST = 16
INCR = 1

COMMAND = {"go": In(1), "now": In(32), "base": In(32), "beats": In(16)}
CONTROL = COMMAND | {"busy": Out(1), "errors": Out(16)}


class Bursts:
    """Splitter of `beats` rows, starting at `base`, into bursts of up to 16 rows on one address channel."""

    def __init__(self, m: Module, engine: wiring.Component, channel: str) -> None:
        names = ("addr", "len", "size", "burst", "valid")
        pin = {name: getattr(engine, f"m_axi_{channel}{name}") for name in names}
        ready = getattr(engine, f"m_axi_{channel}ready")
        row = len(getattr(engine, "m_axi_rdata" if channel == "ar" else "m_axi_wdata")) // 8
        left = Signal(16, name=f"{channel}_left")
        size = Mux(left > BURST, BURST, left)
        self.active = left != 0
        self.fire = pin["valid"] & ready
        m.d.comb += [
            pin["valid"].eq(self.active),
            pin["len"].eq(size - 1),
            pin["size"].eq(row.bit_length() - 1),
            pin["burst"].eq(INCR),
        ]
        with m.If(self.fire):
            m.d.sync += [left.eq(left - size), pin["addr"].eq(pin["addr"] + row * BURST)]
        with m.If(engine.go):
            m.d.sync += [left.eq(engine.beats), pin["addr"].eq(engine.base)]


class ReadTraffic(wiring.Component):
    """Engine that reads rows and sums their first words.

    Members
    -------
    go, base, beats : In
        `go` starts reading `beats` rows from byte address `base`.
    now : In(32)
        Cycle counter that gives the recorded times.
    slow : In(1)
        Accept a beat only in every second cycle.
    busy : Out(1), errors : Out(16), total : Out(32)
        High while rows are outstanding; rows answered with an error; sum of the lowest 32 bits of the rows.
    asked, first, last : Out(32)
        Cycles in which the first address, the first row and the latest row were transferred.
    """

    def __init__(self, n: int) -> None:
        notes = {name: Out(32) for name in ("total", "asked", "first", "last")}
        super().__init__(read_pins(n) | CONTROL | notes | {"slow": In(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        bursts = Bursts(m, self, "ar")
        awaited = Signal(16)
        fire = self.m_axi_rvalid & self.m_axi_rready
        m.d.comb += [self.m_axi_rready.eq(~(self.slow & self.now[0])), self.busy.eq(awaited != 0)]
        with m.If(bursts.fire & (self.asked == 0)):
            m.d.sync += self.asked.eq(self.now)
        with m.If(fire):
            m.d.sync += [
                awaited.eq(awaited - 1),
                self.last.eq(self.now),
                self.total.eq(self.total + self.m_axi_rdata[:32]),
                self.errors.eq(self.errors + self.m_axi_rresp[1]),
            ]
            with m.If(self.first == 0):
                m.d.sync += self.first.eq(self.now)
        with m.If(self.go):
            notes = (self.asked, self.first, self.last, self.total, self.errors)
            m.d.sync += [signal.eq(0) for signal in notes]
            m.d.sync += awaited.eq(self.beats)
        return m


class WriteTraffic(wiring.Component):
    """Engine that writes rows; each 32-bit word of row i is base + i, and `strobe` selects the written bytes of a word.

    Members
    -------
    go, base, beats, now, busy, errors
        Same as in `ReadTraffic`.
    strobe : In(4)
        Mask of the bytes that are written in each word.
    first, last, answered : Out(32)
        Cycles in which the first row, the latest row and the latest response were transferred.
    """

    def __init__(self, n: int) -> None:
        notes = {name: Out(32) for name in ("first", "last", "answered")}
        super().__init__(write_pins(n) | CONTROL | notes | {"strobe": In(4)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        words = len(self.m_axi_wdata) // 32
        bursts = Bursts(m, self, "aw")
        left, index = Signal(16), Signal(16)
        unanswered = Signal(16)
        fire = self.m_axi_wvalid & self.m_axi_wready
        answer = self.m_axi_bvalid & self.m_axi_bready
        m.d.comb += [
            self.m_axi_wvalid.eq(left != 0),
            self.m_axi_bready.eq(1),
            self.m_axi_wdata.eq((self.base + index).as_unsigned()[:32].replicate(words)),
            self.m_axi_wstrb.eq(self.strobe.replicate(words)),
            self.m_axi_wlast.eq((left == 1) | (index[:4] == BURST - 1)),
            self.busy.eq((left != 0) | bursts.active | (unanswered != 0)),
        ]
        m.d.sync += unanswered.eq(unanswered + bursts.fire - answer)
        with m.If(fire):
            m.d.sync += [left.eq(left - 1), index.eq(index + 1), self.last.eq(self.now)]
            with m.If(self.first == 0):
                m.d.sync += self.first.eq(self.now)
        with m.If(answer):
            m.d.sync += [self.answered.eq(self.now), self.errors.eq(self.errors + self.m_axi_bresp[1])]
        with m.If(self.go):
            notes = (self.first, self.last, self.answered, self.errors, index)
            m.d.sync += [signal.eq(0) for signal in notes]
            m.d.sync += left.eq(self.beats)
        return m
