"""Sequencer core, which runs one micro-program at a time."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D
from hw.layouts import (
    PC_BITS,
    SEGMENT_LAYOUT,
    START_LAYOUT,
    STATISTICS_LAYOUT,
    TRAP_LAYOUT,
    WORD_LAYOUT,
    command_stream,
    limit_ports,
    windows_layout,
)
from hw.lib.pipeline import optional_register, pipeline_domain, pipeline_register
from hw.sequencer.call_stack import CallStack
from hw.sequencer.decode import Decode, PipelinedDecode
from hw.sequencer.execute import Execute
from hw.sequencer.execute_pipelined import PipelinedExecute
from hw.sequencer.fetch import Fetch, PipelinedFetch
from hw.sequencer.issue import CommandIssue, command_issue
from hw.sequencer.layouts import COUNTER_BITS, FRAME_LAYOUT
from hw.sequencer.loop_stack import LoopStack, PipelinedLoopStack

#: Names of the sequencer's counter events.
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
    """Processor for micro-programs with three stages after the instruction store: fetch, decode, execute.

    Latency: the first instruction is executed 3 cycles after the transfer of `start`; `halted` is high one cycle after
    HALT has been executed. Throughput: one instruction per cycle. A taken branch, a call or a loop entry takes 3
    additional cycles; RET, CALLP and a loop without iterations take 4; MUL takes 2; a second macro operand in one
    instruction takes 1. The iterations of a hardware loop take no additional cycles. ISSUE takes one cycle more than
    the latency of ParallelChecker, plus the cycles in which the queue of its unit is full. With `pipelined`, an
    instruction takes four cycles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    start : In
        Program to run; accepted when no program is running.
    fetch_addr, fetch_en : Out, fetch_data : In
        Port of the instruction store: data are valid one cycle after an address with `fetch_en`, and held until the
        next address.
    operand_addr : Out, operand_data : In
        Port of the macro operand buffer: data are valid one cycle after the address.
    seg_index : Out, seg_info : In
        Combinational look-up port of the segment table.
    in_use : Out
        Mask of the segments of the running program and its callers; after a trap it is held until `clear`.
    halted, steps : Out
        One-cycle pulse at the end of the program, and the number of instructions that it executed.
    trap, clear : Out, In
        Trap record, held until `clear`; `clear` also makes the core ready after `stop`.
    stop : In
        If high, no instruction is executed from the next cycle until `clear`.
    step_limit, windows : In, limit : Out
        `step_limit` and `windows` are values of host registers; `limit` is the index of the requested window limit.
    load, matrix, fuse, store : Out
        Streams of checked commands; an offer is withdrawn only by `clear` and in the cycle after `stop`.
    word_valid, word : Out
        With `serial_commands`, the fields of the commands, with a valid bit for each unit.
    seq_tokens : In, seq_take : Out
        Masks of the sequencer's semaphores: those that hold a token, and those from which a token is taken.
    unit_idle : In
        Mask of the units without queued or running commands.
    tag_hold : In
        High while TAG must wait because the counters have not yet stored the sums of the previous tag.
    blocked, blocked_pc : Out
        `blocked` is high while the program waits in WAIT, in FENCE or for room in a queue; `blocked_pc` is the address
        of the waiting instruction.
    statistics : In
        Statistics that programs can read.
    running, tag, macro, pc, segment : Out
        State of the running program and of the instruction that is being executed.
    micro_*, fetch_stalls, queue_stalls, sync_stalls : Out
        Events of the sequencer's counters.
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
                **limit_ports(config, requests=True),
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
        config = self.config
        m.submodules.fetch = fetch = config.variant(Fetch, PipelinedFetch)()
        m.submodules.read = read = config.variant(Decode, PipelinedDecode)(config)
        m.submodules.execute = execute = config.variant(Execute, PipelinedExecute)(config)
        m.submodules.issue = issue = command_issue(config)
        started, active, frozen, flush = Signal(), Signal(), Signal(), Signal()
        frame, operands = Signal(FRAME_LAYOUT), Signal(6)
        boot, ended = self._life(m, execute, started, active, frozen, operands)
        redirect, target = execute.register_redirect(m, self.clear)
        present, passed = execute.advance(m, read.ready_valid & ~redirect)
        m.d.comb += [
            flush.eq(self.clear | started | redirect | ended),
            fetch.redirect.eq(boot | redirect),
            fetch.target.eq(Mux(boot, frame.base if config.pipelined else self.start.p.base, target)),
            fetch.stop.eq(
                (self.clear | ended | started) if config.pipelined else (self.clear | ended) & ~boot
            ),
            fetch.take.eq(read.take),
            self.fetch_addr.eq(fetch.fetch_addr),
            self.fetch_en.eq(fetch.fetch_en),
            read.word.eq(optional_register(m, "fetched", self.fetch_data, config.pipelined)),
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
            read.w_en.eq(execute.forwards(read.instruction)),
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
        """Add the logic that starts, halts, traps and freezes a program.

        Return a pulse that fetches the first word, and a pulse in the cycle after the last instruction. `active` is
        high if `running` is high and `frozen` is low. It is a separate register, because every effect of an instruction
        depends on this condition.
        """
        ended, last = Signal(), Signal()
        m.d.comb += [
            self.start.ready.eq(~self.running & ~self.trap.valid & ~frozen),
            started.eq(self.start.valid & self.start.ready),
            last.eq(execute.halt | execute.trap),
        ]
        m.d.sync += [ended.eq(last), self.halted.eq(execute.halt)]
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
        return (pipeline_register(m, "boot", started) & active if self.config.pipelined else started), ended

    def _report(
        self, m: Module, execute: Execute, issue: CommandIssue, x: Value, frame: Value, active: Signal
    ) -> None:
        """Drive the outputs for state and events."""
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


def connect_frames(
    m: Module, core: wiring.Component, fetch: Fetch, execute: Execute, frame: data.View, started: Value
) -> None:
    """Connect the registers of the running segment, the call stack and the loop stack."""
    m.submodules.calls = calls = CallStack(core.config)
    loop_stack = core.config.variant(LoopStack, PipelinedLoopStack)
    m.submodules.loops = loops = loop_stack(core.config, width=COUNTER_BITS)
    late = pipeline_domain(m, core.config.pipelined)
    late += [
        loops.step.eq(execute.step),
        loops.push.eq(execute.push_loop),
        loops.push_start.eq(execute.instruction.following),
        loops.push_last.eq(execute.instruction.arrive),
        loops.push_trips.eq(execute.total),
        loops.pop.eq(execute.pop_loop),
        loops.call.eq(execute.call),
    ]
    begin, x = core.start.p, execute.instruction
    with m.If(started):
        m.d.sync += [
            frame.segment.eq(begin.segment),
            frame.base.eq(begin.base),
            frame.limit.eq(begin.base + begin.length),
        ]
    with m.Elif(execute.enter):
        m.d.sync += frame.eq(execute.callee)
    with m.Elif(execute.ret):
        m.d.sync += frame.eq(calls.top.frame)
    m.d.comb += [
        calls.clear.eq(started),
        calls.push.eq(execute.call),
        calls.pop.eq(execute.ret),
        calls.entry.frame.eq(frame),
        calls.entry.pc.eq(x.pc),
        calls.entry.loop_depth.eq(loops.depth),
        calls.entry.loop_frame.eq(loops.frame),
        execute.calls_empty.eq(calls.empty),
        execute.calls_full.eq(calls.full),
        execute.return_pc.eq(calls.top.pc),
        loops.clear.eq(started),
        loops.fetch_pc.eq(fetch.pc),
        loops.fetch_step.eq(fetch.step),
        fetch.loop_back.eq(loops.fetch_back),
        fetch.loop_start.eq(loops.fetch_start),
        loops.pc.eq(execute.arrive),
        loops.redirect.eq(fetch.redirect),
        execute.back.eq(loops.back),
        execute.back_start.eq(loops.back_start),
        loops.ret.eq(execute.return_loops),
        loops.ret_depth.eq(calls.top.loop_depth),
        loops.ret_frame.eq(calls.top.loop_frame),
        execute.loops_full.eq(loops.depth == core.config.loop_depth),
        execute.loops_empty.eq(loops.depth == loops.frame),
        core.seg_index.eq(x.d),
        execute.segment.eq(core.seg_info),
        core.segment.eq(frame.segment),
        core.in_use.eq(
            Mux(
                core.running | core.trap.valid,
                calls.in_use | (1 << frame.segment[: (core.config.segments - 1).bit_length()]),
                0,
            )
        ),
    ]


def connect_issue(
    m: Module,
    core: wiring.Component,
    execute: Execute,
    issue: CommandIssue,
    started: Value,
    frozen: Value,
) -> None:
    """Connect the registers of the command fields and the issue block."""
    x = execute.instruction
    d, unit_bits = ISSUE_D.offset("signal_seq"), 2
    registers = issue.make_registers()
    # With `pipelined`, a field is written one cycle later, but long before a command can be issued.
    domain = pipeline_domain(m, core.config.pipelined)
    domain += [
        registers.w_en.eq(execute.set_field),
        registers.w_field.eq(x.d),
        registers.w_data.eq(execute.total),
        registers.clear.eq(Mux(started, 0b1111, Mux(execute.clear_fields, 1 << x.d[:unit_bits], 0))),
    ]
    m.d.comb += [
        issue.unit.eq(x.d[:unit_bits]),
        issue.windows.eq(core.windows),
        issue.clear.eq(core.clear | frozen),
        issue.meta.wait.eq(x.imm[:16]),
        issue.meta.signal.eq(Cat(x.imm[16:], x.d[d : d + 4])),
        issue.meta.tag.eq(core.tag),
        issue.meta.macro.eq(core.macro),
        issue.mul.eq(execute.multiply),
        issue.mul_a.eq(x.a),
        issue.mul_b.eq(execute.second),
        execute.product.eq(issue.mul_product),
    ]
    issue.connect_execute(m, execute)
    for unit in Unit:
        name = unit.name.lower()
        connect(m, getattr(issue, name), flipped(getattr(core, name)))
    issue.connect_fields(m, core, registers)


def count_steps(m: Module, core: wiring.Component, execute: Execute, started: Value) -> None:
    """Count the instructions and compare their number with the limit.

    The comparison takes a separate cycle, so that it does not depend on whether the current instruction is counted.
    """
    excess, hit = Signal(33), Signal()
    reached, short_of_one = ~excess[32], excess.all()
    m.d.comb += [excess.eq(core.steps - core.step_limit), execute.limit_hit.eq(hit)]
    with m.If(started):
        m.d.sync += [core.steps.eq(0), hit.eq(0)]
    with m.Else():
        m.d.sync += hit.eq((core.step_limit != 0) & (reached | (short_of_one & execute.finish)))
        with m.If(execute.finish):
            m.d.sync += core.steps.eq(core.steps + 1)
