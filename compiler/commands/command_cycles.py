"""Cycles of commands without stalls, computed from their fields."""

from math import ceil, prod

from compiler.commands.commands import BufferRef, Command, TileStep, UnitCycles
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, PAIRS, BSource, Post, Unit

#: Sequencer cycles for the commands of a step.
_STEP = 50


def cycles(command: Command, config: MlaConfig) -> int:
    """Return the cycles of a command on the machine for which the command was generated.

    MATRIX needs at least n cycles to shift in a tile of weights. LOAD and STORE transfer n bytes per cycle, and each
    line begins a new beat.
    """
    if command.cycles is None:
        command.cycles = _cycles(command, config)
    return command.cycles


def _cycles(command: Command, config: MlaConfig) -> int:
    n = config.n
    get = {name: value for name, value in command.fields.items() if isinstance(value, int)}.get
    if command.unit == Unit.MATRIX:
        word = get("word")
        if word is not None and MATRIX_WORD.unpack(word)["dw"]:
            return get("oc_count", 1) * get("dw_len", 1)
        tiles = prod(get(f"{dim}_count", 1) for dim in ("oc", "ic", "ky", "kx"))
        return tiles * max(get("x_count", 1) * get("y_count", 1), n)
    if command.unit == Unit.FUSE:
        return _fuse_cycles(command, [get(f"{dim}_count", 1) for dim in FUSE_DIMS], config)
    if command.unit == Unit.LOAD and LOAD_WORD.unpack(get("word", 0))["fill"]:
        return 0
    return get("z_count", 1) * get("y_count", 1) * -(-get("len", 1) // n)


def _fuse_cycles(command: Command, counts: list[int], config: MlaConfig) -> int:
    """Return the cycles of a FUSE command, which are limited by its reads or by its reciprocals."""
    src, stage = command.fields.get("src", 0), command.fields.get("stage", 0)
    assert isinstance(src, int)
    words = FUSE_SRC.unpack(src) | FUSE_STAGE.unpack(stage.base if isinstance(stage, BufferRef) else stage)
    reads = {"sp": 0, "acc": 0}
    reads["sp" if words["a_src"] else "acc"] += DTYPE_BYTES[words["a_dtype"]] if words["a_src"] else 1
    if words["b_src"]:
        sp = words["b_src"] == BSource.SP
        reads["sp" if sp else "acc"] += DTYPE_BYTES[words["b_dtype"]] if sp else 1
    if words["residual"]:
        reads["sp"] += DTYPE_BYTES[words["r_dtype"]]
    found = 0.0
    if words["post"] in PAIRS:
        results = prod(count for d, count in zip(FUSE_DIMS, counts, strict=True) if d in "nyx")
        found = results * config.reciprocal_cycles(root=words["post"] != Post.RECIP)
    return max(prod(counts) * max(reads.values()), ceil(found))


def unit_cycles(step: TileStep, config: MlaConfig) -> UnitCycles:
    """Return the cycles of a step by unit, excluding loads, on the machine for which the step was generated."""
    if step.unit_cycles is None:
        units = (step.matrix, step.fuse, step.stores)
        matrix, fuse, stores = (sum(cycles(command, config) for command in unit) for unit in units)
        step.unit_cycles = UnitCycles(matrix, stores, max(_STEP, matrix, fuse, stores))
    return step.unit_cycles
