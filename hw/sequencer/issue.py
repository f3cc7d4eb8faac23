"""Issue: checks a command and offers it to its unit's queue."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Member, Out

from hw.checker.parallel.checker import ParallelChecker
from hw.checker.rules import RULES
from hw.checker.serial.checker import SerialChecker
from hw.checker.values import INCREMENT_OF, INCREMENTS_LAYOUT
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import Trap, Unit
from hw.layouts import DERIVED, META_LAYOUT, command_stream, config_layout, limit_ports, windows_layout
from hw.lib.pipeline import pipeline_register
from hw.sequencer.alu_serial import ScalarMultiply

#: How fields are written, as `ConfigRegisters` has it.
WRITES = {"w_en": 1, "w_field": 2 + FIELD_INDEX_BITS, "w_data": 32, "clear": len(Unit)}


def _fields(config: MlaConfig) -> dict[str, Member]:
    if config.serial_commands:
        return {f"field_{name}": In(width) for name, width in WRITES.items()}
    return {f"config_{unit.name.lower()}": In(config_layout(unit)) for unit in Unit}


class CommandIssue(wiring.Component):
    """Executes the `issue` instruction.

    Latency: a command is offered as many cycles after `start` as the bounds checker takes; `issued` comes
    with its transfer, `trap` in the cycle it would have been offered. Throughput: one command at a time.

    Parameters
    ----------
    config : MlaConfig
        Machine.

    Members
    -------
    start : In
        Begins; `unit`, `meta` and the fields stay unchanged until `issued` or `trap`.
    unit, meta : In
        Where the command goes and what travels with it.
    config_load, config_matrix, config_fuse, config_store : In
        Fields. With `serial_commands` the writes of them instead: field_*, see SerialChecker.
    windows : In, limit : Out
        DRAM windows, and which limit of one is asked for.
    clear : In
        Gives up; the only thing that withdraws an offer.
    sent : In
        With `serial_commands`: the command's words are on their way to its queue.
    passed, increments : Out
        The command is legal, and its increments, from the verdict to `issued`.
    load, matrix, fuse, store : Out
        Commands; with `serial_commands` only their `meta`.
    issued : Out
        Pulse: the command is queued.
    full : Out
        A command waits for a place in its queue.
    trap, cause, address : Out
        Pulse: the command is illegal.
    mul, mul_a, mul_b : In, mul_product : Out
        Scalar multiplication, see ParallelChecker.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "unit": In(2),
                "meta": In(META_LAYOUT),
                **_fields(config),
                "windows": In(windows_layout(config)),
                **limit_ports(config, asks=True),
                "clear": In(1),
                "sent": In(1),
                "passed": Out(1),
                "increments": Out(INCREMENTS_LAYOUT),
                **{u.name.lower(): Out(command_stream(u)) for u in Unit},
                "issued": Out(1),
                "full": Out(1),
                "trap": Out(1),
                "cause": Out(5),
                "address": Out(32),
                "mul": In(1),
                "mul_a": In(32),
                "mul_b": In(32),
                "mul_product": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.checker = checker = self._checker()
        multiplier: wiring.Component = checker
        if self.config.serial_commands:
            m.submodules.multiplier = multiplier = ScalarMultiply()
        m.d.comb += [
            checker.start.eq(self.start),
            checker.unit.eq(self.unit),
            checker.windows.eq(self.windows),
            checker.clear.eq(
                pipeline_register(m, "clear_held", self.clear) if self.config.pipelined else self.clear
            ),
            multiplier.mul.eq(self.mul),
            multiplier.mul_a.eq(self.mul_a),
            multiplier.mul_b.eq(self.mul_b),
            self.mul_product.eq(multiplier.mul_product),
        ]
        bad_command: Value = Const(0)
        if self.config.serial_commands:
            m.d.comb += self.limit.eq(checker.limit)
            m.d.comb += [
                getattr(checker, f"field_{name}").eq(getattr(self, f"field_{name}")) for name in WRITES
            ]
        else:
            for unit in Unit:
                name = unit.name.lower()
                m.d.comb += getattr(checker, name).eq(getattr(self, f"config_{name}"))
            bad_command = self._rules(m)
        refused, offer, waiting, ready = Signal(), Signal(), Signal(), Signal()
        domain, done = m.d.comb, checker.done
        if self.config.pipelined:
            domain, done = m.d.sync, pipeline_register(m, "done", checker.done & ~self.clear)
        domain += refused.eq(bad_command | checker.bad | checker.fail)
        m.d.comb += [
            self.trap.eq(done & refused),
            self.passed.eq((done & ~refused) | waiting),
            self.increments.eq(checker.increments),
            offer.eq(self.passed & (self.sent if self.config.serial_commands else 1) & ~self.clear),
            self.issued.eq(offer & ready),
            self.full.eq(offer & ~ready),
            self.cause.eq(Trap.SP_BOUNDS + checker.fail_kind[2:]),
            self.address.eq(checker.fail_address),
        ]
        with m.If(bad_command | checker.bad):
            m.d.comb += [self.cause.eq(Trap.BAD_COMMAND), self.address.eq(0)]
        m.d.sync += waiting.eq(self.passed & ~self.issued & ~self.clear)
        self._offer(m, checker, offer, ready)
        return m

    def _checker(self) -> ParallelChecker | SerialChecker:
        return (SerialChecker if self.config.serial_commands else ParallelChecker)(self.config)

    def _rules(self, m: Module) -> Signal:
        """Whether the fields alone make the command illegal, one cycle after `start`."""
        broken = Signal(len(Unit))
        for unit in Unit:
            fields = getattr(self, f"config_{unit.name.lower()}")
            m.d.comb += broken[unit].eq(Cat(*RULES[unit](fields, self.config)).any())
        bad_command = Signal()
        with m.If(self.start):
            m.d.sync += bad_command.eq(broken.bit_select(self.unit, 1))
        return bad_command

    def _offer(self, m: Module, checker: ParallelChecker, offer: Value, ready: Signal) -> None:
        """The four command streams."""
        for unit in Unit:
            name = unit.name.lower()
            port = getattr(self, name)
            derived = [checker.increments[INCREMENT_OF[field]] for field in DERIVED[unit]]
            here = Signal(name=f"to_{name}")
            if self.config.serial_commands:
                m.d.comb += port.payload.meta.eq(self.meta)
            else:
                whole = Cat(getattr(self, f"config_{name}"), *derived, self.meta)
                m.d.comb += port.payload.as_value().eq(whole)
            m.d.comb += [
                here.eq(self.unit == int(unit)),
                port.valid.eq(offer & here),
            ]
            with m.If(here):
                m.d.comb += ready.eq(port.ready)
