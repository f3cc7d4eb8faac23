"""How the core's stages are joined with its stacks and with the issue block."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import connect, flipped

from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D
from hw.lib.pipeline import domain_of
from hw.sequencer.call_stack import CallStack
from hw.sequencer.command_words import CommandWords
from hw.sequencer.config_registers import ConfigRegisters
from hw.sequencer.execute import Execute
from hw.sequencer.fetch import Fetch
from hw.sequencer.issue import WRITES, Issue
from hw.sequencer.loop_stack import LoopStack
from hw.sequencer.stage_layouts import COUNTER_BITS


def connect_frames(
    m: Module, core: wiring.Component, fetch: Fetch, execute: Execute, frame: data.View, started: Value
) -> None:
    """Running segment, callers, loops."""
    m.submodules.calls = calls = CallStack(core.config)
    m.submodules.loops = loops = LoopStack(core.config, width=COUNTER_BITS)
    late = domain_of(m, core.config.pipelined)
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
    issue: Issue,
    started: Value,
    frozen: Value,
) -> None:
    """Fields of commands and the issue block."""
    x = execute.instruction
    d, unit_bits = ISSUE_D.offset("signal_seq"), 2
    serial = core.config.serial_commands
    registers = Signal(data.StructLayout(WRITES)) if serial else ConfigRegisters()
    # With `pipelined` a field is written a cycle later, long before a command can be issued.
    domain = domain_of(m, core.config.pipelined)
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
    _connect_verdict(m, execute, issue, core.config.pipelined)
    for unit in Unit:
        name = unit.name.lower()
        connect(m, getattr(issue, name), flipped(getattr(core, name)))
    if isinstance(registers, ConfigRegisters):
        m.submodules.registers = registers
        for unit in Unit:
            name = unit.name.lower()
            m.d.comb += getattr(issue, f"config_{name}").eq(getattr(registers, name))
    else:
        m.d.comb += core.limit.eq(issue.limit)
        m.d.comb += [getattr(issue, f"field_{name}").eq(registers[name]) for name in WRITES]
        _connect_words(m, core, issue, registers)


def _connect_verdict(m: Module, execute: Execute, issue: Issue, pipelined: int) -> None:
    """Where a command's issue begins and what comes of it, in registers with `pipelined`."""
    domain, start = m.d.comb, issue.start
    if pipelined:
        domain, start = m.d.sync, Signal()
        m.d.comb += issue.start.eq(start & ~issue.clear)
    domain += [
        start.eq(execute.start_issue),
        execute.issued.eq(issue.issued),
        execute.issue_trap.eq(issue.trap),
        execute.issue_cause.eq(issue.cause),
        execute.issue_address.eq(issue.address),
    ]


def _connect_words(m: Module, core: wiring.Component, issue: Issue, writes: data.View) -> None:
    """What sends the fields of commands in words."""
    m.submodules.words = words = CommandWords()
    m.d.comb += [
        *(getattr(words, name).eq(writes[name]) for name in WRITES),
        words.start.eq(issue.start),
        words.unit.eq(issue.unit),
        words.passed.eq(issue.passed),
        words.increments.eq(issue.increments),
        words.stop.eq(issue.clear),
        issue.sent.eq(words.sent),
        core.word_valid.eq(words.valid),
        core.word.eq(words.word),
    ]


def count_steps(m: Module, core: wiring.Component, execute: Execute, started: Value) -> None:
    """Counts instructions against the limit; the comparison has a cycle of its own and does not wait to hear
    whether this cycle's instruction counts.
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
