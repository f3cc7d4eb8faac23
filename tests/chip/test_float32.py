"""FUSE on float32 values equals numpy's float32 arithmetic on all devices."""

import numpy as np
import pytest

from tests.chip.conftest import Machine

ROWS, N = 64, 4
COUNT = ROWS * N

#: Operands 0 to 3: inputs, results, multiplier, exponent with bytes per result; tests fill in `word` and `zp`.
PROGRAM = """
    set load.dram, op0
    set load.len, {size}
    issue load, signal(fuse:0)
    set fuse.src, a_src=sp a_dtype={a} requant=imm rounding=even
    set fuse.stage, d_dst=sp d_dtype={d} {word}
    set fuse.x_count, {rows}
    set fuse.v_x, 1
    set fuse.a_v, {a_row}
    set fuse.d_x, {d_row}
    set fuse.d_base, 4096
    set fuse.zp_ab, {zero}
    set fuse.zp, {zp}
    set fuse.mult, op2
    set fuse.shifts, op3
    issue fuse, wait(load:0), signal(store:0)
    set store.src, 4096
    set store.dram, op1
    set store.len, {out}
    issue store, wait(fuse:0)
    halt
"""
BYTES = {"i8": 1, "u8": 1, "i16": 2, "i32": 4}
NUMPY = {"i8": np.int8, "u8": np.uint8, "i16": np.int16, "i32": np.int32}


def run(
    machine: Machine,
    values: np.ndarray,
    result: type,
    factor: float,
    *,
    word: str,
    zero: int = 0,
    zp: int = 0,
) -> np.ndarray:
    """Run FUSE on inputs, multiplied by a factor, and return the results."""
    mantissa, power = np.frexp(factor)
    names = {np.dtype(t).name: name for name, t in NUMPY.items()} | {"float32": "i32"}
    a, d = names[values.dtype.name], names[np.dtype(result).name]
    driver = machine.driver
    x, y = driver.memory.alloc(values.nbytes, 64, "x"), driver.memory.alloc(4 * COUNT, 64, "y")
    driver.put(values, x)
    text = PROGRAM.format(
        size=values.nbytes,
        a=a,
        d=d,
        word=word,
        rows=ROWS,
        a_row=N * BYTES[a],
        d_row=N * BYTES[d],
        zero=zero & 0xFFFF,
        zp=zp,
        out=COUNT * BYTES[d],
    )
    machine.load(text)
    driver.enqueue(1, [x, y, round(float(mantissa) * 2**31), int(power) & 255])
    assert not driver.run()
    return driver.fetch(y, (COUNT,), np.dtype(result))


def float_values(rng: np.random.Generator, spread: float) -> np.ndarray:
    """Return float32 values of many magnitudes, with ties, signed zeros, subnormal values and infinities."""
    special = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 126.5, 127.5, -128.5, 1e-45, -1e-40, 1e38, -3e38]
    drawn = rng.standard_normal(COUNT - len(special) - 2) * np.exp(rng.uniform(-spread, spread))
    return np.array([*special, np.inf, -np.inf, *drawn], np.float32)


@pytest.mark.parametrize("result", [np.int8, np.uint8, np.int16])
def test_float_to_integer(machine: Machine, result: type, rng: np.random.Generator) -> None:
    limits = np.iinfo(result)
    for factor in (1.0, 0.5, 1 / 3, 2.0**20, float(np.float32(rng.uniform(0.01, 50)))):
        x, zp = float_values(rng, 4), int(rng.integers(-3, 4))
        factor = float(np.float32(factor))
        with np.errstate(over="ignore"):
            real = np.rint((x * np.float32(factor)).astype(np.float64))
        want = np.clip(real + zp, limits.min, limits.max).astype(result)
        np.testing.assert_array_equal(run(machine, x, result, factor, word="a_float=1", zp=zp), want)


@pytest.mark.parametrize("given", [np.int8, np.uint8, np.int16, np.int32])
def test_integer_to_float(machine: Machine, given: type, rng: np.random.Generator) -> None:
    limits = np.iinfo(given)
    bound = min(limits.max, (1 << 24) - 200)  # integers that float32 represents exactly
    for factor in (1.0, 1e-3, 7.5e-39, 1e38, float(rng.uniform(1e-4, 10))):
        factor, zero = float(np.float32(factor)), int(rng.integers(-100, 100))
        x = rng.integers(max(limits.min, -bound), bound + 1, COUNT).astype(given)
        x[:3] = 0, 1, bound
        with np.errstate(over="ignore"):
            want = (x.astype(np.int64) - zero).astype(np.float32) * np.float32(factor)
        want = np.where(
            np.abs(want) < np.finfo(np.float32).tiny, np.float32(0), want
        )  # results are never subnormal
        got = run(machine, x, np.int32, factor, word="to_float=1", zero=zero).view(np.float32)
        np.testing.assert_array_equal(got, want)


def test_float_to_float(machine: Machine, rng: np.random.Generator) -> None:
    """The result is the float32 product, rounded once."""
    x, factor = float_values(rng, 40)[14:], np.float32(rng.uniform(0.1, 10))
    x = np.concatenate([x[2:], np.zeros(16, np.float32)])
    with np.errstate(over="ignore"):
        want = x * factor
    want = np.where(np.abs(want) < np.finfo(np.float32).tiny, np.float32(0), want)
    got = run(machine, x, np.int32, float(factor), word="a_float=1 to_float=1").view(np.float32)
    np.testing.assert_array_equal(got, want)
