"""Testbench of MATRIX and its accumulator, with scratchpad ports that refuse accesses at random."""

import random
from dataclasses import dataclass, field, replace

import numpy as np
from amaranth.hdl import Elaboratable, Module
from amaranth.lib.wiring import connect

from hw.config import MlaConfig
from hw.memory.accumulator import Accumulator
from hw.memory.ports import ACC_READ_LATENCY, SP_READ_LATENCY
from hw.units.matrix.unit import MatrixUnit
from tests.block.units.matrix.reference import WORD_NAMES, derived, field_values
from tests.support.sp_port import SpPort
from tests.support.testbench import Testbench, shared_block

COUNTED = (
    "macs_issued",
    "macs_useful",
    "matrix_rows",
    "matrix_tiles",
    "matrix_zeros",
    "sparse_rows",
    "acc_writes",
)
STATES = ("row_entering", "wait_weights", "weight_shift", "in_flight")
ADDRESSES = 1 << 20


def small_config(n: int, pipelined: int = 0) -> MlaConfig:
    """Return the smallest configuration with n lanes; its accumulator fills quickly."""
    config = MlaConfig(n=n, sp_bytes=128 * n, acc_bytes=256 * n, line_depth=64)
    return replace(config, fuse_rate=4, serial_commands=1, pipelined=1) if pipelined else config


@dataclass
class Observations:
    """Observations of one run of a testbench."""

    accepted: list[int] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    zeros: list[int] = field(default_factory=list)
    states: list[dict[str, int]] = field(default_factory=list)
    by_tag: dict[int, dict[str, int]] = field(default_factory=dict)
    acc: np.ndarray | None = None
    peeked: np.ndarray | None = None


class MatrixHarness(Elaboratable):
    """MATRIX connected to its accumulator.

    Parameters
    ----------
    config : MlaConfig
        Configuration of both.
    """

    def __init__(self, config: MlaConfig):
        self.unit, self.accumulator = MatrixUnit(config), Accumulator(config)

    def elaborate(self, _platform: object) -> Module:
        m = Module()
        m.submodules.unit, m.submodules.accumulator = self.unit, self.accumulator
        connect(m, self.unit.update, self.accumulator.update)
        return m


