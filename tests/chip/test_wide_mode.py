"""Matrix products with int4 weights in wide mode and 2:4 weights in sparse mode, with and without factors for groups of
rows, on whole chips.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.assembler import assemble
from tests.support.sparse_weights import random_sparse, sparse_tiles

OPCODE = 20
DRAM_BYTES = 1 << 22


@dataclass(frozen=True)
class _Product:
    """Product of an m x k matrix of int8 with a k x columns matrix of weights, which starts in DRAM.

    Parameters
    ----------
    n : int
        Number of lanes of the chip.
    m, k, columns : int
        Sizes; k is a multiple of 2 * n, and columns of n.
    mode : str
        Fields of the mode word of MATRIX: "" for int8 weights, "wide=1", "sparse=1", or one of these and "scaled=1".
    parts : int
        Number of MATRIX commands, each with its share of the columns; the sums of two of them fit into the accumulator.
    """

    n: int
    m: int
    k: int
    columns: int
    mode: str
    parts: int

    @property
    def lanes(self) -> int:
        """Number of reduction steps of a tile."""
        return 2 * self.n if self.mode else self.n

    @property
    def tile_bytes(self) -> int:
        """Number of bytes of a tile with its indices and factors."""
        return self.n * (self.n + ("scaled" in self.mode) + ("sparse" in self.mode) * self.n // 4)

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of all tiles."""
        return self.k // self.lanes * (self.columns // self.n) * self.tile_bytes

    def program(self) -> str:
        """Return a program that loads both operands (op0, op1), multiplies them and stores int16 results (op2)."""
        n, blocks, out_blocks = self.n, self.k // self.lanes, self.columns // self.n // self.parts
        w_base, d_base = self.m * self.k, self.m * self.k + self.weight_bytes
        d_base += -d_base % n
        lines = [
            *("set load.dram, op0", f"set load.len, {self.m * self.k}", "issue load"),
            *("set load.dram, op1", f"set load.dst, {w_base}", f"set load.len, {self.weight_bytes}"),
            *("issue load, signal(matrix:0)", f"set matrix.word, {self.mode or 'accumulate=0'}"),
            *(f"set matrix.x_count, {self.m}", f"set matrix.a_v, {self.k}", f"set matrix.a_ic, {self.lanes}"),
            *(
                f"set matrix.ic_count, {blocks}",
                f"set matrix.oc_count, {out_blocks}",
                f"set matrix.w_row, {n}",
            ),
            *(f"set matrix.w_ic, {self.tile_bytes}", f"set matrix.w_oc, {blocks * self.tile_bytes}"),
            *("set matrix.acc_x, 1", f"set matrix.acc_oc, {self.m}"),
            *("set fuse.stage, d_dst=sp d_dtype=i16", f"set fuse.x_count, {self.m}", "set fuse.a_v, 1"),
            *(f"set fuse.n_count, {out_blocks}", f"set fuse.a_n, {self.m}"),
            *(f"set fuse.d_x, {2 * self.columns}", f"set fuse.d_n, {2 * n}"),
        ]
        for part in range(self.parts):
            row = part % 2 * self.m * out_blocks
            waits = ["wait(load:0)"] * (part == 0) + ["wait(fuse:0)"] * (part > 1)
            after = ["signal(matrix:0)"] * (part + 2 < self.parts) + ["signal(store:0)"] * (
                part == self.parts - 1
            )
            lines += [
                f"set matrix.w_base, {w_base + part * out_blocks * blocks * self.tile_bytes}",
                f"set matrix.acc_base, {row}",
                ", ".join(["issue matrix", *waits, "signal(fuse:0)"]),
                *(f"set fuse.a_base, {row}", f"set fuse.d_base, {d_base + part * out_blocks * 2 * n}"),
                ", ".join(["issue fuse", "wait(matrix:0)", *after]),
            ]
        lines += [
            *(
                "set store.dram, op2",
                f"set store.src, {d_base}",
                f"set store.len, {2 * self.m * self.columns}",
            ),
            *("issue store, wait(fuse:0)", "halt"),
        ]
        return "\n".join(lines)

    def operands(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return random activations and weights as bytes in DRAM, and the expected results."""
        n, lanes = self.n, self.lanes
        a = rng.integers(-128, 128, (self.m, self.k))
        limit = 8 if self.mode else 128
        w = rng.integers(-limit, limit, (self.k, self.columns))
        if "sparse" in self.mode:
            w = random_sparse(rng, self.k, self.columns)
        blocks = w.reshape(self.k // lanes, lanes, self.columns // n, n).transpose(2, 0, 1, 3)
        tiles = (blocks[:, :, :n] & 15) | (blocks[:, :, n:] & 15) << 4 if self.mode else blocks
        if "sparse" in self.mode:
            tiles = sparse_tiles(w, n).swapaxes(0, 1)
        sums = a.reshape(self.m, -1, lanes).swapaxes(0, 1) @ w.reshape(-1, lanes, self.columns)
        if "scaled" in self.mode:
            factors = rng.integers(0, 256, (self.columns // n, self.k // lanes, 1, n))
            tiles = np.concatenate([tiles, factors], axis=2)
            sums *= factors.transpose(1, 2, 0, 3).reshape(-1, 1, self.columns)
        expected = np.clip(sums.sum(axis=0), -(1 << 15), (1 << 15) - 1).astype(np.int16)
        return a.astype(np.int8), tiles.astype(np.uint8), expected


def _cycles(driver: Driver, product: _Product, tag: int = 3) -> int:
    """Run a product, check its result, and return its cycles."""
    a, tiles, expected = product.operands(np.random.default_rng(product.m))
    mark = driver.memory.mark()
    places = [driver.put(each) for each in (a, tiles, np.zeros_like(expected))]
    driver.load(assemble(product.program(), "product"), opcode=OPCODE)
    number = driver.enqueue(OPCODE, places, tag=tag)
    driver.run()
    np.testing.assert_array_equal(driver.fetch(places[2], expected.shape, np.int16), expected)
    driver.memory.release(mark)
    record = driver.completion(number)
    assert record is not None
    return record.cycles


@pytest.fixture(scope="module")
def n16() -> Iterator[RtlDevice]:
    with RtlDevice(load_target("n16"), DRAM_BYTES) as device:
        yield device


@pytest.mark.parametrize("mode", ["", "wide=1", "wide=1 scaled=1", "sparse=1", "sparse=1 scaled=1"])
@pytest.mark.parametrize("kind", ["golden", "rtl"])
def test_product(rtl: RtlDevice, kind: str, mode: str) -> None:
    device: Device = rtl if kind == "rtl" else GoldenDevice(load_target("n4"), DRAM_BYTES)
    product = _Product(4, 13, 64, 24, mode, 3)
    driver = Driver(device)
    _cycles(driver, product, tag=3)
    rows = 13 * (24 // 4) * (64 // product.lanes)
    found = {name: driver.counters.read(name, 3) for name in ("macs_useful", "macs_issued", "matrix_rows")}
    macs = 13 * 64 * 24 // (2 if "sparse" in mode else 1)
    assert found == {"macs_useful": macs, "macs_issued": macs, "matrix_rows": rows}
    assert driver.counters.read("acc_writes", 3) == rows


def test_wide_and_sparse_mode_take_half_the_cycles(n16: RtlDevice) -> None:
    """A product of 128 x 512 x 256 takes a row of activations per cycle: half as many cycles with int4 or 2:4
    weights.
    """
    found = {}
    for mode in ("", "wide=1", "wide=1 scaled=1", "sparse=1", "sparse=1 scaled=1"):
        n16.reset()
        product = _Product(16, 128, 512, 256, mode, 4)
        driver = Driver(n16)
        found[mode] = _cycles(driver, product, tag=3)
        rows, busy = 128 * 16 * (512 // product.lanes), driver.counters.read("matrix_busy", 3)
        print(f"{mode or 'int8'}: {found[mode]} cycles, {rows} rows, {busy} cycles of MATRIX")
        assert rows <= busy <= rows + 600
    for mode in ("wide=1", "sparse=1"):
        assert found[mode] < found[""] - 128 * 16 * 16
