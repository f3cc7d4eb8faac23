"""Golden model over symbols that do not depend on how reductions are divided.

`cosim.golden.symbols` hashes the lanes of a tile together, so its symbols change if a reduction is divided along lanes
or computed from partial results. Here, a symbol is a polynomial over the initial contents of the memories, evaluated at
random values modulo 2**62: sums and products are sums and products of symbols, a maximum or minimum is the sum of the
hashes of its elements, and every other step of arithmetic is a hash of its operands. Therefore two symbols are equal if
every reduction reads the same elements equally often, combined with the same partners and after the same steps, in
whatever order and division. If a program omits an element of a maximum, reads a lane twice or pairs other halves, its
symbols differ, even if the result is right for almost all inputs.

Not part of a symbol: saturation of partial sums, and overflow of products.
"""

import numpy as np
from numpy.typing import NDArray

from cosim.golden.depthwise import stream_outputs
from cosim.golden.symbols import (
    NoSymbolsError,
    SymbolMachine,
    Symbols,
    constant,
    fuse_steps,
    join,
    numbered,
    row_symbols,
    valid_points,
)
from cosim.semantics.bounding_box import is_scalar_pair
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fuse_points import PointBlock
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Post, Reduce, Requant

#: Bits that contain the kind of a partial reduction: 0, or Reduce.MAX or Reduce.MIN.
_KIND = np.uint64(3)
_HASH = ~_KIND
_EXTREMES = (Reduce.MAX, Reduce.MIN)
_NONE = np.uint64(0)


