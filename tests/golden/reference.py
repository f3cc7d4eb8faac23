"""Literal implementation of docs/machine.md, one element at a time in plain integers, without the golden model.

The memories are a dict of lists: sp, acc (flat, with index row * n + lane), param, table, dram and line. The list
`line` is the history of depthwise convolutions, with the oldest pixel first.
"""

from math import isqrt

from cosim.semantics.command_fields import CommandFields
from tests.support.floats import float32, significand
from tests.support.packed_reference import unpacked

LOW, HIGH = -(1 << 31), (1 << 31) - 1
SIZE = (1, 1, 2, 4)


def s32(x: int) -> int:
    x &= 0xFFFFFFFF
    return x - (1 << 32) if x >> 31 else x


def sx(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def clip(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)


def h(p: int, s: int) -> int:
    return (p + (1 << (s - 1))) >> s if s else p


def away(p: int, s: int) -> int:
    if s == 0:
        return p
    magnitude = (abs(p) + (1 << (s - 1))) >> s
    return -magnitude if p < 0 else magnitude


def even(p: int, s: int) -> int:
    if s == 0:
        return p
    floor, rest = p >> s, p & ((1 << s) - 1)
    half = 1 << (s - 1)
    return floor + (rest > half or (rest == half and floor & 1 == 1))


def even24(p: int, s: int) -> int:
    t = clip(abs(p).bit_length() - 24, 0, s)
    return even(even(p, t), s - t)


def scale(x: int, m: int, e: int, ls: int, mode: int) -> int:
    s = clip(31 - ls - e, 0, 63)
    if mode == 0:
        r = h(x * m, s) if e >= 0 else away(clip(h(x * m, 31 - ls), LOW, HIGH), min(-e, 31))
    else:
        r = (h, even24, away)[mode - 1](x * m, s)
    return clip(r, LOW, HIGH)


def element(memory: list[int], address: int, dtype: int) -> int:
    value = int.from_bytes(bytes(memory[address : address + SIZE[dtype]]), "little")
    return value if dtype == 1 else sx(value, 8 * SIZE[dtype])


def load(mem: dict, n: int, c: CommandFields) -> None:
    target = mem[("sp", "param", "table")[c.space]]
    for y in range(c.y_count) if c.packed else ():
        start = c.dram + y * c.dram_y
        for i, byte in enumerate(unpacked(bytes(mem["dram"][start : start + c.len]), c.z_count, n)):
            target[c.dst + y * c.dst_y + i // (2 * n) * c.dst_z + i % (2 * n)] = byte
    for z in range(c.z_count if not c.packed else 0):
        for y in range(c.y_count) if not c.transpose else ():
            for i in range(c.len):
                byte = c.fill_value if c.fill else mem["dram"][c.dram + z * c.dram_z + y * c.dram_y + i]
                at = c.dst + z * c.dst_z + y * c.dst_y
                target[at + i] = byte
        for i in range(c.len) if c.transpose else ():
            for y in range(c.y_count):
                target[c.dst + z * c.dst_z + i * c.dst_y + y] = mem["dram"][
                    c.dram + z * c.dram_z + y * c.dram_y + i
                ]


def store(mem: dict, n: int, c: CommandFields) -> None:
    for z in range(c.z_count):
        for y in range(c.y_count):
            for i in range(c.len):
                mem["dram"][c.dram + z * c.dram_z + y * c.dram_y + i] = mem["sp"][
                    c.src + z * c.src_z + y * c.src_y + i
                ]


def operand(byte: int, unsigned: int, zero: int) -> int:
    return (byte if unsigned else sx(byte, 8)) - zero


def inside(u: int, v: int, c: CommandFields) -> bool:
    return not ((c.u_lim and not 0 <= u < c.u_lim) or (c.v_lim and not 0 <= v < c.v_lim))


def accumulate(mem: dict, n: int, c: CommandFields, r: int, psum: list[int], first: bool) -> None:
    for lane in range(n):
        old = mem["acc"][r * n + lane]
        if first and c.shift8:
            new = (old << 8) + psum[lane]
        elif first and not c.accumulate:
            new = psum[lane]
        else:
            new = old + psum[lane]
        mem["acc"][r * n + lane] = s32(new)


def matrix(mem: dict, n: int, c: CommandFields) -> dict[str, int]:
    """Execute a MATRIX command and return its counters."""
    count: dict[str, int] = dict.fromkeys(
        (
            "macs_issued",
            "macs_useful",
            "matrix_rows",
            "matrix_tiles",
            "matrix_zeros",
            "sparse_rows",
            "acc_writes",
        ),
        0,
    )
    sp = mem["sp"]
    k_rows, n_cols = c.k_rows or n, c.n_cols or n
    for oc in range(c.oc_count):
        cols = (c.n_tail or n_cols) if oc == c.oc_count - 1 else n_cols
        if c.dw:
            depthwise(mem, n, c, oc, cols, count)
            continue
        for ic in range(c.ic_count):
            rows = (c.k_tail or k_rows) if ic == c.ic_count - 1 else k_rows
            for ky in range(c.ky_count):
                for kx in range(c.kx_count):
                    count["matrix_tiles"] += 1
                    base = c.w_base + oc * c.w_oc + ic * c.w_ic + ky * c.w_ky + kx * c.w_kx
                    w = [[0] * n for _ in range(n)]
                    for k in range(rows):
                        for j in range(n):
                            if c.w_transpose and j < cols:
                                w[k][j] = operand(sp[base + j * c.w_row + k], c.w_unsigned, c.w_zp)
                            elif not c.w_transpose:
                                w[k][j] = operand(sp[base + k * c.w_row + j], c.w_unsigned, c.w_zp)
                    size = n
                    if c.wide:
                        size = 2 * n
                        w = [[sx(e, 4) for e in row] for row in w] + [
                            [sx(e >> 4, 4) for e in row] for row in w
                        ]
                    elif c.sparse:
                        size = 2 * n
                        w = spread(sp, n, c, base + rows * c.w_row, w)
                    for y in range(c.y_count):
                        for x in range(c.x_count):
                            u, v = c.u0 + y * c.u_y + ky * c.u_ky, c.v0 + x * c.v_x + kx * c.v_kx
                            a = [0] * size
                            if inside(u, v, c):
                                at = c.a_base + oc * c.a_oc + ic * c.a_ic + u * c.a_u + v * c.a_v
                                a = [operand(sp[at + k], c.a_unsigned, c.a_zp) for k in range(size)]
                                count["macs_useful"] += rows * cols * (1 + c.wide)
                            psum = [sum(a[k] * w[k][j] for k in range(size)) for j in range(n)]
                            if c.scaled:
                                after = base + (rows + c.sparse * n // 4) * c.w_row
                                psum = [psum[j] * sp[after + j] for j in range(n)]
                            r = c.acc_base + oc * c.acc_oc + y * c.acc_y + x * c.acc_x
                            accumulate(mem, n, c, r, psum, ic == ky == kx == 0)
                            count["matrix_zeros"] += a.count(0)
                            count["macs_issued"] += n * n * (1 + c.wide)
                            count["matrix_rows"] += 1
                            count["sparse_rows"] += c.sparse
                            count["acc_writes"] += 1
    return count


def spread(sp, n: int, c: CommandFields, address: int, w: list[list[int]]) -> list[list[int]]:
    """Return a sparse tile with a row for each of 2 * n activations; the indices begin at an address."""
    full = [[0] * n for _ in range(2 * n)]
    for k in range(n):
        for j in range(n):
            if w[k][j]:  # weights that are not in use are 0
                byte = int(sp[address + k // 4 * c.w_row + j])
                full[k // 2 * 4 + (byte >> k % 4 * 2) % 4][j] += w[k][j]
    return full


def depthwise(mem: dict, n: int, c: CommandFields, oc: int, cols: int, count: dict[str, int]) -> None:
    sp, p_count = mem["sp"], c.x_count
    past = list(mem["line"]) if c.keep else []
    stream = []
    count["matrix_tiles"] += 1
    taps = [
        [operand(sp[c.w_base + oc * c.w_oc + k * c.w_row + j], c.w_unsigned, c.w_zp) for j in range(n)]
        for k in range(c.taps * c.groups)
    ]

    def at(i: int) -> list[int]:
        if i >= 0:
            return stream[i]
        return past[i] if -i <= len(past) else [0] * n

    for i in range(c.dw_len):
        row, col = divmod(i, p_count)
        u, v = c.u0 + row * c.u_y, c.v0 + col * c.v_x
        pixel = [0] * n
        if inside(u, v, c):
            start = c.a_base + oc * c.a_oc + u * c.a_u + v * c.a_v
            pixel = [operand(sp[start + j], c.a_unsigned, c.a_zp) for j in range(n)]
        stream.append(pixel)
        count["matrix_zeros"] += pixel.count(0)
        count["macs_issued"] += n * n
        count["matrix_rows"] += 1
        p = i - c.dw_lead
        orow, ocol = divmod(p, p_count)
        if p < 0 or orow % c.dw_sy or ocol % c.dw_sx or ocol // c.dw_sx >= c.dw_out_w:
            continue
        out = [0] * n
        for g in range(c.groups):
            for t in range(c.taps):
                source = at(i - (c.groups - 1 - g) * p_count - (c.taps - 1 - t))
                for j in range(n):
                    out[j] += taps[g * c.taps + t][j] * source[j]
        r = c.acc_base + oc * c.acc_oc + orow // c.dw_sy * c.acc_y + ocol // c.dw_sx * c.acc_x
        accumulate(mem, n, c, r, out, True)
        count["acc_writes"] += 1
        count["macs_useful"] += c.taps * c.groups * cols
    mem["line"] = past + stream


def reciprocal(x: int) -> tuple[int, int]:
    x = max(x, 1)
    k = x.bit_length() - 1
    return min((1 << 62) // (x << (31 - k)), HIGH), k


def root(x: int) -> tuple[int, int]:
    x = max(x, 1)
    k = (x.bit_length() - 1) // 2
    return min((1 << 62) // isqrt(x << (62 - 2 * k)), HIGH), k


class Fuse:
    """One FUSE command; `counters` and `statistics` are set by `run`."""

    def __init__(self, mem: dict, n: int, c: CommandFields) -> None:
        self.mem, self.n, self.c = mem, n, c
        self.written, self.results, self.saturations = [], 0, 0

    def run(self) -> None:
        """Process all points in order."""
        c = self.c
        dims = (c.n_count, c.y_count, c.x_count)
        for nn in range(dims[0]):
            for y in range(dims[1]):
                for x in range(dims[2]):
                    self.window(nn, y, x)
        points = dims[0] * dims[1] * dims[2] * c.wy_count * c.wx_count
        self.counters = {
            "fuse_points": points,
            "fuse_results": self.results,
            "fuse_saturations": self.saturations,
            "fuse_scaled": points * bool(c.requant),
            "fuse_tables": points * bool(c.table or c.table2),
            "fuse_residuals": points * bool(c.residual),
            "fuse_reduced": points * bool(c.reduce or c.lane_reduce),
        }
        w = self.written
        self.statistics = (self.results, w.count(0), min(w, default=0), max(w, default=0))

    def window(self, nn: int, y: int, x: int) -> None:
        """Process the window at one (n, y, x): its points, then its result or results."""
        c, n = self.c, self.n
        contributions = [[] for _ in range(n)]
        index, lanes = {}, n
        count = 0
        for wy in range(c.wy_count):
            for wx in range(c.wx_count):
                index = {"n": nn, "y": y, "x": x, "wy": wy, "wx": wx}
                u, v = c.u0 + y * c.u_y + wy * c.u_wy, c.v0 + x * c.v_x + wx * c.v_wx
                valid = inside(u, v, c)
                lanes = c.lanes or n
                if c.tail_dim < 5:
                    name = ("wx", "wy", "x", "y", "n")[c.tail_dim]
                    if index[name] == getattr(c, f"{name}_count") - 1:
                        lanes = c.lanes_tail or n
                values = [
                    self.value(index, u, v, valid, lane, valid or not c.reduce) for lane in range(lanes)
                ]
                if not c.reduce:
                    self.result(index, values, list(range(lanes)), int(valid), lanes)
                    continue
                count += valid
                for lane in range(lanes) if valid else ():
                    contributions[lane].append(values[lane])
        if c.reduce:
            fold = (None, lambda v: s32(sum(v)), max, min)[c.reduce]
            values = [fold(v) if v else 0 for v in contributions]
            self.result(index, values, [i for i, v in enumerate(contributions) if v], count, lanes)

    def address(self, stream: str, index: dict[str, int]) -> int:
        """Return the address that a stream accesses at the given loop indices."""
        return getattr(self.c, f"{stream}_base") + sum(
            i * getattr(self.c, f"{stream}_{d}") for d, i in index.items()
        )

    def value(self, index: dict[str, int], u: int, v: int, valid: bool, lane: int, counted: bool) -> int:
        """Return the value of one lane after steps 1 to 4."""
        c, mem, n = self.c, self.mem, self.n
        a = power = 0
        if valid:
            at = c.a_base + index["n"] * c.a_n + u * c.a_u + v * c.a_v
            if c.a_src:
                a = element(mem["sp"], at + lane * SIZE[c.a_dtype], c.a_dtype)
            else:
                a = mem["acc"][at * n + lane]
            if c.a_float:
                a, power = significand(a)
            elif c.a_src:
                a = s32(a - sx(c.zp_ab, 16))
        row = [0] * n
        if c.b_src:
            at = self.address("b", index)
            for i in range(n):
                if c.b_src == 1:
                    row[i] = mem["acc"][at * n + i]
                else:
                    row[i] = s32(
                        element(mem["sp"], at + i * SIZE[c.b_dtype], c.b_dtype) - sx(c.zp_ab >> 16, 16)
                    )
        b = row[c.b_lane if c.b_bcast else lane]
        if c.op == 1:
            a = s32(a + b)
        elif c.op == 2:
            a = s32(a - b)
        elif c.op == 5:
            a = s32(s32(sx(a, 18) * sx(c.mult, 18) >> c.op_shift) - b)
        elif c.op >= 3:
            a = s32(sx(a, 18) * sx(b if c.op == 3 else a, 18) >> c.op_shift)
        return self.stages(a, power, row, index, lane, counted)

    def stages(
        self, value: int, power: int, row: list[int], index: dict[str, int], lane: int, counted: bool
    ) -> int:
        """Apply steps 2 to 4."""
        c, mem, n = self.c, self.mem, self.n
        bias, m, e, m2, e2 = c.bias, c.mult, sx(c.shifts, 8), c.neg_mult, sx(c.shifts >> 8, 8)
        if c.requant == 1:
            slot = (c.p_base + index["x"] * c.p_x + index["n"] * c.p_n) * 16 * n
            word = lambda at: element(mem["param"], slot + at, 3)  # noqa: E731
            byte = lambda at: element(mem["param"], slot + at, 0)  # noqa: E731
            bias, m, e = word(4 * lane), word(4 * n + 4 * lane), byte(8 * n + lane)
            m2, e2 = word(9 * n + 4 * lane), byte(13 * n + lane)
        elif c.requant == 2:
            m, e = row[c.rq_lane], sx(row[c.rq_lane + 1], 8)
        self.row = row
        if c.bias_en and c.op != 5:
            value = s32(value + bias)
        if not c.requant:
            m, e = 1, 31
        elif c.neg_en and value < 0:
            m, e = m2, e2
        if c.to_float:
            value = float32(value * m, e + power - 31)
        else:
            exact = scale(value, m, e + power, 0, c.rounding if c.requant else 1) + c.zp
            value = clip(exact, c.clip_lo, c.clip_hi)
            self.saturations += counted and value != exact
        table = lambda v: element(mem["table"], c.table_slot * 512 + 2 * v, 2)  # noqa: E731
        if c.table and c.table_wide:
            value = s32((table(value & 255) & 0xFFFF) | table((value & 255) + 256) << 16)
        elif c.table:
            value = table(value & 255)
        if c.residual:
            r = element(mem["sp"], self.address("r", index) + lane * SIZE[c.r_dtype], c.r_dtype) - sx(
                c.zp_xr >> 16, 16
            )
            x = sx(value, 16) - sx(c.zp_xr, 16)
            if c.r_raw:
                total = x * c.x_mult + r * c.r_mult
            else:
                total = scale(x, c.x_mult, sx(c.r_shifts, 8), c.r_ls, c.rounding)
                total += scale(r, c.r_mult, sx(c.r_shifts >> 8, 8), c.r_ls, c.rounding)
            rounding = 1 if c.r_raw else c.rounding
            value = scale(s32(total + c.r_bias), c.o_mult, sx(c.r_shifts >> 16, 8), 0, rounding) + c.o_zp
            value = clip(value, c.r_lo, c.r_hi)
        return table(value & 255) if c.table2 else value

    def result(
        self, index: dict[str, int], values: list[int], contributed: list[int], count: int, lanes: int
    ) -> None:
        """Apply the lane reduction, the post-scale and step 6."""
        c, mem, n = self.c, self.mem, self.n
        if c.lane_reduce:
            taken = [values[i] for i in contributed]
            fold = (None, lambda v: s32(sum(v)), max, min)[c.lane_reduce]
            values = [fold(taken) if taken else 0]
        else:
            values = values[:lanes]
        values = [part for lane, v in enumerate(values) for part in self.post(v, count, index, lane)]
        at, first = self.address("d", index), c.d_lane if c.lane_reduce else 0
        self.results += 1
        for lane, value in enumerate(values):
            if c.d_dst:
                low, high = ((-128, 127), (0, 255), (-(1 << 15), (1 << 15) - 1), (LOW, HIGH))[c.d_dtype]
                stored = clip(value, low, high)
                self.saturations += stored != value
                start, size = at + lane * SIZE[c.d_dtype], SIZE[c.d_dtype]
                mem["sp"][start : start + size] = list(
                    (stored & (1 << 8 * size) - 1).to_bytes(size, "little")
                )
            else:
                stored = value
                mem["acc"][at * n + first + lane] = value
            if c.post not in (3, 4, 7) or lane == 0:
                self.written.append(stored)

    def post(self, value: int, count: int, index: dict[str, int], lane: int) -> list[int]:
        """Apply the post-scale to one value."""
        c, n, param = self.c, self.n, self.mem["param"]
        if c.post == 0:
            return [value]
        slot = (c.p_base + index["x"] * c.p_x + index["n"] * c.p_n) * 16 * n
        value = s32(value + (element(param, slot + 4 * lane, 3) if c.post == 6 else c.post_bias))
        if c.post in (3, 4, 7):
            if c.post_mult:
                value = scale(value, c.post_mult, sx(c.root_shifts, 8), 0, c.post_rounding)
            if c.post == 7:
                total = self.row[c.rq_lane]
                square = scale(total, total, sx(c.root_shifts >> 8, 8), 0, 1)
                value = s32(clip(value + c.post_zp, LOW, HIGH) - square)
            q, k = (reciprocal if c.post == 3 else root)(value)
            return [q, sx(c.post_shift - k, 8)]
        if c.post == 5:
            m, e = self.row[c.rq_lane], sx(self.row[c.rq_lane + 1], 8)
            return [clip(scale(value, m, e, 0, c.post_rounding) + c.post_zp, c.post_lo, c.post_hi)]
        if c.post == 6:
            m, e = element(param, slot + 4 * n + 4 * lane, 3), element(param, slot + 8 * n + lane, 0)
            return [clip(scale(value, m, e, 0, c.post_rounding) + c.post_zp, c.post_lo, c.post_hi)]
        if c.post == 1:
            value = scale(value, c.post_mult, c.post_shift, 0, c.post_rounding)
        elif count == 0:
            value = 0
        else:
            magnitude = (min(abs(value), (1 << 23) - 1) + count // 2) // count
            value = -magnitude if value < 0 else magnitude
        return [clip(value + c.post_zp, c.post_lo, c.post_hi)]
