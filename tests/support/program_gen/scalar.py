"""Random scalar code, and code that traps."""

import random

from cosim.semantics.command_checks import check_command
from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Trap, Unit
from hw.isa.micro_instruction import LOOP_IMM, OPERAND_BASE, STATISTIC_BASE, MicroOp, Statistic
from tests.support.program_gen.commands import CommandRanges, attempt, config_of
from tests.support.program_gen.items import Instruction, Issue, Stop

ALU = tuple(op for op in MicroOp if MicroOp.ADD <= op <= MicroOp.SEQ)
BRANCHES = tuple(op for op in MicroOp if MicroOp.BEQ <= op <= MicroOp.BGEU)
#: Registers that scalar code uses; the scratch register of the renderer is not among them.
REGISTERS = 8
_FUSE = (
    Statistic.FUSE_ROWS,
    Statistic.FUSE_ZEROS,
    Statistic.FUSE_MIN,
    Statistic.FUSE_MAX,
    Statistic.MATRIX_ZEROS,
)
_STATIC = (Statistic.N, Statistic.OPERANDS, Statistic.TAG)
STOPS = (
    "software",
    "illegal",
    "field",
    "pc_range",
    "fall_off",
    "operand",
    "selector",
    "loop_deep",
    "break",
    "empty_loop",
    "ret",
    "recursion",
    "callp",
    "callp_number",
    "endless",
    "command",
    "command",
    "command",
    "command",
    "never",
    "never_wait",
    "never_queue",
)


def selector(rng: random.Random, operands: int, *, statistics: bool = False) -> int:
    """Return a legal selector that is independent of timing; `statistics` permits unit statistics (after a fence
    only).
    """
    kind = rng.random()
    if kind < 0.2 and operands:
        return OPERAND_BASE + rng.randrange(operands)
    if kind < 0.3:
        return STATISTIC_BASE + rng.choice(_STATIC)
    if kind < 0.8 and statistics:
        return STATISTIC_BASE + rng.choice(_FUSE)
    return rng.randrange(REGISTERS)


def immediate(rng: random.Random) -> int:
    """Return an immediate, preferably a corner value."""
    return rng.choice((0, 0, 1, -1, rng.randint(-40, 40), rng.randint(-(1 << 31), (1 << 31) - 1)))


def scalar_code(rng: random.Random, operands: int, *, statistics: bool = False) -> list[Instruction]:
    """Return one to five scalar operations."""
    return [
        Instruction(
            rng.choice(ALU),
            rng.randrange(REGISTERS),
            selector(rng, operands, statistics=statistics),
            selector(rng, operands),
            immediate(rng),
        )
        for _ in range(rng.randint(1, 5))
    ]


def condition(rng: random.Random, operands: int) -> Instruction:
    """Return a branch; the branch must follow a fence."""
    return Instruction(
        rng.choice(BRANCHES), 0, selector(rng, operands, statistics=True), selector(rng, operands)
    )


def illegal_command(ranges: CommandRanges, rng: random.Random) -> Issue:
    """Return a command that the checks reject; all trap causes are equally likely."""
    causes = (Trap.BAD_COMMAND, Trap.SP_BOUNDS, Trap.ACC_BOUNDS, Trap.SLOT_BOUNDS, Trap.DRAM_WINDOW)
    cause = rng.choice(causes)
    while True:
        command = attempt(ranges, rng, rng.choice(tuple(Unit)))
        fields = [f for f in UNIT_FIELDS[command.unit] if f.name not in ("word", "src", "stage")]
        for _ in range(rng.randint(1, 2)):
            item = rng.choice(fields)
            command.values[item.name] = rng.choice((0, item.low, item.high, rng.randint(item.low, item.high)))
        if command.unit == Unit.MATRIX and rng.random() < 0.3:
            command.values[rng.choice(("wide", "scaled", "sparse"))] = 1
        found = check_command(ranges.config, ranges.windows, command.unit, config_of(command))
        if found and found[0] == cause:
            return command


def stop(ranges: CommandRanges, rng: random.Random, operands: int, kind: str) -> Stop:
    """Return code of a kind in `STOPS`, which makes a program trap."""
    config = ranges.config
    if kind == "command":
        return Stop([], [illegal_command(ranges, rng)])
    if kind.startswith("never"):
        return _never(ranges, rng, kind)
    return Stop(_code(config, rng, operands, kind))


def _code(config: MlaConfig, rng: random.Random, operands: int, kind: str) -> list[Instruction]:
    number = rng.randrange(1 << 14)
    codes = {
        "software": [Instruction(MicroOp.TRAP, imm=number)],
        "illegal": [Instruction(MicroOp.ILLEGAL, imm=number)],
        "field": [Instruction(MicroOp.SET, d=rng.randrange(4) << 7 | rng.randint(100, 127))],
        "pc_range": [Instruction(MicroOp.BEQ, imm=config.wis_words + rng.randrange(1000))],
        "fall_off": [Instruction(MicroOp.ADD, d=1, imm=1)],
        "operand": [Instruction(MicroOp.ADD, d=1, a=1, b=OPERAND_BASE + operands)],
        "selector": [Instruction(MicroOp.SUB, d=1, a=rng.choice((32, 63, 112, 127, 137, 255)))],
        "loop_deep": [
            Instruction(MicroOp.LOOP, imm=LOOP_IMM.pack(end=4000, count=2))
            for _ in range(config.loop_depth + 1)
        ],
        "break": [Instruction(MicroOp.BREAK)],
        "empty_loop": [Instruction(MicroOp.LOOP, imm=LOOP_IMM.pack(end=1, count=3))],
        "ret": [Instruction(MicroOp.RET)],
        "recursion": [Instruction(MicroOp.CALL, target="stop")],
        "callp": [Instruction(MicroOp.CALLP, d=config.segments - 1)],
        "callp_number": [Instruction(MicroOp.CALLP, d=config.segments + rng.randrange(4))],
        "endless": [Instruction(MicroOp.ADD, d=1, a=1, imm=1), Instruction(MicroOp.BEQ, target="stop")],
    }
    return codes[kind]


def _never(ranges: CommandRanges, rng: random.Random, kind: str) -> Stop:
    """Return a command that waits for a token that no command signals, and code that blocks the sequencer."""
    command = attempt(ranges, rng, rng.choice(tuple(Unit)))
    unit = command.unit
    command.wait = 1 << rng.randrange(16)
    if kind == "never":
        return Stop([Instruction(MicroOp.FENCE, d=1 << unit | rng.randrange(16))], [command])
    if kind == "never_wait":
        return Stop([Instruction(MicroOp.WAIT, d=unit << 2 | rng.randrange(4))], [command] * rng.randrange(2))
    return Stop([], [command, *(_copy(command) for _ in range(ranges.config.queue_depth + 1))])


def _copy(command: Issue) -> Issue:
    return Issue(command.unit, dict(command.values), fresh=False)
