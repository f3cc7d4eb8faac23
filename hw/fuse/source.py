"""FUSE step 1, first part: operand registers, element types, broadcast, zero points."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.layouts import (
    BEAT,
    SOURCE_CONTROL,
    control_write,
    delay,
    follow,
    lanes,
    lanes_of,
    part_of,
    register,
)
from hw.fuse.store import fetch
from hw.isa.enums import Dtype

#: Cycles from a beat (operands in their registers) to its lanes.
LATENCY = 2


class Source(wiring.Component):
    """Collects the bytes of A, B and the residual, and turns them into int32 lanes.

    Latency: LATENCY cycles from `beat`. Throughput: one beat in each cycle; the operand registers may be
    reloaded in the cycle of a row's last beat.

    Parameters
    ----------
    config : MlaConfig
        The machine.

    Members
    -------
    controls : In
        Controls of a command that enters.
    sp_data, acc_data : In
        Data of the memory ports.
    sp_load : In(10), acc_load : In(2)
        What the data is (see Issue).
    beat : In(BEAT), o_beat : Out(BEAT)
        Beat going in and coming out.
    a, b : Out(lanes)
        Operands, zero points subtracted; A is 0 where the point is padding.
    r : Out(lanes of 16 bits)
        Elements of the residual, zero point not subtracted.
    row_mult : Out(signed(32)), row_exponent : Out(signed(8))
        Lanes rq_lane and rq_lane + 1 of B.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes = config.n, lanes_of(config)
        super().__init__(
            {
                "controls": In(control_write(SOURCE_CONTROL)),
                "sp_data": In(8 * config.n),
                "acc_data": In(32 * config.n),
                "sp_load": In(10),
                "acc_load": In(2),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "a": Out(lanes(self._lanes)),
                "b": Out(lanes(self._lanes)),
                "r": Out(lanes(self._lanes, 16)),
                "row_mult": Out(signed(32)),
                "row_exponent": Out(signed(8)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = follow(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        types = fetch(
            m, "types", self.controls, ("a_dtype", "b_dtype", "r_dtype", "b_lane", "rq_lane"), self.beat.cmd
        )
        offsets = fetch(m, "offsets", self.controls, ("a_zp", "b_zp", "b_bcast", "b_on"), beats[1].cmd)
        a_bytes = self._operand(m, "a", 0, 4, self.acc_load[0])
        b_bytes = self._operand(m, "b", 4, 4, self.acc_load[1])
        r_bytes = self._operand(m, "r", 8, 2, None)
        a_raw = self._part(self._elements(m, "a", a_bytes, types.a_dtype, 32))
        b_all = self._elements(m, "b", b_bytes, types.b_dtype, 32)
        b_raw = self._part(b_all)
        r_raw = self._part(self._elements(m, "r", r_bytes, types.r_dtype, 16))
        m.d.comb += [self.r[lane].eq(value) for lane, value in enumerate(delay_all(m, "r", r_raw, 2))]
        b_one = self._select(m, "b_one", b_all, types.b_lane)
        mult = self._select(m, "row_mult", b_all, types.rq_lane)
        exponent = self._select(m, "row_exponent", [*b_all[1:], b_all[0]], types.rq_lane)
        b_each = [Mux(offsets.b_bcast, b_one, b) for b in delay_all(m, "b_raw", b_raw)]
        for lane, (a, b) in enumerate(zip(delay_all(m, "a_raw", a_raw), b_each, strict=True)):
            m.d.comb += [
                self.a[lane].eq(
                    register(m, f"a_{lane}", Mux(beats[1].live, a - offsets.a_zp, 0), signed(32))
                ),
                self.b[lane].eq(register(m, f"b_{lane}", Mux(offsets.b_on, b - offsets.b_zp, 0), signed(32))),
            ]
        m.d.comb += [
            self.row_mult.eq(register(m, "row_mult_less_zp", mult - offsets.b_zp, signed(32))),
            self.row_exponent.eq(register(m, "row_exponent_less_zp", exponent - offsets.b_zp, signed(8))),
        ]
        return m

    def _operand(self, m: Module, name: str, first: int, pieces: int, acc_load: Value | None) -> Signal:
        """Register of an operand, loaded piece by piece from the scratchpad or at once from the
        accumulator.
        """
        width = 8 * self._n
        held = Signal(unsigned(pieces * width), name=f"{name}_bytes", reset_less=True)
        for piece in range(pieces):
            part = held[piece * width : (piece + 1) * width]
            with m.If(self.sp_load[first + piece]):
                m.d.sync += part.eq(self.sp_data)
            if acc_load is not None:
                with m.Elif(acc_load):
                    m.d.sync += part.eq(self.acc_data[piece * width : (piece + 1) * width])
        return held

    def _elements(self, m: Module, name: str, held: Signal, dtype: Value, width: int) -> list[Signal]:
        """All N elements of a row."""
        result = []
        is_byte, is_half = Signal(name=f"{name}_is_byte"), Signal(name=f"{name}_is_half")
        m.d.comb += [is_byte.eq((dtype == Dtype.I8) | (dtype == Dtype.U8)), is_half.eq(dtype == Dtype.I16)]
        for lane in range(self._n):
            byte = held[8 * lane : 8 * lane + 8]
            sign = byte[7] & (dtype == Dtype.I8)
            element = Signal(signed(width), name=f"{name}_element_{lane}")
            half = held[16 * lane : 16 * lane + 16].as_signed()
            wide = held[32 * lane : 32 * lane + 32].as_signed() if width == 32 else half
            m.d.comb += element.eq(Mux(is_byte, Cat(byte, sign).as_signed(), Mux(is_half, half, wide)))
            result.append(element)
        return result

    def _part(self, row: list[Signal]) -> list[Value]:
        """The lanes of this beat."""
        return part_of(row, self.beat.part, self._lanes)

    def _select(self, m: Module, name: str, row: list[Signal], index: Value) -> Signal:
        """Register of one lane of the row, by a tree of multiplexers."""
        values: list[Value] = list(row)
        for level in range((self._n - 1).bit_length()):
            merged = []
            for i in range(len(values) // 2):
                node = Signal(signed(32), name=f"{name}_{level}_{i}")
                m.d.comb += node.eq(Mux(index[level], values[2 * i + 1], values[2 * i]))
                merged.append(node)
            values = merged
        return register(m, name, values[0])


def delay_all(m: Module, name: str, values: list[Value], cycles: int = 1) -> list[Value]:
    """Each value after some registers."""
    return [delay(m, f"{name}_{lane}", value, cycles) for lane, value in enumerate(values)]
