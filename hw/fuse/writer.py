"""FUSE step 6: writes of the results to the scratchpad or the accumulator."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import CREDITS, DESCRIPTOR, control_write, lanes, lanes_of, writer_control
from hw.fuse.post_scale import SUM_BITS
from hw.fuse.reciprocal import Reciprocals
from hw.fuse.row_assembler import assemble_row, collect_row
from hw.fuse.statistics import REPORT
from hw.isa.enums import Dtype
from hw.lib.fifo import CreditFifo
from hw.lib.pipeline import optional_register, vacancy
from hw.memory.ports import AccWritePort, SpWritePort

#: Maximum number of points that wait for reciprocals.
_PENDING = 64


class Writer(wiring.Component):
    """Receives points in order from the end of the pipeline, and writes their results.

    Beats wait in a queue with one entry per credit; addresses of points wait in a second queue, which is filled when
    points are issued. A row of bytes takes one write, a row of int16 two writes, and a row of int32 in the scratchpad
    four. Reciprocals are computed at the same time in several units; only a row without a reciprocal waits for them.

    Latency: two cycles from a beat to its write. Throughput: one point every fuse_rate cycles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    controls : In
        Controls of a command that enters the pipeline.
    push : In(1), descriptor : In(DESCRIPTOR)
        High if a point is issued; descriptor of this point.
    beat : In(1), value : In(lanes), changed : In
        High if a beat leaves the pipeline; elements of the beat; number of lanes changed by clipping.
    pair, root : In(1)
        High if the beat's first element is the operand of a reciprocal, and if its root is needed first.
    emit : In(1)
        High if the beat's point completes a result.
    sp_write, acc_write : Out
        Write ports of scratchpad and accumulator.
    report : Out(REPORT), row : Out(lanes), mask : Out
        Finished point for the statistics, its elements, and the mask of the valid elements.
    refused : Out(1)
        High if a write was not granted.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        self._n, self._lanes, self._rate = config.n, lanes_of(config), config.fuse_rate
        self._control, self._late = writer_control(config.n), config.pipelined
        self._entry = data.StructLayout(
            {"value": lanes(self._lanes), "changed": SUM_BITS, "pair": 1, "root": 1, "emit": 1}
        )
        super().__init__(
            {
                "controls": In(control_write(self._control)),
                "push": In(1),
                "descriptor": In(DESCRIPTOR),
                "beat": In(1),
                "value": In(lanes(self._lanes)),
                "changed": In(SUM_BITS),
                "pair": In(1),
                "root": In(1),
                "emit": In(1),
                "sp_write": Out(SpWritePort(config)),
                "acc_write": Out(AccWritePort(config)),
                "report": Out(REPORT),
                "row": Out(lanes(config.n)),
                "mask": Out(config.n),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.points = points = CreditFifo(DESCRIPTOR, CREDITS // self._rate)
        m.submodules.beats = beats = CreditFifo(self._entry, CREDITS)
        m.d.comb += [
            points.push.eq(self.push),
            points.w_data.eq(self.descriptor),
            beats.push.eq(self.beat),
            beats.w_data.value.eq(self.value),
            beats.w_data.changed.eq(self.changed),
            beats.w_data.pair.eq(self.pair),
            beats.w_data.root.eq(self.root),
            beats.w_data.emit.eq(self.emit),
        ]
        point, control = self._head(m, points)
        free, taken = Signal(), Signal()
        ready, row, changed, last = self._assemble(m, beats, taken)
        m.submodules.reciprocals = units = Reciprocals(self._config)
        # Operands of reciprocals leave the queue of beats before their results are written. Results stay in order:
        # points that are part of a window wait with them in a second queue, and a result without a reciprocal waits
        # until that queue is empty.
        depth = min(_PENDING, CREDITS // self._rate)
        m.submodules.pending = pending = CreditFifo(
            data.StructLayout({"changed": SUM_BITS, "pair": 1}), depth
        )
        waiting = Signal(range(depth + 1))
        room = ~waiting[-1]
        start, queue, direct, finish, load = (Signal() for _ in range(5))
        spaced = self._spacing(m, load)
        scalar = row[self._n - self._lanes]
        m.d.sync += waiting.eq(waiting + queue - finish)
        m.d.comb += [
            start.eq(ready & last.pair & units.ready & room),
            queue.eq(start | (ready & ~last.emit & (waiting != 0) & room)),
            direct.eq(ready & ~last.pair & (waiting == 0) & free & spaced),
            finish.eq(pending.valid & (~pending.r_data.pair | units.done) & free & spaced),
            taken.eq(queue | direct),
            units.start.eq(start),
            units.x.eq(scalar),
            units.root.eq(last.root),
            units.taken.eq(finish & pending.r_data.pair),
            pending.push.eq(queue),
            pending.w_data.changed.eq(changed),
            pending.w_data.pair.eq(last.pair),
            pending.pop.eq(finish),
        ]
        m.d.comb += [load.eq(direct | finish), points.pop.eq(load)]
        self._pop(m, beats, taken)
        value, clipped = Signal(signed(32)), Signal(SUM_BITS)
        m.d.comb += [
            value.eq(Mux(finish, units.mult, scalar)),
            clipped.eq(Mux(finish, pending.r_data.changed, changed)),
        ]
        exponent = (units.exponent + control.exponent)[:8].as_signed()
        self._load(m, load, free, point, control, row, clipped, value, exponent)
        return m

    def _spacing(self, m: Module, load: Signal) -> Value:
        """Return a signal that is low in the fuse_rate - 1 cycles after a load, because the statistics take one row in
        fuse_rate cycles; several reciprocals may be done at the same time.
        """
        if self._rate == 1:
            return Const(1)
        left = Signal(range(self._rate))
        with m.If(load):
            m.d.sync += left.eq(self._rate - 1)
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        return left == 0

    def _head(self, m: Module, points: CreditFifo) -> tuple[data.View, data.View]:
        """Return the point at the head of the queue and its controls. With `pipelined`, both are in registers and valid
        long before the last part of the row arrives.
        """
        point = optional_register(m, "point", points.r_data, self._late)
        control = fetch(m, "writer", self.controls, tuple(self._control.members), point.cmd)
        return point, optional_register(m, "point_control", control, self._late)

    def _assemble(
        self, m: Module, beats: CreditFifo, taken: Signal
    ) -> tuple[Value, list[Value], Value, data.View]:
        """Assemble the row at the head of the queue.

        Return a signal that is high if the row is complete, the lanes of the row, the number of lanes changed by
        clipping, and the last beat.
        """
        return assemble_row(m, beats, self._rate)

    def _pop(self, m: Module, beats: CreditFifo, taken: Signal) -> None:
        """Remove the last beat of a row from the queue when the row is taken."""
        with m.If(taken):
            m.d.comb += beats.pop.eq(1)

    def _vacate(self, m: Module, valid: Signal, complete: Signal) -> None:
        """Clear `valid` when a row has been written, unless the next row is loaded in that cycle."""

    def _load(
        self,
        m: Module,
        load: Value,
        free: Signal,
        point: data.View,
        control: data.View,
        row: list[Value],
        changed: Value,
        scalar: Value,
        exponent: Value,
    ) -> None:
        """Load the registers of the row to write."""
        n = self._n
        held, to_sp = Signal(REPORT), Signal()
        held_row = Signal(lanes(n), reset_less=True)
        m.d.comb += self.row.eq(held_row)
        lane_mask, elements = Signal(n), Signal(n)
        m.d.comb += [
            lane_mask.eq(Mux(point.tail, control.mask_tail, control.mask)),
            elements.eq(Mux(control.scalar, 1, lane_mask)),
        ]
        with m.If(load):
            m.d.sync += [
                held.final.eq(point.final),
                held.emit.eq(point.emit),
                held.changed.eq(changed),
                *(held[name].eq(control[name]) for name in ("scaled", "table", "residual", "reduced")),
                to_sp.eq(control.sp),
                self.mask.eq(elements),
            ]
            for lane in range(n):
                # A scalar is copied to every lane, and the exponent of a reciprocal to the lanes after d_lane; masks
                # select the lanes to write.
                other = Mux(control.pair & (control.d_lane < lane), exponent, scalar)
                m.d.sync += held_row[lane].eq(Mux(control.scalar, other, row[lane]))
        sp, acc = self.sp_write, self.acc_write
        self._acc(m, load, point, control, lane_mask)
        dtype, left, piece = self._sp(m, load, point, control, elements)
        last = left == 0
        valid, complete = Signal(), Signal()
        m.d.comb += [
            sp.valid.eq(valid & held.emit & to_sp),
            acc.valid.eq(valid & held.emit & ~to_sp),
            complete.eq(valid & (~held.emit | Mux(to_sp, sp.ready & last, acc.ready))),
            free.eq(vacancy(valid, complete, self._late)),
            self.report.eq(held),
            self.report.valid.eq(complete),
            self.refused.eq((sp.waits & ~sp.ready) | (acc.valid & ~acc.ready)),
        ]
        with m.If(free):
            m.d.sync += valid.eq(load)
        self._vacate(m, valid, complete)
        self._sp_data(m, dtype, piece)

    def _acc(self, m: Module, load: Value, point: data.View, control: data.View, lane_mask: Value) -> None:
        acc = self.acc_write
        one = Signal(self._n + 1)
        m.d.comb += one.eq(1 << control.d_lane)
        pair = one | Mux(control.pair, one << 1, 0)
        with m.If(load):
            m.d.sync += [acc.row.eq(point.addr), acc.mask.eq(Mux(control.scalar, pair, lane_mask))]
        m.d.comb += acc.data.eq(self.row.as_value())

    def _sp(
        self, m: Module, load: Value, point: data.View, control: data.View, elements: Value
    ) -> tuple[Signal, Signal, Signal]:
        """Load the address, the byte mask and the number of the scratchpad writes for a row."""
        n, sp = self._n, self.sp_write
        dtype, left, piece = Signal(2), Signal(2), Signal(2)
        mask = Signal(4 * n)
        halves = Cat(elements[lane].replicate(2) for lane in range(n))
        words = Cat(elements[lane].replicate(4) for lane in range(n))
        m.d.comb += sp.mask.eq(mask[:n])
        with m.If(load):
            m.d.sync += [
                dtype.eq(control.dtype),
                piece.eq(0),
                sp.addr.eq(point.addr),
                mask.eq(elements),
                left.eq(0),
            ]
            with m.If(control.dtype == Dtype.I16):
                m.d.sync += [mask.eq(halves), left.eq(elements[n // 2])]
            with m.If(control.dtype == Dtype.I32):
                m.d.sync += mask.eq(words)
                for extra in (1, 2, 3):
                    with m.If(elements[extra * n // 4]):
                        m.d.sync += left.eq(extra)
        with m.Elif(sp.valid & sp.ready):
            m.d.sync += [left.eq(left - 1), piece.eq(piece + 1), mask.eq(mask >> n)]
            m.d.sync += sp.addr.eq(sp.addr + n)
        return dtype, left, piece

    def _sp_data(self, m: Module, dtype: Value, piece: Value) -> None:
        """Drive the bytes of the current write."""
        n = self._n
        packed = {
            8: Cat(self.row[lane][:8] for lane in range(n)),
            16: Cat(self.row[lane][:16] for lane in range(n)),
            32: self.row.as_value(),
        }
        halves = Signal(unsigned(8 * n))
        m.d.comb += halves.eq(Mux(piece[0], packed[16][8 * n :], packed[16][: 8 * n]))
        words = Signal(unsigned(8 * n))
        with m.Switch(piece):
            for number in range(4):
                with m.Case(number):
                    m.d.comb += words.eq(packed[32][8 * n * number : 8 * n * (number + 1)])
        with m.Switch(dtype):
            with m.Case(Dtype.I16):
                m.d.comb += self.sp_write.data.eq(halves)
            with m.Case(Dtype.I32):
                m.d.comb += self.sp_write.data.eq(words)
            with m.Default():
                m.d.comb += self.sp_write.data.eq(packed[8])


class PipelinedWriter(Writer):
    """`Writer` with registers for whole rows and their points.

    Latency: as for `Writer`, plus the cycles of these registers. Throughput: as for `Writer`, because a row has several
    beats. Parameters and members are those of `Writer`.
    """

    def _assemble(
        self, m: Module, beats: CreditFifo, taken: Signal
    ) -> tuple[Value, list[Value], Value, data.View]:
        return collect_row(m, beats, self._rate, taken)

    def _pop(self, m: Module, beats: CreditFifo, taken: Signal) -> None:
        pass

    def _vacate(self, m: Module, valid: Signal, complete: Signal) -> None:
        with m.If(complete):
            m.d.sync += valid.eq(0)
