"""Reference in plain Python for the traps of commands by the "Bounds" and BAD_COMMAND rules of docs/machine.md."""

from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS
from hw.isa.enums import Trap, Unit

DIMS = ("wx", "wy", "x", "y", "n")
SIZES = (1, 1, 2, 4)


def unpacked(unit: Unit, raw: dict[str, int]) -> dict[str, int]:
    """Return the fields of a command, including the fields of its packed words."""
    values = dict(raw)
    for f in UNIT_FIELDS[unit]:
        packed = PACKED_FIELDS.get(f"{unit.name.lower()}.{f.name}")
        if packed:
            values |= packed.unpack(raw[f.name])
    return values


def extent(dims: list[tuple[int, int]]) -> tuple[int, int]:
    spans = [(count - 1) * stride for count, stride in dims]
    return sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)


def coordinates(f: dict[str, int], axis: str, dims: list[tuple[int, int]]) -> tuple[int, int, bool]:
    low, high = extent(dims)
    low, high = f[f"{axis}0"] + low, f[f"{axis}0"] + high
    wide = low < -65536 or high > 65535
    if f[f"{axis}_lim"]:
        low, high = max(low, 0), min(high, f[f"{axis}_lim"] - 1)
    return low, high, wide


def verdict(config, unit: Unit, raw: dict[str, int], windows) -> tuple[Trap, int] | None:
    """Return the trap and its address, or None for a legal command."""
    f = unpacked(unit, raw)
    bad, streams = {Unit.LOAD: _load, Unit.STORE: _store, Unit.MATRIX: _matrix, Unit.FUSE: _fuse}[unit](
        config, f
    )
    if bad:
        return Trap.BAD_COMMAND, 0
    limits = {
        "sp": config.sp_bytes,
        "acc": config.acc_bytes // (4 * config.n),
        "slot": config.param_slots,
        "param": config.param_slots * 16 * config.n,
        "table": 512 * config.table_slots,
    }
    for trap, spaces in (
        (Trap.SP_BOUNDS, ("sp",)),
        (Trap.ACC_BOUNDS, ("acc",)),
        (Trap.SLOT_BOUNDS, ("slot", "param", "table")),
    ):
        for space, low, high in streams():
            if space in spaces and (low < 0 or high >= limits[space]):
                return trap, (low if low < 0 else high) & 0xFFFFFFFF
    for space, low, high in streams():
        if space in ("read", "write"):
            bit = 1 if space == "read" else 2
            if not any(first <= low and high <= last and perm & bit for first, last, perm in windows):
                return Trap.DRAM_WINDOW, low & 0xFFFFFFFF
    return None


def walk(space: str, base: int, dims: list[tuple[int, int]], touched: int) -> tuple[str, int, int]:
    low, high = extent(dims)
    return space, base + low, base + high + touched - 1


def _load(config, f):
    n, away = config.n, f["space"] != 0
    bad = (
        0 in (f["len"], f["y_count"], f["z_count"])
        or f["space"] == 3
        or (f["transpose"] and (f["fill"] or f["len"] > n or f["y_count"] > n or away))
        or (f["packed"] and (not config.packed_loads or away or f["fill"] or f["transpose"]))
        or (f["packed"] and any(f[k] % n for k in ("dst", "dst_y", "dst_z")))
        or (away and any(f[k] % n for k in ("dst", "dst_y", "dst_z", "len")))
    )

    def streams():
        space = ("sp", "param", "table")[f["space"]]
        if f["transpose"]:
            yield walk(space, f["dst"], [(f["z_count"], f["dst_z"]), (f["len"], f["dst_y"])], f["y_count"])
        else:
            yield walk(
                space,
                f["dst"],
                [(f["z_count"], f["dst_z"]), (f["y_count"], f["dst_y"])],
                2 * n if f["packed"] else f["len"],
            )
        if not f["fill"]:
            yield walk(
                "read", f["dram"], [(f["z_count"], f["dram_z"]), (f["y_count"], f["dram_y"])], f["len"]
            )

    return bad, streams


def _store(config, f):
    def streams():
        yield walk("sp", f["src"], [(f["z_count"], f["src_z"]), (f["y_count"], f["src_y"])], f["len"])
        yield walk("write", f["dram"], [(f["z_count"], f["dram_z"]), (f["y_count"], f["dram_y"])], f["len"])

    return 0 in (f["len"], f["y_count"], f["z_count"]), streams


def _a_stream(f, space, u, v, dims, touched):
    if u[0] > u[1] or v[0] > v[1]:
        return
    corners = [p * f["a_u"] + q * f["a_v"] for p in u[:2] for q in v[:2]]
    low, high = extent(dims)
    yield space, f["a_base"] + min(corners) + low, f["a_base"] + max(corners) + high + touched - 1


