"""Prediction error of the cost model for layers and whole networks that are not in its training data.

`python -m scripts.hpm_error` prints the predicted and measured cycles of each MLPerf Tiny network under the static
schedule, and the mean error of its layers; layers that share a counter are counted as one layer.

`python -m scripts.hpm_error --layers FILE` judges the model on the layers of `scripts.published_layers`, each under the
static schedule and ten random ones, for several targets and memories. For each of them, it prints the median error of
the tile pipeline and of the model, the median over the layers of the rank correlation within a layer, the share of
measurements within twice the stated spread, and the cycles of the static schedule relative to the best random one; also
the error and the rank correlation of the energy, and the errors of the number of bank conflicts. FILE stores the
measurements. `--list pairs` judges pairs of layers, `--list confirmation` the layers of the second list, `--list
formats` layers with weights in other formats than int8.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np

from compiler.bench.tiny import NETWORKS, model_path
from compiler.cache.model_source import ModelSource
from compiler.cost.features import rows_of
from compiler.cost.learned_model import (
    CycleModel,
    PredictionErrors,
    energy_model,
    find_model,
    predicted_conflicts,
    spearman,
)
from compiler.cost.online_model import attribution_groups
from compiler.lowering.lower import LoweredNetwork
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from scripts.published_layers import (
    CONFIRMATION_LAYERS,
    FORMAT_LAYERS,
    FUSED_PAIRS,
    MEMORIES,
    PUBLISHED_LAYERS,
    MeasuredSchedule,
    PublishedMeasurements,
    network_of,
)

#: Conflicts per cycle above which measurements are counted separately.
_MANY_CONFLICTS = 0.01
#: Lists of layers by name.
_LISTS = {
    "published": PUBLISHED_LAYERS,
    "confirmation": CONFIRMATION_LAYERS,
    "pairs": FUSED_PAIRS,
    "formats": FORMAT_LAYERS,
}


def main() -> int:
    """Measure networks or layers and print the errors of their predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=Path, help="file with measurements of the published layers")
    parser.add_argument("--targets", nargs="*", default=["n16", "n8"])
    parser.add_argument("--memories", nargs="*", default=list(MEMORIES))
    parser.add_argument("--list", choices=list(_LISTS), default="published", help="layers to measure")
    parser.add_argument("--worst", type=int, default=0, help="number of the worst layers to list")
    args = parser.parse_args()
    if args.layers is None:
        return _networks()
    measurements = PublishedMeasurements(args.layers)
    for target in args.targets:
        for memory in args.memories:
            found = {name: measurements.of(target, memory, name) for name in _LISTS[args.list]}
            print(f"{target}, {memory}: {_judged(found, args.worst)}", flush=True)
            print(f"    {_judged_work(found)}", flush=True)
    return 0


def _judged(found: dict[str, list[MeasuredSchedule]], worst: int) -> str:
    """Return the errors of the predictions of layers under several schedules as text."""
    errors, base_errors, within, ranks, base_ranks, static, first = [], [], [], [], [], [], []
    by_layer = {}
    for name, each in found.items():
        base, cycles, spread = _predictions(each)
        measured = np.array([one.cycles for one in each], float)
        wrong = np.abs(cycles / measured - 1)
        errors += wrong.tolist()
        base_errors += np.abs(base / measured - 1).tolist()
        within += (np.abs(np.log(cycles / measured)) <= 2 * spread).tolist()
        ranks.append(spearman(cycles, measured))
        base_ranks.append(spearman(base, measured))
        random = np.array([not one.static for one in each])
        if random.any() and not random.all():
            static.append(measured[~random][0] / measured[random].min())
            first.append(measured[random][base[random].argmin()] / measured[random].min())
        by_layer[name] = median(wrong.tolist()), median(np.abs(base / measured - 1).tolist()), static[-1:]
    text = (
        f"{len(errors)} measurements; median error {100 * median(errors):.1f}% (pipeline alone "
        f"{100 * median(base_errors):.1f}%), Spearman within a layer {median(ranks):.3f} ({median(base_ranks):.3f}), "
        f"within twice the spread {100 * np.mean(within):.1f}%; static schedule / best random "
        f"{geometric_mean(static):.3f}, first choice of the pipeline among the random ones / best "
        f"{geometric_mean(first):.3f}"
    )
    for name in sorted(by_layer, key=lambda name: -by_layer[name][0])[:worst]:
        model, base, ratio = by_layer[name]
        text += f"\n    {name}: {100 * model:.1f}% (pipeline {100 * base:.1f}%), static / best {ratio}"
    return text


