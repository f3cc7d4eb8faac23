"""The read half of the AXI master: three masters share AR, and R finds its way back by identifier."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, ID_BURST, READ_MASTERS, id_read_beat, read_beat
from hw.bus.axi_arbiter import AddressChoice
from hw.config import MlaConfig


class ReadArbiter(wiring.Component):
    """Shares the read channels between LOAD, the ring fetch and the loader of the instruction store.

    Round robin on AR (see AddressChoice): the ring fetch, whose latency matters, never waits for more than
    two bursts, and LOAD keeps at least every third. Latency: one cycle on AR, none on R. Throughput: one
    burst, one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Sizes.

    Members
    -------
    {name}_ar : In(stream of BURST), {name}_r : Out(stream of read_beat)
        Master `name` of hw.bus.axi.READ_MASTERS; its index is its identifier.
    ar : Out(stream of ID_BURST), r : In(stream of id_read_beat)
        The bus. A beat with another identifier is taken and dropped.
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
        m.submodules.choice = choice = AddressChoice(len(READ_MASTERS))
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
