"""Helpers for verbs with a program as argument: its file, operands and windows, and locations of errors in it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.util.files import read_input
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.runtime.stages import Stage
    from compiler.validate import ValidationError
    from hw.isa.program import Program

_PERMISSIONS = {"r": 1, "w": 2, "rw": 3}
_ADDRESSES = 1 << 32


def add_call(parser: argparse.ArgumentParser) -> None:
    """Add `--operands` and `--window`; a window is parsed to (first byte, last byte, permissions)."""
    parser.add_argument(
        "--operands",
        metavar="A,B,...",
        type=_operands,
        default=(),
        help="operands of the macro-instruction (default: none); write --operands=-1,... if the first is negative",
    )
    parser.add_argument(
        "--window",
        metavar="START:LENGTH[:rw]",
        type=_window,
        action="append",
        default=[],
        help="DRAM range that the program may read (r), write (w) or both (rw or omitted) (repeatable; default: none)",
    )


def number(text: str) -> int:
    """Parse an argument: an integer in Python notation, such as 64 or 0x40."""
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must hold integers, not {shown(text)}") from None


def span(text: str) -> tuple[int, int]:
    """Parse an argument, `START:LENGTH`: a range of the 4 GiB address space."""
    first, _, length = text.partition(":")
    start, size = number(first), number(length)
    if start < 0 or size < 1 or start + size > _ADDRESSES:
        raise argparse.ArgumentTypeError(f"must be a range within 0..{_ADDRESSES - 1:#x}, not {shown(text)}")
    return start, size


def _operands(text: str) -> tuple[int, ...]:
    return tuple(number(part) for part in text.split(",")) if text.strip() else ()


def _window(text: str) -> tuple[int, int, int]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or parts[2:] not in ([], *([name] for name in _PERMISSIONS)):
        raise argparse.ArgumentTypeError(
            f"must be START:LENGTH or START:LENGTH:r, w or rw, not {shown(text)}"
        )
    start, size = span(":".join(parts[:2]))
    return start, start + size - 1, _PERMISSIONS[parts[2] if len(parts) == 3 else "rw"]


def read_program(path: Path) -> "Program":
    """Read a program file, or assembly text with line numbers.

    Raises
    ------
    InputError
        The file cannot be read or is not a valid program. For assembly text, the message names the line.
    """
    from compiler.cli.asm import one_program_in
    from hw.isa.program import MAGIC, Program

    data = read_input(path)
    if path.suffix == ".s" and data[: len(MAGIC)] != MAGIC:
        return one_program_in(path)
    try:
        return Program.from_bytes(data)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def in_program(error: "ValidationError", programs: "list[Program]", paths: list[Path]) -> str:
    """Return file, line and text of the instruction, in one of `programs`, at which an error occurred."""
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
    """Return the location of an error in a compiled network: stage, program, layer, and line of `mla disasm` output."""
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
    """Return the distance of an instruction from the last branch or call target or loop end; empty if there is none."""
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
