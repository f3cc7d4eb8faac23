"""`mla fpga`: builds the bitstream of a board and a report."""

import argparse
from pathlib import Path

from compiler.cli.options import add_json, check_files, integer
from compiler.util.files import report

SUMMARY = "synthesize, place and route the chip for a board and write its bitstream"
EXAMPLE = "mla fpga --board ulx3s-85f"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("--board", metavar="B", required=True, help="board, for example ulx3s-85f")
    parser.add_argument(
        "--target",
        metavar="T",
        help="configuration of the chip (default: the target with the name of the board)",
    )
    parser.add_argument(
        "--seeds",
        metavar="K",
        type=integer(1),
        default=5,
        help="number of placement seeds; the worst result counts (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        help="folder for bitstream, logs and reports (default: build/BOARD)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Build the bitstream; return status 1 if the worst placement misses the clock of the board."""
    from compiler.util.progress import log, progress
    from hw.boards.board import find_board
    from hw.boards.flow import build, job_count
    from hw.boards.report import format_report
    from hw.config import load_target
    from hw.errors import InputError

    board = find_board(args.board)
    folder = args.output or Path("build") / board.name
    if args.json and args.json != "-" and Path(args.json).resolve().parent == folder.resolve():
        raise InputError(f"{args.json} must be outside {folder}, which the build manages")
    check_files(args)
    config = load_target(args.target or board.name)
    with progress(f"building for {board.name}", job_count(args.seeds), "jobs") as task:

        def ended(text: str, count: int) -> None:
            log(text)
            task.advance(count)

        result = build(board, config, seeds=args.seeds, folder=folder, progress=ended)
    report(result.to_document(), format_report(result), args.json)
    return 0 if result.meets_clock else 1
