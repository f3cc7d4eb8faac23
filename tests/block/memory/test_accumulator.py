"""The accumulator behaves like a list of rows under consecutive updates, simultaneous FUSE accesses and refusals."""

import random

import pytest

from hw.config import MlaConfig
from hw.memory.accumulator import ACC_UPDATE_LATENCY, ACC_UPDATE_VISIBLE, Accumulator
from hw.memory.ports import ACC_READ_LATENCY
from tests.support.testbench import simulate

MASK = 0xFFFFFFFF


def lanes_of(word: int, n: int) -> list[int]:
    return [word >> (32 * i) & MASK for i in range(n)]


def word_of(lanes: list[int]) -> int:
    return sum(lane << (32 * i) for i, lane in enumerate(lanes))


class Model:
    """Model of the accumulator's rows after all earlier accesses are complete."""

    def __init__(self, config: MlaConfig):
        self.n, self.rows = config.n, [[0] * config.n for _ in range(config.acc_rows)]
        self.per_bank = config.acc_rows // config.acc_banks

    def bank(self, row: int) -> int:
        """Return the bank of a row."""
        return row // self.per_bank

    def update(self, row: int, add: int, shift: int, psum: list[int]) -> None:
        """Apply an update by the array."""
        old = self.rows[row] if add else [0] * self.n
        self.rows[row] = [((o << 8 if shift else o) + p) & MASK for o, p in zip(old, psum, strict=True)]

    def write(self, row: int, data: list[int], mask: int) -> None:
        """Apply a write by FUSE."""
        self.rows[row] = [
            d if mask >> i & 1 else o for i, (d, o) in enumerate(zip(data, self.rows[row], strict=True))
        ]


@pytest.mark.parametrize(("n", "banks", "seed"), [(4, 4, 1), (4, 8, 2), (8, 4, 3), (4, 2, 4), (8, 2, 5)])
def test_random_accesses(n: int, banks: int, seed: int):
    print(f"seed {seed}")
    rng = random.Random(seed)
    config = MlaConfig(n=n, acc_bytes=16 * 4 * n * banks, acc_banks=banks)
    dut, model = Accumulator(config), Model(config)

    async def fill(ctx) -> None:
        for row in range(config.acc_rows):
            data = [rng.getrandbits(32) for _ in range(n)]
            model.write(row, data, -1)
            for name, value in (("valid", 1), ("row", row), ("mask", (1 << n) - 1), ("data", word_of(data))):
                ctx.set(getattr(dut.fuse_write, name), value)
            await ctx.tick()
        ctx.set(dut.fuse_write.valid, 0)

    async def bench(ctx) -> None:
        await fill(ctx)
        psums: list[list[int]] = [[0] * n] * ACC_UPDATE_LATENCY
        updates: list[int | None] = [None] * ACC_UPDATE_VISIBLE
        reads: list[tuple[int, list[int]] | None] = [None] * ACC_READ_LATENCY
        hot = list(range(config.acc_rows))
        for cycle in range(1500):
            if cycle % 50 == 0:  # phases with few rows, which collide all the time, and phases with all rows
                hot = rng.sample(range(config.acc_rows), rng.choice((1, 2, 3, 8, config.acc_rows)))
            updating = rng.random() < 0.8
            row, add = rng.choice(hot), rng.randrange(2)
            shift = add & rng.randrange(2)
            psums.append([rng.getrandbits(32) for _ in range(n)])
            for name, value in (
                ("valid", updating),
                ("row", row),
                ("add", add),
                ("shift", shift),
                ("psum", word_of(psums.pop(0))),
            ):
                ctx.set(getattr(dut.update, name), value)
            on_the_way = [*updates[1:], row if updating else None]

            reading, read_row = rng.randrange(2), rng.randrange(config.acc_rows)
            writing, write_row, mask = rng.randrange(2), rng.randrange(config.acc_rows), rng.getrandbits(n)
            written = [rng.getrandbits(32) for _ in range(n)]
            writing &= write_row not in on_the_way
            ctx.set(dut.fuse_read.valid, reading)
            ctx.set(dut.fuse_read.row, read_row)
            for name, value in (
                ("valid", writing),
                ("row", write_row),
                ("mask", mask),
                ("data", word_of(written)),
            ):
                ctx.set(getattr(dut.fuse_write, name), value)

            expected = reads.pop(0)
            if expected is not None:
                assert lanes_of(ctx.get(dut.fuse_read.data), n) == expected[1], (
                    f"cycle {cycle}, row {expected[0]}"
                )
            read_free = not (updating and add and model.bank(row) == model.bank(read_row))
            at_write = updates[-3]
            write_free = at_write is None or model.bank(at_write) != model.bank(write_row)
            _, _, read_ready, write_ready, count, conflicts = await ctx.tick().sample(
                dut.fuse_read.ready, dut.fuse_write.ready, dut.reads, dut.conflicts
            )
            assert count == (updating and add) + (reading and read_free)
            assert conflicts == (reading and not read_free) + (writing and not write_free)
            if reading:
                assert read_ready == read_free
            if writing:
                assert write_ready == write_free
            stale = read_row in on_the_way
            reads.append(
                (read_row, list(model.rows[read_row])) if reading and read_free and not stale else None
            )
            if writing and write_free:
                model.write(write_row, written, mask)
            if updating:
                model.update(row, add, shift, psums[-1])
            updates = on_the_way

    simulate(dut, bench)
