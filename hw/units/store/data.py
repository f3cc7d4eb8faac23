"""Data path of STORE, which converts scratchpad reads to beats of the write data channel."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import chunk_beats, write_beat
from hw.bus.dma_beats import BeatWalk
from hw.bus.dma_lines import LineWalk, PipelinedLineWalk, walk_layout
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.fifo import StreamFifo
from hw.lib.pipeline import pipeline_register
from hw.lib.skid_buffer import SkidBuffer
from hw.memory.ports import SP_READ_LATENCY, SpReadPort

#: Maximum number of beats in flight from the scratchpad to the bus, sufficient for the latencies of the read and of the
#: buffer.
CREDITS = 8
#: Context of a line: number of bytes minus one, and tag.
CONTEXT = data.StructLayout({"rest": 20, "tag": 6})
_BEAT_CONTEXT = data.StructLayout({"tag": 6, "end": 1})


def data_addresses(config: MlaConfig) -> dict[str, int]:
    """Return the widths of the addresses of the walk; of the DRAM address, only the position within a chunk is used."""
    return {"dram": (config.beat_bytes * chunk_beats(config) - 1).bit_length(), "src": SP_ADDR_BITS}


class StoreData(wiring.Component):
    """Data path that reads and sends the beats of commands whose requests have been offered to the bus.

    A row of n bytes is read per cycle; on a bus of 2 * n bytes, the rows of both halves of a beat are read one after
    the other and sent together.

    Latency: SP_READ_LATENCY + 1 cycles from the last granted read of a beat to the beat. Throughput: one row per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    walk : In(stream)
        Commands, with the layout walk_layout(data_addresses(config), CONTEXT).
    sp_read : Out(SpReadPort)
        Read port of the scratchpad.
    w : Out(stream of write_beat)
        Write data of the bus.
    issued, issued_len : In
        `issued` is high if a request is offered from the next cycle on, or (with `pipelined`) accepted in this cycle;
        `issued_len` is its number of beats minus one.
    blank : In
        Stop reading; send the remaining beats of issued requests with the write strobes deasserted.
    clear : In
        Discard all commands in progress.
    tag : In
        Current tag; beats of commands with another tag wait (unless `blank`).
    next_valid, next_tag : Out
        `next_valid` is high if a beat is available; `next_tag` is its tag.
    kept : Out
        Number of bytes read in the previous cycle.
    sent_end : Out
        High if the last beat of a command is read in this cycle.
    owes : Out
        High while beats of issued requests remain to be sent.
    active : Out
        High while a command or a beat is in progress.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "walk": In(stream.Signature(walk_layout(data_addresses(config), CONTEXT))),
                "sp_read": Out(SpReadPort(config)),
                "w": Out(stream.Signature(write_beat(config))),
                "issued": In(1),
                "issued_len": In(8),
                "blank": In(1),
                "clear": In(1),
                "tag": In(6),
                "next_valid": Out(1),
                "next_tag": Out(6),
                "kept": Out(config.n.bit_length()),
                "sent_end": Out(1),
                "owes": Out(1),
                "active": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        line_walk = config.variant(LineWalk, PipelinedLineWalk)
        m.submodules.lines = lines = line_walk(addresses=data_addresses(config), context=CONTEXT)
        # A refused read delays the beats, but not the walk of the lines, because the combinational path to the walk
        # would be long.
        m.submodules.following = following = SkidBuffer(lines.line.payload.shape())
        m.submodules.beats = beats = BeatWalk(config, _BEAT_CONTEXT, config.n)
        m.submodules.buffer = buffer = StreamFifo(write_beat(config), CREDITS)
        wiring.connect(m, wiring.flipped(self.walk), lines.walk)
        wiring.connect(m, buffer.r, wiring.flipped(self.w))
        wiring.connect(m, lines.line, following.i)
        self._span(m, following, beats)
        beat, port = beats.beat.payload, self.sp_read
        owed, credits = Signal(18), Signal(range(CREDITS + 1), init=CREDITS)
        may, go = Signal(), Signal()
        paired = config.beat_bytes > config.n
        # High if the row is the last one of its beat.
        whole = beat.odd | beat.burst_end if paired else None
        allowed, taken = self._may(m, beats.beat.valid, owed, credits, go, whole)
        # The beat whose read waits in the scratchpad, or that is sent blank without a read.
        blank, strobes, last, granted = Signal(), Signal(config.n), Signal(), Signal()
        m.d.comb += [
            lines.clear.eq(self.clear),
            following.clear.eq(self.clear),
            beats.clear.eq(self.clear),
            may.eq(allowed),
            port.valid.eq(may & ~self.blank & (beat.context.tag == self.tag)),
            port.addr.eq(beat.addr),
            go.eq(may & port.ready & (self.blank | (beat.context.tag == self.tag))),
            granted.eq(blank | (port.waits & port.ready)),
            beats.beat.ready.eq(go),
            self.next_valid.eq(beats.beat.valid),
            self.next_tag.eq(beat.context.tag),
            self.sent_end.eq(go & beat.line_end & beat.context.end),
            self.owes.eq((owed != 0) | (credits != CREDITS)),
            self.active.eq(lines.line.valid | following.o.valid | beats.beat.valid | self.owes),
        ]
        m.d.sync += [
            owed.eq(owed + Mux(self.issued, self.issued_len + 1, 0) - taken),
            credits.eq(credits + (self.w.valid & self.w.ready) - taken),
            self.kept.eq(Mux(go & ~self.blank, beat.bytes, 0)),
            blank.eq(go & self.blank),
        ]
        with m.If(go):
            m.d.sync += [strobes.eq(beat.mask), last.eq(beat.burst_end)]
        odd = Signal()
        if paired:
            with m.If(go):
                m.d.sync += odd.eq(beat.odd)
        valid = granted
        for i in range(SP_READ_LATENCY):
            stage = [
                Signal(config.n, name=f"strobes_{i}"),
                Signal(name=f"last_{i}"),
                Signal(name=f"valid_{i}"),
            ]
            m.d.sync += [stage[0].eq(Mux(self.blank, 0, strobes)), stage[1].eq(last), stage[2].eq(valid)]
            strobes, last, valid = stage
            if paired:
                later = Signal(name=f"odd_{i}")
                m.d.sync += later.eq(odd)
                odd = later
        row, complete = port.data, valid
        if paired:
            row, strobes, complete = self._join(m, valid, odd, strobes, last)
        m.d.comb += [
            buffer.w.valid.eq(complete),
            buffer.w.payload.data.eq(row),
            buffer.w.payload.strb.eq(strobes),
            buffer.w.payload.last.eq(last),
        ]
        return m

    def _join(
        self, m: Module, valid: Signal, odd: Signal, strobes: Signal, last: Signal
    ) -> tuple[Value, Value, Value]:
        """Join the rows of a beat; return its data, its strobes, and a value that is high if it is complete.

        Parameters
        ----------
        m : Module
            Module that the registers are added to.
        valid, odd : Signal
            High if a row has been read; high if it belongs to the second half of its beat.
        strobes, last : Signal
            Strobes of the row; high if it is the last one of its burst.
        """
        n, row = self._config.n, self.sp_read.data
        low, low_strobes, complete = Signal(8 * n), Signal(n), Signal()
        m.d.comb += complete.eq(valid & (odd | last))
        with m.If(complete | self.blank):
            m.d.sync += low_strobes.eq(0)
        with m.Elif(valid):
            m.d.sync += [low.eq(row), low_strobes.eq(strobes)]
        data = Cat(Mux(odd, low, row), row)
        return data, Cat(Mux(odd, low_strobes, strobes), Mux(odd, strobes, 0)), complete

    def _may(
        self, m: Module, valid: Value, owed: Signal, credits: Signal, go: Signal, whole: Value | None
    ) -> tuple[Value, Value]:
        """Return two values: high if the row may be read, and high if a beat is counted as read.

        Parameters
        ----------
        m : Module
            Module that registers are added to.
        valid : Value
            High if there is a row to read.
        owed, credits : Signal
            Number of beats of issued requests that remain to be read, and number of free entries of the buffer.
        go : Signal
            High if the row is read in this cycle.
        whole : Value or None
            High if the row is the last one of its beat; None if each row is a beat.
        """
        return valid & (owed != 0) & (credits != 0), go if whole is None else go & whole

    def _span(self, m: Module, lines: SkidBuffer, beats: BeatWalk) -> None:
        """Compute the position of a line within the beats of the bus."""
        line, span = lines.o.payload, beats.line.payload
        lane_bits = (self._config.n - 1).bit_length()
        offset = line.dram[:lane_bits]
        m.d.comb += [
            beats.line.valid.eq(lines.o.valid),
            lines.o.ready.eq(beats.line.ready),
            span.start.eq(offset),
            span.last.eq(line.context.rest + offset),
            span.addr.eq(line.src - offset),
            span.slot.eq(line.dram[lane_bits:]),
            span.context.tag.eq(line.context.tag),
            span.context.end.eq(line.end),
        ]


class PipelinedStoreData(StoreData):
    """`StoreData` that decides on a read by the state of the previous cycle.

    Throughput: one row every two cycles. Latency, parameters and members are the same as for `StoreData`.
    """

    def _may(
        self, m: Module, valid: Value, owed: Signal, credits: Signal, go: Signal, whole: Value | None
    ) -> tuple[Value, Value]:
        went = pipeline_register(m, "went", go)
        taken = went if whole is None else pipeline_register(m, "went_whole", go & whole)
        return valid & pipeline_register(m, "room", (owed != taken) & (credits != taken)) & ~went, taken
