"""Stack of hardware loops."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.lib.pipeline import pipeline_register


class LoopStack(wiring.Component):
    """Stack of hardware loops, with separate trip counts for completed and fetched instructions.

    Fetching runs ahead of completion, so there are two copies of the trip counts. The fetch side counts an iteration
    when it fetches past the last instruction of a loop; the completing side counts it when that instruction completes
    without branching. A redirect copies the state of the completing side to the fetch side. Every push, pop, call and
    return redirects, so both sides make the same decisions.

    Latency: decisions are combinational. Throughput: one instruction per cycle on each side, even if the instruction
    ends several loops.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `loop_depth`, the capacity in loops.
    width : int
        Width of a program counter in bits.

    Members
    -------
    clear : In
        Remove all loops from the stack.
    fetch_pc, fetch_step : In
        `fetch_pc` is the address of the last fetched word; `fetch_step` is high if the word after it is being fetched.
    fetch_back, fetch_start : Out
        `fetch_back` is high if the word to fetch after `fetch_pc` is the start of a loop, at address `fetch_start`.
    pc, step : In
        `step` is high if the instruction at `pc` completes in this cycle by falling through.
    redirect : In
        Copy the next state of the completing side to the fetch side.
    back, back_start : Out
        `back` is high if the completing instruction is followed by the start of a loop, at address `back_start`.
    push, push_start, push_last, push_trips : In
        Open a loop from word `push_start` to word `push_last`, with `push_trips` iterations.
    pop : In
        Close the innermost loop.
    call, ret : In
        `call` hides the open loops; `ret` makes the caller's loops visible again.
    ret_depth, ret_frame : In
        Values that `depth` and `frame` had at the call.
    depth, frame : Out
        Number of open loops, and number of open loops that belong to callers.
    """

    def __init__(self, config: MlaConfig, *, width: int):
        self.levels, self.width = config.loop_depth, width
        count = range(self.levels + 1)
        super().__init__(
            {
                "clear": In(1),
                "fetch_pc": In(width),
                "fetch_step": In(1),
                "fetch_back": Out(1),
                "fetch_start": Out(width),
                "pc": In(width),
                "step": In(1),
                "redirect": In(1),
                "back": Out(1),
                "back_start": Out(width),
                "push": In(1),
                "push_start": In(width),
                "push_last": In(width),
                "push_trips": In(32),
                "pop": In(1),
                "call": In(1),
                "ret": In(1),
                "ret_depth": In(count),
                "ret_frame": In(count),
                "depth": Out(count),
                "frame": Out(count),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        start = [Signal(self.width, name=f"start{i}") for i in range(self.levels)]
        last = [Signal(self.width, name=f"last{i}") for i in range(self.levels)]
        # Number of iterations that have not begun, for the completing side (`left`) and the fetch side (`ahead`).
        left = [Signal(32, name=f"left{i}") for i in range(self.levels)]
        ahead = [Signal(32, name=f"ahead{i}") for i in range(self.levels)]
        ahead_depth = Signal.like(self.depth)
        back, depth_after = self._decide(m, "done", self.pc, self.depth, left, last)
        ahead_back, ahead_after = self._decide(m, "ahead", self.fetch_pc, ahead_depth, ahead, last)
        m.d.comb += [self.back.eq(back.any()), self.fetch_back.eq(ahead_back.any())]
        for i in range(self.levels):
            with m.If(back[i]):
                m.d.comb += self.back_start.eq(start[i])
            with m.If(ahead_back[i]):
                m.d.comb += self.fetch_start.eq(start[i])
        next_depth = self._depth(m, depth_after)
        for i in range(self.levels):
            pushed, fresh = Signal(name=f"pushed{i}"), Signal(name=f"fresh{i}")
            next_left = Signal(32, name=f"next_left{i}")
            falls = self.step & back[i]
            m.d.comb += pushed.eq(self.push & (self.depth == i))
            # The first iteration is counted one cycle after the loop opens, when the redirect copies the count.
            m.d.sync += fresh.eq(pushed)
            self._count(m, i, left[i], next_left, pushed=pushed, fresh=fresh, falls=falls)
            with m.If(pushed):
                m.d.sync += [start[i].eq(self.push_start), last[i].eq(self.push_last)]
            with m.If(self.redirect):
                m.d.sync += ahead[i].eq(next_left)
            with m.Elif(self.fetch_step & ahead_back[i]):
                m.d.sync += ahead[i].eq(ahead[i] - 1)
        with m.If(self.redirect):
            m.d.sync += ahead_depth.eq(next_depth)
        with m.Elif(self.fetch_step):
            m.d.sync += ahead_depth.eq(ahead_after)
        return m

    def _count(
        self, m: Module, i: int, left: Signal, next_left: Signal, *, pushed: Value, fresh: Value, falls: Value
    ) -> None:
        """Update the number of remaining iterations of loop `i`, and drive `next_left`, the value that a redirect
        copies.
        """
        m.d.comb += next_left.eq(left - (fresh | falls))
        m.d.sync += left.eq(Mux(pushed, self.push_trips, next_left))

    def _register_flags(self, m: Module, side: str, ends: Signal, more: Signal) -> tuple[Signal, Signal]:
        """Return the inputs of the decision: masks of the loops that end at this word and of those with further
        iterations.
        """
        return ends, more

    def _register_decision(self, m: Module, side: str, back: Signal, after: Signal) -> tuple[Signal, Signal]:
        """Return the outputs of the decision: the loop that repeats, and the number of loops that are then open."""
        return back, after

    def _decide(
        self, m: Module, side: str, pc: Signal, depth: Signal, left: list[Signal], last: list[Signal]
    ) -> tuple[Signal, Signal]:
        """Return the loop that repeats after `pc` falls through (one-hot), and the number of loops that are then
        open.
        """
        back = Signal(self.levels, name=f"{side}_back")
        after = Signal.like(self.depth, name=f"{side}_depth_after")
        ends = Signal(self.levels, name=f"{side}_ends")
        more = Signal(self.levels, name=f"{side}_more")
        m.d.comb += [
            ends.eq(Cat((pc == last[i]) & (i < depth) & (i >= self.frame) for i in range(self.levels))),
            more.eq(Cat(word.any() for word in left)),
            after.eq(depth),
        ]
        ends, more = self._register_flags(m, side, ends, more)
        # The loops are examined from the innermost outwards, as long as a loop ends at this word and has no further
        # iterations.
        reached = Signal(self.levels, name=f"{side}_reached")
        closed = ends & ~more
        for i in range(self.levels):
            outer = 1 if i == self.levels - 1 else (depth <= i + 1) | (reached[i + 1] & closed[i + 1])
            m.d.comb += reached[i].eq((i < depth) & outer)
        m.d.comb += back.eq(reached & ends & more)
        for i in reversed(range(self.levels)):
            with m.If(reached[i] & closed[i]):
                m.d.comb += after.eq(i)
        return self._register_decision(m, side, back, after)

    def _depth(self, m: Module, after: Signal) -> Signal:
        """Update the depth and frame of the completing side; return the next depth."""
        depth, frame = Signal.like(self.depth, name="next_depth"), Signal.like(self.frame, name="next_frame")
        m.d.comb += [depth.eq(Mux(self.step, after, self.depth)), frame.eq(self.frame)]
        with m.If(self.clear):
            m.d.comb += [depth.eq(0), frame.eq(0)]
        with m.Elif(self.push):
            m.d.comb += depth.eq(self.depth + 1)
        with m.Elif(self.pop):
            m.d.comb += depth.eq(self.depth - 1)
        with m.Elif(self.call):
            m.d.comb += frame.eq(self.depth)
        with m.Elif(self.ret):
            m.d.comb += [depth.eq(self.ret_depth), frame.eq(self.ret_frame)]
        m.d.sync += [self.depth.eq(depth), self.frame.eq(frame)]
        return depth


class PipelinedLoopStack(LoopStack):
    """`LoopStack` with registers before and after its decisions.

    Latency: decisions are valid two cycles after the values that they depend on. Throughput: one instruction every
    three cycles. Members are the same as for `LoopStack`, but no instruction may fall through in the cycle of a
    `redirect`.
    """

    def _count(
        self, m: Module, i: int, left: Signal, next_left: Signal, *, pushed: Value, fresh: Value, falls: Value
    ) -> None:
        fewer = Signal(32, name=f"fewer{i}")
        m.d.comb += [fewer.eq(left - 1), next_left.eq(Mux(fresh, fewer, left))]
        with m.If(fresh | falls):
            m.d.sync += left.eq(fewer)
        with m.Elif(pushed):
            m.d.sync += left.eq(self.push_trips)

    def _register_flags(self, m: Module, side: str, ends: Signal, more: Signal) -> tuple[Signal, Signal]:
        return (
            pipeline_register(m, f"{side}_ends_held", ends),
            pipeline_register(m, f"{side}_more_held", more),
        )

    def _register_decision(self, m: Module, side: str, back: Signal, after: Signal) -> tuple[Signal, Signal]:
        found = Signal.like(back, name=f"{side}_back_held"), Signal.like(after, name=f"{side}_after_held")
        m.d.sync += [found[0].eq(back), found[1].eq(after)]
        return found
