"""Random 2:4 weights, and their tiles for the sparse mode of MATRIX (docs/machine.md)."""

import numpy as np
from numpy.typing import NDArray


def random_sparse(rng: np.random.Generator, k: int, columns: int) -> NDArray[np.int64]:
    """Return a k x columns matrix of int8 with at most two weights that are not 0 in each four rows of a column."""
    weights = rng.integers(-128, 128, (-(-k // 4), 4, columns))
    kept = np.argsort(rng.random(weights.shape), axis=1)
    weights[kept >= 2] = 0
    return weights.reshape(-1, columns)[:k]


def sparse_tile(weights: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the N weight rows of a 2N x N matrix, and the N/4 rows of their indices."""
    n = weights.shape[1]
    values, indices = np.zeros((n, n), np.int64), np.zeros((n // 4, n), np.int64)
    for group, column in np.ndindex(n // 2, n):
        found = [i for i in range(4) if weights[4 * group + i, column]]
        assert len(found) <= 2
        for element, index in enumerate(found):
            row = 2 * group + element
            values[row, column] = weights[4 * group + index, column]
            indices[row // 4, column] |= index << 2 * (row % 4)
    return np.concatenate([values, indices]).astype(np.uint8)


def sparse_tiles(weights: NDArray[np.int64], n: int) -> NDArray[np.uint8]:
    """Return the tiles of a matrix, of shape (reduction block, column block, row, N)."""
    k, columns = weights.shape
    return np.array(
        [
            [sparse_tile(weights[i : i + 2 * n, j : j + n]) for j in range(0, columns, n)]
            for i in range(0, k, 2 * n)
        ]
    )
