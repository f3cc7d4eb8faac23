"""Golden model over symbols: execution of unit commands with hashes of expressions instead of numbers.

Every byte of memory holds a symbol of 64 bits. Initially all symbols differ. A command computes the symbol of each
result from its mode and the symbols of its operands, so two sequences of commands that leave equal symbols at an
address leave equal values there for every initial contents of the memories (up to collisions of the hash). The reverse
does not hold: equal functions may have different symbols.

Addresses and loop counts are not part of a symbol. Sums, maxima and minima add the symbols of their terms, so neither
their order nor the commands that contribute terms matter. Therefore the symbols are independent of the order of
independent commands, of commands without effect, and of the division of work into commands along any dimension except
the lanes of a tile.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosim.golden.command import Command
from cosim.golden.depthwise import stream_outputs
from cosim.golden.matrix import active, lanes
from cosim.semantics.bounding_box import is_scalar_pair, reads_row, reads_slots, rows_after
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fuse_points import PointBlock, points
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import DTYPE_BYTES, BSource, Op, Post, Reduce, Requant, Space, Unit

Symbols = NDArray[np.uint64]

#: Number of elements computed at once.
_CHUNK_ELEMENTS = 1 << 17


class NoSymbolsError(Exception):
    """Raised for a command whose results have no symbols: a MATRIX command that writes an accumulator row twice."""


def mix(value: Symbols) -> Symbols:
    """Return the hash of each symbol (the finalizer of SplitMix64)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


def join(first: Symbols, second: Symbols) -> Symbols:
    """Return the hash of each ordered pair of symbols."""
    return mix(mix(first) * np.uint64(0xD6E8FEB86659FD93) + second)


@lru_cache(maxsize=1 << 12)
def constant(*values: Any) -> Symbols:
    """Return the symbol of constants, as an array without dimensions."""
    digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
    return np.frombuffer(digest, "<u8")[0:1].reshape(()).astype(np.uint64)


def numbered(value: Symbols, axis: int) -> Symbols:
    """Return the sums of symbols along an axis, which depend on the position of each symbol."""
    shape = [1] * value.ndim
    shape[axis] = value.shape[axis]
    position = mix(np.arange(value.shape[axis], dtype=np.uint64)).reshape(shape)
    return mix(value + position).sum(axis=axis, dtype=np.uint64)


#: Fields of FUSE that select addresses or points; what they select is part of the symbols.
_PLACES = frozenset(
    {f"{stream}_{part}" for stream in "abrd" for part in ("base", *FUSE_DIMS)}
    | {f"{dim}_count" for dim in FUSE_DIMS}
    | {"a_u", "a_v", "p_base", "p_x", "p_n", "u0", "v0", "u_y", "u_wy", "v_x", "v_wx", "u_lim", "v_lim"}
    | {"lanes", "lanes_tail", "tail_dim", "table_slot", "b_lane", "b_bcast", "rq_lane", "d_lane"}
)
_RESIDUAL = ("r_dtype", "r_raw", "r_ls", "zp_xr", "x_mult", "r_mult", "o_mult", "r_shifts", "r_bias")
#: Fields of the post-scale, and those that each function uses.
_POST = frozenset(
    {"post_bias", "post_mult", "post_shift", "post_zp", "post_lo", "post_hi", "post_rounding", "root_shifts"}
)
_SCALED_PAIR = frozenset({"post_bias", "post_shift", "post_mult", "post_rounding", "root_shifts"})
_POST_USED = {
    Post.NONE: frozenset(),
    Post.SCALE: _POST - {"root_shifts"},
    Post.COUNT: frozenset({"post_bias", "post_zp", "post_lo", "post_hi"}),
    Post.RECIP: _SCALED_PAIR,
    Post.RSQRT: _SCALED_PAIR,
    Post.ROW: frozenset({"post_bias", "post_zp", "post_lo", "post_hi", "post_rounding"}),
    Post.SLOT: frozenset({"post_zp", "post_lo", "post_hi", "post_rounding"}),
    Post.VAR_RSQRT: _SCALED_PAIR | {"post_zp"},
}
#: Fields of each step of the arithmetic of FUSE.
_STEPS = {
    "operator": ("op", "op_shift", "zp_ab"),
    "requantization": (
        *("requant", "rounding", "bias_en", "bias", "mult", "shifts", "neg_en", "neg_mult", "zp"),
        *("clip_lo", "clip_hi", "a_float", "to_float"),
    ),
    "residual addition": (*_RESIDUAL, "o_zp", "r_lo", "r_hi", "rounding"),
    "post-scale": ("post", *sorted(_POST)),
}
#: Values of the fields of a requantization that does not change its operand.
_REQUANTIZATION_DEFAULTS = {
    **dict.fromkeys(("requant", "bias_en", "zp", "a_float", "to_float"), 0),
    "clip_lo": -(1 << 31),
    "clip_hi": (1 << 31) - 1,
}
#: Fields of the products of MATRIX.
_PRODUCT = ("dw", "shift8", "a_unsigned", "w_unsigned", "a_zp", "w_zp", "wide", "scaled", "sparse")


