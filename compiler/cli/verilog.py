"""`mla verilog`: writes the Verilog of the chip."""

import argparse
from pathlib import Path

from compiler.cli.options import add_target, check_files
from compiler.util.files import atomic_output

SUMMARY = "write the Verilog of the chip"
EXAMPLE = "mla verilog -o chip.v --target n8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="Verilog file to write"
    )
    add_target(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file atomically."""
    from compiler.util.progress import progress
    from cosim.rtl.verilog_cache import EMIT_SECONDS
    from hw.config import load_target
    from hw.verilog.writer import emit_verilog

    check_files(args, "output")
    config = load_target(args.target)
    what = f"generating the Verilog of the {config.n}x{config.n} chip"
    with atomic_output(args.output) as path, progress(what, seconds=EMIT_SECONDS):
        emit_verilog(config, path)
    return 0
