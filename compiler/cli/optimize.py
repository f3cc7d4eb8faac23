"""`mla optimize`: tunes models for several targets ahead of their use."""

import argparse
from pathlib import Path
from typing import Any

from compiler.cli.compile import REFERENCE, add_compile, source_of
from compiler.cli.exit_status import report
from compiler.cli.options import (
    add_db,
    add_json,
    add_memory,
    add_seed,
    check_files,
    integer,
    target_labels,
    targets,
)
from compiler.cli.search import add_method, add_targets, check_method, targets_of
from compiler.cli.tune import GOALS, MAX_DEVICES
from compiler.util.tables import Column, counted, figures, format_table

SUMMARY = "tune models for several targets ahead, and store the best programs in the database"
EXAMPLE = "mla optimize --targets n8,n16 network.tflite other.onnx"

_DEFAULT_TRIALS = 24
_FAILED = 1
#: Fields that are null for a target that the model does not fit.
_MEASURED = ("baseline_cycles", "best_cycles", "trials", "cache_hits", "neighbour_schedules", "target_met")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "models", metavar="MODEL", type=Path, nargs="+", help=f"a .tflite or .onnx file, {REFERENCE}"
    )
    parser.add_argument(
        "--targets",
        metavar="T,T,...",
        type=targets,
        required=True,
        help="targets to tune for: the same values as for --target of other commands",
    )
    parser.add_argument(
        "--trials",
        metavar="N",
        type=integer(1),
        default=_DEFAULT_TRIALS,
        help="number of candidates to measure for each model and target (default: %(default)s)",
    )
    add_method(parser)
    add_targets(parser)
    parser.add_argument(
        "--goal", choices=GOALS, default="latency", help="metric to optimize (default: %(default)s)"
    )
    parser.add_argument(
        "--devices",
        metavar="D",
        type=integer(1, MAX_DEVICES),
        help="number of simulators that run in parallel (default: number of cores)",
    )
    add_db(parser, optional=False)
    add_compile(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Tune every model for every target; return status 1 if a model fits no target."""
    from compiler.profile.measurement import Measurement
    from compiler.tuning_api import tune
    from compiler.tuning_db.database import TuningDatabase
    from compiler.util.progress import log, progress
    from hw.errors import InputError

    check_files(args)
    check_method(args)
    wanted = targets_of(args, args.goal)
    labels = target_labels(args.targets)
    rows: list[dict[str, Any]] = []
    with TuningDatabase(args.db) as database:
        for model in args.models:
            each = argparse.Namespace(**vars(args) | {"model": model, "target": args.targets[0]})
            source, options = source_of(each)
            for target in args.targets:
                row: dict[str, Any] = {"model": str(model), "target": labels[target]}
                what = f"{model.name} for {labels[target]}"
                try:
                    with progress(f"tuning {what}", args.trials, "trials") as task:
                        tuned = tune(
                            source,
                            target,
                            trials=args.trials,
                            method=args.method,
                            generator=args.generator,
                            goal=args.goal,
                            target_latency=wanted.cycles,
                            target_energy=wanted.energy_uj,
                            seed=args.seed,
                            options=options,
                            database=database,
                            devices=args.devices,
                            on_trial=lambda number, _trial, _best, task=task: task.advance(
                                number - task.done
                            ),
                            log=log,
                        )
                except InputError as error:
                    log(f"{what}: {error}")
                    rows.append(row | dict.fromkeys(_MEASURED) | {"reason": str(error)})
                    continue
                best = tuned.best.result
                assert isinstance(best, Measurement)
                rows.append(
                    row
                    | {
                        "baseline_cycles": tuned.baseline.cycles,
                        "best_cycles": best.cycles,
                        "trials": len(tuned.trials),
                        "cache_hits": tuned.cached_count,
                        "neighbour_schedules": tuned.transferred_count,
                        "target_met": tuned.target_met,
                        "reason": None,
                    }
                )
    document = {"goal": args.goal, "method": args.method, "database": database.title, "networks": rows}
    report(document, _table(document), args.json)
    failed = {row["model"] for row in rows} - {row["model"] for row in rows if row["reason"] is None}
    return _FAILED if failed else 0


def _table(document: dict[str, Any]) -> str:
    rows = [
        [
            row["model"],
            row["target"],
            *(
                ["", "", f"does not fit: {row['reason']}"]
                if row["reason"]
                else [f"{row['baseline_cycles']:,}", f"{row['best_cycles']:,}", f"{row['trials']}"]
            ),
        ]
        for row in document["networks"]
    ]
    heads = [Column("model"), Column("target"), *figures("static compiler", "best found", "trials")]
    return f"{format_table(heads, rows)}\n{counted(len(rows), 'result')} stored in {document['database']}"
