"""Seeded random programs without races, and some that must trap.

The seed determines initial memories, programs, bindings and macro-instructions. Units run in parallel wherever the
order pass (`order.py`) finds no conflict.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.isa.macro_instruction import HEADER, MAGIC, SLOT_BYTES
from hw.isa.program import Program
from tests.support.program_gen.commands import CommandRanges, attempt
from tests.support.program_gen.items import (
    Fence,
    Group,
    Issue,
    Item,
    MacroCall,
    Observe,
    ProgramText,
    Scalar,
    Sync,
    Tag,
)
from tests.support.program_gen.matrix import random_continued_pair
from tests.support.program_gen.order import Order
from tests.support.program_gen.render import Renderer, library_groups
from tests.support.program_gen.scalar import REGISTERS, STOPS, condition, scalar_code, stop

RING_SLOTS = 32
DATA = RING_SLOTS * SLOT_BYTES
DATA_BYTES = 1 << 15
SLOTS_AT = DATA + DATA_BYTES
IMAGES = 1 << 17
DRAM_BYTES = 1 << 18
STEP_LIMIT = 4000
TAGS = 4


@dataclass
class Case:
    """Programs and macro-instructions of one run on one configuration."""

    config: MlaConfig
    seed: int
    programs: list[ProgramText]
    macros: list[MacroCall]
    dma: bool = False

    def render(self) -> tuple[Program, list[Program]]:
        """Return the pinned library and the programs, with semaphores assigned."""
        order = Order(self.config, self.seed)
        order.run(self.macros, self.programs)
        entries: dict[int, int] = {}
        shelf = Renderer(order, entries, [])
        groups = [group for text in self.programs for group in library_groups(text.body)]
        for group in reversed(groups):  # called bodies precede their callers
            entries[id(group)] = len(shelf.code)
            shelf.subroutine(f"entry{len(entries)}", group.body)
        shelf.flush()
        if not shelf.code:
            shelf.subroutine("empty", [])
        library = Program("library", tuple(shelf.words()))
        out = []
        for number, text in enumerate(self.programs):
            runs = [m for m in self.macros if m.program == number and m.header is None]
            operands = runs[0].operands if len(runs) == 1 else []
            out.append(Renderer(order, entries, operands).program(text, f"program{number}"))
        return library, out


@dataclass
class _ProgramState:
    """State of the generator while it draws one program."""

    ranges: CommandRanges
    rng: random.Random
    operands: int
    depth: int = 0
    body: list[Item] = field(default_factory=list)


def generate(config: MlaConfig, seed: int) -> Case:
    """Return the test case generated from a seed."""
    rng = random.Random(f"{config.n}:{seed}")
    ranges = CommandRanges(config, rng, (DATA, DATA_BYTES), (DATA, IMAGES - 1))
    programs, macros = [ProgramText(_prepare(config), shared=True)], [MacroCall(0, [], 0)]
    for _ in range(rng.randint(1, 4)):
        _add_program(ranges, rng, programs, macros)
    tail = macros[1:]
    if len(tail) > 1 and rng.random() < 0.5:
        shared = [m for m in tail if m.header is None and programs[m.program].shared]
        macros += [MacroCall(m.program, _operands(rng, len(m.operands)), rng.randrange(TAGS)) for m in shared]
    case = Case(config, seed, programs, macros, dma=rng.random() < 0.3)
    while _words(case) > config.wis_words:
        _drop_program(case)
    return case


def _words(case: Case) -> int:
    """Return the number of instruction store words that a case occupies."""
    library, programs = case.render()
    return sum(len(program.words) for program in (library, *programs))


def _drop_program(case: Case) -> None:
    """Remove the last program and its macro-instructions."""
    case.programs.pop()
    case.macros = [macro for macro in case.macros if macro.program < len(case.programs)]


def _prepare(config: MlaConfig) -> list[Item]:
    """Return commands that load all parameter slots and tables, so that no result depends on initial contents."""
    size = config.param_slots * 16 * config.n
    return [
        Issue(Unit.LOAD, {"space": 1, "dram": SLOTS_AT, "len": size}),
        Issue(Unit.LOAD, {"space": 2, "dram": SLOTS_AT + size, "len": config.table_slots * 512}),
    ]


def _operands(rng: random.Random, count: int) -> list[int]:
    return [rng.choice((rng.randrange(16), rng.getrandbits(32))) for _ in range(count)]


def _add_program(
    ranges: CommandRanges, rng: random.Random, programs: list[ProgramText], macros: list[MacroCall]
) -> None:
    number, kind = len(programs), rng.random()
    operands = _operands(rng, rng.choice((0, 1, 3, 48)))
    macro = MacroCall(number, operands, rng.randrange(TAGS))
    draw = _ProgramState(ranges, rng, len(operands))
    text = ProgramText(_body(draw, rng.randint(1, 8)), shared=rng.random() < 0.25)
    if kind < 0.05:
        macro.header = rng.choice(
            (HEADER.pack(operands=49, magic=MAGIC), HEADER.pack(magic=0x4C), rng.getrandbits(24))
        )
    elif kind < 0.1:
        macro.unbound = True
    elif kind < 0.15:
        macro.invalid = True
    elif kind < 0.45:
        name = rng.choice(STOPS)
        text.body.append(stop(ranges, rng, len(operands), name))
        text.shared = False
        text.halt = name not in ("fall_off",)
        if text.halt and rng.random() < 0.5:
            text.body += _body(draw, 1)
    if rng.random() < 0.3:
        macro.decoys = _decoys(rng, operands)
    programs.append(text)
    macros.append(macro)


def _decoys(rng: random.Random, operands: list[int]) -> list[tuple[int, int, int]]:
    """Return guards as (compare, selector, value); guards that would hold are removed when the table is written."""
    selectors = [64 + rng.randrange(48), 128 + 5, 128 + 6, 128 + 7, 40]
    return [
        (rng.randint(1, 6), rng.choice(selectors), rng.choice((0, 3, 1 << 31, rng.getrandbits(32))))
        for _ in range(rng.randint(1, 3))
    ]


def _body(draw: _ProgramState, length: int) -> list[Item]:
    body: list[Item] = []
    for _ in range(length):
        body += _piece(draw)
    return body


def _piece(draw: _ProgramState) -> list[Item]:
    rng, ranges = draw.rng, draw.ranges
    kind = rng.random()
    if kind < 0.55:
        return [_command(draw) for _ in range(rng.randint(1, 4))]
    if kind < 0.65:
        return [Scalar(scalar_code(rng, draw.operands))]
    if kind < 0.75:
        return [Scalar(scalar_code(rng, draw.operands, statistics=True), fenced=True), _observe(draw)]
    if kind < 0.8:
        return [Sync(rng.choice(tuple(Unit)))]
    if kind < 0.84:
        return [Fence(rng.randrange(1, 16))]
    if kind < 0.88:
        return [Tag(rng.randrange(TAGS))]
    if kind < 0.9:
        pair = random_continued_pair(ranges, rng)
        return [pair] if pair else []
    if draw.depth >= 2:
        return [_observe(draw)]
    draw.depth += 1
    name = rng.choice(("loop", "branch", "call", "callp"))
    body = _body(draw, rng.randint(1, 2))
    if name == "callp":
        body = _without_operands(body)
    draw.depth -= 1
    return [Group(name, body, rng.choice((0, 1, 2, 3)), condition(rng, draw.operands))]


def _command(draw: _ProgramState) -> Issue:
    rng = draw.rng
    command = attempt(
        draw.ranges, rng, rng.choice((Unit.LOAD, Unit.MATRIX, Unit.FUSE, Unit.FUSE, Unit.STORE))
    )
    if draw.operands and rng.random() < 0.3:
        command.operand = rng.randrange(draw.operands)
    return command


def _observe(draw: _ProgramState) -> Observe:
    first, stop_ = draw.ranges.ranges["sp"]
    length = draw.rng.randint(1, 2 * draw.ranges.config.n)
    return Observe(
        draw.rng.randrange(1, REGISTERS),
        8 * draw.rng.randrange(4),
        draw.rng.randrange(first, stop_ - length),
        length,
    )


def _without_operands(body: list[Item]) -> list[Item]:
    for item in body:
        if isinstance(item, Issue):
            item.operand = -1
    return body


def initial_dram(case: Case) -> np.ndarray:
    """Return the DRAM before the run, from the first byte after the ring."""
    rng = np.random.default_rng(case.seed)
    dram = rng.integers(0, 256, DRAM_BYTES, np.uint8)
    dram[:DATA] = 0
    n = case.config.n
    slots = dram[SLOTS_AT : SLOTS_AT + case.config.param_slots * 16 * n].reshape(-1, 16 * n)
    realistic = rng.random(len(slots)) < 0.8
    for first in (8 * n, 13 * n):  # most exponents are in the range that networks use
        slots[realistic, first : first + n] = (
            rng.integers(-12, 3, (int(realistic.sum()), n)).astype(np.int8).view(np.uint8)
        )
    return dram


def initial_memories(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the scratchpad and the accumulator before the run."""
    rng = np.random.default_rng(case.seed + (1 << 32))
    sp = rng.integers(0, 256, case.config.sp_bytes, np.uint8)
    acc = rng.integers(-(1 << 31), 1 << 31, (case.config.acc_rows, case.config.n), np.int64).astype(np.int32)
    acc[rng.random(case.config.acc_rows) < 0.5] >>= 16
    return sp, acc
