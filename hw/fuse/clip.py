"""Zero point and clip, at the end of each scaling step."""

from amaranth.hdl import Module, Mux, Signal, Value, signed

#: Cycles of `add_zero_point` followed by `clip`.
LATENCY = 2


def add_zero_point(m: Module, name: str, value: Value, zero_point: Value) -> Signal:
    """Register of the exact sum."""
    total = Signal(signed(33), name=f"{name}_total")
    m.d.sync += total.eq(value + zero_point)
    return total


def clip(m: Module, name: str, total: Value, lo: Value, hi: Value) -> tuple[Signal, Signal]:
    """`total` limited to lo..hi (combinational), and whether that changed it; lo must not exceed hi."""
    above, below = Signal(name=f"{name}_above"), Signal(name=f"{name}_below")
    limited, changed = Signal(signed(32), name=f"{name}_limited"), Signal(name=f"{name}_changed")
    m.d.comb += [
        above.eq(total > hi), below.eq(total < lo),
        limited.eq(Mux(above, hi, Mux(below, lo, total[:32].as_signed()))), changed.eq(above | below),
    ]
    return limited, changed
