"""Ensembles of LightGBM regression trees as flat numpy arrays, evaluated in tens of microseconds a row."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

#: Lines of LightGBM's text that predictions need; the others say how training went.
_KEPT = (
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
_DEEPEST = 64
_SHARED = "two branches of a tree lead to the same node"


class TreeEnsemble:
    """The trees of some members, whose predictions are the sums of their trees.

    Parameters
    ----------
    members : sequence of str
        Models as LightGBM writes them to text.
    features : int
        Number of features of a row.

    Raises
    ------
    ValueError
        They are not what LightGBM writes for numerical features; says why.
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
        #: Where to go if the feature is no more than the threshold; else to the node behind that one.
        self._left = place[(left + at).astype(np.intp)[order]]
        self._roots = np.arange(len(roots))
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)

    def one(self, row: Floats) -> Floats:
        """Prediction of each member for one row of features."""
        count = len(self._roots)  # these come first
        node = self._left[:count] + (row.take(self._feature[:count]) > self._threshold[:count])
        for _ in range(self._depth - 1):
            more = row.take(self._feature.take(node)) > self._threshold.take(node)
            node = self._left.take(node) + more
        return np.add.reduceat(self._value.take(node), self._starts)

    def many(self, rows: Floats) -> Floats:
        """Predictions for many rows, as an array (rows, members)."""
        count, width = rows.shape
        first = (np.arange(count) * width)[:, None]
        node = np.broadcast_to(self._roots, (count, len(self._roots)))
        for _ in range(self._depth):
            more = rows.take(first + self._feature.take(node)) > self._threshold.take(node)
            node = self._left.take(node) + more
        return np.add.reduceat(self._value.take(node), self._starts, axis=1)


def _by_levels(roots: Places, left: Places, right: Places) -> tuple[Places, int]:
    """Nodes so that the two below one are side by side, those nearer the roots first; and how deep they go.

    Leaves lead to themselves.
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
        if len(order) > _DEEPEST:
            raise ValueError(f"a tree is deeper than {_DEEPEST}")


def shortened(text: str) -> str:
    """A model's text without what predictions do not need, its numbers to seven digits; LightGBM reads it too."""
    head, *trees = text.split("Tree=")
    lines = [line for line in head.splitlines() if not line.startswith("tree_sizes")]
    out = ["\n".join(lines)]
    for tree in trees:
        number, *fields = tree.split("end of trees")[0].split("\n")
        kept = [_rounded(line) for line in fields if line.split("=")[0] in _KEPT]
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
    """Feature, threshold, children and value of each node; leaves come behind the splits and lead to themselves."""
    leaves, splits = np.array(block["leaf_value"].split(), float), int(block["num_leaves"]) - 1
    if len(leaves) != splits + 1 or not np.isfinite(leaves).all() or block.get("num_cat", "0") != "0":
        raise ValueError("a tree's leaves are not numbers, or not as many as it says")
    ends = np.arange(splits, splits + len(leaves))
    if not splits:
        return np.zeros(1), np.full(1, np.inf), ends, ends, leaves
    feature, left, right = (
        np.array(block[name].split(), int) for name in ("split_feature", "left_child", "right_child")
    )
    threshold = np.array(block["threshold"].split(), float)
    if not all(len(each) == splits for each in (feature, left, right, threshold)):
        raise ValueError("a tree has not as many splits as it says")
    if feature.min() < 0 or feature.max() >= features or np.isnan(threshold).any():
        raise ValueError("a tree splits by what is no feature")
    left, right = (np.where(child < 0, splits + ~child, child) for child in (left, right))
    for child in (left, right):
        if (child <= np.arange(splits)).any() or (child >= splits + len(leaves)).any():
            raise ValueError("a tree's children do not come behind it")
    none = np.zeros(len(leaves))
    return (
        np.concatenate([feature, none]),
        np.concatenate([threshold, np.full(len(leaves), np.inf)]),
        np.concatenate([left, ends]),
        np.concatenate([right, ends]),
        np.concatenate([np.zeros(splits), leaves]),
    )
