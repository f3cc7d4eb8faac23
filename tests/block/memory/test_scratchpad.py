"""The scratchpad behaves like a byte array under random accesses on all ports; priorities and events are correct."""

import random
from collections import deque

import pytest

from hw.config import MlaConfig
from hw.memory.ports import SP_READ_LATENCY
from hw.memory.scratchpad import READERS, WRITERS, Scratchpad
from tests.support.testbench import simulate

#: Ports that can access two rows at once.
PAIRS = ("act", "weight", "load_write")


def small(n: int, banks: int, bus: int = 0) -> MlaConfig:
    return MlaConfig(n=n, bus_bytes=bus, sp_bytes=16 * n * banks, sp_banks=banks, acc_bytes=16 * 4 * n * 4)


class Reference:
    """Model of the banks in one cycle, based on the description of the memory."""

    def __init__(self, config: MlaConfig):
        self.n, self.size = config.n, config.sp_bytes
        self.rows, self.per_bank = config.sp_rows, config.sp_rows // config.sp_banks

    def bank(self, addr: int) -> int:
        """Return the bank of a byte."""
        return addr // self.n % self.rows // self.per_bank

    def halves(self, addr: int, pair: bool) -> set[tuple[int, int]]:
        """Return the memories that an access touches."""
        row = addr // self.n % self.rows
        touched = [row] if addr % self.n == 0 and not pair else [row, (row + 1) % self.rows]
        return {(r // self.per_bank, r & 1) for r in touched}

    def grants(self, requests: list[tuple[int, bool] | None]) -> list[bool]:
        """Return whether each request is granted; the requests are in order of priority."""
        taken: set[tuple[int, int]] = set()
        result = []
        for request in requests:
            touched = set() if request is None else self.halves(*request)
            result.append(request is not None and not touched & taken)
            taken |= touched  # a refused request blocks its memories for requests of lower priority
        return result


@pytest.mark.parametrize(
    ("n", "banks", "bus"),
    [
        *((n, 8, n) for n in (4, 8, 16, 32)),
        (4, 4, 4),
        (8, 4, 8),
        (8, 2, 8),
        (4, 2, 8),
        (8, 8, 16),
    ],
)
def test_random_traffic(n: int, banks: int, bus: int) -> None:
    """On a bus of 2 * n bytes, the rows of a pair that LOAD writes have separate masks."""
    seed = 7000 + n + 100 * (8 - banks) + 50 * (bus > n)
    print("seed", seed)
    rng = random.Random(seed)
    config = small(n, banks, bus)
    dut, ref = Scratchpad(config), Reference(config)
    image = bytearray(rng.randbytes(config.sp_bytes))

    async def bench(ctx) -> None:
        for base in range(
            0, config.sp_bytes, n
        ):  # fill the memory through the port, since initial contents are undefined
            ctx.set(dut.load_write.valid, 1)
            ctx.set(dut.load_write.addr, base)
            ctx.set(dut.load_write.mask, (1 << n) - 1)
            ctx.set(dut.load_write.data, int.from_bytes(image[base : base + n], "little"))
            await ctx.tick()
        ctx.set(dut.load_write.valid, 0)
        await ctx.tick()
        await ctx.tick()
        expected: deque = deque()
        pending: dict[str, tuple[int, bool] | None] = dict.fromkeys(READERS + WRITERS)
        waiting: dict[str, tuple[int, bool] | None] = dict.fromkeys(READERS + WRITERS)
        written: dict[str, tuple[bytes, int]] = {}
        payload: dict[str, tuple[bytes, int]] = {}
        counts_due: dict[str, int] = {}
        narrow = config.sp_bytes
        for cycle in range(1000):
            if cycle % 200 == 0:  # occasionally all ports access few rows
                narrow = rng.choice([config.sp_bytes, 4 * n, config.sp_bytes // 4])
            for name in pending:
                if pending[name] is None and rng.random() < 0.7:
                    addr = rng.randrange(narrow)
                    if rng.random() < 0.3:
                        addr -= addr % n
                    if rng.random() < 0.05:
                        addr = config.sp_bytes - rng.randrange(1, n + 1)
                    if rng.random() < 0.1:
                        addr += config.sp_bytes  # address bits beyond the memory are ignored
                    pair = name in PAIRS and rng.random() < 0.5
                    pending[name] = (addr - addr % n if pair else addr), pair
                    masks = [rng.choice([(1 << n) - 1, rng.getrandbits(n)]) for _ in range(2)]
                    if bus == n or name != "load_write":
                        masks[1] = masks[0]
                    payload[name] = rng.randbytes(2 * n), masks[0] | masks[1] << n
                port = getattr(dut, name)
                addr, pair = pending[name] or (rng.getrandbits(20), False)
                ctx.set(port.valid, pending[name] is not None)
                ctx.set(port.addr, addr)
                if name in PAIRS:
                    ctx.set(port.pair, pair)
                if name in WRITERS and pending[name] is not None:
                    ctx.set(port.data, int.from_bytes(payload[name][0][:n], "little"))
                    if pair:
                        ctx.set(port.next, int.from_bytes(payload[name][0][n:], "little"))
                        if bus > n:
                            ctx.set(port.next_mask, payload[name][1] >> n)
                    ctx.set(port.mask, payload[name][1] & ((1 << n) - 1))
            events = ctx.get(dut.events)
            for key, value in counts_due.items():
                assert getattr(events, key) == value, key
            due: dict[str, bytes] = {}
            counts_due = {
                f"sp_{kind}_bank{b}": 0 for kind in ("reads", "writes", "conflicts") for b in range(8)
            }
            for names, kind in ((READERS, "reads"), (WRITERS, "writes")):
                grants = ref.grants([waiting[name] for name in names])
                for name, granted in zip(names, grants, strict=True):
                    request = waiting[name]
                    assert ctx.get(getattr(dut, name).waits) == (request is not None), (cycle, name)
                    assert ctx.get(getattr(dut, name).ready) == (granted or request is None), (cycle, name)
                    if request is None:
                        continue
                    addr, pair = request
                    rows = 1 + (pair and granted)
                    counts_due[f"sp_{kind if granted else 'conflicts'}_bank{ref.bank(addr)}"] += rows
                    if granted and name in READERS:
                        due[name] = bytes(image[(addr + i) % config.sp_bytes] for i in range(rows * n))
            for name in WRITERS:
                request = waiting[name]
                if request is not None and ctx.get(getattr(dut, name).ready):
                    data, mask = written[name]
                    for i in range(2 * n if request[1] else n):
                        if mask >> i & 1:
                            image[(request[0] + i) % config.sp_bytes] = data[i]
            for name in pending:
                if ctx.get(getattr(dut, name).ready):
                    waiting[name], pending[name] = pending[name], None
                    if waiting[name] is not None:
                        written[name] = payload[name]
            expected.append(due)
            await ctx.tick()
            if len(expected) == SP_READ_LATENCY:
                for name, row in expected.popleft().items():
                    port = getattr(dut, name)
                    found = ctx.get(port.data).to_bytes(n, "little")
                    if len(row) > n:
                        found += ctx.get(port.next).to_bytes(n, "little")
                    assert found == row, (cycle, name)

    simulate(dut, bench)
