"""Operand edges: bytes become exact 9-bit operands by subtracting a zero point."""

from amaranth.hdl import Cat, Module, Signal, Value, signed

from hw.array.systolic import OPERAND_BITS


def operands(m: Module, name: str, row: Value, *, unsigned: Value, zero_point: Value) -> list[Signal]:
    """Lanes of a row of bytes, each (unsigned or signed byte) - zero_point; one subtraction,
    combinational.
    """
    lanes = []
    for i in range(0, len(row), 8):
        byte = Signal(signed(OPERAND_BITS), name=f"{name}_byte{i // 8}")
        lane = Signal(signed(OPERAND_BITS), name=f"{name}_lane{i // 8}")
        m.d.comb += [byte.eq(Cat(row[i : i + 8], row[i + 7] & ~unsigned)), lane.eq(byte - zero_point)]
        lanes.append(lane)
    return lanes
