"""Assembly of rows of results from their beats."""

from itertools import pairwise

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data

from hw.fuse.post_scale import SUM_BITS
from hw.lib.fifo import CreditFifo
from hw.lib.trees import tree_sum


def _beat_registers(beats: CreditFifo, count: int) -> list[Signal]:
    """Return registers for `count` parts of a row."""
    return [Signal(beats.r_data.shape(), name=f"part_{i}", reset_less=True) for i in range(count)]


def assemble_row(m: Module, beats: CreditFifo, rate: int) -> tuple[Value, list[Value], Value, data.View]:
    """Assemble the row at the head of the queue from `rate` beats, all but the last of which are stored in registers.

    Returns
    -------
    tuple
        Signal that is high if the row is complete, the lanes of the row, the number of lanes that clipping has changed,
        and the last beat.
    """
    head = beats.r_data
    row = list(head.value)
    if rate == 1:
        return beats.valid, row, head.changed, head
    count = Signal(range(rate))
    last = count == rate - 1
    with m.If(beats.pop):
        m.d.sync += count.eq(count + 1)
    m.d.comb += beats.pop.eq(beats.valid & ~last)
    held = _beat_registers(beats, rate - 1)
    with m.If(beats.valid & ~last):
        m.d.sync += [after.eq(before) for before, after in pairwise([head, *held])]
    changed = Signal(SUM_BITS)
    m.d.comb += changed.eq(sum((part.changed for part in held), head.changed))
    before = [lane for part in reversed(held) for lane in part.value]
    return beats.valid & last, before + row, changed, head


def collect_row(
    m: Module, beats: CreditFifo, rate: int, load: Value
) -> tuple[Value, list[Value], Value, data.View]:
    """Do the same as `assemble_row`, but store all beats of a row in registers, which accept the beats of the next row
    from the cycle of `load` on.
    """
    count = Signal(range(rate + 1))
    full = count == rate
    m.d.comb += beats.pop.eq(beats.valid & (~full | load))
    with m.If(load):
        m.d.sync += count.eq(beats.pop)
    with m.Elif(beats.pop):
        m.d.sync += count.eq(count + 1)
    held = _beat_registers(beats, rate)
    with m.If(beats.pop):
        m.d.sync += [after.eq(before) for before, after in pairwise([beats.r_data, *held])]
    changed = Signal(SUM_BITS)
    m.d.comb += changed.eq(tree_sum(m, "changed", [part.changed for part in held]))
    return full, [lane for part in reversed(held) for lane in part.value], changed, held[0]
