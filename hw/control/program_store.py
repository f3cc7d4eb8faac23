"""Instruction store with its segments, and arbitration between writes, loads, checks and execution of segments."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, read_beat
from hw.config import MlaConfig
from hw.control.layouts import IN_USE_TRAP_LAYOUT, SEGMENT_OP_LAYOUT, LoaderError
from hw.control.loader import Loader
from hw.control.loader_status import LoaderStatus
from hw.control.segment_host import SegmentHost
from hw.control.segment_table import SegmentTable
from hw.layouts import SEGMENT_LAYOUT
from hw.lib.pipeline import pipeline_domain
from hw.memory.instruction_store import WIS_ADDR_BITS, InstructionStore


class ProgramStore(wiring.Component):
    """Connects the instruction store, the segment table, the host's operations and the loader.

    Latency: a fetch takes 1 cycle; look-ups are combinational. Throughput: one fetch per cycle, regardless of the host
    and the loader.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `wis_words`, `segments`, `n`.

    Members
    -------
    fetch_addr, fetch_en : In, fetch_data : Out
        Read port for the core's instruction fetches.
    core_index, dispatch_index : In, core_info, dispatch_info : Out
        Look-up ports of the segment table, for core and dispatch.
    in_use : In
        Mask of the segments of the running program and its callers.
    claim, claim_segment : In
        High if dispatch has chosen a segment; index of this segment.
    op : In
        Operations of the host.
    select : In, segment_status : Out
        Value of register SEG_SELECT, and value of SEG_STATUS for this segment.
    busy, error, irq_check, irq_error : Out
        Status and interrupts, see `LoaderStatus`.
    trap : Out
        One-cycle pulse when a change to a segment in use is refused.
    ar, r : Out, In
        Read master of the loader.
    written, loaded : Out
        Counter events: a word has been written; a segment has passed its check.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "fetch_addr": In(WIS_ADDR_BITS),
                "fetch_en": In(1),
                "fetch_data": Out(64),
                "core_index": In(8),
                "core_info": Out(SEGMENT_LAYOUT),
                "dispatch_index": In(8),
                "dispatch_info": Out(SEGMENT_LAYOUT),
                "in_use": In(config.segments),
                "claim": In(1),
                "claim_segment": In(8),
                "op": In(stream.Signature(SEGMENT_OP_LAYOUT)),
                "select": In(32),
                "segment_status": Out(5),
                "busy": Out(1),
                "error": Out(LoaderError),
                "irq_check": Out(1),
                "irq_error": Out(1),
                "trap": Out(IN_USE_TRAP_LAYOUT),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(config))),
                "written": Out(1),
                "loaded": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.wis = wis = InstructionStore(self.config)
        m.submodules.segments = segments = SegmentTable(self.config)
        m.submodules.host = host = SegmentHost(self.config)
        m.submodules.loader = loader = Loader(self.config)
        m.submodules.status = status = LoaderStatus(self.config)
        connect(m, flipped(self.op), host.op)
        connect(m, loader.ar, flipped(self.ar))
        connect(m, flipped(self.r), loader.r)
        m.d.comb += [
            wis.fetch_addr.eq(self.fetch_addr),
            wis.fetch_en.eq(self.fetch_en),
            self.fetch_data.eq(wis.fetch_data),
            wis.check_addr.eq(loader.check_addr),
            wis.check_en.eq(loader.check_en),
            loader.check_data.eq(wis.check_data),
            loader.job.eq(host.job),
            loader.start.eq(host.start),
            loader.cancel.eq(host.cancel),
            self.trap.eq(host.trap),
        ]
        self._look_up(m, segments, host)
        self._follow(m, segments, host, loader, status)
        self._write(m, wis, host, loader)
        return m

    def _look_up(self, m: Module, segments: SegmentTable, host: SegmentHost) -> None:
        used, claimed, held = (
            Signal(self.config.segments, name=name) for name in ("used", "claimed", "held")
        )
        selected = self.select[: segments.index_bits]
        m.d.comb += [
            claimed.eq(self.claim << self.claim_segment[: segments.index_bits]),
            used.eq(held | segments.pinned | claimed),
            segments.core_index.eq(self.core_index),
            self.core_info.eq(segments.core_info),
            segments.dispatch_index.eq(self.dispatch_index),
            self.dispatch_info.eq(segments.dispatch_info),
            segments.host_index.eq(host.index),
            host.entry.eq(segments.host_entry),
            segments.host_define.eq(host.define),
            segments.host_base.eq(host.base),
            segments.host_length.eq(host.length),
            segments.host_set.eq(host.set),
            segments.host_state.eq(host.state),
            segments.host_pin.eq(host.pin),
            segments.status_index.eq(selected),
        ]
        domain = pipeline_domain(m, self.config.pipelined)
        domain += host.used.eq(used)
        # The mask may be one cycle late, because the segment of a program that starts is claimed until then, and the
        # segment of a called program is pinned.
        m.d.sync += held.eq(self.in_use | claimed)
        pinned_bit, used_bit = segments.pinned.bit_select(selected, 1), used.bit_select(selected, 1)
        with m.If(self.select < self.config.segments):
            m.d.comb += self.segment_status.eq(Cat(segments.status, pinned_bit, used_bit))

    def _follow(
        self, m: Module, segments: SegmentTable, host: SegmentHost, loader: Loader, status: LoaderStatus
    ) -> None:
        m.d.comb += [
            status.start.eq(host.start),
            status.segment.eq(host.job.segment),
            status.cancel.eq(host.cancel),
            status.checking.eq(loader.checking),
            status.result.eq(loader.result),
            status.decided.eq(host.decided),
            status.code.eq(host.code),
            status.writing.eq(host.writing),
            host.busy.eq(status.busy),
            host.busy_segment.eq(status.busy_segment),
            segments.loader_set.eq(status.set),
            segments.loader_index.eq(status.busy_segment),
            segments.loader_state.eq(status.state),
            self.busy.eq(status.busy),
            self.error.eq(status.error),
            self.irq_check.eq(status.irq_check),
            self.irq_error.eq(status.irq_error),
            self.loaded.eq(status.loaded),
        ]

    def _write(self, m: Module, wis: InstructionStore, host: SegmentHost, loader: Loader) -> None:
        """Drive the registered write port; the host has priority over the loader."""
        load, op, deciding = loader.write, self.op.p, Signal()
        # A refused write of the host also delays the loader by one cycle, because the refusal is not known early
        # enough.
        m.d.comb += [
            deciding.eq(host.decided & host.writing),
            load.ready.eq(~deciding),
            self.written.eq(wis.w_en),
        ]
        m.d.sync += [
            wis.w_en.eq(Mux(deciding, host.write, load.valid)),
            wis.w_addr.eq(Mux(deciding, op.address, load.p.addr)),
            wis.w_data.eq(Mux(deciding, op.word, load.p.data)),
        ]
