"""Learned cost model: boosted trees, predictions with their calibrated spread, and prediction errors."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from io import BytesIO
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.cost.features import ENERGY_NAMES, NAMES, FeatureRow
from compiler.profile.measurement import HardwareProfile
from cosim.rtl.cache import cache_folder
from hw.errors import InputError, WorkError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

#: Fields of a tree in LightGBM's model files that predictions need; the others describe the training.
_TREE_FIELDS = (
    "num_leaves",
    "num_cat",
    "split_feature",
    "threshold",
    "decision_type",
    "left_child",
    "right_child",
    "leaf_value",
    "is_linear",
    "shrinkage",
)
_MAX_DEPTH = 64
_SHARED = "two branches of a tree lead to the same node"


class TreeEnsemble:
    """Gradient-boosted trees of several ensemble members; a member predicts the sum of its trees' outputs.

    Parameters
    ----------
    members : sequence of str
        Models in LightGBM's text format.
    features : int
        Number of features per row.

    Raises
    ------
    ValueError
        A model is invalid or has categorical features; the message gives the reason.
    """

    def __init__(self, members: Sequence[str], features: int):
        parts = [_tree(block, features) for text in members for block in _blocks(text)]
        counts = [sum(1 for _ in _blocks(text)) for text in members]
        if not counts or min(counts) == 0:
            raise ValueError("a member has no trees")
        sizes = np.array([len(value) for *_, value in parts])
        roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
        feature, threshold, left, right, value = (np.concatenate(each) for each in zip(*parts, strict=True))
        at = np.repeat(roots, sizes)
        order, self._depth = _by_levels(roots, (left + at).astype(np.intp), (right + at).astype(np.intp))
        place = np.empty(len(value), np.intp)
        place[order] = np.arange(len(order))
        self._feature, self._threshold, self._value = (
            feature[order].astype(np.intp),
            threshold[order],
            value[order],
        )
        #: Next node if the feature is at most the threshold; otherwise, the next node has that index plus 1.
        self._left = place[(left + at).astype(np.intp)[order]]
        self._roots = np.arange(len(roots))
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)

    def one(self, row: Floats) -> Floats:
        """Return the prediction of each member for one row of features."""
        count = len(self._roots)  # the roots are the first nodes
        node = self._left[:count] + (row.take(self._feature[:count]) > self._threshold[:count])
        for _ in range(self._depth - 1):
            more = row.take(self._feature.take(node)) > self._threshold.take(node)
            node = self._left.take(node) + more
        return np.add.reduceat(self._value.take(node), self._starts)

    def many(self, rows: Floats) -> Floats:
        """Return predictions for many rows of features, as an array with axes (row, member)."""
        count, width = rows.shape
        first = (np.arange(count) * width)[:, None]
        node = np.broadcast_to(self._roots, (count, len(self._roots)))
        for _ in range(self._depth):
            more = rows.take(first + self._feature.take(node)) > self._threshold.take(node)
            node = self._left.take(node) + more
        return np.add.reduceat(self._value.take(node), self._starts, axis=1)


def _by_levels(roots: Indices, left: Indices, right: Indices) -> tuple[Indices, int]:
    """Return the nodes in breadth-first order, with the children of a node adjacent, and the depth of the trees.

    Both children of a leaf are the leaf itself.
    """
    order, front, total = [roots], roots, len(roots)
    while True:
        inner = front[left[front] != front]
        if not len(inner):
            whole = np.concatenate(order)
            if len(np.unique(whole)) < len(whole):
                raise ValueError(_SHARED)
            return whole, len(order) - 1
        front = np.stack([left[inner], right[inner]], axis=1).reshape(-1)
        order.append(front)
        total += len(front)
        if total > len(left):
            raise ValueError(_SHARED)
        if len(order) > _MAX_DEPTH:
            raise ValueError(f"a tree is deeper than {_MAX_DEPTH}")


def shortened(text: str) -> str:
    """Return a LightGBM model file with only the fields that predictions need, rounded to seven digits."""
    head, *trees = text.split("Tree=")
    lines = [line for line in head.splitlines() if not line.startswith("tree_sizes")]
    out = ["\n".join(lines)]
    for tree in trees:
        number, *fields = tree.split("end of trees")[0].split("\n")
        kept = [_rounded(line) for line in fields if line.split("=")[0] in _TREE_FIELDS]
        out.append("\n".join([f"Tree={number}", *kept, ""]))
    return "\n".join([*out, "end of trees", ""])


def _rounded(line: str) -> str:
    name, _, values = line.partition("=")
    if name not in ("threshold", "leaf_value"):
        return line
    return f"{name}={' '.join(f'{float(value):.7g}' for value in values.split())}"


def _blocks(text: str) -> Iterator[dict[str, str]]:
    for block in text.split("end of trees")[0].split("Tree=")[1:]:
        yield dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _tree(block: dict[str, str], features: int) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
    """Return feature, threshold, children and value of each node; splits come first, and a leaf is its own child."""
    leaves, splits = np.array(block["leaf_value"].split(), float), int(block["num_leaves"]) - 1
    if len(leaves) != splits + 1 or not np.isfinite(leaves).all() or block.get("num_cat", "0") != "0":
        raise ValueError("leaf values of a tree are not finite, or their number is wrong")
    ends = np.arange(splits, splits + len(leaves))
    if not splits:
        return np.zeros(1), np.full(1, np.inf), ends, ends, leaves
    feature, left, right = (
        np.array(block[name].split(), int) for name in ("split_feature", "left_child", "right_child")
    )
    threshold = np.array(block["threshold"].split(), float)
    if not all(len(each) == splits for each in (feature, left, right, threshold)):
        raise ValueError("a tree has the wrong number of splits")
    if feature.min() < 0 or feature.max() >= features or np.isnan(threshold).any():
        raise ValueError("a split of a tree uses an invalid feature or threshold")
    left, right = (np.where(child < 0, splits + ~child, child) for child in (left, right))
    for child in (left, right):
        if (child <= np.arange(splits)).any() or (child >= splits + len(leaves)).any():
            raise ValueError("a child of a tree node does not follow its parent")
    none = np.zeros(len(leaves))
    return (
        np.concatenate([feature, none]),
        np.concatenate([threshold, np.full(len(leaves), np.inf)]),
        np.concatenate([left, ends]),
        np.concatenate([right, ends]),
        np.concatenate([np.zeros(splits), leaves]),
    )


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the rank correlation of two series, in which equal values share the mean of their ranks."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 1.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


@dataclass(frozen=True)
class PredictionErrors:
    """Errors of a set of predictions.

    Parameters
    ----------
    count : int
        Number of predictions.
    mape : float
        Mean absolute error, in percent of the measured values.
    spearman : float
        Rank correlation; 1 if it is undefined.
    """

    count: int
    mape: float
    spearman: float

    @classmethod
    def from_pairs(cls, predicted: ArrayLike, measured: ArrayLike) -> "PredictionErrors":
        """Return the errors of pairs of predicted and measured values."""
        a, b = np.asarray(predicted, float), np.asarray(measured, float)
        mape = 100 * float(np.mean(np.abs(a / b - 1))) if len(a) else 0.0
        return cls(len(a), mape, spearman(a, b))

    def as_json(self) -> dict[str, float]:
        """Return the errors, rounded, as JSON fields."""
        return {"count": self.count, "mape": round(self.mape, 3), "spearman": round(self.spearman, 5)}


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


FORMAT, VERSION = "mla-hpm", 2
#: Number of ensemble members and their training parameters.
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
#: Limit on the natural logarithm of the predicted ratio of cycles to the base.
_MAX_LOG_RATIO = 3.0
#: Corrections of the logarithm of the estimate are reduced by this amount, since smaller ones are mostly noise, which
#: would decide between schedules with equal estimates.
_INSIGNIFICANT = 0.02
_MAX_FILE_BYTES = 1 << 26


class Prediction(NamedTuple):
    """Predicted cycles and their spread: at least 95% of the errors are at most twice the spread (`SpreadModel`)."""

    cycles: float
    spread: float


#: Training parameters, number of trees, and smallest error that is distinguished, of the model of errors.
_SPREAD_TRAINING: dict[str, Any] = {
    "objective": "regression_l1",
    "learning_rate": 0.08,
    "num_leaves": 12,
    "min_data_in_leaf": 15,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "verbose": -1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
}
_SPREAD_ROUNDS, _LEAST_ERROR = 80, 0.003
#: Share of the calibration errors that twice the spread must cover: more than the stated 95%, because layers of real
#: networks differ from calibration networks.
_COVERED = 0.975
#: Folds of the calibration; percentile of each feature beyond which a row counts as outside for calibration.
_FOLDS, _OUTER_PERCENTILE = 5, 1
#: Minimum number of rows from which spreads are trained.
_MIN_SPREAD_ROWS = 100
#: Largest spread, to which an extrapolation is limited.
_MAX_SPREAD = 1.0


@dataclass(frozen=True)
class SpreadModel:
    """Spread of predictions, calibrated by split conformal prediction, inside and outside the trained range.

    Trees predict the logarithm of the absolute error from the features. A factor for each of the two ranges scales
    their prediction so that twice the spread covers the errors of held-out networks. A row is outside if any of its
    features is less than the smallest or more than the largest value in training.

    Parameters
    ----------
    member : str
        Trees in LightGBM's text format.
    low, high : tuple of float
        Smallest and largest value of each feature in training.
    inside, outside : float
        Ratio of the spread to the predicted error, for rows inside and outside the trained range.
    """

    member: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    inside: float
    outside: float

    def __post_init__(self) -> None:
        low, high = np.array(self.low, float), np.array(self.high, float)
        if not len(low) == len(high) or not np.isfinite(low + high).all():
            raise ValueError("the range of a feature is missing or not finite")
        if not 0 < self.inside <= self.outside < np.inf:
            raise ValueError(
                "the factors of the spread are not positive, or decrease outside the trained range"
            )
        TreeEnsemble([self.member], len(low))  # report damage immediately

    @cached_property
    def _range(self) -> tuple[Floats, Floats]:
        return np.array(self.low), np.array(self.high)

    def outside_range(self, numbers: Floats) -> NDArray[np.bool_]:
        """Return, for a row or for many rows of features, True if the row is outside the trained range."""
        low, high = self._range
        return np.asarray(((numbers < low) | (numbers > high)).any(axis=-1))

    def scaled(self, log_errors: Floats, outside: NDArray[np.bool_]) -> Floats:
        """Return the spreads for the errors that the trees predict."""
        return np.minimum(np.where(outside, self.outside, self.inside) * np.exp(log_errors), _MAX_SPREAD)


def train_spread(
    numbers: Floats, errors: Floats, groups: Sequence[object], seed: int = 0
) -> SpreadModel | None:
    """Train the spread on errors of predictions; return None if there are too few rows.

    Parameters
    ----------
    numbers : (rows, features) array
        Features of measured layers.
    errors : (rows,) array
        Absolute errors of the predictions of these layers, in natural logarithms. The layers must not have been used to
        train the predictions.
    groups : sequence
        Network of each layer; the layers of a network are held out together.
    seed : int
        Seed of the folds and of the training.
    """
    import lightgbm

    if len(numbers) < _MIN_SPREAD_ROWS:
        return None

    def trees(rows: NDArray) -> Any:
        data = lightgbm.Dataset(numbers[rows], np.log(errors[rows] + _LEAST_ERROR))
        return lightgbm.train(_SPREAD_TRAINING | {"seed": seed}, data, _SPREAD_ROUNDS)

    def factor(trained: NDArray[np.bool_]) -> Floats:
        """Return the ratios of the errors to those predicted by trees that were trained on other rows."""
        return errors[~trained] / np.exp(
            np.asarray(trees(np.flatnonzero(trained)).predict(numbers[~trained]))
        )

    number_of = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    fold = (
        np.random.default_rng(seed).permutation(len(number_of))[[number_of[group] for group in groups]]
        % _FOLDS
    )
    ratios = np.concatenate([factor(fold != each) for each in range(_FOLDS)])
    inside = float(np.quantile(ratios, _COVERED)) / 2
    low, high = np.percentile(numbers, (_OUTER_PERCENTILE, 100 - _OUTER_PERCENTILE), axis=0)
    inner = ((numbers >= low) & (numbers <= high)).all(axis=1)
    outer = factor(inner) if _MIN_SPREAD_ROWS <= inner.sum() < len(inner) else ratios
    return SpreadModel(
        shortened(trees(np.arange(len(numbers))).model_to_string()),
        tuple(numbers.min(axis=0).tolist()),
        tuple(numbers.max(axis=0).tolist()),
        inside,
        max(inside, float(np.quantile(outer, _COVERED)) / 2),
    )


@dataclass(frozen=True)
class CycleModel:
    """Model of the logarithm of the ratio of measured cycles to the estimate in the features (`FeatureRow.base`).

    Parameters
    ----------
    members : tuple of str
        Ensembles of trees in LightGBM's text format; if empty, predictions are the estimates in the features.
    about : dict
        Origin of the model, for reports: hardware profile, number of samples and errors.
    error : SpreadModel or None
        Calibrated spread; None: the spread is the standard deviation of the members' log predictions.
    layers : frozenset of tuple of float
        Layers of the measurements that the model was retrained on (`layer_of`).
    elsewhere : CycleModel or None
        Model that predicts all layers that are not in `layers`; None: this model predicts all layers. It is not part of
        the model's file.
    names : tuple of str
        Names of the features.
    machine : tuple of float or None
        Factor of the estimate, and cycles per command that are added to it, of the machine that the model was retrained
        for (`fit_machine`). The trees then correct the result, also outside the trained range, because measurements of
        one machine cover only a part of the range. None: the estimates are not changed.
    """

    members: tuple[str, ...]
    about: dict[str, Any]
    error: SpreadModel | None = None
    layers: frozenset[tuple[float, ...]] = frozenset()
    elsewhere: "CycleModel | None" = field(default=None, repr=False)
    names: tuple[str, ...] = NAMES
    machine: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.error and len(self.error.low) != len(self.names):
            raise ValueError("the range of a feature is missing")
        self.trees  # noqa: B018  report damage immediately

    @cached_property
    def trees(self) -> TreeEnsemble | None:
        """Trees of the members, and of the spread as the last member; None if there are none."""
        members = (*self.members, *([self.error.member] if self.error else []))
        return TreeEnsemble(members, len(self.names)) if members else None

    def predict(self, row: FeatureRow) -> Prediction:
        """Return the predicted cycles of one layer: the estimate in the features outside the trained range."""
        if self.elsewhere is not None and layer_of(row) not in self.layers:
            return self.elsewhere.predict(row)
        base = float(self.bases([row])[0]) if self.machine else row.base
        if self.trees is None:
            return Prediction(base, 0.0)
        numbers = np.array(row.numbers)
        found = self.trees.one(numbers).tolist()
        if self.error is None:
            mean = sum(found) / len(found)
            return Prediction(
                base * exp(mean), (sum((each - mean) ** 2 for each in found) / len(found)) ** 0.5
            )
        *logs, error = found
        outside = bool(self.error.outside_range(numbers))
        spread = min((self.error.outside if outside else self.error.inside) * exp(error), _MAX_SPREAD)
        if (outside and not self.machine) or not logs:
            return Prediction(base, spread)
        mean = sum(logs) / len(logs)
        less = max(abs(mean) - _INSIGNIFICANT, 0.0)
        return Prediction(base * exp(less if mean > 0 else -less), spread)

    def bases(self, rows: Sequence[FeatureRow]) -> Floats:
        """Return the estimates in the features, adapted to the machine, if the model was retrained for one."""
        base = np.array([row.base for row in rows])
        if self.machine is None or not rows:
            return base
        factor, of_command = self.machine
        return factor * base + of_command * _commands(rows)

    def predict_many(self, rows: Sequence[FeatureRow]) -> tuple[Floats, Floats]:
        """Return the predicted cycles, and the spreads of the predictions, for many layers."""
        if self.elsewhere is None:
            return self._many(rows)
        own = np.array([layer_of(row) in self.layers for row in rows], bool)
        cycles, spreads = np.zeros(len(rows)), np.zeros(len(rows))
        for model, chosen in ((replace(self, elsewhere=None), own), (self.elsewhere, ~own)):
            if chosen.any():
                found = model.predict_many([row for row, mine in zip(rows, chosen, strict=True) if mine])
                cycles[chosen], spreads[chosen] = found
        return cycles, spreads

    def _many(self, rows: Sequence[FeatureRow]) -> tuple[Floats, Floats]:
        base = self.bases(rows)
        if not rows or self.trees is None:
            return base, np.zeros(len(rows))
        numbers = np.array([row.numbers for row in rows])
        found = self.trees.many(numbers)
        if self.error is None:
            return base * np.exp(found.mean(axis=1)), found.std(axis=1)
        outside = self.error.outside_range(numbers)
        spread = self.error.scaled(found[:, -1], outside)
        if not self.members:
            return base, spread
        mean = found[:, :-1].mean(axis=1)
        less = np.sign(mean) * np.maximum(np.abs(mean) - _INSIGNIFICANT, 0.0)
        return base * np.exp(np.where(outside & (self.machine is None), 0.0, less)), spread

    def save(self, path: Path) -> int:
        """Write the model to a file and return the size in bytes.

        Raises
        ------
        WorkError
            The file cannot be written.
        """
        data = self.to_bytes()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            raise WorkError(f"{path}: cannot be written: {error.strerror}") from None
        return len(data)

    def to_bytes(self) -> bytes:
        """Return the contents of a model file."""
        header = {"format": FORMAT, "version": VERSION, "features": self.names, "about": self.about}
        error = None if self.error is None else asdict(self.error)
        text = json.dumps(
            header
            | {"members": self.members, "spread": error, "layers": sorted(map(list, self.layers))}
            | ({"machine": self.machine} if self.machine else {})
        )
        return gzip.compress(text.encode(), 9, mtime=0)

    @staticmethod
    def load(path: Path, names: tuple[str, ...] = NAMES) -> "CycleModel":
        """Read a model of the named features written by `save`; no code in the file is executed.

        Raises
        ------
        InputError
            The file is not a model or has a different version. The message contains the command that creates a model.
        """
        remedy = f"create it again with: mla calibrate -o {path}"
        try:
            return CycleModel.from_bytes(path.read_bytes(), names)
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such cost model; {remedy}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}; {remedy}") from None

    @staticmethod
    def from_bytes(file: bytes, names: tuple[str, ...] = NAMES) -> "CycleModel":
        """Read the contents of a file with a model of the named features; no code in the file is executed.

        Raises
        ------
        ValueError
            The data are not a model or have a different version.
        """
        try:
            with gzip.open(BytesIO(file)) as stream:
                data = json.loads(stream.read(_MAX_FILE_BYTES))
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise ValueError(f"not a cost model ({error})") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError("not a cost model")
        if data.get("version") != VERSION:
            raise ValueError(f"a cost model of version {data.get('version')!r}, not {VERSION}")
        if data.get("features") != list(names):
            raise ValueError("a cost model of other features than this compiler's")
        members, about = data.get("members"), data.get("about")
        if (
            not isinstance(members, list)
            or not isinstance(about, dict)
            or not all(isinstance(m, str) for m in members)
        ):
            raise ValueError("not a whole cost model")
        try:
            layers = frozenset(tuple(float(each) for each in layer) for layer in data.get("layers", []))
            return CycleModel(
                tuple(members),
                about,
                _spread_of(data.get("spread")),
                layers,
                names=names,
                machine=_machine_of(data.get("machine")),
            )
        except (ValueError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"damaged cost model: {error}") from None


_LOG_TILES, _TILE_COMMANDS = NAMES.index("log_tiles"), NAMES.index("commands_per_tile")
#: Iterations of the fit to a machine, and relative error below which measurements have equal weights.
_FIT_ITERATIONS, _FIT_ERROR = 8, 0.03
#: Features that describe a layer and its machine, but not its schedule.
_LAYER_FEATURES = tuple(
    NAMES.index(name)
    for name in (
        "kind",
        "width",
        "out_left",
        "in_left",
        "kernel",
        "stride",
        "groups",
        "residual",
        "table",
        "out_bytes",
        "inputs",
        "beat",
        "log_latency",
        "n",
    )
)


def layer_of(row: FeatureRow) -> tuple[float, ...]:
    """Return the features of a row that do not depend on the schedule, rounded."""
    return tuple(round(row.numbers[index], 4) for index in _LAYER_FEATURES)


def _commands(rows: Sequence[FeatureRow]) -> Floats:
    """Return the number of commands of each layer."""
    return np.array([exp(row.numbers[_LOG_TILES]) * row.numbers[_TILE_COMMANDS] for row in rows])


def fit_machine(rows: Sequence[FeatureRow], cycles: Floats) -> tuple[float, float]:
    """Fit a factor of the estimate, and cycles per command, both at least 0, to the measured cycles of layers.

    Least squares of the relative errors are iterated with weights that limit the influence of outliers.
    """
    from scipy.optimize import nnls  # imported on demand: loading takes half a second

    sides = np.stack([[row.base for row in rows], _commands(rows)], axis=1) / cycles[:, None]
    weights = np.ones(len(rows))
    found = np.array([1.0, 0.0])
    for _ in range(_FIT_ITERATIONS):
        found, _ = nnls(sides * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(sides @ found - 1), _FIT_ERROR))
    return float(found[0]), float(found[1])


def _machine_of(data: object) -> tuple[float, float] | None:
    """Return the machine in a model file; raises ValueError if it is damaged."""
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != 2:
        raise ValueError("the machine is incomplete")
    factor, of_command = (float(each) for each in data)
    if not (0 <= factor < np.inf and 0 <= of_command < np.inf and factor + of_command > 0):
        raise ValueError("the machine's factors are not positive")
    return factor, of_command


def _spread_of(data: object) -> SpreadModel | None:
    """Return the spread in a model file; raises ValueError if it is damaged."""
    if data is None:
        return None
    if not isinstance(data, dict) or set(data) != {"member", "low", "high", "inside", "outside"}:
        raise ValueError("the spread is incomplete")
    member, inside, outside = data["member"], float(data["inside"]), float(data["outside"])
    if not isinstance(member, str):
        raise ValueError("the trees of the spread are missing")
    low, high = (tuple(float(each) for each in data[name]) for name in ("low", "high"))
    return SpreadModel(member, low, high, inside, outside)


def train(
    rows: Sequence[FeatureRow],
    cycles: Sequence[float],
    seed: int = 0,
    about: dict[str, Any] | None = None,
    rounds: int = _ROUNDS,
    offsets: Floats | None = None,
    names: tuple[str, ...] = NAMES,
) -> CycleModel:
    """Train a model on measured layers.

    Parameters
    ----------
    rows, cycles : sequences
        Features and measured cycles of each layer.
    seed : int
        Seed of the random samples on which the members are trained.
    about : dict or None
        Origin of the model, as in `CycleModel`.
    rounds : int
        Number of trees per member.
    offsets : array or None
        Log ratios that another model predicts; the new model learns only the residuals.
    names : tuple of str
        Names of the features.
    """
    import lightgbm

    numbers, base = np.array([row.numbers for row in rows]), np.array([row.base for row in rows])
    rest = np.log(np.maximum(cycles, 1.0) / base) - (0.0 if offsets is None else offsets)
    data = lightgbm.Dataset(numbers, np.clip(rest, -_MAX_LOG_RATIO, _MAX_LOG_RATIO), free_raw_data=False)
    members = tuple(
        shortened(
            lightgbm.train(_TRAINING | {"seed": seed * MEMBERS + number}, data, rounds).model_to_string()
        )
        for number in range(MEMBERS)
    )
    return CycleModel(members, about or {}, names=names)


#: Models included with the compiler, for any memory, of machines without and with `pipelined`, and of the energy on all
#: machines (docs/cost_model.md).
SHIPPED, SHIPPED_PIPELINED, SHIPPED_ENERGY = (
    Path(__file__).parent / name for name in ("shipped.hpm", "pipelined.hpm", "energy.hpm")
)


def energy_model() -> CycleModel:
    """Return the model of the energy in nanojoules, for rows of `FeatureRow.for_energy`."""
    return _loaded(SHIPPED_ENERGY, 0, ENERGY_NAMES)


#: Refused accesses per cycle of layers whose buffers share banks, and of all others, on n16 (`python -m
#: scripts.hpm_error --layers FILE`).
_CONFLICTS_SHARED, _CONFLICTS_APART = 0.04, 0.0003


def predicted_conflicts(rows: Sequence[FeatureRow]) -> Floats:
    """Return the expected number of accesses that a memory bank refuses, for many layers.

    Buffers are placed in different banks where possible, so that few layers have conflicts: those with more buffers of
    sums than the accumulator has banks, and those that fill most of the scratchpad.
    """
    shared = np.array([row.work is not None and row.work.shared_banks for row in rows], bool)
    base = np.array([row.base for row in rows])
    return base * np.where(shared, _CONFLICTS_SHARED, _CONFLICTS_APART)


def model_path(conditions: HardwareProfile) -> Path:
    """Return the default path of the model that `mla calibrate` writes for a hardware profile."""
    return cache_folder() / "hpm" / f"{conditions.key}.hpm"


def journal_path(conditions: HardwareProfile, seed: int) -> Path:
    """Return the path of the journal that records the measurements of a calibration."""
    return cache_folder() / "hpm" / f"{conditions.key}.{seed}.jsonl"


def find_model(conditions: HardwareProfile) -> CycleModel:
    """Return the user's calibrated model for a hardware profile, or the model included with the compiler.

    The features include the number of lanes and the timing of the memory. For layers, machines and memories outside the
    trained range of the included model, predictions are the estimates in the features, with a wider spread.

    Raises
    ------
    InputError
        The user's model file is damaged.
    """
    own = model_path(conditions)
    if own.exists():
        return _loaded(own, own.stat().st_mtime_ns)
    return _loaded(SHIPPED_PIPELINED if conditions.config.pipelined else SHIPPED, 0)


@cache
def _loaded(path: Path, _changed: int, names: tuple[str, ...] = NAMES) -> CycleModel:
    """Return the model in a file, cached by modification time because reading takes longer than most trials."""
    return CycleModel.load(path, names)
