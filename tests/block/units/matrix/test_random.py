"""Random queues of MATRIX commands give the same results as the reference."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.block.units.matrix.reference import Reference, command
from tests.block.units.matrix.testbench import MatrixTestbench, fresh_memories, small_config


def _stride(rng: random.Random) -> int:
    return rng.choice((0, 1, -1, 4, 7, rng.randrange(-300, 300), rng.randrange(-(1 << 19), 1 << 19)))


def _common(rng: random.Random, n: int) -> dict[str, int]:
    values = {"tag": rng.randrange(64), "accumulate": rng.randrange(2), "shift8": int(rng.random() < 0.2)}
    for edge in "aw":
        is_unsigned = rng.randrange(2)
        values[f"{edge}_unsigned"] = is_unsigned
        values[f"{edge}_zp"] = rng.choice(
            (0, rng.randrange(256) if is_unsigned else rng.randrange(-128, 128))
        )
    values |= {name: rng.randrange(1 << 20) for name in ("a_base", "w_base")}
    values |= {
        name: _stride(rng) for name in ("a_u", "a_v", "a_ic", "a_oc", "w_row", "w_kx", "w_ky", "w_ic", "w_oc")
    }
    values |= {name: rng.choice((0, 1, -1, rng.randrange(-9, 9))) for name in ("acc_x", "acc_y", "acc_oc")}
    values |= {name: rng.randrange(n + 1) for name in ("n_cols", "n_tail")}
    values["acc_base"] = rng.randrange(64)
    for a, lim in (("u", "u_lim"), ("v", "v_lim")):
        values[f"{a}0"] = rng.choice((0, rng.randrange(-4, 4), rng.randrange(-32768, 32768)))
        values[lim] = rng.choice((0, rng.randrange(1, 9), rng.randrange(1, 65536)))
    return values


def normal(rng: random.Random, n: int, scaled: float = 0) -> dict[str, int]:
    values = _common(rng, n)
    values |= {name: rng.choice((1, 1, 2, 3)) for name in ("kx_count", "ky_count", "ic_count", "oc_count")}
    values |= {name: rng.choice((1, 2, 3, rng.randrange(1, 2 * n))) for name in ("x_count", "y_count")}
    while values["kx_count"] * values["ky_count"] * values["ic_count"] * values["oc_count"] > 12:
        values[rng.choice(("kx_count", "ky_count", "ic_count", "oc_count"))] = 1
    while values["x_count"] * values["y_count"] > 2 * n:
        values[rng.choice(("x_count", "y_count"))] = 1
    values |= {
        name: rng.choice((1, 2, -1, rng.randrange(-1024, 1024))) for name in ("u_y", "u_ky", "v_x", "v_kx")
    }
    values |= {name: rng.randrange(n + 1) for name in ("k_rows", "k_tail")}
    if rng.random() < 0.5:  # tiles whose rows can be read in pairs
        values |= {name: n * rng.randrange(-300, 300) for name in ("w_kx", "w_ky", "w_ic", "w_oc")}
        values |= {"w_row": n, "w_base": n * rng.randrange((1 << 20) // n)}
    transposes = rng.randrange(2)
    return command(**values, w_transpose=transposes, scaled=int(rng.random() < scaled and not transposes))


def wide(rng: random.Random, n: int) -> dict[str, int]:
    """Return a command in wide or sparse mode: the activations are aligned, and the weights signed and without zero
    point.
    """
    values = normal(rng, n)
    values |= {rng.choice(("wide", "sparse")): 1, "w_transpose": 0, "w_unsigned": 0, "w_zp": 0}
    values |= {"scaled": rng.randrange(2)}
    return values | {
        name: values[name] - values[name] % (2 * n) for name in ("a_base", "a_u", "a_v", "a_ic", "a_oc")
    }


def depthwise(rng: random.Random, n: int, previous: dict[str, int] | None) -> dict[str, int]:
    values = _common(rng, n)
    groups = rng.randrange(1, min(3, n) + 1)
    taps = rng.randrange(1, n // groups + 1)
    if previous and rng.random() < 0.5:
        taps, groups = previous["taps"], previous["groups"]
    values |= {
        "dw": 1,
        "taps": taps,
        "groups": groups,
        "oc_count": rng.randrange(1, 4),
        "u_y": rng.choice((1, 2)),
        "v_x": rng.choice((1, -1)),
    }
    values["x_count"] = rng.choice((1, 2, 3, rng.randrange(1, 15)))
    if previous and rng.random() < 0.5:
        values |= {"x_count": previous["x_count"], "keep": 1, "oc_count": 1}
    values["dw_lead"] = rng.choice((0, 1, taps - 1, values["x_count"] + 2, rng.randrange(20)))
    values["dw_len"] = values["dw_lead"] + rng.choice((1, 2, rng.randrange(1, 50)))
    values["dw_sx"], values["dw_sy"] = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3))
    values["dw_out_w"] = rng.randrange(1, 1 + values["x_count"])
    return command(**values)


def queue(rng: random.Random, n: int, count: int, wides: float = 0) -> list[dict[str, int]]:
    """Return random commands, of which the share `wides` is in wide or sparse mode."""
    commands: list[dict[str, int]] = []
    previous = None
    for _ in range(count):
        if rng.random() < wides:
            commands.append(wide(rng, n))
        elif rng.random() < 0.5:
            commands.append(normal(rng, n, 0.3 if wides else 0))
        else:
            previous = depthwise(rng, n, previous)
            commands.append(previous)
    return commands


def check(bench: MatrixTestbench, commands: list[dict[str, int]]) -> None:
    reference = Reference(bench.n, bench.sp, bench.acc.copy())
    counts = [reference.run(c) for c in commands]
    seen = bench.run(commands)
    assert seen.zeros == [c.matrix_zeros for c in counts]
    for tag in {c["tag"] for c in commands}:
        mine = [vars(count) for c, count in zip(commands, counts, strict=True) if c["tag"] == tag]
        assert seen.by_tag[tag] == {name: sum(c[name] for c in mine) for name in mine[0]}, f"tag {tag}"
    np.testing.assert_array_equal(seen.acc, reference.acc)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize(
    ("n", "seed", "count", "pipelined"),
    [(4, s, 12, 0) for s in range(8)]
    + [(8, 100 + s, 8, 0) for s in range(3)]
    + [(4, 200 + s, 12, 1) for s in range(8)],
)
def test_random_queue(n: int, seed: int, count: int, pipelined: int):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sp, acc = fresh_memories(n, np.random.default_rng(seed))
    refuse = rng.choice((0, 0, 0.3, 0.8))
    hold = rng.choice((0, 0, 0.9))
    config = replace(small_config(n, pipelined), weight_rows=rng.choice((1, 2)))
    bench = MatrixTestbench(n, sp, acc, refuse_weight=refuse, hold=hold, seed=seed, config=config)
    check(bench, queue(rng, n, count))


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize(
    ("n", "seed", "count", "pipelined", "weight_rows", "share"),
    [(4, 300 + s, 12, 0, 1 + s % 2, (0.5, 1)[s // 2 % 2]) for s in range(8)]
    + [(8, 400 + s, 8, 0, 1 + s % 2, 0.5) for s in range(4)]
    + [(4, 500 + s, 12, 1, 1 + s % 2, 0.5) for s in range(4)],
)
def test_random_wide_queue(n: int, seed: int, count: int, pipelined: int, weight_rows: int, share: float):
    """Commands in wide mode, alone and between commands in all other modes."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    sp, acc = fresh_memories(n, np.random.default_rng(seed))
    refuse, hold = rng.choice((0, 0, 0.3, 0.8)), rng.choice((0, 0, 0.9))
    config = replace(small_config(n, pipelined), weight_rows=weight_rows)
    bench = MatrixTestbench(n, sp, acc, refuse_weight=refuse, hold=hold, seed=seed, config=config)
    check(bench, queue(rng, n, count, share))


@pytest.mark.parametrize("seed", range(600, 603))
def test_random_queue_without_wide_mode(seed: int):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sp, acc = fresh_memories(4, np.random.default_rng(seed))
    config = replace(small_config(4), wide=0, sparse=0)
    check(MatrixTestbench(4, sp, acc, seed=seed, config=config), queue(rng, 4, 12))
