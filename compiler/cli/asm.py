"""`mla asm`: assembles a micro-program into a loadable file."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.cli.options import check_files
from compiler.util.files import read_input, write_output
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from hw.isa.program import Program

SUMMARY = "assemble a micro-program"
EXAMPLE = "mla asm copy.s -o copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("source", metavar="FILE.s", type=Path, help="assembly text")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--target",
        metavar="T",
        help="reject a program that does not fit the instruction store of T (default: no limit)",
    )
    parser.add_argument(
        "--network",
        metavar="FILE.mla",
        type=Path,
        help="write this network with new programs; FILE.s is the edited output of mla disasm for the network",
    )


def run(args: argparse.Namespace) -> int:
    """Assemble the text and write the output file; error messages name the line."""
    check_files(args, "output")
    write_output(args.output, _in_network(args) if args.network else _program(args))
    return 0


def programs_in(path: Path) -> "list[Program]":
    """Assemble all programs of a text file.

    Raises
    ------
    InputError
        The file cannot be read, or one of its lines is invalid.
    """
    from compiler.runtime.program_text import programs_of
    from hw.isa.assembler import AssemblyError

    # A file name may contain bytes that are not text; the program's name may not.
    name = os.fsencode(path.stem).decode(errors="replace")
    try:
        return programs_of(read_input(path).decode(), name)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}") from error
    except AssemblyError as error:
        raise InputError(f"{path}:{str(error).removeprefix(f'{name}:')}") from error


def one_program_in(path: Path) -> "Program":
    """Assemble a text file with one program; raise InputError as `programs_in` does, or if there are several."""
    program, *more = programs_in(path)
    if more:
        line = f":{more[0].lines[0]}" if more[0].lines else ""
        raise InputError(
            f"{path}{line}: a second program, {shown(more[0].name)}, begins before this line; the file must hold one "
            "(use --network to put the programs of a network back into it)"
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
    """Return the compiled network, with its programs replaced by the programs of the text, as bytes."""
    from compiler.runtime.package_writer import read_package, to_bytes
    from compiler.runtime.program_text import with_programs

    if args.target:
        raise InputError("--target cannot be combined with --network: a compiled network has its own target")
    try:
        return to_bytes(with_programs(read_package(args.network), programs_in(args.source)))
    except InputError as error:
        text = str(error)
        named = text.startswith((f"{args.network}", f"{args.source}"))
        raise InputError(text if named else f"{args.source}: {text}") from None


def _check_size(words: int, target: str | None) -> None:
    """Raise ValueError if a program is empty or does not fit the instruction store of the target."""
    from hw.config import load_target

    if not words:
        raise ValueError("a program must have at least one instruction, not none")
    if target and words > (most := load_target(target).wis_words):
        raise ValueError(f"a program for {shown(target)} must be at most {most} words long, not {words}")
