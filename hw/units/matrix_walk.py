"""Activation walk of MATRIX: turns commands into the steps of the array."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.array.edge import tree_sum
from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS, MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_layout
from hw.units.matrix_depthwise import DepthwiseSteps
from hw.units.matrix_layouts import row_layout
from hw.units.walk import LoopNest, chosen, follow

#: Loops over weight tiles, innermost first.
TILE_DIMS = ("kx", "ky", "ic", "oc")
#: Bits that hold every coordinate a command can reach, padding included: u0 + y * u_y + ky * u_ky.
COORDINATE_BITS = 30


class RowWalker(wiring.Component):
    """Walks one command after the other, holding one more that was already accepted.

    All addresses and coordinates follow the loops by additions: no multiplier, no division.

    Latency: a command accepted in cycle c has its first step on `rows` in c + 3. Throughput: one step a cycle, also from command to command.

    Parameters
    ----------
    config : MlaConfig
        Sizes.

    Members
    -------
    load : In(1), command : In
        Takes a command; only while `ready`.
    ready : Out(1)
        A command fits.
    rows : Out
        Steps.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__({
            "load": In(1),
            "command": In(command_layout(Unit.MATRIX)),
            "ready": Out(1),
            "rows": Out(stream.Signature(row_layout(config))),
        })

    def elaborate(self, platform) -> Elaboratable:
        m = Module()
        layout = command_layout(Unit.MATRIX)
        waiting, running = Signal(), Signal()
        queued, held, now = Signal(layout, reset_less=True), Signal(layout, reset_less=True), Signal(layout)
        begin, step, tile_end, command_end = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            step.eq(running & (~self.rows.valid | self.rows.ready)),
            begin.eq(waiting & (~running | (step & command_end))),
            self.ready.eq(~waiting | begin),
            now.eq(Mux(begin, queued, held)),
        ]
        m.d.sync += waiting.eq(self.load | (waiting & ~begin))
        with m.If(self.load):
            m.d.sync += queued.eq(self.command)
        with m.If(begin):
            m.d.sync += [held.eq(queued), running.eq(1)]
        with m.Elif(step & command_end):
            m.d.sync += running.eq(0)

        m.submodules.sweep = sweep = LoopNest(2)
        m.submodules.tiles = tiles = LoopNest(len(TILE_DIMS))
        m.submodules.depthwise = depthwise = DepthwiseSteps(self.config)
        tile_begin, pixel = Signal(), Signal()
        m.d.comb += [
            pixel.eq(~held.word.dw | (depthwise.back == 0)),
            tile_end.eq(Mux(held.word.dw, depthwise.end, sweep.end)),
            command_end.eq(tile_end & tiles.end),
            tile_begin.eq(begin | (step & tile_end)),
            sweep.load.eq(tile_begin), sweep.step.eq(step & pixel), sweep.count0.eq(now.x_count), sweep.count1.eq(now.y_count),
            tiles.load.eq(begin), tiles.step.eq(step & tile_end),
            *(getattr(tiles, f"count{i}").eq(now[f"{name}_count"]) for i, name in enumerate(TILE_DIMS)),
            depthwise.load.eq(tile_begin), depthwise.step.eq(step), depthwise.period.eq(now.x_count), depthwise.lead.eq(now.dw_lead),
            depthwise.length.eq(now.dw_len), depthwise.out_width.eq(now.dw_out_w), depthwise.taps.eq(now.word.taps),
            depthwise.stride_x.eq(now.dw_sx), depthwise.stride_y.eq(now.dw_sy),
        ]

        # In a depthwise stream y has no end of its own.
        inner = [sweep.advance[0] & ~tile_end, Mux(held.word.dw, sweep.last[0], sweep.advance[1]) & ~tile_end]
        outer = [tile_end & tiles.advance[i] for i in range(len(TILE_DIMS))]
        row = Signal(row_layout(self.config))
        self._places(m, row, begin=begin, step=step, pixel=pixel, queued=queued, held=held, inner=inner, outer=outer, depthwise=depthwise)
        self._tile(m, row, held=held, tiles=tiles)

        first_step, first_sum = Signal(), Signal()
        with m.If(begin):
            m.d.sync += [first_step.eq(1), first_sum.eq(1)]
        with m.Elif(step):
            m.d.sync += first_step.eq(tile_end)
            with m.If(tile_end):
                m.d.sync += first_sum.eq(tiles.advance[TILE_DIMS.index("oc")])
        word = held.word
        m.d.comb += [
            row.stream.eq(pixel), row.start.eq(first_step), row.last.eq(command_end),
            row.wave.eq(~word.dw | depthwise.wave),
            row.swap.eq(Mux(word.dw, depthwise.wave & depthwise.first, first_step)),
            row.fresh.eq(first_step & ~word.keep), row.back.eq(depthwise.back),
            row.add.eq(~first_sum | word.accumulate | word.shift8), row.shift.eq(first_sum & word.shift8),
        ]
        with m.If(step):
            m.d.sync += [self.rows.payload.eq(row), self.rows.valid.eq(1)]
        with m.Elif(self.rows.ready):
            m.d.sync += self.rows.valid.eq(0)
        return m

    def _places(
        self, m: Module, row: data.View, *, begin: Value, step: Value, pixel: Value, queued: data.View, held: data.View,
        inner: list[Value], outer: list[Value], depthwise: DepthwiseSteps,
    ) -> None:
        """Addresses of activations and sums, and the padding."""
        x, y = inner
        kx, ky, ic, oc = outer
        address = follow(m, "address", SP_ADDR_BITS, load=begin, base=queued.a_start, step=step & pixel, levels=[
            (x, held.a_dx), (y, held.a_dy), (kx, held.a_dkx), (ky, held.a_dky), (ic, held.a_ic), (oc, held.a_oc)])
        shape = signed(COORDINATE_BITS)
        u = follow(m, "u", shape, load=begin, base=queued.u0, step=step & pixel, levels=[
            (x, None), (y, held.u_y), (kx, None), (ky, held.u_ky), (ic, None), (oc, None)])
        v = follow(m, "v", shape, load=begin, base=queued.v0, step=step & pixel, levels=[
            (x, held.v_x), (y, None), (kx, held.v_kx), (ky, None), (ic, None), (oc, None)])

        sum_x, sum_y, tile_end = Signal(), Signal(), Signal()
        m.d.comb += [
            tile_end.eq(Cat(outer).any()),
            sum_x.eq(Mux(held.word.dw, depthwise.next_x & ~tile_end, x)),
            sum_y.eq(Mux(held.word.dw, depthwise.next_y & ~tile_end, y)),
        ]
        acc_row = follow(m, "acc_row", ACC_ADDR_BITS, load=begin, base=queued.acc_base, step=step, levels=[
            (sum_x, held.acc_x), (sum_y, held.acc_y), (kx, None), (ky, None), (ic, None), (oc, held.acc_oc)])

        outside_u, outside_v = Signal(), Signal()
        m.d.comb += [
            outside_u.eq((held.u_lim != 0) & ((u < 0) | (u >= held.u_lim))),
            outside_v.eq((held.v_lim != 0) & ((v < 0) | (v >= held.v_lim))),
            row.addr.eq(address), row.acc_row.eq(acc_row), row.read.eq(pixel & ~outside_u & ~outside_v),
        ]

    def _tile(self, m: Module, row: data.View, *, held: data.View, tiles: LoopNest) -> None:
        """What does not change within a tile."""
        n, word = self.config.n, held.word
        taps_all = Signal(n.bit_length())
        usual = chosen(m, "k_usual", tiles.last[TILE_DIMS.index("ic")], held.k_tail, held.k_rows, n)
        k = Signal(n.bit_length())
        c = chosen(m, "c", tiles.last[TILE_DIMS.index("oc")], held.n_tail, held.n_cols, n)
        partial = [Signal(11, name=f"partial{i}") for i in range(len(c))]
        macs = Signal(11)
        m.d.comb += [
            taps_all.eq(Mux(word.groups[0], word.taps, 0) + Mux(word.groups[1], word.taps << 1, 0)),
            k.eq(Mux(word.dw, taps_all, usual)),
            *(p.eq(Mux(bit, k << i, 0)) for i, (p, bit) in enumerate(zip(partial, c, strict=True))),
            macs.eq(tree_sum(m, "macs", partial)),
            row.useful.eq(Mux(Mux(word.dw, row.wave, row.read), macs, 0)),
            row.rows.eq(Mux(word.w_transpose, c, k)), row.lanes.eq(Mux(word.w_transpose, k, n)), row.by_column.eq(word.w_transpose),
            row.a_zp.eq(held.a_zp), row.a_unsigned.eq(word.a_unsigned), row.w_zp.eq(held.w_zp), row.w_unsigned.eq(word.w_unsigned),
            row.dw.eq(word.dw), row.period.eq(held.x_count), row.taps.eq(word.taps), row.groups.eq(word.groups), row.tag.eq(held.meta.tag),
        ]
