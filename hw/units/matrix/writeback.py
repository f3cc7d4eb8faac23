"""Writeback of MATRIX: delays the accumulator request and events of each row until its sums leave the array."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.array.systolic import OPERAND_BITS
from hw.config import ACC_ADDR_BITS, MlaConfig
from hw.lib.pipeline import pipeline_register
from hw.lib.ram import Ram
from hw.lib.trees import tree_sum
from hw.units.matrix.layouts import (
    ROW_AFTER,
    SCALE_CYCLES,
    STATISTICS_AFTER,
    VISIBLE_BEFORE,
    done_after,
    row_layout,
    update_after,
)

#: Members of a step that are sent to the accumulator.
_REQUEST = ("acc_row", "add", "shift")


class RowWriteback(wiring.Component):
    """Delay of the effects of a step: its accumulator request, its events and the completion of its command.

    Latency in cycles after `issued`: STATISTICS_AFTER for events, update_after(n) for the accumulator request,
    done_after(n) for `done` (after the last step of a command); for scaled tiles, the request and `done` are
    SCALE_CYCLES later. Throughput: one step per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`.

    Members
    -------
    issued : In(1), row : In(row_layout)
        `issued` is high if the step on `row` is issued to the array.
    operands : In(9 * n)
        Activations of the step, ROW_AFTER cycles after its issue.
    second_operands : In(9 * n)
        The other n lanes of the activations in wide and sparse mode; only with `config.wide`.
    update_valid, update_row, update_add, update_shift : Out
        Request to the accumulator.
    update_scaled, update_start : Out(1)
        High if the sums of the request are scaled, and if it is the first request of a tile; only with `config.wide`.
    visible, done : Out(1)
        One-cycle pulses: VISIBLE_BEFORE cycles before the results of a command are visible, and when they are visible.
    zeros : Out(32)
        Number of zero lanes in the rows that the command has streamed; valid from `done` to the next `done`.
    counted : Out
        Events of one step: rows, tiles, sums (0 or 1), useful MACs, zero lanes, tag; `valid` is high if there is a
        step.
    in_flight : Out(1)
        High if a sum is in flight, or a command is not done.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        zero_bits = config.n.bit_length() + config.wide
        super().__init__(
            {
                "issued": In(1),
                "row": In(row_layout(config)),
                "operands": In(OPERAND_BITS * config.n),
                **({"second_operands": In(OPERAND_BITS * config.n)} if config.wide else {}),
                "update_valid": Out(1),
                "update_row": Out(ACC_ADDR_BITS),
                "update_add": Out(1),
                "update_shift": Out(1),
                **(dict.fromkeys(("update_scaled", "update_start"), Out(1)) if config.wide else {}),
                "visible": Out(1),
                "done": Out(1),
                "zeros": Out(32),
                "counted": Out(
                    data.StructLayout(
                        {
                            "valid": 1,
                            "stream": 1,
                            "start": 1,
                            "wave": 1,
                            "useful": 12,
                            "wide": 1,
                            "sparse": 1,
                            "zeros": zero_bits,
                            "tag": 6,
                        }
                    )
                ),
                "in_flight": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        lasts = Signal(done_after(self.config.n))
        issued, row, late = self._delayed(m) if self.config.wide else (self.issued, self.row, Const(0))
        m.d.sync += lasts.eq(Cat(issued & row.last, lasts))
        waves = self._update(m, issued, row)
        m.d.comb += [
            self.visible.eq(lasts[-1 - VISIBLE_BEFORE]),
            self.done.eq(lasts[-1]),
            self.in_flight.eq(waves.any() | lasts.any() | late),
        ]
        ended = self._count(m)
        self._statistic(m, ended, lasts[-2])
        return m

    def _delayed(self, m: Module) -> tuple[Value, data.View, Value]:
        """Delay the steps of scaled tiles by SCALE_CYCLES cycles; return the valid bit, the steps, and a flag that is
        high while steps are delayed.
        """
        layout = data.StructLayout(
            {name: self.row.shape().members[name] for name in (*_REQUEST, "scaled", "start", "wave", "last")}
        )
        now, step = Signal(layout), Signal(layout)
        m.d.comb += [now[name].eq(self.row[name]) for name in layout.members]
        valid, late = Signal(SCALE_CYCLES), now
        m.d.sync += valid.eq(Cat(self.issued & self.row.scaled, valid))
        for i in range(SCALE_CYCLES):
            following = Signal(layout, name=f"scaled_step{i}", reset_less=True)
            m.d.sync += following.eq(late)
            late = following
        issued = Signal(name="step_issued")
        m.d.comb += [
            issued.eq(valid[-1] | (self.issued & ~self.row.scaled)),
            step.eq(Mux(valid[-1], late, now)),
        ]
        return issued, step, valid.any()

    def _update(self, m: Module, issued: Value, row: data.View) -> Signal:
        """Delay the request to the accumulator; return the shift register of its valid bit.

        The other bits of the request are delayed in a ring memory whose address advances in every cycle.
        """
        after = update_after(self.config.n)
        waves = Signal(after)
        m.d.sync += waves.eq(Cat(issued & row.wave, waves))
        depth = 1 << after.bit_length()
        names = (*_REQUEST, "scaled", "start") if self.config.wide else _REQUEST
        outputs = [self.update_row, self.update_add, self.update_shift]
        if self.config.wide:
            outputs += [self.update_scaled, self.update_start]
        m.submodules.ring = ring = Ram(width=ACC_ADDR_BITS + len(names) - 1, depth=depth)
        now = Signal(range(depth))
        m.d.sync += now.eq(now + 1)
        m.d.comb += [
            ring.w_en.eq(issued),
            ring.w_addr.eq(now),
            ring.w_data.eq(Cat(row[name] for name in names)),
            ring.r0_en.eq(waves[-2]),
            ring.r0_addr.eq(now - (after - 1)),
            Cat(outputs).eq(ring.r0_data),
            self.update_valid.eq(waves[-1]),
        ]
        return waves

    def _count(self, m: Module) -> Signal:
        """Delay the events; return the flag of a command's last step with the same delay."""
        row = self.row
        values = {
            "valid": self.issued,
            "stream": row.stream,
            "start": row.start,
            "wave": row.wave,
            "useful": row.useful,
            "wide": row.wide,
            "sparse": row.sparse,
            "tag": row.tag,
        }
        ended, pair = self.issued & row.last, row.wide | row.sparse
        for i in range(STATISTICS_AFTER):
            late = {
                name: Signal(len(value), name=f"{name}{i}", reset_less=name != "valid")
                for name, value in values.items()
            }
            late_ended = Signal(name=f"ended{i}")
            m.d.sync += [*(late[name].eq(value) for name, value in values.items()), late_ended.eq(ended)]
            values, ended = late, late_ended
        assert STATISTICS_AFTER == ROW_AFTER + 2
        n = self.config.n
        zero = Signal(n, reset_less=True)
        m.d.sync += zero.eq(self._zero_lanes(m, "lane", self.operands))
        count: Value = tree_sum(m, "zeros_tree", list(zero))
        if self.config.wide:
            second = Signal(n, reset_less=True)
            m.d.sync += second.eq(self._zero_lanes(m, "second_lane", self.second_operands))
            for i in range(ROW_AFTER + 1):
                pair = pipeline_register(m, f"pair{i}", pair)
            count = count + Mux(pair, tree_sum(m, "second_zeros_tree", list(second)), 0)
        zeros = Signal(len(self.counted.zeros), reset_less=True)
        m.d.sync += zeros.eq(count)
        m.d.comb += [
            *(self.counted[name].eq(value) for name, value in values.items()),
            self.counted.zeros.eq(zeros),
        ]
        return ended

    def _zero_lanes(self, m: Module, name: str, operands: Signal) -> Value:
        """Return a bit for each lane of a row that is high if the lane is zero."""
        bits = []
        for k in range(self.config.n):
            lane = Signal(signed(OPERAND_BITS), name=f"{name}{k}")
            m.d.comb += lane.eq(operands[OPERAND_BITS * k : OPERAND_BITS * (k + 1)])
            bits.append(lane == 0)
        return Cat(bits)

    def _statistic(self, m: Module, ended: Signal, finishing: Signal) -> None:
        """Count the zeros of each command, and store the count until the command is done."""
        total, following = Signal(32), Signal(32)
        # Commands whose last row has been issued and that are not done; the last rows are at least a tile apart.
        latest = done_after(self.config.n) + (SCALE_CYCLES if self.config.wide else 0)
        finished = -(-latest // self.config.tile_cycles)
        depth = 1 << (finished - 1).bit_length()
        m.submodules.totals = totals = Ram(width=32, depth=depth, comb=True)
        write_to, read_from = Signal(range(depth)), Signal(range(depth))
        m.d.comb += following.eq(total)
        with m.If(self.counted.valid & self.counted.stream):
            m.d.comb += following.eq(total + self.counted.zeros)
        m.d.sync += total.eq(following)
        m.d.comb += [
            totals.w_en.eq(ended),
            totals.w_addr.eq(write_to),
            totals.w_data.eq(following),
            totals.r0_addr.eq(read_from),
        ]
        with m.If(ended):
            m.d.sync += [total.eq(0), write_to.eq(write_to + 1)]
        with m.If(finishing):
            m.d.sync += [self.zeros.eq(totals.r0_data), read_from.eq(read_from + 1)]
