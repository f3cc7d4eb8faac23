"""Enumerations shared by hardware, golden model and tools."""

from enum import IntEnum


class Unit(IntEnum):
    """Unit of the machine; each unit has a command queue."""

    LOAD = 0
    MATRIX = 1
    FUSE = 2
    STORE = 3


#: Index of the sequencer as a consumer of semaphores; it is not a producer.
SEQUENCER = 4
#: Semaphores for each (producer, consumer) pair.
SEMAPHORES_PER_PAIR = 4
#: Maximum count of a semaphore; a command whose signal would exceed it does not start.
SEMAPHORE_MAX = 63


class Space(IntEnum):
    """Destination memory of LOAD."""

    SP = 0
    PARAM = 1
    TABLE = 2


class Dtype(IntEnum):
    """Element type of a FUSE operand or result."""

    I8 = 0
    U8 = 1
    I16 = 2
    I32 = 3


#: Bytes of one element of each Dtype in the scratchpad.
DTYPE_BYTES = (1, 1, 2, 4)


class Rounding(IntEnum):
    """Rounding mode of a requantization, as defined in docs/machine.md. EVEN is the rounding of float32
    arithmetic.
    """

    DOUBLE = 0
    SINGLE = 1
    EVEN = 2
    AWAY = 3


class Op(IntEnum):
    """Operator of FUSE step 1."""

    PASS = 0
    ADD = 1
    SUB = 2
    MUL = 3
    SQUARE = 4
    MUL_SUB = 5


class BSource(IntEnum):
    """Source of FUSE operand B."""

    NONE = 0
    ACC = 1
    SP = 2


class Requant(IntEnum):
    """Source of the multiplier and the shift in FUSE step 2."""

    OFF = 0
    SLOT = 1
    ROW = 2
    IMM = 3


class Reduce(IntEnum):
    """Reduction of FUSE step 5."""

    NONE = 0
    SUM = 1
    MAX = 2
    MIN = 3


class Post(IntEnum):
    """Post-scale of FUSE step 5."""

    NONE = 0
    SCALE = 1
    COUNT = 2
    RECIP = 3
    RSQRT = 4
    ROW = 5
    SLOT = 6
    VAR_RSQRT = 7


#: Post-scales whose result is a pair of a multiplier and an exponent.
PAIRS = (Post.RECIP, Post.RSQRT, Post.VAR_RSQRT)


class Trap(IntEnum):
    """Cause of a trap; EXACT_TRAPS lists the causes that leave an exact machine state."""

    NONE = 0
    ILLEGAL_INSTRUCTION = 1
    PC_RANGE = 2
    UNBOUND = 3
    SEGMENT_INVALID = 4
    LOOP_STACK = 5
    CALL_STACK = 6
    BAD_OPERAND = 7
    BAD_COMMAND = 8
    SP_BOUNDS = 9
    ACC_BOUNDS = 10
    SLOT_BOUNDS = 11
    DRAM_WINDOW = 12
    DEADLOCK = 13
    STEP_LIMIT = 14
    SOFTWARE = 15
    BAD_MACRO = 16
    WATCHDOG = 17
    BUS_READ = 18
    BUS_WRITE = 19
    WIS_IN_USE = 20


#: Traps whose record and memory state do not depend on timing.
EXACT_TRAPS = tuple(t for t in Trap if Trap.ILLEGAL_INSTRUCTION <= t <= Trap.BAD_MACRO)


class SegmentState(IntEnum):
    """State of a segment of the writable instruction store."""

    FREE = 0
    OPEN = 1
    CHECKING = 2
    VALID = 3
    FAILED = 4


class Compare(IntEnum):
    """Comparison of a dispatch guard."""

    ALWAYS = 0
    EQ = 1
    NE = 2
    LT = 3
    GE = 4
    LTU = 5
    GEU = 6
