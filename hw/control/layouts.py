"""Enumerations and payload layouts shared by the blocks of the control side."""

from enum import IntEnum

from amaranth.lib import data

from hw.isa.macro_instruction import CANDIDATE, HEADER, RECORD
from hw.layouts import PC_BITS, packed_layout

#: Maximum number of macro-instructions between dispatch and the bus's answer to their record.
IN_FLIGHT = 8
#: Segment index that represents no segment.
NO_SEGMENT = 0xFF


class SegmentOp(IntEnum):
    """Operation of the host on the segment table; the first four are the values of SEG_COMMAND."""

    OPEN = 1
    CHECK = 2
    FREE = 3
    PIN = 4
    LOAD = 5
    WRITE = 6


class LoaderError(IntEnum):
    """Values of LOADER_ERROR."""

    NONE = 0
    IN_USE = 1
    RANGE = 2
    NOT_OPEN = 3
    CRC = 4
    BUS = 5
    OVERLAP = 6


#: A request of the host to the segment table; members that its operation does not use are ignored.
SEGMENT_OP_LAYOUT = data.StructLayout(
    {
        "kind": SegmentOp,
        "segment": 32,
        "base": 32,
        "length": 32,
        "address": 32,
        "word": 64,
        "source": 32,
        "crc": 32,
    }
)

#: Entry of the segment table, with the fields that the scan uses.
SEGMENT_ENTRY_LAYOUT = data.StructLayout({"base": PC_BITS, "length": PC_BITS, "state": 3})

#: A refused access to a segment in use.
IN_USE_TRAP_LAYOUT = data.StructLayout({"valid": 1, "segment": 8, "address": 32})

#: Operation of the loader on a segment; if `load` is 0, the segment is only checked.
JOB_LAYOUT = data.StructLayout(
    {
        "load": 1,
        "segment": 8,
        "base": PC_BITS,
        "length": PC_BITS,
        "source": 32,
        "crc": 32,
    }
)

#: Result of an operation of the loader.
JOB_RESULT_LAYOUT = data.StructLayout({"valid": 1, "good": 1, "bus": 1})

#: A word that the loader writes to the instruction store.
WIS_WRITE_LAYOUT = data.StructLayout({"addr": PC_BITS, "data": 64})

#: Word 0 of a slot and of a dispatch entry.
HEADER_LAYOUT = packed_layout(HEADER)
CANDIDATE_LAYOUT = packed_layout(CANDIDATE)
RECORD_LAYOUT = packed_layout(RECORD)

#: Dispatch entry in the memory of the table: the candidate, followed by the guard's value.
ENTRY_LAYOUT = data.StructLayout({"candidate": CANDIDATE_LAYOUT, "value": 32})

#: Request of the host to the dispatch table: write an entry of the shadow, or with `commit` make the shadow live.
TABLE_OP_LAYOUT = data.StructLayout({"commit": 1, "index": 32, "entry": ENTRY_LAYOUT})

#: A macro-instruction whose operands are in the buffer.
MACRO_LAYOUT = data.StructLayout({"header": HEADER_LAYOUT, "fault": 1, "number": 32, "address": 32})

#: A macro-instruction that enters the queue of completions.
PUSH_LAYOUT = data.StructLayout({"valid": 1, "program": 8, "candidate": 4, "irq": 1, "tag": 6})

#: The oldest macro-instruction that is not complete.
OLDEST_LAYOUT = data.StructLayout({"program": 8, "tag": 6, "number": 32})

#: A bus error, with `valid` set for one cycle.
BUS_ERROR_LAYOUT = data.StructLayout({"valid": 1, "address": 32})
