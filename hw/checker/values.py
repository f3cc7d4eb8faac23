"""Quantities that both checkers derive from a command's fields: extents, address spaces, walk increments."""

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import BSource, Dtype, Post, Requant, Space, Unit


def _named(m: Module, unit: Unit, name: str, width: int, value: Value) -> Signal:
    signal = Signal(width, name=f"{unit.name.lower()}_{name}")
    m.d.comb += signal.eq(value)
    return signal


def times_groups(value: Value, groups: Value) -> Value:
    """Return `value` times the two-bit number `groups`, computed by an addition to save a multiplier."""
    return Mux(groups[0], value, 0) + Mux(groups[1], value << 1, 0)


def _or_default(value: Value, default: Value | int) -> Value:
    return Mux(value == 0, default, value)


def _larger(a: Value, b: Value) -> Value:
    return Mux(a > b, a, b)


def _bytes(count: Value | int, dtype: Value) -> Value:
    """Return the number of bytes of `count` elements."""
    one = Value.cast(count)
    return Mux(dtype == Dtype.I32, one << 2, Mux(dtype == Dtype.I16, one << 1, one))


def _halves(fields: data.View, name: str) -> dict[str, Value]:
    stride = getattr(fields, name).as_unsigned()
    return {f"{name}_lo": stride[:16], f"{name}_hi": stride[16:].as_signed()}


def load_values(m: Module, fields: data.View, config: MlaConfig) -> dict[str, Value]:
    """Return the values derived from a LOAD command: number and size of the destination lines, and the low and high
    halves of the DRAM strides.
    """
    word = fields.word
    length = fields.len
    return {
        "not_fill": ~word.fill,
        "dst_count": _named(m, Unit.LOAD, "dst_count", 16, Mux(word.transpose, length, fields.y_count)),
        "dst_touched": _named(
            m,
            Unit.LOAD,
            "dst_touched",
            21,
            Mux(word.transpose, fields.y_count, Mux(word.packed, 2 * config.n, length)),
        ),
        **_halves(fields, "dram_y"),
        **_halves(fields, "dram_z"),
    }


def store_values(m: Module, fields: data.View, config: MlaConfig) -> dict[str, Value]:
    """Return the values derived from a STORE command: the low and high halves of the DRAM strides."""
    return {**_halves(fields, "dram_y"), **_halves(fields, "dram_z")}


