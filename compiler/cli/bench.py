"""`mla bench`: measures benchmark suites."""

import argparse
from pathlib import Path

from compiler.cli.exit_status import targets_status
from compiler.cli.options import (
    add_clock,
    add_json,
    add_memory,
    add_performance_targets,
    add_seed,
    add_target,
    check_files,
    performance_targets,
)
from compiler.util.files import report

SUMMARY = "measure a benchmark suite and print its table"
STATUS = (
    "Exit status 1 if a result differs from its reference or misses a target, or if suite `sim` (default case, n = 16) "
    "simulates the chip at less than a quarter of the speed of the bare array. That ratio hardly depends on the host. "
    "The 150 kHz goal does depend on it, so it is reported but does not affect the exit status."
)
EXAMPLE = "mla bench gemm --case 64x64x64 --target n8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.description = f"{parser.description} {STATUS}"
    # The names are not read from compiler.bench, because importing it takes too long.
    parser.add_argument(
        "suite", metavar="SUITE", help="suite to measure: gemm, conv, nets, blocks, tiny, conditions or sim"
    )
    parser.add_argument(
        "--case",
        metavar="NAME",
        help="measure only this case: MxNxK (GEMM), HxWxC-O-k-s[-dw] (convolution), or the name of a network or block",
    )
    add_clock(parser, "clock frequency, for targets that are times or rates")
    add_performance_targets(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the suite, and return the exit status that `STATUS` describes."""
    from compiler.bench import format_document, run_suite
    from compiler.options import target_lines
    from hw.config import load_target

    check_files(args)
    goals = performance_targets(args)
    config = load_target(args.target)
    document = run_suite(
        args.suite,
        config,
        target=Path(args.target).stem,
        case=args.case,
        dram_latency=args.dram_latency,
        dram_bytes_per_cycle=args.dram_bytes_per_cycle or config.beat_bytes,
        seed=args.seed,
        throttle=args.throttle,
    )
    lines = [format_document(document)]
    for result in document["results"]:
        found = goals.judged(result["cycles"], None, result.get("energy_uj"))
        result["performance_targets"] = found
        lines += [f"{result['name']}: {line}" for line in target_lines(found)]
    report(document, "\n".join(lines), args.json)
    status = targets_status(
        entry for result in document["results"] for entry in result["performance_targets"]
    )
    exact = all(result["exact"] for result in document["results"])
    bars = document.get("bars")
    return status if exact and (bars is None or bars["bare_array_share_met"]) else 1
