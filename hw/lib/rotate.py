"""Rotation of a row by whole elements, built from named power-of-two stages."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value


def rotate_left(m: Module, name: str, value: Value, amount: Value, count: int) -> Signal:
    """Move element i of `value` to position (i + amount) % count.

    Parameters
    ----------
    m : Module
        Module that the stages are added to.
    name : str
        Prefix of the stages' signal names.
    value : Value
        `count` elements of equal width, with element 0 in the low bits.
    amount : Value
        Distance to rotate by; log2(count) bits wide.
    count : int
        Number of elements; a power of two.
    """
    width = len(value) // count
    stage = Signal(len(value), name=f"{name}_0")
    m.d.comb += stage.eq(value)
    for bit in range(count.bit_length() - 1):
        split = len(value) - (width << bit)
        turned = Signal(len(value), name=f"{name}_{bit + 1}")
        m.d.comb += turned.eq(Mux(amount[bit], Cat(stage[split:], stage[:split]), stage))
        stage = turned
    return stage


def rotate_right(m: Module, name: str, value: Value, amount: Value, count: int) -> Signal:
    """Move element (i + amount) % count of `value` to position i; see `rotate_left`."""
    width = len(value) // count
    stage = Signal(len(value), name=f"{name}_0")
    m.d.comb += stage.eq(value)
    for bit in range(count.bit_length() - 1):
        split = width << bit
        turned = Signal(len(value), name=f"{name}_{bit + 1}")
        m.d.comb += turned.eq(Mux(amount[bit], Cat(stage[split:], stage[:split]), stage))
        stage = turned
    return stage
