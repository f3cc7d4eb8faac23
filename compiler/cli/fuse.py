"""`mla fuse`: lists the fusion opportunities of a model, with gains and with reasons for impossible fusions."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.exit_status import report
from compiler.cli.options import add_json, add_memory, add_seed, add_target, dram_of, integer
from compiler.util.tables import Column, figures, format_table

if TYPE_CHECKING:
    from compiler.schedule.schedule import Schedule
    from compiler.tuning.fusion_engine import FusionEngine, FusionOpportunity, FusionOption
    from compiler.tuning.measure.measurer import Measurer
    from compiler.util.progress import ProgressTask

SUMMARY = "list layers that can be fused, with predicted and measured gains"
EXAMPLE = "mla fuse network.tflite --trials 8"
_COLUMNS = (
    Column("layers", shrinks=True),
    Column("kind"),
    Column("now"),
    *figures("bytes", "gain", "+-", "measured"),
    Column("what"),
)
#: Largest number of options reported per fusion opportunity, measured ones first.
MAX_OPTIONS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .tflite or .onnx file, {REFERENCE}")
    parser.add_argument(
        "--trials",
        metavar="N",
        type=integer(0),
        default=0,
        help="measure the N most promising fusions on the simulated chip (default: 0)",
    )
    parser.add_argument("--all", action="store_true", help="also list impossible fusions, with the reason")
    add_compile(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Find fusion opportunities, predict and measure their gains, and print the report."""
    from dataclasses import replace

    from compiler.cli.compile import source_of
    from compiler.cli.run import head
    from compiler.cost.learned_model import find_model
    from compiler.pipeline import ModelCompiler
    from compiler.profile.measurement import HardwareProfile
    from compiler.quantize.report import log_warnings
    from compiler.tuning.fusion_engine import FusionEngine
    from compiler.tuning.measure.measurer import Measurer
    from compiler.util.progress import log, progress
    from hw.config import load_target

    source, options = source_of(args)
    conditions = HardwareProfile(load_target(args.target), dram_of(args))
    with progress(f"predicting fusion gains of {args.model.name}"):
        prepared = ModelCompiler(source.graph, conditions.config, replace(options, dram=conditions.dram))
        log_warnings(prepared.graph.name, prepared.report, args.seed)
        now = prepared.network().schedule
        engine = FusionEngine(prepared, conditions, find_model(conditions))
        sites = engine.opportunities(now)
        found = engine.options(now, sites)
    measured: dict[str, int | str] = {}
    if args.trials and found:
        with (
            progress("measuring", min(args.trials, len(found)), "fusions") as task,
            Measurer(source.graph, conditions, options, 1, args.seed, log) as measurer,
        ):
            measured = _measured(measurer, now, engine.shortlist(found, args.trials), task)
    whole = head(args, "rtl", conditions.rate) | _document(engine, now, sites, found, measured)
    report(whole, _table(whole, show_all=args.all), args.json)
    return 0


def _measured(
    measurer: "Measurer", now: "Schedule", options: "list[FusionOption]", task: "ProgressTask"
) -> dict[str, int | str]:
    """Measure schedules; return the cycles of each, or the reason for its rejection, by the JSON of the schedule."""
    from compiler.profile.measurement import Rejected

    first = measurer.baseline()
    out: dict[str, int | str] = {now.to_json(): first.cycles}
    for option in options:
        (result,) = measurer.measure([option.schedule])
        task.advance()
        wrong = result.reason if isinstance(result, Rejected) else "wrong outputs"
        usable = not isinstance(result, Rejected) and result.valid
        out[option.schedule.to_json()] = result.cycles if usable else wrong  # type: ignore[union-attr]
    return out


def _document(
    engine: "FusionEngine",
    now: "Schedule",
    sites: "list[FusionOpportunity]",
    options: "list[FusionOption]",
    measured: dict[str, int | str],
) -> dict[str, Any]:
    by_site: dict[FusionOpportunity, list[FusionOption]] = {}
    for option in sorted(options, key=lambda option: option.schedule.to_json() not in measured):
        by_site.setdefault(option.opportunity, []).append(option)
    prediction = engine.predict(now)
    return {
        "predicted_cycles": round(prediction.cycles),
        "measured_cycles": measured.get(now.to_json()),
        "sites": [
            {
                "kind": site.kind,
                "layers": list(site.layers),
                "done": site.applied,
                "possible": site.possible,
                "reason": site.reason,
                "bytes": site.bytes,
                "options": [_option(each, measured) for each in by_site.get(site, [])[:MAX_OPTIONS]],
            }
            for site in sites
        ],
    }


def _option(option: "FusionOption", measured: dict[str, int | str]) -> dict[str, Any]:
    found = measured.get(option.schedule.to_json())
    return {
        "what": option.description,
        "predicted_gain": round(option.gain),
        "expected_error": round(option.prediction.error),
        "measured_cycles": found if isinstance(found, int) else None,
        "rejected": found if isinstance(found, str) else None,
    }


def _table(document: dict[str, Any], *, show_all: bool) -> str:
    """Format one line per opportunity: possible ones by decreasing predicted gain, then impossible ones."""
    first = document["measured_cycles"]
    lines = [
        f"{document['model']} on {document['target']}: {document['predicted_cycles']:,} cycles predicted"
        + (f", {first:,} measured" if first is not None else ""),
    ]
    rows: list[list[str]] = []
    able = [site for site in document["sites"] if site["options"]]
    able.sort(key=lambda site: -site["options"][0]["predicted_gain"])
    for site in able:
        best, count = site["options"][0], len(site["options"])
        gain = (
            "" if first is None or best["measured_cycles"] is None else f"{first - best['measured_cycles']:,}"
        )
        more = f" (and {count - 1} more)" if count > 1 else ""
        why = f"; rejected: {best['rejected']}" if best["rejected"] else ""
        rows.append(
            [
                *_head(site),
                f"{best['predicted_gain']:,}",
                f"{best['expected_error']:,}",
                gain,
                f"{best['what']}{more}{why}",
            ]
        )
    impossible = [site for site in document["sites"] if not site["possible"]]
    rows += [[*_head(site), "", "", "", f"no: {site['reason']}"] for site in impossible if show_all]
    lines.append(format_table(_COLUMNS, rows))
    if impossible and not show_all:
        lines.append(f"{len(impossible)} more are impossible (--all lists the reasons)")
    return "\n".join(lines)


def _head(site: dict[str, Any]) -> list[str]:
    return [" + ".join(site["layers"]), site["kind"], "yes" if site["done"] else "no", f"{site['bytes']:,}"]
