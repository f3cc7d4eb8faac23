"""How many elements of each window lie inside the image."""

from itertools import groupby, product

from compiler.lower.lowering import Lowering, UnsupportedError

#: Windows of more different numbers of elements are no work for a program.
_MOST_COUNTS = 64


def inside(size: int, kernel: int, stride: int, pad: int, outputs: int) -> list[tuple[int, int, int]]:
    """Runs of windows along one dimension of which equally many elements are inside: first one, number, elements."""
    counts = [min(i * stride - pad + kernel, size) - max(i * stride - pad, 0) for i in range(outputs)]
    runs, start = [], 0
    for count, group in groupby(counts):
        length = len(list(group))
        runs.append((start, length, count))
        start += length
    return runs


def inside_counts(low: Lowering) -> set[int]:
    """All numbers of elements inside.

    Raises
    ------
    UnsupportedError
        A window has none, or there are too many different ones.
    """
    a, (_, *sizes, _), (_, *outputs, _) = low.anchor.attributes, low.x.shape, low.y.shape
    runs = [inside(*v) for v in zip(sizes, a["kernel"], a["strides"], a["pads"], outputs, strict=False)]
    pairs = [rows[2] * columns[2] for rows, columns in product(*runs)]
    if len(pairs) > _MOST_COUNTS or min(pairs) < 1:
        raise UnsupportedError(f"an average whose windows reach beyond the image in {len(pairs)} ways")
    return set(pairs)
