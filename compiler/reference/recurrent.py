"""LiteRT's integer kernels of recurrent operators: LSTM with int16 cells, and SVDF with int16 states.

The matrix products are separate nodes, which produce int32 sums; the operators of this module do the rest. Sigmoid and
tanh are gemmlowp's functions of int16 fixed-point numbers (int16.py).
"""

import numpy as np

from compiler.reference.fixed_point import Int64, multiplied
from compiler.reference.int16 import INT16_MAX, gemmlowp_sigmoid, gemmlowp_tanh, saturate16
from compiler.reference.node_invocation import NodeInvocation, Operator
from cosim.semantics.fixed_point import half_away, half_up, scale
from hw.isa.enums import Rounding

#: Number of integer bits of a gate before its activation.
_GATE_BITS = 3
#: 1.5 in units of 2**-28, and half the square root of 2 in units of 2**-31.
_THREE_HALVES, _HALF_SQRT_2 = (1 << 28) + (1 << 27), 1518500250


def _inverse_root(value: int) -> tuple[int, int]:
    """Return the multiplier and the exponent of 1 / sqrt(value), by Newton's method with three integer bits."""
    if value <= 1:
        return (1 << 31) - 1, 0
    shift = 11
    while value >= 1 << 29:
        value, shift = value // 4, shift + 1
    pairs = (31 - value.bit_length()) // 2 - 1
    shift, value = shift - pairs, value << 2 * pairs

    def times(a: int, b: int) -> int:
        return int(half_up(np.asarray(a * b, np.int64), 31))

    def left(a: int, bits: int) -> int:
        return max(-(1 << 31), min(a << bits, (1 << 31) - 1))

    half, x = int(half_away(np.asarray(value >> 1, np.int64), 1)), 1 << 28
    for _ in range(5):
        cube = left(times(times(x, x), x), 6)
        x = left(times(_THREE_HALVES, x) - times(half, cube), 3)
    x = times(x, _HALF_SQRT_2)
    return (x << -shift, 0) if shift < 0 else (x, -shift)


