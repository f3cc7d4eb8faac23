"""Errors and reports of the validator."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compiler.util.tables import counted
from compiler.validate.footprint import StridedRegion
from hw.errors import InputError
from hw.isa.enums import Trap, Unit

#: Kinds of validation errors by stable name; tools classify errors by them.
KINDS = {
    "size": "a program is empty or does not fit the instruction store",
    "operand": "an operand, statistic or tag that does not exist",
    "illegal": "a word that is not a valid instruction",
    "pc": "execution leaves the program",
    "segment": "a call into a segment without pinned code",
    "loop": "loops nested too deep, an empty body, a break without a loop",
    "call": "calls nested too deep, a return without a call",
    "trap": "a software trap",
    "endless": "more instructions or cycles than the limit of one macro-instruction",
    "statistics": "an address, count or mode depends on the data, or the data can select too many paths",
    "command": "a unit command whose fields contradict each other or the hardware configuration",
    "bounds": "an access outside scratchpad, accumulator, parameter slots or tables",
    "window": "an access outside the DRAM windows",
    "deadlock": "the sequencer and all units wait for each other",
    "semaphore": "a semaphore is not 0 at the end",
    "race": "two conflicting accesses are unordered, or a statistic is read while it may change",
    "uninitialized": "on-chip memory is read before it is written",
}

#: Error kind that corresponds to each hardware trap.
KIND_OF_TRAP = {
    Trap.ILLEGAL_INSTRUCTION: "illegal",
    Trap.PC_RANGE: "pc",
    Trap.SEGMENT_INVALID: "segment",
    Trap.LOOP_STACK: "loop",
    Trap.CALL_STACK: "call",
    Trap.BAD_OPERAND: "operand",
    Trap.BAD_COMMAND: "command",
    Trap.SP_BOUNDS: "bounds",
    Trap.ACC_BOUNDS: "bounds",
    Trap.SLOT_BOUNDS: "bounds",
    Trap.DRAM_WINDOW: "window",
    Trap.DEADLOCK: "deadlock",
    Trap.STEP_LIMIT: "endless",
    Trap.SOFTWARE: "trap",
}


class InstructionLocation(NamedTuple):
    """Location of an instruction in a call.

    Parameters
    ----------
    call : int
        Index of the call in the stream.
    program : str
        Name of the program that contains the instruction, which may be a pinned program.
    instruction : int
        Index of the instruction in the program; -1 for the program as a whole.
    line : int
        Line number in the source text; 0 if unknown.
    """

    call: int
    program: str
    instruction: int
    line: int = 0

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line else ""
        where = f", instruction {self.instruction}{line}" if self.instruction >= 0 else ""
        return f"call {self.call}, program {self.program!r}{where}"


class ValidationError(InputError):
    """Error for a stream of macro-instructions that cannot be proved safe.

    Parameters
    ----------
    kind : str
        Kind of the error, a key of `KINDS`.
    location : InstructionLocation
        Location of the offending instruction.
    reason : str
        One sentence that states the fault and what is required instead.
    """

    def __init__(self, kind: str, location: InstructionLocation, reason: str):
        super().__init__(f"{location}: {kind}: {reason}")
        self.kind = kind
        self.location = location
        self.reason = reason
        #: Index of the compiled network's stage that contains the stream, if any.
        self.stage: int | None = None

    def __reduce__(self) -> tuple:
        return ValidationError, (self.kind, self.location, self.reason)

    @property
    def call(self) -> int:
        """Index of the call."""
        return self.location.call

    @property
    def program(self) -> str:
        """Name of the program that contains the instruction."""
        return self.location.program

    @property
    def instruction(self) -> int:
        """Index of the instruction in its program; -1 for the program as a whole."""
        return self.location.instruction

    @property
    def line(self) -> int | None:
        """Line number in the source text; None if unknown."""
        return self.location.line or None

    def to_json(self) -> dict[str, str | int | None]:
        """Return the error as a JSON-serializable dict."""
        return {
            "kind": self.kind,
            "stage": self.stage,
            "call": self.call,
            "program": self.program,
            "instruction": self.instruction,
            "line": self.line,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class ProofReport:
    """Figures of a stream that was proved safe; if there are several paths, the maximum over all paths.

    Parameters
    ----------
    calls : int
        Number of macro-instructions.
    paths : int
        Number of execution paths that the data can select.
    instructions : int
        Number of executed micro-instructions.
    commands : dict
        Number of unit commands, by unit name.
    peak_in_flight : int
        Maximum number of issued commands that had not retired as far as the sequencer knew.
    regions : dict
        First and last address read, and first and last address written, in each memory: [low, high] or None.
    """

    calls: int
    paths: int
    instructions: int
    commands: dict[str, int]
    peak_in_flight: int
    regions: dict[str, dict[str, list[int] | None]]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serializable dict."""
        return {"ways" if name == "paths" else name: value for name, value in vars(self).items()}

    def __str__(self) -> str:
        commands = ", ".join(f"{count} {unit}" for unit, count in self.commands.items())
        lines = [
            f"safe: {counted(self.calls, 'call')}, {counted(self.instructions, 'instruction')}, "
            f"{counted(self.paths, 'path')}",
            f"commands: {commands}; at most {self.peak_in_flight} in flight",
        ]
        for space, spans in self.regions.items():
            touched = [f"{how} {span[0]:#x}..{span[1]:#x}" for how, span in spans.items() if span]
            lines.append(f"{space}: {', '.join(touched)}")
        return "\n".join(lines)


@dataclass
class ProofFigures:
    """Figures of one path during exploration."""

    instructions: int = 0
    peak: int = 0
    commands: list[int] = field(default_factory=lambda: [0] * len(Unit))
    reach: dict[tuple[str, bool], tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> "ProofFigures":
        """Return a copy of the figures, with which another path can continue."""
        return ProofFigures(self.instructions, self.peak, list(self.commands), dict(self.reach))

    def command(self, unit: Unit, regions: list[StridedRegion], in_flight: int) -> None:
        """Count a command."""
        self.commands[unit] += 1
        self.peak = max(self.peak, in_flight)
        for item in regions:
            key = (item.space, item.write)
            low, high = self.reach.get(key, (item.low, item.high))
            self.reach[key] = min(low, item.low), max(high, item.high)

    def add(self, more: "ProofFigures") -> None:
        """Add the figures of the calls that follow on the same path."""
        instructions, commands = self.instructions, self.commands
        self.join(more)
        self.instructions = instructions + more.instructions
        self.commands = [a + b for a, b in zip(commands, more.commands, strict=True)]

    def join(self, other: "ProofFigures") -> None:
        """Set each figure to its maximum over this path and another path."""
        self.instructions = max(self.instructions, other.instructions)
        self.peak = max(self.peak, other.peak)
        self.commands = [max(pair) for pair in zip(self.commands, other.commands, strict=True)]
        for key, (low, high) in other.reach.items():
            mine = self.reach.get(key, (low, high))
            self.reach[key] = min(mine[0], low), max(mine[1], high)

    def report(self, calls: int, paths: int) -> ProofReport:
        """Return a report with these figures for `calls` calls and `paths` execution paths."""
        regions: dict[str, dict[str, list[int] | None]] = {}
        for (space, write), span in sorted(self.reach.items()):
            regions.setdefault(space, {"read": None, "write": None})["write" if write else "read"] = list(
                span
            )
        commands = {unit.name.lower(): self.commands[unit] for unit in Unit}
        return ProofReport(calls, paths, self.instructions, commands, self.peak, regions)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
