"""Random FUSE commands."""

import random

from cosim.semantics.bounding_box import BoundingBox, boxes
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import DTYPE_BYTES, PAIRS, Op, Post, Reduce, Unit
from tests.support.program_gen.commands import CommandRanges, config_of, place
from tests.support.program_gen.items import Issue

_POOL_CLIP = 1 << 9


def random_fuse(ranges: CommandRanges, rng: random.Random) -> Issue | None:
    """Return a FUSE command with random stages, or None if the drawn command is illegal."""
    values = _loops(ranges, rng) | _operands(ranges, rng) | _requant(ranges, rng) | _residual(rng)
    values |= {"residual": 0} if values["table_wide"] else {}
    values |= _reduction(ranges, rng, values)
    for stream in "brd":
        values |= _strides(ranges, rng, stream, values)
    command = place(ranges, rng, Unit.FUSE, values, ranges.config.n)
    return command if command and independent(ranges.config, command) else None


def meets(a: BoundingBox, b: BoundingBox) -> bool:
    """Return True if two boxes share an address."""
    return a.space == b.space and a.low <= b.high and b.low <= a.high


def independent(config: MlaConfig, command: Issue) -> bool:
    """Return True if no point of the command reads an address that the same command writes."""
    reach = list(boxes(config, Unit.FUSE, config_of(command)))
    return not any(meets(item, out) for out in reach if out.write for item in reach if not item.write)


def _loops(ranges: CommandRanges, rng: random.Random) -> dict[str, int]:
    n = ranges.config.n
    window = rng.random() < 0.4
    values = {
        "x_count": rng.choice((1, 2, 3, 7)),
        "y_count": rng.choice((1, 1, 2, 3)),
        "n_count": rng.choice((1, 1, 2)),
        "wx_count": rng.choice((1, 2, 3)) if window else 1,
        "wy_count": rng.choice((1, 2, 3)) if window else 1,
        "u0": rng.randint(-1, 1),
        "v0": rng.randint(-1, 1),
        "u_lim": rng.choice((0, 0, 2, 4)),
        "v_lim": rng.choice((0, 0, 3, 6)),
        "lanes": rng.choice((0, 0, rng.randint(1, n))),
        "lanes_tail": rng.choice((0, rng.randint(1, n))),
        "tail_dim": rng.choice((7, 7, 0, 1, 2, 3, 4)),
    }
    for name in ("u_y", "u_wy", "v_x", "v_wx"):
        values[name] = rng.choice((1, 1, 2, -1, 0))
    return values


def _operands(ranges: CommandRanges, rng: random.Random) -> dict[str, int]:
    n = ranges.config.n
    a_src, b_src = rng.randrange(2), rng.choice((0, 0, 1, 2))
    size = n * DTYPE_BYTES[3] if a_src else 1
    stride = lambda: rng.choice((0, 1, 2, -1)) * (rng.choice((n, size, 3)) if a_src else 1)  # noqa: E731
    op = (
        rng.choice((Op.PASS, Op.SQUARE, Op.ADD, Op.SUB, Op.MUL, Op.MUL_SUB))
        if b_src
        else rng.choice((Op.PASS, Op.PASS, Op.SQUARE))
    )
    return {
        "a_src": a_src,
        "a_dtype": rng.randrange(4),
        "b_src": b_src,
        "b_dtype": rng.randrange(4),
        "b_bcast": int(rng.random() < 0.3),
        "b_lane": rng.randrange(n),
        "op": int(op),
        "op_shift": rng.choice((0, 7, 31)),
        "a_u": stride(),
        "a_v": stride(),
        "a_n": stride(),
        "zp_ab": rng.choice((0, rng.getrandbits(32))),
        "a_float": int(rng.random() < 0.15),
    }


def _i32(rng: random.Random) -> int:
    return rng.choice(
        (0, 1, -1, rng.randint(-200, 200), rng.randint(-(1 << 31), (1 << 31) - 1), 1 << 30, -(1 << 31))
    )


def _exponent(rng: random.Random) -> int:
    return rng.choice((0, rng.randint(-12, 2), rng.randint(-12, 2), rng.randint(-128, 127)))


def _range(rng: random.Random) -> tuple[int, int]:
    choices = ((-128, 127), (0, 255), (-(1 << 31), (1 << 31) - 1), (-(1 << 15), (1 << 15) - 1))
    low, high = sorted((_i32(rng), _i32(rng)))
    return rng.choice((*choices, (low, high), (high, low)))


