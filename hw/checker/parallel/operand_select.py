"""First stage of the bounds checker, which selects the operands of one step."""

from collections.abc import Callable

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.checker.arithmetic import LANES, ROW_BITS, X_BITS, Y_BITS
from hw.checker.parallel.schedule import (
    COORDINATE_STEPS,
    NUMBER,
    OPTIONAL,
    ORDER,
    STEP_BITS,
    STEPS,
    STREAMS,
    Lane,
    Step,
    Use,
)
from hw.checker.values import VALUES, AddressSpace, spaces
from hw.config import MlaConfig
from hw.isa.enums import Post, Requant, Unit
from hw.layouts import config_layout

#: Control bits of a step for the later stages.
CONTROL_LAYOUT = data.StructLayout(
    {
        "valid": 1,
        "final": 1,  # last step of the command
        "first": 1,
        "last": 1,  # last step of the stream's box
        "kind": AddressSpace.BITS,
        "order": 2,
        "dram": 1,  # DRAM address: odd lanes carry the upper halves
        "coordinates": 1,
        "activations": 1,
        "slots": 1,
        "capture": data.StructLayout(
            {"start": 1, "du1": 1, "du2": 1, "dv1": 1, "dv2_lane1": 1, "dv2_lane3": 1}
        ),
        "to_low": LANES,
        "to_high": LANES,
        "base": 32,
        "end": 33,  # last byte (row, slot) accessed in the walk's first step
    }
)


