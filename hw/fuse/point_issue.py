"""Issue of the memory reads of points, and of the beats of a point once all its reads have been granted."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal, Value, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.fuse.layouts import BEAT, CREDITS, DESCRIPTOR, POINT
from hw.lib.pipeline import optional_register, vacancy
from hw.memory.ports import ACC_READ_LATENCY, SP_READ_LATENCY, AccReadPort, SpReadPort

#: Cycles from a granted read to the operand register that holds its data.
OPERAND_LATENCY = SP_READ_LATENCY + 1


class PointIssue(wiring.Component):
    """Splits each point into steps of at most one scratchpad and one accumulator read.

    A step waits until both of its reads are granted. The reads of a later step are never granted before the reads of an
    earlier step, so the operand registers need no tags and no back-pressure. A point starts when the result queue has
    room for it.

    Latency: one cycle from a point to its first request; a beat is emitted OPERAND_LATENCY cycles after the last grant,
    when the operands are in their registers. Throughput: one point every fuse_rate cycles, or less if the scratchpad or
    accumulator reads of a point take longer; fuse_rate - 1 cycles are then added, because the operand registers are
    read part by part.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    points : In(stream of POINT)
        Points to issue, in loop order.
    free : In(1)
        High if the writer has finished a point, which frees an entry of the result queue.
    sp_read, acc_read : Out
        Read ports of scratchpad and accumulator, whose data are loaded into the operand registers.
    sp_load : Out(10), acc_load : Out(2)
        One-hot destination of the port's data: piece of A (4), B (4) or the residual (2); for the accumulator port, A
        or B.
    beat : Out(BEAT)
        Beats, that is, parts of rows, whose operands are in the operand registers.
    push : Out(1), descriptor : Out(DESCRIPTOR)
        Entry of the point for the result writer.
    refused : Out(1)
        High if a request was not granted.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "points": In(stream.Signature(POINT)),
                "free": In(1),
                "sp_read": Out(SpReadPort(config)),
                "acc_read": Out(AccReadPort(config)),
                "sp_load": Out(10),
                "acc_load": Out(2),
                "beat": Out(BEAT),
                "push": Out(1),
                "descriptor": Out(DESCRIPTOR),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        late = self._config.pipelined
        taken, complete, launch = Signal(), Signal(), Signal()
        sp_next, acc_next, last_step = self._next_step(m, taken)
        ready = self._ready(m, taken)
        credit = Signal(range(CREDITS + 1), init=CREDITS // self._config.fuse_rate)
        full, room = Signal(), Signal()
        m.d.comb += [
            room.eq(vacancy(full, complete, late) & ~self._held(m, complete & launch)),
            taken.eq(ready & room & (credit != 0)),
            self.points.ready.eq(taken & last_step),
            self.push.eq(taken & last_step),
            self.descriptor.addr.eq(self.points.payload.d),
            *(
                self.descriptor[name].eq(self.points.payload[name])
                for name in ("tail", "emit", "final", "cmd")
            ),
        ]
        m.d.sync += credit.eq(credit - self.push + self.free)
        point = Signal(POINT)
        with m.If(room | complete):
            m.d.sync += full.eq(taken)
        with m.If(taken):
            m.d.sync += [launch.eq(last_step), point.eq(self.points.payload)]
        self._requests(m, taken, sp_next, acc_next, complete, full)
        self._launch(m, full & complete & launch, point)
        return m

    def _ready(self, m: Module, taken: Signal) -> Value:
        """Return a value that is high if a step is ready."""
        return self.points.valid

    def _held(self, m: Module, launched: Value) -> Value:
        """Return a value that is high if later parts of a row still need the operand registers."""
        parts = self._config.fuse_rate
        if parts == 1:
            return Const(0)
        left = Signal(range(parts))
        with m.If(launched):
            m.d.sync += left.eq(parts - 2)
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        return self._in_use(launched, left)

    def _in_use(self, launched: Value, left: Signal) -> Value:
        """Return a value that is high if the operand registers are in use.

        Parameters
        ----------
        launched : Value
            High if the first part of a row is launched in this cycle.
        left : Signal
            Number of parts of the row after the next part.
        """
        return launched | (left != 0)

    def _next_step(self, m: Module, taken: Value) -> tuple[Signal, Signal, Signal]:
        """Return the next reads of the point at the head of the stream, and a signal that is high if they are its last
        reads.
        """
        point, late = self.points.payload, self._config.pipelined
        results = []
        rests = []
        self._choices: list[Signal] = []  # reads chosen in this cycle
        for name, need in (("sp", point.sp_need), ("acc", point.acc_need)):
            done = Signal(len(need), name=f"{name}_done")
            open_ = Signal(len(need), name=f"{name}_open")
            chosen = Signal(len(need), name=f"{name}_next")
            rest = Signal(len(need), name=f"{name}_rest")
            m.d.comb += [
                open_.eq(need & ~done),
                rest.eq(open_ & (open_ - 1)[: len(need)]),
                chosen.eq(open_ & ~rest),
            ]
            self._choices.append(chosen)
            chosen = optional_register(m, f"{name}_next_held", chosen, late)
            rest = optional_register(m, f"{name}_rest_held", rest, late)
            results.append(chosen)
            rests.append((done, chosen, rest))
        last_step = Signal()
        m.d.comb += last_step.eq(Cat(rest for _, _, rest in rests) == 0)
        for done, chosen, _ in rests:
            with m.If(taken & last_step):
                m.d.sync += done.eq(0)
            with m.Elif(taken):
                m.d.sync += done.eq(done | chosen)
        return results[0], results[1], last_step

    def _requests(
        self, m: Module, taken: Value, sp_next: Signal, acc_next: Signal, complete: Signal, full: Signal
    ) -> None:
        point, n = self.points.payload, self._config.n
        sp_choice = self._choices[0]
        base, piece = Signal(unsigned(SP_ADDR_BITS)), Signal(2)
        m.d.comb += piece.eq(
            Cat(
                sp_choice[1] | sp_choice[3] | sp_choice[5] | sp_choice[7] | sp_choice[9],
                sp_choice[2] | sp_choice[3] | sp_choice[6] | sp_choice[7],
            )
        )
        with m.If(sp_choice[0:4].any()):
            m.d.comb += base.eq(point.a)
        with m.Elif(sp_choice[4:8].any()):
            m.d.comb += base.eq(point.b)
        with m.Else():
            m.d.comb += base.eq(point.r)
        sp_which, acc_which = Signal(10), Signal(2)
        sp, acc = self.sp_read, self.acc_read
        address = base + (piece << n.bit_length() - 1)
        m.d.comb += [
            # `taken` is set when the scratchpad's request register is free; that register is part of the waiting
            # step.
            sp.valid.eq(taken & sp_next.any()),
            sp.addr.eq(optional_register(m, "sp_addr", address, self._config.pipelined)),
            complete.eq(full & sp.ready & (~acc.valid | acc.ready)),
            self.refused.eq((sp.waits & ~sp.ready) | (acc.valid & ~acc.ready)),
        ]
        with m.If(taken):
            m.d.sync += [
                sp_which.eq(sp_next),
                acc.valid.eq(acc_next.any()),
                acc_which.eq(acc_next),
            ]
            with m.If(acc_next[1]):
                m.d.sync += acc.row.eq(point.b)
            with m.Else():
                m.d.sync += acc.row.eq(point.a)
        with m.Elif(acc.ready):
            m.d.sync += acc.valid.eq(0)
        for name, grant, which, load, latency in (
            ("sp", sp.waits & sp.ready, sp_which, self.sp_load, SP_READ_LATENCY),
            ("acc", acc.valid & acc.ready, acc_which, self.acc_load, ACC_READ_LATENCY),
        ):
            granted = Signal(len(which), name=f"{name}_granted")
            m.d.comb += granted.eq(which & grant.replicate(len(which)))
            for i in range(latency):
                stage = Signal(len(which), name=f"{name}_granted_{i + 1}")
                m.d.sync += stage.eq(granted)
                granted = stage
            m.d.comb += load.eq(granted)

    def _launch(self, m: Module, go: Value, point: Signal) -> None:
        beat = Signal(BEAT)
        m.d.comb += beat.valid.eq(go)
        m.d.comb += [beat[name].eq(point[name]) for name in ("live", "first", "last", "tail", "cmd", "slot")]
        for i in range(OPERAND_LATENCY):
            stage = Signal(BEAT, name=f"beat_{i + 1}")
            m.d.sync += stage.eq(beat)
            beat = stage
        m.d.comb += self.beat.eq(beat)
        if self._config.fuse_rate > 1:
            again = Signal(BEAT)
            m.d.sync += [
                again.eq(self.beat),
                again.part.eq(self.beat.part + 1),
                again.valid.eq(self.beat.valid & (self.beat.part != self._config.fuse_rate - 1)),
            ]
            with m.If(again.valid):
                m.d.comb += self.beat.eq(again)


class PipelinedPointIssue(PointIssue):
    """`PointIssue` that determines the reads of a step one cycle before it issues them.

    Latency: one cycle more than `PointIssue`. Throughput: as for `PointIssue`, but at most one step every two cycles.
    Parameters and members are those of `PointIssue`.
    """

    def _ready(self, m: Module, taken: Signal) -> Value:
        stood = Signal()
        m.d.sync += stood.eq(self.points.valid & ~taken)
        return self.points.valid & stood

    def _in_use(self, launched: Value, left: Signal) -> Value:
        """Do the same as `PointIssue._in_use`, without `launched`, because the step that launches a row still occupies
        the register of the step in that cycle.
        """
        return left != 0
