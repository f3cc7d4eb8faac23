"""Schedule of the bounds checker: a table of the products formed in each cycle.

Each stream of a command is split into steps of four products. The names in the table denote fields of the command, or
values that `hw.checker.values` derives from the fields.
"""

from dataclasses import dataclass
from enum import IntEnum

from hw.isa.enums import Unit


class Use(IntEnum):
    """Purpose of a lane's product."""

    OFF = 0
    BOX = 1  # extent of a dimension, added to the low end if its stride is negative, else to the high end
    LOW = 2  # summand of the low end
    HIGH = 3  # summand of the high end
    PLAIN = 4  # not used for the box


@dataclass(frozen=True)
class Lane:
    """Product x * y, or (x - 1) * y if `count` is set.

    `sign` names the stride whose sign selects the end of the box to which a BOX product is added; the default is `y`.
    """

    x: str = ""
    y: str = ""
    use: Use = Use.OFF
    count: bool = False
    sign: str = ""


@dataclass(frozen=True)
class Step:
    """Products that the checker forms in one cycle.

    Parameters
    ----------
    unit : Unit
        Unit whose command is checked.
    lanes : tuple of Lane
        Products of the four lanes; missing lanes are disabled.
    stream : str
        Stream whose box the products belong to; "" for none.
    first, last : bool
        True if the step is the first (last) step of the stream's box.
    captures : tuple of str
        Walk increments that the step computes: "start", "du1", "du2", "dv1", and "dv2" in lane 1 or 3.
    """

    unit: Unit
    lanes: tuple[Lane, ...]
    stream: str = ""
    first: bool = False
    last: bool = False
    captures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stream:
    """Bounding box of a stream.

    `base` names its base address, `touched` names the number of bytes (rows, slots) accessed at each address, and
    `order` is its position among the checks of its address space.
    """

    unit: Unit
    base: str
    touched: str
    order: int


def _box(count: str, stride: str, sign: str = "") -> Lane:
    return Lane(count, stride, Use.BOX, True, sign)


def _plain(x: str, y: str) -> Lane:
    return Lane(x, y, Use.PLAIN)


STREAMS = {
    "load_dram": Stream(Unit.LOAD, "dram", "len", 0),
    "load_dst": Stream(Unit.LOAD, "dst", "dst_touched", 0),
    "store_dram": Stream(Unit.STORE, "dram", "len", 0),
    "store_src": Stream(Unit.STORE, "src", "len", 0),
    "matrix_a": Stream(Unit.MATRIX, "a_base", "a_row", 0),
    "matrix_w": Stream(Unit.MATRIX, "w_base", "row", 1),
    "matrix_acc": Stream(Unit.MATRIX, "acc_base", "one", 0),
    "fuse_a": Stream(Unit.FUSE, "a_base", "a_touched", 0),
    "fuse_b": Stream(Unit.FUSE, "b_base", "b_touched", 1),
    "fuse_r": Stream(Unit.FUSE, "r_base", "r_touched", 2),
    "fuse_d": Stream(Unit.FUSE, "d_base", "d_touched", 3),
    "fuse_slots": Stream(Unit.FUSE, "p_base", "one", 0),
}

#: DRAM strides are wider than a multiplier, so a product is formed in two halves, the upper half in the odd lane.
_DRAM = tuple(_box(f"{d}_count", f"dram_{d}_{half}", f"dram_{d}") for d in "yz" for half in ("lo", "hi"))
_RANGE = (
    Lane("u_first", "a_u", Use.LOW),
    Lane("u_second", "a_u", Use.HIGH),
    Lane("v_first", "a_v", Use.LOW),
    Lane("v_second", "a_v", Use.HIGH),
)
#: First address of the walk, and its increment per output row.
_START = (_plain("u0", "a_u"), _plain("v0", "a_v"), _plain("u_y", "a_u"))
_W_K = _box("tile", "w_row")


def _fuse_pair(
    stream: str, last_lanes: tuple[Lane, ...] = (), captures: tuple[str, ...] = ()
) -> tuple[Step, Step]:
    lanes = [_box(f"{dim}_count", f"{stream}_{dim}") for dim in ("wx", "wy", "x", "y", "n")]
    name = f"fuse_{stream}"
    return (
        Step(Unit.FUSE, tuple(lanes[:4]), name, first=True),
        Step(Unit.FUSE, (lanes[4], *last_lanes), name, last=True, captures=captures),
    )


