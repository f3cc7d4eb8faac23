"""Reference of MATRIX, written from docs/machine.md with plain loops and exact integers."""

from dataclasses import dataclass, field

import numpy as np

from hw.isa.commands import MATRIX_FIELDS, MATRIX_WORD, defaults
from hw.isa.enums import Unit

WORD_NAMES = tuple(f.name for f in MATRIX_WORD.fields)


def command(**values: int) -> dict[str, int]:
    """Return all fields of a MATRIX command, including the fields of the packed word and `tag`."""
    fields = defaults(Unit.MATRIX) | MATRIX_WORD.unpack(defaults(Unit.MATRIX)["word"]) | {"tag": 0}
    assert not set(values) - set(fields), set(values) - set(fields)
    return fields | values


def derived(c: dict[str, int]) -> dict[str, int]:
    """Return the increments that the issue stage derives."""
    mask = (1 << 20) - 1
    return {
        "a_start": (c["a_base"] + c["u0"] * c["a_u"] + c["v0"] * c["a_v"]) & mask,
        "a_dy": c["u_y"] * c["a_u"] & mask,
        "a_dky": c["u_ky"] * c["a_u"] & mask,
        "a_dx": c["v_x"] * c["a_v"] & mask,
        "a_dkx": c["v_kx"] * c["a_v"] & mask,
    }


def field_values(c: dict[str, int]) -> dict[str, int]:
    """Return the values of the command's fields in the order of the encoding."""
    return {f.name: c[f.name] for f in MATRIX_FIELDS if f.name != "word"}


@dataclass
class Counts:
    """Architectural counters of one command."""

    macs_issued: int = 0
    macs_useful: int = 0
    matrix_rows: int = 0
    matrix_tiles: int = 0
    matrix_zeros: int = 0
    sparse_rows: int = 0
    acc_writes: int = 0


