"""Data exchanged between host and machine in memory: macro-instructions, completion records, guards.

The command ring is an array of SLOT_BYTES slots in DRAM, a power of two of them. All words are 32 bits, little endian.
"""

from hw.isa.enums import Compare
from hw.isa.fields import Field, Packed

#: Bytes of a ring slot.
SLOT_BYTES = 256
#: Word 0 of a slot.
HEADER = Packed(
    "macro.header",
    (
        Field("opcode", 8, doc="macro opcode"),
        Field("operands", 8, doc="how many operands follow"),
        Field("tag", 8, doc="tag of the subgraph"),
        Field("irq", 1, doc="raise the interrupt on completion"),
        Field("magic", 7, doc="must be 0x4D"),
    ),
)
MAGIC = 0x4D
#: Word of the slot where the completion record starts, and its length in words.
RECORD_WORD = 4
RECORD_WORDS = 4
#: Word of the slot where the operands start.
OPERAND_WORD = 8

#: Word 0 of the completion record; words 1 and 2 are the cycle the instruction was dispatched and the cycle its last
#: command retired (low 32 bits of the cycle counter), word 3 counts its micro-instructions.
RECORD = Packed(
    "macro.record",
    (
        Field("trap", 8, doc="cause, 0: none"),
        Field("program", 8, doc="segment that ran, 0xFF: none"),
        Field("candidate", 4, doc="which candidate of the dispatch entry was taken"),
        Field("done", 1, doc="always 1 in a written record"),
        Field("sequence", 11, doc="low bits of the instruction's number since reset"),
    ),
)

#: One candidate of the dispatch table: word 0, then the guard's 32-bit value.
CANDIDATE = Packed(
    "dispatch.candidate",
    (
        Field("valid", 1, doc="in use"),
        Field("segment", 8, doc="program to run"),
        Field("compare", 3, doc="guard", enum=tuple(c.name.lower() for c in Compare)),
        Field(
            "selector",
            8,
            doc="operand or statistic compared with the value (a micro-instruction's selector, no register)",
        ),
    ),
)
