"""Edits and templates of the programs of a schedule, applied by replacing program texts.

A template describes an accepted program by its differences from the generated one, so that it can be applied to the
same layers in another network, where addresses, weights and semaphores differ.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.codegen.semaphores import Issued, synchronize
from compiler.codegen.split_programs import rolled
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramTemplate, ProgramText, TemplateCommand, digest_of
from compiler.schedule.schedule import Schedule
from compiler.tuning.edits.edit import Edit, EditError, apply_edits, put
from compiler.tuning.edits.rewrites import UnrolledProgram, unroll
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
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
        replace(each, commands=tuple(apply_edits(config, each.commands, edits.get(each.name, ()))))
        for each in programs
    ]
    return _synchronized(config, made)


def _synchronized(config: MlaConfig, programs: Sequence[UnrolledProgram]) -> list[Program]:
    """Return programs that issue the given commands, with new semaphores; `programs` are all those of a stage."""
    made = [replace(each, commands=tuple(_fresh(each.commands))) for each in programs]
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
    stages : list of (tuple of Program, list of UnrolledProgram)
        The same programs as generated and unrolled, for each stage.
    """

    def __init__(self, network: CompiledNetwork):
        self.config, self.schedule = network.config, replace(network.schedule, programs={})
        self.programs: list[EditableProgram] = []
        self.stages: list[tuple[tuple[Program, ...], list[UnrolledProgram]]] = []
        layers = network.layers_of
        for code in network.codes:
            known = unroll_all(code.programs)
            if known is None or code.programs != code.all_programs:
                self.programs, self.stages = [], []
                return
            self.stages.append((code.programs, known))
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
        for programs, known in self.stages:
            if any(edits.get(each.name) for each in known):
                found += zip(programs, apply_program_edits(self.config, known, edits), strict=True)
        return [(old, new) for old, new in found if old.words != new.words]

    def program(self, name: str, edits: Sequence[Edit]) -> Program:
        """Return a program after edits to this program only; raise the errors of `with_edits`."""
        programs, known = next(each for each in self.stages if name in {one.name for one in each[0]})
        made = apply_program_edits(self.config, known, {name: edits}) if edits else programs
        return next(each for each in made if each.name == name)


#: Fields that contain several values, of which a template states the bits that change.
_PACKED = frozenset({(Unit.LOAD, "word"), (Unit.MATRIX, "word"), (Unit.FUSE, "src"), (Unit.FUSE, "stage")})
#: Fields that are sizes and no addresses, in addition to all counts.
_SIZES = frozenset({"len", "lanes", "lanes_tail", "k_rows", "k_tail", "n_cols", "n_tail"})
#: Names of the fields of each unit, and indices of those that are sizes.
_NAMES = {unit: tuple(item.name for item in UNIT_FIELDS[unit]) for unit in Unit}
_SIZE_INDICES = {
    unit: [at for at, name in enumerate(names) if name.endswith("_count") or name in _SIZES]
    for unit, names in _NAMES.items()
}


def templates_of(prepared: ModelCompiler, schedule: Schedule) -> dict[tuple[str, ...], ProgramTemplate]:
    """Return templates of the programs whose commands the texts of a schedule change, by the names of their layers.

    Programs that cannot be unrolled have no template, and neither have layers that fill several programs.
    """
    edited = {program.name: program for code in prepared.network(schedule).codes for program in code.programs}
    out = {}
    for _, programs in _plain_stages(prepared, schedule):
        owners = Counter(each.layers for each in programs)
        for each in programs:
            made = unroll(edited[each.program.name])
            single = owners[each.layers] == 1 and each.program.name in schedule.programs
            if made is not None and not made.fenced and single:
                template = _template(each, made.commands)
                if template is not None:
                    out[each.layers] = template
    return out


def with_templates(
    prepared: ModelCompiler, schedule: Schedule, templates: Mapping[tuple[str, ...], ProgramTemplate]
) -> Schedule:
    """Return a schedule with the texts of all programs that templates change.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    schedule : Schedule
        Schedule without program texts.
    templates : mapping of tuple of str to ProgramTemplate
        Templates by the names of the layers of a program.

    Raises
    ------
    EditError
        A template does not fit the program of its layers, or there is no such program.
    InputError
        A program, or all programs together, become too long for the instruction store.
    """
    config, texts, missing = prepared.config, dict[str, ProgramText](), set(templates)
    before = after = 0
    for generated, programs in _plain_stages(prepared, schedule):
        changed = [
            replace(each.program, commands=tuple(_instantiated(each, templates[each.layers])))
            if each.layers in templates
            else each.program
            for each in programs
        ]
        missing -= {each.layers for each in programs}
        made = _synchronized(config, changed)
        before, after = (
            count + sum(len(each.words) for each in part)
            for count, part in ((before, generated), (after, made))
        )
        for old, new in zip(generated, made, strict=True):
            if old.words != new.words:
                texts[old.name] = ProgramText(digest_of(old), program_text(new))
    if missing:
        raise EditError(f"no program consists of the layers {', '.join(sorted(missing)[0])}")
    if before <= config.wis_words < after:
        raise InputError(
            f"the programs would have {after} words; the instruction store holds {config.wis_words}"
        )
    return replace(schedule, programs=texts)


