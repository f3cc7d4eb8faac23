"""Layouts of the signals between the components of MATRIX."""

from amaranth.hdl import signed
from amaranth.lib import data

from hw.config import ACC_ADDR_BITS, SP_ADDR_BITS, MlaConfig
from hw.units.matrix.loop_nest import lane_count_bits

#: Number of cycles from the issue of a row (its scratchpad read) to each later stage.
ROW_AFTER = 4  # the operands of the row are in a register; `swap` reaches the array
ENTRY_AFTER = 5  # the row enters the array
#: Number of cycles by which the sums of scaled tiles are later.
SCALE_CYCLES = 1
STATISTICS_AFTER = 6  # the zeros of the row have been counted; its events are output

#: Number of cycles from a signal to FUSE to the first read of the accumulator by a command that waits for it: the count
#: of the semaphore, the start of the command, the first point, its request.
VISIBLE_BEFORE = 3


def update_after(n: int) -> int:
    """Return the number of cycles from the issue of a row to its request to the accumulator."""
    return 2 * n + 4


def done_after(n: int) -> int:
    """Return the number of cycles from the issue of a command's last step to `done`."""
    return 2 * n + 8


def row_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of one step of the activation walk.

    `stream` is set if an activation row is streamed; the row is read from `addr` if `read` is set, else it is zero.
    `start` is set in the first step of a tile, `wave` if sums for row `acc_row` enter the array with this step, `swap`
    in the first step of a tile with `wave`, and `last` in the last step of the command. `useful` is the number of
    useful MACs. `wide` and `sparse` are the modes in which the activation row has 2 * n lanes; `scaled` is set if the
    sums of the tile are scaled.
    `rows` is the number of rows of the tile in the weight buffer, and `lanes` the number of useful lanes in each row.
    The other members are fields of the command and, for depthwise steps, members of `line_step_layout`.
    """
    count = lane_count_bits(config.n)
    return data.StructLayout(
        {
            "addr": SP_ADDR_BITS,
            "stream": 1,
            "read": 1,
            "start": 1,
            "wave": 1,
            "swap": 1,
            "last": 1,
            "acc_row": ACC_ADDR_BITS,
            "add": 1,
            "shift": 1,
            "useful": 12,
            "wide": 1,
            "sparse": 1,
            "scaled": 1,
            "tag": 6,
            "a_zp": signed(9),
            "a_unsigned": 1,
            "w_zp": signed(9),
            "w_unsigned": 1,
            "by_column": 1,
            "rows": count,
            "lanes": count,
            "dw": 1,
            "fresh": 1,
            "back": (config.n - 1).bit_length(),
            "period": (config.line_depth - 1).bit_length(),
            "taps": 5,
            "groups": 2,
        }
    )
