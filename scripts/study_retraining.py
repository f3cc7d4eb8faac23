"""Error of the cost model on a machine that is absent from its training, before and after retraining.

`python -m scripts.study_retraining FOLDER` uses measurements of random networks in FOLDER, which `python -m
scripts.train_shipped FOLDER --targets ulx3s-85f --out FILE` makes. The model for machines without `pipelined` control,
trained on n16, n8 and n4 only, predicts the machine's layers. It is then retrained on layers of some of the networks
(`retrained` in `compiler/cost/online_model.py`), and predicts the other networks. Each seed holds out others.
"""

import argparse
import random
import sys
from pathlib import Path
from statistics import mean, median

import numpy as np

from compiler.cost.learned_model import SHIPPED, CycleModel
from compiler.cost.online_model import LayerSample, retrained
from compiler.tuning.calibration.calibrate import MeasuredLayers, features_of
from scripts.published_layers import MEMORIES
from scripts.train_shipped import journal_of

#: Reciprocal of the fraction of networks that are held out.
_HELD_OUT = 4


def main() -> int:
    """Print the errors before and after retraining, for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="ulx3s-85f")
    parser.add_argument(
        "--trials", type=int, default=500, help="measurements on which the model is retrained"
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    old, measured = CycleModel.load(SHIPPED), list[tuple[str, MeasuredLayers]]()
    for seed, name in enumerate(MEMORIES):
        conditions, journal = journal_of(args.folder, args.target, name, seed)
        measured += [
            (f"{name} {each.sample.index}", each) for each in features_of(journal.samples, conditions)
        ]
    networks = sorted({network for network, _ in measured})
    for seed in range(args.seeds):
        rng = random.Random(seed)
        held_out = set(rng.sample(networks, len(networks) // _HELD_OUT))
        known = [each for network, each in measured if network not in held_out]
        known = rng.sample(known, min(args.trials, len(known)))
        new = [each for network, each in measured if network in held_out]
        samples = [
            LayerSample(row, max(cycles, 1.0))
            for each in known
            for row, cycles in zip(each.rows, each.cycles, strict=True)
        ]
        found = retrained(old, samples, old, seed)
        before, after = _errors(old, new), _errors(old if found is None else found.model, new)
        print(
            f"seed {seed}: {len(known)} measurements; {len(new)} of other networks: mean error {mean(before):.1%} -> "
            f"{mean(after):.1%}, median {median(before):.1%} -> {median(after):.1%}",
            flush=True,
        )
    return 0


def _errors(model: CycleModel, measured: list[MeasuredLayers]) -> list[float]:
    """Return the errors of the predicted cycles of each measurement."""
    return [
        abs(float(np.sum(model.predict_many(each.rows)[0])) / each.sample.cycles - 1) for each in measured
    ]


if __name__ == "__main__":
    sys.exit(main())
