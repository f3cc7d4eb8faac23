"""`mla bench`: the performance tables."""

import argparse
from pathlib import Path

from compiler.cli.options import add_json, add_memory, add_seed, add_target
from compiler.cli.output import check_report, report

SUMMARY = "measure a suite and print its table"
EXAMPLE = "mla bench gemm --case 64x64x64 --target n8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    # compiler.bench, which knows them, takes too long to load for every verb.
    parser.add_argument("suite", metavar="SUITE", help="gemm, conv or sim")
    parser.add_argument(
        "--case", metavar="NAME", help="only this one: MxNxK of a GEMM, HxWxC-O-k-s[-dw] of a convolution"
    )
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure; status 1 if a result differs from its reference."""
    from compiler.bench import format_table, run_suite
    from hw.config import load_target

    config = load_target(args.target)
    check_report(args.json)
    document = run_suite(
        args.suite,
        config,
        target=Path(args.target).stem,
        case=args.case,
        dram_latency=args.dram_latency,
        dram_bytes_per_cycle=args.dram_bytes_per_cycle or config.n,
        seed=args.seed,
    )
    report(document, format_table(document), args.json)
    return 0 if all(result["exact"] for result in document["results"]) else 1