def _requant(ranges: CommandRanges, rng: random.Random) -> dict[str, int]:
    config = ranges.config
    low, high = _range(rng)
    wide = int(config.table_slots > 1 and rng.random() < 0.1)
    return {
        "requant": rng.choice((0, 1, 1, 2, 3)),
        "rq_lane": rng.randrange(max(1, config.n - 1)),
        "rounding": rng.randrange(4),
        "to_float": int(rng.random() < 0.15),
        "bias_en": rng.randrange(2),
        "neg_en": int(rng.random() < 0.3),
        "bias": _i32(rng),
        "mult": _i32(rng),
        "neg_mult": _i32(rng),
        "shifts": _exponent(rng) & 255 | (_exponent(rng) & 255) << 8,
        "zp": _i32(rng),
        "clip_lo": low,
        "clip_hi": high,
        "p_x": rng.choice((0, 1, -1)),
        "p_n": rng.choice((0, 1, 2)),
        "table": wide or int(rng.random() < 0.25),
        "table2": 0 if wide else int(rng.random() < 0.15),
        "table_wide": wide,
        "table_slot": rng.randrange(config.table_slots - wide),
    }


def _residual(rng: random.Random) -> dict[str, int]:
    low, high = _range(rng)
    exponents = [_exponent(rng) & 255 for _ in range(3)]
    return {
        "residual": int(rng.random() < 0.3),
        "r_dtype": rng.randrange(3),
        "r_raw": int(rng.random() < 0.3),
        "r_ls": rng.choice((20, 20, 15, 0, 30, rng.randint(0, 30))),
        "zp_xr": rng.choice((0, rng.getrandbits(32))),
        "x_mult": _i32(rng),
        "r_mult": _i32(rng),
        "o_mult": _i32(rng),
        "r_bias": _i32(rng),
        "o_zp": _i32(rng),
        "r_shifts": exponents[0] | exponents[1] << 8 | exponents[2] << 16,
        "r_lo": low,
        "r_hi": high,
    }


def _reduction(ranges: CommandRanges, rng: random.Random, drawn: dict[str, int]) -> dict[str, int]:
    n = ranges.config.n
    windowed = drawn["wx_count"] * drawn["wy_count"] > 1
    low, high = _range(rng)
    lane_reduce = int(rng.choice(tuple(Reduce))) if rng.random() < 0.3 else 0
    post = int(
        rng.choice(
            (
                Post.NONE,
                Post.SCALE,
                Post.COUNT,
                Post.RECIP if lane_reduce else 0,
                Post.RSQRT if lane_reduce else 0,
                Post.VAR_RSQRT if lane_reduce and drawn["b_src"] else 0,
                Post.ROW if drawn["b_src"] else 0,
                0 if lane_reduce else Post.SLOT,
            )
        )
    )
    pair = post in PAIRS
    values = {
        "reduce": int(rng.choice(tuple(Reduce)))
        if (windowed and rng.random() < 0.8) or rng.random() < 0.1
        else 0,
        "lane_reduce": lane_reduce,
        "post": post,
        "post_rounding": rng.randrange(4),
        "d_dst": 0 if pair else rng.randrange(2),
        "d_dtype": rng.randrange(4),
        "d_lane": rng.randrange(n - 1),
        "post_bias": _i32(rng),
        "post_mult": 0 if pair and rng.random() < 0.5 else _i32(rng),
        "root_shifts": _exponent(rng) & 255 | (_exponent(rng) & 255) << 8,
        "post_shift": _exponent(rng),
        "post_zp": _i32(rng),
        "post_lo": low,
        "post_hi": high,
    }
    if post == Post.COUNT and rng.random() < 0.7:  # sums that the division does not clip
        values |= {"clip_lo": -_POOL_CLIP, "clip_hi": _POOL_CLIP, "r_lo": -_POOL_CLIP, "r_hi": _POOL_CLIP}
        values |= {"post_bias": rng.randint(-100, 100)}
    return values


def _strides(ranges: CommandRanges, rng: random.Random, stream: str, drawn: dict[str, int]) -> dict[str, int]:
    n = ranges.config.n
    in_acc = {"b": drawn["b_src"] == 1, "r": False, "d": not drawn["d_dst"]}[stream]
    size = DTYPE_BYTES[drawn[f"{stream}_dtype"]]
    if rng.random() < 0.3:
        return {
            f"{stream}_{dim}": rng.choice((0, 1, -1, 2)) * (1 if in_acc else rng.choice((1, size, n)))
            for dim in FUSE_DIMS
        }
    unit = 1 if in_acc else rng.choice((size, n * size, drawn["lanes"] * size or n * size))
    strides, step = {}, unit
    for dim in FUSE_DIMS:
        windowed = stream == "d" and drawn.get("reduce") and dim in ("wx", "wy")
        strides[f"{stream}_{dim}"] = 0 if windowed else step
        step *= 1 if windowed else drawn[f"{dim}_count"]
    return strides
