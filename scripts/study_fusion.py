"""Evaluation of the fusion engine's choices for chains of layers.

`python -m scripts.study_fusion --file FILE` draws random chains that were not used to calibrate the cost model. It
measures each chain unfused (every operator reads from DRAM and writes to DRAM), as compiled by the static compiler, and
in every variant that the fusion engine proposes. It prints how often the chosen variant is the best by measurement, and
how much it differs from the best and from the unfused variant.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from compiler.cost.learned_model import find_model
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Rejected
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, chains
from compiler.tuning.fusion_engine import CONFIDENCE, FusionEngine
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from hw.errors import InputError
from scripts.measurement_cache import FileCache, programs_of

#: Random seed of the chains, which differs from the default seed of `mla calibrate`.
_SEED = 20261
#: Maximum number of variants of a chain, by decreasing predicted gain.
_MAX_VARIANTS = 24
_CLOSE, _NEAR = 1.005, 1.01
#: Variants that only join or split programs.
_MINOR = ("one program", "separate programs")
#: Number of variants with the best predictions that a search would measure first.
_TOP_PREDICTIONS = 3


def main() -> int:
    """Measure all chains and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=30, help="number of chains")
    parser.add_argument("--seed", type=int, default=_SEED, help="random seed for the chains")
    parser.add_argument(
        "--file", type=Path, help="file that stores measurements, so that they are not repeated"
    )
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    drawn = chains(16, random.Random(args.seed))
    rows: list[dict[str, Any]] = []
    while len(rows) < args.cases:
        point = next(drawn)
        try:
            row = _case(point, args.file)
        except InputError:  # an operator is not supported by this configuration
            continue
        rows.append(row)
        print(_shown(row), flush=True)
    print(_summary(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), "utf-8")
    return 0


def _case(point: CalibrationNetwork, file: Path | None) -> dict[str, Any]:
    """Return the predicted and measured cycles of all variants of a chain."""
    conditions = HardwareProfile(load_target("n16"))
    with Measurer(point.graph(), conditions, CompileOptions(rounding="reference")) as measurer:
        measurer.cache = FileCache(measurer.prepared, conditions, file)
        engine = FusionEngine(measurer.prepared, conditions, find_model(conditions))
        first = measurer.first.schedule
        options = engine.options(first, engine.opportunities(first))
        variants = [
            ("unfused", engine.unfused()),
            ("static", first),
            ("fixed point", engine.fixed_point(first)),
            ("--fuse", engine.fixed_point(first, CONFIDENCE)),
            *((each.description, each.schedule) for each in options),
        ]
        chosen = programs_of(measurer.prepared.network(variants[2][1]), conditions)
        found: dict[str, dict[str, Any]] = {}
        for what, schedule in variants[:_MAX_VARIANTS]:
            try:
                key = programs_of(measurer.prepared.network(schedule), conditions)
            except InputError:  # the schedule does not fit
                continue
            if key not in found:
                names: list[str] = []
                found[key] = {"what": what, "names": names, "chosen": key == chosen}
                found[key] |= _cycles(measurer, engine, schedule)
            found[key]["names"].append(what)
    return {
        "chain": point.family,
        "shape": point.shape,
        "static": next(each["measured"] for each in found.values() if "static" in each["names"]),
        "ways": [each for each in found.values() if each["measured"]],
    }


def _cycles(measurer: Measurer, engine: FusionEngine, schedule: Schedule) -> dict[str, Any]:
    (result,) = measurer.measure([schedule])
    prediction = engine.predict(schedule)
    cycles = None if isinstance(result, Rejected) or not result.valid else result.cycles
    return {"predicted": prediction.cycles, "error": prediction.error, "measured": cycles}


def _chosen(row: dict[str, Any]) -> tuple[int, int, int]:
    """Return the measured cycles of the chosen, the best and the unfused variant."""
    variants = row["ways"]
    chosen = next(each for each in variants if each["chosen"])
    best = min(each["measured"] for each in variants)
    return chosen["measured"], best, next(each["measured"] for each in variants if each["what"] == "unfused")


def _among(row: dict[str, Any], count: int) -> bool:
    """Return whether the best variant by measurement is among the `count` variants with the best predictions."""
    predicted = sorted(row["ways"], key=lambda each: each["predicted"])[:count]
    return min(each["measured"] for each in predicted) == min(each["measured"] for each in row["ways"])


def shortlist(ways: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the variants to measure in addition to the static compiler's, as `FusionEngine.shortlist` does."""
    options = [each for each in ways if each["what"] not in ("static", "unfused")]
    options.sort(key=lambda each: (each["what"] in _MINOR, each["predicted"]))
    known = {each["predicted"] for each in ways if each["what"] == "static"}
    distinct = [each for each in options if each["what"] not in _MINOR and each["predicted"] not in known]
    chosen = list({each["predicted"]: each for each in reversed(distinct)}.values())[::-1]
    return [*chosen, *(each for each in options if each not in chosen)][:count]


def _best_measured(row: dict[str, Any], count: int) -> int:
    """Return the cycles of the best of `count` variants of the shortlist and of the static compiler's."""
    return min(row["static"], *(each["measured"] for each in shortlist(row["ways"], count)))


def _shown(row: dict[str, Any]) -> str:
    chosen, best, unfused = _chosen(row)
    what = next(each["what"] for each in row["ways"] if each["chosen"])
    return (
        f"{row['chain']}: {len(row['ways'])} variants, unfused {unfused:,}, best {best:,}, "
        f"chosen {chosen:,} ({what})"
    )


def _fused(row: dict[str, Any]) -> int:
    """Return the cycles of the variant that `mla compile --fuse` compiles."""
    return next(each["measured"] for each in row["ways"] if "--fuse" in each["names"])


def _ratio(rows: list[dict[str, Any]]) -> float:
    """Return the geometric mean of the chosen variants' cycles relative to those of the static compiler's schedules."""
    return geometric_mean(_chosen(row)[0] / row["static"] for row in rows)


def _summary(rows: list[dict[str, Any]]) -> str:
    each = [_chosen(row) for row in rows]
    exact = sum(chosen == best for chosen, best, _ in each)
    close, near = (sum(chosen <= limit * best for chosen, best, _ in each) for limit in (_CLOSE, _NEAR))
    worse = sum(chosen > _NEAR * unfused for chosen, _, unfused in each)
    worst = max(chosen / best - 1 for chosen, best, _ in each)
    among = sum(_among(row, _TOP_PREDICTIONS) for row in rows)
    tried = [
        (_best_measured(row, _TOP_PREDICTIONS), best) for row, (_, best, _) in zip(rows, each, strict=True)
    ]
    fused = [_fused(row) / row["static"] for row in rows]
    found = sum(cycles <= _CLOSE * best for cycles, best in tried)
    return (
        f"{len(rows)} chains: chosen is the measured best in {exact}, within 0.5% of it in {close}, within 1% in "
        f"{near}; at worst {worst:.1%} slower than it; more than 1% slower than unfused in {worse}; "
        f"the best is among the {_TOP_PREDICTIONS} best predictions in {among}; the best of {_TOP_PREDICTIONS} "
        f"measured and static is within 0.5% of it in {found}; chosen takes {_ratio(rows):.1%} of the static "
        f"compiler's cycles (geometric mean); --fuse makes {sum(each < 1 for each in fused)} faster and "
        f"{sum(each > 1 for each in fused)} slower ({min(fused):.1%} to {max(fused):.1%} of the cycles)"
    )


if __name__ == "__main__":
    sys.exit(main())
