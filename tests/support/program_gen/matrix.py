"""Random MATRIX commands."""

import random

from hw.isa.enums import Unit
from tests.support.program_gen.commands import CommandRanges, place
from tests.support.program_gen.items import Issue, Pair


def _edges(rng: random.Random) -> dict[str, int]:
    a_unsigned, w_unsigned = rng.randrange(2), rng.randrange(2)
    zero = lambda unsigned: rng.choice((0, rng.randint(0, 255) if unsigned else rng.randint(-128, 127)))  # noqa: E731
    return {
        "a_unsigned": a_unsigned,
        "w_unsigned": w_unsigned,
        "a_zp": zero(a_unsigned),
        "w_zp": zero(w_unsigned),
    }


def random_matrix(ranges: CommandRanges, rng: random.Random) -> Issue | None:
    """Return a MATRIX command in normal or depthwise mode, or None if it does not fit into the ranges."""
    if rng.random() < 0.3:
        return _depthwise(ranges, rng)
    modes = [name for name in ("wide", "sparse") if getattr(ranges.config, name)]
    return _normal(ranges, rng, rng.choice(modes) if modes and rng.random() < 0.5 else "")


def _normal(ranges: CommandRanges, rng: random.Random, mode: str) -> Issue | None:
    n = ranges.config.n
    values = _edges(rng) | {
        "x_count": rng.choice((1, 2, 3, 5, 9)),
        "y_count": rng.choice((1, 1, 2, 3)),
        "kx_count": rng.choice((1, 1, 2, 3)),
        "ky_count": rng.choice((1, 1, 2)),
        "ic_count": rng.choice((1, 1, 2)),
        "oc_count": rng.choice((1, 1, 2)),
        "accumulate": int(rng.random() < 0.3),
        "shift8": int(rng.random() < 0.15),
        "w_transpose": int(rng.random() < 0.25),
    }
    for name in ("a_u", "a_v", "a_ic", "a_oc", "w_kx", "w_ky", "w_ic", "w_oc"):
        values[name] = rng.choice((0, n, n, 2 * n, -n, rng.randint(-2 * n, 2 * n)))
    values["w_row"] = rng.choice((n, n, rng.randint(-n, n)))
    x, y = values["x_count"], values["y_count"]
    dense = rng.random() < 0.7
    values |= {
        "acc_x": 1 if dense else rng.randint(-2, 2),
        "acc_y": x if dense else rng.randint(-3, 3),
        "acc_oc": x * y if dense else rng.randint(-4, 4),
        "u0": rng.choice((0, -1, rng.randint(-3, 3))),
        "v0": rng.choice((0, -1, rng.randint(-3, 3))),
        "u_lim": rng.choice((0, 1, 2, 4)),
        "v_lim": rng.choice((0, 2, 4, 8)),
    }
    for name in ("u_y", "u_ky", "v_x", "v_kx"):
        values[name] = rng.choice((1, 1, 1, 2, -1, 0))
    for name in ("k_rows", "k_tail", "n_cols", "n_tail"):
        values[name] = rng.choice((0, 0, rng.randint(1, n)))
    if ranges.config.wide and not values["w_transpose"]:
        values["scaled"] = int(rng.random() < 0.3)
    if mode:
        values |= {mode: 1, "w_transpose": 0, "w_unsigned": 0, "w_zp": 0}
        for name in ("a_u", "a_v", "a_ic", "a_oc"):
            values[name] = rng.choice((0, 2 * n, 2 * n, -2 * n, 4 * n))
    return place(ranges, rng, Unit.MATRIX, values, n)


def _depthwise(ranges: CommandRanges, rng: random.Random) -> Issue | None:
    n = ranges.config.n
    groups = rng.randint(1, 3)
    taps = rng.randint(1, max(1, min(5, n // groups)))
    width, height = rng.randint(1, 6), rng.randint(1, 4)
    lead = rng.choice((0, 1, width + 2, rng.randint(0, 2 * width + 2)))
    sx, sy = rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
    outputs = rng.randint(1, max(1, -(-width // sx)))
    values = _edges(rng) | {
        "dw": 1,
        "taps": taps,
        "groups": groups,
        "x_count": width,
        "dw_lead": lead,
        "dw_len": lead + rng.randint(1, width * height),
        "dw_out_w": outputs,
        "dw_sx": sx,
        "dw_sy": sy,
        "oc_count": rng.choice((1, 1, 2)),
        "accumulate": int(rng.random() < 0.3),
        "shift8": int(rng.random() < 0.1),
        "a_u": rng.choice((n * width, n, 0)),
        "a_v": rng.choice((n, n, 0, -n, rng.randint(-n, n))),
        "a_oc": rng.choice((0, n)),
        "w_oc": rng.choice((0, n)),
        "w_row": rng.choice((n, n, rng.randint(-n, n))),
        "acc_x": 1,
        "acc_y": outputs,
        "acc_oc": outputs * height,
        "u0": rng.randint(-1, 1),
        "v0": rng.randint(-1, 1),
        "u_lim": rng.choice((0, height, 2)),
        "v_lim": rng.choice((0, width, 2)),
        "n_cols": rng.choice((0, rng.randint(1, n))),
    }
    return place(ranges, rng, Unit.MATRIX, values, n)


def random_continued_pair(ranges: CommandRanges, rng: random.Random) -> Pair | None:
    """Return a depthwise command and one that continues its stream, or None if they do not fit into the ranges."""
    first = _depthwise(ranges, rng)
    if not first:
        return None
    first.values["oc_count"] = 1
    values = dict(first.values) | {"keep": 1, "dw_lead": rng.randint(0, 2)}
    values["dw_len"] = values["dw_lead"] + rng.randint(1, 8)
    reach = (values["groups"] - 1) * values["x_count"] + values["taps"] - 1
    if first.values["dw_len"] < reach or reach - values["dw_lead"] > 2 * values["x_count"]:
        return None
    second = place(ranges, rng, Unit.MATRIX, values, ranges.config.n)
    return Pair([first, second]) if second else None
