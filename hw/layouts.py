"""Amaranth layouts and port signatures, derived from the tables of `hw.isa`."""

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, PACKED_FIELDS, UNIT_FIELDS
from hw.isa.counters import COUNTERS
from hw.isa.enums import Unit
from hw.isa.fields import Field, Packed


def shape_of(field: Field) -> Shape:
    """Return the Amaranth shape of an encoding field."""
    return signed(field.width) if field.signed else unsigned(field.width)


def packed_layout(packed: Packed) -> data.StructLayout:
    """Return the layout of a packed word."""
    return data.StructLayout({f.name: shape_of(f) for f in packed.fields})


#: Metadata of every unit command.
META_LAYOUT = data.StructLayout(
    {
        "wait": 16,  # semaphores to wait for, producer << 2 | index
        "signal": 20,  # semaphores to signal, consumer << 2 | index; the sequencer is consumer 4
        "tag": 6,
        "macro": 8,  # low bits of the macro-instruction's sequence number
    }
)

#: Walk increments, modulo 2**20, that the issue stage derives so that units need no multiplier.
DERIVED = {
    Unit.LOAD: {},
    Unit.STORE: {},
    Unit.MATRIX: {"a_start": 20, "a_dy": 20, "a_dky": 20, "a_dx": 20, "a_dkx": 20},
    Unit.FUSE: {"a_start": 20, "a_dy": 20, "a_dwy": 20, "a_dx": 20, "a_dwx": 20},
}


def field_layout(unit: Unit, name: str, width_field: Field) -> data.StructLayout | Shape:
    """Return the shape of one field of a command; for a packed word, the layout of the word."""
    packed = PACKED_FIELDS.get(f"{unit.name.lower()}.{name}")
    return packed_layout(packed) if packed else shape_of(width_field)


def command_layout(unit: Unit) -> data.StructLayout:
    """Return the payload layout of a unit's command stream.

    The members are all fields (packed words as structs), the derived increments, and `meta`.
    """
    members: dict = {f.name: field_layout(unit, f.name, f) for f in UNIT_FIELDS[unit]}
    members |= DERIVED[unit]
    members["meta"] = META_LAYOUT
    return data.StructLayout(members)


#: Word with one field of a command, for `serial_commands`; `index` is the index of the field, where the derived fields
#: follow the others.
WORD_LAYOUT = data.StructLayout({"index": FIELD_INDEX_BITS, "data": 32})
#: Special indices: CLEAR_WORD resets all fields to their defaults; END_WORD ends the command.
CLEAR_WORD, END_WORD = (1 << FIELD_INDEX_BITS) - 1, (1 << FIELD_INDEX_BITS) - 2


def command_stream(unit: Unit) -> stream.Signature:
    """Return the signature of a unit's command stream."""
    return stream.Signature(command_layout(unit))


def event_layout(group: str) -> data.StructLayout:
    """Return the layout of the increments of a counter group in one cycle, with a member for each counter."""
    return data.StructLayout({c.name: unsigned(c.width) for c in COUNTERS if c.group == group})


#: Width in bits of a word address in the instruction store, and of a length.
PC_BITS = 14

#: A program to run.
START_LAYOUT = data.StructLayout(
    {
        "segment": 8,
        "base": PC_BITS,  # first word in the instruction store
        "length": PC_BITS,
        "tag": 6,
        "macro": 32,  # sequence number of the macro-instruction since reset
        "operands": 6,  # number of operands of the macro-instruction
    }
)

#: Entry of the segment table as the core looks it up.
SEGMENT_LAYOUT = data.StructLayout({"valid": 1, "pinned": 1, "base": PC_BITS, "length": PC_BITS})

#: Trap record.
TRAP_LAYOUT = data.StructLayout(
    {
        "valid": 1,
        "cause": 5,
        "pc": PC_BITS,
        "segment": 8,
        "tag": 6,
        "macro": 32,
        "address": 32,
    }
)

#: Statistics that are inputs of the core.
STATISTICS_LAYOUT = data.StructLayout(
    {
        "fuse_rows": 32,
        "fuse_zeros": 32,
        "fuse_min": 32,
        "fuse_max": 32,
        "matrix_zeros": 32,
        "cycle": 32,
    }
)

#: DRAM protection window; bit 0 of `perm` permits reads, bit 1 writes.
WINDOW_LAYOUT = data.StructLayout({"base": 32, "last": 32, "perm": 2})


#: Width of the index of a window's limit, which is window << 1 for the first byte and (window << 1) + 1 for the last
#: byte.
LIMIT_BITS = 4


def windows_layout(config: MlaConfig) -> data.Layout:
    """Return the layout of all protection windows of a machine.

    With `serial_commands`, the layout contains only the permissions of the windows and the requested limit.
    """
    if config.serial_commands:
        return data.StructLayout({"perm": data.ArrayLayout(2, config.windows), "limit": 32})
    return data.ArrayLayout(WINDOW_LAYOUT, config.windows)


def limit_ports(config: MlaConfig, *, requests: bool) -> dict[str, wiring.Member]:
    """Return the port `limit` of machines with `serial_commands`; an empty dict for other machines.

    The port carries the index of the requested window limit; the value of this limit is valid two cycles later.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    requests : bool
        True if the component requests limits; False if it returns them.
    """
    return {"limit": (Out if requests else In)(LIMIT_BITS)} if config.serial_commands else {}


class SemaphorePort(wiring.Signature):
    """Port between the command queue of one unit and the semaphores, from the point of view of the queue.

    Consumer masks (`available`, `take`) are indexed by producer << 2 | index, and producer masks (`room`, `owe`,
    `give`) by consumer << 2 | index. Consumer 4 is the sequencer.

    Members
    -------
    available : In
        Mask of the semaphores that hold a token for this unit.
    room : In
        Mask of the semaphores for which this unit may reserve another signal.
    take, owe : Out
        Tokens taken and signals reserved by the command that starts in this cycle.
    give : Out
        Signals of the command that retires in this cycle.
    step : Out
        High if any of `take`, `owe` and `give` is not 0, and possibly at other times; valid earlier in the cycle than
        these masks.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "available": In(16),
                "room": In(20),
                "take": Out(16),
                "owe": Out(20),
                "give": Out(20),
                "step": Out(1),
            }
        )


def config_layout(unit: Unit) -> data.StructLayout:
    """Return the layout of a unit's fields, with the same order and offsets as in its command."""
    return data.StructLayout({f.name: field_layout(unit, f.name, f) for f in UNIT_FIELDS[unit]})


def default_word(unit: Unit) -> int:
    """Return the default values of a unit's fields, packed as in `config_layout`."""
    word, offset = 0, 0
    for field in UNIT_FIELDS[unit]:
        word |= (field.default & ((1 << field.width) - 1)) << offset
        offset += field.width
    return word
