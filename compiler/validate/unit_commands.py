"""Legality, footprint, hazards and minimum duration of unit commands."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from compiler.validate.errors import KIND_OF_TRAP
from compiler.validate.footprint import StridedRegion, overlap, streams
from compiler.validate.known_bits import KnownBits, Word, parts
from cosim.semantics.command_checks import DramWindow, check_command
from cosim.semantics.command_fields import PACKED, CommandFields, unpack_fields
from cosim.semantics.fuse_points import PointBlock, points
from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import DTYPE_BYTES, BSource, Reduce, Requant, Trap, Unit

#: Maximum number of elements checked one by one; a larger command is assumed to read its own results.
MAX_ELEMENTS = 1 << 21
#: Fields of a FUSE command that hold addresses in scratchpad or accumulator.
_BASES = ("a_base", "b_base", "r_base", "d_base")


def reads_own_results(n: int, c: CommandFields) -> bool:
    """Return True if a point of a FUSE command may read the result of an earlier point of the command.

    Commands with more than MAX_ELEMENTS elements are assumed to do so.
    """
    # The result depends only on relative addresses, so tiles of one shape share a cache entry.
    values = dict(vars(c))
    values |= {base: values[base] - c.d_base for base in _BASES}
    return _reads_own_results(n, tuple(values.items()))


@lru_cache(maxsize=1 << 10)
def _reads_own_results(n: int, fields: tuple[tuple[str, int], ...]) -> bool:
    c = CommandFields(**dict(fields))
    windows = c.n_count * c.y_count * c.x_count
    size = c.wy_count * c.wx_count
    if windows * size * n * 4 > MAX_ELEMENTS:
        return True
    block = points(c, n, 0, windows)
    last = slice(None) if c.reduce == Reduce.NONE else slice(size - 1, None, size)
    scalar = c.lane_reduce != Reduce.NONE
    space, width = ("sp", DTYPE_BYTES[c.d_dtype]) if c.d_dst else ("acc", 0)
    lanes = np.ones_like(block.lanes) if scalar else block.lanes
    written, when = _touched(block.address(c, "d")[last], lanes[last] * width, _order(block)[last])
    low, high = int(written.min()), int(written.max())
    first = np.full(high - low + 1, len(block.valid), np.int64)
    # Of several assignments to an array element the last one remains: that of the earliest point.
    first[written[::-1] - low] = when[::-1]
    for where, address, length, order in _reads(n, c, block):
        if where == space and address.size:
            read, at = _touched(address, length, order)
            inside = (read >= low) & (read <= high)
            if (first[read[inside] - low] < at[inside]).any():
                return True
    return False


def _order(block: PointBlock) -> np.ndarray:
    return np.arange(len(block.valid))


def _reads(
    n: int, c: CommandFields, block: PointBlock
) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Return, for each input stream, its memory, and the address, size and index of each point that reads.

    Sizes are in bytes; 0 means one accumulator row.
    """
    order, valid = _order(block), block.valid
    a = c.a_base + block.index["n"] * c.a_n + block.u * c.a_u + block.v * c.a_v
    a_size = DTYPE_BYTES[c.a_dtype] if c.a_src else 0
    found = [("sp" if c.a_src else "acc", a[valid], block.lanes[valid] * a_size, order[valid])]
    if c.b_src != BSource.NONE:
        whole = c.b_bcast or c.requant == Requant.ROW
        b_size = DTYPE_BYTES[c.b_dtype] if c.b_src == BSource.SP else 0
        lanes = np.full_like(block.lanes, n) if whole else block.lanes
        found.append(("sp" if b_size else "acc", block.address(c, "b"), lanes * b_size, order))
    if c.residual:
        found.append(("sp", block.address(c, "r"), block.lanes * DTYPE_BYTES[c.r_dtype], order))
    return found


