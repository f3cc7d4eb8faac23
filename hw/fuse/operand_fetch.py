"""FUSE step 1, first half: operand registers, element types, broadcast, zero points."""

from collections.abc import Sequence

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.floats import EXPONENT_BITS, unpack
from hw.fuse.layouts import BEAT, SOURCE_CONTROL, control_write, lanes, lanes_of, part_of
from hw.isa.enums import Dtype
from hw.lib.pipeline import pipeline_delay, pipeline_register, pipeline_struct
from hw.lib.trees import select_tree

#: Cycles from a beat, whose operands are in the operand registers, to its lanes.
LATENCY = 2


class OperandFetch(wiring.Component):
    """Collects the bytes of A, B and the residual, and converts them to int32 lanes.

    Latency: LATENCY cycles from `beat`. Throughput: one beat per cycle; the operand registers may be loaded again in
    the cycle of a row's last beat.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    controls : In
        Controls of a command that enters the pipeline.
    sp_data, acc_data : In
        Data of the read ports of scratchpad and accumulator.
    sp_load : In(10), acc_load : In(2)
        One-hot index of the operand register that loads the data of each read port, see `PointIssue`.
    beat : In(BEAT), o_beat : Out(BEAT)
        Control data of the beat at the input and at the output.
    a, b : Out(lanes)
        Operands after subtraction of the zero points; A is 0 if the point is padding.
    a_exponent : Out(lanes of EXPONENT_BITS)
        Exponents of A's elements, which are nonzero only for float32 elements, whose significands are in `a`.
    r : Out(lanes of 16 bits)
        Elements of the residual before subtraction of the zero point.
    row_mult : Out(signed(32)), row_exponent : Out(signed(8))
        Multiplier and exponent, which are lanes rq_lane and rq_lane + 1 of B.
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
                "a_exponent": Out(lanes(self._lanes, EXPONENT_BITS)),
                "r": Out(lanes(self._lanes, 16)),
                "row_mult": Out(signed(32)),
                "row_exponent": Out(signed(8)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        types = fetch(
            m,
            "types",
            self.controls,
            ("a_dtype", "b_dtype", "r_dtype", "b_lane", "b_bcast", "rq_lane"),
            self.beat.cmd,
        )
        offsets = fetch(
            m, "offsets", self.controls, ("a_zp", "a_float", "b_zp", "b_bcast", "b_on"), beats[1].cmd
        )
        a_rows = self._rows(self._operand(m, "a", 0, 4, self.acc_load[0]), (8, 16, 32))
        b_rows = self._rows(self._operand(m, "b", 4, 4, self.acc_load[1]), (8, 16, 32))
        r_rows = self._rows(self._operand(m, "r", 8, 2, None), (8, 16))
        lane_bits = (self._lanes - 1).bit_length()
        # If a lane is broadcast, every beat uses the part of the row that contains this lane.
        b_part = Mux(types.b_bcast, types.b_lane[lane_bits:], self.beat.part)
        a_raw = self._part(m, "a", a_rows, self.beat.part, types.a_dtype)
        b_raw = self._part(m, "b", b_rows, b_part, types.b_dtype)
        r_raw = self._part(m, "r", r_rows, self.beat.part, types.r_dtype)
        m.d.comb += [self.r[lane].eq(value) for lane, value in enumerate(delay_all(m, "r", r_raw, 2))]
        next_rows = [[*row[1:], row[0]] for row in b_rows]
        b_one = pipeline_register(m, "b_one", select_tree(m, "b_one", types.b_lane, dict(enumerate(b_raw))))
        mult = self._select(m, "row_mult", b_rows, types.rq_lane, types.b_dtype)
        exponent = self._select(m, "row_exponent", next_rows, types.rq_lane, types.b_dtype)
        b_each = [Mux(offsets.b_bcast, b_one, b) for b in delay_all(m, "b_raw", b_raw)]
        for lane, (a, b) in enumerate(zip(delay_all(m, "a_raw", a_raw), b_each, strict=True)):
            number = unpack(m, lane, a)
            value = Mux(offsets.a_float, number.significand, a - offsets.a_zp)
            power = Mux(offsets.a_float & beats[1].live, number.exponent, 0)
            m.d.comb += [
                self.a[lane].eq(pipeline_register(m, f"a_{lane}", Mux(beats[1].live, value, 0), signed(32))),
                self.a_exponent[lane].eq(
                    pipeline_register(m, f"a_exponent_{lane}", power, signed(EXPONENT_BITS))
                ),
                self.b[lane].eq(
                    pipeline_register(m, f"b_{lane}", Mux(offsets.b_on, b - offsets.b_zp, 0), signed(32))
                ),
            ]
        m.d.comb += [
            self.row_mult.eq(pipeline_register(m, "row_mult_less_zp", mult - offsets.b_zp, signed(32))),
            self.row_exponent.eq(
                pipeline_register(m, "row_exponent_less_zp", exponent - offsets.b_zp, signed(8))
            ),
        ]
        return m

    def _operand(self, m: Module, name: str, first: int, pieces: int, acc_load: Value | None) -> Signal:
        """Return the register of an operand, loaded piece by piece from the scratchpad, or as a whole from the
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

    def _rows(self, held: Signal, widths: tuple[int, ...]) -> list[list[Value]]:
        """Return the row of an operand as a list of N elements, once for each element width in `widths` (in bits).

        The lanes are selected before the width, so that the logic that converts an element to an integer exists only
        for the selected lanes.
        """
        return [[held[w * lane : w * (lane + 1)] for lane in range(self._n)] for w in widths]

    def _part(self, m: Module, name: str, rows: list[list[Value]], part: Value, dtype: Value) -> list[Value]:
        """Return the lanes of one part of the row, converted to integers."""
        parts = [part_of(row, part, self._lanes) for row in rows]
        return [
            _element(m, f"{name}_element_{lane}", choices, dtype)
            for lane, choices in enumerate(zip(*parts, strict=True))
        ]

    def _select(self, m: Module, name: str, rows: list[list[Value]], index: Value, dtype: Value) -> Signal:
        """Return a register with lane `index` of the row, converted to an integer."""
        choices = [select_tree(m, f"{name}_{len(row[0])}", index, dict(enumerate(row))) for row in rows]
        return pipeline_register(m, name, _element(m, f"{name}_element", choices, dtype))


def _element(m: Module, name: str, choices: Sequence[Value], dtype: Value) -> Signal:
    """Return an element as an integer; `choices` are the bits of the element for widths of 8, 16 and possibly 32 bits.

    If only two widths are possible, 16 bits are used for wider types.
    """
    byte, half, wide = choices[0], choices[1], choices[-1]
    is_byte = (dtype == Dtype.I8) | (dtype == Dtype.U8)
    element = Signal(signed(len(wide)), name=name)
    sign = byte[7] & (dtype == Dtype.I8)
    longer = Mux(dtype == Dtype.I16, half.as_signed(), wide.as_signed())
    m.d.comb += element.eq(Mux(is_byte, Cat(byte, sign).as_signed(), longer))
    return element


def delay_all(m: Module, name: str, values: list[Value], cycles: int = 1) -> list[Value]:
    """Return the values, each delayed by `cycles` registers."""
    return [pipeline_delay(m, f"{name}_{lane}", value, cycles) for lane, value in enumerate(values)]
