"""Triangular delays at the edges of the array."""

from amaranth.hdl import Cat, Module, Signal, Value


def skew(m: Module, name: str, lanes: list[Value], enable: Value) -> list[Value]:
    """Lanes with lane i delayed by i cycles; the delays move only while `enable` is high.

    Each delay is one register of all lanes still waiting, the lane that leaves next on top: a wide register
    that is copied and truncated simulates far faster than one register for each lane.
    """
    width = len(lanes[0])
    delayed = [lanes[0]]
    waiting: Value = Cat(*reversed(lanes[1:]))
    for i in range(1, len(lanes)):
        held = Signal(width * (len(lanes) - i), name=f"{name}_skew{i}", reset_less=True)
        with m.If(enable):
            m.d.sync += held.eq(waiting)
        delayed.append(held[-width:])
        waiting = held[:-width]
    return delayed


def deskew(m: Module, name: str, lanes: list[Value]) -> Value:
    """Concatenated lanes, lane i arriving i cycles after lane 0 and leaving with the last one."""
    gathered = lanes[0]
    for i, lane in enumerate(lanes[1:], start=1):
        held = Signal(len(gathered), name=f"{name}_deskew{i}", reset_less=True)
        m.d.sync += held.eq(gathered)
        gathered = Cat(held, lane)
    return gathered
