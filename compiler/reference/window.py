"""Windows that slide over images."""

import numpy as np

from compiler.reference.node_invocation import Array, NodeInvocation


def padded(x: Array, pads: tuple[int, int, int, int], value: float = 0) -> Array:
    """Images (batch, height, width, channels) with `value` around them."""
    top, left, bottom, right = pads
    if not any(pads):
        return x
    return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)


def window_outputs(call: NodeInvocation, kernel: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the output: as many windows as the graph says, which must fit the padded image.

    The last row or column of padding may go unread, and one that reaches beyond it is counted off.
    """
    height, width = call.output.shape[1:3]
    top, left, bottom, right = call["pads"]
    dilations = call.node.attributes.get("dilations", (1, 1))
    for axis, count, before, after in ((0, height, top, bottom), (1, width, left, right)):
        reach = (count - 1) * call["strides"][axis] + (kernel[axis] - 1) * dilations[axis] + 1
        given = call.tensors[0].shape[1 + axis] + before + after
        if reach > given:
            raise call.error(
                f"{count} windows along axis {1 + axis} take {reach} pixels, but padded there are {given}"
            )
    return height, width


def tap(call: NodeInvocation, x: Array, size: tuple[int, int], ky: int, kx: int) -> Array:
    """The pixels of a padded image that one tap of the window meets, (batch, *size, channels)."""
    dy, dx = call.node.attributes.get("dilations", (1, 1))
    sy, sx = call["strides"]
    y, left = ky * dy, kx * dx
    return x[:, y : y + (size[0] - 1) * sy + 1 : sy, left : left + (size[1] - 1) * sx + 1 : sx]
