"""Random legal commands whose accesses stay within small ranges of each memory."""

import random

from cosim.semantics.bounding_box import boxes
from cosim.semantics.command_checks import check_command
from cosim.semantics.command_fields import PACKED, CommandFields, unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from tests.support.program_gen.items import Issue


class CommandRanges:
    """Ranges of the memories that commands may access, small enough that accesses of different commands overlap.

    Parameters
    ----------
    config : MlaConfig
        Sizes of the memories.
    rng : random.Random
        Source of the ranges.
    dram : tuple of int
        First byte and size of the data in DRAM.
    window : tuple of int, optional
        First and last byte that programs may access when they run; by default, the first and last byte of the data.
    """

    def __init__(
        self,
        config: MlaConfig,
        rng: random.Random,
        dram: tuple[int, int],
        window: tuple[int, int] | None = None,
    ):
        self.config = config
        first, last = window or (dram[0], dram[0] + dram[1] - 1)
        self.windows = [(first, last, 3)]
        self.ranges = {
            "sp": _some(rng, config.sp_bytes, 160 * config.n),
            "acc": _some(rng, config.acc_rows, 96),
            "param": (0, config.param_slots * 16 * config.n),
            "table": (0, config.table_slots * 512),
            "slot": (0, config.param_slots),
            "dram": (dram[0], dram[0] + dram[1]),
        }


def _some(rng: random.Random, size: int, span: int) -> tuple[int, int]:
    span = min(span, size)
    start = rng.choice((0, size - span, rng.randrange(size - span + 1)))
    return start, start + span


def raw_fields(unit: Unit, values: dict[str, int]) -> list[int]:
    """Return the values of all fields in the order of the unit's field table, with packed words assembled."""
    out = []
    for item in UNIT_FIELDS[unit]:
        packed = PACKED[unit].get(item.name)
        if packed:
            out.append(packed.pack(**{f.name: values[f.name] for f in packed.fields if f.name in values}))
        else:
            out.append(item.truncate(values.get(item.name, item.default)))
    return out


def config_of(command: Issue) -> CommandFields:
    """Return the fields with which a command is issued."""
    return unpack_fields(command.unit, raw_fields(command.unit, command.values))


def _streams(unit: Unit, c: CommandFields, count: int) -> list[str]:
    """Return the names of the base address fields of a command's boxes, in the order of `boxes`."""
    if unit == Unit.LOAD:
        return ["dst", "dram"][:count]
    if unit == Unit.STORE:
        return ["src", "dram"]
    names = ["a_base", "w_base", "acc_base"] if unit == Unit.MATRIX else ["a_base"]
    if unit == Unit.FUSE:
        names += (
            ["b_base"] * (c.b_src > 0)
            + ["r_base"] * c.residual
            + ["p_base"] * (c.requant == 1 or c.post == 6)
            + ["d_base"]
        )
    return names[len(names) - count :]


def place(
    ranges: CommandRanges, rng: random.Random, unit: Unit, values: dict[str, int], align: int = 1
) -> Issue | None:
    """Choose the base addresses of a command so that its accesses stay in the ranges; return None if impossible."""
    command = Issue(unit, values, fresh=rng.random() < 0.5)
    config = ranges.config
    reach = list(boxes(config, unit, config_of(command)))
    for name, item in zip(_streams(unit, config_of(command), len(reach)), reach, strict=True):
        first, stop = ranges.ranges[item.space]
        low, high = max(first - item.low, 0), stop - 1 - item.high
        if name == "a_base" and (values.get("wide") or values.get("sparse")):
            low, high, step = -(-low // (2 * config.n)), high // (2 * config.n), 2 * config.n
        elif item.space in ("param", "table") or (item.space == "sp" and values.get("packed")):
            low, high, step = -(-low // config.n), high // config.n, config.n
        else:
            step = 1
            if rng.random() < 0.3:
                low, high, step = -(-low // align), high // align, align
        if low > high:
            return None
        values[name] = rng.randint(low, high) * step
    if check_command(config, ranges.windows, unit, config_of(command)):
        return None
    return command


def attempt(ranges: CommandRanges, rng: random.Random, unit: Unit) -> Issue:
    """Return a random legal command of a unit."""
    from tests.support.program_gen.fuse import random_fuse
    from tests.support.program_gen.matrix import random_matrix

    makers = {
        Unit.LOAD: random_load,
        Unit.STORE: random_store,
        Unit.MATRIX: random_matrix,
        Unit.FUSE: random_fuse,
    }
    while True:
        command = makers[unit](ranges, rng)
        if command:
            return command


def random_load(ranges: CommandRanges, rng: random.Random) -> Issue | None:
    """Return a LOAD of a random mode, or None if it does not fit into the ranges."""
    n = ranges.config.n
    mode = rng.choice(("plain", "plain", "plain", "fill", "transpose", "packed", "param", "table"))
    values = {"y_count": rng.randint(1, 5), "z_count": rng.choice((1, 1, 2, 3)), "len": rng.randint(1, 3 * n)}
    values |= {"dram_y": rng.randint(-4 * n, 4 * n), "dram_z": rng.randint(-4 * n, 8 * n)}
    values |= {"dst_y": rng.randint(-4 * n, 4 * n), "dst_z": rng.randint(-4 * n, 8 * n)}
    if rng.random() < 0.3:
        values["dram_y"] = values["dst_y"] = values["len"]
    if mode == "fill":
        values |= {"fill": 1, "fill_value": rng.randrange(256)}
    elif mode == "packed":
        values |= {"packed": 1, "len": rng.randint(1, 8 * n), "z_count": rng.randint(1, 6)}
        values |= {"dst_y": n * rng.randint(-4, 4), "dst_z": n * rng.choice((2, 2, rng.randint(-4, 4)))}
    elif mode == "transpose":
        rows = rng.randint(1, n)
        stride = rng.choice((rows, n, rows + rng.randint(0, n)))
        values |= {"transpose": 1, "len": rng.randint(1, n), "y_count": rows, "z_count": rng.randint(1, 2)}
        values |= {"dst_y": rng.choice((stride, rng.randint(-n, n))), "dst_z": rng.randint(0, 2 * n) * n}
    elif mode in ("param", "table"):
        values |= {"space": 1 if mode == "param" else 2, "len": n * rng.randint(1, 4)}
        values |= {"dst_y": n * rng.randint(0, 8), "dst_z": n * rng.randint(0, 8)}
    return place(ranges, rng, Unit.LOAD, values, n)


def random_store(ranges: CommandRanges, rng: random.Random) -> Issue | None:
    """Return a STORE, or None if it does not fit into the ranges."""
    n = ranges.config.n
    values = {"y_count": rng.randint(1, 5), "z_count": rng.choice((1, 1, 2, 3)), "len": rng.randint(1, 3 * n)}
    values |= {"dram_y": rng.randint(-4 * n, 4 * n), "dram_z": rng.randint(-4 * n, 8 * n)}
    values |= {"src_y": rng.randint(-4 * n, 4 * n), "src_z": rng.randint(-4 * n, 8 * n)}
    return place(ranges, rng, Unit.STORE, values, n)
