"""Issue: checks a command and offers it to its unit's queue."""

from typing import Any

from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal, Value
from amaranth.lib import data, wiring
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
from hw.sequencer.command_words import CommandWords
from hw.sequencer.config_registers import ConfigRegisters
from hw.sequencer.execute import Execute

#: How fields are written, as `ConfigRegisters` has it.
WRITES = {"w_en": 1, "w_field": 2 + FIELD_INDEX_BITS, "w_data": 32, "clear": len(Unit)}


class CommandIssue(wiring.Component):
    """Executes the `issue` instruction; `command_issue` chooses the variant of a machine.

    Latency: a command is offered as many cycles after `start` as the checker takes; `issued` comes with its transfer,
    `trap` in the cycle in which it would have been offered. Throughput: one command at a time.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    fields : dict of str to Member
        Ports by which the variant gets the fields of commands.

    Members
    -------
    start : In
        Begins; `unit`, `meta` and the fields stay unchanged until `issued` or `trap`.
    unit, meta : In
        Unit of the command, and metadata that accompany its fields.
    windows : In
        Configuration of the DRAM windows.
    clear : In
        Abandon the command; nothing else withdraws an offer.
    passed, increments : Out
        The command is legal, and its increments, from the verdict to `issued`.
    load, matrix, fuse, store : Out
        Command streams of the units.
    issued : Out
        Pulse: the command is queued.
    full : Out
        A command waits until its queue has room.
    trap, cause, address : Out
        Pulse: the command is illegal.
    mul, mul_a, mul_b : In, mul_product : Out
        Scalar multiplication, see ParallelChecker.
    """

    def __init__(self, config: MlaConfig, fields: dict[str, Member]):
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "unit": In(2),
                "meta": In(META_LAYOUT),
                **fields,
                "windows": In(windows_layout(config)),
                **limit_ports(config, requests=True),
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
        checker, multiplier = self._checker(m)
        m.d.comb += [
            checker.start.eq(self.start),
            checker.unit.eq(self.unit),
            checker.windows.eq(self.windows),
            checker.clear.eq(self._checker_clear(m)),
            multiplier.mul.eq(self.mul),
            multiplier.mul_a.eq(self.mul_a),
            multiplier.mul_b.eq(self.mul_b),
            self.mul_product.eq(multiplier.mul_product),
        ]
        bad_command = self._rules(m, checker)
        refused, offer, waiting, ready = Signal(), Signal(), Signal(), Signal()
        domain, done = self._verdict(m, checker)
        domain += refused.eq(bad_command | checker.bad | checker.fail)
        m.d.comb += [
            self.trap.eq(done & refused),
            self.passed.eq((done & ~refused) | waiting),
            self.increments.eq(checker.increments),
            offer.eq(self.passed & self._sent() & ~self.clear),
            self.issued.eq(offer & ready),
            self.full.eq(offer & ~ready),
            self.cause.eq(Trap.SP_BOUNDS + checker.fail_kind[2:]),
            self.address.eq(checker.fail_address),
        ]
        with m.If(bad_command | checker.bad):
            m.d.comb += [self.cause.eq(Trap.BAD_COMMAND), self.address.eq(0)]
        m.d.sync += waiting.eq(self.passed & ~self.issued & ~self.clear)
        for unit in Unit:
            port, here = getattr(self, unit.name.lower()), Signal(name=f"to_{unit.name.lower()}")
            self._payload(m, unit, checker)
            m.d.comb += [
                here.eq(self.unit == int(unit)),
                port.valid.eq(offer & here),
            ]
            with m.If(here):
                m.d.comb += ready.eq(port.ready)
        return m

    def connect_execute(self, m: Module, execute: Execute) -> None:
        """Connect the start of a command's issue and its outcome, in the module of the core."""
        self._connect_execute(m.d.comb, self.start, execute)

    def make_registers(self) -> ConfigRegisters | data.View:
        """Destination of the fields that a program writes, with the members of `WRITES`."""
        raise NotImplementedError

    def connect_fields(
        self, m: Module, core: wiring.Component, registers: ConfigRegisters | data.View
    ) -> None:
        """Connect the fields of commands, in the module of the core.

        Parameters
        ----------
        m : Module
            Module of the core.
        core : Component
            Core that this component belongs to.
        registers : ConfigRegisters or View
            Value of `make_registers`, whose inputs are driven.
        """
        raise NotImplementedError

    def _connect_execute(self, domain: Any, start: Signal, execute: Execute) -> None:
        domain += [
            start.eq(execute.start_issue),
            execute.issued.eq(self.issued),
            execute.issue_trap.eq(self.trap),
            execute.issue_cause.eq(self.cause),
            execute.issue_address.eq(self.address),
        ]

    def _checker_clear(self, m: Module) -> Value:
        """Input `clear` of the checker."""
        return self.clear

    def _verdict(self, m: Module, checker: ParallelChecker | SerialChecker) -> tuple[Any, Value]:
        """Domain of the signal that the command is refused, and the pulse with which it is valid."""
        return m.d.comb, checker.done

    def _checker(self, m: Module) -> tuple[ParallelChecker | SerialChecker, wiring.Component]:
        """The checker and the component that multiplies for the scalar MUL, as submodules."""
        raise NotImplementedError

    def _rules(self, m: Module, checker: wiring.Component) -> Value:
        """Connect the fields; returns a flag that they make the command illegal by rules outside the checker."""
        raise NotImplementedError

    def _sent(self) -> Value | int:
        """Condition that the fields of the command have reached its queue."""
        raise NotImplementedError

    def _payload(self, m: Module, unit: Unit, checker: wiring.Component) -> None:
        """Drive the payload of a unit's command stream."""
        raise NotImplementedError


