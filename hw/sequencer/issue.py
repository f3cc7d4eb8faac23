"""Issue of commands: a command is checked and then transferred to the queue of its unit."""

from abc import ABC, abstractmethod
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

#: Ports by which fields are written, with the meaning of the ports of `ConfigRegisters`.
WRITES = {"w_en": 1, "w_field": 2 + FIELD_INDEX_BITS, "w_data": 32, "clear": len(Unit)}


class CommandIssue(wiring.Component, ABC):
    """Issue block, which executes the `issue` instruction; `command_issue` chooses the variant for a machine.

    Latency: a command is offered as many cycles after `start` as the checker takes. `issued` is high in the cycle of
    its transfer, and `trap` in the cycle in which a legal command would have been offered. Throughput: one command at a
    time.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    fields : dict of str to Member
        Ports through which the variant receives the fields of commands.

    Members
    -------
    start : In
        Begin an issue; `unit`, `meta` and the fields must be held until `issued` or `trap`.
    unit, meta : In
        Unit of the command, and the metadata that accompany its fields.
    windows : In
        Limits and permissions of the DRAM windows.
    clear : In
        Abandon the command; only `clear` withdraws an offer.
    passed, increments : Out
        `passed` is high if the command is legal; `increments` are its derived increments. Both are valid from the end
        of the check to `issued`.
    load, matrix, fuse, store : Out
        Command streams of the units.
    issued : Out
        One-cycle pulse when the command is queued.
    full : Out
        High while a command waits for room in its queue.
    trap, cause, address : Out
        `trap` is a one-cycle pulse if the command is illegal; `cause` and `address` describe the trap.
    mul, mul_a, mul_b : In, mul_product : Out
        Request, operands and product of the scalar MUL; see `ParallelChecker`.
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
        """Connect the start and the outcome of an issue with the execute stage, in the module of the core."""
        self._connect_execute(m.d.comb, self.start, execute)

    @abstractmethod
    def make_registers(self) -> ConfigRegisters | data.View:
        """Return an object with the members of `WRITES`, to which the fields that a program writes are sent."""

    @abstractmethod
    def connect_fields(
        self, m: Module, core: wiring.Component, registers: ConfigRegisters | data.View
    ) -> None:
        """Add the connections of the command fields to the module of the core.

        Parameters
        ----------
        m : Module
            Module of the core.
        core : Component
            Core that this component belongs to.
        registers : ConfigRegisters or View
            Result of `make_registers`; its inputs are already driven.
        """

    def _connect_execute(self, domain: Any, start: Signal, execute: Execute) -> None:
        domain += [
            start.eq(execute.start_issue),
            execute.issued.eq(self.issued),
            execute.issue_trap.eq(self.trap),
            execute.issue_cause.eq(self.cause),
            execute.issue_address.eq(self.address),
        ]

    def _checker_clear(self, m: Module) -> Value:
        """Return the value for the checker's input `clear`."""
        return self.clear

    def _verdict(self, m: Module, checker: ParallelChecker | SerialChecker) -> tuple[Any, Value]:
        """Return the domain in which the verdict is assigned, and the pulse in whose cycle the verdict is valid.

        The verdict is high if the command is illegal.
        """
        return m.d.comb, checker.done

    @abstractmethod
    def _checker(self, m: Module) -> tuple[ParallelChecker | SerialChecker, wiring.Component]:
        """Add the checker, and the component that multiplies for the scalar MUL, as submodules; return both."""

    @abstractmethod
    def _rules(self, m: Module, checker: wiring.Component) -> Value:
        """Connect the fields; return a signal that is high if they violate a rule that the checker does not check."""

    @abstractmethod
    def _sent(self) -> Value | int:
        """Return a value that is high if the fields of the command have reached its queue."""

    @abstractmethod
    def _payload(self, m: Module, unit: Unit, checker: wiring.Component) -> None:
        """Drive the payload of a unit's command stream."""


class ParallelIssue(CommandIssue):
    """`CommandIssue` that checks all fields of a command at once and transfers a command to its queue in one cycle.

    Latency and throughput: see `CommandIssue` and `ParallelChecker`.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    config_load, config_matrix, config_fuse, config_store : In
        Current fields of each unit.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(config, {f"config_{unit.name.lower()}": In(config_layout(unit)) for unit in Unit})

    def make_registers(self) -> ConfigRegisters:
        """Return the registers of all fields."""
        return ConfigRegisters()

    def connect_fields(
        self, m: Module, core: wiring.Component, registers: ConfigRegisters | data.View
    ) -> None:
        """Connect the outputs of the field registers with this component; see `CommandIssue.connect_fields`."""
        m.submodules.registers = registers
        for unit in Unit:
            name = unit.name.lower()
            m.d.comb += getattr(self, f"config_{name}").eq(getattr(registers, name))

    def _checker(self, m: Module) -> tuple[ParallelChecker, wiring.Component]:
        m.submodules.checker = checker = ParallelChecker(self.config)
        return checker, checker  # MUL shares the multipliers of the bounds checks

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
    """`CommandIssue` that checks a command one field at a time and sends the fields to the queue as words.

    The command streams carry only `meta`.

    Latency and throughput: see `CommandIssue` and `SerialChecker`.

    Parameters
    ----------
    config : MlaConfig
        Configuration of a machine with `serial_commands`.

    Members
    -------
    field_w_en, field_w_field, field_w_data, field_clear : In
        Writes to fields; see `SerialChecker`.
    limit : Out
        Index of the requested limit of a DRAM window.
    sent : In
        High if the command's words have been sent to its queue.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(config, {f"field_{name}": In(width) for name, width in WRITES.items()})

    def make_registers(self) -> data.View:
        """Return the signals of a field write; the checker and `CommandWords` store the value."""
        return Signal(data.StructLayout(WRITES))

    def connect_fields(
        self, m: Module, core: wiring.Component, registers: ConfigRegisters | data.View
    ) -> None:
        """Connect the field writes with the checker and `CommandWords`; see `CommandIssue.connect_fields`."""
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
    """`SerialIssue` with registers at the start of an issue, at its outcome and after the verdict of the checker.

    Latency: one cycle more than `SerialIssue` for each of these registers. Throughput, parameters and members are the
    same as for `SerialIssue`.
    """

    def connect_execute(self, m: Module, execute: Execute) -> None:
        """Connect the start and the outcome of an issue through registers; see `CommandIssue.connect_execute`."""
        start = Signal()
        m.d.comb += self.start.eq(start & ~self.clear)
        self._connect_execute(m.d.sync, start, execute)

    def _checker_clear(self, m: Module) -> Value:
        return pipeline_register(m, "clear_held", self.clear)

    def _verdict(self, m: Module, checker: ParallelChecker | SerialChecker) -> tuple[Any, Value]:
        return m.d.sync, pipeline_register(m, "done", checker.done & ~self.clear)


def command_issue(config: MlaConfig) -> ParallelIssue | SerialIssue:
    """Return the variant of `CommandIssue` for a machine, selected by `serial_commands` and `pipelined`."""
    if config.serial_commands:
        return config.variant(SerialIssue, PipelinedSerialIssue)(config)
    return ParallelIssue(config)
