"""Models for the tests of Control: the DRAM, the units, and a core that runs scripts."""

import struct
from collections import deque

from amaranth.sim import SimulatorContext

from hw.control.control import Control

#: Delay of a command that never starts.
NEVER = 0xFFFF


class Memory:
    """DRAM with one read and one write master; requests are answered in order after a latency."""

    def __init__(self, size: int, beat: int, latency: int):
        self.bytes, self.beat, self.latency = bytearray(size), beat, latency
        self.bad_reads: set[int] = set()
        self.bad_writes: set[int] = set()
        self.stall = 0

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return `count` 32-bit words, starting at an address."""
        return struct.unpack_from(f"<{count}I", self.bytes, address)


class ReadChannel:
    """AR and R channels of one master."""

    def __init__(self, memory: Memory, ar, r):
        self.memory, self.ar, self.r = memory, ar, r
        self.queue: deque[tuple[int, int, int]] = deque()  # due cycle, address, last
        self.requests: list[tuple[int, int, int]] = []

    def signals(self):
        """Return the signals that `step` samples."""
        return [self.ar.valid, self.ar.p.addr, self.ar.p.len, self.ar.ready, self.r.valid, self.r.ready]

    def step(self, ctx: SimulatorContext, now: int, *values: int) -> None:
        """Advance by one cycle."""
        valid, address, length, taken, sent, ready = values
        size = self.memory.beat
        if valid and taken:
            assert address % size == 0
            assert address // 4096 == (address + (length + 1) * size - 1) // 4096, "burst crosses 4 KiB"
            self.requests.append((now, address, length))
            for i in range(length + 1):
                self.queue.append((now + self.memory.latency + i, address + i * size, int(i == length)))
        if sent:
            assert ready, "the masters of the control side never hold the bus up"
            self.queue.popleft()
        ctx.set(self.ar.ready, now % (self.memory.stall + 1) == 0)
        if self.queue and self.queue[0][0] <= now:
            _, address, last = self.queue[0]
            data = int.from_bytes(self.memory.bytes[address : address + size], "little")
            bad = address in self.memory.bad_reads
            ctx.set(self.r.valid, 1)
            ctx.set(self.r.payload, {"data": 0 if bad else data, "resp": 2 if bad else 0, "last": last})
        else:
            ctx.set(self.r.valid, 0)


class WriteChannel:
    """AW, W and B channels of the writer of completion records."""

    def __init__(self, memory: Memory, aw, w, b):
        self.memory, self.aw, self.w, self.b = memory, aw, w, b
        self.addresses: deque[tuple[int, int]] = deque()
        self.beats: deque[tuple[int, int, int]] = deque()
        self.answers: deque[tuple[int, int]] = deque()
        self.times: list[int] = []

    def signals(self):
        """Return the signals that `step` samples."""
        return [
            self.aw.valid,
            self.aw.p.addr,
            self.aw.p.len,
            self.aw.ready,
            self.w.valid,
            self.w.p.data,
            self.w.p.strb,
            self.w.p.last,
            self.w.ready,
            self.b.valid,
        ]

    def step(self, ctx: SimulatorContext, now: int, *v: int) -> None:
        """Advance by one cycle."""
        aw_valid, address, length, aw_ready, w_valid, data, strobe, last, w_ready, answered = v
        if aw_valid and aw_ready:
            self.addresses.append((address, length))
            self.times.append(now)
        if w_valid and w_ready:
            self.beats.append((data, strobe, last))
        if answered:
            self.answers.popleft()
        if self.addresses and len(self.beats) > self.addresses[0][1]:
            address, length = self.addresses.popleft()
            bad = address in self.memory.bad_writes
            for i in range(length + 1):
                data, strobe, last = self.beats.popleft()
                assert last == (i == length)
                for lane in range(self.memory.beat):
                    if strobe >> lane & 1 and not bad:
                        self.memory.bytes[address + i * self.memory.beat + lane] = data >> 8 * lane & 0xFF
            self.answers.append((now + self.memory.latency, 2 if bad else 0))
        open_now = now % (self.memory.stall + 1) == 0
        ctx.set(self.aw.ready, open_now)
        ctx.set(self.w.ready, open_now)
        ready = bool(self.answers) and self.answers[0][0] <= now
        ctx.set(self.b.valid, ready)
        if ready:
            ctx.set(self.b.payload, {"resp": self.answers[0][1]})


class UnitModels:
    """Four units that start and retire commands in order, each command after its own delay."""

    def __init__(self, dut: Control):
        self.dut = dut
        self.queues: list[deque[int]] = [deque() for _ in range(4)]
        self.holding = 0  # duration of an abort in cycles

    def step(self, ctx: SimulatorContext, flush: int, abort: int, issued: tuple[int, ...]) -> None:
        """Advance by one cycle."""
        retired = idle = stuck = busy = 0
        for unit, queue in enumerate(self.queues):
            if issued[unit]:
                queue.append(issued[unit] - 1)
            if flush:
                queue.clear()
            elif queue and queue[0] != NEVER:
                if queue[0] == 0:
                    queue.popleft()
                    retired |= 1 << unit
                else:
                    queue[0] -= 1
            started = bool(queue) and queue[0] != NEVER
            idle |= (not queue) << unit
            stuck |= (not started) << unit
            busy |= started << unit
        if abort:
            self.holding = max(0, self.holding - 1)
            for queue in self.queues:
                queue.clear()
            busy = 15 if self.holding else 0
        ctx.set(self.dut.retired, retired)
        ctx.set(self.dut.idle, idle)
        ctx.set(self.dut.stuck, stuck)
        ctx.set(self.dut.busy, busy)


class Core:
    """Core that runs programs made of the script words of `testbench.py`."""

    def __init__(self, dut: Control):
        self.dut = dut
        self.log: list[dict] = []  # one entry per program that ran
        self.run: dict | None = None
        self.state = "idle"
        self.issued = (0, 0, 0, 0)
        self.time = 0

    def signals(self):
        """Return the signals that `step` samples."""
        dut = self.dut
        return [
            dut.start.valid,
            dut.start.ready,
            dut.start.payload,
            dut.fetch_data,
            dut.operand_data,
            dut.stop,
            dut.flush,
        ]

    def step(
        self, ctx: SimulatorContext, now: int, valid, ready, start, fetched, operand_data, stop, flush
    ) -> None:
        """Advance by one cycle."""
        dut = self.dut
        self.issued = (0, 0, 0, 0)
        ctx.set(dut.halted, 0)
        if flush:
            self.run, self.state = None, "idle"
            ctx.set(dut.trap.valid, 0)
            ctx.set(dut.core_blocked, 0)
        elif valid and ready:
            self.run = {
                name: getattr(start, name)
                for name in ("segment", "base", "length", "tag", "macro", "operands")
            }
            self.run |= {"begin": now, "words": [], "operands_read": [], "pc": 0, "end": None}
            self.log.append(self.run)
            self.state = "fetch"
        elif self.run is not None and not stop:
            self._execute(ctx, now, fetched, operand_data)
        self._outputs(ctx)

    def _execute(self, ctx: SimulatorContext, now: int, fetched: int, operand_data: int) -> None:
        run = self.run
        assert run is not None
        if self.state == "fetch":
            self.state = "data"
        elif self.state == "data":
            run["words"].append(fetched)
            self._word(ctx, now, fetched)
        elif self.state == "operand":
            self.state = "operand_data"
        elif self.state == "operand_data":
            run["operands_read"].append(operand_data)
            self._next()
        elif self.state == "delay":
            self.time -= 1
            if self.time <= 0:
                self._next()

    def _word(self, ctx: SimulatorContext, now: int, word: int) -> None:
        dut, run = self.dut, self.run
        assert run is not None
        kind, low, middle, high = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFFFF, word >> 32 & 0xFFFFFFFF
        if kind == 1:
            ctx.set(dut.halted, 1)
            run["end"] = now
            self.run, self.state = None, "idle"
        elif kind == 2:
            self.issued = tuple(middle + 1 if unit == low else 0 for unit in range(4))
            self._next()
        elif kind == 3:
            ctx.set(
                dut.trap,
                {
                    "valid": 1,
                    "cause": low,
                    "pc": run["pc"],
                    "segment": run["segment"],
                    "tag": run["tag"],
                    "macro": run["macro"],
                    "address": high,
                },
            )
            self.state = "trapped"
        elif kind == 4:
            self.time, self.state = middle, "delay"
        elif kind == 5:
            ctx.set(dut.core_blocked, 1)
            ctx.set(dut.blocked_pc, run["pc"])
            self.state = "blocked"
        elif kind == 6:
            ctx.set(dut.operand_addr, low)
            self.state = "operand"
        elif kind == 7:
            self.state = "spinning"
        else:
            raise AssertionError(f"program {run['segment']} ran into {word:#x} at {run['pc']}")

    def _next(self) -> None:
        assert self.run is not None
        self.run["pc"] += 1
        assert self.run["pc"] < self.run["length"]
        self.state = "fetch"

    def _outputs(self, ctx: SimulatorContext) -> None:
        dut, run = self.dut, self.run
        ctx.set(dut.start.ready, run is None)
        ctx.set(dut.in_use, 0 if run is None else 1 << run["segment"])
        ctx.set(dut.steps, self.log[-1]["pc"] + 1 if self.log else 0)
        ctx.set(dut.fetch_en, self.state == "fetch")
        ctx.set(dut.issued, sum(bool(issued) << unit for unit, issued in enumerate(self.issued)))
        if run is not None:
            ctx.set(dut.fetch_addr, run["base"] + run["pc"])
            ctx.set(dut.core_pc, run["pc"])
            ctx.set(dut.core_segment, run["segment"])
            ctx.set(dut.core_tag, run["tag"])
