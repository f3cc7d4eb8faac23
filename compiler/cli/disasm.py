"""`mla disasm`: a program file, or all programs of a compiled network, as text that assembles to the same words."""

import argparse
from pathlib import Path

from compiler.util.files import read_input
from hw.errors import InputError

SUMMARY = "disassemble a program file, or a compiled network, to standard output"
EXAMPLE = "mla disasm copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("program", metavar="FILE", type=Path, help="what mla asm or mla compile wrote")


def run(args: argparse.Namespace) -> int:
    """Print the text; a damaged file is bad input."""
    from compiler.runtime.package.writer import SUFFIX, read_package
    from compiler.runtime.program_text import listing, program_text
    from hw.isa.program import Program

    if args.program.suffix.lower() == SUFFIX:
        print(listing(read_package(args.program)), end="")
        return 0
    try:
        text = program_text(Program.from_bytes(read_input(args.program)))
    except ValueError as error:
        raise InputError(f"{args.program}: {error}") from error
    print(text, end="" if text.endswith("\n") else "\n")
    return 0
