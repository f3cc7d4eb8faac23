"""Number of bytes that a command transfers, by the command field that holds their address."""

from compiler.codegen.semaphores import Issued
from cosim.semantics.command_fields import CommandFields, unpack_fields
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, BSource, Reduce, Unit

#: Number of bytes of an accumulator lane, and of a table entry.
_SUM, _ENTRY = 4, 2
#: Used bytes of a parameter slot for each lane.
_PARAMETER = 9


#: Pseudo-field for partial sums of earlier steps, which MATRIX reads in order to accumulate.
AGAIN = "again"


def traffic(config: MlaConfig, command: Issued) -> dict[str, int]:
    """Return the transferred bytes by address field; MATRIX and FUSE operands count as whole rows of N lanes."""
    c = unpack_fields(command.unit, list(command.values))
    return {Unit.LOAD: _load, Unit.STORE: _store, Unit.MATRIX: _matrix, Unit.FUSE: _fuse}[command.unit](
        config.n, c
    )


def _load(_: int, c: CommandFields) -> dict[str, int]:
    count = c.len * c.y_count * c.z_count
    return {"dram": 0 if c.fill else count, "dst": count * (2 if c.int4 else 1)}


def _store(_: int, c: CommandFields) -> dict[str, int]:
    count = c.len * c.y_count * c.z_count
    return {"src": count, "dram": count}


def _matrix(n: int, c: CommandFields) -> dict[str, int]:
    if c.dw:
        rows = (c.dw_len - c.dw_lead - 1) // c.x_count // c.dw_sy + 1
        taps = c.oc_count * c.taps * c.groups
        return {
            "a_base": c.oc_count * c.dw_len * n,
            "w_base": taps * n,
            "acc_base": c.oc_count * rows * c.dw_out_w * n * _SUM,
        }
    tiles = c.oc_count * c.ic_count * c.ky_count * c.kx_count
    points = c.y_count * c.x_count
    fresh = 0 if c.accumulate or c.shift8 else c.oc_count * points
    return {
        "a_base": tiles * points * n,
        "w_base": tiles * n * n,
        "acc_base": tiles * points * n * _SUM,
        AGAIN: (tiles * points - fresh) * n * _SUM,
    }


def _fuse(n: int, c: CommandFields) -> dict[str, int]:
    window, points = c.wy_count * c.wx_count, c.x_count * c.y_count * c.n_count
    results = points * (window if c.reduce == Reduce.NONE else 1)
    lanes = 1 if c.lane_reduce != Reduce.NONE else n
    rows = points * window * n
    slots = (c.x_count if c.p_x else 1) * (c.n_count if c.p_n else 1)
    return {
        "a_base": rows * (DTYPE_BYTES[c.a_dtype] if c.a_src else _SUM),
        "b_base": rows * (DTYPE_BYTES[c.b_dtype] if c.b_src == BSource.SP else _SUM),
        "r_base": rows * DTYPE_BYTES[c.r_dtype],
        "p_base": slots * _PARAMETER * n,
        "stage": rows * _ENTRY * (c.table + c.table2),
        "d_base": results * lanes * (DTYPE_BYTES[c.d_dtype] if c.d_dst else _SUM),
    }
