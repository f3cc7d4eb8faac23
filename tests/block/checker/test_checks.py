"""Checks and derived increments of issued commands match docs/machine.md."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from hw.checker.values import INCREMENT_OF
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Trap, Unit
from hw.layouts import DERIVED, config_layout
from hw.sequencer.issue import command_issue
from tests.block.checker.bounds_reference import verdict
from tests.block.checker.commands import command
from tests.support.testbench import Testbench, shared_block

#: By number of lanes; `WITHOUT_WIDE` and `WITHOUT_SPARSE` are configurations of the same sizes without these modes.
CONFIGS = {
    4: MlaConfig(n=4, sp_bytes=1 << 13, acc_bytes=1 << 12, line_depth=64),
    8: MlaConfig(n=8, fuse_rate=8, serial_commands=1, pipelined=1),
    16: MlaConfig(n=16, windows=2),
    32: MlaConfig(n=32, sp_bytes=1 << 19, acc_bytes=1 << 17, param_slots=256, table_slots=8, windows=8),
}
WITHOUT_WIDE = {n: replace(CONFIGS[n], wide=0, sparse=0) for n in (4, 8)}
WITHOUT_SPARSE = {n: replace(CONFIGS[n], sparse=0) for n in (4, 8)}
#: Maximum number of cycles from `start` to the offer or the trap.
LATENCY = {Unit.LOAD: 5, Unit.STORE: 5, Unit.MATRIX: 9, Unit.FUSE: 13}
#: Maximum with `serial_commands`: one field per cycle, more for the rows of a depthwise command, and `SERIAL_WIDE` more
#: for the rules of wide and sparse mode.
SERIAL_LATENCY = {Unit.LOAD: 63, Unit.STORE: 47, Unit.MATRIX: 130, Unit.FUSE: 168}
SERIAL_WIDE = 11


def pack(unit: Unit, fields: dict[str, int]) -> int:
    word, offset = 0, 0
    for f in UNIT_FIELDS[unit]:
        word |= (fields[f.name] & ((1 << f.width) - 1)) << offset
        offset += f.width
    return word


def derived(unit: Unit, f: dict[str, int]) -> dict[str, int]:
    if not DERIVED[unit]:
        return {}
    inner = "k" if unit == Unit.MATRIX else "w"
    values = {
        "a_start": f["a_base"] + f["u0"] * f["a_u"] + f["v0"] * f["a_v"],
        "a_dy": f["u_y"] * f["a_u"],
        f"a_d{inner}y": f[f"u_{inner}y"] * f["a_u"],
        "a_dx": f["v_x"] * f["a_v"],
        f"a_d{inner}x": f[f"v_{inner}x"] * f["a_v"],
    }
    return {name: value & 0xFFFFF for name, value in values.items()}


def windows_for(rng: random.Random, config: MlaConfig) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(config.windows):
        base = rng.choice((0, rng.getrandbits(32)))
        found.append((base, min(base + rng.getrandbits(32), 0xFFFFFFFF), rng.choice((0, 1, 2, 3, 3))))
    return found


async def write(ctx, dut, rng: random.Random, unit: Unit, fields: dict[str, int]) -> None:
    """Write all fields or, after a clear, those that differ from their defaults; values have excess high bits."""
    if rng.randrange(4):
        ctx.set(dut.field_clear, 1 << unit)
        await ctx.tick()
        ctx.set(dut.field_clear, 0)
        numbers = [i for i, f in enumerate(UNIT_FIELDS[unit]) if fields[f.name] != f.default]
    else:
        numbers = list(range(len(UNIT_FIELDS[unit])))
    rng.shuffle(numbers)
    for i in numbers:
        f = UNIT_FIELDS[unit][i]
        value = fields[f.name] & ((1 << f.width) - 1)
        ctx.set(dut.field_w_en, 1)
        ctx.set(dut.field_w_field, int(unit) << FIELD_INDEX_BITS | i)
        ctx.set(dut.field_w_data, (value | rng.getrandbits(32) << f.width) & 0xFFFFFFFF)
        await ctx.tick()
    ctx.set(dut.field_w_en, 0)


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("n", CONFIGS)
def test_random_commands(n: int, unit: Unit):
    check(CONFIGS[n], unit, n * 10 + int(unit))


@pytest.mark.parametrize("n", WITHOUT_WIDE)
def test_random_commands_without_wide_mode(n: int):
    check(WITHOUT_WIDE[n], Unit.MATRIX, 500 + n)


@pytest.mark.parametrize("n", WITHOUT_SPARSE)
def test_random_commands_without_sparse_mode(n: int):
    check(WITHOUT_SPARSE[n], Unit.MATRIX, 600 + n)


def check(config: MlaConfig, unit: Unit, seed: int, commands: int | None = None) -> None:
    """Compare the checks of random commands with the reference.

    Parameters
    ----------
    config : MlaConfig
        The machine whose issue of commands is simulated.
    unit : Unit
        Unit of all commands.
    seed : int
        Seed of the commands and their windows.
    commands : int or None
        Number of commands. None stands for 330, or for 150 of MATRIX with `serial_commands`, whose checks take the
        most cycles; `tests/soak/test_command_checks.py` checks more of them.
    """
    if commands is None:
        commands = 150 if config.serial_commands and unit == Unit.MATRIX else 330
    print(f"seed {seed}")
    rng = random.Random(seed)
    dut = shared_block(command_issue, config)
    name = unit.name.lower()
    causes: Counter = Counter()
    worst: Counter = Counter()

    limits: list[int] = []

    async def answer(ctx):
        before = 0
        async for _, _, number in ctx.tick().sample(dut.limit):
            ctx.set(dut.windows.limit, before)
            before = limits[number] if number < len(limits) else 0

    async def testbench(ctx):
        port = getattr(dut, name)
        windows: list[tuple[int, int, int]] = []
        for number in range(commands):
            if number % 50 == 0:
                windows = windows_for(rng, config)
                limits[:] = [limit for base, last, _ in windows for limit in (base, last)]
                for i, (base, last, perm) in enumerate(windows):
                    if config.serial_commands:
                        ctx.set(dut.windows.perm[i], perm)
                    else:
                        ctx.set(dut.windows[i], {"base": base, "last": last, "perm": perm})
            fields = command(rng, unit, config)
            if config.serial_commands:
                await write(ctx, dut, rng, unit, fields)
            else:
                ctx.set(getattr(dut, f"config_{name}"), config_layout(unit).from_bits(pack(unit, fields)))
            meta = {
                "wait": rng.getrandbits(16),
                "signal": rng.getrandbits(20),
                "tag": rng.getrandbits(6),
                "macro": 7,
            }
            ctx.set(dut.meta, meta)
            ctx.set(dut.unit, int(unit))
            ctx.set(dut.start, 1)
            ctx.set(dut.sent, 1)
            cycles = 0
            want = verdict(config, unit, fields, windows)
            while True:
                await ctx.tick()
                cycles += 1
                ctx.set(dut.start, 0)
                if ctx.get(dut.trap) or ctx.get(port.valid):
                    break
                assert cycles < 400
            note = f"command {number}: {fields}"
            causes[want[0].name if want else "legal"] += 1
            depthwise = unit == Unit.MATRIX and fields["word"] & 1
            latency, rows = (SERIAL_LATENCY, 84) if config.serial_commands else (LATENCY, 23)
            worst[unit] = max(worst[unit], cycles)
            wide = SERIAL_WIDE if config.wide and config.serial_commands and unit == Unit.MATRIX else 0
            assert cycles <= latency[unit] + wide + (rows if depthwise else 0)
            if want:
                assert ctx.get(dut.trap), note
                assert (ctx.get(dut.cause), ctx.get(dut.address)) == want, note
                assert not ctx.get(port.valid)
                continue
            assert not ctx.get(dut.trap), f"{note} {Trap(ctx.get(dut.cause))} {ctx.get(dut.address):x}"
            payload = ctx.get(port.payload)
            bits = payload.as_bits()
            size = config_layout(unit).size
            increments = payload
            if config.serial_commands:  # the other fields are sent as words
                found = ctx.get(dut.increments)
                increments = {key: found[INCREMENT_OF[key]] for key in DERIVED[unit]}
            else:
                assert bits & ((1 << size) - 1) == pack(unit, fields)
            assert {key: increments[key] for key in DERIVED[unit]} == derived(unit, fields), note
            assert {key: payload["meta"][key] for key in meta} == meta
            for _ in range(rng.choice((0, 0, 1, 3))):
                assert ctx.get(dut.full)
                await ctx.tick()
                assert ctx.get(port.valid) and ctx.get(port.payload).as_bits() == bits
            ctx.set(port.ready, 1)
            assert ctx.get(dut.issued)
            await ctx.tick()
            ctx.set(port.ready, 0)

    Testbench(dut).simulate(testbench, background=[answer] if config.serial_commands else [])
    print(dict(causes), dict(worst))
    assert causes["legal"] >= 20