def _quotient(a: Int64, b: int) -> Int64:
    """Divide with truncation, as in C."""
    return np.sign(a) * (np.abs(a) // b)


def _normalized(values: Int64, weights: Int64, bias: Int64, ratio: float) -> Int64:
    """Apply the layer normalization of a gate to each row of (batch, cells) values.

    Parameters
    ----------
    values : int64 array
        Gates before the activation, int16 integers.
    weights, bias : (cells,) int64 arrays
        Coefficients and biases.
    ratio : float
        Scale of the coefficients.
    """
    out, count, guard = (
        np.empty_like(values),
        values.shape[1],
        max(1, int(np.float32(10000) * np.float32(ratio))),
    )
    for row, line in enumerate(values):
        mean = int(_quotient(np.asarray(line.sum() * 1024), count))
        variance = int((line * line).sum()) * ((1 << 20) // count) - mean * mean
        inverse = int(_quotient(np.asarray(variance, np.int64), 1 << 20))
        scaled = scale(
            1024 * line - mean, *_inverse_root(guard if inverse < 1 else inverse), 0, Rounding.DOUBLE
        )
        sums = (scaled * weights + bias).astype(np.int32).astype(np.int64)  # LiteRT's sum is an int32
        rounded = _quotient(sums + np.where(sums > 0, 512, -512), 1024)
        out[row] = saturate16(multiplied(rounded, float(ratio) * 4096))
    return out


def _gate(call: NodeInvocation, number: int, peephole: int | None) -> Int64:
    """Return a gate before its activation, (batch, cells) in units of 2**-12.

    Parameters
    ----------
    call : NodeInvocation
        Node whose inputs are the sums of products of the input and of the hidden state, the cell state and, if used,
        the weights of peepholes, and the coefficients and biases of the layer normalization.
    number : int
        Index of the gate among those of the sums.
    peephole : int or None
        Index of the gate among those with peepholes; None for the cell gate.
    """
    driven, recurrent, cell, *more = (value.astype(np.int64) for value in call.values)
    x_ratio, h_ratio, cell_ratio, norm_ratio = call["scales"][4 * number : 4 * number + 4]
    count = cell.shape[1]
    part = slice(number * count, (number + 1) * count)
    gate = saturate16(multiplied(driven[:, part], x_ratio))
    gate = saturate16(gate + multiplied(recurrent[:, part], h_ratio))
    if call["peephole"]:
        weights, more = more[0], more[1:]
        if peephole is not None:
            rows = 1 if call["flat"] else len(gate)
            parts = gate.reshape(rows, -1), cell.reshape(rows, -1)
            gate = _with_peephole(*parts, weights[peephole], cell_ratio, call["outputs"]).reshape(gate.shape)
    if call["norm"]:
        gate = _normalized(gate, more[0][number], more[1][number], norm_ratio)
    return gate


def _with_peephole(gate: Int64, cell: Int64, weights: Int64, ratio: float, outputs: int) -> Int64:
    """Add the products of the cell state and of the weights of a peephole to a gate.

    LiteRT takes the number of outputs for that of the cells. With a projection to fewer outputs, it therefore pairs the
    first weights with the first cells of each row, and leaves out the rest; all samples of a batch are one row if
    LiteRT processes them together.
    """
    count = gate.shape[1] // len(weights) * outputs
    products = np.tile(weights[:outputs], count // outputs) * cell[:, :count]
    return np.concatenate([saturate16(gate[:, :count] + multiplied(products, ratio)), gate[:, count:]], 1)


def _cell_bits(call: NodeInvocation) -> int:
    """Return the number of integer bits of the cell state, whose scale is a power of two."""
    return 15 + round(float(np.log2(call.scale(2))))


def _sigmoid_gate(call: NodeInvocation, number: int, peephole: int | None) -> Int64:
    return gemmlowp_sigmoid(_GATE_BITS, _gate(call, number, peephole))


def lstm_cell(call: NodeInvocation) -> Int64:
    """Compute the next cell state of an LSTM: the old one times the forget gate, plus input gate times cell gate."""
    first = 0 if call["cifg"] else 1  # index of the forget gate
    forget = _sigmoid_gate(call, first, first)
    new = gemmlowp_tanh(_GATE_BITS, _gate(call, first + 1, None))
    opened = INT16_MAX - forget if call["cifg"] else _sigmoid_gate(call, 0, 0)
    kept = half_away(forget * call.values[2].astype(np.int64), 15)
    added = half_away(opened * new, 15 + _cell_bits(call))
    cell = saturate16(_int16(kept) + _int16(added))
    limit = call["clip"]
    return np.clip(cell, -limit, limit) if limit else cell


def _int16(values: Int64) -> Int64:
    """Keep the low 16 bits, as a conversion to int16 does in C."""
    return values.astype(np.int16).astype(np.int64)


def lstm_hidden(call: NodeInvocation) -> Int64:
    """Compute the hidden state of an LSTM from the new cell state: its tanh times the output gate."""
    first = 0 if call["cifg"] else 1
    opened = _sigmoid_gate(call, first + 2, first + 1)
    bent = gemmlowp_tanh(_cell_bits(call), call.values[2].astype(np.int64))
    ratio = float(np.float32(2.0**-15 / float(call.output_scale) * 2.0**-15))
    return multiplied(opened * bent, ratio) + call.output_zero


def rescale(call: NodeInvocation) -> Int64:
    """Multiply integers by `scale` in 31-bit fixed point, add the zero point of the result and clip."""
    values = multiplied(call.values[0].astype(np.int64), call["scale"]) + call.output_zero
    return np.clip(values, call["low"], call["high"])


def svdf_state(call: NodeInvocation) -> Int64:
    """Move the state (batch, filters * memory) of an SVDF by one step, and append the features (batch, filters)."""
    features, state = (value.astype(np.int64) for value in call.values)
    memory = state.reshape(*features.shape, -1)
    column = saturate16(multiplied(features, call["scale"]))
    return np.concatenate([memory[..., 1:], column[..., None]], -1).reshape(state.shape)


def svdf(call: NodeInvocation) -> Int64:
    """Sum the products of the state and of the weights (filters, memory) over time and over the ranks of each unit."""
    state, weights, *bias = (value.astype(np.int64) for value in call.values)
    sums = (state.reshape(-1, *weights.shape) * weights).sum(-1)
    sums = sums.reshape(len(sums), -1, call["rank"]).sum(-1) + (bias[0] if bias else 0)
    return multiplied(_int32(sums), call["scale"]) + call.output_zero


def _int32(values: Int64) -> Int64:
    """Keep the low 32 bits, as LiteRT's sums do."""
    return values.astype(np.int32).astype(np.int64)


RECURRENT: dict[str, Operator] = {
    "lstm_cell": lstm_cell,
    "lstm_hidden": lstm_hidden,
    "rescale": rescale,
    "svdf_state": svdf_state,
    "svdf": svdf,
}
