"""`mla asm`: a micro-program from text to a file that can be loaded."""

import argparse
import os
from pathlib import Path

from compiler.cli.output import read_input, write_output
from hw.errors import InputError, shown

SUMMARY = "assemble a micro-program"
EXAMPLE = "mla asm copy.s -o copy.mlap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("source", metavar="FILE.s", type=Path, help="assembly text")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="program file to write"
    )
    parser.add_argument(
        "--target", metavar="T", help="refuse a program too long for this one (default: too long for any)"
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
        _check_size(len(program.words), args.target)
        data = program.to_bytes()
    except ValueError as error:
        raise InputError(f"{args.source}: {error}") from error
    write_output(args.output, data)
    return 0


def _check_size(words: int, target: str | None) -> None:
    """ValueError for a program that no machine, or not this one, can load."""
    from hw.config import load_target

    if not words:
        raise ValueError("a program must have at least one instruction, this has none")
    if target and words > (most := load_target(target).wis_words):
        raise ValueError(f"a program for {shown(target)} must be at most {most} words long, not {words}")
