"""Models for the tests of the DMA units: AXI slaves, and the effect of commands on byte arrays."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hw.isa.enums import Unit
from hw.layouts import command_layout
from tests.support.packed_reference import unpacked

SP, PARAM, TABLE = range(3)
#: Machines of the random tests: lanes, width of the bus in bytes, and whether the machine is pipelined.
MACHINES = [
    *((n, n, False) for n in (4, 8, 16, 32)),
    (8, 8, True),
    *((n, 2 * n, False) for n in (4, 8, 16)),
    (8, 16, True),
]


def load_command(
    *,
    space: int = 0,
    fill: int = 0,
    transpose: int = 0,
    packed: int = 0,
    fill_value: int = 0,
    tag: int = 0,
    **fields: int,
) -> dict[str, Any]:
    """Return a LOAD command with metadata, as a value of the command layout."""
    word = {"space": space, "fill": fill, "transpose": transpose, "packed": packed, "fill_value": fill_value}
    base = {
        "dram": 0,
        "dst": 0,
        "len": 1,
        "y_count": 1,
        "z_count": 1,
        "dram_y": 0,
        "dram_z": 0,
        "dst_y": 0,
        "dst_z": 0,
    }
    return {"word": word, **base, **fields, "meta": {"wait": 0, "signal": 0, "tag": tag, "macro": 0}}


def store_command(*, tag: int = 0, **fields: int) -> dict[str, Any]:
    """Return a STORE command with metadata, as a value of the command layout."""
    base = {
        "dram": 0,
        "src": 0,
        "len": 1,
        "y_count": 1,
        "z_count": 1,
        "dram_y": 0,
        "dram_z": 0,
        "src_y": 0,
        "src_z": 0,
    }
    return {**base, **fields, "meta": {"wait": 0, "signal": 0, "tag": tag, "macro": 0}}


def set_command(ctx, payload, unit: Unit, command: dict[str, Any]) -> None:
    """Drive a command stream's payload."""
    ctx.set(payload, command_layout(unit).const(command))


