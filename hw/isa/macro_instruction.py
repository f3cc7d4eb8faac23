"""Data exchanged between host and machine in memory: macro-instructions, completion records, guards.

The command ring is an array of slots in DRAM, each of SLOT_BYTES bytes; the number of slots is a power of two. All
words are 32 bits, little endian.
"""

from hw.isa.enums import Compare
from hw.isa.fields import Field, Packed

#: Size of a ring slot in bytes.
SLOT_BYTES = 256
#: Word 0 of a slot.
HEADER = Packed(
    "macro.header",
    (
        Field("opcode", 8, doc="macro opcode"),
        Field("operands", 8, doc="number of operands that follow"),
        Field("tag", 8, doc="tag that counters are attributed to"),
        Field("irq", 1, doc="raise the interrupt on completion"),
        Field("magic", 7, doc="must be 0x4D"),
    ),
)
MAGIC = 0x4D
#: First word of the completion record in the slot, and its length in words.
RECORD_WORD = 4
RECORD_WORDS = 4
#: First word of the operands in the slot.
OPERAND_WORD = 8

#: Word 0 of the completion record. Words 1 and 2 are the cycles (low 32 bits of the cycle counter) in which the
#: macro-instruction was dispatched and its last command retired; word 3 is the number of micro-instructions that it
#: executed.
RECORD = Packed(
    "macro.record",
    (
        Field("trap", 8, doc="cause of the trap; 0: none"),
        Field("program", 8, doc="segment of the program that ran; 0xFF: none"),
        Field("candidate", 4, doc="number of the candidate that was selected"),
        Field("done", 1, doc="always 1 in a written record"),
        Field("sequence", 11, doc="low bits of the macro-instruction's number since reset"),
    ),
)

#: One candidate of the dispatch table: word 0; the next word is the guard's 32-bit value.
CANDIDATE = Packed(
    "dispatch.candidate",
    (
        Field("valid", 1, doc="in use"),
        Field("segment", 8, doc="segment of the program to run"),
        Field("compare", 3, doc="guard", enum=tuple(c.name.lower() for c in Compare)),
        Field(
            "selector",
            8,
            doc="selector, as in micro-instructions, of the operand or statistic that is compared with the value",
        ),
    ),
)