def _matrix(config, f):
    n, dw, p = config.n, f["dw"], f["x_count"]
    counts = ("x_count", "y_count", "kx_count", "ky_count", "ic_count", "oc_count")
    bad = any(f[k] == 0 for k in counts) or any(f[k] > n for k in ("k_rows", "k_tail", "n_cols", "n_tail"))
    for side in "aw":
        low, high = (0, 255) if f[f"{side}_unsigned"] else (-128, 127)
        bad |= not low <= f[f"{side}_zp"] <= high
    if dw:
        taps = f["taps"] * f["groups"]
        bad |= (
            taps == 0 or taps > n or (f["groups"] > 1 and f["groups"] * p + 2 * f["taps"] > config.line_depth)
        )
        bad |= any(f[k] != 1 for k in ("y_count", "kx_count", "ky_count", "ic_count")) or f["w_transpose"]
        bad |= 0 in (f["dw_sx"], f["dw_sy"], f["dw_out_w"], f["dw_len"]) or f["dw_len"] <= f["dw_lead"]
        bad |= bool(f["keep"] and f["oc_count"] > 1)
    bad |= bool((f["wide"] and not config.wide) or (f["sparse"] and (not config.sparse or f["wide"])))
    if f["wide"] or f["sparse"]:
        bad |= any(f[k] for k in ("dw", "w_transpose", "w_unsigned", "w_zp"))
        bad |= any(f[k] % (2 * n) for k in ("a_base", "a_u", "a_v", "a_ic", "a_oc"))
    bad |= bool(f["scaled"] and (not config.wide or dw or f["w_transpose"]))
    if bad:
        return True, None
    if dw:
        u = coordinates(f, "u", [((f["dw_len"] - 1) // p + 1, f["u_y"])])
        v = coordinates(f, "v", [(min(p, f["dw_len"]), f["v_x"])])
    else:
        u = coordinates(f, "u", [(f["y_count"], f["u_y"]), (f["ky_count"], f["u_ky"])])
        v = coordinates(f, "v", [(p, f["v_x"]), (f["kx_count"], f["v_kx"])])

    def streams():
        oc = f["oc_count"]
        if dw:
            yield from _a_stream(f, "sp", u, v, [(oc, f["a_oc"])], n)
            yield walk("sp", f["w_base"], [(oc, f["w_oc"]), (f["taps"] * f["groups"], f["w_row"])], n)
            rows = ((f["dw_len"] - 1 - f["dw_lead"]) // p) // f["dw_sy"] + 1
            yield walk(
                "acc", f["acc_base"], [(oc, f["acc_oc"]), (rows, f["acc_y"]), (f["dw_out_w"], f["acc_x"])], 1
            )
            return
        row = 2 * n if f["wide"] or f["sparse"] else n
        yield from _a_stream(f, "sp", u, v, [(oc, f["a_oc"]), (f["ic_count"], f["a_ic"])], row)
        main, tail, blocks = (
            (f["n_cols"], f["n_tail"], oc) if f["w_transpose"] else (f["k_rows"], f["k_tail"], f["ic_count"])
        )
        main = main or n
        lines = [tail or main] + [main] * (blocks > 1)
        yield walk(
            "sp",
            f["w_base"],
            [
                (oc, f["w_oc"]),
                (f["ic_count"], f["w_ic"]),
                (f["ky_count"], f["w_ky"]),
                (f["kx_count"], f["w_kx"]),
                (max(lines) + f["scaled"] + f["sparse"] * n // 4, f["w_row"]),
            ],
            n,
        )
        yield walk("acc", f["acc_base"], [(oc, f["acc_oc"]), (f["y_count"], f["acc_y"]), (p, f["acc_x"])], 1)

    return u[2] or v[2], streams


def _fuse(config, f):
    n = config.n
    pair = f["post"] in (3, 4, 7)
    bad = any(f[f"{d}_count"] == 0 for d in DIMS) or f["lanes"] > n or f["lanes_tail"] > n
    bad |= (f["requant"] == 2 or f["post"] in (5, 7)) and (f["b_src"] == 0 or f["rq_lane"] + 1 >= n)
    bad |= bool(f["b_bcast"]) and f["b_lane"] >= n
    bad |= f["b_src"] == 3 or f["op"] > 5 or (f["op"] not in (0, 4) and f["b_src"] == 0)
    bad |= (
        f["r_dtype"] == 3
        or f["table_slot"] + f["table_wide"] >= config.table_slots
        or (f["table_wide"] and (not f["table"] or f["residual"] or f["table2"]))
        or f["r_ls"] > 30
        or f["tail_dim"] in (5, 6)
    )
    bad |= f["lane_reduce"] != 0 and f["d_dst"] == 0 and f["d_lane"] + pair >= n
    bad |= pair and (f["lane_reduce"] == 0 or f["d_dst"] == 1)
    bad |= (f["post"] == 6 and f["lane_reduce"] != 0) or (
        f["post"] == 2 and f["wx_count"] * f["wy_count"] > 255
    )
    if bad:
        return True, None
    u = coordinates(f, "u", [(f["y_count"], f["u_y"]), (f["wy_count"], f["u_wy"])])
    v = coordinates(f, "v", [(f["x_count"], f["v_x"]), (f["wx_count"], f["v_wx"])])

    def operand(name, sp, size):
        dims = [(f[f"{d}_count"], f[f"{name}_{d}"]) for d in DIMS]
        return walk("sp" if sp else "acc", f[f"{name}_base"], dims, size if sp else 1)

    def streams():
        yield from _a_stream(
            f,
            "sp" if f["a_src"] else "acc",
            u,
            v,
            [(f["n_count"], f["a_n"])],
            n * SIZES[f["a_dtype"]] if f["a_src"] else 1,
        )
        if f["b_src"]:
            yield operand("b", f["b_src"] == 2, n * SIZES[f["b_dtype"]])
        if f["residual"]:
            yield operand("r", True, n * SIZES[f["r_dtype"]])
        lanes = max(f["lanes"] or n, (f["lanes_tail"] or n) if f["tail_dim"] != 7 else 0)
        yield operand("d", f["d_dst"], (1 if f["lane_reduce"] else lanes) * SIZES[f["d_dtype"]])
        if f["requant"] == 1 or f["post"] == 6:
            yield walk("slot", f["p_base"], [(f["x_count"], f["p_x"]), (f["n_count"], f["p_n"])], 1)

    return u[2] or v[2], streams
