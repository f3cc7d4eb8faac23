"""Items of a random program before semaphores are assigned: the input of the shrinker and the renderer."""

from dataclasses import dataclass, field

from hw.isa.enums import Unit
from hw.isa.micro_instruction import MicroOp


@dataclass
class Instruction:
    """One micro-instruction; `target`, if set, names a label that replaces imm (or the end of LOOP)."""

    op: MicroOp
    d: int = 0
    a: int = 0
    b: int = 0
    imm: int = 0
    target: str = ""


@dataclass
class Item:
    """Base class of the items of a program's body."""


@dataclass
class Scalar(Item):
    """Straight-line scalar code; code that reads statistics of units follows a fence."""

    code: list[Instruction]
    fenced: bool = False


@dataclass
class Issue(Item):
    """A unit command; `values` holds the fields and parts of packed words that differ from their defaults.

    `wait` and `signal` are combined with the masks of the order pass, for commands that must never start.
    `operand` is the index of the macro operand to which the command's addresses are relative, or -1.
    """

    unit: Unit
    values: dict[str, int]
    fresh: bool = True
    wait: int = 0
    signal: int = 0
    operand: int = -1


@dataclass
class Pair(Item):
    """Consecutive commands that depend on each other."""

    commands: list[Issue]


@dataclass
class Observe(Item):
    """Fill of scratchpad bytes with the low byte of a value, which makes the results of scalar code observable."""

    selector: int
    shift: int
    address: int
    length: int


@dataclass
class Fence(Item):
    """Wait for units, after which their statistics may be read."""

    mask: int = 15


@dataclass
class Sync(Item):
    """Wait of the sequencer for a token that the last command of a unit signals."""

    unit: Unit


@dataclass
class Tag(Item):
    """Change of the tag."""

    tag: int


@dataclass
class Group(Item):
    """Code between two fences: a loop, a conditional body or a called subroutine.

    Parameters
    ----------
    kind : str
        One of loop, branch, call, callp.
    count : int
        Trip count of a loop.
    condition : Instruction or None
        Branch that skips the body.
    """

    kind: str
    body: list[Item]
    count: int = 1
    condition: Instruction | None = None


@dataclass
class Stop(Item):
    """Code that makes the program trap; nothing after it is executed."""

    code: list[Instruction]
    blocked: list[Issue] = field(default_factory=list)


@dataclass
class ProgramText:
    """Body of a program; fences surround it if several macro-instructions run it (`shared`)."""

    body: list[Item]
    shared: bool = False
    halt: bool = True


@dataclass
class MacroCall:
    """A macro-instruction: the index of its program, or a raw header that must trap."""

    program: int
    operands: list[int]
    tag: int
    decoys: list[tuple[int, int, int]] = field(default_factory=list)
    header: int | None = None
    unbound: bool = False
    invalid: bool = False
