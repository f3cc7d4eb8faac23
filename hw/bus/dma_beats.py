"""The beats of a DMA command's lines, in the order in which the bus carries them."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, ShapeLike, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import chunk_beats
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.pipeline import vacancy, vacate


def span_layout(config: MlaConfig, context: ShapeLike) -> data.StructLayout:
    """Return the layout of a line at the input of BeatWalk.

    `start`: position of the line's first byte within the first beat. `last`: position of the line's last byte, counted
    from byte 0 of the first beat. `addr`: scratchpad address of byte 0 of the first beat. `slot`: index of the first
    beat within its chunk of `chunk_beats` beats.
    """
    return data.StructLayout(
        {
            "start": (config.n - 1).bit_length(),
            "last": 21,
            "addr": SP_ADDR_BITS,
            "slot": (chunk_beats(config) - 1).bit_length(),
            "context": context,
        }
    )


def beat_layout(config: MlaConfig, context: ShapeLike) -> data.StructLayout:
    """Return the layout of a beat: scratchpad address of its byte 0, mask of its bytes that belong to the line, and
    flags for the first and the last beat of the line.
    """
    return data.StructLayout(
        {
            "addr": SP_ADDR_BITS,
            "mask": config.n,
            "bytes": config.n.bit_length(),
            "first": 1,
            "line_end": 1,
            "burst_end": 1,
            "context": context,
        }
    )


class BeatWalk(wiring.Component):
    """Splits each line into beats.

    Latency: one cycle. Throughput: one beat per cycle without a gap between lines (with `pipelined`, with a gap of one
    cycle).

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    context : ShapeLike
        Layout of the data that each beat copies from its line.

    Members
    -------
    line : In(stream of span_layout)
        Lines to split into beats.
    beat : Out(stream of beat_layout)
        Beats of the lines, in order.
    clear : In
        Discard the current line.
    """

    def __init__(self, config: MlaConfig, context: ShapeLike):
        self._config = config
        super().__init__(
            {
                "line": In(stream.Signature(span_layout(config, context))),
                "beat": Out(stream.Signature(beat_layout(config, context))),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self._config.n
        lane_bits = (n - 1).bit_length()
        line, beat = self.line.payload, self.beat.payload
        late = self._config.pipelined
        valid = Signal()
        held = Signal(self.line.payload.shape())
        first, stop = Signal(), Signal(lane_bits)
        m.d.comb += [
            self.beat.valid.eq(valid),
            beat.line_end.eq(held.last[lane_bits:] == 0),
            stop.eq(Mux(beat.line_end, held.last[:lane_bits], n - 1)),
            beat.addr.eq(held.addr),
            beat.first.eq(first),
            beat.context.eq(held.context),
            beat.mask.eq(Cat((held.start <= i) & (stop >= i) for i in range(n))),
            beat.bytes.eq(stop - held.start + 1),
            beat.burst_end.eq(beat.line_end | held.slot.all()),
            self.line.ready.eq(vacancy(valid, self.beat.ready & beat.line_end, late)),
        ]
        with m.If(self.clear):
            m.d.sync += valid.eq(0)
        with m.Elif(self.line.ready):
            m.d.sync += [valid.eq(self.line.valid), held.eq(line), first.eq(1)]
        with m.Elif(self.beat.ready):
            vacate(m, valid, ~beat.line_end, late)
            m.d.sync += [
                first.eq(0),
                held.start.eq(0),
                held.slot.eq(held.slot + 1),
                held.last.eq(held.last - n),
                held.addr.eq(held.addr + n),
            ]
        return m
