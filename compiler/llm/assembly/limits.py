"""Limits of programs: length, hardware configuration, position in a sequence of calls, and legal values of fields."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from compiler.llm.assembly.operands import Rules, Spans, spans_of
from compiler.llm.tokens.assembly_tokens import ANY_HEAD, GROUPS, HEADS, PAIRS, Head
from compiler.validate.explore import LIMIT
from compiler.validate.macro_call import MacroCall
from cosim.semantics.command_checks import DramWindow, check_command
from cosim.semantics.command_fields import PACKED, unpack_fields
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS, defaults
from hw.isa.enums import Unit
from hw.isa.fields import Field, Packed
from hw.isa.micro_instruction import FORMS, LOOP_IMM, MAX_OPERANDS, MicroOp

#: Semaphore: producer, consumer (4: the sequencer), index.
Semaphore = tuple[int, int, int]
#: Operations that transfer control.
JUMPS = frozenset(
    op for op, form in FORMS.items() if "target" in form.operands and op is not MicroOp.LOOP
) | {MicroOp.RET}
_UNIT_OF = {packed: Unit[packed.split(".")[0].upper()] for packed in PAIRS}


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """Limits of a program; without a hardware configuration any assembly program is allowed.

    Parameters
    ----------
    tokens : int
        Maximum number of tokens, including the final `stop`. With a hardware configuration, tokens for a valid
        completion are reserved.
    instructions : int
        Maximum number of micro-instructions.
    config : MlaConfig or None
        Hardware configuration. If given, the program ends with `halt`, and only programs that the validator is expected
        to accept are allowed; the machine state is tracked except after jumps.
    operands : tuple of int or None
        32-bit operands of the macro-instruction; None for unknown values.
    tag : int
        Counter tag of the macro-instruction.
    windows : sequence of (first byte, last byte, permissions)
        DRAM windows of the program, as in `compiler.validate.validate`.
    before : sequence of MacroCall
        Macro-instructions that precede the program.
    leaves : dict
        Final count of each semaphore; 0 for semaphores that are not listed.
    jumps : bool
        True to allow branches, calls and traps; instructions after the first of these are not tracked.
    written : bool
        True to allow reading only those registers that the program has written; all registers are initially 0.
    """

    tokens: int = 1 << 20
    instructions: int = 1 << 14
    config: MlaConfig | None = None
    operands: tuple[int | None, ...] = ()
    tag: int = 0
    windows: Sequence[DramWindow] = ()
    before: Sequence[MacroCall] = ()
    leaves: Mapping[Semaphore, int] = field(default_factory=dict)
    jumps: bool = False
    written: bool = False

    def __post_init__(self) -> None:
        for name in ("tokens", "instructions"):
            minimum = 2 if name == "tokens" else 1
            if getattr(self, name) < minimum:
                raise InputError(f"{name} must be at least {minimum}, not {getattr(self, name)}")
        if len(self.operands) > MAX_OPERANDS:
            raise InputError(f"operands must be at most {MAX_OPERANDS}, not {len(self.operands)}")

    @cached_property
    def rules(self) -> Rules:
        """Rules for the operands of instructions."""
        maximum = min(self.tokens, self.instructions)
        return MachineRules(self.config, maximum, self.jumps) if self.config else Rules()


class MachineRules(Rules):
    """Operand rules for a hardware configuration.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the programs.
    instructions : int
        Maximum number of micro-instructions of a program.
    jumps : bool
        True to allow branches, calls and traps.
    """

    nameless = False

    def __init__(self, config: MlaConfig, instructions: int, jumps: bool):
        self._config, self._instructions, self._jumps = config, instructions, jumps

    @cached_property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        """Usable tokens by group name."""
        heads = [
            token for token, head in HEADS.items() if self._jumps or head.op not in (*JUMPS, MicroOp.TRAP)
        ]
        allowed = {
            token
            for name, tokens in PAIRS.items()
            for token, (index, value) in tokens.items()
            if value is None or self._has(name, index, value)
        }
        pairs = {token for tokens in PAIRS.values() for token in tokens}
        return {
            name: tuple(token for token in tokens if token not in pairs or token in allowed)
            for name, tokens in (GROUPS | {ANY_HEAD: tuple(heads)}).items()
        }

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Usable tokens by group name."""
        return self._groups

    def _has(self, packed: str, index: int, value: int) -> bool:
        spans = list(part_spans(self._config, _UNIT_OF[packed], packed.split(".")[1]).values())[index]
        return any(low <= value <= high for low, high in spans)

    def constants(self, head: Head) -> Spans:
        """Return the legal values of a field."""
        assert head.field
        return (field_span(self._config, Unit(head.d >> FIELD_INDEX_BITS), head.field.name),)

    def hidden(self, head: Head) -> Spans:
        """Return an empty tuple, because a field cannot be set to values outside its range."""
        return ()

    def parts(self, packed: Packed) -> dict[str, Spans]:
        """Return the legal values of each part of a packed field."""
        return part_spans(self._config, _UNIT_OF[packed.name], packed.name.split(".")[1])

    def numbers(self, head: Head, iterations: int) -> Spans:
        """Return the legal values of a single-number operand, inside loops with `iterations` iterations in total."""
        if head.op is MicroOp.LOOP:
            return ((1, self.max_iterations(iterations)),)
        if head.op is MicroOp.TAG:
            return ((0, self._config.tags - 1),)
        return super().numbers(head, iterations)

    def max_iterations(self, iterations: int) -> int:
        """Return the maximum iteration count of a loop inside loops with `iterations` iterations in total."""
        return max(1, min(LOOP_IMM.fields[1].high, LIMIT // self._instructions // max(iterations, 1)))

    def distances(self, pc: int) -> Spans:
        """Return the legal jump distances from an instruction."""
        return ((-pc, self._instructions - 1 - pc),)

    def loop_ends(self, pc: int) -> Spans:
        """Return an empty tuple, because every loop has a body."""
        return ()


# Ranges of field values for which a legal command exists. They are found by applying the hardware's command check to
# simple commands in each mode.

#: Unrestricted DRAM window; actual windows are checked for whole commands.
_ALL_DRAM = [(0, (1 << 32) - 1, 3)]
#: Maximum width of parts that select modes, and minimum width of fields that are addresses or counts.
_MAX_MODE_BITS, _MIN_ADDRESS_BITS = 3, 16
Setting = dict[str, int]


def _legal(config: MlaConfig, unit: Unit, setting: Setting) -> bool:
    return check_command(config, _ALL_DRAM, unit, unpack_fields(unit, list(setting.values()))) is None


def _modes(config: MlaConfig, unit: Unit) -> Iterator[Setting]:
    """Yield the base settings of a unit's command fields, followed by variants of them in each mode."""
    for base in _base_settings(config, unit):
        yield base
        for name, packed in PACKED[unit].items():
            for part in packed.fields:
                if part.width <= _MAX_MODE_BITS:
                    for value in range(part.low, part.high + 1):
                        yield base | {name: packed.pack(**{part.name: value})}


def _base_settings(config: MlaConfig, unit: Unit) -> Iterator[Setting]:
    """Yield command fields: defaults, steps and addresses of one row, addresses in the middle of the scratchpad."""
    setting = defaults(unit)
    yield setting
    wide = [field for field in UNIT_FIELDS[unit] if field.width >= _MIN_ADDRESS_BITS and not field.signed]
    yield setting | {field.name: config.n for field in wide}
    middle = config.sp_bytes // 2
    yield setting | {field.name: middle for field in wide if not field.default and field.high > middle}


@cache
def field_span(config: MlaConfig, unit: Unit, name: str) -> tuple[int, int]:
    """Return the smallest and largest legal value of a field that is not packed."""
    field = next(each for each in UNIT_FIELDS[unit] if each.name == name)
    low = high = field.default
    for setting in _modes(config, unit):
        if (low, high) == (field.low, field.high):
            break
        if not _legal(config, unit, setting):
            continue
        if low > field.low and _legal(config, unit, setting | {name: low - 1}):
            low = _last_legal(config, unit, setting, field, field.low)
        if high < field.high and _legal(config, unit, setting | {name: high + 1}):
            high = _last_legal(config, unit, setting, field, field.high)
    return low, high


def _last_legal(config: MlaConfig, unit: Unit, setting: Setting, field: Field, end: int) -> int:
    """Return the legal value of a field that is closest to `end`, found by bisection from a legal command."""
    if _legal(config, unit, setting | {field.name: end}):
        return end
    good, bad = setting[field.name], end
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if _legal(config, unit, setting | {field.name: middle}):
            good = middle
        else:
            bad = middle
    return good


@cache
def part_spans(config: MlaConfig, unit: Unit, name: str) -> dict[str, Spans]:
    """Return the legal values of each part of a packed field."""
    packed = PACKED[unit][name]
    return {
        part.name: spans_of(
            tuple(
                value
                for value in range(part.low, part.high + 1)
                if _part_legal(config, unit, name, packed, part.name, value)
            )
        )
        for part in packed.fields
    }


def _part_legal(config: MlaConfig, unit: Unit, name: str, packed: Packed, part: str, value: int) -> bool:
    """Return whether a command with the given value of a packed field's part is legal in some mode."""
    for setting in _modes(config, unit):
        values = packed.unpack(setting[name]) | {part: value}
        if _legal(config, unit, setting | {name: packed.pack(**values)}):
            return True
    return False
