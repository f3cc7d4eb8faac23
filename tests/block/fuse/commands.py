"""Random legal FUSE commands, and the corresponding payloads of the unit."""

import random

from hw.isa.commands import FUSE_DIMS, FUSE_FIELDS, FUSE_SRC, FUSE_STAGE

#: Scratchpad bytes and accumulator rows: commands read the lower half and write the upper half.
READ, WRITE = 0, 1


def defaults() -> dict[str, int]:
    """Return all fields with their default values; the fields of the fuse word replace its packed words."""
    fields = {f.name: f.default for f in FUSE_FIELDS if f.name not in ("src", "stage")}
    return fields | {f.name: f.default for packed in (FUSE_SRC, FUSE_STAGE) for f in packed.fields}


def payload(fields: dict[str, int], tag: int) -> dict:
    """Return the unit's command, including the derived increments."""
    plain = {f.name: fields[f.name] for f in FUSE_FIELDS if f.name not in ("src", "stage")}
    words = {
        name: {f.name: fields[f.name] for f in packed.fields}
        for name, packed in (("src", FUSE_SRC), ("stage", FUSE_STAGE))
    }
    c = fields
    derived = {
        "a_start": c["a_base"] + c["u0"] * c["a_u"] + c["v0"] * c["a_v"],
        "a_dy": c["u_y"] * c["a_u"],
        "a_dwy": c["u_wy"] * c["a_u"],
        "a_dx": c["v_x"] * c["a_v"],
        "a_dwx": c["v_wx"] * c["a_v"],
    }
    meta = {"wait": 0, "signal": 0, "tag": tag, "macro": 0}
    return plain | words | {k: v % (1 << 20) for k, v in derived.items()} | {"meta": meta}


def wide(rng: random.Random) -> int:
    """Return an int32 of random magnitude, in some cases a corner value."""
    if rng.random() < 0.1:
        return rng.choice((0, 1, -1, (1 << 31) - 1, -(1 << 31), (1 << 30), -(1 << 30)))
    bits = rng.randint(1, 31)
    return rng.randint(-(1 << bits), (1 << bits) - 1)


def multiplier(rng: random.Random) -> int:
    """Return a random multiplier, in most cases one that a quantizer produces."""
    return rng.randint(1 << 30, (1 << 31) - 1) if rng.random() < 0.7 else wide(rng)


def limits(rng: random.Random) -> tuple[int, int]:
    """Return a random clip range, in rare cases with low > high."""
    if rng.random() < 0.3:
        return -(1 << 31), (1 << 31) - 1
    a, b = sorted((wide(rng), wide(rng))) if rng.random() < 0.5 else (-128, 127)
    return (b, a) if rng.random() < 0.05 else (a, b)


def exponent(rng: random.Random) -> int:
    """Return a random exponent, in most cases one that a quantizer produces."""
    return rng.randint(-12, 3) if rng.random() < 0.8 else rng.randint(-128, 127)


