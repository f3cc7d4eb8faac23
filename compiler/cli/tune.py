"""`mla tune`: searches for a better schedule of a model by measuring candidates."""

import argparse
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.exit_status import report
from compiler.cli.options import (
    add_db,
    add_json,
    add_memory,
    add_seed,
    add_target,
    check_files,
    integer,
)
from compiler.cli.search import (
    add_endpoint,
    add_method,
    add_targets,
    check_method,
    generator_of,
    spending_table,
    targets_of,
    writable_database,
)
from compiler.util.files import write_output
from compiler.util.tables import Column, counted, figures, format_table

if TYPE_CHECKING:
    from compiler.tuning.search.tuner import TuningResult
    from compiler.tuning_db.database import TuningDatabase

SUMMARY = "search for a faster schedule of a model by measuring candidates on the simulated chip"
EXAMPLE = "mla tune network.tflite --trials 100 --save-schedule network.json"
GOALS = ("latency", "energy", "throughput")
MAX_DEVICES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .tflite or .onnx file, {REFERENCE}")
    parser.add_argument(
        "--trials", metavar="N", type=integer(1), required=True, help="number of candidates to measure"
    )
    add_method(parser)
    parser.add_argument(
        "--goal", choices=GOALS, default="latency", help="metric to optimize (default: %(default)s)"
    )
    add_targets(parser)
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=integer(1),
        help="start no more trials after S seconds (default: no limit)",
    )
    parser.add_argument(
        "--forbid",
        metavar="NAME",
        action="append",
        default=[],
        help="exclude this transformation (tiling, channel_blocks, chain, micro-program, ...) (repeatable)",
    )
    parser.add_argument(
        "--devices",
        metavar="D",
        type=integer(1, MAX_DEVICES),
        help="number of simulators that run in parallel (default: number of cores, or all workers of the cluster)",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="measure on the workers of a Dask scheduler, such as tcp://HOST:8786",
    )
    add_endpoint(parser)
    add_db(parser, "; with --no-cache none")
    parser.add_argument(
        "--save-schedule",
        metavar="FILE.json",
        type=Path,
        help="write the best schedule, for mla compile --schedule",
    )
    add_compile(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Search for a schedule and print the report."""
    from compiler.cli.compile import source_of
    from compiler.cli.run import head
    from compiler.tuning.constraints import Constraints
    from compiler.tuning.search.tuner import rejection_reason
    from compiler.tuning_api import tune
    from compiler.util.progress import log, progress
    from hw.config import load_target
    from hw.errors import InputError

    check_files(args, "save_schedule")
    check_method(args)
    try:
        Constraints(frozenset(args.forbid))
    except InputError as error:
        raise InputError(f"--forbid: {error}") from None
    targets = targets_of(args, args.goal)
    generator = generator_of(args, log)

    source, options = source_of(args)
    with (
        open_database(args) as database,
        progress(f"tuning {args.model.name}", args.trials, "trials") as task,
    ):

        def on_trial(number: int, trial: Any, best: Any) -> None:
            what = rejection_reason(trial) or f"{trial.cost:,.0f}"
            by = f"{trial.proposer}, {trial.strategy}" if trial.strategy else trial.proposer
            log(f"trial {number} of {args.trials} ({by}): {what}; best {best.cost:,.0f}")
            task.advance(number - task.done)

        tuned = tune(
            source,
            args.target,
            trials=args.trials,
            method=args.method,
            generator=args.generator,
            goal=args.goal,
            seed=args.seed,
            forbid=args.forbid,
            seconds=args.seconds,
            target_latency=targets.cycles,
            target_energy=targets.energy_uj,
            options=options,
            database=database,
            devices=args.devices,
            cluster=args.cluster,
            language_model=generator,
            on_trial=on_trial,
            log=log,
        )
    if args.save_schedule:
        write_output(args.save_schedule, tuned.best.schedule.to_json().encode() + b"\n")
    rate = float(args.dram_bytes_per_cycle or load_target(args.target).beat_bytes)
    whole = head(args, "rtl", rate) | _document(args, tuned) | {"targets": vars(targets) if targets else None}
    whole |= {"endpoint": None if generator is None else generator.document()}
    report(whole, _table(whole), args.json)
    return 0


def open_database(args: argparse.Namespace) -> "AbstractContextManager[TuningDatabase | None]":
    """Open the database of `--db`; with `--no-db` or `--no-cache`, return a context manager that yields None, and so if
    the default database cannot be used.
    """
    from compiler.tuning_db.database import TuningDatabase
    from hw.errors import InputError

    if args.no_cache and args.db is not None:
        raise InputError("--no-cache disables the database and cannot be combined with --db")
    url = None if args.no_cache else writable_database(args)
    return nullcontext() if url is None else TuningDatabase(url)


def _document(args: argparse.Namespace, tuned: "TuningResult") -> dict[str, Any]:
    from compiler.profile.measurement import Measurement
    from compiler.tuning.search.tuner import rejection_reason

    best = tuned.best.result
    assert isinstance(best, Measurement)
    reasons = [why for trial in tuned.trials if (why := rejection_reason(trial))]
    return {
        "method": args.method,
        "generators": args.generator,
        "goal": args.goal,
        "seed": args.seed,
        "forbidden": sorted(set(args.forbid)),
        "trials": len(tuned.trials),
        "baseline_cycles": tuned.baseline.cycles,
        "best_cycles": best.cycles,
        "baseline_energy_uj": tuned.baseline.energy_uj,
        "best_energy_uj": best.energy_uj,
        "floor_cycles": best.floor,
        "curve": [list(point) for point in tuned.curve],
        "improvements": [
            {"trial": number, "cost": cost, "proposer": trial.proposer, "strategy": trial.strategy}
            for number, cost in tuned.curve[1:]
            for trial in [tuned.trials[number - 1]]
        ],
        "proposers": {name: vars(record) for name, record in tuned.proposers.items()},
        "target_met": tuned.target_met,
        "predictor": tuned.predictor.as_json() if tuned.predictor else None,
        "left_out": [asdict(failure) for failure in tuned.left_out],
        "exact": best.exact,
        "rejected": len(reasons),
        "cache_hits": tuned.cached_count,
        "neighbour_schedules": tuned.transferred_count,
    }


def _table(document: dict[str, Any]) -> str:
    from compiler.tuning.generators.generator import GeneratorFailure

    before, after, floor = (document[f"{name}_cycles"] for name in ("baseline", "best", "floor"))
    closed = (before - after) / (before - floor) if before > floor else 0.0
    asked = document["endpoint"]
    rows = [
        ["cycles", f"{before:,}", f"{after:,}", f"{floor:,}"],
        ["energy, uJ", f"{document['baseline_energy_uj']:.1f}", f"{document['best_energy_uj']:.1f}", ""],
    ]
    return (
        f"{format_table([Column(''), *figures('static compiler', 'best found', 'lower bound')], rows)}\n"
        f"{counted(document['trials'], 'trial')} ({document['method']}) closed {100 * closed:.1f}% of the gap to the "
        f"lower bound; every output exact; {counted(document['rejected'], 'candidate')} rejected\n"
        f"{counted(document['cache_hits'], 'measurement')} came from the database, "
        f"{counted(document['neighbour_schedules'], 'known schedule')} of other networks or hardware profiles"
        + "".join(f"\n{_proposer_line(*each)}" for each in document["proposers"].items())
        + _target_line(document)
        + (f"\n{spending_table(asked)}" if asked else "")
        + "".join(f"\n{GeneratorFailure(**each)}" for each in document["left_out"])
    )


def _proposer_line(name: str, record: dict[str, Any]) -> str:
    """Return one line on the results of a proposer."""
    trials, better = counted(record["trials"], "trial"), counted(record["improvements"], "improvement")
    return f"{name}: {trials}, {better}, {100 * record['gain']:.1f}% saved"


def _target_line(document: dict[str, Any]) -> str:
    if document["target_met"] is None:
        return ""
    trials = counted(document["trials"], "trial")
    return f"\nthe target was {'' if document['target_met'] else 'not '}met in {trials}"
