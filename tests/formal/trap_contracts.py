"""Contracts of the issue of commands: a command in a mode that the machine lacks, or that conflicts, never starts."""

from types import ModuleType

from amaranth.hdl import Assert, Assume, Cat, Module, Signal, Value

from hw.config import MlaConfig
from hw.isa.enums import Space, Trap, Unit
from hw.sequencer import issue
from tests.formal.axi_contracts import Contract, constant

#: Number of cycles within which a command that is not depthwise is issued or traps.
LATENCY = 12
#: Fields that must be multiples of N or 2 * N, or 0, in a mode; any number of three bits.
_LOAD_FIELDS = ("dst", "dst_y", "dst_z")
_MATRIX_FIELDS = ("a_base", "a_u", "a_v", "a_ic", "a_oc", "w_zp")


class ModeContract(Contract):
    """A command in an illegal mode traps with BAD_COMMAND at most LATENCY cycles after its start and reaches no queue.

    The flags of the command are any, as are the fields that must be aligned or 0 in a mode; the other fields are 1. The
    definition of an illegal mode is that of docs/machine.md.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    unit : Unit
        LOAD (packed weights) or MATRIX (wide mode, sparse mode, scaled sums).
    source : module
        `hw.sequencer.issue`, or a mutant of it.
    """

    def __init__(self, config: MlaConfig, unit: Unit, source: ModuleType = issue):
        self._config, self._unit = config, unit
        free = _LOAD_FIELDS if unit == Unit.LOAD else _MATRIX_FIELDS
        block = source.ParallelIssue(config)
        word = len(getattr(block, f"config_{unit.name.lower()}").word.as_value())
        super().__init__(block, dict.fromkeys(free, 3) | {"word": word})

    def claim(self, m: Module, block: issue.ParallelIssue) -> None:
        name = self._unit.name.lower()
        fields = getattr(block, f"config_{name}")
        waits = Signal(range(LATENCY + 1))
        free = _LOAD_FIELDS if self._unit == Unit.LOAD else _MATRIX_FIELDS
        for member in fields.shape().members:
            if member in free:
                value = constant(m, getattr(self, member))
            elif member == "word":
                value = constant(m, self.word)
            else:
                value = 1
            m.d.comb += getattr(fields, member).eq(value)
        illegal = self._packed(fields) if self._unit == Unit.LOAD else self._modes(fields)
        trapped = Signal()
        m.d.sync += [trapped.eq(trapped | block.trap)]
        m.d.sync += waits.eq(waits + (waits != LATENCY))
        m.d.comb += [
            block.start.eq(waits == 0),
            block.mul.eq(0),
            block.windows.eq(0),
            block.clear.eq(0),
            block.unit.eq(self._unit),
        ]
        m.d.comb += [
            Assume(illegal),
            Assert(~block.issued & ~block.passed & ~getattr(block, name).valid),
            Assert(~block.trap | (block.cause == Trap.BAD_COMMAND)),
            Assert((waits != LATENCY) | trapped | block.trap),
        ]
        if self._unit == Unit.MATRIX:
            # The check of a depthwise command divides first, which takes too many cycles.
            m.d.comb += Assume(~fields.word.dw)

    def _packed(self, fields: Value) -> Value:
        """Return a value that is high if a LOAD of packed weights is illegal."""
        word = fields.word
        if not self._config.packed_loads:
            return word.packed
        unaligned = Cat(getattr(fields, name)[:2] for name in ("dst", "dst_y", "dst_z")).any()
        return word.packed & (word.fill | word.transpose | (word.space != Space.SP) | unaligned)

    def _modes(self, fields: Value) -> Value:
        """Return a value that is high if the mode of a MATRIX command is illegal."""
        word, config = fields.word, self._config
        addresses = [getattr(fields, name)[:3] for name in ("a_base", "a_u", "a_v", "a_ic", "a_oc")]
        conflict = word.w_transpose | word.w_unsigned | (fields.w_zp != 0) | Cat(addresses).any()
        wide = conflict if config.wide else 1
        sparse = conflict | word.wide if config.sparse else 1
        scaled = word.w_transpose if config.wide else 1
        return (word.wide & wide) | (word.sparse & sparse) | (word.scaled & scaled)
