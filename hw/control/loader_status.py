"""Status of loads and checks for the host: segment states, LOADER_ERROR and interrupts."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.control.layouts import JOB_RESULT_LAYOUT, LoaderError
from hw.isa.enums import SegmentState


class LoaderStatus(wiring.Component):
    """Records the progress of the loader's operations and the outcome of the host's operations.

    Latency: a result of the loader reaches the segment table in the next cycle; `busy` rises in the cycle after
    `start`. Throughput: not applicable.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `segments`.

    Members
    -------
    start, segment : In
        High if the loader begins an operation; index of the operation's segment.
    cancel : In
        High if the check ends without a result, because a word is written to the segment.
    checking, result : In
        Progress and result of the operation, from the ports of `Loader` with the same names.
    decided, code, writing : In
        `decided`: high if an operation of the host is accepted or refused in this cycle; `code`: reason for the
        refusal, or NONE; `writing`: high if the operation is the write of a word, which changes `error` only if it is
        refused.
    busy, busy_segment : Out
        High if the loader is busy; index of its segment.
    set, state : Out
        Loader port of the segment table, for `busy_segment`.
    loaded : Out
        One-cycle pulse when a segment has passed its check.
    error : Out
        Value of register LOADER_ERROR.
    irq_check, irq_error : Out
        One-cycle pulses when a load or check has ended, and when `error` has been set to a value other than 0.
    """

    def __init__(self, config: MlaConfig):
        bits = (config.segments - 1).bit_length()
        super().__init__(
            {
                "start": In(1),
                "segment": In(bits),
                "cancel": In(1),
                "checking": In(1),
                "result": In(JOB_RESULT_LAYOUT),
                "decided": In(1),
                "code": In(LoaderError),
                "writing": In(1),
                "busy": Out(1),
                "busy_segment": Out(bits),
                "set": Out(1),
                "state": Out(SegmentState),
                "loaded": Out(1),
                "error": Out(LoaderError),
                "irq_check": Out(1),
                "irq_error": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        result, ended, failed, refused = self.result, Signal(), Signal(), Signal()
        m.d.comb += [
            ended.eq(self.busy & result.valid),
            failed.eq(ended & ~result.good),
            refused.eq(self.decided & (self.code != LoaderError.NONE)),
            self.set.eq(ended | self.busy & self.checking),
            self.loaded.eq(ended & result.good & ~self.cancel),
            self.irq_check.eq(ended | self.cancel),
        ]
        with m.If(~result.valid):
            m.d.comb += self.state.eq(SegmentState.CHECKING)
        with m.Elif(result.good):
            m.d.comb += self.state.eq(SegmentState.VALID)
        with m.Else():
            m.d.comb += self.state.eq(SegmentState.FAILED)
        m.d.sync += self.irq_error.eq(failed | refused)
        with m.If(failed):
            m.d.sync += self.error.eq(Mux(result.bus, LoaderError.BUS, LoaderError.CRC))
        with m.If(self.decided & (refused | ~self.writing)):
            m.d.sync += self.error.eq(self.code)
        with m.If(self.start):
            m.d.sync += [self.busy.eq(1), self.busy_segment.eq(self.segment)]
        with m.Elif(ended | self.cancel):
            m.d.sync += self.busy.eq(0)
        return m
