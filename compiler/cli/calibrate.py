"""`mla calibrate`: trains the cost model of a hardware profile from measurements."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.options import (
    add_clock,
    add_json,
    add_memory,
    add_seed,
    add_target,
    check_files,
    dram_of,
    integer,
)
from compiler.util.files import report, write_output

if TYPE_CHECKING:
    from compiler.tuning.calibration.calibrate import Calibration

SUMMARY = "train the cost model of a target from measurements of small networks"
EXAMPLE = "mla calibrate --target n16 --dram-latency 400"
DEFAULT_SECONDS = 600
MAX_DEVICES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=integer(1),
        default=DEFAULT_SECONDS,
        help="measuring time in seconds; earlier measurements are also used (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        help="write the cost model to FILE (default: the cache, where mla tune looks for it)",
    )
    parser.add_argument(
        "--devices",
        metavar="D",
        type=integer(1, MAX_DEVICES),
        help="number of simulators that run in parallel (default: number of cores)",
    )
    parser.add_argument(
        "--host",
        action="store_true",
        help="measure instead how long operators take on this host, for the graph pass place_on_host",
    )
    add_clock(parser, "clock frequency that the accelerator is assumed to have (default: 100)")
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure networks, train the model, write it and print the report."""
    from compiler.cost.learned_model import journal_path, model_path
    from compiler.profile.measurement import HardwareProfile
    from compiler.tuning.calibration.calibrate import calibrate
    from compiler.tuning.calibration.collect import CalibrationJournal
    from compiler.tuning.layer_space import spaces_of
    from compiler.util.progress import log, progress
    from hw.config import load_target
    from hw.errors import InputError

    check_files(args, "out")
    if args.host:
        return _host(args)
    if args.clock is not None:
        raise InputError("--clock applies to --host")
    conditions = HardwareProfile(load_target(args.target), dram_of(args))
    journal = CalibrationJournal(journal_path(conditions, args.seed), conditions.key, args.seed)
    if journal.samples:
        log(f"continuing with {len(journal.samples)} measurements from {journal.path}")
    with progress("training"):  # measuring has its own progress line
        found = calibrate(conditions, args.seconds, journal, spaces_of, args.seed, args.devices, log)
    path = args.out or model_path(conditions)
    whole = {
        "target": Path(args.target).stem,
        "dram": {
            "latency": args.dram_latency,
            "bytes_per_cycle": conditions.rate,
            "throttle": args.throttle,
        },
        "seed": args.seed,
        "model": str(path),
        "bytes": found.model.save(path),
    } | _document(found)
    report(whole, _table(whole), args.json)
    return 0


def _host(args: argparse.Namespace) -> int:
    """Measure the costs of operators on the host, write them and print them."""
    from compiler.ir.identity import stored
    from compiler.options import HostCosts, host_costs_path
    from compiler.tuning.calibration.collect import measure_host_costs
    from compiler.util.tables import Column, figures, format_table
    from hw.config import load_target

    costs = measure_host_costs(load_target(args.target).n, args.clock or HostCosts().clock, args.seed)
    path, whole = args.out or host_costs_path(), stored(costs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, json.dumps(whole).encode() + b"\n")
    rows = [[op, f"{a:,.1f}", f"{b:,.3f}", f"{c:,.3f}"] for op, a, b, c in costs.operators]
    columns = [Column("operator"), *figures("us per node", "ns per element", "ns per product")]
    report(whole | {"file": str(path)}, format_table(columns, rows), args.json)
    return 0


def _document(found: "Calibration") -> dict[str, Any]:
    return {
        "samples": found.samples,
        "measured_now": found.fresh,
        "mape": found.everything.as_json()["mape"],
        "spearman": found.everything.as_json()["spearman"],
        "held_out": {"single": found.single.as_json(), "chain": found.chain.as_json()},
        "prediction_us": round(found.prediction_us, 1),
        "features_us": round(found.features_us, 1),
    }


def _table(document: dict[str, Any]) -> str:
    lines = [
        f"{name}: {each['count']} held-out measurements: {each['mape']:.2f}% mean error, "
        f"Spearman {each['spearman']:.4f}"
        for name, each in document["held_out"].items()
    ]
    return "\n".join(
        [
            *lines,
            f"{document['samples']} measurements, {document['measured_now']} of them new; a prediction takes "
            f"{document['prediction_us']} us, feature extraction {document['features_us']} us per layer",
            f"{document['model']}: {document['bytes']:,} bytes",
        ]
    )
