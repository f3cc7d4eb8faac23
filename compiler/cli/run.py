"""`mla run`: compile a model and run it."""

import argparse
import io
import sys
from pathlib import Path

from compiler.cli.options import add_json, add_memory, add_seed, add_target, integer
from compiler.cli.output import check_output, check_report, report, write_output

SUMMARY = "compile a model and run it"
EXAMPLE = "mla run network.tflite --input images.npy --json -"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .tflite file")
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=Path,
        help=".npy, or .npz with an array for each input; first axis: samples",
    )
    parser.add_argument("--limit", metavar="K", type=integer(1), help="only the first K samples")
    parser.add_argument(
        "--device", choices=("rtl", "golden"), default="rtl", help="what to run on (default: %(default)s)"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the outputs as .npz")
    parser.add_argument(
        "--strict", action="store_true", help="an operator that must run on the host is an error"
    )
    parser.add_argument(
        "--rounding", choices=("reference", "xnnpack"), default="reference",
        help="whose kernels of TFLite to reproduce (default: %(default)s)",
    )  # fmt: skip
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile, run, report."""
    import numpy as np

    from compiler.api import compile
    from compiler.cli.run_table import table
    from compiler.cli.samples import read_samples
    from compiler.run import STEADY, document, run_samples
    from compiler.runtime import open_device

    check_report(args.json)
    if args.out:
        check_output(args.out)
    network = compile(args.model, args.target, rounding=args.rounding, strict=args.strict)
    for name, why in network.host.items():
        _say(f"on the host: {name} ({network.graph.nodes[name].op}): {why}")
    samples = read_samples(network.graph, args.input, args.limit, args.seed)
    rate = args.dram_bytes_per_cycle or network.config.n
    with open_device(
        network, args.device, min(len(samples), STEADY), args.dram_latency, rate, _say
    ) as device:
        result = run_samples(device, network, samples, _say)
    head = {
        "model": str(args.model), "target": Path(args.target).stem, "device": args.device,
        "dram": {"latency": args.dram_latency, "bytes_per_cycle": rate},
    }  # fmt: skip
    whole = head | document(network, result)
    if args.out:
        buffer = io.BytesIO()
        np.savez(buffer, **result.outputs)  # pyright: ignore[reportArgumentType]: names are the user's
        write_output(args.out, buffer.getvalue())
    report(whole, table(whole), args.json)
    return 0


def _say(text: str) -> None:
    print(f"run: {text}", file=sys.stderr, flush=True)
