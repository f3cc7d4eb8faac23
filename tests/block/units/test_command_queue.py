"""Four command queues with shared semaphores behave like counters in Python."""

import random
from collections import deque

import pytest
from amaranth.hdl import Elaboratable, Module
from amaranth.lib.wiring import connect

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.sequencer.semaphores import Semaphores
from hw.units.command_queue import CommandQueue
from tests.support.testbench import simulate

CONFIG = MlaConfig(n=4, queue_depth=3)
#: Number of semaphores of a unit whose consumers are units; those of the sequencer follow.
_UNIT_SIGNALS = 16


class QueueHarness(Elaboratable):
    """The queues and their semaphores."""

    def __init__(self):
        self.semaphores = Semaphores()
        self.queues = [CommandQueue(u, CONFIG) for u in Unit]

    def elaborate(self, platform):
        m = Module()
        m.submodules.semaphores = self.semaphores
        for u, queue in zip(Unit, self.queues, strict=True):
            m.submodules[f"queue_{u.name.lower()}"] = queue
            connect(m, queue.semaphores, self.semaphores.units[u])
        return m


class Model:
    """Model of the queues and semaphores, as docs/machine.md describes them."""

    def __init__(self):
        self.count = {(p, c, i): 0 for p in range(4) for c in range(5) for i in range(4)}
        self.queued = [deque() for _ in Unit]
        self.started = [deque() for _ in Unit]
        self.visible = [0 for _ in Unit]  # number of started commands whose results are visible
        self.pushed = [False for _ in Unit]  # pushed in the previous cycle

    def coming(self, u: int) -> bool:
        """Return True if the head was pushed in the previous cycle and is not readable yet."""
        return self.pushed[u] and len(self.queued[u]) == 1

    def lacks(self, u: int) -> int:
        wait = self.queued[u][0]["wait"]
        return sum(1 << b for b in range(16) if wait >> b & 1 and not self.count[b >> 2, u, b & 3])

    def may_start(self, u: int) -> bool:
        if not self.queued[u] or self.coming(u) or self.lacks(u):
            return False
        signal = self.queued[u][0]["signal"]
        hidden = list(self.started[u])[self.visible[u] :]
        owed = [
            sum(meta["signal"] >> b & 1 for meta in (hidden if b < _UNIT_SIGNALS else self.started[u]))
            for b in range(20)
        ]
        fits = all(self.count[u, b >> 2, b & 3] + owed[b] < 63 for b in range(20) if signal >> b & 1)
        return fits and len(self.started[u]) < 16

    def start(self, u: int) -> None:
        meta = self.queued[u].popleft()
        for b in range(16):
            self.count[b >> 2, u, b & 3] -= meta["wait"] >> b & 1
        self.started[u].append(meta)

    def show(self, u: int) -> None:
        self._signal(u, self.started[u][self.visible[u]], range(_UNIT_SIGNALS))
        self.visible[u] += 1

    def retire(self, u: int) -> None:
        self._signal(u, self.started[u].popleft(), range(_UNIT_SIGNALS, 20))
        self.visible[u] -= 1

    def _signal(self, u: int, meta: dict, bits: range) -> None:
        for b in bits:
            self.count[u, b >> 2, b & 3] += meta["signal"] >> b & 1


def sparse(rng: random.Random, width: int, most: int) -> int:
    return sum({1 << rng.randrange(width) for _ in range(rng.randint(0, most))})


@pytest.mark.parametrize(("seed", "signals"), [(1, 1), (2, 3)])
def test_queues_and_semaphores(seed: int, signals: int):
    """Queues and semaphores match the model; with more signals than waits, commands wait for room in semaphores."""
    print(f"seed {seed}")
    rng, bench, model = random.Random(seed), QueueHarness(), Model()
    starts = 0

    async def testbench(ctx):
        nonlocal starts
        for cycle in range(2000):
            flush = rng.random() < 0.003
            seq_take = 0
            for b in range(16):
                if model.count[b >> 2, 4, b & 3] and rng.random() < 0.05:
                    seq_take |= 1 << b
            ctx.set(bench.semaphores.seq_take, seq_take)
            ctx.set(bench.semaphores.clear, flush)
            offers, readies, shows, dones = [], [], [], []
            for u, queue in enumerate(bench.queues):
                held = [1 << b for b in range(16) if model.count[b >> 2, u, b & 3]]
                wait = rng.choice(held) if held and rng.random() < 0.8 else 0
                meta = {
                    "wait": wait or sparse(rng, 16, int(rng.random() < 0.02)),
                    "signal": sparse(rng, 20, signals),
                    "tag": rng.getrandbits(6),
                    "macro": cycle & 0xFF,
                }
                offers.append(meta if rng.random() < 0.5 else None)
                readies.append(rng.random() < 0.7)
                shows.append(len(model.started[u]) > model.visible[u] and rng.random() < 0.5)
                dones.append(model.visible[u] + shows[u] > 0 and rng.random() < 0.5)
                ctx.set(queue.input.valid, offers[u] is not None)
                ctx.set(queue.input.payload.meta, meta)
                ctx.set(queue.output.ready, readies[u])
                ctx.set(queue.visible, shows[u])
                ctx.set(queue.done, dones[u])
                ctx.set(queue.flush, flush)
            await ctx.delay(1e-7)
            actions = []
            for u, queue in enumerate(bench.queues):
                waiting, running = len(model.queued[u]), len(model.started[u])
                may, coming = model.may_start(u), model.coming(u)
                note = f"cycle {cycle}, unit {u}"
                assert ctx.get(queue.queued) == waiting, note
                assert ctx.get(queue.input.ready) == (waiting < CONFIG.queue_depth), note
                assert ctx.get(queue.output.valid) == may, note
                assert ctx.get(queue.idle) == (not waiting and not running), note
                assert ctx.get(queue.stuck) == (not running and not may and not coming), note
                assert ctx.get(queue.started) == (may and readies[u]), note
                lacking = model.lacks(u) if waiting and not coming else 0
                assert ctx.get(queue.head_waits) == sum(1 << p for p in range(4) if lacking >> 4 * p & 15), (
                    note
                )
                if may:
                    payload = ctx.get(queue.output.payload)
                    assert {k: payload["meta"][k] for k in model.queued[u][0]} == model.queued[u][0], note
                if dones[u]:
                    first = model.started[u][0]
                    assert ctx.get(queue.retired), note
                    assert (ctx.get(queue.retired_tag), ctx.get(queue.retired_macro)) == (
                        first["tag"],
                        first["macro"],
                    ), note
                actions.append((waiting < CONFIG.queue_depth, may and readies[u]))
            for (room, start), u in zip(actions, range(4), strict=True):
                if shows[u]:
                    model.show(u)
                if dones[u]:
                    model.retire(u)
                if start:
                    model.start(u)
                    starts += 1
                model.pushed[u] = bool(offers[u] and room)
                if offers[u] and room:
                    model.queued[u].append(offers[u])
            for b in range(16):
                model.count[b >> 2, 4, b & 3] -= seq_take >> b & 1
            if flush:
                model.__init__()
            await ctx.tick()

    simulate(bench, testbench)
    print(f"{starts} commands started")
    assert starts > 200
