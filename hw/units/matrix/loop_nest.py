"""Loop nests of MATRIX: nested counters, and addresses that are computed by additions only."""

from amaranth.hdl import Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

COUNT_BITS = 16


class LoopNest(wiring.Component):
    """Nested loop counters; loop 0 is the innermost.

    Latency: `load` and `step` act on the outputs in the next cycle. Throughput: one step per cycle.

    Parameters
    ----------
    levels : int
        Number of nested loops.

    Members
    -------
    load : In(1)
        Restart all loops with `count{i}` iterations.
    step : In(1)
        Complete one iteration of the innermost loop.
    count{i} : In(16)
        Number of iterations of loop i, at least 1; constant from `load` to the last iteration.
    advance : Out(levels)
        One-hot index of the loop that advances with the next `step`, while all loops inside it restart; 0 in the last
        iteration of all loops.
    last : Out(levels)
        Bit i is high if loop i is in its last iteration.
    end : Out(1)
        High if all loops are in their last iteration.
    """

    def __init__(self, levels: int):
        self.levels = levels
        super().__init__(
            {
                "load": In(1),
                "step": In(1),
                "advance": Out(levels),
                "last": Out(levels),
                "end": Out(1),
                **{f"count{i}": In(COUNT_BITS) for i in range(levels)},
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        inner_end: Value = Const(1)
        for i in range(self.levels):
            count = getattr(self, f"count{i}")
            left = Signal(COUNT_BITS, name=f"left{i}", reset_less=True)
            end = Signal(name=f"end{i}")
            self._compare_last(m, i, left)
            m.d.comb += [
                self.advance[i].eq(inner_end & ~self.last[i]),
                end.eq(inner_end & self.last[i]),
            ]
            with m.If(self.load | (self.step & end)):
                m.d.sync += left.eq(count)
                self._register_last(m, i, count == 1)
            with m.Elif(self.step & inner_end):
                m.d.sync += left.eq(left - 1)
                self._register_last(m, i, left == 2)
            inner_end = end
        m.d.comb += self.end.eq(inner_end)
        return m

    def _compare_last(self, m: Module, i: int, left: Signal) -> None:
        """Drive `last` of loop `i` from its number of remaining iterations."""
        m.d.comb += self.last[i].eq(left == 1)

    def _register_last(self, m: Module, i: int, following: Value) -> None:
        """Load `last` of loop `i` with its next value if it is a register."""


class PipelinedLoopNest(LoopNest):
    """`LoopNest` in which the flags `last` are registers, so that they are valid early in the cycle.

    Latency, throughput, parameters and members are the same as for `LoopNest`.
    """

    def _compare_last(self, m: Module, i: int, left: Signal) -> None:
        pass

    def _register_last(self, m: Module, i: int, following: Value) -> None:
        m.d.sync += self.last[i].eq(following)


def nested_address(
    m: Module,
    name: str,
    shape: object,
    *,
    load: Value,
    base: Value,
    step: Value,
    levels: list[tuple[Value, Value | None]],
) -> Signal:
    """Return a register with the value base + sum of index * stride over nested loops.

    For each loop with a stride, a register stores the value at the start of the loop's current iteration. When a loop
    advances, this value grows by the stride, and the registers of all inner loops copy it. When a loop without a stride
    advances, the registers of its inner loops copy the value of the next outer loop. There is one adder for each
    stride.

    Parameters
    ----------
    m, name, shape
        Module that the registers are added to, prefix of their names, and their shape.
    load, base
        `load` is high at the start of a walk; `base` is the first value of the register.
    step : Value
        High in the cycle of a step, in which the advance flags are valid.
    levels : list of (advance, stride or None)
        Advance flag and stride of each loop, innermost first.
    """
    starts = [
        None if stride is None else Signal(shape, name=f"{name}_{i}", reset_less=True)
        for i, (_, stride) in enumerate(levels)
    ]
    registers = [s for s in starts if s is not None]
    if levels[-1][1] is None:
        starts.append(Signal(shape, name=f"{name}_base", reset_less=True))
        registers.append(starts[-1])
    with m.If(load):
        m.d.sync += [s.eq(base) for s in registers]
    with m.Elif(step):
        for i, (advance, stride) in enumerate(levels):
            inner = [s for s in starts[: i + 1] if s is not None]
            outer = next(s for s in starts[i:] if s is not None)
            if inner:
                following = Signal(shape, name=f"{name}_next{i}")
                m.d.comb += following.eq(outer if stride is None else outer + stride)
                with m.If(advance):
                    m.d.sync += [s.eq(following) for s in inner]
    return registers[0]


def lane_count_bits(n: int) -> int:
    """Return the width in bits of a lane count, 0..n."""
    return n.bit_length()


def lanes_in_use(m: Module, name: str, last: Value, tail: Value, usual: Value, n: int) -> Signal:
    """Return the number of lanes in use: `tail` in the last block, `usual` in the other blocks.

    If `tail` is 0, the number is `usual` in all blocks. A value of 0 for `usual` means n.
    """
    lanes = Signal(lane_count_bits(n), name=name)
    usual_lanes = Signal(lane_count_bits(n), name=f"{name}_usual")
    m.d.comb += [
        usual_lanes.eq(Mux(usual == 0, n, usual)),
        lanes.eq(Mux(last & (tail != 0), tail, usual_lanes)),
    ]
    return lanes
