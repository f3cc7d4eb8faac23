"""Port signatures of the on-chip memories, and the latencies of their reads."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS, MlaConfig

#: Cycles from a granted scratchpad read to its data.
SP_READ_LATENCY = 2
#: Cycles from a request of port `act`, which is granted in the next cycle always, to its data.
SP_ACT_LATENCY = SP_READ_LATENCY + 1
#: Cycles from a granted FUSE read of the accumulator to its data.
ACC_READ_LATENCY = 2


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
    """Scratchpad write port, seen from the requester: byte i of `data` is written to byte `addr` + i where `mask`[i].

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