class SymbolMachine:
    """Memories that hold symbols, and the execution of unit commands on them.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram_bytes : int
        Size of DRAM in bytes.

    Attributes
    ----------
    sp, param, table, dram : numpy.ndarray
        Symbols of the bytes of scratchpad, parameter slots, tables and DRAM.
    acc : numpy.ndarray
        Symbols of the accumulator, of shape (row, lane).
    line : numpy.ndarray
        Symbols of the line buffers, one per lane.
    """

    #: Bits of a symbol that contain a hash.
    hash_bits = np.uint64((1 << 64) - 1)

    def __init__(self, config: MlaConfig, dram_bytes: int):
        n = config.n
        self.config = config
        self.sp = _initial("sp", config.sp_bytes)
        self.param = _initial("param", config.param_slots * 16 * n)
        self.table = _initial("table", config.table_slots * 512)
        self.acc = _initial("acc", config.acc_rows * n).reshape(-1, n)
        self.line = _initial("line", n)
        self.dram = _initial("dram", dram_bytes)

    def run(self, commands: Iterable[Command]) -> None:
        """Execute commands in order.

        Raises
        ------
        NoSymbolsError
            A command has no symbols.
        """
        work = {
            Unit.LOAD: self._load,
            Unit.MATRIX: self._matrix,
            Unit.FUSE: self._fuse,
            Unit.STORE: self._store,
        }
        for command in commands:
            work[command.unit](command.config)

    def _load(self, c: CommandFields) -> None:
        if c.packed:
            self._load_packed(c)
            return
        target = (self.sp, self.param, self.table)[Space(c.space)]
        for z in range(c.z_count):
            lines = c.dram + z * c.dram_z + np.arange(c.y_count) * c.dram_y
            if c.transpose:
                starts = c.dst + z * c.dst_z + np.arange(c.len) * c.dst_y
                source = self.dram[lines[None, :] + np.arange(c.len)[:, None]]
                target[starts[:, None] + np.arange(c.y_count)] = source
                continue
            for y, line in enumerate(lines):
                start = c.dst + z * c.dst_z + y * c.dst_y
                if c.fill:
                    target[start : start + c.len] = constant("byte", c.fill_value) & self.hash_bits
                    continue
                source = self.dram[line : line + c.len]
                target[start : start + source.size] = source

    def _load_packed(self, c: CommandFields) -> None:
        """Expand lines, each byte of which depends on the whole line."""
        places = np.arange(c.z_count)[:, None] * c.dst_z + np.arange(2 * self.config.n)
        for y in range(c.y_count):
            line = c.dram + y * c.dram_y
            whole = join(numbered(self.dram[None, line : line + c.len], 1), constant("packed", c.len))
            positions = mix(np.arange(places.size, dtype=np.uint64)).reshape(places.shape)
            for place, symbols in zip(places, mix(whole + positions) & self.hash_bits, strict=True):
                self.sp[c.dst + y * c.dst_y + place] = symbols

    def _store(self, c: CommandFields) -> None:
        for z in range(c.z_count):
            for y in range(c.y_count):
                source = c.src + z * c.src_z + y * c.src_y
                target = c.dram + z * c.dram_z + y * c.dram_y
                self.dram[target : target + c.len] = self.sp[source : source + c.len]

    # MATRIX

    def _matrix(self, c: CommandFields) -> None:
        if c.dw:
            self._depthwise(c)
            return
        n = self.config.n
        k_rows, k_tail = active(c.k_rows, c.k_tail, n)
        n_cols, n_tail = active(c.n_cols, c.n_tail, n)
        tiles = c.ic_count * c.ky_count * c.kx_count
        ic, ky, kx = np.unravel_index(np.arange(tiles), (c.ic_count, c.ky_count, c.kx_count))
        k_active = np.arange(n) < np.where(ic == c.ic_count - 1, k_tail, k_rows)[:, None]
        y, x = np.divmod(np.arange(c.y_count * c.x_count), c.x_count)
        rows = c.acc_base + y * c.acc_y + x * c.acc_x
        blocks = rows + np.arange(c.oc_count)[:, None] * c.acc_oc
        if np.unique(blocks).size < blocks.size:
            raise NoSymbolsError("a MATRIX command writes an accumulator row twice")
        step = max(1, _CHUNK_ELEMENTS // (tiles * n))
        for start in range(0, rows.size, step):
            part = slice(start, start + step)
            for oc in range(c.oc_count):
                columns = n_tail if oc == c.oc_count - 1 else n_cols
                weights = self._weights(c, oc, (ic, ky, kx), k_active, columns)
                total = self._activations(c, oc, (ic, ky, kx), k_active, (y[part], x[part])) @ weights
                self._accumulate(c, blocks[oc][part], total)

    def _accumulate(self, c: CommandFields, rows: NDArray[np.int64], total: Symbols) -> None:
        if c.shift8:
            total = total + join(self.acc[rows], constant("shift8"))
        elif c.accumulate:
            total = total + self.acc[rows]
        self.acc[rows] = total

    def _weights(
        self, c: CommandFields, oc: int, tile: tuple[NDArray, ...], k_active: NDArray[np.bool_], columns: int
    ) -> Symbols:
        """Return the symbol of each column of each weight tile, as an array of shape (tile, column)."""
        total = numbered(self._weight_tiles(c, oc, tile, k_active, columns), 1)
        n = self.config.n
        return np.where(np.arange(n) < (columns if c.w_transpose else n), mix(total), np.uint64(0))

    def _weight_tiles(
        self, c: CommandFields, oc: int, tile: tuple[NDArray, ...], k_active: NDArray[np.bool_], columns: int
    ) -> Symbols:
        """Return the symbols of weight tiles, of shape (tile, row, column), 0 for rows that are not in use.

        In wide mode, there are 2 * n rows: first the low nibbles, then the high nibbles. In sparse mode, there
        are 2 * n rows, each of which is a sum over the two weights that may use its activation, with their indices.
        Without `w_transpose`, columns that are not in use are computed like the others; with it, their weights are 0.
        """
        n, (ic, ky, kx) = self.config.n, tile
        base = c.w_base + oc * c.w_oc + ic * c.w_ic + ky * c.w_ky + kx * c.w_kx
        k, column = np.arange(n)[:, None], np.arange(n)[None, :]
        line, lane = (column, k) if c.w_transpose else (k, column)
        used = k_active[:, :, None] & ((column < columns) if c.w_transpose else True)
        found = self.sp[np.where(used, base[:, None, None] + line * c.w_row + lane, 0)]
        if c.wide:
            found = np.concatenate(self._nibbles(found), axis=1)
            used = np.concatenate([used, used], axis=1)
        elif c.sparse:
            indices = base[:, None, None] + (k_active.sum(axis=1)[:, None, None] + k // 4) * c.w_row + column
            found = join(found, join(self.sp[indices], (k % 4).astype(np.uint64)))
        found = join(found, constant("weight", c.w_unsigned, c.w_zp))
        if c.scaled:
            factors = base + (k_active.sum(axis=1) + rows_after(c, n) - 1) * c.w_row
            found = join(found, self.sp[factors[:, None, None] + np.arange(n)])
        if not c.sparse:
            return np.where(used, found, np.uint64(0))
        lane = np.arange(2 * n)
        return sum(
            (
                np.where(
                    used[:, row], join(found[:, row], (lane % 4).astype(np.uint64)[:, None]), np.uint64(0)
                )
                for row in (lane // 4 * 2, lane // 4 * 2 + 1)
            ),
            np.zeros((len(found), 2 * n, n), np.uint64),
        )

    def _nibbles(self, source: Symbols) -> list[Symbols]:
        """Return the symbols of the low and of the high nibbles of bytes, as LOAD expands them."""
        return [join(source, constant(half)) & self.hash_bits for half in ("low nibble", "high nibble")]

    def _activations(
        self,
        c: CommandFields,
        oc: int,
        tile: tuple[NDArray, ...],
        k_active: NDArray[np.bool_],
        point: tuple[NDArray, NDArray],
    ) -> Symbols:
        """Return the symbol of the activation row of each point and tile, 0 for padding."""
        found, valid = self._activation_rows(c, oc, tile, k_active, point)
        return np.where(valid, mix(numbered(found, 2)), np.uint64(0))

    def _activation_rows(
        self,
        c: CommandFields,
        oc: int,
        tile: tuple[NDArray, ...],
        k_active: NDArray[np.bool_],
        point: tuple[NDArray, NDArray],
    ) -> tuple[Symbols, NDArray[np.bool_]]:
        """Return the symbols of activations, of shape (point, tile, row), and the mask of tiles without padding."""
        (ic, ky, kx), (y, x) = tile, (point[0][:, None], point[1][:, None])
        u = c.u0 + y * c.u_y + ky * c.u_ky
        v = c.v0 + x * c.v_x + kx * c.v_kx
        address = c.a_base + oc * c.a_oc + ic * c.a_ic + u * c.a_u + v * c.a_v
        valid = valid_points(c, u, v)
        if c.wide:
            k_active = np.concatenate([k_active, k_active], axis=1)
        elif c.sparse:
            k_active = np.repeat(k_active[:, ::2], 4, axis=1)
        used = valid[..., None] & k_active
        found = self.sp[np.where(used, address[..., None] + np.arange(lanes(c, self.config.n)), 0)]
        found = np.where(used, join(found, constant("activation", c.a_unsigned, c.a_zp)), np.uint64(0))
        return found, valid

    def _depthwise(self, c: CommandFields) -> None:
        n, history = self.config.n, self.line
        row, column = np.divmod(np.arange(c.dw_len), c.x_count)
        u, v = c.u0 + row * c.u_y, c.v0 + column * c.v_x
        valid = valid_points(c, u, v)
        mode = constant("depthwise", c.x_count, c.taps, c.groups, c.a_unsigned, c.a_zp, c.w_unsigned, c.w_zp)
        for oc in range(c.oc_count):
            address = np.where(valid, c.a_base + oc * c.a_oc + u * c.a_u + v * c.a_v, 0)
            pixels = self.sp[address[:, None] + np.arange(n)]
            stream = numbered(np.where(valid[:, None], pixels, np.uint64(0)), 0)
            lines = c.w_base + oc * c.w_oc + np.arange(c.taps * c.groups) * c.w_row
            weights = numbered(self.sp[lines[:, None] + np.arange(n)], 0)
            if c.keep:
                stream = join(stream, history)
            self.line = stream
            positions, rows = stream_outputs(c, oc)
            if np.unique(rows).size < rows.size:
                raise NoSymbolsError("a MATRIX command writes an accumulator row twice")
            lanes = join(join(stream, weights), mode)
            self._accumulate(c, rows, join(lanes[None, :], positions.astype(np.uint64)[:, None]))

    # FUSE

    def _fuse(self, c: CommandFields) -> None:
        n = self.config.n
        count, size = c.n_count * c.y_count * c.x_count, c.wy_count * c.wx_count
        step = max(1, _CHUNK_ELEMENTS // (size * n))
        for first in range(0, count, step):
            self._points(c, points(c, n, first, min(count, first + step)))

    def _points(self, c: CommandFields, block: PointBlock) -> None:
        size = c.wy_count * c.wx_count
        # A reduction over one point returns it.
        reduce = Reduce.NONE if size == 1 and block.valid.all() else c.reduce
        value, post = self._operands(c, block)
        value = join(value, _mode(c, reduce))
        if c.table or c.table2:
            table = self.table[c.table_slot * 512 : (c.table_slot + 1 + c.table_wide) * 512]
            value = join(value, numbered(table, 0))
        if c.residual:
            value = join(value, self._elements(self.sp, block.address(c, "r"), block.width, c.r_dtype))
        contributing = block.active
        last = slice(None)
        counts = block.valid.astype(np.uint64)
        if reduce != Reduce.NONE:
            last = slice(size - 1, None, size)
            contributing = (contributing & block.valid[:, None]).reshape(-1, size, block.width)
            value = np.where(contributing, mix(value.reshape(contributing.shape)), np.uint64(0))
            value, contributing = value.sum(axis=1, dtype=np.uint64), contributing.any(axis=1)
            counts = counts.reshape(-1, size).sum(axis=1)
        if c.lane_reduce != Reduce.NONE:
            value = np.where(contributing, mix(value), np.uint64(0)).sum(axis=1, dtype=np.uint64)[:, None]
        if c.post == Post.COUNT:
            value = join(value, counts[:, None])
        if post is not None:
            value = join(value, post[last][:, : value.shape[1]])
        if is_scalar_pair(c):
            value = np.concatenate([join(value[:, :1], constant(each)) for each in ("mult", "exp")], axis=1)
        self._write(c, block, last, mix(value))

    def _operands(self, c: CommandFields, block: PointBlock) -> tuple[Symbols, Symbols | None]:
        """Return the symbols of operands A and B and of the requantization parameters, and those of the parameters of
        the post-scale, if it has any.
        """
        post = None
        address = np.where(block.valid, block.address(c, "a"), 0)
        if c.a_src:
            value = self._elements(self.sp, address, block.width, c.a_dtype)
        else:
            value = self.acc[address, : block.width]
        value = np.where(block.valid[:, None], mix(value), constant("padding"))
        if c.b_src != BSource.NONE:
            address = block.address(c, "b")
            if c.b_src == BSource.ACC:
                row = self.acc[address]
            else:
                row = self._elements(self.sp, address, self.config.n, c.b_dtype)
            if c.op not in (Op.PASS, Op.SQUARE):
                value = join(value, row[:, c.b_lane : c.b_lane + 1] if c.b_bcast else row[:, : block.width])
            if c.requant == Requant.ROW:
                value = join(join(value, row[:, c.rq_lane, None]), row[:, c.rq_lane + 1, None])
            post = row_symbols(c, row)
        if reads_slots(c):
            slots = c.p_base + block.index["x"] * c.p_x + block.index["n"] * c.p_n
            parameters = self._slots(slots)[:, : block.width]
            if c.requant == Requant.SLOT:
                value = join(value, parameters)
            if c.post == Post.SLOT:
                post = parameters
        return value, post

    def _slots(self, slots: NDArray[np.int64]) -> Symbols:
        """Return the symbol of all parameters of each lane in each of the given slots."""
        n = self.config.n
        lane = np.arange(n)
        words = [start + 4 * lane + byte for start in (0, 4 * n, 9 * n) for byte in range(4)]
        places = np.stack([*words, 8 * n + lane, 13 * n + lane])
        used, which = np.unique(slots, return_inverse=True)
        found = numbered(self.param[used[:, None, None] * 16 * n + places], 1)
        return found[which.reshape(-1)]

    def _elements(self, memory: Symbols, address: NDArray[np.int64], lanes: int, dtype: int) -> Symbols:
        """Return the symbols of a row of elements at each byte address."""
        size = DTYPE_BYTES[dtype]
        places = address[:, None] + np.arange(lanes) * size
        # A command checks the bounds of the lanes in use only, so unused ones may lie behind the memory.
        return numbered(memory[np.minimum(places[..., None] + np.arange(size), memory.size - 1)], 2)

    def _write(self, c: CommandFields, block: PointBlock, last: slice, value: Symbols) -> None:
        address = block.address(c, "d")[last]
        scalar = c.lane_reduce != Reduce.NONE
        lanes = np.full(len(address), 1 if scalar and c.d_dst else value.shape[1])
        if not scalar:
            lanes = block.lanes[last]
        lane = np.arange(value.shape[1])
        used = lane < lanes[:, None]
        if not c.d_dst:
            places = address[:, None] * self.config.n + (c.d_lane if scalar else 0) + lane
            self.acc.reshape(-1)[places[used]] = value[used]
            return
        size = DTYPE_BYTES[c.d_dtype]
        for byte in range(size):
            places = address[:, None] + lane * size + byte
            self.sp[places[used]] = self._byte(c, value, byte)[used]

    def _byte(self, c: CommandFields, value: Symbols, byte: int) -> Symbols:
        """Return the symbols of a byte of written elements."""
        return join(value, constant("byte of", c.d_dtype, byte))


def row_symbols(c: CommandFields, row: Symbols) -> Symbols | None:
    """Return the symbols of the lanes of each row of operand B that the post-scale uses, of shape (row, 1)."""
    if c.post == Post.ROW:
        return join(row[:, c.rq_lane, None], row[:, c.rq_lane + 1, None])
    return mix(row[:, c.rq_lane, None]) if c.post == Post.VAR_RSQRT else None


def _initial(name: str, size: int) -> Symbols:
    """Return different symbols, which also differ from those of other memories."""
    return mix(np.arange(size, dtype=np.uint64) + constant("initial", name))


def valid_points(c: CommandFields, u: NDArray, v: NDArray) -> NDArray[np.bool_]:
    """Return the mask of coordinates that are not padding."""
    valid = np.ones(u.shape, bool)
    if c.u_lim:
        valid &= (u >= 0) & (u < c.u_lim)
    if c.v_lim:
        valid &= (v >= 0) & (v < c.v_lim)
    return valid


def _mode(c: CommandFields, reduce: int) -> Symbols:
    """Return the symbol of the fields that determine the function of a FUSE command with a given reduction."""
    return constant("fuse", *sorted((arithmetic_fields(c) | {"reduce": int(reduce)}).items()))


def arithmetic_fields(c: CommandFields) -> dict[str, int]:
    """Return the fields that determine the function of a FUSE command, without those that have no effect."""
    unused = set(_PLACES)
    binary = c.op not in (Op.PASS, Op.SQUARE)
    if not c.a_src:
        unused |= {"a_dtype"}
    if not (binary or reads_row(c)):
        unused |= {"b_src", "b_dtype"}
    if not (c.a_src and not c.a_float) and not (c.b_src == BSource.SP and "b_src" not in unused):
        unused |= {"zp_ab"}
    if c.op not in (Op.MUL, Op.SQUARE, Op.MUL_SUB):
        unused |= {"op_shift"}
    if not c.bias_en or c.requant == Requant.SLOT or c.op == Op.MUL_SUB:
        unused |= {"bias"}
    if c.requant in (Requant.OFF, Requant.SLOT):
        unused |= {"neg_mult", "shifts"} | ({"mult"} if c.op != Op.MUL_SUB else set())
    elif not c.neg_en:
        unused |= {"neg_mult"}
    if c.to_float:
        unused |= {"zp", "clip_lo", "clip_hi"}
    if (c.requant == Requant.OFF or c.to_float) and (c.r_raw or not c.residual):
        unused |= {"rounding"}
    if not c.residual:
        unused |= {*_RESIDUAL, "o_zp", "r_lo", "r_hi"}
    unused |= _POST - _POST_USED[Post(c.post)]
    if not c.d_dst:
        unused |= {"d_dtype"}
    return {name: value for name, value in vars(c).items() if name not in unused}


def arithmetic_steps(command: Command) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the fields of each step of the arithmetic of a command, by the name of the step."""
    c = command.config
    if command.unit == Unit.MATRIX:
        return {"product": tuple((name, getattr(c, name)) for name in _PRODUCT)}
    return fuse_steps(c) if command.unit == Unit.FUSE else {}


def fuse_steps(c: CommandFields) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the fields of each step of the arithmetic of a FUSE command, by the name of the step."""
    fields = arithmetic_fields(c)
    used = {
        "operator": c.op != Op.PASS or fields.get("zp_ab", 0) != 0,
        "requantization": any(
            fields.get(name, value) != value for name, value in _REQUANTIZATION_DEFAULTS.items()
        ),
        "residual addition": bool(c.residual),
        "post-scale": c.post != Post.NONE,
    }
    factor = ("mult",) if c.op == Op.MUL_SUB else ()
    return {
        step: tuple(
            (name, fields[name])
            for name in (*names, *(factor if step == "operator" else ()))
            if name in fields
        )
        for step, names in _STEPS.items()
        if used[step]
    }
