"""Row walker of MATRIX: converts commands to steps of the array, with addresses and the properties of the tile."""

from functools import partial

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS, MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_layout
from hw.lib.pipeline import vacancy
from hw.lib.skid_buffer import SkidBuffer
from hw.lib.trees import tree_sum
from hw.units.matrix.depthwise import DepthwiseSteps, PipelinedDepthwiseSteps
from hw.units.matrix.layouts import row_layout
from hw.units.matrix.loop_nest import LoopNest, PipelinedLoopNest, lanes_in_use, nested_address

#: Loops over weight tiles, innermost first.
TILE_DIMS = ("kx", "ky", "ic", "oc")
#: Width of a coordinate in bits: the issue stage permits only -65536..65535.
COORDINATE_BITS = 17


def add_addresses(
    m: Module,
    row: data.View,
    *,
    begin: Value,
    step: Value,
    pixel: Value,
    queued: data.View,
    held: data.View,
    inner: list[Value],
    outer: list[Value],
    depthwise: DepthwiseSteps,
) -> None:
    """Drive the addresses of activations and sums, and detect padding."""
    x, y = inner
    kx, ky, ic, oc = outer
    a_strides = (held.a_dx, held.a_dy, held.a_dkx, held.a_dky, held.a_ic, held.a_oc)
    follow_pixels = partial(nested_address, m, load=begin, step=step & pixel)
    address = follow_pixels(
        "address",
        SP_ADDR_BITS,
        base=queued.a_start,
        levels=list(zip((x, y, kx, ky, ic, oc), a_strides, strict=True)),
    )
    u = follow_pixels(
        "u",
        signed(COORDINATE_BITS),
        base=queued.u0,
        levels=[(x, None), (y, held.u_y), (kx, None), (ky, held.u_ky), (ic, None), (oc, None)],
    )
    v = follow_pixels(
        "v",
        signed(COORDINATE_BITS),
        base=queued.v0,
        levels=[(x, held.v_x), (y, None), (kx, held.v_kx), (ky, None), (ic, None), (oc, None)],
    )

    sum_x, sum_y, tile_end = Signal(), Signal(), Signal()
    m.d.comb += [
        tile_end.eq(Cat(outer).any()),
        sum_x.eq(Mux(held.word.dw, depthwise.next_x & ~tile_end, x)),
        sum_y.eq(Mux(held.word.dw, depthwise.next_y & ~tile_end, y)),
    ]
    acc_row = nested_address(
        m,
        "acc_row",
        ACC_ADDR_BITS,
        load=begin,
        base=queued.acc_base,
        step=step,
        levels=[
            (sum_x, held.acc_x),
            (sum_y, held.acc_y),
            (kx, None),
            (ky, None),
            (ic, None),
            (oc, held.acc_oc),
        ],
    )

    outside_u, outside_v = Signal(), Signal()
    m.d.comb += [
        outside_u.eq((held.u_lim != 0) & ((u < 0) | (u >= held.u_lim))),
        outside_v.eq((held.v_lim != 0) & ((v < 0) | (v >= held.v_lim))),
        row.addr.eq(address),
        row.acc_row.eq(acc_row),
        row.read.eq(pixel & ~outside_u & ~outside_v),
    ]


def add_tile(m: Module, row: data.View, *, held: data.View, tiles: LoopNest, config: MlaConfig) -> None:
    """Drive the properties of the tile, and the number of useful MACs of each step."""
    word, n = held.word, config.n
    wide = word.wide if config.wide else Const(0)
    taps_all = Signal(n.bit_length())
    usual = lanes_in_use(m, "k_usual", tiles.last[TILE_DIMS.index("ic")], held.k_tail, held.k_rows, n)
    k = Signal(n.bit_length())
    c = lanes_in_use(m, "c", tiles.last[TILE_DIMS.index("oc")], held.n_tail, held.n_cols, n)
    partial = [Signal(11, name=f"partial{i}") for i in range(len(c))]
    macs = Signal(11)
    m.d.comb += [
        taps_all.eq(Mux(word.groups[0], word.taps, 0) + Mux(word.groups[1], word.taps << 1, 0)),
        k.eq(Mux(word.dw, taps_all, usual)),
        *(p.eq(Mux(bit, k << i, 0)) for i, (p, bit) in enumerate(zip(partial, c, strict=True))),
        macs.eq(tree_sum(m, "macs", partial)),
        row.useful.eq(Mux(Mux(word.dw, row.wave, row.read), Mux(wide, macs << 1, macs), 0)),
        row.wide.eq(wide),
        row.sparse.eq(word.sparse if config.sparse else 0),
        row.scaled.eq(word.scaled if config.wide else 0),
        row.rows.eq(Mux(word.w_transpose, c, k)),
        row.lanes.eq(Mux(word.w_transpose, k, n)),
        row.by_column.eq(word.w_transpose),
        row.a_zp.eq(held.a_zp),
        row.a_unsigned.eq(word.a_unsigned),
        row.w_zp.eq(held.w_zp),
        row.w_unsigned.eq(word.w_unsigned),
        row.dw.eq(word.dw),
        row.period.eq(held.x_count),
        row.taps.eq(word.taps),
        row.groups.eq(word.groups),
        row.tag.eq(held.meta.tag),
    ]


