"""Dispatch: decoding of ring slots, and selection of the program to run."""

import numpy as np

from cosim.golden.interpreter import SequencerContext
from cosim.golden.traps import NO_SEGMENT, TrapRaisedError
from cosim.semantics.alu import signed
from cosim.semantics.instruction import selected_statistic
from hw.config import MlaConfig
from hw.isa.enums import Compare, Trap
from hw.isa.macro_instruction import CANDIDATE, HEADER, MAGIC, OPERAND_WORD, SLOT_BYTES
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, Statistic

_COMPARE = {
    Compare.EQ: lambda x, v: x == v,
    Compare.NE: lambda x, v: x != v,
    Compare.LT: lambda x, v: signed(x) < signed(v),
    Compare.GE: lambda x, v: signed(x) >= signed(v),
    Compare.LTU: lambda x, v: x < v,
    Compare.GEU: lambda x, v: x >= v,
}


class DispatchTable:
    """Dispatch table with shadow and live entries, each a pair (candidate word, guard value).

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine, which determines the number of opcodes and candidates.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        self.shadow = [(0, 0)] * (config.opcodes * config.candidates)
        self.live = list(self.shadow)

    def write(self, index: int, word: int, value: int) -> None:
        """Write one shadow entry; this has no effect if `index` is out of range."""
        if index < len(self.shadow):
            self.shadow[index] = (word, value)

    def commit(self) -> None:
        """Copy the shadow entries to the live table."""
        self.live = list(self.shadow)

    def choose(
        self, machine: SequencerContext, opcode: int, operands: list[int], tag: int
    ) -> tuple[int, int]:
        """Return the segment and the index of an opcode's first candidate whose guard holds.

        Raises
        ------
        TrapRaisedError
            The opcode has no candidate whose guard holds.
        """
        if opcode < self.config.opcodes:
            for candidate in range(self.config.candidates):
                word, value = self.live[opcode * self.config.candidates + candidate]
                entry = CANDIDATE.unpack(word)
                if entry["valid"] and _holds(machine, entry, value, operands, tag):
                    return entry["segment"], candidate
        raise TrapRaisedError(Trap.UNBOUND, opcode, NO_SEGMENT)


def _holds(
    machine: SequencerContext, entry: dict[str, int], value: int, operands: list[int], tag: int
) -> bool:
    compare, selector = entry["compare"], entry["selector"]
    if compare == Compare.ALWAYS:
        return True
    if compare not in _COMPARE:
        return False
    which = selected_statistic(selector)
    if OPERAND_BASE <= selector < OPERAND_BASE + len(operands):
        x = operands[selector - OPERAND_BASE]
    elif which is None:
        return False
    elif which == Statistic.OPERANDS:
        x = len(operands)
    elif which == Statistic.TAG:
        x = tag
    else:
        x = machine.statistic(which) & 0xFFFFFFFF
    return _COMPARE[Compare(compare)](x, value)


def read_slot(dram: np.ndarray, slot: int) -> tuple[dict[str, int], list[int]]:
    """Return the header fields and the operands of the macro-instruction in a ring slot."""
    words = dram[slot : slot + SLOT_BYTES].view("<u4").tolist()
    header = HEADER.unpack(words[0])
    return header | {"word": words[0]}, words[
        OPERAND_WORD : OPERAND_WORD + min(header["operands"], MAX_OPERANDS)
    ]


def check_header(header: dict[str, int]) -> None:
    """Raise TrapRaisedError if a ring slot's header is not the header of a macro-instruction."""
    if header["magic"] != MAGIC or header["operands"] > MAX_OPERANDS:
        raise TrapRaisedError(Trap.BAD_MACRO, header["word"], NO_SEGMENT)
