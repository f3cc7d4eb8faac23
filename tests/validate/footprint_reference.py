"""Reference for the addresses that a command accesses, computed with the loops of docs/machine.md."""

from collections.abc import Iterator
from itertools import product

from hw.isa.enums import DTYPE_BYTES, Post, Reduce, Requant, Unit

#: Memory, address, True if written.
Touched = set[tuple[str, int, bool]]


def touched(n: int, unit: Unit, c) -> Touched:
    """Return every byte, and every row of the accumulator, that a command reads or writes."""
    return {Unit.LOAD: _load, Unit.STORE: _store, Unit.MATRIX: _matrix, Unit.FUSE: _fuse}[unit](n, c)


def _span(space, first, count, write=False) -> Touched:
    return {(space, first + i, write) for i in range(count)}


def _valid(u, v, c) -> bool:
    return (not c.u_lim or 0 <= u < c.u_lim) and (not c.v_lim or 0 <= v < c.v_lim)


def _load(n, c) -> Touched:
    out: Touched = set()
    space = ("sp", "param", "table")[c.space]
    for z, y in product(range(c.z_count), range(c.y_count)):
        if not c.fill:
            out |= _span("dram", c.dram + (0 if c.packed else z * c.dram_z) + y * c.dram_y, c.len)
        if c.transpose:
            out |= {(space, c.dst + z * c.dst_z + i * c.dst_y + y, True) for i in range(c.len)}
        else:
            size = 2 * n if c.packed else c.len
            out |= _span(space, c.dst + z * c.dst_z + y * c.dst_y, size, True)
    return out


def _store(n, c) -> Touched:
    out: Touched = set()
    for z, y in product(range(c.z_count), range(c.y_count)):
        out |= _span("sp", c.src + z * c.src_z + y * c.src_y, c.len)
        out |= _span("dram", c.dram + z * c.dram_z + y * c.dram_y, c.len, True)
    return out


def _matrix(n, c) -> Touched:
    out: Touched = set()
    if c.dw:
        return _depthwise(n, c)
    rows, columns = c.k_rows or n, c.n_cols or n
    for oc, ic, ky, kx in product(*(range(k) for k in (c.oc_count, c.ic_count, c.ky_count, c.kx_count))):
        k = (c.k_tail or rows) if ic == c.ic_count - 1 else rows
        columns_here = (c.n_tail or columns) if oc == c.oc_count - 1 else columns
        base = c.w_base + oc * c.w_oc + ic * c.w_ic + ky * c.w_ky + kx * c.w_kx
        for line in range(columns_here if c.w_transpose else k + c.sparse * n // 4 + c.scaled):
            out |= _span("sp", base + line * c.w_row, n)
        for y, x in product(range(c.y_count), range(c.x_count)):
            u, v = c.u0 + y * c.u_y + ky * c.u_ky, c.v0 + x * c.v_x + kx * c.v_kx
            if _valid(u, v, c):
                address = c.a_base + oc * c.a_oc + ic * c.a_ic + u * c.a_u + v * c.a_v
                out |= _span("sp", address, 2 * n if c.wide or c.sparse else n)
            out.add(("acc", c.acc_base + oc * c.acc_oc + y * c.acc_y + x * c.acc_x, True))
    return out


def _depthwise(n, c) -> Touched:
    out: Touched = set()
    for oc in range(c.oc_count):
        for k in range(c.taps * c.groups):
            out |= _span("sp", c.w_base + oc * c.w_oc + k * c.w_row, n)
        for number in range(c.dw_len):
            row, column = divmod(number, c.x_count)
            u, v = c.u0 + row * c.u_y, c.v0 + column * c.v_x
            if _valid(u, v, c):
                out |= _span("sp", c.a_base + oc * c.a_oc + u * c.a_u + v * c.a_v, n)
            row, column = divmod(number - c.dw_lead, c.x_count)
            if number < c.dw_lead or row % c.dw_sy or column % c.dw_sx or column // c.dw_sx >= c.dw_out_w:
                continue
            result = c.acc_base + oc * c.acc_oc + row // c.dw_sy * c.acc_y + column // c.dw_sx * c.acc_x
            out.add(("acc", result, True))
    return out


def _row(space, address, count) -> Touched:
    return {("acc", address, False)} if space == "acc" else _span("sp", address, count)


def _fuse(n, c) -> Touched:
    return set().union(*fuse_points(n, c))


def fuse_points(n: int, c) -> Iterator[Touched]:
    """Yield the accesses of each point of a FUSE command in order; the last point of a window writes the result."""
    names = ("n", "y", "x", "wy", "wx")
    counts = [getattr(c, f"{name}_count") for name in names]
    for index in product(*(range(count) for count in counts)):
        out: Touched = set()
        at = dict(zip(names, index, strict=True))
        lanes = c.lanes or n
        tail = ("wx", "wy", "x", "y", "n", "", "", "")[c.tail_dim]
        if tail and at[tail] == getattr(c, f"{tail}_count") - 1:
            lanes = c.lanes_tail or n
        u, v = c.u0 + at["y"] * c.u_y + at["wy"] * c.u_wy, c.v0 + at["x"] * c.v_x + at["wx"] * c.v_wx
        if _valid(u, v, c):
            space = "sp" if c.a_src else "acc"
            out |= _row(
                space, c.a_base + at["n"] * c.a_n + u * c.a_u + v * c.a_v, lanes * DTYPE_BYTES[c.a_dtype]
            )

        def address(stream, at=at) -> int:
            return getattr(c, f"{stream}_base") + sum(at[d] * getattr(c, f"{stream}_{d}") for d in names)

        if c.b_src:
            whole = (
                n if c.b_bcast or c.requant == Requant.ROW or c.post in (Post.ROW, Post.VAR_RSQRT) else lanes
            )
            out |= _row("acc" if c.b_src == 1 else "sp", address("b"), whole * DTYPE_BYTES[c.b_dtype])
        if c.residual:
            out |= _span("sp", address("r"), lanes * DTYPE_BYTES[c.r_dtype])
        if c.requant == Requant.SLOT or c.post == Post.SLOT:
            slot = (c.p_base + at["x"] * c.p_x + at["n"] * c.p_n) * 16 * n
            out |= _span("param", slot, (14 if c.neg_en else 9) * n)
        if c.table or c.table2:
            out |= _span("table", c.table_slot * 512, 1024 if c.table_wide else 512)
        if c.reduce == Reduce.NONE or (at["wy"], at["wx"]) == (c.wy_count - 1, c.wx_count - 1):
            if c.d_dst:
                elements = lanes if c.lane_reduce == Reduce.NONE else 1
                out |= _span("sp", address("d"), elements * DTYPE_BYTES[c.d_dtype], True)
            else:
                out.add(("acc", address("d"), True))
        yield out
