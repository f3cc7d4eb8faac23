"""Source location of a rejected instruction: line of the user's text or of the disassembly."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.runtime.stages import Stage
    from compiler.validate import ValidationError
    from hw.isa.program import Program


def in_program(error: "ValidationError", programs: "list[Program]", paths: list[Path]) -> str:
    """Return file, line and text of the instruction that an error is about, among single programs."""
    from hw.isa.disassembler import instruction

    index = next((index for index, each in enumerate(programs) if each.name == error.program), 0)
    program, path = programs[index], paths[index]
    if not 0 <= error.instruction < len(program.words):
        return f"{path}"
    text = f"`{instruction(program.words[error.instruction])}`"
    if error.line:
        return f"{path}:{error.line}: {text}"
    line = _line(program, error.instruction)
    near = _label(program, error.instruction)
    return f"{path}: instruction {error.instruction}{near} (line {line} of its disassembly), {text}"


def in_network(error: "ValidationError", network: "CompiledNetwork", path: Path) -> str:
    """Return the location in a compiled network: stage, program, layer, and line in the output of `mla disasm`."""
    from compiler.runtime.program_text import program_text
    from hw.isa.disassembler import instruction

    stage = list(network.walk())[error.stage or 0]
    assert stage.code is not None
    part = stage.code.parts[error.call % len(stage.code.parts)]
    program = next((each for each in part.programs if each.name == error.program), part.program)
    where = f"{path}: stage {error.stage or 0}, program {program.name!r}"
    if not 0 <= error.instruction < len(program.words):
        return where
    own = [each for code in network.codes for each in code.all_programs]
    before = own[: next(index for index, each in enumerate(own) if each is program)]
    line = sum(program_text(each).count("\n") + 1 for each in before) + _line(program, error.instruction)
    near = _label(program, error.instruction)
    return (
        f"{where}, instruction {error.instruction}{near} (line {line} of mla disasm), "
        f"`{instruction(program.words[error.instruction])}`{_layer(stage, program, error.instruction)}"
    )


def _line(program: "Program", index: int) -> int:
    """Return the line of an instruction in the disassembly of its program."""
    from compiler.runtime.program_text import program_text

    return program_text(program).count("\n") - len(program.words) + index + 1


def _label(program: "Program", index: int) -> str:
    """Describe an instruction by the nearest preceding target of a branch, call or loop end."""
    from hw.isa.micro_instruction import FORMS, LOOP_IMM, MicroOp, decode

    targets = set()
    for word in program.words:
        values = decode(word)
        if values["opcode"] not in FORMS:  # an unknown opcode, or the illegal word
            continue
        op = MicroOp(values["opcode"])
        if op is MicroOp.LOOP:
            targets.add(LOOP_IMM.unpack(values["imm"])["end"])
        elif "target" in FORMS[op].operands:
            targets.add(values["imm"])
    last = max((target for target in targets if target <= index), default=None)
    return "" if last is None else f", {index - last} after target {last}" if index > last else ", a target"


def _layer(stage: "Stage", program: "Program", index: int) -> str:
    """Return the layer of an instruction, given by the last TAG instruction before it."""
    from hw.isa.micro_instruction import MicroOp, decode

    before = [decode(word) for word in program.words[:index]]
    tags = [values["imm"] for values in before if values["opcode"] == MicroOp.TAG]
    names = [info.name for info in stage.infos if tags and info.tag == tags[-1]]
    return f", for layer {names[0]!r}" if names else ""
