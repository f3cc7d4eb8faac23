"""`mla disasm`: prints programs as assembly text that assembles to the same words."""

import argparse
from pathlib import Path

from compiler.util.files import PACKAGE_SUFFIX, read_input
from hw.errors import InputError, printable

SUMMARY = "disassemble a program file, or a compiled network, to standard output"
EXAMPLE = "mla disasm copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("program", metavar="FILE", type=Path, help="output file of mla asm or mla compile")


def run(args: argparse.Namespace) -> int:
    """Print the assembly text; raise InputError for a damaged file."""
    from compiler.runtime.package_writer import read_package
    from compiler.runtime.program_text import listing, program_text
    from hw.isa.program import Program

    if args.program.suffix.lower() == PACKAGE_SUFFIX:
        print(printable(listing(read_package(args.program))), end="")
        return 0
    try:
        text = program_text(Program.from_bytes(read_input(args.program)))
    except ValueError as error:
        raise InputError(f"{args.program}: {error}") from error
    print(printable(text), end="" if text.endswith("\n") else "\n")
    return 0