class DataflowMachine(SymbolMachine):
    """Memories that hold symbols of dataflow, and the execution of unit commands on them.

    The upper 62 bits of a symbol are its value. The lower two are not zero if the symbol is that of a maximum or
    minimum, whose value is the sum of its elements' hashes, so that further elements can be added.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram_bytes : int
        Size of DRAM in bytes.
    """

    hash_bits = _HASH

    def __init__(self, config: MlaConfig, dram_bytes: int):
        super().__init__(config, dram_bytes)
        for memory in (self.sp, self.param, self.table, self.acc, self.dram):
            memory &= _HASH
        #: Symbols of the pixels in the line buffers, of shape (pixel, lane).
        self.line = np.zeros((0, config.n), np.uint64)

    # MATRIX

    def _accumulate(self, c: CommandFields, rows: NDArray[np.int64], total: Symbols) -> None:
        if c.shift8:
            total = total + _closed(self.acc[rows]) * np.uint64(256)
        elif c.accumulate:
            total = total + _closed(self.acc[rows])
        self.acc[rows] = total

    def _weights(
        self, c: CommandFields, oc: int, tile: tuple[NDArray, ...], k_active: NDArray[np.bool_], columns: int
    ) -> Symbols:
        """Return the symbols of the weights, of shape (tile * row, column)."""
        found = self._weight_tiles(c, oc, tile, k_active, columns)
        return found.reshape(-1, found.shape[2]) & _HASH

    def _activations(
        self,
        c: CommandFields,
        oc: int,
        tile: tuple[NDArray, ...],
        k_active: NDArray[np.bool_],
        point: tuple[NDArray, NDArray],
    ) -> Symbols:
        """Return the symbols of the activations as factors, of shape (point, tile * row)."""
        found, _ = self._activation_rows(c, oc, tile, k_active, point)
        return found.reshape(len(found), -1) >> np.uint64(2)

    def _depthwise(self, c: CommandFields) -> None:
        n, history = self.config.n, self.line if c.keep else self.line[:0]
        row, column = np.divmod(np.arange(c.dw_len), c.x_count)
        u, v = c.u0 + row * c.u_y, c.v0 + column * c.v_x
        valid = valid_points(c, u, v)
        stream = history
        for oc in range(c.oc_count):
            address = np.where(valid, c.a_base + oc * c.a_oc + u * c.a_u + v * c.a_v, 0)
            pixels = join(
                self.sp[address[:, None] + np.arange(n)], constant("activation", c.a_unsigned, c.a_zp)
            )
            stream = np.concatenate([history, np.where(valid[:, None], pixels, _NONE) & _HASH])
            lines = c.w_base + oc * c.w_oc + np.arange(c.taps * c.groups) * c.w_row
            weights = (
                join(self.sp[lines[:, None] + np.arange(n)], constant("weight", c.w_unsigned, c.w_zp)) & _HASH
            )
            positions, rows = stream_outputs(c, oc)
            if np.unique(rows).size < rows.size:
                raise NoSymbolsError("a MATRIX command writes an accumulator row twice")
            total = np.zeros((positions.size, n), np.uint64)
            for group in range(c.groups):
                for tap in range(c.taps):
                    at = positions + len(history) - (c.groups - 1 - group) * c.x_count - (c.taps - 1 - tap)
                    pixel = np.where(at[:, None] < 0, _NONE, stream[np.maximum(at, 0)])
                    total += _product(pixel, weights[group * c.taps + tap])
            self._accumulate(c, rows, total)
        self.line = stream[-2 * self.config.line_depth - n :]

    # FUSE

    def _points(self, c: CommandFields, block: PointBlock) -> None:
        steps = fuse_steps(c)
        post = steps.pop("post-scale", None)
        plain = not (steps or c.table or c.table2 or c.residual) and c.op == Op.PASS
        # A maximum of elements that is stored in their own type, or a copy, changes no element.
        kept = bool(plain and post is None and c.a_src and c.d_dst and c.a_dtype == c.d_dtype)
        kept = kept and Reduce.SUM not in (c.reduce, c.lane_reduce)
        raw, value = self._operand_a(c, block)
        if not plain:
            raw = value = self._arithmetic(c, block, _closed(value), steps)
        factor = self._post_parameters(c, block)
        if not kept:
            raw = value
        contributing, last = block.active, slice(None)
        counts = block.valid.astype(np.uint64)
        if c.reduce != Reduce.NONE:
            size = c.wy_count * c.wx_count
            last = slice(size - 1, None, size)
            contributing = (contributing & block.valid[:, None]).reshape(-1, size, block.width)
            shape = contributing.shape
            value = _reduced(raw.reshape(shape), value.reshape(shape), contributing, Reduce(c.reduce))
            raw, contributing = value, np.any(contributing, axis=1)
            counts = counts.reshape(-1, size).sum(axis=1)
        elif c.lane_reduce == Reduce.NONE:
            value = raw
        if c.lane_reduce != Reduce.NONE:
            value = _reduced(raw, value, contributing, Reduce(c.lane_reduce))[:, None]
        if post is not None:
            value = join(_closed(value), constant(*post))
        if c.post == Post.COUNT:
            value = join(value, counts[:, None])
        if factor is not None:
            value = join(value, factor[last][:, : value.shape[1]])
        if is_scalar_pair(c):
            value = np.concatenate([join(value[:, :1], constant(each)) for each in ("mult", "exp")], axis=1)
        if post is not None:
            value = value & _HASH
        if c.d_dst and not kept and c.d_dtype != Dtype.I32:
            value = _closed(value) * _factor("stored as", c.d_dtype)
        self._write(c, block, last, value)

    def _operand_a(self, c: CommandFields, block: PointBlock) -> tuple[Symbols, Symbols]:
        """Return operand A as it is stored, and as a number of its type."""
        address = np.where(block.valid, block.address(c, "a"), 0)
        if c.a_src:
            raw = self._elements(self.sp, address, block.width, c.a_dtype)
            value = _typed(raw, c.a_dtype)
        else:
            raw = value = self.acc[address, : block.width]
        padding = constant("padding") & _HASH
        valid = block.valid[:, None]
        return np.where(valid, raw, padding), np.where(valid, value, padding)

    def _arithmetic(
        self,
        c: CommandFields,
        block: PointBlock,
        value: Symbols,
        steps: dict[str, tuple[tuple[str, int], ...]],
    ) -> Symbols:
        """Return the results of the operator, the requantization, the tables and the residual addition."""
        operator = dict(steps.pop("operator", ()))
        zero_points = constant("zero points", operator["zp_ab"]) if operator.get("zp_ab") else None
        row = self._operand_b(c, block)
        if zero_points is not None:
            value, row = join(value, zero_points) & _HASH, join(row, zero_points) & _HASH
        other = row[:, c.b_lane : c.b_lane + 1] if c.b_bcast else row[:, : block.width]
        if c.op == Op.ADD:
            value = value + other
        elif c.op == Op.SUB:
            value = value - other
        elif c.op in (Op.MUL, Op.SQUARE):
            value = _product(value, value if c.op == Op.SQUARE else other)
            if c.op_shift:
                value = join(value, constant("shift", c.op_shift))
        elif c.op == Op.MUL_SUB:
            value = join(value, constant("factor", c.mult, c.op_shift)) - other
        if requantization := steps.get("requantization"):
            value = join(value, constant("requantization", *requantization))
            if c.requant == Requant.ROW:
                value = join(join(value, row[:, c.rq_lane, None]), row[:, c.rq_lane + 1, None])
            if c.requant == Requant.SLOT:
                slots = c.p_base + block.index["x"] * c.p_x + block.index["n"] * c.p_n
                value = join(value, self._slots(slots)[:, : block.width])
        table = numbered(self.table[c.table_slot * 512 : (c.table_slot + 1 + c.table_wide) * 512], 0)
        if c.table:
            value = join(value, table)
        if addition := steps.get("residual addition"):
            other = _closed(self._elements(self.sp, block.address(c, "r"), block.width, c.r_dtype))
            value = join(join(value, other), constant("residual addition", *addition))
        if c.table2:
            value = join(value, table)
        return value & _HASH

    def _operand_b(self, c: CommandFields, block: PointBlock) -> Symbols:
        """Return the rows of operand B, which are zero if there is none."""
        if c.b_src == BSource.ACC:
            return _closed(self.acc[block.address(c, "b")])
        if c.b_src == BSource.SP:
            found = self._elements(self.sp, block.address(c, "b"), self.config.n, c.b_dtype)
            return _closed(_typed(found, c.b_dtype))
        return np.zeros((len(block.valid), self.config.n), np.uint64)

    def _post_parameters(self, c: CommandFields, block: PointBlock) -> Symbols | None:
        """Return the symbols of the parameters of the post-scale; None if it has none."""
        if c.post == Post.SLOT:
            slots = c.p_base + block.index["x"] * c.p_x + block.index["n"] * c.p_n
            return self._slots(slots)[:, : block.width]
        return row_symbols(c, self._operand_b(c, block))

    def _elements(self, memory: Symbols, address: NDArray[np.int64], lanes: int, dtype: int) -> Symbols:
        """Return the symbols of a row of elements at each byte address."""
        size = DTYPE_BYTES[dtype]
        places = address[:, None] + np.arange(lanes) * size
        total = np.zeros(places.shape, np.uint64)
        kinds = []
        for byte in range(size):
            found = memory[np.minimum(places + byte, memory.size - 1)]
            total += (found & _HASH) * _READ[size][byte]
            kinds.append(found & _KIND)
        same = np.all([kind == kinds[0] for kind in kinds], axis=0)
        return total | np.where(same, kinds[0], _NONE)

    def _byte(self, c: CommandFields, value: Symbols, byte: int) -> Symbols:
        return (value & _HASH) * _WRITTEN[DTYPE_BYTES[c.d_dtype]][byte] | value & _KIND


