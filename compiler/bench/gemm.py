"""GEMM cases: a matrix times constant weights."""

import numpy as np

from compiler.bench.case import Case, Work, sizes
from compiler.bench.reference import REFERENCE, requantize_dense
from compiler.bench.single_layer import X_ZERO, Y_ZERO, OneLayer, random_int8
from hw.errors import InputError, shown

CASES = (
    "17x17x17",
    "64x64x64",
    "100x70x33",
    "128x128x128",
    "256x256x256",
    "512x512x512",
    "1000x1000x1000",
    "12544x256x64",
    "12544x64x256",
    "3136x512x128",
    "3136x128x512",
    "784x1024x256",
    "1x4096x4096",
    "1000x64x512",
)


def gemm_case(name: str) -> Case:
    """Return the case for a name of the form MxNxK.

    Raises
    ------
    InputError
        The name is malformed.
    """
    values = sizes(r"(\d+)x(\d+)x(\d+)", name)
    if values is None:
        raise InputError(f"a GEMM case must be MxNxK like 64x64x64, not {shown(name)}")
    m, n, k = values

    def prepare(rng: np.random.Generator) -> Work:
        layer, x = OneLayer(rng, (n, k), 0, k), random_int8(rng, m, k)
        sums = (x.astype(np.int64) - X_ZERO) @ layer.weights.astype(np.int64).T + layer.bias
        expected = requantize_dense(sums, layer.ratios(), Y_ZERO)
        return Work(layer.graph("dense", (m, k), (m, n)), {"x": x}, {"y": expected})

    return Case(name, REFERENCE, prepare)
