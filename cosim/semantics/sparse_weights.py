"""Format of the weights of sparse tiles (docs/machine.md): values, and the indices of their activations."""

import numpy as np
from numpy.typing import NDArray


def is_sparse(weights: NDArray[np.generic]) -> bool:
    """Return True if at most two of each four consecutive weights are not 0.

    Parameters
    ----------
    weights : array
        Weights; the last dimension is the reduction dimension. If its size is not a multiple of 4, the result is False.
    """
    if weights.shape[-1] % 4 or 2 * np.count_nonzero(weights) > weights.size:
        return False
    return bool((np.count_nonzero(weights.reshape(-1, 4), axis=1) <= 2).all())


def pack_sparse(tiles: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return sparse tiles: N rows of weights, and N/4 rows of indices.

    Parameters
    ----------
    tiles : (tile, 2 * N, N) int8 array
        Weights, of which at most two of each four consecutive rows of a column are not 0.

    Returns
    -------
    (tile, N + N/4, N) uint8 array
        Bytes that MATRIX reads in sparse mode.
    """
    count, lanes, n = tiles.shape
    groups = tiles.reshape(count, lanes // 4, 4, n)
    used = groups != 0
    first, last = used.argmax(axis=2), 3 - used[:, :, ::-1].argmax(axis=2)
    chosen = np.stack([first, last], axis=2)
    values = np.take_along_axis(groups, chosen, axis=2)
    values[:, :, 1][first == last] = 0
    shifted = (
        chosen.astype(np.uint8).reshape(count, n // 4, 4, n) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    )
    return np.concatenate(
        [values.reshape(count, n, n).view(np.uint8), shifted.sum(axis=2, dtype=np.uint8)], axis=1
    )