def matrix_values(m: Module, fields: data.View, config: MlaConfig) -> dict[str, Value]:
    """Return the values derived from a MATRIX command: rows of the largest tile, and columns of the depthwise
    stream.
    """
    word, n = fields.word, config.n
    rows = _named(m, Unit.MATRIX, "rows", 6, _or_default(fields.k_rows, n))
    rows_tail = _named(m, Unit.MATRIX, "rows_tail", 6, _or_default(fields.k_tail, rows))
    columns = _named(m, Unit.MATRIX, "columns", 6, _or_default(fields.n_cols, n))
    columns_tail = _named(m, Unit.MATRIX, "columns_tail", 6, _or_default(fields.n_tail, columns))
    most_rows = Mux(fields.ic_count == 1, rows_tail, _larger(rows, rows_tail))
    most_columns = Mux(fields.oc_count == 1, columns_tail, _larger(columns, columns_tail))
    taps = times_groups(word.taps, word.groups)
    return {
        "dw": word.dw,
        "not_dw": ~word.dw,
        "row": Const(n),
        "a_row": Mux(word.wide | (word.sparse if config.sparse else 0), 2 * n, n)
        if config.wide
        else Const(n),
        "one": Const(1),
        "tile": _named(
            m,
            Unit.MATRIX,
            "tile",
            7,
            Mux(word.dw, taps, Mux(word.w_transpose, most_columns, most_rows))
            + (word.scaled if config.wide else 0)
            + (Mux(word.sparse, n // 4, 0) if config.sparse else 0),
        ),
        "dw_columns": _named(
            m,
            Unit.MATRIX,
            "dw_columns",
            16,
            Mux(fields.dw_len < fields.x_count, fields.dw_len, fields.x_count),
        ),
    }


def fuse_values(m: Module, fields: data.View, config: MlaConfig) -> dict[str, Value]:
    """Return the values derived from a FUSE command: the number of bytes, rows or slots accessed at each address, and
    flags for the streams that are read.
    """
    src, stage, n = fields.src, fields.stage, config.n
    lanes = _named(m, Unit.FUSE, "lanes_used", 6, _or_default(fields.lanes, n))
    tail = _named(m, Unit.FUSE, "lanes_tail_used", 6, _or_default(fields.lanes_tail, n))
    widest = Mux(stage.tail_dim < len(FUSE_DIMS), _larger(lanes, tail), lanes)
    elements = _named(m, Unit.FUSE, "elements", 6, Mux(stage.lane_reduce != 0, 1, widest))
    uses_b = src.b_src != BSource.NONE
    return {
        "use_b": uses_b,
        "use_r": stage.residual,
        "use_slots": (src.requant == Requant.SLOT) | (stage.post == Post.SLOT) | (stage.post == Post.COUNT),
        "one": Const(1),
        "a_touched": _named(m, Unit.FUSE, "a_touched", 8, Mux(src.a_src, _bytes(n, src.a_dtype), 1)),
        "b_touched": _named(
            m, Unit.FUSE, "b_touched", 8, Mux(src.b_src == BSource.SP, _bytes(n, src.b_dtype), 1)
        ),
        "r_touched": _named(m, Unit.FUSE, "r_touched", 8, _bytes(n, stage.r_dtype)),
        "d_touched": _named(
            m, Unit.FUSE, "d_touched", 8, Mux(stage.d_dst, _bytes(elements, stage.d_dtype), 1)
        ),
    }


VALUES = {
    Unit.LOAD: load_values,
    Unit.MATRIX: matrix_values,
    Unit.FUSE: fuse_values,
    Unit.STORE: store_values,
}


class AddressSpace:
    """Address spaces of streams; the values are ordered like the traps, and bits 3..2 of a value select the trap."""

    SP = 0
    ACC = 4
    SLOT = 8
    PARAM = 9
    TABLE = 10
    DRAM_READ = 12
    DRAM_WRITE = 13

    BITS = 4


def spaces(fields: dict[Unit, data.View]) -> dict[str, Value | int]:
    """Return the address space of each stream."""
    fuse, load = fields[Unit.FUSE], fields[Unit.LOAD]
    return {
        "load_dram": AddressSpace.DRAM_READ,
        "store_dram": AddressSpace.DRAM_WRITE,
        "store_src": AddressSpace.SP,
        "load_dst": Mux(
            load.word.space == Space.SP,
            AddressSpace.SP,
            Mux(load.word.space == Space.PARAM, AddressSpace.PARAM, AddressSpace.TABLE),
        ),
        "matrix_a": AddressSpace.SP,
        "matrix_w": AddressSpace.SP,
        "matrix_acc": AddressSpace.ACC,
        "fuse_a": Mux(fuse.src.a_src, AddressSpace.SP, AddressSpace.ACC),
        "fuse_b": Mux(fuse.src.b_src == BSource.SP, AddressSpace.SP, AddressSpace.ACC),
        "fuse_r": AddressSpace.SP,
        "fuse_d": Mux(fuse.stage.d_dst, AddressSpace.SP, AddressSpace.ACC),
        "fuse_slots": AddressSpace.SLOT,
    }


def address_bits(config: MlaConfig) -> dict[int, int]:
    """Return log2 of the size of each on-chip address space."""
    sizes = {
        AddressSpace.SP: config.sp_bytes,
        AddressSpace.ACC: config.acc_rows,
        AddressSpace.SLOT: config.param_slots,
        AddressSpace.PARAM: config.param_slots * 16 * config.n,
        AddressSpace.TABLE: config.table_slots * 512,
    }
    return {kind: (size - 1).bit_length() for kind, size in sizes.items()}


#: Walk increments, modulo 2**20: the first address, followed by the increments of the four coordinate dimensions.
INCREMENTS_LAYOUT = data.StructLayout(dict.fromkeys(("start", "du1", "du2", "dv1", "dv2"), 20))
#: Name of the increment that each derived field of a command contains.
INCREMENT_OF = {
    "a_start": "start",
    "a_dy": "du1",
    "a_dky": "du2",
    "a_dwy": "du2",
    "a_dx": "dv1",
    "a_dkx": "dv2",
    "a_dwx": "dv2",
}
