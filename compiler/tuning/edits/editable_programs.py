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


def templates_of(prepared: ModelCompiler, schedule: Schedule) -> dict[str, ProgramTemplate]:
    """Return templates of the layers whose commands the program texts of a schedule change, by name.

    Layers of programs that cannot be unrolled have no template, and neither have layers that fill several programs.
    """
    edited = {program.name: program for code in prepared.network(schedule).codes for program in code.programs}
    out = {}
    for _, programs in _plain_stages(prepared, schedule):
        owners = Counter(name for each in programs for name in each.layers)
        for each in programs:
            made = unroll(edited[each.program.name]) if each.program.name in schedule.programs else None
            if made is not None and not made.fenced:
                found = _templates(each, made.commands)
                out |= {name: template for name, template in found.items() if owners[name] == 1}
    return out


def with_templates(
    prepared: ModelCompiler, schedule: Schedule, templates: Mapping[str, ProgramTemplate]
) -> tuple[Schedule, frozenset[str]]:
    """Return a schedule with the texts of all programs that templates change, and the layers whose templates fit.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    schedule : Schedule
        Schedule without program texts.
    templates : mapping of str to ProgramTemplate
        Templates by the names of layers. A template that does not fit the commands of its layer is left out.

    Raises
    ------
    EditError
        No template fits.
    InputError
        A program, or all programs together, become too long for the instruction store.
    """
    config, texts, applied = prepared.config, dict[str, ProgramText](), set[str]()
    before = after = 0
    for generated, programs in _plain_stages(prepared, schedule):
        changed = [_instantiated(each, templates) for each in programs]
        applied |= {layer for _, layers in changed for layer in layers}
        made = _synchronized(config, [program for program, _ in changed])
        before, after = (
            count + sum(len(each.words) for each in part)
            for count, part in ((before, generated), (after, made))
        )
        for old, new in zip(generated, made, strict=True):
            if old.words != new.words:
                texts[old.name] = ProgramText(digest_of(old), program_text(new))
    if not texts:
        raise EditError("no template fits the commands of its layer")
    if before <= config.wis_words < after:
        raise InputError(
            f"the programs would have {after} words; the instruction store holds {config.wis_words}"
        )
    return replace(schedule, programs=texts), frozenset(applied)


@dataclass(frozen=True)
class _PlainProgram:
    """Generated program.

    Parameters
    ----------
    program : UnrolledProgram
        Commands of the program.
    layers : tuple of str
        Names of its layers.
    owners : tuple of str
        Name of the layer of each command; empty for commands that prefetch weights of layers of later programs.
    """

    program: UnrolledProgram
    layers: tuple[str, ...]
    owners: tuple[str, ...]

    def places(self, layer: str) -> list[int]:
        """Return the indices of a layer's commands."""
        return [at for at, owner in enumerate(self.owners) if owner == layer]


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
            names = dict(zip(part.layers, layers[program.name], strict=True))
            owners = tuple(names.get(next(numbers, -1), "") for _ in program.commands)
            out.append(_PlainProgram(program, layers[program.name], owners))
        yield generated, out


def _form(commands: Sequence[Issued]) -> str:
    """Return the digest of the units and the sizes of commands."""
    sizes = [(each.unit.name, [each.values[at] for at in _SIZE_INDICES[each.unit]]) for each in commands]
    return hashlib.sha256(repr(sizes).encode()).hexdigest()


def _templates(plain: _PlainProgram, commands: Sequence[Issued]) -> dict[str, ProgramTemplate]:
    """Return the templates of the layers of a program whose commands differ from the plain program's.

    Each command is described by the plain command with the fewest different fields.
    """
    own = plain.program.commands
    known: dict[tuple[Unit, int], list[int]] = {}
    for number, each in enumerate(own):
        known.setdefault((each.unit, each.region), []).append(number)
    tables = {key: np.array([own[at].values for at in numbers]) for key, numbers in known.items()}
    places = {layer: plain.places(layer) for layer in plain.layers}
    index = {at: number for each in places.values() for number, at in enumerate(each)}
    found: dict[str, list[TemplateCommand]] = {layer: [] for layer in plain.layers}
    last = dict.fromkeys(known, 0)
    for command in commands:
        key = command.unit, command.region
        if key not in tables:
            return {}
        different = (tables[key] != np.array(command.values)).sum(axis=1)
        distance = np.abs(np.arange(different.size) - last[key])
        last[key] = int(np.lexsort((distance, different))[0])
        at = known[key][last[key]]
        if plain.owners[at]:
            found[plain.owners[at]].append(TemplateCommand(index[at], _changes(own[at], command)))
    return {
        layer: ProgramTemplate(_form([own[at] for at in places[layer]]), tuple(made))
        for layer, made in found.items()
        if made and made != [TemplateCommand(number) for number in range(len(places[layer]))]
    }


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


def _instantiated(
    plain: _PlainProgram, templates: Mapping[str, ProgramTemplate]
) -> tuple[UnrolledProgram, list[str]]:
    """Return a program in which templates that fit replace the commands of their layers, and the names of these.

    The commands of each layer are ordered by its template. Among the commands of other layers, a command has the place
    of the earliest plain command from which it or a later one is derived.
    """
    own = plain.program.commands
    keyed, applied = list[tuple[int, Issued]](), list[str]()
    rest = set(range(len(own)))
    for layer in plain.layers:
        template, places = templates.get(layer), plain.places(layer)
        if template is None:
            continue
        try:
            made = _made([own[at] for at in places], template)
        except EditError:
            continue
        rest.difference_update(places)
        applied.append(layer)
        ahead = len(own)
        for each, command in zip(reversed(template.commands), reversed(made), strict=True):
            ahead = min(ahead, places[each.source])
            keyed.append((ahead, command))
    keyed = sorted([*reversed(keyed), *((at, own[at]) for at in sorted(rest))], key=lambda each: each[0])
    return replace(plain.program, commands=tuple(command for _, command in keyed)), applied


def _made(commands: Sequence[Issued], template: ProgramTemplate) -> list[Issued]:
    """Return the commands of a template, derived from a layer's commands."""
    if _form(commands) != template.form:
        raise EditError("the commands of the layer have other sizes than those of the template")
    return [_derived(commands, each) for each in template.commands]


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