class OperandSelect(wiring.Component):
    """Selects the multiplier operands, box ends and control bits of a step, and determines the next step.

    Latency: combinational. Throughput: one step per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    unit : In
        Unit whose command is checked.
    step : In
        Index of the step (schedule.NUMBER).
    load, matrix, fuse, store : In
        Current fields of each unit.
    u_low, u_high, v_low, v_high : In
        Ranges of the image coordinates u and v.
    dw_rows, dw_out_rows : In
        Last image row and last output row of a depthwise stream.
    x{i}, y{i} : Out
        Operands of multiplier i.
    control : Out
        Control bits of the step for the later stages; `valid` is not driven here.
    first : Out
        Index of the first step of a check.
    next, more : Out
        Index of the next step; high if there is a next step.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        coordinate = signed(X_BITS)
        super().__init__(
            {
                "unit": In(2),
                "step": In(STEP_BITS),
                **{u.name.lower(): In(config_layout(u)) for u in Unit},
                **{name: In(coordinate) for name in ("u_low", "u_high", "v_low", "v_high")},
                "dw_rows": In(ROW_BITS),
                "dw_out_rows": In(ROW_BITS),
                **{f"x{i}": Out(signed(X_BITS)) for i in range(LANES)},
                **{f"y{i}": Out(signed(Y_BITS)) for i in range(LANES)},
                "control": Out(CONTROL_LAYOUT),
                "first": Out(STEP_BITS),
                "next": Out(STEP_BITS),
                "more": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        fields = {u: getattr(self, u.name.lower()) for u in Unit}
        values = {u: VALUES[u](m, fields[u], self.config) for u in Unit}
        for u in (Unit.MATRIX, Unit.FUSE):
            values[u] |= self._ranges(m, u, fields[u])
        values[Unit.MATRIX] |= {"dw_rows": self.dw_rows, "dw_out_rows": self.dw_out_rows}
        kinds = spaces(fields)
        raw = [Signal(signed(X_BITS), name=f"raw{i}") for i in range(LANES)]
        counts = Signal(LANES)
        base, touched = Signal(32), Signal(21)
        negative = Signal(LANES)

        def value(step: Step, name: str) -> Value:
            return values[step.unit][name] if name in values[step.unit] else getattr(fields[step.unit], name)

        with m.Switch(self.step):
            for name, step in STEPS.items():
                with m.Case(NUMBER[name]):
                    for i, lane in enumerate(step.lanes):
                        self._lane(
                            m, i, lane, lambda field, step=step: value(step, field), raw, counts, negative
                        )
                    m.d.comb += self._constants(name, step)
                    if step.stream:
                        stream = STREAMS[step.stream]
                        m.d.comb += [
                            base.eq(value(step, stream.base)),
                            touched.eq(value(step, stream.touched)),
                            self.control.kind.eq(kinds[step.stream]),
                            self.control.order.eq(stream.order),
                        ]
        for i in range(LANES):
            m.d.comb += getattr(self, f"x{i}").eq(raw[i] - counts[i])
        m.d.comb += [self.control.base.eq(base), self.control.end.eq(base + touched - 1)]
        fuse = fields[Unit.FUSE]
        with m.If(
            self.control.slots & ~((fuse.src.requant == Requant.SLOT) | (fuse.stage.post == Post.SLOT))
        ):
            m.d.comb += self.control.last.eq(0)  # this step only computes the number of points of the window
        self._next(m, values)
        return m

    def _ranges(self, m: Module, unit: Unit, fields: object) -> dict[str, Value]:
        """Return the ends of the coordinate ranges, ordered so that the first end gives the low address and the second
        end gives the high address.
        """
        found = {}
        for axis in "uv":
            back = getattr(fields, f"a_{axis}")[-1]
            low, high = getattr(self, f"{axis}_low"), getattr(self, f"{axis}_high")
            found |= {f"{axis}_first": Mux(back, high, low), f"{axis}_second": Mux(back, low, high)}
        return found

    def _lane(
        self,
        m: Module,
        i: int,
        lane: Lane,
        value: Callable[[str], Value],
        raw: list[Signal],
        counts: Signal,
        negative: Signal,
    ) -> None:
        """Drive the operands of one lane."""
        if lane.use == Use.OFF:
            return
        y = value(lane.y)
        sign = value(lane.sign) if lane.sign else y
        m.d.comb += [raw[i].eq(value(lane.x)), getattr(self, f"y{i}").eq(y), counts[i].eq(int(lane.count))]
        if lane.use == Use.BOX:
            m.d.comb += [
                negative[i].eq(sign[-1]),
                self.control.to_low[i].eq(negative[i]),
                self.control.to_high[i].eq(~negative[i]),
            ]
        elif lane.use == Use.LOW:
            m.d.comb += self.control.to_low[i].eq(1)
        elif lane.use == Use.HIGH:
            m.d.comb += self.control.to_high[i].eq(1)

    def _constants(self, name: str, step: Step) -> list:
        """Return the control bits that depend only on the step."""
        control = self.control
        return [
            control.first.eq(int(step.first)),
            control.last.eq(int(step.last)),
            control.dram.eq(int(name in ("load_dram", "store_dram"))),
            control.coordinates.eq(int(name in COORDINATE_STEPS)),
            control.activations.eq(int(step.stream in ("matrix_a", "fuse_a"))),
            control.slots.eq(int(name == "fuse_slots")),
            *(control.capture[capture].eq(1) for capture in step.captures),
        ]

    def _next(self, m: Module, values: dict[Unit, dict[str, Value]]) -> None:
        """Drive the first and the next step."""

        def choose(unit: Unit, name: str | None, chosen: Signal) -> None:
            for step, condition in reversed(successors(unit, name)):
                with m.If(values[unit][condition] if condition else 1):
                    m.d.comb += chosen.eq(NUMBER[step])
                    if name is not None:
                        m.d.comb += self.more.eq(1)

        with m.Switch(self.step):
            for name, step in STEPS.items():
                with m.Case(NUMBER[name]):
                    choose(step.unit, name, self.next)
        with m.Switch(self.unit):
            for unit in Unit:
                with m.Case(int(unit)):
                    choose(unit, None, self.first)
        m.d.comb += self.control.final.eq(~self.more)


def successors(unit: Unit, name: str | None) -> list[tuple[str, str | None]]:
    """Return the possible successors of step `name` as pairs (step, condition), in order of preference.

    If `name` is None, return the possible first steps of a check.
    """
    order = ORDER[unit]
    rest = order[0 if name is None else order.index(name) + 1 :]
    found = []
    for step in rest:
        found.append((step, OPTIONAL.get(step)))
        if step not in OPTIONAL:
            break
    return found
