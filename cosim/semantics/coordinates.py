"""Ranges of the image coordinates that address MATRIX activations and FUSE operand A."""

from cosim.semantics.command_fields import CommandFields
from hw.isa.enums import Unit

#: Minimum and maximum coordinate.
CoordinateRange = tuple[int, int]
#: Legal range of a coordinate.
COORDINATE_LIMITS = (-65536, 65535)


def coordinate_ranges(unit: Unit, c: CommandFields) -> tuple[CoordinateRange, CoordinateRange]:
    """Return the ranges of u and v of a MATRIX or FUSE command, including padding."""
    if unit == Unit.FUSE:
        u_steps = ((c.y_count, c.u_y), (c.wy_count, c.u_wy))
        v_steps = ((c.x_count, c.v_x), (c.wx_count, c.v_wx))
    elif c.dw:
        u_steps = (((c.dw_len - 1) // c.x_count + 1, c.u_y),)
        v_steps = ((min(c.x_count, c.dw_len), c.v_x),)
    else:
        u_steps = ((c.y_count, c.u_y), (c.ky_count, c.u_ky))
        v_steps = ((c.x_count, c.v_x), (c.kx_count, c.v_kx))
    return _range(c.u0, u_steps), _range(c.v0, v_steps)


def _range(start: int, steps: tuple[tuple[int, int], ...]) -> CoordinateRange:
    low = start + sum(min(0, (count - 1) * stride) for count, stride in steps)
    high = start + sum(max(0, (count - 1) * stride) for count, stride in steps)
    return low, high


def unpadded_range(span: CoordinateRange, limit: int) -> CoordinateRange | None:
    """Return the coordinates of a range that are inside the image; None if all of them are padding.

    Parameters
    ----------
    span : CoordinateRange
        Range of coordinates, including padding.
    limit : int
        Size of the image in this dimension; 0 for an image without padding.
    """
    low, high = span
    if limit:
        low, high = max(low, 0), min(high, limit - 1)
    return (low, high) if low <= high else None
