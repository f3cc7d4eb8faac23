"""FUSE steps 2 to 4: requantization, table lookup and residual addition."""

import numpy as np

from cosim.golden.floats import pack
from cosim.golden.fuse_operands import row_parameters, signed8, signed16
from cosim.golden.memory import Memories, gather
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fixed_point import saturate, scale, wrap32
from cosim.semantics.fuse_points import PointBlock
from hw.isa.enums import Dtype, Op, Requant, Rounding

#: Exponent for which `scale` with multiplier 1 is the identity.
_IDENTITY = 31


#: Parameters of a slot or a command by name.
_Parameters = dict[str, np.ndarray]


def requantize(
    c: CommandFields,
    value: np.ndarray,
    exponent: np.ndarray | int,
    row: np.ndarray | None,
    slots: _Parameters,
) -> tuple:
    """Execute step 2, requantization; return the clipped values and the mask of lanes that clipping changed.

    Parameters
    ----------
    c : CommandFields
        Fields of the FUSE command.
    value : numpy.ndarray
        Results of the binary operator, int64 of shape (point, lane).
    exponent : numpy.ndarray or int
        Exponents of the elements of operand A.
    row : numpy.ndarray or None
        Operand B, which contains multiplier and exponent for requant=row.
    slots : dict of numpy.ndarray
        Parameters of each point's slot (`slot_parameters`), if the command reads slots.
    """
    lanes = _parameters(c, row, slots)
    if c.bias_en and c.op != Op.MUL_SUB:
        value = wrap32(value + lanes["bias"])
    mult, power = lanes["mult"], lanes["exp"]
    rounding = Rounding(c.rounding)
    if c.requant == Requant.OFF:
        mult, power, rounding = 1, _IDENTITY, Rounding.SINGLE
    elif c.neg_en:
        mult = np.where(value < 0, lanes["neg_mult"], mult)
        power = np.where(value < 0, lanes["neg_exp"], power)
    if c.to_float:
        value = pack(value * mult, power + exponent - _IDENTITY)
        return value, np.zeros(value.shape, bool)
    if c.requant != Requant.OFF or c.a_float:
        value = scale(value, mult, power + exponent, 0, rounding)
    if c.zp:
        value = value + c.zp
    clipped = saturate(value, c.clip_lo, c.clip_hi)
    return clipped, clipped != value


def _parameters(c: CommandFields, row: np.ndarray | None, slots: _Parameters) -> dict:
    """Return bias, multipliers and exponents of step 2 by name, each as an integer or an array of shape (point,
    lane).
    """
    if c.requant == Requant.SLOT:
        return slots
    values = {
        "bias": c.bias,
        "mult": c.mult,
        "exp": signed8(c.shifts, 0),
        "neg_mult": c.neg_mult,
        "neg_exp": signed8(c.shifts, 8),
    }
    if c.requant == Requant.ROW:
        assert row is not None
        values["mult"], values["exp"] = row_parameters(c, row)
    return values


def slot_parameters(memories: Memories, c: CommandFields, block: PointBlock) -> _Parameters:
    """Return bias, multipliers and exponents of each point's slot by name, int64 of shape (point, lane), or (1, lane)
    if all points use the same slot.
    """
    slots = c.p_base + block.index["x"] * c.p_x + block.index["n"] * c.p_n
    used, which = np.unique(slots, return_inverse=True)
    rows = [memories.slot(int(slot)) for slot in used]
    spread = which if len(used) > 1 else slice(None)
    return {
        name: np.stack([row[name] for row in rows])[:, : block.width].astype(np.int64)[spread]
        for name in ("bias", "mult", "exp", "neg_mult", "neg_exp")
    }


def lookup(memories: Memories, c: CommandFields, value: np.ndarray, *, wide: bool = False) -> np.ndarray:
    """Execute step 3, table lookup; return the table entry that the low 8 bits of each value select.

    The entries of a wide table are int32, whose high halves are in the next table.
    """
    table = memories.table_values(c.table_slot).astype(np.int64)
    if wide:
        table = (table & 0xFFFF) + (memories.table_values(c.table_slot + 1).astype(np.int64) << 16)
    return table[value & 255]


def add_residual(memories: Memories, c: CommandFields, block: PointBlock, value: np.ndarray) -> np.ndarray:
    """Execute step 4, residual addition, except for the second table lookup."""
    rounding = Rounding.SINGLE if c.r_raw else Rounding(c.rounding)
    x = value.astype(np.int16).astype(np.int64) - signed16(c.zp_xr, 0)
    r = gather(memories.sp, block.address(c, "r"), block.width, Dtype(c.r_dtype)).astype(np.int64)
    r -= signed16(c.zp_xr, 16)
    if c.r_raw:
        total = x * c.x_mult + r * c.r_mult
    else:
        total = scale(x, c.x_mult, signed8(c.r_shifts, 0), c.r_ls, rounding)
        total = total + scale(r, c.r_mult, signed8(c.r_shifts, 8), c.r_ls, rounding)
    result = scale(wrap32(total + c.r_bias), c.o_mult, signed8(c.r_shifts, 16), 0, rounding) + c.o_zp
    return saturate(result, c.r_lo, c.r_hi)