class MatrixTestbench(Testbench):
    """MATRIX and its accumulator, connected to models of the scratchpad ports.

    Parameters
    ----------
    n : int
        Number of lanes.
    sp, acc : numpy arrays
        Scratchpad (uint8, 2**20 bytes) and accumulator (int32 rows) at the start.
    refuse_weight, hold : float
        Probability per cycle of refusing a weight read, and of delaying the next command.
    peek : (int, int) or None
        Cycle and row of one read by FUSE while the commands run.
    config : MlaConfig or None
        Configuration; by default `small_config(n)`.
    """

    def __init__(
        self,
        n: int,
        sp: np.ndarray,
        acc: np.ndarray,
        *,
        refuse_weight: float = 0,
        hold: float = 0,
        seed: int = 0,
        peek: tuple[int, int] | None = None,
        config: MlaConfig | None = None,
    ):
        self.n, self.sp, self.acc = n, sp, acc
        self.refuse_weight = refuse_weight
        self.hold, self.random = hold, random.Random(seed)
        self.peek = peek
        config = config or small_config(n)
        self.rows = config.acc_rows
        super().__init__(shared_block(MatrixHarness, config))
        self.unit, self.accumulator = self.dut.unit, self.dut.accumulator

    def run(self, commands: list[dict[str, int]], limit: int = 20000) -> Observations:
        """Execute the commands as fast as they are accepted, until the last one is done."""
        seen = Observations()

        async def process(ctx) -> None:
            await self._fill(ctx)
            await self._drive(ctx, list(commands), seen, limit)
            seen.acc = await self._dump(ctx)

        self.simulate(process)
        return seen

    async def _fill(self, ctx) -> None:
        port = self.accumulator.fuse_write
        for r in range(self.rows):
            for name, value in (
                ("valid", 1),
                ("row", r),
                ("mask", (1 << self.n) - 1),
                ("data", _pack(self.acc[r], 4)),
            ):
                ctx.set(getattr(port, name), value)
            await ctx.tick()
        ctx.set(port.valid, 0)

    async def _dump(self, ctx) -> np.ndarray:
        port = self.accumulator.fuse_read
        rows = []
        for r in range(self.rows):
            ctx.set(port.valid, 1)
            ctx.set(port.row, r)
            await ctx.tick()
            ctx.set(port.valid, 0)
            await ctx.tick()
            rows.append(_unpack(ctx.get(port.data), self.n))
        return np.array(rows)

    async def _drive(self, ctx, commands: list[dict[str, int]], seen: Observations, limit: int) -> None:
        unit, expected, cycle = self.unit, len(commands), 0
        arriving: list[tuple[SpPort, list[tuple[int, ...] | None]]] = [
            (SpPort(port, self.random, refuse), [None] * (SP_READ_LATENCY - 1))
            for port, refuse in ((unit.weight, self.refuse_weight), (unit.act, 0.0))
        ]
        offered = False
        watched = (
            unit.cmd.ready,
            unit.done,
            unit.zeros,
            unit.event_tag,
            unit.events,
            *(getattr(unit, s) for s in STATES),
        )
        read = self.accumulator.fuse_read
        while len(seen.done) < expected or (self.peek and cycle < self.peek[0] + 3):
            if self.peek:
                ctx.set(read.valid, cycle == self.peek[0])
                ctx.set(read.row, self.peek[1])
                if cycle == self.peek[0] + ACC_READ_LATENCY:
                    seen.peeked = _unpack(ctx.get(read.data), self.n)
            if not offered and commands and self.random.random() >= self.hold:
                ctx.set(unit.cmd.payload, _payload(commands[0]))
                offered = True
            ctx.set(unit.cmd.valid, offered)
            for port, rows in arriving:
                port.drive(ctx)
                rows.append(port.granted(ctx))
            values = await ctx.tick().sample(*watched)
            _, _, ready, done, zeros, tag, events, *states = values[: 2 + 5 + len(STATES)]
            seen.states.append(dict(zip(STATES, states, strict=True)))
            for port, late in arriving:
                if granted := late.pop(0):
                    rows = self.sp[(granted[0] + np.arange(2 * self.n)) % ADDRESSES]
                    ctx.set(port.port.data, _pack(rows[: self.n], 1))
                    if granted[1:] == (1,):
                        assert granted[0] % (self.n if port.port is unit.weight else 2 * self.n) == 0
                        ctx.set(port.port.next, _pack(rows[self.n :], 1))
            if offered and ready:
                seen.accepted.append(cycle)
                commands.pop(0)
                offered = False
            if states[0]:
                seen.entered.append(cycle)
            if done:
                seen.done.append(cycle)
                seen.zeros.append(zeros)
            counts = seen.by_tag.setdefault(tag, dict.fromkeys(COUNTED, 0))
            for name in COUNTED:
                counts[name] += events[name]
            cycle += 1
            assert cycle < limit, "the unit hangs"


def _pack(values: np.ndarray, size: int) -> int:
    return int.from_bytes(values.astype({1: np.uint8, 4: np.int32}[size]).tobytes(), "little")


def _unpack(word: int, n: int) -> np.ndarray:
    return np.frombuffer(word.to_bytes(4 * n, "little"), np.int32)


def _payload(c: dict[str, int]) -> dict:
    return {
        **field_values(c),
        **derived(c),
        "word": {name: c[name] for name in WORD_NAMES},
        "meta": {"wait": 0, "signal": 0, "tag": c["tag"], "macro": 0},
    }


def fresh_memories(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return random scratchpad and accumulator contents in which a quarter of the bytes are zero."""
    sp = rng.integers(0, 256, ADDRESSES, dtype=np.uint8)
    sp[rng.random(ADDRESSES) < 0.25] = 0
    return sp, rng.integers(-(1 << 31), 1 << 31, (small_config(n).acc_rows, n)).astype(np.int32)
