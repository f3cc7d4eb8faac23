"""`mla calibrate`: a performance model of a machine, made from measurements."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.claims import claim
from compiler.cli.options import add_json, add_memory, add_seed, add_target, integer
from compiler.cli.output import report

if TYPE_CHECKING:
    from compiler.hpm.calibrate import Calibration

SUMMARY = "measure small networks on the simulated chip, and learn to predict the cycles of others"
EXAMPLE = "mla calibrate --target n16 --dram-latency 400"
_SECONDS = 600
_DEVICES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "--seconds", metavar="S", type=integer(1), default=_SECONDS,
        help="of measuring, with what was measured before on top (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        help="write the model here (default: where mla tune finds it)",
    )
    parser.add_argument(
        "--devices", metavar="D", type=integer(1, _DEVICES), help="simulators at work at a time (default: the cores)"
    )  # fmt: skip
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, learn, write, report."""
    from compiler.hpm.calibrate import calibrate
    from compiler.hpm.default import journal_path, model_path
    from compiler.hpm.journal import Journal
    from compiler.measure.conditions import Conditions
    from compiler.schedule.dram import Dram
    from compiler.specialize.space import spaces_of
    from compiler.util.progress import progress, say
    from hw.config import load_target

    claim(args, "out")
    conditions = Conditions(load_target(args.target), Dram(args.dram_latency, args.dram_bytes_per_cycle))
    journal = Journal(journal_path(conditions, args.seed), conditions.key, args.seed)
    if journal.samples:
        say(f"going on from {len(journal.samples)} measurements in {journal.path}")
    with progress("learning"):  # the measurements before that show their own
        found = calibrate(conditions, args.seconds, journal, spaces_of, args.seed, args.devices, say)
    path = args.out or model_path(conditions)
    whole = {
        "target": Path(args.target).stem,
        "dram": {"latency": args.dram_latency, "bytes_per_cycle": conditions.rate},
        "seed": args.seed, "model": str(path), "bytes": found.model.save(path),
    } | _document(found)  # fmt: skip
    report(whole, _table(whole), args.json)
    return 0


def _document(found: "Calibration") -> dict[str, Any]:
    return {
        "samples": found.samples, "measured_now": found.fresh, "mape": found.everything.as_json()["mape"],
        "spearman": found.everything.as_json()["spearman"],
        "held_out": {"single": found.single.as_json(), "chain": found.chain.as_json()},
        "prediction_us": round(found.prediction_us, 1), "features_us": round(found.features_us, 1),
    }  # fmt: skip


def _table(document: dict[str, Any]) -> str:
    lines = [
        f"{name:<7} {each['count']:>5} measurements kept out: {each['mape']:.2f}% mean error, "
        f"Spearman {each['spearman']:.4f}"
        for name, each in document["held_out"].items()
    ]
    return "\n".join([
        *lines,
        f"{document['samples']} measurements, {document['measured_now']} of them now; a prediction takes "
        f"{document['prediction_us']} us, the features of a layer {document['features_us']} us",
        f"{document['model']}: {document['bytes']:,} bytes",
    ])  # fmt: skip
