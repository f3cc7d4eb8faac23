"""Pieces of a random program, before semaphores: the shrinker deletes them, the renderer makes words."""

from dataclasses import dataclass, field

from hw.isa.enums import Unit
from hw.isa.micro_instruction import MicroOp


@dataclass
class Instruction:
    """One micro-instruction; `target` names a label that replaces imm (or LOOP's end) when set."""

    op: MicroOp
    d: int = 0
    a: int = 0
    b: int = 0
    imm: int = 0
    target: str = ""


@dataclass
class Item:
    """Anything in a program's body."""


@dataclass
class Scalar(Item):
    """Straight scalar code; behind a fence when it reads statistics of units."""

    code: list[Instruction]
    fenced: bool = False


@dataclass
class Issue(Item):
    """A unit command. `values` holds fields and parts of packed words that differ from their defaults.

    `wait` and `signal` are masks of its own (for commands that must never start); the order pass adds more.
    `operand` is the macro operand that its addresses are given relative to, -1 for none.
    """

    unit: Unit
    values: dict[str, int]
    fresh: bool = True
    wait: int = 0
    signal: int = 0
    operand: int = -1


@dataclass
class Pair(Item):
    """Commands that only make sense together."""

    commands: list[Issue]


@dataclass
class Observe(Item):
    """Fill scratchpad bytes with the low byte of a value: what scalar code computed becomes visible."""

    selector: int
    shift: int
    address: int
    length: int


@dataclass
class Fence(Item):
    """Wait for units; afterwards their statistics may be read."""

    mask: int = 15


@dataclass
class Sync(Item):
    """The sequencer takes a token of the last command of a unit."""

    unit: Unit


@dataclass
class Tag(Item):
    """Change the tag."""

    tag: int


@dataclass
class Group(Item):
    """Code between two fences: a loop, a conditional part, or a subroutine that is called.

    Parameters
    ----------
    kind : str
        loop, branch or call.
    count : int
        Trips of a loop.
    condition : Instruction or None
        Branch that skips the body.
    """

    kind: str
    body: list[Item]
    count: int = 1
    condition: Instruction | None = None


@dataclass
class Stop(Item):
    """What makes the program trap here; nothing after it runs."""

    code: list[Instruction]
    blocked: list[Issue] = field(default_factory=list)


@dataclass
class ProgramText:
    """A program: its body, and whether several macro-instructions run it (then fences surround it)."""

    body: list[Item]
    shared: bool = False
    halt: bool = True


@dataclass
class MacroCall:
    """A macro-instruction: the program it is meant to run, or a raw header that must trap."""

    program: int
    operands: list[int]
    tag: int
    decoys: list[tuple[int, int, int]] = field(default_factory=list)
    header: int | None = None
    unbound: bool = False
    invalid: bool = False
