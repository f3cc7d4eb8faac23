"""Legality, footprint, hazards and minimum duration of unit commands."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from compiler.util.lru_cache import LruCache
from compiler.validate.errors import KIND_OF_TRAP
from compiler.validate.footprint import StridedRegion, overlap, streams
from compiler.validate.known_bits import KnownBits, Word, parts
from cosim.semantics.bounding_box import boxes, reads_row
from cosim.semantics.command_checks import DramWindow, check_command, contradictory, in_window, sizes_of
from cosim.semantics.command_fields import PACKED, CommandFields, unpack_fields
from cosim.semantics.fuse_points import PointBlock, points
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_FIELDS, MATRIX_WORD, UNIT_FIELDS
from hw.isa.enums import DTYPE_BYTES, BSource, Reduce, Trap, Unit

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
        whole = c.b_bcast or reads_row(c)
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


def _check(config: MlaConfig, windows: list[DramWindow], unit: Unit, fields: list[int]) -> None:
    """Raise BadCommandError if the hardware would trap on a command."""
    c = unpack_fields(unit, fields)
    found = check_command(config, windows, unit, c)
    if found:
        raise _illegal(config, unit, c, *found)


def _check_own_results(n: int, unit: Unit, fields: list[int], regions: list[StridedRegion]) -> None:
    """Raise BadCommandError if a point of a FUSE command may read the result of an earlier point."""
    if unit != Unit.FUSE:
        return
    written = [item for item in regions if item.write]
    reading = any(_meet(item, written) for item in regions if not item.write)
    if reading and reads_own_results(n, unpack_fields(unit, fields)):
        reason = (
            "a point may read the result of an earlier point of the same command: split it into two commands"
        )
        raise BadCommandError("race", reason)


#: Index of the mode word of MATRIX.
_MATRIX_WORD = [item.name for item in MATRIX_FIELDS].index("word")
#: Fields that hold addresses, by unit. Legality depends on them only through bounds, the alignment of `dst`, and the
#: alignment of `a_base` in wide and sparse mode.
_ADDRESSES = {
    unit: tuple((number, item.name) for number, item in enumerate(UNIT_FIELDS[unit]) if item.name in names)
    for unit, names in {
        Unit.LOAD: ("dst", "dram"),
        Unit.MATRIX: ("a_base", "w_base", "acc_base"),
        Unit.FUSE: ("a_base", "b_base", "r_base", "d_base", "p_base"),
        Unit.STORE: ("src", "dram"),
    }.items()
}
#: Distance between the addresses with which the regions of a shape are computed; it exceeds the size of any region.
_FAR = 1 << 80
#: Capacity of the cache of shapes, in commands.
_MAX_SHAPES = 1 << 13


class CommandShape(NamedTuple):
    """Command without its addresses, whose fields do not contradict each other.

    Parameters
    ----------
    fields : CommandFields
        Fields by name, with meaningless addresses.
    work : int
        Minimum number of cycles that the command occupies its unit.
    boxes : tuple
        For each bounding box: memory, permission (1 read, 2 write), first and last address relative to an address
        field, index of this field among the unit's fields (-1 for fixed addresses), and the factor of the field.
    regions : tuple
        For each region: the region relative to an address field, and index and factor as in `boxes`.
    """

    fields: CommandFields
    work: int
    boxes: tuple[tuple[str, int, int, int, int, int], ...]
    regions: tuple[tuple[StridedRegion, int, int], ...]


class CommandExaminer:
    """Check of single commands on one machine, which remembers the results that do not depend on addresses.

    Every bounding box and every region of a command moves with one address field, or does not move. Which field that
    is follows from the regions of a command whose address fields are far apart.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration to validate for.
    """

    def __init__(self, config: MlaConfig):
        self.config, self._sizes = config, sizes_of(config)
        self._shapes: LruCache[tuple[CommandShape | None]] = LruCache(_MAX_SHAPES)

    def examine(
        self, windows: list[DramWindow], unit: Unit, fields: list[int]
    ) -> tuple[CommandShape, list[StridedRegion]]:
        """Return the shape of a command, and the regions that the command accesses.

        Raises
        ------
        BadCommandError
            The hardware would trap on the command, or a point of the command may read the result of an earlier point.
        """
        rest, bases = list(fields), list(fields)
        for index, name in _ADDRESSES[unit]:
            rest[index] = fields[index] % self._alignment(unit, name, fields)
            bases[index] -= rest[index]
        shape = self._shape(unit, rest)
        if shape is None or not self._inside(windows, shape, bases):
            _check(self.config, windows, unit, fields)  # raises the error
            raise AssertionError("the command is illegal")
        regions = []
        for item, index, factor in shape.regions:
            space, low, high, steps, run, write = item
            by = bases[index] * factor if index >= 0 else 0
            regions.append(StridedRegion(space, low + by, high + by, steps, run, write))
        _check_own_results(self.config.n, unit, fields, regions)
        return shape, regions

    def _alignment(self, unit: Unit, name: str, fields: list[int]) -> int:
        """Return the number of bytes of which the legality of a command may require that an address is a multiple."""
        if unit == Unit.LOAD and name == "dst":
            return self.config.n
        if unit == Unit.MATRIX and name == "a_base":
            word = MATRIX_WORD.unpack(fields[_MATRIX_WORD])
            return 2 * self.config.n if word["wide"] or word["sparse"] else 1
        return 1

    def _inside(self, windows: list[DramWindow], shape: CommandShape, bases: list[int]) -> bool:
        """Return True if all accesses of a command are inside the memories and the windows."""
        for space, permission, low, high, index, factor in shape.boxes:
            by = bases[index] * factor if index >= 0 else 0
            if space == "dram":
                if not in_window(windows, low + by, high + by, permission):
                    return False
            elif low + by < 0 or high + by >= self._sizes[space]:
                return False
        return True

    def _shape(self, unit: Unit, rest: list[int]) -> CommandShape | None:
        """Return the shape of a command with these fields besides its addresses; None if they contradict each other."""
        key = unit, tuple(rest)
        found = self._shapes.get(key)
        if found is None:
            found = (self._computed(unit, list(rest)),)
            self._shapes.put(key, found)
        return found[0]

    def _computed(self, unit: Unit, values: list[int]) -> CommandShape | None:
        for number, (index, _) in enumerate(_ADDRESSES[unit]):
            values[index] += (1 + number) * _FAR
        c = unpack_fields(unit, values)
        if contradictory(self.config, unit, c):
            return None
        return CommandShape(
            c,
            work(self.config, unit, c),
            tuple(
                (item.space, 2 if item.write else 1, *self._relative(unit, item.low, item.high))
                for item in boxes(self.config, unit, c)
            ),
            tuple(
                (item._replace(low=low, high=high), index, factor)
                for item in streams(self.config, unit, c)
                for low, high, index, factor in [self._relative(unit, item.low, item.high)]
            ),
        )

    def _relative(self, unit: Unit, low: int, high: int) -> tuple[int, int, int, int]:
        """Return addresses relative to the address field with which they move, the field's index, and its factor."""
        far = (low + _FAR // 2) // _FAR
        slot = 16 * self.config.n  # bytes of a parameter slot, the factor of `p_base` in the parameter memory
        number, factor = (far, 1) if far < slot else (far // slot, slot)
        index = _ADDRESSES[unit][number - 1][0] if number else -1
        return low - far * _FAR, high - far * _FAR, index, factor


@lru_cache(maxsize=8)
def examiner(config: MlaConfig) -> CommandExaminer:
    """Return the check of single commands on a machine, which all proofs share."""
    return CommandExaminer(config)


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
        if cause is Trap.BAD_COMMAND and unit == Unit.MATRIX:
            modes = {"wide": "the wide mode", "scaled": "scaled sums", "sparse": "the sparse mode"}
            for name, mode in modes.items():
                option = "sparse" if name == "sparse" else "wide"
                if getattr(c, name) and not getattr(config, option):
                    return BadCommandError(
                        KIND_OF_TRAP[cause],
                        f"it uses {mode}, which the hardware configuration does not have (MlaConfig.{option} is 0)",
                    )
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
    beats = -(-c.len // config.n)
    if unit == Unit.LOAD and c.packed:
        return c.y_count * max(beats, c.z_count)
    return c.z_count * c.y_count * beats
