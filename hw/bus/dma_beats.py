"""The beats, or the rows within beats, of a DMA command's lines, in the order in which the bus carries them."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, ShapeLike, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import chunk_beats
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.pipeline import vacancy, vacate


def span_layout(config: MlaConfig, context: ShapeLike, width: int) -> data.StructLayout:
    """Return the layout of a line at the input of BeatWalk, which splits it into parts of `width` bytes.

    `start`: position of the line's first byte within the first part. `last`: position of the line's last byte, counted
    from byte 0 of the first part. `addr`: scratchpad address of byte 0 of the first part. `slot`: index of the first
    part within its chunk of `chunk_beats` beats.
    """
    chunk = chunk_beats(config) * config.beat_bytes // width
    return data.StructLayout(
        {
            "start": (width - 1).bit_length(),
            "last": 21,
            "addr": SP_ADDR_BITS,
            "slot": (chunk - 1).bit_length(),
            "context": context,
        }
    )


def beat_layout(config: MlaConfig, context: ShapeLike, width: int) -> data.StructLayout:
    """Return the layout of a part: scratchpad address of its byte 0, mask of its bytes that belong to the line, and
    flags for the first and the last part of the line and for the last part of a burst. If a beat has several parts,
    `odd` is set in the second of them.
    """
    return data.StructLayout(
        {
            "addr": SP_ADDR_BITS,
            "mask": width,
            "bytes": width.bit_length(),
            "first": 1,
            "line_end": 1,
            "burst_end": 1,
            **({"odd": 1} if width < config.beat_bytes else {}),
            "context": context,
        }
    )


class BeatWalk(wiring.Component):
    """Splits each line into beats, or into parts of beats.

    Latency: one cycle. Throughput: one part per cycle without a gap between lines (with `pipelined`, with a gap of one
    cycle).

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    context : ShapeLike
        Layout of the data that each part copies from its line.
    width : int
        Number of bytes of a part: those of a beat, or a half of them. Parts begin at multiples of this number in DRAM.

    Members
    -------
    line : In(stream of span_layout)
        Lines to split.
    beat : Out(stream of beat_layout)
        Parts of the lines, in order.
    clear : In
        Discard the current line.
    """

    def __init__(self, config: MlaConfig, context: ShapeLike, width: int):
        self._config, self._width = config, width
        super().__init__(
            {
                "line": In(stream.Signature(span_layout(config, context, width))),
                "beat": Out(stream.Signature(beat_layout(config, context, width))),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self._width
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
        if n < self._config.beat_bytes:
            m.d.comb += beat.odd.eq(held.slot[0])
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