def random_command(
    rng: random.Random, n: int, sp_bytes: int, acc_rows: int, slots: int, tables: int, most_points: int = 32
) -> dict[str, int]:
    """Return a legal command that reads the lower half of the memories and writes the upper half."""
    c = defaults()
    points = 1
    for dim in rng.sample(FUSE_DIMS, len(FUSE_DIMS)):
        c[f"{dim}_count"] = rng.choice([count for count in (1, 1, 2, 3, 4) if count * points <= most_points])
        points *= c[f"{dim}_count"]
    _fuse_word(rng, c, n, tables)
    if c["requant"] == 1 or c["post"] == 6:
        c |= {"p_base": slots // 2, "p_x": rng.randint(-2, 2), "p_n": rng.randint(-2, 2)}
        c["p_base"] = max(0, slots // 2 - 1)
        if slots < 16:
            c |= {"p_x": 0, "p_n": 0}
    _walk(rng, c, sp_bytes, acc_rows)
    for name in (
        "bias",
        "mult",
        "neg_mult",
        "zp",
        "x_mult",
        "r_mult",
        "o_mult",
        "r_bias",
        "o_zp",
        "post_bias",
        "post_mult",
        "post_zp",
    ):
        small = name in ("zp", "o_zp", "post_zp", "r_bias", "post_bias") and rng.random() < 0.7
        c[name] = multiplier(rng) if "mult" in name else rng.randint(-128, 127) if small else wide(rng)
    for lo, hi in (("clip_lo", "clip_hi"), ("r_lo", "r_hi"), ("post_lo", "post_hi")):
        c[lo], c[hi] = limits(rng)
    c["shifts"] = (exponent(rng) & 255) | (exponent(rng) & 255) << 8
    c["r_shifts"] = sum((exponent(rng) & 255) << at for at in (0, 8, 16))
    c["post_shift"] = exponent(rng)
    c["post_mult"] *= c["post"] not in (3, 4, 7) or rng.random() < 0.5
    c["root_shifts"] = (exponent(rng) & 255) | (exponent(rng) & 255) << 8
    c["op_shift"] = rng.randint(0, 31)
    for name in ("zp_ab", "zp_xr"):
        c[name] = rng.getrandbits(32) if rng.random() < 0.3 else (rng.randint(-128, 127) & 0xFFFF) * 0x10001
    return c


def _fuse_word(rng: random.Random, c: dict[str, int], n: int, tables: int) -> None:
    for packed in (FUSE_SRC, FUSE_STAGE):
        for f in packed.fields:
            c[f.name] = rng.randint(f.low, f.high)
    c["b_src"] = rng.choice((0, 1, 2))
    c["requant"] = rng.choice((0, 1, 1, 2, 3))
    c["op"] = rng.choice((0, 0, 1, 2, 3, 4, 5))
    if c["requant"] == 2 or c["op"] in (1, 2, 3, 5):
        c["b_src"] = rng.choice((1, 2))
    c["b_lane"], c["rq_lane"] = rng.randrange(n), rng.randrange(n - 1)
    c["b_bcast"] &= c["b_src"] != 0
    c["r_dtype"] = rng.choice((0, 1, 2))
    c["r_ls"] = rng.choice((0, 20, 20, rng.randint(0, 30)))
    c["table_slot"] = rng.randrange(tables)
    c["table"], c["table2"] = rng.random() < 0.2, rng.random() < 0.1
    c["residual"] = rng.random() < 0.3
    c["a_float"], c["to_float"] = rng.random() < 0.2, rng.random() < 0.2
    c["lane_reduce"] = rng.choice((0, 0, 1, 2, 3))
    c["reduce"] = rng.choice((0, 1, 2, 3))
    c["d_lane"] = rng.randrange(n)
    c["post"] = rng.choice((0, 0, 1, 2, 5, 6))
    if c["lane_reduce"] and rng.random() < 0.4:
        c |= {"post": rng.choice((3, 4, 7)), "d_dst": 0, "d_lane": rng.randrange(n - 1)}
    if c["lane_reduce"] and c["post"] == 6:
        c["post"] = 1
    if c["post"] in (5, 7):
        c["b_src"] = rng.choice((1, 2))
    c["table_wide"] = tables > 1 and rng.random() < 0.1
    if c["table_wide"]:
        c |= {"table": 1, "table2": 0, "residual": 0, "table_slot": rng.randrange(tables - 1)}
    c["lanes"], c["lanes_tail"] = rng.choice((0, rng.randint(1, n))), rng.choice((0, rng.randint(1, n)))
    c["tail_dim"] = rng.choice((0, 1, 2, 3, 4, 7))


def _walk(rng: random.Random, c: dict[str, int], sp_bytes: int, acc_rows: int) -> None:
    def region(to_sp: bool, half: int) -> tuple[int, int]:
        """Return the middle of one half of a memory, and the largest stride for which accesses stay in that half."""
        size = sp_bytes if to_sp else acc_rows
        return size // 4 + half * size // 2, size // 4 // (4 * 4 * 8)

    kinds = {
        "a": (c["a_src"] == 1, READ),
        "b": (c["b_src"] == 2, READ),
        "r": (True, READ),
        "d": (c["d_dst"] == 1, WRITE),
    }
    for stream, (to_sp, half) in kinds.items():
        c[f"{stream}_base"], most = region(to_sp, half)
        for dim in ("n", "u", "v") if stream == "a" else FUSE_DIMS:
            c[f"{stream}_{dim}"] = rng.choice((0, rng.randint(-most, most), rng.randint(-most, most)))
    for name in ("u_y", "u_wy", "v_x", "v_wx"):
        c[name] = rng.randint(-2, 2)
    c["u0"], c["v0"] = rng.randint(-2, 2), rng.randint(-2, 2)
    c["u_lim"], c["v_lim"] = rng.choice((0, 1, 3, 6)), rng.choice((0, 2, 3, 6))