def _closed(value: Symbols) -> Symbols:
    """Return symbols whose maxima and minima are complete, so that they can be operands of other steps."""
    kind = value & _KIND
    return value if not kind.any() else np.where(kind == 0, value, join(value, constant("extreme")) & _HASH)


def _product(one: Symbols, other: Symbols) -> Symbols:
    return (one >> np.uint64(2)) * other


def _typed(raw: Symbols, dtype: int) -> Symbols:
    """Return the symbols of stored elements as numbers of a type; those of partial maxima and minima are numbers."""
    if dtype == Dtype.I32:
        return raw
    return np.where(raw & _KIND == 0, raw * _factor("read as", dtype), raw)


def _reduced(raw: Symbols, value: Symbols, contributing: NDArray[np.bool_], how: Reduce) -> Symbols:
    """Return reductions along axis 1 of the contributing elements; that of a single element is the element as stored.

    Parameters
    ----------
    raw, value : numpy.ndarray
        Elements as stored, and as numbers.
    contributing : numpy.ndarray
        Mask of the elements that are reduced.
    how : Reduce
        Kind of the reduction.
    """
    if how == Reduce.SUM:
        return np.where(contributing, _closed(value), _NONE).sum(axis=1, dtype=np.uint64)
    assert how in _EXTREMES
    kind = np.uint64(int(how))
    element = (
        np.where(value & _KIND == kind, value, join(_closed(value), constant("element of", int(how)))) & _HASH
    )
    total = np.where(contributing, element, _NONE).sum(axis=1, dtype=np.uint64) | kind
    count = contributing.sum(axis=1)
    single = np.where(contributing, raw, _NONE).sum(axis=1, dtype=np.uint64)
    return np.where(count > 1, total, single)


def _factor(*values: object) -> Symbols:
    """Return an odd random factor."""
    return constant(*values) | np.uint64(1)


def _byte_factors(size: int) -> tuple[list[np.uint64], list[np.uint64]]:
    """Return the factors of the bytes of an element when it is written and read; their products add up to 1."""
    read = [1] + [int(_factor("byte", size, byte)) for byte in range(1, size)]
    shares = [int(constant("share", size, byte)) for byte in range(1, size)]
    shares.insert(0, 1 - sum(shares))
    written = [share * pow(factor, -1, 1 << 64) for share, factor in zip(shares, read, strict=True)]
    return [np.uint64(each % (1 << 64)) for each in written], [np.uint64(each) for each in read]


_WRITTEN, _READ = ({size: _byte_factors(size)[which] for size in (1, 2, 4)} for which in (0, 1))
