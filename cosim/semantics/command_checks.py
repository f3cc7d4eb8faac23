"""Checks that the sequencer makes before it queues a command."""

from collections.abc import Iterator

from cosim.semantics.bounding_box import boxes, is_scalar_pair, reads_row
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.coordinates import COORDINATE_LIMITS, coordinate_ranges
from hw.config import MlaConfig
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Space, Trap, Unit

#: A DRAM window: first byte, last byte, permissions (bit 0 read, bit 1 write).
DramWindow = tuple[int, int, int]


def check_command(
    config: MlaConfig, windows: list[DramWindow], unit: Unit, c: CommandFields
) -> tuple[Trap, int] | None:
    """Return the trap of an illegal command and the address that the trap reports; None for a legal command.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    windows : list of DramWindow
        DRAM windows in effect.
    unit : Unit
        Unit that the command is for.
    c : CommandFields
        Unpacked fields of the command.
    """
    if contradictory(config, unit, c):
        return Trap.BAD_COMMAND, 0
    streams, sizes = list(boxes(config, unit, c)), sizes_of(config)
    for trap, spaces in _BOUNDS:
        for item in streams:
            if item.space in spaces and not (item.low >= 0 and item.high < sizes[item.space]):
                return trap, (item.low if item.low < 0 else item.high) & 0xFFFFFFFF
    for item in streams:
        if item.space == "dram" and not in_window(windows, item.low, item.high, 2 if item.write else 1):
            return Trap.DRAM_WINDOW, item.low & 0xFFFFFFFF
    return None


#: Traps of accesses out of bounds, and the memories to which they belong, in the order of the checks.
_BOUNDS = (
    (Trap.SP_BOUNDS, ("sp",)),
    (Trap.ACC_BOUNDS, ("acc",)),
    (Trap.SLOT_BOUNDS, ("param", "table", "slot")),
)


def sizes_of(config: MlaConfig) -> dict[str, int]:
    """Return the size of each on-chip memory, by address space of `boxes`."""
    return {
        "sp": config.sp_bytes,
        "acc": config.acc_rows,
        "param": config.param_slots * 16 * config.n,
        "table": config.table_slots * 512,
        "slot": config.param_slots,
    }


def contradictory(config: MlaConfig, unit: Unit, c: CommandFields) -> bool:
    """Return True if the fields of a command contradict each other or the configuration, wherever its addresses are.

    Of the addresses, only the remainder of `dst` modulo n, and in wide and sparse mode that of `a_base` modulo 2 * n,
    matter.
    """
    return any((_bad_load, _bad_matrix, _bad_fuse, _bad_store)[unit](config, c))


def in_window(windows: list[DramWindow], low: int, high: int, permission: int) -> bool:
    """Return True if a window that grants a permission (1 read, 2 write) contains the addresses `low` to `high`."""
    return any(first <= low and high <= last and bits & permission for first, last, bits in windows)


def _any_zero(c: CommandFields, *names: str) -> bool:
    return any(getattr(c, name) == 0 for name in names)


def _bad_load(config: MlaConfig, c: CommandFields) -> Iterator[bool]:
    n = config.n
    yield _any_zero(c, "len", "y_count", "z_count")
    yield c.space > Space.TABLE
    rows = any(value % n for value in (c.dst, c.dst_y, c.dst_z))
    yield bool(c.transpose and (c.fill or c.len > n or c.y_count > n or c.space != Space.SP))
    yield c.space != Space.SP and (rows or c.len % n != 0)
    yield bool(c.packed and (not config.packed_loads or c.fill or c.transpose or c.space != Space.SP or rows))


def _bad_store(config: MlaConfig, c: CommandFields) -> Iterator[bool]:
    yield _any_zero(c, "len", "y_count", "z_count")


def _bad_matrix(config: MlaConfig, c: CommandFields) -> Iterator[bool]:
    yield _any_zero(c, "x_count", "y_count", "kx_count", "ky_count", "ic_count", "oc_count")
    yield max(c.k_rows, c.k_tail, c.n_cols, c.n_tail) > config.n
    for value, unsigned in ((c.a_zp, c.a_unsigned), (c.w_zp, c.w_unsigned)):
        yield not (0 <= value <= 255 if unsigned else -128 <= value <= 127)
    if not _any_zero(c, "x_count"):
        yield _coordinate_overflow(Unit.MATRIX, c)
    if c.dw:
        yield _any_zero(c, "taps", "groups", "dw_sx", "dw_sy", "dw_out_w", "dw_len")
        yield c.taps * c.groups > config.n
        yield c.groups > 1 and c.groups * c.x_count + 2 * c.taps > config.line_depth
        yield max(c.y_count, c.kx_count, c.ky_count, c.ic_count) > 1
        yield bool(c.w_transpose)
        yield c.dw_len <= c.dw_lead
        yield bool(c.keep) and c.oc_count > 1
    if c.wide or c.sparse:
        yield bool(c.wide) and not config.wide
        yield bool(c.sparse) and (not config.sparse or bool(c.wide))
        yield bool(c.dw or c.w_transpose or c.w_unsigned or c.w_zp)
        yield any(value % (2 * config.n) for value in (c.a_base, c.a_u, c.a_v, c.a_ic, c.a_oc))
    if c.scaled:
        yield not config.wide
        yield bool(c.dw or c.w_transpose)


def _coordinate_overflow(unit: Unit, c: CommandFields) -> bool:
    """Return whether an image coordinate is out of range."""
    low, high = COORDINATE_LIMITS
    return not all(low <= span[0] and span[1] <= high for span in coordinate_ranges(unit, c))


def _bad_fuse(config: MlaConfig, c: CommandFields) -> Iterator[bool]:
    n = config.n
    pair = is_scalar_pair(c)
    yield _any_zero(c, "wx_count", "wy_count", "x_count", "y_count", "n_count")
    yield max(c.lanes, c.lanes_tail) > n
    yield c.b_src > BSource.SP
    yield reads_row(c) and (c.b_src == BSource.NONE or c.rq_lane + 1 >= n)
    yield bool(c.b_bcast) and c.b_lane >= n
    yield c.op > Op.MUL_SUB or (c.op not in (Op.PASS, Op.SQUARE) and c.b_src == BSource.NONE)
    yield c.r_dtype == Dtype.I32
    yield c.table_slot + c.table_wide >= config.table_slots
    yield bool(c.table_wide) and (not c.table or bool(c.residual) or bool(c.table2))
    yield c.post == Post.COUNT and c.wx_count * c.wy_count > 255
    yield pair and (c.lane_reduce == Reduce.NONE or bool(c.d_dst))
    yield c.post == Post.SLOT and c.lane_reduce != Reduce.NONE
    yield c.lane_reduce != Reduce.NONE and not c.d_dst and c.d_lane + pair >= n
    yield c.r_ls > 30
    yield c.tail_dim in (5, 6)
    yield _coordinate_overflow(Unit.FUSE, c)
