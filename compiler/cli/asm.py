"""`mla asm`: a micro-program from text to a file that can be loaded."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.cli.file_conflicts import claim
from compiler.util.files import read_input, write_output
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from hw.isa.program import Program

SUMMARY = "assemble a micro-program"
EXAMPLE = "mla asm copy.s -o copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("source", metavar="FILE.s", type=Path, help="assembly text")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--target", metavar="T", help="refuse a program too long for this one (default: too long for any)"
    )
    parser.add_argument(
        "--network",
        metavar="FILE.mla",
        type=Path,
        help="the text is what mla disasm made of this compiled network, edited: write the network with its programs",
    )


def run(args: argparse.Namespace) -> int:
    """Assemble; an error in the text names its line."""
    claim(args, "output")
    write_output(args.output, _in_network(args) if args.network else _program(args))
    return 0


def programs_in(path: Path) -> "list[Program]":
    """The programs of an assembly text.

    Raises
    ------
    InputError
        It cannot be read, or a line of it is wrong.
    """
    from compiler.runtime.program_text import programs_of
    from hw.isa.assembler import AssemblyError

    # A file name may hold bytes that are not text; the program's name may not.
    name = os.fsencode(path.stem).decode(errors="replace")
    try:
        return programs_of(read_input(path).decode(), name)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}") from error
    except AssemblyError as error:
        raise InputError(f"{path}:{str(error).removeprefix(f'{name}:')}") from error


def one_program_in(path: Path) -> "Program":
    """The one program of an assembly text; errors as in `programs_in`, or there are more."""
    program, *more = programs_in(path)
    if more:
        line = f":{more[0].lines[0]}" if more[0].lines else ""
        raise InputError(
            f"{path}{line}: a second program, {shown(more[0].name)}, begins before this line: programs of a network go "
            "back into it with mla asm --network"
        )
    return program


def _program(args: argparse.Namespace) -> bytes:
    program = one_program_in(args.source)
    try:
        _check_size(len(program.words), args.target)
        return program.to_bytes()
    except ValueError as error:
        raise InputError(f"{args.source}: {error}") from error


def _in_network(args: argparse.Namespace) -> bytes:
    """The compiled network with the text's programs."""
    from compiler.runtime.package.writer import read_package, to_bytes
    from compiler.runtime.program_text import with_programs

    if args.target:
        raise InputError("--target is for single programs: a compiled network has its own")
    try:
        return to_bytes(with_programs(read_package(args.network), programs_in(args.source)))
    except InputError as error:
        text = str(error)
        named = text.startswith((f"{args.network}", f"{args.source}"))
        raise InputError(text if named else f"{args.source}: {text}") from None


def _check_size(words: int, target: str | None) -> None:
    """ValueError for a program that no machine, or not this one, can load."""
    from hw.config import load_target

    if not words:
        raise ValueError("a program must have at least one instruction, this has none")
    if target and words > (most := load_target(target).wis_words):
        raise ValueError(f"a program for {shown(target)} must be at most {most} words long, not {words}")
