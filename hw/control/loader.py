"""The segment loader: fills a segment by DMA and checks it."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, read_beat
from hw.config import MlaConfig
from hw.control.layouts import JOB_LAYOUT, JOB_RESULT_LAYOUT, WIS_WRITE_LAYOUT
from hw.control.loader_dma import LoaderDma
from hw.control.segment_checker import SegmentChecker
from hw.memory.instruction_store import WIS_ADDR_BITS


class Loader(wiring.Component):
    """Runs one job: optionally reads a segment's image from DRAM, then reads the segment back and compares
    its CRC.

    Latency: a check takes `length` + 7 cycles; a load adds that of the DMA. Throughput: one job at a time.

    Parameters
    ----------
    config : MlaConfig
        Width of the bus and burst limit.

    Members
    -------
    job, start : In
        `start` begins the job, which stays until `result`.
    cancel : In
        End a check; a result that comes all the same in this cycle or the next is to be ignored.
    checking : Out
        The image is complete in the store; its check begins. Not given by jobs that only check.
    result : Out
        The job has ended.
    write : Out
        Words for the instruction store.
    check_addr, check_en : Out, check_data : In
        Read-back port of the instruction store.
    ar, r : Out, In
        Read master.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "job": In(JOB_LAYOUT),
                "start": In(1),
                "cancel": In(1),
                "checking": Out(1),
                "result": Out(JOB_RESULT_LAYOUT),
                "write": Out(stream.Signature(WIS_WRITE_LAYOUT)),
                "check_addr": Out(WIS_ADDR_BITS),
                "check_en": Out(1),
                "check_data": In(64),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(self.config))),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.dma = dma = LoaderDma(self.config)
        m.submodules.checker = checker = SegmentChecker(slow=self.config.serial_commands)
        connect(m, dma.ar, flipped(self.ar))
        connect(m, flipped(self.r), dma.r)
        connect(m, dma.write, flipped(self.write))
        m.d.comb += [
            dma.source.eq(self.job.source),
            dma.base.eq(self.job.base),
            dma.length.eq(self.job.length),
            checker.base.eq(self.job.base),
            checker.length.eq(self.job.length),
            checker.cancel.eq(self.cancel),
            self.check_addr.eq(checker.check_addr),
            self.check_en.eq(checker.check_en),
            checker.check_data.eq(self.check_data),
        ]
        matches = Signal()
        m.d.sync += [self.result.valid.eq(0), matches.eq(checker.crc == self.job.crc)]
        with m.FSM(name="loader"):
            with m.State("IDLE"), m.If(self.start):
                m.d.comb += dma.start.eq(self.job.load)
                with m.If(self.job.load):
                    m.next = "LOAD"
                with m.Else():
                    m.next = "SETTLE"
            with m.State("LOAD"):
                with m.If(dma.done & dma.failed):
                    m.d.sync += [self.result.valid.eq(1), self.result.good.eq(0), self.result.bus.eq(1)]
                    m.next = "IDLE"
                with m.Elif(dma.done):
                    m.d.comb += self.checking.eq(1)
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                # A word of the host written while the state still was OPEN reaches the store in this cycle.
                m.next = "BEGIN"
                self._end_if_cancelled(m)
            with m.State("BEGIN"):
                m.d.comb += checker.start.eq(1)
                m.next = "CHECK"
                self._end_if_cancelled(m)
            with m.State("CHECK"):
                with m.If(checker.done):
                    m.next = "COMPARE"
                self._end_if_cancelled(m)
            with m.State("COMPARE"):
                m.d.sync += [self.result.valid.eq(1), self.result.good.eq(matches), self.result.bus.eq(0)]
                m.next = "IDLE"
        return m

    def _end_if_cancelled(self, m: Module) -> None:
        with m.If(self.cancel):
            m.next = "IDLE"