STEPS = {
    "load_dram": Step(Unit.LOAD, _DRAM, "load_dram", True, True),
    "load_dst": Step(
        Unit.LOAD, (_box("dst_count", "dst_y"), _box("z_count", "dst_z")), "load_dst", True, True
    ),
    "store_dram": Step(Unit.STORE, _DRAM, "store_dram", True, True),
    "store_src": Step(
        Unit.STORE, (_box("y_count", "src_y"), _box("z_count", "src_z")), "store_src", True, True
    ),
    "matrix_uv": Step(
        Unit.MATRIX,
        (_box("y_count", "u_y"), _box("ky_count", "u_ky"), _box("x_count", "v_x"), _box("kx_count", "v_kx")),
    ),
    "matrix_uv_dw": Step(
        Unit.MATRIX, (Lane("u_y", "dw_rows", Use.BOX, sign="u_y"), Lane(), _box("dw_columns", "v_x"))
    ),
    "matrix_w": Step(
        Unit.MATRIX,
        (
            _box("oc_count", "w_oc"),
            _box("ic_count", "w_ic"),
            _box("ky_count", "w_ky"),
            _box("kx_count", "w_kx"),
        ),
        "matrix_w",
        first=True,
    ),
    "matrix_wk": Step(Unit.MATRIX, (_W_K, *_START), "matrix_w", last=True, captures=("start", "du1")),
    "matrix_a": Step(
        Unit.MATRIX,
        (_box("oc_count", "a_oc"), _box("ic_count", "a_ic"), _plain("u_ky", "a_u"), _plain("v_x", "a_v")),
        "matrix_a",
        first=True,
        captures=("du2", "dv1"),
    ),
    "matrix_range": Step(Unit.MATRIX, _RANGE, "matrix_a", last=True),
    "matrix_acc": Step(
        Unit.MATRIX,
        (
            _box("oc_count", "acc_oc"),
            _box("y_count", "acc_y"),
            _box("x_count", "acc_x"),
            _plain("v_kx", "a_v"),
        ),
        "matrix_acc",
        True,
        True,
        captures=("dv2_lane3",),
    ),
    "matrix_acc_dw": Step(
        Unit.MATRIX,
        (
            _box("oc_count", "acc_oc"),
            Lane("acc_y", "dw_out_rows", Use.BOX, sign="acc_y"),
            _box("dw_out_w", "acc_x"),
            _plain("v_kx", "a_v"),
        ),
        "matrix_acc",
        True,
        True,
        captures=("dv2_lane3",),
    ),
    "fuse_uv": Step(
        Unit.FUSE,
        (_box("y_count", "u_y"), _box("wy_count", "u_wy"), _box("x_count", "v_x"), _box("wx_count", "v_wx")),
    ),
    **dict(zip(("fuse_d", "fuse_dn"), _fuse_pair("d", _START, ("start", "du1")), strict=True)),
    "fuse_a": Step(
        Unit.FUSE,
        (_box("n_count", "a_n"), _plain("v_wx", "a_v"), _plain("u_wy", "a_u"), _plain("v_x", "a_v")),
        "fuse_a",
        first=True,
        captures=("du2", "dv1", "dv2_lane1"),
    ),
    "fuse_range": Step(Unit.FUSE, _RANGE, "fuse_a", last=True),
    "fuse_slots": Step(
        Unit.FUSE,
        (_box("x_count", "p_x"), _box("n_count", "p_n"), _plain("wy_count", "wx_count")),
        "fuse_slots",
        True,
        True,
    ),
    **dict(zip(("fuse_b", "fuse_bn"), _fuse_pair("b"), strict=True)),
    **dict(zip(("fuse_r", "fuse_rn"), _fuse_pair("r"), strict=True)),
}

#: Steps in which the four lanes compute the dimensions of both coordinates.
COORDINATE_STEPS = ("matrix_uv", "matrix_uv_dw", "fuse_uv")
#: Order of the steps of each unit; a step in OPTIONAL is executed only if its condition holds.
ORDER = {
    Unit.LOAD: ("load_dram", "load_dst"),
    Unit.STORE: ("store_dram", "store_src"),
    Unit.MATRIX: (
        "matrix_uv",
        "matrix_uv_dw",
        "matrix_w",
        "matrix_wk",
        "matrix_a",
        "matrix_range",
        "matrix_acc",
        "matrix_acc_dw",
    ),
    Unit.FUSE: (
        "fuse_uv",
        "fuse_d",
        "fuse_dn",
        "fuse_a",
        "fuse_range",
        "fuse_slots",
        "fuse_b",
        "fuse_bn",
        "fuse_r",
        "fuse_rn",
    ),
}
OPTIONAL = {
    "load_dram": "not_fill",
    "matrix_uv": "not_dw",
    "matrix_uv_dw": "dw",
    "matrix_acc": "not_dw",
    "matrix_acc_dw": "dw",
    "fuse_slots": "use_slots",
    "fuse_b": "use_b",
    "fuse_bn": "use_b",
    "fuse_r": "use_r",
    "fuse_rn": "use_r",
}
NUMBER = {name: i for i, name in enumerate(STEPS)}
STEP_BITS = len(STEPS).bit_length()
