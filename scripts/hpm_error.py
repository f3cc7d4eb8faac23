"""Prediction error of the cost model for whole networks that are not in its training data, with static schedules.

`python -m scripts.hpm_error` prints the predicted and measured cycles of each MLPerf Tiny network, and the mean
error of its layers; layers that share a counter are counted as one layer.
"""

import sys

from compiler.bench.tiny import NETWORKS, model_path
from compiler.cache.model_source import ModelSource
from compiler.cost.learned.features import rows_of
from compiler.cost.learned.model import CycleModel, PredictionErrors, find_model
from compiler.cost.learned.online_model import attribution_groups
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target


def main() -> int:
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
