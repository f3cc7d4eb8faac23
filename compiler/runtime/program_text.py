"""Conversion of the programs of a compiled network to assembly text, and back from edited text.

Each program begins with its `.name` line, in execution order. This module only checks that an edited program assembles
and fits the instruction store; the validator checks its safety.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from compiler.codegen.executable import StageExecutable
from compiler.codegen.split_programs import ProgramPart
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import Stage
from compiler.schedule.program_override import ProgramText, digest_of
from hw.errors import InputError, shown
from hw.isa.assembler import AssemblyError, assemble
from hw.isa.disassembler import disassemble
from hw.isa.micro_instruction import MicroOp, decode
from hw.isa.program import Program


def readable(name: str) -> str:
    """Replace characters of a program name that would end the line or begin a comment."""
    return "".join(c if c.isprintable() and c != ";" else "_" for c in name).strip() or "program"


def program_text(program: Program) -> str:
    """Disassemble a program, with its name in readable form."""
    return disassemble(replace(program, name=readable(program.name)))


def listing(network: CompiledNetwork) -> str:
    """Disassemble all programs of a network into one text."""
    return "\n".join(program_text(program) for code in network.codes for program in code.all_programs)


def programs_of(text: str, name: str) -> list[Program]:
    """Assemble the programs of a text, each of which begins with a `.name` line; errors refer to lines of the text.

    Raises
    ------
    AssemblyError
        A line is invalid; the message begins with `name:line:`.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.split(";")[0].split()[:1] == [".name"]]
    bounds = [0, *starts[1:], len(lines)]
    out = []
    for start, end in pairwise(bounds):
        # Leading empty lines preserve the line numbers; errors name the file, not the previous program.
        out.append(assemble("\n" * start + "\n".join(lines[start:end]), name))
    return out


def with_programs(network: CompiledNetwork, programs: Sequence[Program]) -> CompiledNetwork:
    """Replace all programs of a network.

    Raises
    ------
    InputError
        The programs differ from the network's programs in number or order, or one is empty or does not fit the
        instruction store.
    """
    own = [program for code in network.codes for program in code.all_programs]
    if len(programs) != len(own):
        raise InputError(f"the network has {len(own)} programs, the text {len(programs)}")
    for number, (old, new) in enumerate(zip(own, programs, strict=True), 1):
        if new.name != readable(old.name):
            raise InputError(f"program {number} must be {shown(readable(old.name))}, not {shown(new.name)}")
        if not 1 <= len(new.words) <= network.config.wis_words:
            raise InputError(
                f"program {shown(new.name)} must have 1..{network.config.wis_words} instructions, "
                f"not {len(new.words)}"
            )
    fresh = iter(programs)
    return replace(network, stages=tuple(_stage(stage, fresh) for stage in network.stages))


def with_texts(network: CompiledNetwork, texts: Mapping[str, ProgramText]) -> CompiledNetwork:
    """Replace some programs of a network by assembly texts, keyed by program name.

    Raises
    ------
    InputError
        There is no such program, the text was written as a replacement for another program, a line is invalid, or the
        assembled program is empty or does not fit the instruction store.
    """
    if not texts:
        return network
    own = [program for code in network.codes for program in code.programs]
    names = dict.fromkeys(program.name for program in own)
    for name in texts:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise InputError(f"schedule: program {name!r}: no program has this name, only {known}")
    return with_programs(
        network,
        [
            _assembled(program, texts[program.name])
            if program.name in texts
            else replace(program, name=readable(program.name))
            for program in own
        ],
    )


def _assembled(program: Program, given: ProgramText) -> Program:
    """Assemble the text that replaces a program."""
    name = readable(program.name)
    if given.replaces != digest_of(program):
        raise InputError(
            f"schedule: program {name!r}: its text replaces another program, made from another schedule or by another "
            "compiler version; remove the text"
        )
    try:
        made = replace(assemble(given.text, name), name=name)
    except AssemblyError as error:
        raise InputError(f"schedule: program {name!r}: line {str(error).removeprefix(f'{name}:')}") from None
    if made.words and tags_of(made) != tags_of(program):
        raise InputError(
            f"schedule: program {name!r}: its cycles must be counted for the same layers as those of the program that "
            f"it replaces: tags {_listed(program)} in this order, not {_listed(made)}"
        )
    return made


def tags_of(program: Program) -> list[tuple[int, int, int]]:
    """Return each counter tag of a program as registers and constant, starting with the macro-instruction's tag."""
    words = (decode(word) for word in program.words)
    tags = [(each["a"], each["b"], each["imm"]) for each in words if each["opcode"] == MicroOp.TAG]
    return [tag for tag, _ in groupby([(0, 0, ProgramPart(program, ()).tag), *tags])]


def _listed(program: Program) -> str:
    return ", ".join("of registers" if a or b else str(imm) for a, b, imm in tags_of(program))


def _stage(stage: Stage, programs: Iterator[Program]) -> Stage:
    """Replace the programs of a stage and of its subgraphs by the next programs of the iterator."""
    code = _code(stage.code, programs) if stage.code else None
    control = stage.control
    if control:
        bodies = tuple(
            replace(body, stages=tuple(_stage(inner, programs) for inner in body.stages))
            for body in control.bodies
        )
        control = replace(control, bodies=bodies)
    return replace(stage, code=code, control=control)


def _code(code: StageExecutable, programs: Iterator[Program]) -> StageExecutable:
    def fresh(old: Program) -> Program:
        return replace(next(programs), name=old.name)

    parts = []
    for part in code.parts:
        instead = tuple(replace(variant, program=fresh(variant.program)) for variant in part.instead)
        parts.append(replace(part, instead=instead, program=fresh(part.program)))
    same = all(
        new.words == old.words
        for part, other in zip(parts, code.parts, strict=True)
        for new, old in zip(part.programs, other.programs, strict=True)
    )
    return replace(code, parts=tuple(parts), peak=code.peak if same else None)
