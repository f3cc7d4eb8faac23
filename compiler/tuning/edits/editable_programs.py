"""The programs of a schedule with edits apply_edits, as text overrides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.semaphores import Issued, synchronize
from compiler.codegen.split_programs import rolled
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.schedule.schedule import Schedule
from compiler.tuning.edits.edit import Edit, apply_edits
from compiler.tuning.edits.unroll import UnrolledProgram, unroll
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.program import Program

#: Tags by their own numbers.
_TAGS = range(64)


def unroll_all(programs: Sequence[Program]) -> list[UnrolledProgram] | None:
    """The commands of programs that run one after the other; None: not all of them are plain sequences."""
    found = [unroll(program) for program in programs]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def apply_program_edits(
    config: MlaConfig, programs: Sequence[UnrolledProgram], edits: Mapping[str, Sequence[Edit]]
) -> list[Program]:
    """The programs after edits, by name of the program; semaphores are made anew for all of them.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    programs : sequence of UnrolledProgram
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
        replace(each, commands=tuple(_fresh(apply_edits(config, each.commands, edits.get(each.name, ())))))
        for each in programs
    ]
    synchronize(config, [command for each in made for command in each.commands])
    return [_written(config, each) for each in made]


def _fresh(commands: Sequence[Issued]) -> list[Issued]:
    """Commands without semaphores."""
    return [Issued(each.unit, each.layer, each.values, each.region) for each in commands]


def _written(config: MlaConfig, one: UnrolledProgram) -> Program:
    program = rolled(config, one.name, one.commands, _TAGS, alone=one.alone)
    if len(program.words) > config.wis_words:
        raise InputError(
            f"program {one.name!r} of {len(program.words)} words: the store has {config.wis_words}"
        )
    return program


@dataclass(frozen=True)
class EditableProgram:
    """A program that can be edited.

    Parameters
    ----------
    unrolled : UnrolledProgram
        Its commands.
    layers : tuple of str
        The layers that it has a part in.
    """

    unrolled: UnrolledProgram
    layers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the program."""
        return self.unrolled.name

    def cycles(self, measured: Measurement) -> int:
        """Of its layers."""
        return sum(entry.cycles for entry in measured.layers if set(self.layers) & set(entry.names))


class EditablePrograms:
    """Edits of what a schedule without texts is compiled to.

    Parameters
    ----------
    network : Network
        Compiled under it.

    Attributes
    ----------
    pieces : list of Piece
        Its programs, in order; none if one of them is not a plain sequence of commands, or runs behind a guard.
    """

    def __init__(self, network: CompiledNetwork):
        self.config, self.schedule = network.config, replace(network.schedule, programs={})
        self.pieces: list[EditableProgram] = []
        self._stages: list[tuple[tuple[Program, ...], list[UnrolledProgram]]] = []
        layers = network.layers_of
        for code in network.codes:
            known = unroll_all(code.programs)
            if known is None or code.programs != code.all_programs:
                self.pieces, self._stages = [], []
                return
            self._stages.append((code.programs, known))
            self.pieces += [EditableProgram(each, layers[each.name]) for each in known]

    def with_edits(self, edits: Mapping[str, Sequence[Edit]]) -> Schedule:
        """The schedule with texts of all programs that are others after edits of some, by name.

        Raises
        ------
        EditError
            A program does not allow its edits.
        InputError
            One becomes too long for the instruction store, or all of them together where they were not before.
        """
        texts = {old.name: ProgramText(digest_of(old), program_text(new)) for old, new in self.changed(edits)}
        return replace(self.schedule, programs=texts)

    def changed(self, edits: Mapping[str, Sequence[Edit]]) -> list[tuple[Program, Program]]:
        """Programs that are others after edits of some, as they were and as they are; errors as in `with_edits`."""
        found: list[tuple[Program, Program]] = []
        for programs, known in self._stages:
            if any(edits.get(each.name) for each in known):
                found += zip(programs, apply_program_edits(self.config, known, edits), strict=True)
        return [(old, new) for old, new in found if old.words != new.words]

    def program(self, name: str, edits: Sequence[Edit]) -> Program:
        """A program after edits of it alone, or as it is without; errors as in `with_edits`."""
        programs, known = next(each for each in self._stages if name in {one.name for one in each[0]})
        made = apply_program_edits(self.config, known, {name: edits}) if edits else programs
        return next(each for each in made if each.name == name)
