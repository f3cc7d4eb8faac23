"""Configuration of a machine: all its sizes and options, checked on construction."""

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from hw.errors import InputError, did_you_mean, shown

_Variant = TypeVar("_Variant")

TARGETS = Path(__file__).parent / "targets"
#: Target used if none is given.
DEFAULT_TARGET = "n16"

#: Fixed limits of the encodings (docs/machine.md).
SP_ADDR_BITS = 20
ACC_ADDR_BITS = 16
#: Maximum width of the bus in bytes; a ring slot and an image are whole numbers of beats of up to this many bytes.
MAX_BEAT_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class MlaConfig:
    """Sizes and options of one machine.

    Parameters
    ----------
    n : int
        Number of lanes, and of rows and columns of the array: 4, 8, 16 or 32.
    bus_bytes : int
        Width of the bus in bytes: n, or 2 * n if n is 4, 8 or 16; 0 means n, and n is stored as 0. `beat_bytes` is the
        width in any case.
    sp_bytes, acc_bytes : int
        Scratchpad and accumulator size in bytes; powers of two.
    sp_banks, acc_banks : int
        Number of banks of each memory, selected by the high address bits: 2, 4 or 8.
    wis_words : int
        Size of the writable instruction store in micro-instructions of 64 bits.
    segments : int
        Number of entries of the segment table.
    opcodes, candidates : int
        Number of opcodes in the dispatch table, and of candidate programs of each opcode.
    queue_depth : int
        Capacity of each unit's queue in commands.
    param_slots, table_slots : int
        Number of requantization parameter slots (n lanes each), and of tables of 256 entries.
    weight_rows : int
        Number of rows of weights that enter the array per cycle: 1 or 2. A tile takes n / weight_rows cycles to enter.
    packed_loads : int
        1: LOAD expands packed weights; 0: packed loads are illegal.
    wide : int
        1: MATRIX has a wide mode, in which each weight byte contains two int4 weights and a row 2 * n activations, and
        scaled sums; 0: commands with `wide` or `scaled` are illegal, and the array has no second multipliers.
    sparse : int
        1: MATRIX has a sparse mode, in which at most two of four weights of a column are not 0 and a row has 2 * n
        activations; 0: commands with `sparse` are illegal. Requires `wide`.
    line_depth : int
        Depth of each line buffer for depthwise commands, in pixels.
    fuse_rate : int
        Number of cycles that the FUSE pipeline takes for one row: 1, 2, 4 or 8 (at most n). The pipeline has n /
        fuse_rate lanes.
    reciprocal_units : int
        Number of reciprocals and reciprocal roots that FUSE computes at the same time: a power of two in 1..16.
    tags : int
        Number of tags, each with a separate set of counters.
    loop_depth, call_depth : int
        Maximum nesting depth of hardware loops and of calls.
    max_burst : int
        Longest AXI burst in beats.
    windows : int
        Number of DRAM protection windows.
    serial_commands : int
        0: a command is transferred to its unit's queue in one cycle; 1: it is transferred as words of 32 bits, one per
        cycle, with far fewer wires.
    pipelined : int
        1: control logic takes more cycles, for a higher clock frequency on FPGAs. An instruction then takes four
        cycles, and there is an idle cycle between two commands of a unit. Requires `serial_commands` and a `fuse_rate`
        of 4 or 8.
    """

    n: int = 16
    bus_bytes: int = 0
    sp_bytes: int = 256 * 1024
    acc_bytes: int = 64 * 1024
    sp_banks: int = 8
    acc_banks: int = 4
    wis_words: int = 2048
    segments: int = 16
    opcodes: int = 32
    candidates: int = 4
    queue_depth: int = 4
    param_slots: int = 64
    table_slots: int = 4
    weight_rows: int = 2
    packed_loads: int = 1
    wide: int = 1
    sparse: int = 1
    line_depth: int = 256
    fuse_rate: int = 1
    reciprocal_units: int = 8
    tags: int = 16
    loop_depth: int = 4
    call_depth: int = 4
    max_burst: int = 64
    windows: int = 4
    serial_commands: int = 0
    pipelined: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InputError(f"{field.name} must be an integer, not {shown(value)}")
        self._check_set("n", (4, 8, 16, 32))
        self._check_set("bus_bytes", (0, self.n, 2 * self.n) if 2 * self.n <= MAX_BEAT_BYTES else (0, self.n))
        if self.bus_bytes == self.n:
            object.__setattr__(self, "bus_bytes", 0)  # equal machines have equal configurations
        self._check_set("fuse_rate", tuple(r for r in (1, 2, 4, 8) if r <= self.n))
        self._check_set("weight_rows", (1, 2))
        self._check_set("packed_loads", (0, 1))
        self._check_set("wide", (0, 1))
        self._check_set("sparse", (0, 1))
        if self.sparse and not self.wide:
            raise InputError("sparse = 1 needs wide = 1, not 0; a machine without wide mode has sparse = 0")
        self._check_set("serial_commands", (0, 1))
        self._check_set("pipelined", (0, 1))
        if self.pipelined and not (self.serial_commands and self.fuse_rate >= 4):
            raise InputError(
                f"pipelined = 1 needs serial_commands = 1 and a fuse_rate of 4 or 8, not "
                f"{self.serial_commands} and {self.fuse_rate}"
            )
        self._check_set("sp_banks", (2, 4, 8))
        self._check_set("acc_banks", (2, 4, 8))
        self._check_power("sp_bytes", 16 * self.n * self.sp_banks, 1 << (SP_ADDR_BITS - 1))
        self._check_power("acc_bytes", 16 * 4 * self.n * self.acc_banks, 4 * self.n << (ACC_ADDR_BITS - 1))
        self._check_power("wis_words", 256, 16384)
        self._check_power("segments", 4, 64)
        self._check_power("opcodes", 8, 64)
        self._check_power("candidates", 2, 4)
        self._check_power("param_slots", 4, 256)
        self._check_power("table_slots", 1, 8)
        self._check_power("line_depth", 32, 1024)
        self._check_power("reciprocal_units", 1, 16)
        self._check_power("tags", 2, 64)
        self._check_power("max_burst", 4, 256)
        self._check_range("queue_depth", 2, 16)
        self._check_range("loop_depth", 2, 8)
        self._check_range("call_depth", 2, 8)
        self._check_range("windows", 1, 8)

    def _check_set(self, name: str, allowed: tuple[int, ...]) -> None:
        if getattr(self, name) not in allowed:
            choices = ", ".join(map(str, allowed))
            raise InputError(f"{name} must be one of {choices}, not {shown(getattr(self, name))}")

    def _check_range(self, name: str, low: int, high: int) -> None:
        if not low <= getattr(self, name) <= high:
            raise InputError(f"{name} must be in {low}..{high}, not {shown(getattr(self, name))}")

    def _check_power(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not (low <= value <= high and value & (value - 1) == 0):
            raise InputError(f"{name} must be a power of two in {low}..{high}, not {shown(value)}")

    def variant(self, direct: _Variant, pipelined: _Variant) -> _Variant:
        """Return the implementation of a component for this machine, chosen by `pipelined`.

        Parameters
        ----------
        direct : type
            Component of machines without `pipelined`.
        pipelined : type
            Component of machines with `pipelined`, with the same interface.
        """
        return pipelined if self.pipelined else direct

    @property
    def reciprocal_digits(self) -> int:
        """Number of binary digits that a reciprocal unit computes in a cycle, limited by the clock period if
        `pipelined`.
        """
        return 1 if self.pipelined else 2

    def reciprocal_cycles(self, *, root: bool) -> float:
        """Return the mean number of cycles from result to result of reciprocals, or of reciprocal roots, while all
        units are in use.
        """
        # A quotient has 31 digits and a root 32; other cycles accept, normalize and return a number.
        cycles = 7 - (-31 // self.reciprocal_digits)
        if root:
            cycles += 1 + 32 // self.reciprocal_digits
        return cycles / self.reciprocal_units

    @property
    def beat_bytes(self) -> int:
        """Width of the bus in bytes: number of bytes of a beat."""
        return self.bus_bytes or self.n

    @property
    def sp_rows(self) -> int:
        """Number of scratchpad rows of n bytes."""
        return self.sp_bytes // self.n

    @property
    def tile_cycles(self) -> int:
        """Minimum number of cycles from weight tile to weight tile."""
        return self.n // self.weight_rows

    @property
    def acc_rows(self) -> int:
        """Number of accumulator rows of n int32 lanes."""
        return self.acc_bytes // (4 * self.n)


def target_names() -> list[str]:
    """Return the names of the targets (the TOML files in `TARGETS`), sorted so that numbers in the names are in
    numerical order.
    """
    names = [path.stem for path in TARGETS.glob("*.toml")]
    return sorted(
        names, key=lambda name: [p.zfill(8) if p.isdecimal() else p for p in re.split(r"(\d+)", name)]
    )


def targets_by_lanes() -> dict[int, str]:
    """Return the targets named "n" plus their number of lanes; the keys are the numbers of lanes in ascending order."""
    lanes = {load_target(name).n: name for name in target_names() if re.fullmatch(r"n\d+", name)}
    return dict(sorted(lanes.items()))


def load_target(name: str) -> MlaConfig:
    """Return the configuration of a target in `TARGETS`, or of a TOML file with the same fields.

    Parameters
    ----------
    name : str
        One of `target_names()`, or the path of a .toml file.

    Raises
    ------
    InputError
        The name is unknown, the file cannot be read, a field is unknown, or a value is out of range.
    """
    path = _target_file(name)
    values = _read_toml(path)
    known_fields = {f.name for f in fields(MlaConfig)}
    for key in values:
        if key not in known_fields:
            raise InputError(
                f"{path}: unknown field {shown(key)}; fields are {', '.join(sorted(known_fields))}"
            )
    try:
        return MlaConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _target_file(name: str) -> Path:
    path = TARGETS / f"{name}.toml"
    try:
        if path.is_file():
            return path
        path = Path(name)
        if path.suffix == ".toml" and path.exists():
            return path
    except (OSError, ValueError):  # a file cannot have this name
        pass
    raise InputError(
        f"target must be one of {' '.join(target_names())} or an existing .toml file, not {shown(name)}"
        f"{did_you_mean(str(name), target_names())}"
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"target file {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"target file {path} cannot be read: {error}") from error
    except ValueError as error:
        raise InputError(
            f"target file {path} cannot be read: it contains a number of too many digits"
        ) from error
    except RecursionError as error:
        raise InputError(f"target file {path} cannot be read: its values are nested too deeply") from error
