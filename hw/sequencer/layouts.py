"""Layouts and port signatures of the sequencer."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig

#: Bits of a word address in the instruction store, and of a length.
PC_BITS = 14

#: One program to run.
START_LAYOUT = data.StructLayout(
    {
        "segment": 8,
        "base": PC_BITS,  # first word in the instruction store
        "length": PC_BITS,
        "tag": 6,
        "macro": 32,  # number of the macro-instruction since reset
        "operands": 6,  # operands the macro-instruction has
    }
)

#: What the core asks about a segment.
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

#: Values of the statistics selectors that come from outside the core.
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

#: DRAM protection window; `perm` bit 0 is read, bit 1 write.
WINDOW_LAYOUT = data.StructLayout({"base": 32, "last": 32, "perm": 2})


#: Bits of the number of a window's limit: window << 1, plus 1 for its last byte.
LIMIT_BITS = 4


def windows_layout(config: MlaConfig) -> data.Layout:
    """All protection windows of a machine; with `serial_commands` who may access each, and the limit asked for."""
    if config.serial_commands:
        return data.StructLayout({"perm": data.ArrayLayout(2, config.windows), "limit": 32})
    return data.ArrayLayout(WINDOW_LAYOUT, config.windows)


def limit_ports(config: MlaConfig, *, asks: bool) -> dict[str, wiring.Member]:
    """Number of the limit that is asked for, if limits are; the answer comes two cycles later."""
    return {"limit": (Out if asks else In)(LIMIT_BITS)} if config.serial_commands else {}


class SemaphorePort(wiring.Signature):
    """One unit's access to the semaphores, seen from its command queue.

    Consumer masks (`available`, `take`) are indexed producer << 2 | index, producer masks (`room`, `owe`,
    `give`) consumer << 2 | index, the sequencer being consumer 4.

    Members
    -------
    available : In
        Semaphores this unit can take a token from.
    room : In
        Semaphores this unit may promise another signal to.
    take, owe : Out
        Tokens taken and signals promised by the command that starts in this cycle.
    give : Out
        Signals of the command that retires in this cycle.
    step : Out
        Up at least when any of these three is not 0: known sooner than they are.
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