def load_writes(command: dict[str, Any], dram: bytes, n: int) -> list[tuple[int, int]]:
    """Return the (address, byte) pairs that a LOAD writes, in order."""
    word, writes = command["word"], []
    if word["packed"]:
        for y in range(command["y_count"]):
            base, start = command["dram"] + y * command["dram_y"], command["dst"] + y * command["dst_y"]
            line = unpacked(dram[base : base + command["len"]], command["z_count"], n)
            writes += [
                (start + i // (2 * n) * command["dst_z"] + i % (2 * n), value) for i, value in enumerate(line)
            ]
        return writes
    for z in range(command["z_count"]):
        plane = []
        for y in range(command["y_count"]):
            base = command["dram"] + z * command["dram_z"] + y * command["dram_y"]
            line = dram[base : base + command["len"]]
            if word["fill"]:
                line = bytes([word["fill_value"]]) * command["len"]
            dst = command["dst"] + z * command["dst_z"] + y * command["dst_y"]
            for i, value in enumerate(line):
                if word["transpose"]:  # columns are written as a whole and in order
                    plane.append((i, y, value))
                else:
                    writes.append((dst + i, value))
        base = command["dst"] + z * command["dst_z"]
        writes += [(base + i * command["dst_y"] + y, value) for i, y, value in sorted(plane)]
    return writes


@dataclass
class ReadSlave:
    """AXI slave for reads that answers in order after a latency, with optional stalls and errors."""

    n: int
    dram: bytes
    rng: random.Random
    latency: int = 5
    stall: float = 0.0
    error_at: set[int] = field(default_factory=set)  # addresses of beats that fail
    now: int = 0
    queue: deque = field(default_factory=deque)  # (due cycle, address, last)
    bursts: list[tuple[int, int]] = field(default_factory=list)
    beats: int = 0
    _offered: bool = False

    def drive(self, ctx, ar, r) -> None:
        """Drive the unit's inputs for this cycle."""
        ctx.set(ar.ready, self.rng.random() >= self.stall)
        if not self._offered:
            self._offered = (
                bool(self.queue) and self.queue[0][0] <= self.now and self.rng.random() >= self.stall
            )
        ctx.set(r.valid, self._offered)
        if self._offered:
            _, addr, last = self.queue[0]
            failed = addr in self.error_at
            ctx.set(
                r.payload.data,
                int.from_bytes(self.dram[addr : addr + self.n], "little")
                ^ (-1 if failed else 0) & ((1 << 8 * self.n) - 1),
            )
            ctx.set(r.payload.resp, 2 + (addr // self.n & 1) if failed else 0)
            ctx.set(r.payload.last, last)

    def sample(self, ctx, ar, r) -> None:
        """Sample this cycle's transfers and check that bursts are aligned and do not cross 4 KiB."""
        if ctx.get(ar.valid) and ctx.get(ar.ready):
            addr, beats = ctx.get(ar.payload.addr), ctx.get(ar.payload.len) + 1
            assert addr % self.n == 0 and addr // 4096 == (addr + beats * self.n - 1) // 4096
            self.bursts.append((addr, beats))
            self.queue += [(self.now + self.latency, addr + i * self.n, i == beats - 1) for i in range(beats)]
        if self._offered and ctx.get(r.ready):
            self.queue.popleft()
            self._offered = False
            self.beats += 1
        self.now += 1


def store_writes(command: dict[str, Any], memory: bytes) -> dict[int, int]:
    """Return the DRAM bytes that a STORE writes."""
    writes = {}
    for z in range(command["z_count"]):
        for y in range(command["y_count"]):
            src = command["src"] + z * command["src_z"] + y * command["src_y"]
            base = command["dram"] + z * command["dram_z"] + y * command["dram_y"]
            writes |= {base + i: memory[src + i] for i in range(command["len"])}
    return writes


@dataclass
class WriteSlave:
    """AXI slave for writes that applies beats and answers in order after a latency, with optional stalls and errors.

    It accepts beats of a burst whose address is offered, as the bus does.
    """

    n: int
    dram: bytearray
    rng: random.Random
    latency: int = 5
    stall: float = 0.0
    error_at: set[int] = field(default_factory=set)  # addresses of bursts that fail
    now: int = 0
    open: deque = field(default_factory=deque)  # bursts with missing beats: [address, beats, beat]
    ahead: list = field(default_factory=list)  # beats of the burst that is offered: (strobes, bytes, last)
    answers: deque = field(default_factory=deque)  # (due cycle, address)
    bursts: list[tuple[int, int]] = field(default_factory=list)
    beats: int = 0
    strobes: int = 0
    _offered: bool = False

    def drive(self, ctx, aw, w, b) -> None:
        """Drive the unit's inputs for this cycle."""
        ctx.set(aw.ready, self.rng.random() >= self.stall)
        ctx.set(w.ready, self.rng.random() >= self.stall)
        if not self._offered:
            self._offered = (
                bool(self.answers) and self.answers[0][0] <= self.now and self.rng.random() >= self.stall
            )
        ctx.set(b.valid, self._offered)
        if self._offered:
            ctx.set(b.payload.resp, 2 + self.rng.randrange(2) if self.answers[0][1] in self.error_at else 0)

    def sample(self, ctx, aw, w, b) -> None:
        """Sample this cycle's transfers and check that bursts are aligned and do not cross 4 KiB."""
        if ctx.get(aw.valid) and ctx.get(aw.ready):
            addr, beats = ctx.get(aw.payload.addr), ctx.get(aw.payload.len) + 1
            assert addr % self.n == 0 and addr // 4096 == (addr + beats * self.n - 1) // 4096
            self.bursts.append((addr, beats))
            self.open.append([addr, beats, 0])
            for beat in self.ahead:
                self._apply(*beat)
            self.ahead = []
        if ctx.get(w.valid) and ctx.get(w.ready):
            row = ctx.get(w.payload.data).to_bytes(self.n, "little")
            beat = ctx.get(w.payload.strb), row, ctx.get(w.payload.last)
            if self.open:
                self._apply(*beat)
            else:
                assert ctx.get(aw.valid)
                self.ahead.append(beat)
        if self._offered and ctx.get(b.ready):
            self.answers.popleft()
            self._offered = False
        self.now += 1

    def _apply(self, mask: int, row: bytes, last: int) -> None:
        """Apply a beat to the oldest burst with missing beats."""
        burst = self.open[0]
        for i in range(self.n):
            if mask >> i & 1:
                self.dram[burst[0] + burst[2] * self.n + i] = row[i]
        burst[2] += 1
        self.beats += 1
        self.strobes += mask.bit_count()
        assert last == (burst[1] == burst[2])
        if burst[1] == burst[2]:
            self.answers.append((self.now + self.latency, burst[0]))
            self.open.popleft()
