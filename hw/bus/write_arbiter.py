"""The write half of the AXI master: two masters share AW and W, and B finds its way back by identifier."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, ID_BURST, ID_RESPONSE, RESPONSE, WRITE_MASTERS, write_beat
from hw.bus.axi_choice import AddressChoice
from hw.config import MlaConfig
from hw.memory.stream_fifo import StreamFifo

#: Bursts whose address went out before their data: hides the cycles between AW and the first beat.
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
        m.submodules.order = order = StreamFifo(2, ORDER_DEPTH)
        wiring.connect(m, choice.out, wiring.flipped(self.aw))
        m.d.comb += [
            choice.allow.eq(order.w.ready),
            order.w.valid.eq(choice.chosen),
            order.w.payload.eq(choice.chosen_id),
            order.r.ready.eq(self.w.valid & self.w.ready & self.w.payload.last),
            self.b.ready.eq(1),
        ]
        for i, name in enumerate(WRITE_MASTERS):
            wiring.connect(m, wiring.flipped(getattr(self, f"{name}_aw")), getattr(choice, f"m{i}"))
            beats, answers = getattr(self, f"{name}_w"), getattr(self, f"{name}_b")
            with m.If(order.r.payload == i):
                m.d.comb += [
                    self.w.valid.eq(order.r.valid & beats.valid),
                    self.w.payload.eq(beats.payload),
                    beats.ready.eq(order.r.valid & self.w.ready),
                ]
            m.d.comb += [
                answers.valid.eq(self.b.valid & (self.b.payload.id == i)),
                answers.payload.resp.eq(self.b.payload.resp),
            ]
            with m.If(self.b.payload.id == i):
                m.d.comb += self.b.ready.eq(answers.ready)
        return m
