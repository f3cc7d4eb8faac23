"""The write half of the AXI master: two masters share AW and W, and B finds its way back by identifier."""

from amaranth.hdl import Elaboratable, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, ID_BURST, ID_RESPONSE, RESPONSE, WRITE_MASTERS, write_beat
from hw.bus.axi_arbiter import AddressChoice
from hw.config import MlaConfig
from hw.lib.stream_fifo import StreamFifo

#: Bursts whose address went out before the one whose data go out: hides the cycles between AW and the first beat.
ORDER_DEPTH = 16


class WriteArbiter(wiring.Component):
    """Shares the write channels between STORE and the writer of completion records.

    Round robin on AW (see AddressChoice). The beats of W follow in the order of the bursts on AW, also for a
    bus that takes the data before the address: a burst's turn on W comes as soon as it is offered on AW. A
    master must deliver the beats of its bursts in their order and without waiting for another master.
    Latency: one cycle on AW, none on W and B. Throughput: one burst, one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Sizes.

    Members
    -------
    {name}_aw : In(stream of BURST), {name}_w : In(stream of write_beat), {name}_b : Out(stream of RESPONSE)
        Master `name` of hw.bus.axi.WRITE_MASTERS; its index is its identifier.
    aw : Out(stream of ID_BURST), w : Out(stream of write_beat), b : In(stream of ID_RESPONSE)
        The bus. An answer with another identifier is taken and dropped.
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
        m.submodules.choice = choice = AddressChoice(len(WRITE_MASTERS))
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

    def _turns(self, m: Module, choice: AddressChoice) -> tuple[Value, Value]:
        """Whether a burst's data are on their turn on W, and whose: registers, because the grant goes deep into
        the masters. The bursts behind it wait in a buffer.
        """
        m.submodules.order = order = StreamFifo(2, ORDER_DEPTH)
        turn, turn_id, free, room = Signal(), Signal(2), Signal(), Signal()
        # Of the cycle before: at most one burst has come in since.
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
