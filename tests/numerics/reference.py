"""FUSE in plain Python integers, written from docs/machine.md alone."""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import isqrt

import numpy as np

from tests.support.floats import float32, significand

DOUBLE, SINGLE, EVEN, AWAY = range(4)
MIN, MAX = -(1 << 31), (1 << 31) - 1


def wrap(value: int, bits: int = 32) -> int:
    """Return the low `bits` bits of a value as a two's complement integer."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def clip(value: int, low: int, high: int) -> int:
    """Clip to at least low, then to at most high."""
    return min(max(value, low), high)


def half_up(p: int, s: int) -> int:
    """Divide by 2**s and round halves towards plus infinity."""
    return (p + (1 << (s - 1))) >> s if s else p


def half_away(p: int, s: int) -> int:
    """Divide by 2**s and round halves away from zero."""
    return half_up(p, s) if p >= 0 else -half_up(-p, s)


def single_even(p: int, s: int) -> int:
    """Divide by 2**s, with two roundings of halves to even.

    The first rounding is to 24 significant bits, but drops at most s bits; the second gives the integer result.
    """
    drop = clip(abs(p).bit_length() - 24, 0, s)
    magnitude = round(Fraction(abs(p), 1 << drop))
    quotient = round(Fraction(magnitude, 1 << (s - drop)))
    return -quotient if p < 0 else quotient


def scale(x: int, m: int, e: int, ls: int, mode: int) -> int:
    """Compute `scale` of docs/machine.md."""
    p, s = x * m, clip(31 - ls - e, 0, 63)
    if mode == DOUBLE:
        if e >= 0:
            result = half_up(p, s)
        else:
            result = half_away(clip(half_up(p, 31 - ls), MIN, MAX), min(-e, 31))
    else:
        result = {SINGLE: half_up, EVEN: single_even, AWAY: half_away}[mode](p, s)
    return clip(result, MIN, MAX)


def recip(x: int, shift: int) -> tuple[int, int]:
    """Return the multiplier and exponent of 1/x."""
    x = max(x, 1)
    k = x.bit_length() - 1
    return min((1 << 62) // (x << (31 - k)), MAX), wrap(shift - k, 8)


def rsqrt(x: int, shift: int) -> tuple[int, int]:
    """Return the multiplier and exponent of 1/sqrt(x)."""
    x = max(x, 1)
    k = (x.bit_length() - 1) // 2
    return min((1 << 62) // isqrt(x << (62 - 2 * k)), MAX), wrap(shift - k, 8)


def divide(value: int, count: int) -> int:
    """Divide and round halves away from zero; return 0 for a count of zero."""
    value = clip(value, -(1 << 23) + 1, (1 << 23) - 1)
    if count == 0:
        return 0
    magnitude = (abs(value) + count // 2) // count
    return magnitude if value >= 0 else -magnitude


@dataclass
class Outcome:
    """Results of a command other than memory contents."""

    rows: int = 0
    elements: list[int] = field(default_factory=list)
    points: int = 0
    saturations: int = 0

    @property
    def statistics(self) -> tuple[int, int, int, int]:
        """Return FUSE_ROWS, FUSE_ZEROS, FUSE_MIN, FUSE_MAX."""
        found = self.elements or [0]
        return self.rows, self.elements.count(0), min(found), max(found)


class Machine:
    """The memories, and the effect of FUSE commands on them.

    Parameters
    ----------
    n : int
        Number of lanes.
    sp, acc : numpy arrays
        Scratchpad bytes (uint8), accumulator rows (int32, n columns).
    params, tables : numpy arrays
        Slots as bytes (uint8, 16 * n columns), tables (int16, 256 columns).
    """

    def __init__(
        self, n: int, sp: np.ndarray, acc: np.ndarray, params: np.ndarray, tables: np.ndarray
    ) -> None:
        self.n, self.sp, self.acc, self.params, self.tables = n, sp, acc, params, tables

    def elements(self, address: int, dtype: int) -> list[int]:
        """Return n elements of a type (i8 u8 i16 i32), starting at a scratchpad byte."""
        kind = ("<i1", "<u1", "<i2", "<i4")[dtype]
        size = np.dtype(kind).itemsize
        return [int(v) for v in self.sp[address : address + self.n * size].view(kind)]

    def slot(self, number: int) -> list[dict[str, int]]:
        """Return the parameters of each lane in a parameter slot."""
        n, data = self.n, self.params[number]
        words = data[: 4 * n].view("<i4"), data[4 * n : 8 * n].view("<i4"), data[9 * n : 13 * n].view("<i4")
        exps = data[8 * n : 9 * n].view("<i1"), data[13 * n : 14 * n].view("<i1")
        return [
            {
                "bias": int(words[0][i]),
                "m": int(words[1][i]),
                "e": int(exps[0][i]),
                "nm": int(words[2][i]),
                "ne": int(exps[1][i]),
            }
            for i in range(n)
        ]

    def run(self, c: dict[str, int]) -> Outcome:
        """Execute a command, given as a dictionary of all its fields, including the fields of the fuse word."""
        out = Outcome()
        counts = [c[f"{d}_count"] for d in ("n", "y", "x", "wy", "wx")]
        window: list[list[int]] = [[] for _ in range(self.n)]
        live_points = 0
        for i_n, i_y, i_x, i_wy, i_wx in product(*map(range, counts)):
            index = {"n": i_n, "y": i_y, "x": i_x, "wy": i_wy, "wx": i_wx}
            if i_wy == i_wx == 0 or c["reduce"] == 0:
                window, live_points = [[] for _ in range(self.n)], 0
            tail = c["tail_dim"] != 7 and self._at_end(c, index)
            lanes = (c["lanes_tail"] if tail else c["lanes"]) or self.n
            values, live, clipped = self._point(c, index)
            live_points += live
            out.points += 1
            for lane in range(lanes):
                if live or c["reduce"] == 0:
                    window[lane].append(values[lane])
                    out.saturations += clipped[lane]
            if c["reduce"] == 0 or (i_wy == counts[3] - 1 and i_wx == counts[4] - 1):
                self._result(c, index, window, live_points, lanes, out)
        return out

    @staticmethod
    def _at_end(c: dict[str, int], index: dict[str, int]) -> bool:
        dim = ("wx", "wy", "x", "y", "n")[c["tail_dim"]]
        return index[dim] == c[f"{dim}_count"] - 1

    @staticmethod
    def _address(c: dict[str, int], stream: str, index: dict[str, int]) -> int:
        return c[f"{stream}_base"] + sum(index[d] * c[f"{stream}_{d}"] for d in index)

    def _operands(
        self, c: dict[str, int], index: dict[str, int]
    ) -> tuple[list[tuple[int, int]], list[int], list[int], bool]:
        u = c["u0"] + index["y"] * c["u_y"] + index["wy"] * c["u_wy"]
        v = c["v0"] + index["x"] * c["v_x"] + index["wx"] * c["v_wx"]
        live = (not c["u_lim"] or 0 <= u < c["u_lim"]) and (not c["v_lim"] or 0 <= v < c["v_lim"])
        a, b_row = [(0, 0)] * self.n, [0] * self.n
        a_zp, b_zp = wrap(c["zp_ab"], 16), wrap(c["zp_ab"] >> 16, 16)
        if live:
            address = c["a_base"] + index["n"] * c["a_n"] + u * c["a_u"] + v * c["a_v"]
            row = self.elements(address, c["a_dtype"]) if c["a_src"] else [int(e) for e in self.acc[address]]
            if c["a_float"]:
                a = [significand(e) for e in row]
            else:
                a = [(wrap(e - a_zp) if c["a_src"] else e, 0) for e in row]
        if c["b_src"]:
            address = self._address(c, "b", index)
            if c["b_src"] == 2:
                b_row = [wrap(e - b_zp) for e in self.elements(address, c["b_dtype"])]
            else:
                b_row = [int(e) for e in self.acc[address]]
        b = [b_row[c["b_lane"]]] * self.n if c["b_bcast"] else b_row
        return a, b, b_row, live

    def _point(self, c: dict[str, int], index: dict[str, int]) -> tuple[list[int], bool, list[bool]]:
        a, b, b_row, live = self._operands(c, index)
        slots = (
            self.slot(c["p_base"] + index["x"] * c["p_x"] + index["n"] * c["p_n"])
            if c["requant"] == 1 or c["post"] == 6
            else None
        )
        residual = self.elements(self._address(c, "r", index), c["r_dtype"]) if c["residual"] else None
        table = self.tables[c["table_slot"]]
        high = self.tables[c["table_slot"] + 1] if c["table_wide"] else None
        values, clipped = [], []
        for lane in range(self.n):
            element, power = a[lane]
            value = self._operator(c, element, b[lane])
            slot = slots[lane] if slots and c["requant"] == 1 else None
            if c["bias_en"] and c["op"] != 5:
                value = wrap(value + (slot["bias"] if slot else c["bias"]))
            value = self._requantize(c, value, power, slot, b_row)
            value += 0 if c["to_float"] else c["zp"]
            limited = value if c["to_float"] else clip(value, c["clip_lo"], c["clip_hi"])
            clipped.append(limited != value)
            value = limited
            if c["table"]:
                index_ = value & 255
                value = int(table[index_])
                if high is not None:
                    value = (value & 0xFFFF) + int(high[index_]) * 65536
            if residual is not None:
                value = self._residual(c, value, residual[lane])
            if c["table2"]:
                value = int(table[value & 255])
            values.append(value)
        self.last_row, self.last_slots = b_row, slots
        return values, live, clipped

    @staticmethod
    def _operator(c: dict[str, int], a: int, b: int) -> int:
        if c["op"] == 5:
            return wrap(wrap(wrap(a, 18) * wrap(c["mult"], 18) >> c["op_shift"]) - b)
        if c["op"] >= 3:
            factor = b if c["op"] == 3 else a
            return wrap((wrap(a, 18) * wrap(factor, 18)) >> c["op_shift"])
        return wrap((a, a + b, a - b)[c["op"]])

    @staticmethod
    def _requantize(
        c: dict[str, int], value: int, power: int, slot: dict[str, int] | None, b_row: list[int]
    ) -> int:
        kind, rounding = c["requant"], c["rounding"]
        if kind == 0:
            pair, rounding = (1, 31), SINGLE
        elif slot is not None:
            pair = (slot["nm"], slot["ne"]) if c["neg_en"] and value < 0 else (slot["m"], slot["e"])
        elif c["neg_en"] and value < 0:
            pair = c["neg_mult"], wrap(c["shifts"] >> 8, 8)
        elif kind == 2:
            pair = b_row[c["rq_lane"]], wrap(b_row[c["rq_lane"] + 1], 8)
        else:
            pair = c["mult"], wrap(c["shifts"], 8)
        mult, exponent = pair
        if c["to_float"]:
            return float32(value * mult, exponent + power - 31)
        return scale(value, mult, exponent + power, 0, rounding)

    @staticmethod
    def _residual(c: dict[str, int], value: int, element: int) -> int:
        xs, rs = wrap(value, 16) - wrap(c["zp_xr"], 16), element - wrap(c["zp_xr"] >> 16, 16)
        x_exp, r_exp, o_exp = (wrap(c["r_shifts"] >> at, 8) for at in (0, 8, 16))
        if c["r_raw"]:
            s1, s2 = wrap(xs * c["x_mult"]), wrap(rs * c["r_mult"])
        else:
            s1 = scale(xs, c["x_mult"], x_exp, c["r_ls"], c["rounding"])
            s2 = scale(rs, c["r_mult"], r_exp, c["r_ls"], c["rounding"])
        total = wrap(s1 + s2 + c["r_bias"])
        rounding = SINGLE if c["r_raw"] else c["rounding"]
        return clip(scale(total, c["o_mult"], o_exp, 0, rounding) + c["o_zp"], c["r_lo"], c["r_hi"])

    @staticmethod
    def _reduced(kind: int, values: list[int]) -> int:
        if not values:
            return 0
        return (values[-1], wrap(sum(values)), max(values), min(values))[kind]

    def _result(
        self,
        c: dict[str, int],
        index: dict[str, int],
        window: list[list[int]],
        count: int,
        lanes: int,
        out: Outcome,
    ) -> None:
        row = [self._reduced(c["reduce"], lane) for lane in window]
        if c["lane_reduce"]:
            row = [self._reduced(c["lane_reduce"], [v for v, w in zip(row, window, strict=True) if w])]
        else:
            row = row[:lanes]
        address = self._address(c, "d", index)
        out.rows += 1
        if c["post"] in (3, 4, 7):
            found = wrap(row[0] + c["post_bias"])
            if c["post_mult"]:
                found = scale(found, c["post_mult"], wrap(c["root_shifts"], 8), 0, c["post_rounding"])
            if c["post"] == 7:
                total = self.last_row[c["rq_lane"]]
                square = scale(total, total, wrap(c["root_shifts"] >> 8, 8), 0, SINGLE)
                found = wrap(clip(found + c["post_zp"], MIN, MAX) - square)
            pair = (recip if c["post"] == 3 else rsqrt)(found, c["post_shift"])
            self.acc[address, c["d_lane"] : c["d_lane"] + 2] = pair
            out.elements.append(pair[0])
            return
        if c["post"]:
            row = [self._post(c, v, count, lane) for lane, v in enumerate(row)]
        low, high = ((-128, 127), (0, 255), (-32768, 32767), (MIN, MAX))[c["d_dtype"] if c["d_dst"] else 3]
        final = [clip(v, low, high) for v in row]
        out.saturations += sum(f != v for f, v in zip(final, row, strict=True))
        out.elements += final
        if c["d_dst"]:
            data = np.array(final, np.int64).astype(("<i1", "<u1", "<i2", "<i4")[c["d_dtype"]]).view(np.uint8)
            self.sp[address : address + len(data)] = data
        elif c["lane_reduce"]:
            self.acc[address, c["d_lane"]] = final[0]
        else:
            self.acc[address, :lanes] = final

    def _post(self, c: dict[str, int], value: int, count: int, lane: int) -> int:
        slot = self.last_slots[lane] if self.last_slots and c["post"] == 6 else None
        value = wrap(value + (slot["bias"] if slot else c["post_bias"]))
        if c["post"] == 1:
            value = scale(value, c["post_mult"], c["post_shift"], 0, c["post_rounding"])
        elif c["post"] == 5:
            pair = self.last_row[c["rq_lane"]], wrap(self.last_row[c["rq_lane"] + 1], 8)
            value = scale(value, *pair, 0, c["post_rounding"])
        elif slot:
            value = scale(value, slot["m"], slot["e"], 0, c["post_rounding"])
        else:
            value = divide(value, count)
        return clip(value + c["post_zp"], c["post_lo"], c["post_hi"])
