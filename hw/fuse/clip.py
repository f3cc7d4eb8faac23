"""Zero point and clip, at the end of each scaling step."""

from amaranth.hdl import Module, Mux, Signal, Value, signed

from hw.lib.pipeline import register

#: Cycles of `add_zero_point` followed by `clip`.
LATENCY = 2


def add_zero_point(m: Module, name: str, value: Value, zero_point: Value) -> Signal:
    """Register of the exact sum."""
    return register(m, f"{name}_total", value + zero_point, signed(33))


def clip(m: Module, name: str, total: Value, lo: Value, hi: Value) -> tuple[Signal, Signal]:
    """`total` limited to lo..hi (combinational), and whether that changed it; lo must not exceed hi."""
    above, below = Signal(name=f"{name}_above"), Signal(name=f"{name}_below")
    limited, changed = Signal(signed(32), name=f"{name}_limited"), Signal(name=f"{name}_changed")
    m.d.comb += [
        above.eq(total > hi),
        below.eq(total < lo),
        limited.eq(Mux(above, hi, Mux(below, lo, total[:32].as_signed()))),
        changed.eq(above | below),
    ]
    return limited, changed
