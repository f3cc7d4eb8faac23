"""The burst requests that cover the lines of a DMA command."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import chunk_beats
from hw.bus.dma_lines import LineWalk, PipelinedLineWalk, walk_layout
from hw.config import MlaConfig
from hw.lib.pipeline import vacancy, vacate

ADDRESSES = {"dram": 32}
#: Context of the walk: number of bytes of a line minus one.
CONTEXT = data.StructLayout({"rest": 20})
#: A request: byte address of its first beat, number of beats minus one, and a flag set in the command's last request.
REQUEST = data.StructLayout({"addr": 32, "len": 8, "end": 1})


class BurstWalk(wiring.Component):
    """Emits the bursts that cover the lines of a command; no burst covers parts of two lines.

    Bursts are split at multiples of `chunk_beats`, so none crosses a 4 KiB boundary, and a line costs at most one
    additional short burst. Latency: 3 cycles to the first request. Throughput: one request per cycle, even if each line
    is a single beat; with `pipelined`, each line takes one more cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    walk : In(stream)
        Commands, with the layout walk_layout(ADDRESSES, CONTEXT).
    request : Out(stream of REQUEST)
        Stream of bursts; an offered burst remains valid until it is accepted, regardless of `allow` and `stop`.
    emits, emitted_len : Out
        High if a burst is offered from the next cycle on; its number of beats minus one.
    allow : In
        High if another request may be offered.
    stop : In
        Discard the commands in progress and accept none.
    active : Out
        High while a request is offered or will be offered.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "walk": In(stream.Signature(walk_layout(ADDRESSES, CONTEXT))),
                "request": Out(stream.Signature(REQUEST)),
                "emits": Out(1),
                "emitted_len": Out(8),
                "allow": In(1),
                "stop": In(1),
                "active": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        late = self._config.pipelined
        lane_bits = (self._config.beat_bytes - 1).bit_length()
        chunk_bits = (chunk_beats(self._config) - 1).bit_length()
        line_walk = self._config.variant(LineWalk, PipelinedLineWalk)
        m.submodules.lines = lines = line_walk(addresses=ADDRESSES, context=CONTEXT)
        wiring.connect(m, wiring.flipped(self.walk), lines.walk)
        line, request = lines.line, self.request
        # The current line: address of its next beat in units of beats, and number of remaining beats minus one.
        valid, end = Signal(), Signal()
        beat, left = Signal(32 - lane_bits), Signal(21 - lane_bits)
        room, size = Signal(chunk_bits), Signal(chunk_bits)
        last_byte = Signal(21)
        fits, emit = Signal(), Signal()
        m.d.comb += [
            lines.clear.eq(self.stop),
            last_byte.eq(line.payload.context.rest + line.payload.dram[:lane_bits]),
            room.eq(~beat[:chunk_bits]),
            fits.eq(left <= room),
            size.eq(Mux(fits, left, room)),
            emit.eq(valid & self.allow & ~self.stop & (~request.valid | request.ready)),
            line.ready.eq(vacancy(valid, emit & fits, late)),
            self.emits.eq(emit),
            self.emitted_len.eq(size),
            self.active.eq(line.valid | valid | request.valid),
        ]
        with m.If(self.stop):
            m.d.sync += valid.eq(0)
        with m.Elif(line.ready):
            m.d.sync += [
                valid.eq(line.valid),
                beat.eq(line.payload.dram[lane_bits:]),
                left.eq(last_byte >> lane_bits),
                end.eq(line.payload.end),
            ]
        with m.Elif(emit):
            m.d.sync += [beat.eq(((beat >> chunk_bits) + 1) << chunk_bits), left.eq(left - room - 1)]
            vacate(m, valid, ~fits, late)
        with m.If(emit):
            m.d.sync += [
                request.valid.eq(1),
                request.payload.addr.eq(beat << lane_bits),
                request.payload.len.eq(size),
                request.payload.end.eq(end & fits),
            ]
        with m.Elif(request.ready):
            m.d.sync += request.valid.eq(0)
        return m
