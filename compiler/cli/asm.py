"""`mla asm`: a micro-program from text to a file that can be loaded."""

import argparse
import os
from pathlib import Path

from compiler.cli.output import read_input, write_output
from hw.errors import InputError

SUMMARY = "assemble a micro-program"
EXAMPLE = "mla asm copy.s -o copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("source", metavar="FILE.s", type=Path, help="assembly text")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="program file to write"
    )


def run(args: argparse.Namespace) -> int:
    """Assemble; an error in the text names its line."""
    from hw.isa.assembler import AssemblyError, assemble

    # A file name may hold bytes that are not text; the program's name may not.
    name = os.fsencode(args.source.stem).decode(errors="replace")
    try:
        program = assemble(read_input(args.source).decode(), name)
    except UnicodeDecodeError as error:
        raise InputError(f"{args.source} must be UTF-8 text: {error.reason} at byte {error.start}") from error
    except AssemblyError as error:
        raise InputError(f"{args.source}:{str(error).removeprefix(f'{name}:')}") from error
    try:
        data = program.to_bytes()
    except ValueError as error:
        raise InputError(f"{args.source}: {error}") from error
    write_output(args.output, data)
    return 0
