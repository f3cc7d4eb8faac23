"""Segment table, which stores the range and the state of each program in the instruction store."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.control.layouts import SEGMENT_ENTRY_LAYOUT
from hw.isa.enums import SegmentState
from hw.layouts import PC_BITS, SEGMENT_LAYOUT
from hw.lib.ram import Ram

_STATE_BITS = 3


class SegmentTable(wiring.Component):
    """Stores the state, base, length and pin bit of every segment.

    Latency: look-ups are combinational; changes are visible in the next cycle. Throughput: one look-up on each port,
    one change by the host and one by the loader per cycle; if both change the same segment, the host's change wins.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `segments`, the number of entries.

    Members
    -------
    core_index : In, core_info : Out
        Look-up port for the sequencer's calls; for an index beyond the table, the result is not valid.
    dispatch_index : In, dispatch_info : Out
        Look-up port for dispatch; for an index beyond the table, the result is not valid.
    host_index : In, host_entry : Out
        Look-up port for the host's operations, whose indices are always within the table.
    host_define, host_base, host_length : In
        Write port for base and length of segment `host_index`.
    host_set, host_state, host_pin : In
        Write port for the state of segment `host_index`; `host_pin` pins the segment.
    loader_set, loader_index, loader_state : In
        Write port for a segment's state, used when a load or check advances.
    status_index : In, status : Out
        Index of a segment, and its state for register SEG_STATUS.
    pinned : Out
        Mask of the pinned segments.
    """

    def __init__(self, config: MlaConfig):
        self.segments = config.segments
        self.index_bits = bits = (config.segments - 1).bit_length()
        super().__init__(
            {
                "core_index": In(8),
                "core_info": Out(SEGMENT_LAYOUT),
                "dispatch_index": In(8),
                "dispatch_info": Out(SEGMENT_LAYOUT),
                "host_index": In(bits),
                "host_entry": Out(SEGMENT_ENTRY_LAYOUT),
                "host_define": In(1),
                "host_base": In(PC_BITS),
                "host_length": In(PC_BITS),
                "host_set": In(1),
                "host_state": In(SegmentState),
                "host_pin": In(1),
                "loader_set": In(1),
                "loader_index": In(bits),
                "loader_state": In(SegmentState),
                "status_index": In(bits),
                "status": Out(_STATE_BITS),
                "pinned": Out(config.segments),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        # Base and length are only used in states in which they have been written.
        m.submodules.extents = extents = Ram(width=2 * PC_BITS, depth=self.segments, reads=3, comb=True)
        m.d.comb += [
            extents.w_addr.eq(self.host_index),
            extents.w_data.eq(Cat(self.host_base, self.host_length)),
            extents.w_en.eq(self.host_define),
        ]
        states = Signal(_STATE_BITS * self.segments)
        for port, (index, info) in enumerate(
            (
                (self.core_index, self.core_info),
                (self.dispatch_index, self.dispatch_info),
            )
        ):
            self._look_up(m, extents, port, states, index, info)
        extent = extents.r2_data
        m.d.comb += [
            extents.r2_addr.eq(self.host_index),
            self.host_entry.base.eq(extent[:PC_BITS]),
            self.host_entry.length.eq(extent[PC_BITS:]),
            self.host_entry.state.eq(states.word_select(self.host_index, _STATE_BITS)),
            self.status.eq(states.word_select(self.status_index, _STATE_BITS)),
        ]
        with m.If(self.loader_set):
            m.d.sync += states.word_select(self.loader_index, _STATE_BITS).eq(self.loader_state)
        with m.If(self.host_set):
            m.d.sync += states.word_select(self.host_index, _STATE_BITS).eq(self.host_state)
        with m.If(self.host_pin):
            m.d.sync += self.pinned.bit_select(self.host_index, 1).eq(1)
        return m

    def _look_up(
        self, m: Module, extents: Ram, port: int, states: Signal, index: Value, info: data.View
    ) -> None:
        extent = getattr(extents, f"r{port}_data")
        within = index[: self.index_bits]
        m.d.comb += [
            getattr(extents, f"r{port}_addr").eq(within),
            info.base.eq(extent[:PC_BITS]),
            info.length.eq(extent[PC_BITS:]),
            info.valid.eq(
                (states.word_select(within, _STATE_BITS) == SegmentState.VALID) & (index < self.segments)
            ),
            info.pinned.eq(self.pinned.bit_select(within, 1)),
        ]