def _judged_work(found: dict[str, list[MeasuredSchedule]]) -> str:
    """Return the errors of the predicted energy and bank conflicts of layers under several schedules as text."""
    errors, base_errors, ranks, base_ranks, conflicts, shares, expectations = [], [], [], [], [], [], []
    for each in found.values():
        conditions = each[0].conditions
        stage, model = _stage(each[0].layer, conditions), energy_model()
        rows = [list(rows_of(stage, one.schedule.layers, conditions).values()) for one in each]
        measured = np.array([1e3 * one.energy_uj for one in each])
        of_energy = [[row.for_energy for row in mine] for mine in rows]
        base = np.array([sum(row.base for row in mine) for mine in of_energy])
        guess = np.array([float(model.predict_many(mine)[0].sum()) for mine in of_energy])
        errors += np.abs(guess / measured - 1).tolist()
        base_errors += np.abs(base / measured - 1).tolist()
        ranks.append(spearman(guess.round(), measured))
        base_ranks.append(spearman(base.round(), measured))
        cycles = np.array([one.cycles for one in each])
        refused = np.array([one.conflicts for one in each])
        expected = np.array([float(predicted_conflicts(mine).sum()) for mine in rows])
        shares += (refused / cycles).tolist()
        expectations += (expected / cycles).tolist()
        conflicts += (np.abs(expected - refused) / cycles).tolist()
    many = np.array(shares) > _MANY_CONFLICTS
    text = (
        f"energy: median error {100 * median(errors):.1f}%, mean {100 * np.mean(errors):.1f}% (work alone "
        f"{100 * median(base_errors):.1f}%, {100 * np.mean(base_errors):.1f}%), Spearman within a layer "
        f"{median(ranks):.3f} ({median(base_ranks):.3f}); conflicts: {100 * np.mean(shares):.2f} per 100 cycles, mean "
        f"error {100 * np.mean(conflicts):.2f}"
    )
    if many.any():
        likely = np.array(expectations) > _MANY_CONFLICTS
        text += (
            f"; more than 1 in {many.sum()} measurements, of which {(many & likely).sum()} are among the "
            f"{likely.sum()} for which the model expects so"
        )
    return text


def _predictions(found: Sequence[MeasuredSchedule]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cycles of the pipeline, and the cycles and relative spread of the model, for schedules of a layer."""
    conditions = found[0].conditions
    model, stage = find_model(conditions), _stage(found[0].layer, conditions)
    out = []
    for each in found:
        rows = list(rows_of(stage, each.schedule.layers, conditions).values())
        cycles, spreads = model.predict_many(rows)
        spread = float((cycles * spreads).sum() / cycles.sum())
        out.append((sum(row.base for row in rows), float(cycles.sum()), spread))
    base, cycles, spread = (np.array(column) for column in zip(*out, strict=True))
    return base, cycles, spread


@cache
def _stage(layer: str, conditions: HardwareProfile) -> LoweredNetwork:
    options = CompileOptions(rounding="reference", dram=conditions.dram)
    prepared = ModelCompiler(network_of(layer).graph(), conditions.config, options)
    (stage,) = prepared.lowered(prepared.fusions)
    return stage


def _networks() -> int:
    """Measure all networks and print their errors."""
    conditions = HardwareProfile(load_target("n16"))
    model = find_model(conditions)
    for name in NETWORKS:
        graph = ModelSource(model_path(name)).graph
        with Measurer(graph, conditions, CompileOptions(rounding="reference")) as measurer:
            pairs = _pairs(measurer, model)
        errors = PredictionErrors.from_pairs([a for a, _ in pairs], [b for _, b in pairs])
        predicted, measured = sum(a for a, _ in pairs), sum(b for _, b in pairs)
        print(
            f"{name}: {predicted:,.0f} predicted, {measured:,.0f} measured: "
            f"{100 * (predicted / measured - 1):+.1f}%; {errors.count} layers: {errors.mape:.1f}% mean error, "
            f"Spearman {errors.spearman:.4f}",
            flush=True,
        )
    return 0


def _pairs(measurer: Measurer, model: CycleModel) -> list[tuple[float, float]]:
    """Return the predicted and measured cycles of each group of layers that share a counter."""
    found, schedule = measurer.baseline(), measurer.first.schedule
    (stage,) = measurer.prepared.lowered(schedule.fusions)
    rows = rows_of(stage, schedule.layers, measurer.conditions)
    guess = {name: model.predict(row).cycles for name, row in rows.items()}
    out: list[tuple[float, float]] = []
    left: set[str] = set()
    for names in attribution_groups(stage.layers):
        entries = [entry for entry in found.layers if set(names) & set(entry.names)]
        share = (sum(guess[name] for name in names), float(sum(entry.cycles for entry in entries)))
        if left & set(names):  # shares an entry with the previous group
            out[-1] = (out[-1][0] + share[0], out[-1][1])
        else:
            out.append(share)
        left |= {name for entry in entries for name in entry.names}
    return out


if __name__ == "__main__":
    sys.exit(main())
