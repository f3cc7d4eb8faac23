"""Measurement of the gain of tuning over the original static compiler, under default and changed conditions.

`python -m scripts.study_tuning_gain --trials 60 --seeds 5` prints, for each network and condition, the cycles with the
compiler of commit 3783297 (`scripts/study_tuning_gain.json`), with the current static compiler, and with the best
schedule found. It also prints the share of the gap to the lower bound that tuning closes. Under changed conditions, the
best schedule for default conditions is measured as well.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from compiler.bench.architectures import model_file
from compiler.bench.tiny import NETWORKS, model_path
from compiler.cache.model_source import ModelSource
from compiler.options import DEFAULT_DRAM, CompileOptions, DramTiming
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import METHODS
from compiler.tuning.search.tuner import tune
from compiler.util.progress import log
from compiler.util.tables import Column, figures, format_table
from hw.config import load_target
from scripts.measurement_cache import FileCache

FROZEN = Path(__file__).with_suffix(".json")
PUBLISHED = ("mobilenet_v1", "mobilenet_v2")
DEFAULT_CONDITIONS = "usual"
_COLUMNS = (
    Column("network"),
    Column("condition"),
    *figures("frozen", "static", "found", "range", "bound", "closed", "carried over"),
)


def conditions() -> dict[str, HardwareProfile]:
    """Return the hardware profiles by name."""
    n16 = load_target("n16")
    return {
        DEFAULT_CONDITIONS: HardwareProfile(n16),
        "bandwidth / 4": HardwareProfile(n16, DramTiming(DEFAULT_DRAM.latency, n16.n / 4)),
        "latency 400": HardwareProfile(n16, DramTiming(400)),
        "SP 64 KiB": HardwareProfile(replace(n16, sp_bytes=1 << 16)),
        "N = 8": HardwareProfile(load_target("n8")),
    }


@dataclass(frozen=True)
class TuningGainRow:
    """Cycles of a network under a condition.

    Parameters
    ----------
    frozen, static : int
        Cycles with the static compiler of commit 3783297, and with the current static compiler.
    carried_over : int or None
        Cycles of the best schedule for default conditions; None under default conditions, or if the schedule does not
        fit.
    found : list of int
        Cycles of the best schedule found, by seed.
    floor : int
        Lower bound of the cycles.
    """

    network: str
    condition: str
    frozen: int
    static: int
    carried_over: int | None
    found: list[int]
    floor: int

    @property
    def left(self) -> float:
        """Remaining share of the gap between commit 3783297 and the lower bound; median over seeds."""
        return (median(self.found) - self.floor) / (self.frozen - self.floor)

    def cells(self) -> list[str]:
        """Return the cells of the table's row."""
        over = "-" if self.carried_over is None else f"{self.carried_over / median(self.found):.2f}x"
        spread = f"{min(self.found):,}..{max(self.found):,}"
        counts = [f"{count:,.0f}" for count in (self.frozen, self.static, median(self.found))]
        return [
            self.network,
            self.condition,
            *counts,
            spread,
            f"{self.floor:,}",
            f"{1 - self.left:.1%}",
            over,
        ]


def main() -> int:
    """Measure all networks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=[*NETWORKS, *PUBLISHED])
    parser.add_argument("--conditions", nargs="*", default=list(conditions()))
    parser.add_argument("--method", choices=list(METHODS), default="coordinate")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--file",
        type=Path,
        default=Path("build/study_tuning_gain.jsonl"),
        help="file that stores measurements, so that they are not repeated",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[TuningGainRow] = []
    for network in args.networks:
        best: Schedule | None = None
        for condition in args.conditions:
            row, schedule = _row(network, condition, best, args)
            best = schedule if condition == DEFAULT_CONDITIONS else best
            rows.append(row)
            log(f"{network}, {condition}: {row.static:,} -> {median(row.found):,.0f} cycles")
            if args.json:
                args.json.write_text(json.dumps([vars(each) for each in rows], indent=1), "utf-8")
    print(format_table(_COLUMNS, [row.cells() for row in rows]))
    for condition in args.conditions:
        left = geometric_mean(row.left for row in rows if row.condition == condition)
        print(f"{condition}: {100 * (1 - left):.1f}% of the gap to the lower bound closed (geometric mean)")
    return 0


def _row(
    network: str, condition: str, default: Schedule | None, args: argparse.Namespace
) -> tuple[TuningGainRow, Schedule]:
    source = ModelSource(model_file(network) if network in PUBLISHED else model_path(network))
    profile = conditions()[condition]
    with Measurer(source.graph, profile, CompileOptions(rounding=source.rounding)) as measurer:
        measurer.cache = FileCache(measurer.prepared, profile, args.file)
        runs = [tune(measurer, args.method, args.trials, seed=seed) for seed in range(args.seeds)]
        over = (
            measurer.measure([default])[0]
            if default is not None and condition != DEFAULT_CONDITIONS
            else None
        )
    best = min(runs, key=lambda run: run.best.cost or 0)
    frozen: dict[str, Any] = json.loads(FROZEN.read_text("utf-8"))
    row = TuningGainRow(
        network,
        condition,
        frozen["cycles"][network][condition],
        runs[0].baseline.cycles,
        over.cycles if isinstance(over, Measurement) else None,
        [int(run.best.cost or 0) for run in runs],
        runs[0].baseline.floor,
    )
    return row, best.best.schedule


if __name__ == "__main__":
    sys.exit(main())