@dataclass
class Reference:
    """Scratchpad, accumulator and line history, and the effect of commands on them."""

    n: int
    sp: np.ndarray
    acc: np.ndarray
    history: list[np.ndarray] = field(default_factory=list)

    def run(self, c: dict[str, int]) -> Counts:
        """Execute one command."""
        counts = Counts()
        if c["dw"]:
            self._depthwise(c, counts)
        else:
            self._normal(c, counts)
        counts.macs_issued = counts.matrix_rows * self.n * self.n * (1 + c["wide"])
        return counts

    def _bytes(self, address: int, is_unsigned: int, zero_point: int, count: int = 0) -> np.ndarray:
        raw = self.sp[(address + np.arange(count or self.n)) % len(self.sp)]
        return (raw.astype(np.int64) if is_unsigned else raw.astype(np.int8).astype(np.int64)) - zero_point

    def _pixel(
        self, c: dict[str, int], counts: Counts, oc: int, ic: int, u: int, v: int
    ) -> tuple[np.ndarray, bool]:
        padding = (c["u_lim"] and not 0 <= u < c["u_lim"]) or (c["v_lim"] and not 0 <= v < c["v_lim"])
        address = c["a_base"] + oc * c["a_oc"] + ic * c["a_ic"] + u * c["a_u"] + v * c["a_v"]
        size = self.n * (1 + (c["wide"] | c["sparse"]))
        row = self._bytes(address, c["a_unsigned"], c["a_zp"], size)
        if padding:
            row = np.zeros(size, np.int64)
        counts.matrix_rows += 1
        counts.matrix_zeros += int((row == 0).sum())
        counts.sparse_rows += c["sparse"]
        return row, bool(padding)

    def _lanes(self, tail: int, usual: int, last: bool) -> int:
        usual = usual or self.n
        return (tail or usual) if last else usual

    def _add(self, c: dict[str, int], r: int, psum: np.ndarray, first: bool, counts: Counts) -> None:
        r %= len(self.acc)
        old = self.acc[r].astype(np.int64)
        if first and c["shift8"]:
            psum = (old << 8) + psum
        elif not first or c["accumulate"]:
            psum = old + psum
        self.acc[r] = (psum & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)
        counts.acc_writes += 1

    def _normal(self, c: dict[str, int], counts: Counts) -> None:
        n = self.n
        for oc, ic, ky, kx in np.ndindex(c["oc_count"], c["ic_count"], c["ky_count"], c["kx_count"]):
            k_used = self._lanes(c["k_tail"], c["k_rows"], ic == c["ic_count"] - 1)
            c_used = self._lanes(c["n_tail"], c["n_cols"], oc == c["oc_count"] - 1)
            base = c["w_base"] + oc * c["w_oc"] + ic * c["w_ic"] + ky * c["w_ky"] + kx * c["w_kx"]
            weights = np.zeros((n, n), np.int64)
            if c["w_transpose"]:
                for j in range(c_used):
                    weights[:k_used, j] = self._bytes(base + j * c["w_row"], c["w_unsigned"], c["w_zp"])[
                        :k_used
                    ]
            else:
                for k in range(k_used):
                    weights[k] = self._bytes(base + k * c["w_row"], c["w_unsigned"], c["w_zp"])
            if c["wide"]:
                weights = np.array(
                    [[self._nibble(w, half) for w in row] for half in (0, 1) for row in weights]
                )
            if c["sparse"]:
                weights = self._spread(c, base + k_used * c["w_row"], weights)
            counts.matrix_tiles += 1
            for y, x in np.ndindex(c["y_count"], c["x_count"]):
                u = c["u0"] + y * c["u_y"] + ky * c["u_ky"]
                v = c["v0"] + x * c["v_x"] + kx * c["v_kx"]
                row, padding = self._pixel(c, counts, oc, ic, u, v)
                counts.macs_useful += 0 if padding else k_used * c_used * (1 + c["wide"])
                r = c["acc_base"] + oc * c["acc_oc"] + y * c["acc_y"] + x * c["acc_x"]
                total = row @ weights
                if c["scaled"]:
                    total = total * self._bytes(base + (k_used + c["sparse"] * n // 4) * c["w_row"], 1, 0)
                self._add(c, r, total, ic == ky == kx == 0, counts)

    def _spread(self, c: dict[str, int], address: int, weights: np.ndarray) -> np.ndarray:
        """Return a sparse tile as a matrix with a row for each of 2 * n activations."""
        spread = np.zeros((2 * self.n, self.n), np.int64)
        for k, row in enumerate(weights):
            packed = self._bytes(address + k // 4 * c["w_row"], 1, 0)
            for j, weight in enumerate(row):
                spread[4 * (k // 2) + int(packed[j]) // 4 ** (k % 4) % 4, j] += weight
        return spread

    def _nibble(self, weight: int, half: int) -> int:
        """Return the low (0) or high (1) nibble of a byte as a signed number."""
        nibble = int(weight) % 256 // (16 if half else 1) % 16
        return nibble - 16 if nibble >= 8 else nibble

    def _depthwise(self, c: dict[str, int], counts: Counts) -> None:
        taps, groups, period = c["taps"], c["groups"], c["x_count"]
        for oc in range(c["oc_count"]):
            if not c["keep"]:
                self.history = []
            start = len(self.history)
            c_used = self._lanes(c["n_tail"], c["n_cols"], oc == c["oc_count"] - 1)
            base = c["w_base"] + oc * c["w_oc"]
            weights = [
                self._bytes(base + k * c["w_row"], c["w_unsigned"], c["w_zp"]) for k in range(taps * groups)
            ]
            counts.matrix_tiles += 1
            for position in range(c["dw_len"]):
                row, col = divmod(position, period)
                self.history.append(
                    self._pixel(c, counts, oc, 0, c["u0"] + row * c["u_y"], c["v0"] + col * c["v_x"])[0]
                )
                p = position - c["dw_lead"]
                orow, ocol = divmod(p, period)
                if p < 0 or orow % c["dw_sy"] or ocol % c["dw_sx"] or ocol // c["dw_sx"] >= c["dw_out_w"]:
                    continue
                total = np.zeros(self.n, np.int64)
                for g in range(groups):
                    for t in range(taps):
                        at = start + position - (groups - 1 - g) * period - (taps - 1 - t)
                        if at >= 0:
                            total += weights[g * taps + t] * self.history[at]
                r = (
                    c["acc_base"]
                    + oc * c["acc_oc"]
                    + orow // c["dw_sy"] * c["acc_y"]
                    + ocol // c["dw_sx"] * c["acc_x"]
                )
                self._add(c, r, total, True, counts)
                counts.macs_useful += taps * groups * c_used
