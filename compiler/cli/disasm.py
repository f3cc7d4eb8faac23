"""`mla disasm`: a program file back to text that assembles to the same words."""

import argparse
from pathlib import Path

from compiler.cli.output import read_input
from hw.errors import InputError

SUMMARY = "disassemble a program file to standard output"
EXAMPLE = "mla disasm copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("program", metavar="FILE", type=Path, help="what mla asm wrote")


def run(args: argparse.Namespace) -> int:
    """Print the text; a damaged file is bad input."""
    from hw.isa.disassembler import disassemble
    from hw.isa.program import Program

    try:
        text = disassemble(Program.from_bytes(read_input(args.program)))
    except ValueError as error:
        raise InputError(f"{args.program}: {error}") from error
    print(text, end="" if text.endswith("\n") else "\n")
    return 0
