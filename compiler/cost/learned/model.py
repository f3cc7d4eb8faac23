"""Learned performance model: cycles of layers under schedules, with their uncertainty."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from compiler.cost.learned.features import NAMES, FeatureRow
from compiler.cost.learned.gbdt import Floats, TreeEnsemble, shortened
from hw.errors import InputError, WorkError

FORMAT, VERSION = "mla-hpm", 1
#: Members, whose spread says how sure the model is, and what each is trained with.
MEMBERS = 4
_ROUNDS = 160
_TRAINING: dict[str, Any] = {
    "objective": "huber",
    "alpha": 0.1,
    "learning_rate": 0.15,
    "num_leaves": 31,
    "max_depth": 8,
    "min_data_in_leaf": 5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "feature_fraction": 0.4,
    "lambda_l2": 1.0,
    "verbose": -1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
}
#: Of no layer are so many times more or fewer cycles believed than its base says: in logarithms.
_FURTHEST = 3.0
_MOST_BYTES = 1 << 26


class Prediction(NamedTuple):
    """Cycles, and the spread of the members' logarithms: about the relative error."""

    cycles: float
    spread: float


@dataclass(frozen=True)
class CycleModel:
    """Model of the logarithm of measured cycles over the base of the features.

    Parameters
    ----------
    members : tuple of str
        Ensembles of trees as LightGBM's text; none: the base is all that is known.
    about : dict
        Origin of the model, for reports.
    """

    members: tuple[str, ...]
    about: dict[str, Any]

    def __post_init__(self) -> None:
        self.trees  # noqa: B018  what is damaged is told at once

    @cached_property
    def trees(self) -> TreeEnsemble | None:
        """The members as arrays."""
        return TreeEnsemble(self.members, len(NAMES)) if self.members else None

    def predict(self, row: FeatureRow) -> Prediction:
        """Cycles of one layer."""
        if self.trees is None:
            return Prediction(row.base, 0.0)
        found = self.trees.one(np.array(row.numbers)).tolist()
        mean = sum(found) / len(found)
        spread = (sum((each - mean) ** 2 for each in found) / len(found)) ** 0.5
        return Prediction(row.base * exp(mean), spread)

    def predict_many(self, rows: Sequence[FeatureRow]) -> tuple[Floats, Floats]:
        """Cycles and spreads of many layers."""
        base = np.array([row.base for row in rows])
        if self.trees is None or not rows:
            return base, np.zeros(len(rows))
        found = self.trees.many(np.array([row.numbers for row in rows]))
        return base * np.exp(found.mean(axis=1)), found.std(axis=1)

    def save(self, path: Path) -> int:
        """Write it; returns its bytes.

        Raises
        ------
        WorkError
            It cannot be written.
        """
        header = {"format": FORMAT, "version": VERSION, "features": NAMES, "about": self.about}
        text = json.dumps(header | {"members": self.members})
        data = gzip.compress(text.encode(), 9, mtime=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            raise WorkError(f"{path}: cannot be written: {error.strerror}") from None
        return len(data)

    @staticmethod
    def load(path: Path) -> "CycleModel":
        """Read what `save` wrote; nothing in it is run.

        Raises
        ------
        InputError
            It is no such file, or of another version: says what to do.
        """
        remedy = f"make it anew with: mla calibrate -o {path}"
        try:
            with gzip.open(path) as file:
                data = json.loads(file.read(_MOST_BYTES))
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such performance model; {remedy}") from None
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise InputError(f"{path}: not a performance model ({error}); {remedy}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{path}: not a performance model; {remedy}")
        if data.get("version") != VERSION:
            raise InputError(
                f"{path}: a performance model of version {data.get('version')!r}, not {VERSION}; {remedy}"
            )
        if data.get("features") != list(NAMES):
            raise InputError(f"{path}: a performance model of other features than this compiler's; {remedy}")
        members, about = data.get("members"), data.get("about")
        if (
            not isinstance(members, list)
            or not isinstance(about, dict)
            or not all(isinstance(m, str) for m in members)
        ):
            raise InputError(f"{path}: not a whole performance model; {remedy}")
        try:
            return CycleModel(tuple(members), about)
        except (ValueError, KeyError, OverflowError) as error:
            raise InputError(f"{path}: damaged performance model: {error}; {remedy}") from None


def train(
    rows: Sequence[FeatureRow],
    cycles: Sequence[float],
    seed: int = 0,
    about: dict[str, Any] | None = None,
    rounds: int = _ROUNDS,
    offsets: Floats | None = None,
) -> CycleModel:
    """A model of measured layers.

    Parameters
    ----------
    rows, cycles : sequences
        Features and measured cycles of each layer.
    seed : int
        Seed of the samples that each member is trained with.
    about : dict or None
        Origin of the model, as in `CycleModel`.
    rounds : int
        Number of trees of a member.
    offsets : array or None
        Predictions of another model, as logarithms; only the residual is learned.
    """
    import lightgbm

    numbers, base = np.array([row.numbers for row in rows]), np.array([row.base for row in rows])
    rest = np.log(np.maximum(cycles, 1.0) / base) - (0.0 if offsets is None else offsets)
    data = lightgbm.Dataset(numbers, np.clip(rest, -_FURTHEST, _FURTHEST), free_raw_data=False)
    members = tuple(
        shortened(
            lightgbm.train(_TRAINING | {"seed": seed * MEMBERS + number}, data, rounds).model_to_string()
        )
        for number in range(MEMBERS)
    )
    return CycleModel(members, about or {})
