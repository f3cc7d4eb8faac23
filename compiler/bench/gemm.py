"""GEMM cases: int8 in and out, int32 bias, a scale for each column."""

import numpy as np

from compiler.bench.case import Case, Work, sizes
from compiler.bench.reference import requantize
from compiler.kernels.gemm import gemm_operands, gemm_tiles, pack_weights
from compiler.kernels.library import Library
from compiler.kernels.scaling import param_image, quantize_multiplier
from hw.errors import InputError, shown

CASES = (
    "17x17x17",
    "64x64x64",
    "100x70x33",
    "128x128x128",
    "256x256x256",
    "512x512x512",
    "12544x256x64",
    "1x4096x4096",
    "1000x64x512",
)
_ZP, _A_ZP = -3, 5
_SPREAD = 74.0  # of uniform int8 values: scales that use the int8 range


def random_scales(rng: np.random.Generator, count: int, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers and exponents that bring sums of `terms` products of random int8 values to int8."""
    scales = rng.uniform(0.5, 1.5, count) * 40 / (_SPREAD**2 * np.sqrt(terms))
    pairs = np.array([quantize_multiplier(float(scale)) for scale in scales], np.int64)
    return pairs[:, 0], pairs[:, 1]


def random_int8(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Every value of int8 equally likely."""
    return rng.integers(-128, 128, shape, dtype=np.int8)


def gemm_case(name: str) -> Case:
    """Case of a name MxNxK.

    Raises
    ------
    InputError
        The name is not of that form.
    """
    values = sizes(r"(\d+)x(\d+)x(\d+)", name)
    if values is None:
        raise InputError(f"a GEMM case must be MxNxK like 64x64x64, not {shown(name)}")
    m, n, k = values

    def prepare(library: Library, rng: np.random.Generator) -> Work:
        config, put = library.config, library.driver.put
        a, b = random_int8(rng, m, k), random_int8(rng, k, n)
        bias = rng.integers(-1000, 1000, n)
        mult, exp = random_scales(rng, n, k)
        y = put(np.zeros((m, n), np.int8))
        operands = gemm_operands(
            config, gemm_tiles(config, m, n, k), a=put(a), b=put(pack_weights(config, b)), c=y,
            p=put(param_image(config.n, bias, mult, exp)), m=m, n=n, k=k, zp=_ZP, a_zp=_A_ZP,
        )  # fmt: skip
        sums = (a.astype(np.int64) - _A_ZP) @ b.astype(np.int64) + bias
        opcode = library.bind("gemm_i8")
        return Work(
            y, requantize(sums, mult, exp, _ZP), lambda: library.driver.enqueue(opcode, operands, irq=True)
        )

    traffic = m * k + k * n + m * n + 4 * n
    return Case(
        name=name, macs=m * n * k, traffic=traffic, dram_bytes=2 * traffic + 64 * (k + n), prepare=prepare
    )
