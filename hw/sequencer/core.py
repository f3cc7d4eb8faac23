"""Sequencer core: runs one micro-program at a time."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.layouts import WORD_LAYOUT, command_stream
from hw.lib.pipeline import register
from hw.sequencer.control_flow import advance, redirection
from hw.sequencer.core_connect import connect_frames, connect_issue, count_steps
from hw.sequencer.decode import OperandRead
from hw.sequencer.execute import Execute
from hw.sequencer.fetch import Fetch
from hw.sequencer.issue import Issue
from hw.sequencer.layouts import (
    PC_BITS,
    SEGMENT_LAYOUT,
    START_LAYOUT,
    STATISTICS_LAYOUT,
    TRAP_LAYOUT,
    limit_ports,
    windows_layout,
)
from hw.sequencer.stage_layouts import FRAME_LAYOUT

#: Counter events.
PULSES = (
    "micro_scalar",
    "micro_config",
    "micro_issue",
    "micro_control",
    "micro_sync",
    "fetch_stalls",
    "queue_stalls",
    "sync_stalls",
)


class Core(wiring.Component):
    """Fetches, reads operands and executes: three stages behind the instruction store.

    Latency: the first instruction executes 4 cycles after `start` is taken; `halted` comes one cycle after
    HALT executed. Throughput: one instruction a cycle; a taken branch, call or loop entry costs 3 cycles
    more, RET, CALLP and a loop without trips 4, MUL 2, a second macro operand in one instruction 1; going
    round a hardware loop costs nothing; ISSUE takes one cycle more than BoundsChecker's latency and the wait
    for a full queue. With `pipelined` an instruction takes four cycles.

    Parameters
    ----------
    config : MlaConfig
        Machine.

    Members
    -------
    start : In
        Program to run, taken when none runs.
    fetch_addr, fetch_en : Out, fetch_data : In
        Instruction store: data one cycle after an address with `fetch_en`, held until the next.
    operand_addr : Out, operand_data : In
        Macro operand buffer: data one cycle after the address.
    seg_index : Out, seg_info : In
        Segment table, combinational.
    in_use : Out
        Segments of the running program and its callers; after a trap until `clear`.
    halted, steps : Out
        Pulse at the end of the program, and instructions it executed.
    trap, clear : Out, In
        Trap record, held until `clear`, which also makes the core ready again after `stop`.
    stop : In
        Nothing executes from the next cycle on until `clear`.
    step_limit, windows : In, limit : Out
        Host registers, and which limit of a window is asked for.
    load, matrix, fuse, store : Out
        Checked commands; an offer is withdrawn only by `clear` and the cycle after `stop`.
    word_valid, word : Out
        With `serial_commands`, their fields, by unit.
    seq_tokens : In, seq_take : Out
        Semaphores of the sequencer.
    unit_idle : In
        Units with nothing queued or running.
    tag_hold : In
        TAG waits: the counters have not yet put the last tag's sums away.
    blocked, blocked_pc : Out
        Waiting in WAIT, FENCE or for a full queue.
    statistics : In
        Values of the statistics selectors.
    running, tag, macro, pc, segment : Out
        State: what runs, and the instruction that executes.
    micro_*, fetch_stalls, queue_stalls, sync_stalls : Out
        Counter events.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "start": In(stream.Signature(START_LAYOUT)),
                "fetch_addr": Out(PC_BITS),
                "fetch_en": Out(1),
                "fetch_data": In(64),
                "operand_addr": Out(6),
                "operand_data": In(32),
                "seg_index": Out(8),
                "seg_info": In(SEGMENT_LAYOUT),
                "in_use": Out(config.segments),
                "halted": Out(1),
                "steps": Out(32),
                "trap": Out(TRAP_LAYOUT),
                "clear": In(1),
                "stop": In(1),
                "step_limit": In(32),
                "windows": In(windows_layout(config)),
                **limit_ports(config, asks=True),
                **{u.name.lower(): Out(command_stream(u)) for u in Unit},
                "word_valid": Out(len(Unit)),
                "word": Out(WORD_LAYOUT),
                "seq_tokens": In(16),
                "seq_take": Out(16),
                "unit_idle": In(4),
                "tag_hold": In(1),
                "blocked": Out(1),
                "blocked_pc": Out(PC_BITS),
                "statistics": In(STATISTICS_LAYOUT),
                "running": Out(1),
                "tag": Out(6),
                "macro": Out(32),
                "pc": Out(PC_BITS),
                "segment": Out(8),
                **{name: Out(1) for name in PULSES},
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.fetch = fetch = Fetch(self.config)
        m.submodules.read = read = OperandRead(self.config)
        m.submodules.execute = execute = Execute(self.config)
        m.submodules.issue = issue = Issue(self.config)
        started, active, frozen, flush = Signal(), Signal(), Signal(), Signal()
        frame, operands = Signal(FRAME_LAYOUT), Signal(6)
        boot, ended = self._life(m, execute, started, active, frozen, operands)
        redirect, target = redirection(m, execute, self.clear)
        present, passed = advance(m, execute, read.ready_valid & ~redirect)
        m.d.comb += [
            flush.eq(self.clear | started | redirect | ended),
            fetch.redirect.eq(boot | redirect),
            fetch.target.eq(Mux(boot, frame.base, target)),
            fetch.stop.eq(started | self.clear | ended),
            fetch.take.eq(read.take),
            self.fetch_addr.eq(fetch.fetch_addr),
            self.fetch_en.eq(fetch.fetch_en),
            read.word.eq(
                register(m, "fetched", self.fetch_data) if self.config.pipelined else self.fetch_data
            ),
            read.pc.eq(fetch.pc),
            read.valid.eq(fetch.valid),
            read.flush.eq(flush),
            read.clear.eq(started),
            read.frame.eq(frame),
            read.operands.eq(operands),
            self.operand_addr.eq(read.operand_addr),
            read.operand_data.eq(self.operand_data),
            read.statistics.eq(self.statistics),
            read.tag.eq(Mux(execute.set_tag, execute.total, self.tag)),
            # With `pipelined` a result is in its register before the next instruction reads.
            read.w_en.eq(0 if self.config.pipelined else execute.valid & read.instruction.scalar),
            read.w_addr.eq(read.instruction.d),
            read.w_data.eq(execute.result),
            read.commit.eq(execute.finish_scalar),
            read.accept.eq(active & ~read.ready_valid | passed),
            execute.active.eq(active),
            execute.valid.eq(present),
            execute.instruction.eq(read.instruction),
            execute.tokens.eq(self.seq_tokens),
            execute.idle.eq(self.unit_idle),
            execute.tag_hold.eq(self.tag_hold),
        ]
        connect_frames(m, self, fetch, execute, frame, started)
        connect_issue(m, self, execute, issue, started, frozen)
        count_steps(m, self, execute, started)
        self._report(m, execute, issue, read.instruction, frame, active)
        return m

    def _life(
        self, m: Module, execute: Execute, started: Signal, active: Signal, frozen: Signal, operands: Signal
    ) -> tuple[Value, Signal]:
        """Starting, halting, trapping, freezing; returns the pulse that fetches the first word, and one in the
        cycle after the last instruction. `active` is `running` and not `frozen`, as one register: all that
        executes hangs on it.
        """
        boot, ended, last = Signal(), Signal(), Signal()
        m.d.comb += [
            self.start.ready.eq(~self.running & ~self.trap.valid & ~frozen),
            started.eq(self.start.valid & self.start.ready),
            last.eq(execute.halt | execute.trap),
        ]
        m.d.sync += [boot.eq(started), ended.eq(last), self.halted.eq(execute.halt)]
        with m.If(self.clear):
            m.d.sync += [self.running.eq(0), active.eq(0), frozen.eq(0), self.trap.valid.eq(0)]
        with m.Else():
            m.d.sync += [
                frozen.eq(frozen | self.stop),
                active.eq((active | started) & ~self.stop & ~last),
            ]
            with m.If(started):
                m.d.sync += [
                    self.running.eq(1),
                    operands.eq(self.start.p.operands),
                    self.macro.eq(self.start.p.macro),
                ]
            with m.If(last):
                m.d.sync += self.running.eq(0)
            with m.If(execute.trap):
                m.d.sync += [
                    self.trap.valid.eq(1),
                    self.trap.cause.eq(execute.cause),
                    self.trap.address.eq(execute.address),
                    self.trap.pc.eq(self.pc),
                    self.trap.segment.eq(self.segment),
                    self.trap.tag.eq(self.tag),
                    self.trap.macro.eq(self.macro),
                ]
        with m.If(started):
            m.d.sync += self.tag.eq(self.start.p.tag)
        with m.Elif(execute.set_tag):
            m.d.sync += self.tag.eq(execute.total)
        return boot & active, ended

    def _report(
        self, m: Module, execute: Execute, issue: Issue, x: Value, frame: Value, active: Signal
    ) -> None:
        """State and events for the outside."""
        m.d.comb += [
            self.pc.eq(x.pc - frame.base),
            self.blocked_pc.eq(self.pc),
            self.blocked.eq(active & (execute.syncing | issue.full)),
            self.seq_take.eq(execute.take),
            self.fetch_stalls.eq(active & ~execute.valid),
            self.queue_stalls.eq(active & issue.full),
            self.sync_stalls.eq(execute.syncing),
            *(
                getattr(self, f"micro_{name}").eq(getattr(execute, f"finish_{name}"))
                for name in ("scalar", "config", "issue", "control", "sync")
            ),
        ]
