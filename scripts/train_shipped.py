"""Measurements and training of the cost model that is included with the compiler.

`python -m scripts.train_shipped FOLDER --rounds R --seconds S` measures random small networks on every named target and
every memory of `scripts.published_layers`, for S seconds each and in R rounds, and trains one model on all measurements
in FOLDER. A killed run loses only the measurement in progress; with `--rounds 0`, the model is only trained.
`--quantity energy` trains the model of the energy instead.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from compiler.cost.features import ENERGY_NAMES, NAMES
from compiler.cost.learned_model import SHIPPED, SHIPPED_ENERGY
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.calibrate import (
    MeasuredLayers,
    features_of,
    learn_from,
    with_energy,
)
from compiler.tuning.calibration.collect import CalibrationCollector, CalibrationJournal
from compiler.tuning.layer_space import spaces_of
from hw.config import load_target
from scripts.published_layers import MEMORIES, memory

#: Targets in order of their share of the measuring time, with that share.
TARGETS = {"n16": 1.0, "n8": 1.0, "n4": 0.5, "n32": 0.5, "ulx3s-85f": 0.5}
#: Quantities to predict: the file of the included model, the function that returns its measured layers, its features.
_MODELS: dict[str, tuple[Path, Callable[[list[MeasuredLayers]], list[MeasuredLayers]], tuple[str, ...]]] = {
    "cycles": (SHIPPED, list, NAMES),
    "energy": (SHIPPED_ENERGY, with_energy, ENERGY_NAMES),
}
#: Entries of a model's description that are kept.
_ABOUT = ("compiler", "samples", "seed", "trees", "covered", "single", "chain")


def main() -> int:
    """Measure, train and write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--quantity", choices=list(_MODELS), default="cycles", help="quantity to predict")
    parser.add_argument("--out", type=Path, help="model file to write (default: the included model)")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    args = parser.parse_args()
    for _ in range(args.rounds):
        for target in args.targets:
            for seed, name in enumerate(MEMORIES):
                conditions, journal = journal_of(args.folder, target, name, seed)
                collector = CalibrationCollector(conditions, journal, seed, spaces_of, _log)
                found = collector.run(args.seconds * TARGETS[target], args.devices)
                print(
                    f"{target}, {name}: {found} new measurements, {len(journal.samples)} in all", flush=True
                )
    measured: list[MeasuredLayers] = []
    for target in args.targets:
        for seed, name in enumerate(MEMORIES):
            conditions, journal = journal_of(args.folder, target, name, seed)
            measured += features_of(journal.samples, conditions)
    out, values, names = _MODELS[args.quantity]
    out = args.out or out
    conditions = HardwareProfile(load_target(args.targets[0]))
    found = learn_from(values(measured), conditions, 0, 0, names)
    about = {name: value for name, value in found.model.about.items() if name in _ABOUT}
    model = replace(found.model, about=about | {"targets": args.targets, "memories": list(MEMORIES)})
    print(f"{out}: {model.save(out):,} bytes; {about}")
    return 0


def journal_of(folder: Path, target: str, name: str, seed: int) -> tuple[HardwareProfile, CalibrationJournal]:
    """Return the hardware profile and the measurements of a target with a memory."""
    config = load_target(target)
    conditions = HardwareProfile(config, memory(config, name))
    path = folder / f"{target}.{name.replace(' ', '').replace('/', '_')}.jsonl"
    return conditions, CalibrationJournal(path, conditions.key, seed)


def _log(_text: str) -> None:
    """Ignore progress messages."""


if __name__ == "__main__":
    sys.exit(main())
