"""`mla profile`: attributes the cycles of a model to layers and causes."""

import argparse
from pathlib import Path

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.file_conflicts import claim
from compiler.cli.options import add_clock, add_json, add_memory, add_samples, add_seed, add_target
from compiler.cli.warn import warnings
from compiler.util.files import report, write_output

SUMMARY = "run a model on the simulated chip and show where its cycles are spent"
EXAMPLE = "mla profile network.tflite --report network.html --trace network.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    add_samples(parser, f"a .tflite or .onnx file, a .mla file from mla compile, {REFERENCE}")
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        type=Path,
        help="write a timeline of the units during the first sample, for ui.perfetto.dev",
    )
    parser.add_argument("--report", metavar="FILE.html", type=Path, help="write an HTML report with charts")
    add_clock(parser)
    add_compile(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile, run with the probe, report."""
    from compiler.cache.content_store import ContentStore
    from compiler.cli.inputs import read_samples
    from compiler.cli.profile_table import table
    from compiler.cli.run import head, named, network_of
    from compiler.profile.timeline import spans
    from compiler.profile.trace import trace_json
    from compiler.runtime.device import open_rtl
    from compiler.runtime.report import back_to_back, document, run_samples
    from compiler.util.progress import say
    from compiler.visualize.profile_page import page

    claim(args, "trace", "report")
    network = network_of(args)
    samples = read_samples(network.sample, args.input, args.limit, args.seed, network, args.input_scale)
    rate = args.dram_bytes_per_cycle or network.config.n
    probe = bool(args.trace or args.report)
    together = back_to_back(network, len(samples))
    with (
        named(args.model),
        open_rtl(network, together, args.dram_latency, rate, say, probe=probe) as device,
    ):
        result = run_samples(
            device,
            network,
            samples,
            say,
            recorder=device if probe else None,
            proofs=None if args.no_cache else ContentStore(),
            rate=rate,
        )
    whole = head(args, "rtl", rate) | document(network, result, rate, args.clock)
    whole["warnings"] = warnings()
    if args.trace and result.recording:
        names = {layer["tag"]: ", ".join(layer["names"]) for layer in whole["layers"]}
        write_output(args.trace, trace_json(result.recording, names, network.config.n).encode())
    if args.report and result.recording:
        memory = {"DRAM": sum(code.memory for code in network.codes)}
        write_output(args.report, page(whole, spans(result.recording), memory=memory).encode())
    report(whole, table(whole), args.json)
    return 0
