"""Programs of a network after edits of their commands."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.codegen.semaphores import Issued, synchronize
from compiler.codegen.split_programs import rolled
from compiler.tuning.edits.edit import Edit, applied
from compiler.tuning.edits.unroll import Unrolled, unrolled
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.program import Program

#: Tags by their own numbers.
_TAGS = range(64)


def taken_apart(programs: Sequence[Program]) -> list[Unrolled] | None:
    """The commands of programs that run one after the other; None: not all of them are plain sequences."""
    found = [unrolled(program) for program in programs]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def edited(
    config: MlaConfig, programs: Sequence[Unrolled], edits: Mapping[str, Sequence[Edit]]
) -> list[Program]:
    """The programs after edits, by name of the program; semaphores are made anew for all of them.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    programs : sequence of Unrolled
        All that run one after the other.
    edits : mapping
        For some of them what is done to their commands.

    Raises
    ------
    EditError
        A program does not allow its edits.
    InputError
        One becomes too long for the instruction store.
    """
    made = [
        replace(each, commands=tuple(_fresh(applied(config, each.commands, edits.get(each.name, ())))))
        for each in programs
    ]
    synchronize(config, [command for each in made for command in each.commands])
    return [_written(config, each) for each in made]


def _fresh(commands: Sequence[Issued]) -> list[Issued]:
    """Commands without semaphores."""
    return [Issued(each.unit, each.layer, each.values, each.region) for each in commands]


def _written(config: MlaConfig, one: Unrolled) -> Program:
    program = rolled(config, one.name, one.commands, _TAGS, alone=one.alone)
    if len(program.words) > config.wis_words:
        raise InputError(
            f"program {one.name!r} of {len(program.words)} words: the store has {config.wis_words}"
        )
    return program
