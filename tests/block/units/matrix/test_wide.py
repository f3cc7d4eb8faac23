"""Wide and sparse mode of the array and of MATRIX: sums of 2 * n activations, compared with numpy."""

from dataclasses import replace

import numpy as np
import pytest

from hw.array.systolic import OPERAND_BITS, SystolicArray, weight_bits
from hw.config import MlaConfig
from hw.units.matrix.layouts import done_after
from tests.block.units.matrix.reference import command
from tests.block.units.matrix.testbench import MatrixTestbench, fresh_memories, small_config
from tests.support.sparse_weights import random_sparse, sparse_tile
from tests.support.testbench import simulate


def _packed(values: np.ndarray, sources: np.ndarray | None = None, bits: int = OPERAND_BITS) -> int:
    """Return operands as one number with `bits` bits for each lane, the sources after the OPERAND_BITS of a weight."""
    mask, word = (1 << OPERAND_BITS) - 1, 0
    for i, value in enumerate(values):
        lane = (int(value) & mask) | (0 if sources is None else int(sources[i]) << OPERAND_BITS)
        word |= lane << bits * i
    return word


def _sums(word: int, n: int) -> list[int]:
    return np.frombuffer(word.to_bytes(4 * n, "little"), np.int32).tolist()


def _nibbles(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the signed low and high nibbles of signed bytes."""
    raw = weights.astype(np.int8).view(np.uint8)
    low, high = (raw & 15).astype(np.int64), (raw >> 4).astype(np.int64)
    return np.where(low > 7, low - 16, low), np.where(high > 7, high - 16, high)


class _Stimulus:
    """Inputs of the array in each cycle for random tiles, and the expected sums.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the array.
    modes : list of str
        For each tile, its mode: wide, sparse, or an empty string.
    rng : numpy.random.Generator
        Source of the tiles, of their distances, and of the inputs that must have no effect.
    """

    def __init__(self, config: MlaConfig, modes: list[str], rng: np.random.Generator):
        n, buses = config.n, config.weight_rows
        self.cycles: dict[int, dict[str, int]] = {}
        self.expected: dict[int, list[int]] = {}
        self.rng, self.n, start, least = rng, n, 2, n // buses
        self.bits = weight_bits(config)
        for number, mode in enumerate(modes):
            wide = mode == "wide"
            rows = int(rng.choice((1, 2, least, n, int(rng.integers(1, 2 * n)))))
            limit = 128 if wide else 256
            weights = rng.integers(-limit, limit, (n, n))
            if rng.random() < 0.3:
                weights = rng.choice(np.array([-128, -1, 127] if wide else [-255, 255]), (n, n))
            bus = number % buses
            sources = rng.integers(0, 4, (n, n)) if mode == "sparse" else np.zeros((n, n), int)
            for k in range(n):
                at = self._at(start + k)
                at[f"weights{bus}"], at[f"write_row{bus}"] = (
                    _packed(weights[k], sources[k], self.bits),
                    1 << k,
                )
            self._at(start)["swap"] = 1
            low, high = _nibbles(weights) if wide else (weights, np.zeros((n, n), np.int64))
            if mode == "sparse":
                low = np.zeros((n, n), np.int64)
                for k, c in np.ndindex(n, n):
                    half = high if sources[k, c] & 2 else low
                    half[k ^ (int(sources[k, c]) & 1), c] += weights[k, c]
            for r in range(rows):
                row, second = self._activations(), self._activations()
                if mode:
                    self._at(start + r)[mode] = 1
                at = self._at(start + r + 1)
                at["row"], at["second"] = _packed(row), _packed(second)
                total = row @ low + second @ high
                self.expected[start + r + 1 + 2 * n + 1] = total.astype(np.int32).tolist()
            start += max(rows, least) + int(rng.choice((0, 0, 0, 1, 3 * n)))
        self.end = start + 3 * n + 4

    def _activations(self) -> np.ndarray:
        if self.rng.random() < 0.2:
            return self.rng.choice(np.array([-255, 255]), self.n)
        return self.rng.integers(-255, 256, self.n)

    def _at(self, cycle: int) -> dict[str, int]:
        return self.cycles.setdefault(cycle, {})

    def inputs(self, cycle: int, buses: int) -> dict[str, int]:
        """Return all inputs of a cycle; those without a value are random where they have no effect."""
        noise = {name: _packed(self._activations()) for name in ("row", "second")}
        idle = {"swap": 0, "wide": 0, "sparse": 0}
        for b in range(buses):
            noise[f"weights{b}"] = _packed(self._activations(), None, self.bits)
            idle[f"write_row{b}"] = 0
        return noise | idle | self.cycles.get(cycle, {})


def _simulated(dut: SystolicArray, stimulus: _Stimulus, buses: int) -> dict[int, list[int]]:
    """Return the sums of the array in the cycles in which they are expected."""
    found: dict[int, list[int]] = {}

    async def bench(ctx) -> None:
        for cycle in range(stimulus.end):
            for name, value in stimulus.inputs(cycle, buses).items():
                if name in dut.signature.members:
                    ctx.set(getattr(dut, name), value)
            if cycle in stimulus.expected:
                found[cycle] = _sums(ctx.get(dut.psum), dut.n)
            await ctx.tick()

    simulate(dut, bench)
    return found


@pytest.mark.parametrize("buses", [1, 2])
@pytest.mark.parametrize(("n", "seed"), [(4, 1), (4, 2), (4, 3), (8, 4), (8, 5), (16, 6)])
def test_array(n: int, buses: int, seed: int):
    """Tiles of all modes, back to back and with gaps, have exact sums after 2 * n + 1 cycles."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    config = MlaConfig(n=n, weight_rows=buses)
    dut = SystolicArray(config)
    modes = rng.choice(["", "wide", "sparse"], 18 if n < 16 else 8).tolist()
    stimulus = _Stimulus(config, modes, rng)
    assert _simulated(dut, stimulus, buses) == stimulus.expected


@pytest.mark.parametrize(("wide", "inputs"), [(0, set()), (1, {"second", "wide"})])
def test_array_without_modes(wide: int, inputs: set[str]):
    """Without `sparse` or `wide`, the array computes the same sums of other tiles and has fewer inputs."""
    config = MlaConfig(n=4, wide=wide, sparse=0)
    dut = SystolicArray(config)
    assert {"second", "wide", "sparse"} & set(dut.signature.members) == inputs
    stimulus = _Stimulus(config, ["", "wide"][: wide + 1] * (12 // (wide + 1)), np.random.default_rng(9))
    assert _simulated(dut, stimulus, 2) == stimulus.expected


def _product(mode: str, n: int, weight_rows: int, m: int, k: int, columns: int, seed: int, **fields: int):
    """Run a matrix product in a mode with k = 2 * n * blocks steps; return the observations and numpy's result."""
    rng = np.random.default_rng(seed)
    sp, acc = fresh_memories(n, rng)
    blocks, out_blocks = k // (2 * n), columns // n
    zero = fields.get("a_zp", 0)
    a = rng.integers(0, 256, (m, k)) if fields.get("a_unsigned") else rng.integers(-128, 128, (m, k))
    w = rng.integers(-8, 8, (k, columns)) if mode == "wide" else random_sparse(rng, k, columns)
    sp[: m * k] = a.astype(np.uint8).reshape(-1)
    base = -(-m * k // (2 * n)) * 2 * n + 4 * n
    size = n * n + (n * n // 4 if mode == "sparse" else 0)
    for oc in range(out_blocks):
        for ic in range(blocks):
            block = w[2 * n * ic : 2 * n * (ic + 1), n * oc : n * (oc + 1)]
            tile = sparse_tile(block) if mode == "sparse" else (block[:n] & 15) | (block[n:] & 15) << 4
            at = base + (oc * blocks + ic) * size
            sp[at : at + size] = tile.astype(np.uint8).reshape(-1)
    c = command(
        w_base=base,
        x_count=m,
        a_v=k,
        ic_count=blocks,
        a_ic=2 * n,
        w_row=n,
        w_ic=size,
        w_oc=blocks * size,
        oc_count=out_blocks,
        acc_x=1,
        acc_oc=m,
        **{mode: 1},
        **fields,
    )
    config = replace(small_config(n), weight_rows=weight_rows)
    seen = MatrixTestbench(n, sp, acc, config=config).run([c])
    exact = (a - zero) @ w
    old = (
        acc[: m * out_blocks]
        .astype(np.int64)
        .reshape(out_blocks, m, n)
        .transpose(1, 0, 2)
        .reshape(m, columns)
    )
    assert seen.acc is not None
    result = seen.acc[: m * out_blocks].reshape(out_blocks, m, n).transpose(1, 0, 2).reshape(m, columns)
    if fields.get("shift8"):
        exact = exact + (old << 8)
    elif fields.get("accumulate"):
        exact = exact + old
    return seen, result, exact.astype(np.int32), int((a == zero).sum()) * out_blocks


@pytest.mark.parametrize("mode", ["wide", "sparse"])
@pytest.mark.parametrize("weight_rows", [1, 2])
@pytest.mark.parametrize(
    ("n", "m", "blocks", "columns"), [(4, 1, 3, 2), (4, 7, 2, 3), (8, 3, 2, 1), (8, 9, 3, 2)]
)
@pytest.mark.parametrize(
    "fields", [{}, {"a_unsigned": 1, "a_zp": 77}, {"a_zp": -128, "accumulate": 1}, {"shift8": 1}]
)
def test_product(
    n: int, weight_rows: int, m: int, blocks: int, columns: int, fields: dict[str, int], mode: str
):
    """A matrix product with int4 or 2:4 weights equals numpy's, and counts the products of each row."""
    seed = 10 * n + m
    print("seed", seed)
    sizes = (n, weight_rows, m, 2 * n * blocks, n * columns)
    seen, result, exact, zeros = _product(mode, *sizes, seed, **fields)
    np.testing.assert_array_equal(result, exact)
    rows = m * blocks * columns
    counts = seen.by_tag[0]
    assert counts["macs_issued"] == counts["macs_useful"] == rows * n * n << (mode == "wide")
    assert counts["matrix_rows"] == counts["acc_writes"] == rows
    assert seen.zeros == [zeros] == [counts["matrix_zeros"]]


@pytest.mark.parametrize("weight_rows", [1, 2])
@pytest.mark.parametrize("n", [4, 8])
def test_one_row_per_cycle(n: int, weight_rows: int):
    """Tiles with at least n / weight_rows rows follow each other without a gap, half as many as without wide mode."""
    m = n // weight_rows
    seen, result, exact, _ = _product("wide", n, weight_rows, m, 8 * n, 2 * n, n)
    np.testing.assert_array_equal(result, exact)
    assert set(np.diff(seen.entered).tolist()) == {1}
    assert len(seen.entered) == m * 4 * 2


@pytest.mark.parametrize("weight_rows", [1, 2])
@pytest.mark.parametrize("n", [4, 8, 16])
def test_one_row_per_cycle_in_sparse_mode(n: int, weight_rows: int):
    """Sparse tiles follow each other without a gap if they have as many rows as they have reads of weights and
    indices; the indices of n = 4 fill half of a pair.
    """
    m = (n + n // 4) // weight_rows + (n == 4 and weight_rows == 2)
    seen, result, exact, _ = _product("sparse", n, weight_rows, m, 12 * n, 2 * n, n)
    np.testing.assert_array_equal(result, exact)
    assert set(np.diff(seen.entered).tolist()) == {1}
    assert len(seen.entered) == m * 6 * 2


@pytest.mark.parametrize("n", [4, 8])
def test_padding(n: int):
    """Both halves of a row outside the image are the zero point, so it adds nothing and counts 2 * n zeros."""
    rng = np.random.default_rng(n)
    sp, acc = fresh_memories(n, rng)
    height, width, kernel = 3, 4, 3
    image = rng.integers(-128, 128, (height, width, 2 * n))
    weights = rng.integers(-8, 8, (kernel, kernel, 2 * n, n))
    sp[: image.size] = image.astype(np.uint8).reshape(-1)
    tiles = (weights[:, :, :n] & 15) | (weights[:, :, n:] & 15) << 4
    sp[4096 : 4096 + tiles.size] = tiles.astype(np.uint8).reshape(-1)
    c = command(
        wide=1,
        w_base=4096,
        x_count=width,
        y_count=height,
        kx_count=kernel,
        ky_count=kernel,
        u0=-1,
        v0=-1,
        u_lim=height,
        v_lim=width,
        a_u=width * 2 * n,
        a_v=2 * n,
        a_zp=-5,
        w_row=n,
        w_kx=n * n,
        w_ky=kernel * n * n,
        acc_x=1,
        acc_y=width,
    )
    seen = MatrixTestbench(n, sp, acc).run([c])
    padded = np.zeros((height + 2, width + 2, 2 * n), np.int64)
    padded[1:-1, 1:-1] = image + 5
    exact = np.zeros((height, width, n), np.int64)
    for ky, kx in np.ndindex(kernel, kernel):
        exact += padded[ky : ky + height, kx : kx + width] @ weights[ky, kx]
    assert seen.acc is not None
    np.testing.assert_array_equal(seen.acc[: height * width], exact.reshape(-1, n).astype(np.int32))
    read = sum(
        int((padded[ky : ky + height, kx : kx + width] == 0).sum())
        for ky in range(kernel)
        for kx in range(kernel)
    )
    assert seen.zeros == [read]


@pytest.mark.parametrize("weight_rows", [1, 2])
@pytest.mark.parametrize("mode", ["", "wide", "sparse"])
@pytest.mark.parametrize(("n", "rows"), [(4, 1), (4, 6), (8, 3), (8, 9)])
def test_scaled_tiles(n: int, rows: int, mode: str, weight_rows: int):
    """The sums of each tile are multiplied by the factors in the row after its weights, before they are added up;
    commands without factors before and after it are not changed.
    """
    seed = 100 * n + rows
    print("seed", seed)
    rng = np.random.default_rng(seed)
    sp, acc = fresh_memories(n, rng)
    k_rows, tail, blocks, lanes = n - 1, n // 2, 3, 2 * n if mode else n
    a = rng.integers(-128, 128, (rows, blocks, lanes))
    w = rng.integers(-128, 128, (blocks, n, n))
    factors = rng.integers(0, 256, (blocks, n))
    sp[: a.size] = a.astype(np.uint8).reshape(-1)
    indices = n // 4 if mode == "sparse" else 0
    base, tile = 2048, (n + 1 + indices) * n
    exact = np.zeros((rows, n), np.int64)
    for i in range(blocks):
        k = tail if i == blocks - 1 else k_rows
        at = base + i * tile
        sp[at : at + k * n] = w[i, :k].astype(np.uint8).reshape(-1)
        sp[at + (k + indices) * n : at + (k + indices) * n + n] = factors[i]
        if mode == "wide":
            low, high = _nibbles(w[i, :k])
            exact += (a[:, i, :k] @ low + a[:, i, n : n + k] @ high) * factors[i]
        elif mode == "sparse":  # random indices, which may be equal
            chosen = rng.integers(0, 4, (n, n))
            quarters = (chosen.reshape(indices, 4, n) << 2 * np.arange(4)[None, :, None]).sum(axis=1)
            sp[at + k * n : at + (k + indices) * n] = quarters.reshape(-1)
            for row, column in np.ndindex(k, n):
                lane = row // 2 * 4 + chosen[row, column]
                exact[:, column] += a[:, i, lane] * w[i, row, column] * factors[i, column]
        else:
            exact += a[:, i, :k] @ w[i, :k] * factors[i]
    c = {"w_base": base, "w_row": n, "w_ic": tile, "x_count": rows, "a_v": blocks * lanes, "a_ic": lanes}
    c |= {"ic_count": blocks, "k_rows": k_rows, "k_tail": tail, "acc_x": 1}
    c |= {mode: 1} if mode else {}
    plain = command(**c | {"scaled": 0, "acc_base": 20, "x_count": 1})
    scaled = command(**c, scaled=1)
    config = replace(small_config(n), weight_rows=weight_rows)
    alone = MatrixTestbench(n, sp, acc, config=config).run([plain])
    seen = MatrixTestbench(n, sp, acc, config=config).run([plain, scaled, plain, scaled])
    assert seen.acc is not None and alone.acc is not None
    np.testing.assert_array_equal(seen.acc[:rows], exact.astype(np.int32))
    np.testing.assert_array_equal(seen.acc[20], alone.acc[20])


def test_scaled_tiles_without_gap():
    """Scaled tiles of n / 2 + 1 or more rows follow each other without a gap; a tile that is not scaled waits one cycle
    for them.
    """
    n = 8
    sp, acc = fresh_memories(n, np.random.default_rng(5))
    shape = {
        "w_row": n,
        "w_ic": (n + 1) * n,
        "a_v": 2 * n,
        "a_ic": 2 * n,
        "ic_count": 4,
        "wide": 1,
        "acc_x": 1,
    }
    for rows in (n // 2 + 1, n, 2 * n):
        scaled = command(**shape, scaled=1, x_count=rows)
        plain = command(**shape, x_count=rows, acc_base=16)
        found = MatrixTestbench(n, sp, acc).run([scaled, scaled, plain, plain, scaled])
        gaps = np.diff(found.entered)
        assert np.flatnonzero(gaps > 1).tolist() == [8 * rows - 1]
        assert gaps[8 * rows - 1] == 2
        done = [late - found.entered[4 * rows * (i + 1) - 1] for i, late in enumerate(found.done)]
        assert done == [done_after(n) + s for s in (1, 1, 0, 0, 1)]
