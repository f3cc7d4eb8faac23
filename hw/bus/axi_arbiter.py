"""Registered round-robin arbiters of the AXI master: for an address channel, for all reads, and for all writes."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import (
    BURST,
    ID_BURST,
    ID_RESPONSE,
    READ_MASTERS,
    RESPONSE,
    WRITE_MASTERS,
    id_read_beat,
    read_beat,
    write_beat,
)
from hw.config import MlaConfig
from hw.lib.fifo import StreamFifo


class AddressArbiter(wiring.Component):
    """Merges the address channels of several masters; the identifier of a burst is the index of its master.

    With round robin, a master waits for at most one burst of each other master. A master that requests in every cycle
    therefore starves no other master, and a rare request (ring fetch, completion record) is served without a long
    delay. The chosen burst is registered, because a later request must not replace a burst that the bus has observed.
    Latency: one cycle. Throughput: one burst per cycle.

    Parameters
    ----------
    count : int
        Number of masters, 2 to 4.

    Members
    -------
    m{i} : In(stream of BURST)
        Bursts requested by master i.
    out : Out(stream of ID_BURST)
        Address channel of the bus.
    allow : In
        High if a burst may be chosen.
    chosen, chosen_id : Out
        High if a burst is chosen in this cycle; index of its master.
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
                    for i in reversed(order):  # the next master in turn is assigned last, with priority
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


class ReadArbiter(wiring.Component):
    """Shares the read channels between LOAD, the ring fetch and the loader of the instruction store.

    AR is arbitrated round robin (see AddressArbiter), so that the ring fetch, whose latency matters, never waits for
    more than two bursts, and LOAD is granted at least every third burst. Latency: one cycle on AR, none on R.
    Throughput: one burst and one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    {name}_ar : In(stream of BURST), {name}_r : Out(stream of read_beat)
        Channels of master `name`, whose identifier is its index in hw.bus.axi.READ_MASTERS.
    ar : Out(stream of ID_BURST), r : In(stream of id_read_beat)
        Read channels of the bus. A beat with any other identifier is accepted and discarded.
    """

    def __init__(self, config: MlaConfig):
        beat = read_beat(config)
        super().__init__(
            {
                **{f"{name}_ar": In(stream.Signature(BURST)) for name in READ_MASTERS},
                **{f"{name}_r": Out(stream.Signature(beat)) for name in READ_MASTERS},
                "ar": Out(stream.Signature(ID_BURST)),
                "r": In(stream.Signature(id_read_beat(config))),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.choice = choice = AddressArbiter(len(READ_MASTERS))
        wiring.connect(m, choice.out, wiring.flipped(self.ar))
        m.d.comb += self.r.ready.eq(1)
        for i, name in enumerate(READ_MASTERS):
            wiring.connect(m, wiring.flipped(getattr(self, f"{name}_ar")), getattr(choice, f"m{i}"))
            beats = getattr(self, f"{name}_r")
            m.d.comb += [
                beats.valid.eq(self.r.valid & (self.r.payload.id == i)),
                beats.payload.eq(self.r.payload.as_value()[: len(beats.payload.as_value())]),
            ]
            with m.If(self.r.payload.id == i):
                m.d.comb += self.r.ready.eq(beats.ready)
        return m


#: Maximum number of bursts whose address is sent ahead of the data; this hides the cycles between AW and the first
#: beat.
ORDER_DEPTH = 16


class WriteArbiter(wiring.Component):
    """Shares the write channels between STORE and the writer of completion records.

    AW is arbitrated round robin (see AddressArbiter). The beats of W are sent in the order of the bursts on AW. The
    beats of a burst may be sent as soon as the burst is offered on AW, because a bus may accept the data before the
    address. A master must deliver the beats of its bursts in order and must not wait for another master. Latency: one
    cycle on AW, none on W and B. Throughput: one burst and one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    {name}_aw : In(stream of BURST), {name}_w : In(stream of write_beat), {name}_b : Out(stream of RESPONSE)
        Channels of master `name`, whose identifier is its index in hw.bus.axi.WRITE_MASTERS.
    aw : Out(stream of ID_BURST), w : Out(stream of write_beat), b : In(stream of ID_RESPONSE)
        Write channels of the bus. A response with any other identifier is accepted and discarded.
    """

    def __init__(self, config: MlaConfig):
        beat = write_beat(config)
        super().__init__(
            {
                **{f"{name}_aw": In(stream.Signature(BURST)) for name in WRITE_MASTERS},
                **{f"{name}_w": In(stream.Signature(beat)) for name in WRITE_MASTERS},
                **{f"{name}_b": Out(stream.Signature(RESPONSE)) for name in WRITE_MASTERS},
                "aw": Out(stream.Signature(ID_BURST)),
                "w": Out(stream.Signature(beat)),
                "b": In(stream.Signature(ID_RESPONSE)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.choice = choice = AddressArbiter(len(WRITE_MASTERS))
        wiring.connect(m, choice.out, wiring.flipped(self.aw))
        turn, turn_id = self._turns(m, choice)
        m.d.comb += self.b.ready.eq(1)
        for i, name in enumerate(WRITE_MASTERS):
            wiring.connect(m, wiring.flipped(getattr(self, f"{name}_aw")), getattr(choice, f"m{i}"))
            beats, answers = getattr(self, f"{name}_w"), getattr(self, f"{name}_b")
            with m.If(turn_id == i):
                m.d.comb += [
                    self.w.valid.eq(turn & beats.valid),
                    self.w.payload.eq(beats.payload),
                    beats.ready.eq(turn & self.w.ready),
                ]
            m.d.comb += [
                answers.valid.eq(self.b.valid & (self.b.payload.id == i)),
                answers.payload.resp.eq(self.b.payload.resp),
            ]
            with m.If(self.b.payload.id == i):
                m.d.comb += self.b.ready.eq(answers.ready)
        return m

    def _turns(self, m: Module, choice: AddressArbiter) -> tuple[Value, Value]:
        """Return the grant of the W channel: a valid flag, and the index of the master whose data are next. Both are
        registers, because the timing paths from the grant through the masters are long. Later bursts wait in a buffer.
        """
        m.submodules.order = order = StreamFifo(2, ORDER_DEPTH)
        turn, turn_id, free, room = Signal(), Signal(2), Signal(), Signal()
        # This is the level of the previous cycle; at most one burst has been added since then.
        m.d.sync += room.eq(order.level < ORDER_DEPTH - 1)
        m.d.comb += [
            choice.allow.eq(room),
            free.eq(~turn | (self.w.valid & self.w.ready & self.w.payload.last)),
            order.r.ready.eq(free),
            order.w.valid.eq(choice.chosen & ~(free & ~order.r.valid)),
            order.w.payload.eq(choice.chosen_id),
        ]
        with m.If(free):
            m.d.sync += turn.eq(order.r.valid | choice.chosen)
            with m.If(order.r.valid):
                m.d.sync += turn_id.eq(order.r.payload)
            with m.Else():
                m.d.sync += turn_id.eq(choice.chosen_id)
        return turn, turn_id
