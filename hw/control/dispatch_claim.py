"""When dispatch claims the segment that it has chosen, and what it judges it by."""

from collections.abc import Callable
from itertools import pairwise

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data

#: With `pipelined` the host hears of a claim two cycles late: the segment is claimed for two cycles before its state
#: is read, in the last of these, and judged in the next.
CLAIMED_EARLY = ("HOLD", "STAND", "LOOK")


def claims(ongoing: Callable[[str], Value], late: int) -> Value:
    """Whether the chosen segment must not change, by the state dispatch is in."""
    claimed = ongoing("CLAIM") | ongoing("START") | ongoing("RUN")
    for state in CLAIMED_EARLY if late else ():
        claimed |= ongoing(state)
    return claimed


def known(m: Module, look_up: data.View, late: int) -> data.View:
    """What is known of the chosen segment when its state is judged; adds the states before that."""
    if not late:
        return look_up
    info = Signal(look_up.shape())
    m.d.sync += info.eq(look_up)
    for state, following in pairwise((*CLAIMED_EARLY, "CLAIM")):
        with m.State(state):
            m.next = following
    return info
