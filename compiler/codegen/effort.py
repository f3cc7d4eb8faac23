"""Cycles that commands take if nothing holds them up, from their fields."""

from math import prod

from compiler.codegen.command import Command, Step
from hw.isa.commands import FUSE_DIMS, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Unit

#: Cycles the sequencer needs for the commands of a step.
_STEP = 50


def cycles(command: Command, n: int) -> int:
    """Cycles of one command on a machine of n lanes, the one it was made for.

    MATRIX shifts a tile of weights in at least n cycles; LOAD and STORE move n bytes a cycle, lines apart.
    """
    if command.cycles is None:
        command.cycles = _cycles(command, n)
    return command.cycles


def _cycles(command: Command, n: int) -> int:
    get = {name: value for name, value in command.fields.items() if isinstance(value, int)}.get
    if command.unit == Unit.MATRIX:
        word = get("word")
        if word is not None and MATRIX_WORD.unpack(word)["dw"]:
            return get("oc_count", 1) * get("dw_len", 1)
        tiles = prod(get(f"{dim}_count", 1) for dim in ("oc", "ic", "ky", "kx"))
        return tiles * max(get("x_count", 1) * get("y_count", 1), n)
    if command.unit == Unit.FUSE:
        return prod(get(f"{dim}_count", 1) for dim in FUSE_DIMS)
    if command.unit == Unit.LOAD and LOAD_WORD.unpack(get("word", 0))["fill"]:
        return 0
    return get("z_count", 1) * get("y_count", 1) * -(-get("len", 1) // n)


def step_cycles(step: Step, n: int) -> int:
    """Cycles of a step whose loads are there: the slowest of its units."""
    units = (step.matrix, step.fuse, step.stores)
    return max(_STEP, *(sum(cycles(command, n) for command in unit) for unit in units))
