"""Options of verbs that take a program: its file, operands and DRAM windows."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.util.files import read_input
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from hw.isa.program import Program

_PERMISSIONS = {"r": 1, "w": 2, "rw": 3}
_ADDRESSES = 1 << 32


def add_call(parser: argparse.ArgumentParser) -> None:
    """Add `--operands` and `--window`; windows are (first byte, last byte, permissions), as in the validator."""
    parser.add_argument(
        "--operands",
        metavar="A,B,...",
        type=_operands,
        default=(),
        help="operands of the macro-instruction (default: none); --operands=-1,... if the first is negative",
    )
    parser.add_argument(
        "--window",
        metavar="START:LENGTH[:rw]",
        type=_window,
        action="append",
        default=[],
        help="DRAM range that the program may access, with r, w or rw (default: rw) (repeatable; default: no range)",
    )


def number(text: str) -> int:
    """Argument type: an integer in Python notation, such as 64 or 0x40."""
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must hold integers, not {shown(text)}") from None


def span(text: str) -> tuple[int, int]:
    """Argument type: `START:LENGTH`, a range of the 4 GiB address space."""
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
        The file cannot be read or is not a valid program; for assembly text the message names the line.
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
