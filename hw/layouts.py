"""Amaranth layouts and port signatures, derived from the tables of `hw.isa`."""

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS, MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, PACKED_FIELDS, UNIT_FIELDS
from hw.isa.counters import COUNTERS
from hw.isa.enums import Unit
from hw.isa.fields import Field, Packed

#: Cycles from a granted scratchpad read to its data.
SP_READ_LATENCY = 2
#: Cycles from a request of port `act`, which is granted in the next cycle always, to its data.
SP_ACT_LATENCY = SP_READ_LATENCY + 1
#: Cycles from a granted FUSE read of the accumulator to its data.
ACC_READ_LATENCY = 2


def shape_of(field: Field) -> Shape:
    """Amaranth shape of an encoding's field."""
    return signed(field.width) if field.signed else unsigned(field.width)


def packed_layout(packed: Packed) -> data.StructLayout:
    """Layout of a packed word."""
    return data.StructLayout({f.name: shape_of(f) for f in packed.fields})


#: What travels with every unit command.
META_LAYOUT = data.StructLayout(
    {
        "wait": 16,  # semaphores to take, producer << 2 | index
        "signal": 20,  # semaphores to give, consumer << 2 | index, the sequencer being consumer 4
        "tag": 6,
        "macro": 8,  # low bits of the macro-instruction's number
    }
)

#: Walk increments the issue stage derives, so that units need no multiplier (all modulo 2**20).
DERIVED = {
    Unit.LOAD: {},
    Unit.STORE: {},
    Unit.MATRIX: {"a_start": 20, "a_dy": 20, "a_dky": 20, "a_dx": 20, "a_dkx": 20},
    Unit.FUSE: {"a_start": 20, "a_dy": 20, "a_dwy": 20, "a_dx": 20, "a_dwx": 20},
}


def field_layout(unit: Unit, name: str, width_field: Field) -> data.StructLayout | Shape:
    """Shape of one field in a command: a struct for packed words."""
    packed = PACKED_FIELDS.get(f"{unit.name.lower()}.{name}")
    return packed_layout(packed) if packed else shape_of(width_field)


def command_layout(unit: Unit) -> data.StructLayout:
    """Payload of a unit's command stream: all fields (packed words as structs), derived increments, `meta`."""
    members: dict = {f.name: field_layout(unit, f.name, f) for f in UNIT_FIELDS[unit]}
    members |= DERIVED[unit]
    members["meta"] = META_LAYOUT
    return data.StructLayout(members)


#: What carries one field to a unit that gets its commands in words: `index` counts the fields, then the derived ones.
WORD_LAYOUT = data.StructLayout({"index": FIELD_INDEX_BITS, "data": 32})
#: Indices of no field: all fields return to their defaults; the command is complete.
CLEAR_WORD, END_WORD = (1 << FIELD_INDEX_BITS) - 1, (1 << FIELD_INDEX_BITS) - 2


def command_stream(unit: Unit) -> stream.Signature:
    """Stream of a unit's commands."""
    return stream.Signature(command_layout(unit))


def event_layout(group: str) -> data.StructLayout:
    """Increments of a group's counters in one cycle, by counter name."""
    return data.StructLayout({c.name: unsigned(c.width) for c in COUNTERS if c.group == group})


class SpReadPort(wiring.Signature):
    """Scratchpad read port, seen from the requester.

    A request taken with `valid & ready` waits in a register of the scratchpad from the next cycle on, where `waits`
    tells of it; it is granted in a cycle with `waits & ready`. `data` (n bytes from byte `addr` on, lane 0 lowest) is
    there SP_READ_LATENCY cycles later. `ready` follows from registers alone.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {
                "valid": Out(1),
                "addr": Out(SP_ADDR_BITS),
                "ready": In(1),
                "waits": In(1),
                "data": In(8 * config.n),
            }
        )


class SpWritePort(wiring.Signature):
    """Scratchpad write port, seen from the requester: byte i of `data` goes to byte `addr` + i where `mask`[i].

    Taken with `valid & ready` and granted with `waits & ready`, as a read is; reads granted in later cycles return it.
    `addr` + i wraps at the memory's size, so that a first partial beat may start below its address with its low mask
    bits clear.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {
                "valid": Out(1),
                "addr": Out(SP_ADDR_BITS),
                "data": Out(8 * config.n),
                "mask": Out(config.n),
                "ready": In(1),
                "waits": In(1),
            }
        )


class AccReadPort(wiring.Signature):
    """Accumulator row read of FUSE, seen from the requester; data ACC_READ_LATENCY cycles after `valid & ready`."""

    def __init__(self, config: MlaConfig):
        super().__init__(
            {"valid": Out(1), "row": Out(ACC_ADDR_BITS), "ready": In(1), "data": In(32 * config.n)}
        )


class AccWritePort(wiring.Signature):
    """Accumulator row write of FUSE, seen from the requester; `mask` selects lanes.

    Reads granted in the next cycle see it.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {
                "valid": Out(1),
                "row": Out(ACC_ADDR_BITS),
                "data": Out(32 * config.n),
                "mask": Out(config.n),
                "ready": In(1),
            }
        )


class SlotWritePort(wiring.Signature):
    """Write of n bytes at byte address `addr`, a multiple of n, of PARAM (`table` = 0) or TABLE (1); never refused."""

    def __init__(self, config: MlaConfig):
        super().__init__(
            {"valid": Out(1), "table": Out(1), "addr": Out(SP_ADDR_BITS), "data": Out(8 * config.n)}
        )