def _touched(address: np.ndarray, length: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each accessed address, with the index of the point that accesses it, in the order of the points."""
    length = np.maximum(length, 1)
    offsets = np.arange(int(length.max()))
    taken = offsets < length[:, None]
    touched = address[:, None] + offsets
    return touched[taken], np.broadcast_to(order[:, None], touched.shape)[taken]


#: Fields that affect only values, neither the footprint nor the legality of a command.
_VALUES = {
    Unit.FUSE: {
        "zp_ab",
        "op_shift",
        "bias",
        "mult",
        "neg_mult",
        "shifts",
        "zp",
        "clip_lo",
        "clip_hi",
        "zp_xr",
        "x_mult",
        "r_mult",
        "o_mult",
        "r_shifts",
        "r_bias",
        "o_zp",
        "r_lo",
        "r_hi",
        "post_bias",
        "post_mult",
        "post_shift",
        "post_zp",
        "post_lo",
        "post_hi",
    },
}
#: Subfields of packed words that affect only values.
_VALUE_PARTS = {(Unit.LOAD, "word"): {"fill_value"}}

#: Messages for illegal commands by the trap that they would cause.
_RIGHT = {
    Trap.BAD_COMMAND: "its fields contradict each other or the hardware configuration (docs/machine.md, BAD_COMMAND)",
    Trap.SP_BOUNDS: "it reaches scratchpad byte {address:#x}; the scratchpad is 0..{last:#x}",
    Trap.ACC_BOUNDS: "it reaches accumulator row {address:#x}; the rows are 0..{last:#x}",
    Trap.SLOT_BOUNDS: "it reaches {address:#x}, beyond the end of the parameter slots or tables",
}


class BadCommandError(Exception):
    """Error for a command that must not be issued, with the kind of the error and the reason."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind, self.reason = kind, reason


@dataclass(frozen=True)
class CommandLine:
    """Contents of the line buffers after a depthwise command: `pixels` pixels, in rows of `width` pixels."""

    width: int
    pixels: int


def known_fields(unit: Unit, fields: list[Word]) -> list[int]:
    """Return the concrete values of a command's fields, with 0 for unknown bits that affect only computed values.

    Raises
    ------
    BadCommandError
        A field that affects the footprint or the legality of the command is unknown.
    """
    if KnownBits not in set(map(type, fields)):
        return list(fields)  # type: ignore[arg-type]
    out = []
    for item, word in zip(UNIT_FIELDS[unit], fields, strict=True):
        value, unknown = parts(word) if not isinstance(word, int) else (word, 0)
        if unknown and item.name not in _VALUES.get(unit, ()):
            packed = PACKED[unit].get(item.name)
            free = _VALUE_PARTS.get((unit, item.name), set())
            names = [item.name]
            if packed:
                raw = packed.unpack(unknown)
                names = [name for name, part in raw.items() if part and name not in free]
            if names:
                name = f"{unit.name.lower()}.{names[0]}"
                reason = f"{name} depends on the data; addresses, counts and modes must be known beforehand"
                raise BadCommandError("statistics", reason)
        out.append(item.truncate(value) if unknown else value)
    return out


def examine(
    config: MlaConfig, windows: list[DramWindow], unit: Unit, fields: list[int]
) -> tuple[CommandFields, list[StridedRegion]]:
    """Return the fields of a command by name, and the regions that the command accesses.

    Raises
    ------
    BadCommandError
        The hardware would trap on the command, or a point of the command may read the result of an earlier point.
    """
    c = unpack_fields(unit, fields)
    found = check_command(config, windows, unit, c)
    if found:
        raise _illegal(config, unit, c, *found)
    regions = streams(config, unit, c)
    if unit == Unit.FUSE:
        written = [item for item in regions if item.write]
        reading = any(_meet(item, written) for item in regions if not item.write)
        if reading and reads_own_results(config.n, c):
            reason = "a point may read the result of an earlier point of the same command: split it into two commands"
            raise BadCommandError("race", reason)
    return c, regions


def _meet(region: StridedRegion, others: list[StridedRegion]) -> bool:
    return any(region.space == other.space and overlap(region, other) for other in others)


def _illegal(config: MlaConfig, unit: Unit, c: CommandFields, cause: Trap, address: int) -> BadCommandError:
    if cause is Trap.DRAM_WINDOW:
        item = next(each for each in streams(config, unit, c) if each.space == "dram")
        verb, allowed = ("write to", "writable") if item.write else ("read of", "readable")
        reason = f"{verb} DRAM {item.low:#x}..{item.high:#x} is outside every {allowed} window"
    else:
        last = {Trap.SP_BOUNDS: config.sp_bytes - 1, Trap.ACC_BOUNDS: config.acc_rows - 1}.get(cause, 0)
        reason = _RIGHT[cause].format(address=address, last=last)
    return BadCommandError(KIND_OF_TRAP[cause], reason)


def follow_line(c: CommandFields, before: CommandLine | None) -> CommandLine:
    """Return the contents of the line buffers after a depthwise command.

    Raises
    ------
    BadCommandError
        The command needs pixels that previous commands have not left in the line buffers.
    """
    if not c.keep:
        return CommandLine(c.x_count, c.dw_len)
    if before is None or before.width != c.x_count:
        has = "there is none" if before is None else f"that has rows of {before.width}"
        reason = f"keep=1 needs a depthwise command with rows of {c.x_count} pixels before it, {has}"
        raise BadCommandError("command", reason)
    needed = (c.groups - 1) * c.x_count + c.taps - 1 - c.dw_lead
    most = min(2 * c.x_count, before.pixels)
    if needed > most:
        reason = (
            f"keep=1 needs the last {needed} pixels of the previous command, but only {most} are buffered"
        )
        raise BadCommandError("command", reason)
    return CommandLine(c.x_count, min(before.pixels + c.dw_len, 2 * c.x_count + c.dw_len))


def work(config: MlaConfig, unit: Unit, c: CommandFields) -> int:
    """Return the minimum number of cycles that a command occupies its unit."""
    if unit == Unit.MATRIX:
        if c.dw:
            return c.oc_count * c.dw_len
        return c.oc_count * c.ic_count * c.ky_count * c.kx_count * c.y_count * c.x_count
    if unit == Unit.FUSE:
        return c.n_count * c.y_count * c.x_count * c.wy_count * c.wx_count * config.fuse_rate
    return c.z_count * c.y_count * -(-c.len // config.n)