@dataclass(frozen=True)
class _PlainProgram:
    """Generated program, with the names of its layers and a flag of each command that belongs to these layers."""

    program: UnrolledProgram
    layers: tuple[str, ...]
    own: tuple[bool, ...]

    @property
    def commands(self) -> list[Issued]:
        """Commands of the program's own layers, without those that prefetch weights of others."""
        return [each for each, own in zip(self.program.commands, self.own, strict=True) if own]


def _plain_stages(
    prepared: ModelCompiler, schedule: Schedule
) -> Iterator[tuple[tuple[Program, ...], list[_PlainProgram]]]:
    """Yield the programs of each stage that the code generator makes for a schedule; none if they are not editable."""
    record = CompilationTrace()
    network = prepared.network(replace(schedule, programs={}), record)
    layers, editable = network.layers_of, EditablePrograms(network)
    for (generated, programs), code, stream in zip(
        editable.stages, network.codes, record.streams, strict=False
    ):
        numbers = iter([command.layer for command in stream.commands])
        out = []
        for part, program in zip(code.parts, programs, strict=True):
            own = tuple(next(numbers, -1) in part.layers for _ in program.commands)
            out.append(_PlainProgram(program, layers[program.name], own))
        yield generated, out


def _form(commands: Sequence[Issued]) -> str:
    """Return the digest of the units and the sizes of commands."""
    sizes = [(each.unit.name, [each.values[at] for at in _SIZE_INDICES[each.unit]]) for each in commands]
    return hashlib.sha256(repr(sizes).encode()).hexdigest()


def _template(plain: _PlainProgram, commands: Sequence[Issued]) -> ProgramTemplate | None:
    """Return the template of a program that issues the given commands; None if they are those of the plain program.

    Each command is described by the plain command with the fewest different fields.
    """
    mine = np.cumsum(plain.own) - 1
    known: dict[tuple[Unit, int], list[int]] = {}
    for number, each in enumerate(plain.program.commands):
        known.setdefault((each.unit, each.region), []).append(number)
    tables = {
        key: np.array([plain.program.commands[at].values for at in numbers]) for key, numbers in known.items()
    }
    out, last = [], dict.fromkeys(known, 0)
    for command in commands:
        key = command.unit, command.region
        if key not in tables:
            return None
        different = (tables[key] != np.array(command.values)).sum(axis=1)
        distance = np.abs(np.arange(different.size) - last[key])
        best = int(np.lexsort((distance, different))[0])
        last[key] = best
        at = known[key][best]
        if plain.own[at]:
            out.append(TemplateCommand(int(mine[at]), _changes(plain.program.commands[at], command)))
    if out == [TemplateCommand(number) for number in range(len(plain.commands))] or not out:
        return None
    return ProgramTemplate(_form(plain.commands), tuple(out))


def _changes(source: Issued, command: Issued) -> tuple[tuple[str, int], ...]:
    unit = source.unit
    each = zip(_NAMES[unit], source.values, command.values, strict=True)
    return tuple(
        sorted(
            (name, old ^ new if (unit, name) in _PACKED else new - old)
            for name, old, new in each
            if old != new
        )
    )


def _instantiated(plain: _PlainProgram, template: ProgramTemplate) -> list[Issued]:
    """Return the commands of a template for a plain program, together with the prefetches of other layers.

    Each prefetch follows the last command that is derived from one that preceded it.
    """
    mine = plain.commands
    if _form(mine) != template.form:
        raise EditError(
            f"the commands of program {plain.program.name!r} have other sizes than those of the template"
        )
    out = [_derived(mine, each) for each in template.commands]
    sources = [each.source for each in template.commands]
    before = 0
    foreign: list[tuple[int, Issued]] = []
    for command, own in zip(plain.program.commands, plain.own, strict=True):
        if own:
            before += 1
        else:
            place = max((at + 1 for at, source in enumerate(sources) if source < before), default=0)
            foreign.append((place, command))
    for place, command in reversed(foreign):
        out.insert(place, command)
    return out


def _derived(commands: Sequence[Issued], each: TemplateCommand) -> Issued:
    if each.source >= len(commands):
        raise EditError(f"there is no command {each.source}, only {len(commands)}")
    source = commands[each.source]
    values = dict(zip(_NAMES[source.unit], source.values, strict=True))
    new = {}
    for name, change in each.changes:
        if name not in values:
            raise EditError(f"a command of {source.unit.name} has no field {name}")
        new[name] = values[name] ^ change if (source.unit, name) in _PACKED else values[name] + change
    try:
        return put(source, **new)
    except ValueError as error:
        raise EditError(str(error)) from None
