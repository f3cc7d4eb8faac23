"""Layouts of the payloads between the stages of the sequencer core."""

from enum import IntEnum

from amaranth.hdl import Cat, Value
from amaranth.lib import data

from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.layouts import PC_BITS

#: Width of program counters inside the core: an absolute word address in the instruction store, and a top bit that
#: marks a branch target beyond any possible segment.
COUNTER_BITS = PC_BITS + 2
OUT_BIT = COUNTER_BITS - 1


class Fault(IntEnum):
    """Fault of an instruction that is detected before it executes."""

    NONE = 0
    PC_RANGE = 1
    ILLEGAL = 2
    BAD_OPERAND = 3


class InstructionKind(IntEnum):
    """Operation of the execute stage, encoded in few bits because all decisions of the stage depend on it."""

    SCALAR = 0  # all other instructions except MUL
    BRANCH = 1
    SET = 2
    CLEAR = 3
    HALT = 4
    TRAP = 5
    MUL = 6
    TAG = 7
    WAIT = 8
    FENCE = 9
    ISSUE = 10
    LOOP = 11
    BREAK = 12
    CALL = 13
    CALLP = 14
    RET = 15


#: Kinds of instructions that complete as soon as they may execute.
PLAIN = (
    InstructionKind.SCALAR,
    InstructionKind.BRANCH,
    InstructionKind.SET,
    InstructionKind.CLEAR,
    InstructionKind.HALT,
)

#: Decoded instruction with its operands.
EXECUTE_LAYOUT = data.StructLayout(
    {
        "op": 6,
        "d": 10,
        "a": 32,
        "b": 32,
        "imm": 32,  # for LOOP, only the immediate count
        "target": COUNTER_BITS,
        "pc": COUNTER_BITS,
        "following": COUNTER_BITS,  # pc + 1
        "arrive": COUNTER_BITS,  # pc; for LOOP, the last word of the loop
        "backward": 1,  # set if the target is not beyond `following`
        "fault": Fault.BAD_OPERAND.bit_length(),
        "selector": 8,  # selector that causes the fault
        "scalar": 1,
        "config": 1,
        "issue": 1,
        "sync": 1,
        "kind": InstructionKind.RET.bit_length(),
        "plain": 1,
    }
)

#: Range of the instruction store in which a program runs; `limit` is the first word beyond it.
FRAME_LAYOUT = data.StructLayout({"segment": 8, "base": PC_BITS, "limit": PC_BITS + 1})


def return_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the state that a call saves."""
    count = range(config.loop_depth + 1)
    return data.StructLayout(
        {
            "frame": FRAME_LAYOUT,
            "pc": COUNTER_BITS,
            "loop_depth": count,
            "loop_frame": count,
        }
    )


def field_exists(number: Value) -> Value:
    """Return a value that is high if a field number names a field."""
    index, unit = number[:FIELD_INDEX_BITS], number[FIELD_INDEX_BITS:]
    return Cat(*((unit == int(u)) & (index < len(UNIT_FIELDS[u])) for u in Unit)).any()
