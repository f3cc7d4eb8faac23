"""Random unit commands near the limits of legality."""

import random

from hw.isa.commands import MATRIX_WORD, PACKED_FIELDS, UNIT_FIELDS
from hw.isa.enums import Unit

#: Fields of MATRIX that must be multiples of 2 * n in wide and sparse mode.
WIDE_ALIGNED = ("a_base", "a_u", "a_v", "a_ic", "a_oc")


def small(rng: random.Random, most: int) -> int:
    return rng.choice((1, 1, 2, 3, rng.randrange(1, most + 1)))


def _word(rng: random.Random, unit: Unit, name: str, n: int) -> int:
    """Return a packed word with random fields, most of which are legal."""
    packed = PACKED_FIELDS[f"{unit.name.lower()}.{name}"]
    parts = {}
    for part in packed.fields:
        legal = {"space": 2, "op": 5, "b_src": 2, "r_dtype": 2, "post": 7, "r_ls": 30, "table_slot": 0}.get(
            part.name, part.high
        )
        if "lane" in part.name and part.width == 5:
            legal = n - 2
        parts[part.name] = rng.randint(0, legal)
    for name, rare in (
        ("dw", 0.4),
        ("transpose", 0.2),
        ("fill", 0.2),
        ("packed", 0.2),
        ("keep", 0.1),
        ("table_wide", 0.1),
        ("w_transpose", 0.3),
        ("wide", 0.3),
        ("scaled", 0.3),
        ("sparse", 0.3),
    ):
        if name in parts:
            parts[name] = int(rng.random() < rare)
    if "taps" in parts:
        parts["taps"], parts["groups"] = rng.randint(1, 3), rng.randint(1, min(3, 1 + n // 8))
        parts["w_transpose"] &= 1 - parts["dw"]
        if parts["wide"] and rng.random() < 0.9:
            parts["sparse"] = 0
        if (parts["wide"] or parts["sparse"]) and rng.random() < 0.9:
            parts["dw"] = parts["w_transpose"] = parts["w_unsigned"] = 0
        if (parts["dw"] or parts["w_transpose"]) and rng.random() < 0.9:
            parts["scaled"] = 0
    if parts.get("post", 0) in (5, 7) and rng.random() < 0.8:  # they need an operand B
        parts["post"] = 1
    if parts.get("table_wide", 0):
        parts["table"], parts["residual"], parts["table2"] = 1, 0, 0
    if parts.get("post", 0) == 6 and rng.random() < 0.9:
        parts["lane_reduce"] = 0
    if parts.get("post", 0) in (3, 4, 7) and rng.random() < 0.9:
        parts["d_dst"], parts["lane_reduce"] = 0, 1
    if "b_src" in parts and parts["b_src"] == 0 and rng.random() < 0.9:
        parts["op"], parts["requant"] = rng.choice((0, 4)), rng.choice((0, 1, 3))
    if "tail_dim" in parts:
        parts["tail_dim"] = rng.choice((0, 1, 2, 3, 4, 7, 7, 7))
    if parts.get("transpose"):
        parts["fill"] = parts["packed"] = parts["space"] = 0
    if parts.get("space") or parts.get("fill"):
        parts["packed"] = 0
    return packed.pack(**parts)


def command(rng: random.Random, unit: Unit, config) -> dict[str, int]:
    """Return the raw fields of a random command; legal and illegal commands are about equally likely."""
    n, fields = config.n, {}
    scale = rng.choice((1, 4, 16, 64, 256))
    for f in UNIT_FIELDS[unit]:
        name, value = f.name, f.default
        if f"{unit.name.lower()}.{name}" in PACKED_FIELDS:
            value = _word(rng, unit, name, n)
        elif name.endswith("_count"):
            value = small(rng, 12)
        elif name in ("dram_y", "dram_z"):
            value = rng.choice(
                (0, 64, -64, rng.randrange(-(1 << 28), 1 << 28), rng.getrandbits(32) - (1 << 31))
            )
        elif name == "dram":
            value = rng.choice((rng.getrandbits(32), rng.randrange(1 << 20), 0xFFFFFFFF))
        elif name == "len":
            value = rng.choice((n, 1, rng.randrange(1, 4 * n)))
        elif name in ("lanes", "lanes_tail", "k_rows", "k_tail", "n_cols", "n_tail"):
            value = rng.randint(0, n)
        elif name in ("a_zp", "w_zp"):
            value = rng.randint(0, 127)
        elif name in ("u_lim", "v_lim"):
            value = rng.choice((0, 0, rng.randint(1, 20), rng.getrandbits(16)))
        elif name in ("u0", "v0"):
            value = rng.choice((0, -1, rng.randint(-8, 8)))
        elif name in ("u_y", "u_ky", "v_x", "v_kx", "u_wy", "v_wx"):
            value = rng.randint(-2, 3)
        elif name == "dw_len":
            value = rng.choice((rng.randrange(1, 400), rng.randrange(1, 20)))
        elif name == "dw_lead":
            value = rng.randrange(0, 20)
        elif name in ("dw_sx", "dw_sy"):
            value = rng.randint(1, 4)
        elif name == "dw_out_w":
            value = rng.randint(1, 9)
        elif name.endswith("base") or name in ("dst", "src"):
            reach = {"p_base": config.param_slots, "acc_base": config.acc_rows}.get(name, config.sp_bytes)
            value = rng.choice((0, reach // 2, reach - n, rng.randrange(reach), rng.randrange(reach)))
        elif name in ("p_x", "p_n"):
            value = rng.randint(-3, 5)
        elif f.signed and f.width in (16, 20):
            value = rng.choice((0, 1, n, rng.randint(-scale, scale), n * rng.randint(-2, 4)))
        fields[name] = f.truncate(value)
    if unit == Unit.MATRIX and fields["word"] & 1:
        fields |= {"y_count": 1, "kx_count": 1, "ky_count": 1, "ic_count": 1}
    elif unit == Unit.MATRIX and _has_wide_rows(fields["word"]):
        fields |= {name: fields[name] - fields[name] % (2 * n) for name in WIDE_ALIGNED} | {"w_zp": 0}
    elif unit == Unit.LOAD and PACKED_FIELDS["load.word"].unpack(fields["word"])["packed"]:
        for name in ("dst", "dst_y", "dst_z"):
            fields[name] -= fields[name] % n
    _mutate(rng, unit, fields)
    return fields


def _has_wide_rows(word: int) -> bool:
    """Return True if activation rows have 2 * n lanes."""
    parts = MATRIX_WORD.unpack(word)
    return bool(parts["wide"] or parts["sparse"])


def _mutate(rng: random.Random, unit: Unit, fields: dict[str, int]) -> None:
    """In some cases, set one or two random fields to arbitrary values."""
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        f = rng.choice(UNIT_FIELDS[unit])
        fields[f.name] = f.truncate(rng.choice((0, 1, -1, f.high, f.low, rng.getrandbits(32))))
