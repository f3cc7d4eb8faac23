"""`mla calibrate`: a performance model of a machine, made from measurements."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.file_conflicts import claim
from compiler.cli.options import add_json, add_memory, add_seed, add_target, integer
from compiler.util.files import report

if TYPE_CHECKING:
    from compiler.tuning.calibration.calibrate import Calibration

SUMMARY = "measure small networks on the simulated chip, and learn to predict the cycles of others"
EXAMPLE = "mla calibrate --target n16 --dram-latency 400"
_SECONDS = 600
_DEVICES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=integer(1),
        default=_SECONDS,
        help="of measuring, with what was measured before on top (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        help="write the model here (default: where mla tune finds it)",
    )
    parser.add_argument(
        "--devices",
        metavar="D",
        type=integer(1, _DEVICES),
        help="simulators at work at a time (default: the cores)",
    )
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, learn, write, report."""
    from compiler.cost.learned.model_lookup import journal_path, model_path
    from compiler.options import DramTiming
    from compiler.profile.hardware_profile import HardwareProfile
    from compiler.tuning.calibration.calibrate import calibrate
    from compiler.tuning.calibration.journal import CalibrationJournal
    from compiler.tuning.space.layer_space import spaces_of
    from compiler.util.progress import progress, say
    from hw.config import load_target

    claim(args, "out")
    conditions = HardwareProfile(
        load_target(args.target), DramTiming(args.dram_latency, args.dram_bytes_per_cycle)
    )
    journal = CalibrationJournal(journal_path(conditions, args.seed), conditions.key, args.seed)
    if journal.samples:
        say(f"going on from {len(journal.samples)} measurements in {journal.path}")
    with progress("learning"):  # the measurements before that show their own
        found = calibrate(conditions, args.seconds, journal, spaces_of, args.seed, args.devices, say)
    path = args.out or model_path(conditions)
    whole = {
        "target": Path(args.target).stem,
        "dram": {"latency": args.dram_latency, "bytes_per_cycle": conditions.rate},
        "seed": args.seed,
        "model": str(path),
        "bytes": found.model.save(path),
    } | _document(found)
    report(whole, _table(whole), args.json)
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
        f"{name:<7} {each['count']:>5} measurements kept out: {each['mape']:.2f}% mean error, "
        f"Spearman {each['spearman']:.4f}"
        for name, each in document["held_out"].items()
    ]
    return "\n".join(
        [
            *lines,
            f"{document['samples']} measurements, {document['measured_now']} of them now; a prediction takes "
            f"{document['prediction_us']} us, the features of a layer {document['features_us']} us",
            f"{document['model']}: {document['bytes']:,} bytes",
        ]
    )
