"""Contents of a step of MATRIX: where its operands and sums are, and what its tile prescribes."""

from functools import partial

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS
from hw.lib.trees import tree_sum
from hw.units.matrix.depthwise import DepthwiseSteps
from hw.units.matrix.loop_nest import LoopNest, chosen, follow

#: Loops over weight tiles, innermost first.
TILE_DIMS = ("kx", "ky", "ic", "oc")
#: Bits of a coordinate: the issue stage lets only -65536..65535 pass.
COORDINATE_BITS = 17


def add_places(
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
    """Addresses of activations and sums, and the padding."""
    x, y = inner
    kx, ky, ic, oc = outer
    a_strides = (held.a_dx, held.a_dy, held.a_dkx, held.a_dky, held.a_ic, held.a_oc)
    follow_pixels = partial(follow, m, load=begin, step=step & pixel)
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
    acc_row = follow(
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


def add_tile(m: Module, row: data.View, *, held: data.View, tiles: LoopNest, n: int) -> None:
    """What does not change within a tile."""
    word = held.word
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
