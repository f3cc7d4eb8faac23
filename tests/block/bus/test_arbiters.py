"""The arbiters deliver each master's transfers completely and in order, W follows AW, and no master starves."""

import random
from collections import deque

import pytest

from hw.bus.axi import READ_MASTERS, WRITE_MASTERS
from hw.bus.axi_arbiter import ReadArbiter, WriteArbiter
from hw.config import MlaConfig
from tests.support.testbench import Testbench

CONFIG = MlaConfig(n=4, sp_bytes=65536, acc_bytes=16384)


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_reads(stall: float) -> None:
    rng = random.Random(17)
    dut = ReadArbiter(CONFIG)
    todo = {name: deque((rng.getrandbits(32), rng.randrange(4)) for _ in range(60)) for name in READ_MASTERS}
    asked = {name: list(todo[name]) for name in READ_MASTERS}
    answers: deque = deque()
    got: dict[str, list[int]] = {name: [] for name in READ_MASTERS}
    sent: dict[str, list[int]] = {name: [] for name in READ_MASTERS}
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in READ_MASTERS}
    order: list[int] = []

    async def bench(ctx) -> None:
        offered, cycles = False, 0
        while any(len(got[name]) < sum(beats + 1 for _, beats in asked[name]) for name in READ_MASTERS):
            cycles += 1
            assert cycles < 5000
            for name in READ_MASTERS:
                port = getattr(dut, f"{name}_ar")
                ctx.set(port.valid, bool(todo[name]))
                if todo[name]:
                    ctx.set(port.payload.addr, todo[name][0][0])
                    ctx.set(port.payload.len, todo[name][0][1])
                ctx.set(getattr(dut, f"{name}_r").ready, rng.random() >= stall)
            ctx.set(dut.ar.ready, rng.random() >= stall)
            offered = offered or (bool(answers) and rng.random() >= stall)
            ctx.set(dut.r.valid, offered)
            if offered:
                master, value, last = answers[0]
                ctx.set(dut.r.payload.id, master)
                ctx.set(dut.r.payload.data, value)
                ctx.set(dut.r.payload.last, last)
            if ctx.get(dut.ar.valid) and ctx.get(dut.ar.ready):
                master, beats = ctx.get(dut.ar.payload.id), ctx.get(dut.ar.payload.len)
                name = READ_MASTERS[master]
                order.append(master)
                seen[name].append((ctx.get(dut.ar.payload.addr), beats))
                values = [rng.getrandbits(32) for _ in range(beats + 1)]
                sent[name] += values
                burst = [(master, value, i == beats) for i, value in enumerate(values)]
                answers.extend(burst)
            if offered and ctx.get(dut.r.ready):
                answers.popleft()
                offered = False
            for name in READ_MASTERS:
                beats = getattr(dut, f"{name}_r")
                if ctx.get(beats.valid) and ctx.get(beats.ready):
                    got[name].append(ctx.get(beats.payload.data))
                if ctx.get(getattr(dut, f"{name}_ar").ready) and todo[name]:
                    todo[name].popleft()
            await ctx.tick()
        assert seen == asked and got == sent
        assert all(set(order[i : i + 3]) == {0, 1, 2} for i in range(0, 150, 3))

    testbench = Testbench(dut)
    testbench.check_contract(dut.ar)
    testbench.simulate(bench)


@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("data_first", [False, True])
def test_writes(stall: float, data_first: bool) -> None:
    """The order of writes is preserved; with `data_first` the bus accepts an address only after the burst's data."""
    rng = random.Random(23)
    dut = WriteArbiter(CONFIG)
    bursts = {
        name: [
            (rng.getrandbits(32), [rng.getrandbits(32) for _ in range(rng.randrange(1, 5))])
            for _ in range(60)
        ]
        for name in WRITE_MASTERS
    }
    addresses = {name: deque(bursts[name]) for name in WRITE_MASTERS}
    beats = {
        name: deque((v, i == len(values) - 1) for _, values in bursts[name] for i, v in enumerate(values))
        for name in WRITE_MASTERS
    }
    written: dict[str, list] = {name: [] for name in WRITE_MASTERS}
    order: deque = deque()
    complete: deque = deque()
    answered = dict.fromkeys(WRITE_MASTERS, 0)

    async def bench(ctx) -> None:
        burst: list[int] = []
        answers: deque = deque()
        cycles = 0
        while any(answered[name] < 60 for name in WRITE_MASTERS):
            cycles += 1
            assert cycles < 5000
            for name in WRITE_MASTERS:
                aw, w = getattr(dut, f"{name}_aw"), getattr(dut, f"{name}_w")
                ctx.set(aw.valid, bool(addresses[name]))
                if addresses[name]:
                    ctx.set(aw.payload.addr, addresses[name][0][0])
                    ctx.set(aw.payload.len, len(addresses[name][0][1]) - 1)
                ctx.set(w.valid, bool(beats[name]))
                if beats[name]:
                    ctx.set(w.payload.data, beats[name][0][0])
                    ctx.set(w.payload.last, beats[name][0][1])
                ctx.set(getattr(dut, f"{name}_b").ready, 1)
            ctx.set(dut.aw.ready, (bool(complete) or not data_first) and rng.random() >= stall)
            ctx.set(dut.w.ready, rng.random() >= stall)
            ctx.set(dut.b.valid, bool(answers))
            if answers:
                ctx.set(dut.b.payload.id, answers[0])
            for name in WRITE_MASTERS:
                if answers and ctx.get(getattr(dut, f"{name}_b").valid):
                    assert name == WRITE_MASTERS[answers[0]]
                    answered[name] += 1
            if answers:
                answers.popleft()
            if ctx.get(dut.w.valid) and ctx.get(dut.w.ready):
                burst.append(ctx.get(dut.w.payload.data))
                if ctx.get(dut.w.payload.last):
                    complete.append(burst[:])
                    burst.clear()
            if ctx.get(dut.aw.valid) and ctx.get(dut.aw.ready):
                order.append((ctx.get(dut.aw.payload.id), ctx.get(dut.aw.payload.addr)))
            while order and complete:
                master, addr = order.popleft()
                written[WRITE_MASTERS[master]].append((addr, complete.popleft()))
                answers.append(master)
            for name in WRITE_MASTERS:
                if addresses[name] and ctx.get(getattr(dut, f"{name}_aw").ready):
                    addresses[name].popleft()
                if beats[name] and ctx.get(getattr(dut, f"{name}_w").ready):
                    beats[name].popleft()
            await ctx.tick()
        assert written == bursts

    testbench = Testbench(dut)
    testbench.check_contract(dut.aw, dut.w)
    testbench.simulate(bench)
