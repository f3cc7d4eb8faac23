"""Micro-instructions of the serial checker."""

from enum import IntEnum

from amaranth.lib import data

from hw.isa.commands import FIELD_INDEX_BITS

ADDRESS_BITS = 9


class Width(IntEnum):
    """Number of significant bits of a field; the higher bits are its sign extension or 0."""

    W4 = 0
    W6 = 1
    W8 = 2
    W9 = 3
    W12 = 4
    W16 = 5
    W20 = 6
    W32 = 7


class X(IntEnum):
    """Source of the first operand of the product."""

    NONE = 0
    VALUE = 1  # value of the field
    TILE = 2
    U_LOW = 3
    U_HIGH = 4
    V_LOW = 5
    V_HIGH = 6


class Y(IntEnum):
    """Source of the second operand of the product."""

    NONE = 0
    VALUE = 1  # value of the field
    LOW = 2  # lower half of the field
    HIGH = 3  # upper half of the field; the product is multiplied by 2**16
    ROWS = 4  # the last quotient
    OUT_ROWS = 5  # the saved quotient


class Ends(IntEnum):
    """Ends of the box that a product is added to.

    Bit 0 selects the low end if the field is not negative, bit 1 if it is negative; bits 2 and 3 select the high end in
    the same way.
    """

    NONE = 0b0000
    LOW = 0b0011
    HIGH = 0b1100
    BOTH = 0b1111
    ALONG = 0b0110  # stride: the low end if it is negative, else the high end
    AGAINST = 0b1001  # minimum of a coordinate, if the field is the coordinate's stride


class Rule(IntEnum):
    """Property of the field that makes a command illegal."""

    NONE = 0
    ZERO = 1
    ABOVE_N = 2
    NOT_ONE = 3
    UNALIGNED = 4
    NEGATIVE_U8 = 5  # nine-bit value that does not fit an unsigned byte
    BEYOND_I8 = 6  # nine-bit value that does not fit a signed byte
    ALWAYS = 7
    UNPAIRED = 8  # not a multiple of 2 * n
    NOT_ZERO = 9


class Early(IntEnum):
    """Further operation on the field in stage 5."""

    NONE = 0
    FIRST_WORD = 1  # loads the first packed word into its register
    SECOND_WORD = 2
    ONE = 3  # saves whether the field is 1
    TILE = 4  # the tile: the field, or n if it is 0
    TAIL = 5  # the larger of the tile and the field, or the tile if the field is 0; only the field if ONE found a 1
    LANES = 6  # the larger of the tile and the field, or n if the field is 0
    TAPS = 7  # the tile: depthwise taps of all groups
    GROUP = 8  # the tile: depthwise taps of one group
    SINGLE = 9  # the tile: 1
    JUMP = 10


class Late(IntEnum):
    """Operation on the ends of the box or on a quotient."""

    NONE = 0
    RANGE_U = 1  # clips the range to the image, whose last coordinate is the first operand
    RANGE_V = 2
    START = 3  # saves the walk increments
    DU1 = 4
    DU2 = 5
    DV1 = 6
    DV2 = 7
    NOT_BELOW = 8  # illegal if the high end is negative
    NOT_DEEP = 9  # illegal if the high end exceeds the line buffers
    NOT_MANY = 10  # illegal if the high end exceeds the points of a window
    DIVIDE = 11  # divides the high end by the first operand
    AGAIN = 12  # divides the last quotient by the first operand
    KEEP = 13  # saves the quotient
    VERDICT = 14
    END = 15
    FIRST = 16  # checks that the window permits the access and the low end is not before its first byte
    LAST = 17  # checks that the high end is not after the window's last byte


class Flag(IntEnum):
    """Condition under which a micro-instruction takes effect, decoded from the packed words of the command."""

    ALWAYS = 0
    FILL = 1
    TRANSPOSE = 2
    PACKED = 3
    AWAY = 4  # the destination of LOAD is a parameter or table slot
    PARAM = 5
    TABLE = 6
    BAD_LOAD = 7
    DW = 8
    DW_KEEP = 9
    DW_GROUPS = 10
    BAD_TAPS = 11
    W_TRANSPOSE = 12
    A_UNSIGNED = 13
    W_UNSIGNED = 14
    TWO_GROUPS = 15  # bit 1 of the number of groups
    ONE_GROUP = 16
    BAD_MATRIX = 17
    A_SP = 18
    A_16 = 19  # elements of at least 16 bits, in the scratchpad
    A_32 = 20
    B = 21
    B_SP = 22
    B_16 = 23
    B_32 = 24
    B_ACC = 25
    R = 26
    R_16 = 27
    D_SP = 28
    D_16 = 29
    D_32 = 30
    SLOTS = 31
    COUNT = 32
    TAIL = 33
    REDUCES = 34
    BAD_FUSE = 35
    SHORT = 36  # depthwise, and the last quotient is 0
    COPIES = 37  # LOAD, neither transposed nor packed
    PAIRED = 38  # MATRIX in wide or sparse mode
    SCALED = 39
    SPARSE = 40


#: Fields of a micro-instruction, whose condition is met if the flag differs from `unless`.
CODE_LAYOUT = data.StructLayout(
    {
        "index": FIELD_INDEX_BITS,
        "literal": 1,  # the index is a literal value
        "one": 1,  # the field's default is 1, not 0
        "width": 3,
        "signed": 1,
        "flag": 6,
        "unless": 1,
        "x": 3,
        "count": 1,  # the first operand is decremented
        "y": 3,
        "ends": 4,
        "turned": 1,  # the sign is taken from the first operand
        "reset": 1,  # begins a box: low end 0, high end -1
        "rule": 4,
        "early": 4,
        "late": 5,
        "kind": 4,
        "order": 2,
        "ranged": 1,  # no comparison if all coordinates are padding
        "target": ADDRESS_BITS,  # target of a jump, or index of a window's limit
    }
)