class ParallelIssue(CommandIssue):
    """Checks all fields of a command at once; commands move to their queue whole.

    Latency, throughput: see CommandIssue and ParallelChecker.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    config_load, config_matrix, config_fuse, config_store : In
        Fields of each unit.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(config, {f"config_{unit.name.lower()}": In(config_layout(unit)) for unit in Unit})

    def make_registers(self) -> ConfigRegisters:
        """The registers of all fields."""
        return ConfigRegisters()

    def connect_fields(
        self, m: Module, core: wiring.Component, registers: ConfigRegisters | data.View
    ) -> None:
        """As `CommandIssue.connect_fields`: the fields come from their registers."""
        m.submodules.registers = registers
        for unit in Unit:
            name = unit.name.lower()
            m.d.comb += getattr(self, f"config_{name}").eq(getattr(registers, name))

    def _checker(self, m: Module) -> tuple[ParallelChecker, wiring.Component]:
        m.submodules.checker = checker = ParallelChecker(self.config)
        return checker, checker  # MUL borrows the multipliers of the bounds checks

    def _rules(self, m: Module, checker: wiring.Component) -> Value:
        for unit in Unit:
            name = unit.name.lower()
            m.d.comb += getattr(checker, name).eq(getattr(self, f"config_{name}"))
        broken = Signal(len(Unit))
        for unit in Unit:
            fields = getattr(self, f"config_{unit.name.lower()}")
            m.d.comb += broken[unit].eq(Cat(*RULES[unit](fields, self.config)).any())
        bad_command = Signal()
        with m.If(self.start):
            m.d.sync += bad_command.eq(broken.bit_select(self.unit, 1))
        return bad_command

    def _sent(self) -> int:
        return 1

    def _payload(self, m: Module, unit: Unit, checker: wiring.Component) -> None:
        name = unit.name.lower()
        derived = [checker.increments[INCREMENT_OF[field]] for field in DERIVED[unit]]
        whole = Cat(getattr(self, f"config_{name}"), *derived, self.meta)
        m.d.comb += getattr(self, name).payload.as_value().eq(whole)


class SerialIssue(CommandIssue):
    """Checks a command one field at a time; its fields reach the queue as words, the streams carry only `meta`.

    Latency, throughput: see CommandIssue and SerialChecker.

    Parameters
    ----------
    config : MlaConfig
        Sizes of the machine, with `serial_commands`.

    Members
    -------
    field_w_en, field_w_field, field_w_data, field_clear : In
        Writes of fields, see SerialChecker.
    limit : Out
        Number of the limit of a DRAM window that is requested.
    sent : In
        The command's words were sent to its queue.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(config, {f"field_{name}": In(width) for name, width in WRITES.items()})

    def make_registers(self) -> data.View:
        """A write of a field; the checker and `CommandWords` store it."""
        return Signal(data.StructLayout(WRITES))

    def connect_fields(
        self, m: Module, core: wiring.Component, registers: ConfigRegisters | data.View
    ) -> None:
        """As `CommandIssue.connect_fields`: writes go to the checker and to the component that sends words."""
        m.d.comb += core.limit.eq(self.limit)
        m.d.comb += [getattr(self, f"field_{name}").eq(getattr(registers, name)) for name in WRITES]
        m.submodules.words = words = CommandWords()
        m.d.comb += [
            *(getattr(words, name).eq(getattr(registers, name)) for name in WRITES),
            words.start.eq(self.start),
            words.unit.eq(self.unit),
            words.passed.eq(self.passed),
            words.increments.eq(self.increments),
            words.stop.eq(self.clear),
            self.sent.eq(words.sent),
            core.word_valid.eq(words.valid),
            core.word.eq(words.word),
        ]

    def _checker(self, m: Module) -> tuple[SerialChecker, wiring.Component]:
        m.submodules.checker = checker = SerialChecker(self.config)
        m.submodules.multiplier = multiplier = ScalarMultiply()
        return checker, multiplier

    def _rules(self, m: Module, checker: wiring.Component) -> Value:
        m.d.comb += self.limit.eq(checker.limit)
        m.d.comb += [getattr(checker, f"field_{name}").eq(getattr(self, f"field_{name}")) for name in WRITES]
        return Const(0)  # included in `bad` of the checker

    def _sent(self) -> Value:
        return self.sent

    def _payload(self, m: Module, unit: Unit, checker: wiring.Component) -> None:
        m.d.comb += getattr(self, unit.name.lower()).payload.meta.eq(self.meta)


class PipelinedSerialIssue(SerialIssue):
    """`SerialIssue` with registers at the start of an issue, at its outcome and behind the verdict of the checker.

    Latency: as `SerialIssue`, and a cycle more for each of these registers. Throughput: as `SerialIssue`.
    Parameters, members: as `SerialIssue`.
    """

    def connect_execute(self, m: Module, execute: Execute) -> None:
        """As `CommandIssue.connect_execute`, through registers."""
        start = Signal()
        m.d.comb += self.start.eq(start & ~self.clear)
        self._connect_execute(m.d.sync, start, execute)

    def _checker_clear(self, m: Module) -> Value:
        return pipeline_register(m, "clear_held", self.clear)

    def _verdict(self, m: Module, checker: ParallelChecker | SerialChecker) -> tuple[Any, Value]:
        return m.d.sync, pipeline_register(m, "done", checker.done & ~self.clear)


def command_issue(config: MlaConfig) -> ParallelIssue | SerialIssue:
    """The variant of CommandIssue for a machine, by `serial_commands` and `pipelined`."""
    if config.serial_commands:
        return config.variant(SerialIssue, PipelinedSerialIssue)(config)
    return ParallelIssue(config)
