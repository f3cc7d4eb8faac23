"""A stage as one program, which one opcode can stand for."""

from dataclasses import replace

from compiler.codegen.code import Code
from compiler.lower.lower import Lowered
from compiler.schedule.schedule import Schedule
from hw.errors import InputError


def single(schedule: Schedule, lowered: Lowered, skip: str | None) -> Schedule:
    """The schedule with all layers in one program, and tags that do not depend on it.

    The layer that makes the tensor `skip` is not drained in parts: what follows is decided by what one command counts.
    """
    last = {layer.name for layer in lowered.layers if layer.y == skip}
    layers = {
        name: replace(layer, joined=True, counted=True, taper=layer.taper and name not in last)
        for name, layer in schedule.layers.items()
    }
    return replace(schedule, layers=layers)


def check_single(name: str, code: Code) -> None:
    """Refuse code that had to be cut.

    Raises
    ------
    InputError
        The program is longer than the instruction store.
    """
    if len(code.parts) > 1:
        words = sum(len(program.words) for program in code.programs)
        raise InputError(
            f"{name} must be one program: its {words:,} instructions are more than the "
            f"{code.config.wis_words:,} of the instruction store"
        )
