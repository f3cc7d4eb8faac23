"""Edits of the programs of a schedule, applied by replacing program texts."""

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
from compiler.tuning.edits.rewrites import UnrolledProgram, unroll
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.program import Program

#: Identity mapping of counter tags.
_TAGS = range(64)


def unroll_all(programs: Sequence[Program]) -> list[UnrolledProgram] | None:
    """Unroll programs that run in sequence; return None if one of them cannot be unrolled."""
    found = [unroll(program) for program in programs]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def apply_program_edits(
    config: MlaConfig, programs: Sequence[UnrolledProgram], edits: Mapping[str, Sequence[Edit]]
) -> list[Program]:
    """Apply edits to programs, and regenerate the semaphores of all programs.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    programs : sequence of UnrolledProgram
        All programs of a stage, in execution order.
    edits : mapping of str to sequence of Edit
        Edits of some of the programs, by program name.

    Raises
    ------
    EditError
        A program does not allow its edits.
    InputError
        A program becomes too long for the instruction store.
    """
    made = [
        replace(each, commands=tuple(_fresh(apply_edits(config, each.commands, edits.get(each.name, ())))))
        for each in programs
    ]
    synchronize(config, [command for each in made for command in each.commands])
    return [written_program(config, each) for each in made]


def _fresh(commands: Sequence[Issued]) -> list[Issued]:
    """Return copies of commands without semaphores."""
    return [Issued(each.unit, each.layer, each.values, each.region) for each in commands]


def written_program(config: MlaConfig, one: UnrolledProgram) -> Program:
    """Return the program that issues the commands of an unrolled program; raise InputError if it is too long."""
    program = rolled(config, one.name, one.commands, _TAGS, alone=one.alone)
    if len(program.words) > config.wis_words:
        raise InputError(
            f"program {one.name!r} has {len(program.words)} words; the instruction store holds {config.wis_words}"
        )
    return program


@dataclass(frozen=True)
class EditableProgram:
    """Program that can be edited.

    Parameters
    ----------
    unrolled : UnrolledProgram
        Commands of the program.
    layers : tuple of str
        Names of the layers that the program executes.
    """

    unrolled: UnrolledProgram
    layers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the program."""
        return self.unrolled.name

    def cycles(self, measured: Measurement) -> int:
        """Return the measured cycles of the program's layers."""
        return sum(entry.cycles for entry in measured.layers if set(self.layers) & set(entry.names))


class EditablePrograms:
    """Editable programs of a schedule that contains no program texts.

    Parameters
    ----------
    network : CompiledNetwork
        Network compiled under the schedule.

    Attributes
    ----------
    programs : list of EditableProgram
        Programs in execution order; empty if one of them cannot be unrolled or runs conditionally.
    """

    def __init__(self, network: CompiledNetwork):
        self.config, self.schedule = network.config, replace(network.schedule, programs={})
        self.programs: list[EditableProgram] = []
        self._stages: list[tuple[tuple[Program, ...], list[UnrolledProgram]]] = []
        layers = network.layers_of
        for code in network.codes:
            known = unroll_all(code.programs)
            if known is None or code.programs != code.all_programs:
                self.programs, self._stages = [], []
                return
            self._stages.append((code.programs, known))
            self.programs += [EditableProgram(each, layers[each.name]) for each in known]

    def with_edits(self, edits: Mapping[str, Sequence[Edit]]) -> Schedule:
        """Return the schedule with the texts of all programs that the edits change; edits are given by program name.

        Raises
        ------
        EditError
            A program does not allow its edits.
        InputError
            A program becomes too long for the instruction store.
        """
        texts = {old.name: ProgramText(digest_of(old), program_text(new)) for old, new in self.changed(edits)}
        return replace(self.schedule, programs=texts)

    def changed(self, edits: Mapping[str, Sequence[Edit]]) -> list[tuple[Program, Program]]:
        """Return the programs that edits change, as pairs of old and new; raise the errors of `with_edits`."""
        found: list[tuple[Program, Program]] = []
        for programs, known in self._stages:
            if any(edits.get(each.name) for each in known):
                found += zip(programs, apply_program_edits(self.config, known, edits), strict=True)
        return [(old, new) for old, new in found if old.words != new.words]

    def program(self, name: str, edits: Sequence[Edit]) -> Program:
        """Return a program after edits to this program only; raise the errors of `with_edits`."""
        programs, known = next(each for each in self._stages if name in {one.name for one in each[0]})
        made = apply_program_edits(self.config, known, {name: edits}) if edits else programs
        return next(each for each in made if each.name == name)
