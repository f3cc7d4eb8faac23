"""Port signatures of the on-chip memories, and the latencies of their reads."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS, MlaConfig

#: Cycles from a granted scratchpad read to its data.
SP_READ_LATENCY = 2
#: Cycles from a request on port `act`, which is always granted in the next cycle, to its data.
SP_ACT_LATENCY = SP_READ_LATENCY + 1
#: Cycles from a granted FUSE read of the accumulator to its data.
ACC_READ_LATENCY = 2


def loads_pairs(config: MlaConfig) -> bool:
    """Return True if LOAD writes two rows at once: packed weights, or beats of two rows."""
    return bool(config.packed_loads) or config.beat_bytes > config.n


class SpReadPort(wiring.Signature):
    """Scratchpad read port, from the requester's point of view.

    A request is accepted in a cycle with `valid & ready`. From the next cycle on, it waits in a register of the
    scratchpad while `waits` is high; it is granted in a cycle with `waits & ready`. `data` (n bytes from byte `addr`
    on, with lane 0 in the low bits) are valid SP_READ_LATENCY cycles after the grant. `ready` depends on registers
    only.

    With `pairs`, a request with `pair` set reads 2 * n bytes from `addr`, a multiple of n, and `next` returns the
    second n bytes together with `data`.
    """

    def __init__(self, config: MlaConfig, *, pairs: bool = False):
        super().__init__(
            {
                "valid": Out(1),
                "addr": Out(SP_ADDR_BITS),
                "ready": In(1),
                "waits": In(1),
                "data": In(8 * config.n),
                **({"pair": Out(1), "next": In(8 * config.n)} if pairs else {}),
            }
        )


class SpWritePort(wiring.Signature):
    """Scratchpad write port, from the requester's point of view.

    Byte i of `data` is written to byte `addr` + i if `mask`[i] is set.

    Like a read, a write is accepted with `valid & ready` and granted with `waits & ready`; reads granted in later
    cycles return the new data. `addr` + i wraps at the size of the memory. Therefore `addr` may precede the first byte
    of a partial first beat, in which case the low bits of the mask are 0.

    With `pairs`, a write with `pair` set writes `data` and then the n bytes of `next` from `addr`, a multiple of n;
    `mask` applies to both, unless the port has `next_mask`, the mask of `next`: on a bus of 2 * n bytes, `mask` is that
    of `data` only.
    """

    def __init__(self, config: MlaConfig, *, pairs: bool = False):
        super().__init__(
            {
                "valid": Out(1),
                "addr": Out(SP_ADDR_BITS),
                "data": Out(8 * config.n),
                "mask": Out(config.n),
                "ready": In(1),
                "waits": In(1),
                **({"pair": Out(1), "next": Out(8 * config.n)} if pairs else {}),
                **({"next_mask": Out(config.n)} if pairs and config.beat_bytes > config.n else {}),
            }
        )


class AccReadPort(wiring.Signature):
    """Port for accumulator row reads by FUSE, from FUSE's point of view.

    Data are valid ACC_READ_LATENCY cycles after `valid & ready`.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {"valid": Out(1), "row": Out(ACC_ADDR_BITS), "ready": In(1), "data": In(32 * config.n)}
        )


class AccWritePort(wiring.Signature):
    """Port for accumulator row writes by FUSE, from FUSE's point of view; `mask` selects lanes.

    Reads granted in the next cycle return the new row.
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
    """Port for writes of n bytes to PARAM (`table` = 0) or TABLE (`table` = 1).

    `addr` is a byte address and a multiple of n. Writes are never refused.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {"valid": Out(1), "table": Out(1), "addr": Out(SP_ADDR_BITS), "data": Out(8 * config.n)}
        )
