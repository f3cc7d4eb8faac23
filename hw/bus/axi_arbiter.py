"""Round-robin choice between a few masters' address channels, registered."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, ID_BURST


class AddressChoice(wiring.Component):
    """Merges address channels; the identifier is the master's index.

    Round robin: a master waits for at most one burst of each other, so the one that asks at every cycle
    starves none and a rare one (ring fetch, completion record) is served at once. The chosen burst is
    registered, because a later request must not displace one that the bus has seen. Latency: one cycle.
    Throughput: one burst per cycle.

    Parameters
    ----------
    count : int
        Masters, 2 to 4.

    Members
    -------
    m{i} : In(stream of BURST)
        Master i.
    out : Out(stream of ID_BURST)
        The bus.
    allow : In
        A burst may be chosen.
    chosen, chosen_id : Out
        One is chosen in this cycle, and whose.
    """

    def __init__(self, count: int):
        self._count = count
        super().__init__(
            {
                **{f"m{i}": In(stream.Signature(BURST)) for i in range(count)},
                "out": Out(stream.Signature(ID_BURST)),
                "allow": In(1, init=1),
                "chosen": Out(1),
                "chosen_id": Out(2),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        masters = [getattr(self, f"m{i}") for i in range(self._count)]
        last = Signal(2)
        free = Signal()
        m.d.comb += [
            free.eq((~self.out.valid | self.out.ready) & self.allow),
            self.chosen.eq(free & Cat(port.valid for port in masters).any()),
        ]
        with m.Switch(last):
            for turn in range(self._count):
                with m.Case(turn):
                    order = [(turn + 1 + i) % self._count for i in range(self._count)]
                    for i in reversed(order):  # the last assignment wins: the one whose turn is next
                        with m.If(masters[i].valid):
                            m.d.comb += self.chosen_id.eq(i)
        for i, port in enumerate(masters):
            m.d.comb += port.ready.eq(self.chosen & (self.chosen_id == i))
        with m.If(self.chosen):
            m.d.sync += [
                self.out.valid.eq(1),
                last.eq(self.chosen_id),
                self.out.payload.id.eq(self.chosen_id),
            ]
            with m.Switch(self.chosen_id):
                for i, port in enumerate(masters):
                    with m.Case(i):
                        m.d.sync += [
                            self.out.payload.addr.eq(port.payload.addr),
                            self.out.payload.len.eq(port.payload.len),
                        ]
        with m.Elif(self.out.ready):
            m.d.sync += self.out.valid.eq(0)
        return m
