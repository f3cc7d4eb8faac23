"""`mla bench`: the performance tables."""

import argparse
from pathlib import Path

from compiler.cli.file_conflicts import claim
from compiler.cli.options import add_json, add_memory, add_seed, add_target
from compiler.util.files import report

SUMMARY = "measure a suite and print its table"
STATUS = (
    "Status 1 if a result differs from its reference, or if `sim`, with its own case and n = 16, finds the chip "
    "simulated at less than a quarter of the speed of a bare array. That ratio hardly depends on the host; the "
    "bar of 150 kHz does, so its line says whether it is met and the status does not."
)
EXAMPLE = "mla bench gemm --case 64x64x64 --target n8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.description = f"{parser.description} {STATUS}"
    # compiler.bench, which knows them, takes too long to load for every verb.
    parser.add_argument("suite", metavar="SUITE", help="gemm, conv, nets, tiny, conditions or sim")
    parser.add_argument(
        "--case",
        metavar="NAME",
        help="only this one: MxNxK of a GEMM, HxWxC-O-k-s[-dw] of a convolution, a network's name",
    )
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure; the status is as STATUS says."""
    from compiler.bench import format_document, run_suite
    from hw.config import load_target

    claim(args)
    config = load_target(args.target)
    document = run_suite(
        args.suite,
        config,
        target=Path(args.target).stem,
        case=args.case,
        dram_latency=args.dram_latency,
        dram_bytes_per_cycle=args.dram_bytes_per_cycle or config.n,
        seed=args.seed,
    )
    report(document, format_document(document), args.json)
    exact = all(result["exact"] for result in document["results"])
    bars = document.get("bars")
    return 0 if exact and (bars is None or bars["bare_array_share_met"]) else 1