class RowWalker(wiring.Component):
    """Generator of the steps of commands, one command after another.

    All addresses and coordinates are updated by additions, without multiplication or division.

    Latency: a command accepted in cycle c has its first step on `rows` in cycle c + 2. Throughput: one step per cycle,
    without a gap between commands.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    load : In(1), command : In
        `load` accepts `command`; high only while `ready` is high.
    ready : Out(1)
        High if no command is in progress, or (without `pipelined`) if the last step of the current command is accepted
        in this cycle.
    rows : Out
        Steps of the command, in loop order.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "load": In(1),
                "command": In(command_layout(Unit.MATRIX)),
                "ready": Out(1),
                "rows": Out(stream.Signature(row_layout(config))),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        layout, config = command_layout(Unit.MATRIX), self.config
        m.submodules.buffer = buffer = SkidBuffer(row_layout(self.config))
        running, step, tile_end, command_end = Signal(), Signal(), Signal(), Signal()
        held, now = Signal(layout, reset_less=True), Signal(layout)
        m.d.comb += [
            step.eq(running & buffer.i.ready),
            self.ready.eq(vacancy(running, step & command_end, config.pipelined)),
            now.eq(Mux(self.load, self.command, held)),
        ]
        with m.If(self.load):
            m.d.sync += [held.eq(self.command), running.eq(1)]
        with m.Elif(step & command_end):
            m.d.sync += running.eq(0)

        loop_nest = config.variant(LoopNest, PipelinedLoopNest)
        m.submodules.sweep = sweep = loop_nest(2)
        m.submodules.tiles = tiles = loop_nest(len(TILE_DIMS))
        depthwise_steps = config.variant(DepthwiseSteps, PipelinedDepthwiseSteps)
        m.submodules.depthwise = depthwise = depthwise_steps(config)
        pixel = Signal()
        m.d.comb += [
            pixel.eq(~held.word.dw | depthwise.brings_pixel()),
            tile_end.eq(Mux(held.word.dw, depthwise.end, sweep.end)),
            command_end.eq(tile_end & tiles.end),
            tiles.load.eq(self.load),
            tiles.step.eq(step & tile_end),
            *(getattr(tiles, f"count{i}").eq(now[f"{name}_count"]) for i, name in enumerate(TILE_DIMS)),
        ]
        self._connect_tile(
            m, sweep, depthwise, now=now, begin=self.load | (step & tile_end), step=step, pixel=pixel
        )

        # In a depthwise stream loop y does not end the walk.
        inner = [sweep.advance[0] & ~tile_end, Mux(held.word.dw, sweep.last[0], sweep.advance[1]) & ~tile_end]
        outer = [tile_end & tiles.advance[i] for i in range(len(TILE_DIMS))]
        row = buffer.i.payload
        add_addresses(
            m,
            row,
            begin=self.load,
            step=step,
            pixel=pixel,
            queued=self.command,
            held=held,
            inner=inner,
            outer=outer,
            depthwise=depthwise,
        )
        add_tile(m, row, held=held, tiles=tiles, config=config)

        self._flags(
            m, row, held=held, begin=self.load, step=step, tile_end=tile_end, tiles=tiles, depthwise=depthwise
        )
        m.d.comb += [row.stream.eq(pixel), row.last.eq(command_end), buffer.i.valid.eq(running)]
        connect(m, buffer.o, flipped(self.rows))
        return m

    def _connect_tile(
        self,
        m: Module,
        sweep: LoopNest,
        depthwise: DepthwiseSteps,
        *,
        now: data.View,
        begin: Value,
        step: Value,
        pixel: Value,
    ) -> None:
        """Connect the two walks within a tile: both start with each tile, and the command selects which one is used."""
        m.d.comb += [
            sweep.load.eq(begin),
            sweep.step.eq(step & pixel),
            sweep.count0.eq(now.x_count),
            sweep.count1.eq(now.y_count),
            depthwise.load.eq(begin),
            depthwise.step.eq(step),
            depthwise.period.eq(now.x_count),
            depthwise.lead.eq(now.dw_lead),
            depthwise.length.eq(now.dw_len),
            depthwise.out_width.eq(now.dw_out_w),
            depthwise.taps.eq(now.word.taps),
            depthwise.stride_x.eq(now.dw_sx),
            depthwise.stride_y.eq(now.dw_sy),
        ]

    def _flags(
        self,
        m: Module,
        row: data.View,
        *,
        held: data.View,
        begin: Value,
        step: Value,
        tile_end: Value,
        tiles: LoopNest,
        depthwise: DepthwiseSteps,
    ) -> None:
        """Drive the flags of a step: whether it starts a tile, brings sums or swaps weights, and how sums are
        accumulated.
        """
        first_step, first_sum = Signal(), Signal()
        with m.If(begin):
            m.d.sync += [first_step.eq(1), first_sum.eq(1)]
        with m.Elif(step):
            m.d.sync += first_step.eq(tile_end)
            with m.If(tile_end):
                m.d.sync += first_sum.eq(tiles.advance[TILE_DIMS.index("oc")])
        word = held.word
        m.d.comb += [
            row.start.eq(first_step),
            row.wave.eq(~word.dw | depthwise.wave),
            row.swap.eq(Mux(word.dw, depthwise.wave & depthwise.first, first_step)),
            row.fresh.eq(first_step & ~word.keep),
            row.back.eq(depthwise.back),
            row.add.eq(~first_sum | word.accumulate | word.shift8),
            row.shift.eq(first_sum & word.shift8),
        ]
