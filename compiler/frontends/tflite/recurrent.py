"""Conversion of TFLite's recurrent operators: LSTM, RNN and SVDF, with int8 or float32 activations.

Integer operators become matrix products with int32 sums, which the accelerator computes, and nodes on the host that
follow LiteRT's integer kernels. Operators with float activations become float nodes, which are quantized as in any
other float model; int8 weights (hybrid models) are converted to float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tflite
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.frontends.tflite.state import read_state, write_state
from compiler.ir.tensor import Quantization, Tensor

#: Gates in the order of the operator's operands.
_GATES = ("input", "forget", "cell", "output")
#: Scale of a gate before its activation, if it is not normalized.
_GATE_SCALE = np.float32(2.0**-12)
#: Number of intermediate results whose quantizations an int8 LSTM declares: four gates and the hidden state.
_INTERMEDIATES = 5
_INT16_MAX = (1 << 15) - 1

#: Function that adds the nodes of one step to a builder: from the inputs of the step and the states to the output of
#: the step and the new states.
Step = Callable[[GraphBuilder, list[Tensor], list[Tensor]], tuple[Tensor, list[Tensor]]]


def _sequence(c: TfliteConversion, x: Tensor, *, time_major: bool) -> Tensor:
    """Return a sequence with the time as its first dimension; x has no time if it has two dimensions."""
    if len(x.shape) == 2:
        return c.reshaped("steps", x, (1, *x.shape))
    if len(x.shape) != 3:
        raise c.error(f"its input must have three dimensions, not shape {list(x.shape)}")
    if time_major:
        return x
    batch, steps, size = x.shape
    if batch == 1:
        return c.reshaped("steps", x, (steps, batch, size))
    return c.step("steps", "transpose", [x], (steps, batch, size), perm=(1, 0, 2))


def _in_steps(
    c: TfliteConversion,
    part: str,
    sequences: Sequence[Tensor],
    states: Sequence[Tensor],
    step: Step,
    *,
    backward: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Add a step for each slice of the sequences (time, batch, size); a loop if there are several.

    Returns
    -------
    Tensor, list of Tensor
        The outputs of all steps (time, batch, size), and the states after the last step.
    """
    build, name = c.build, f"{c.operator.name}:{part}"
    count = sequences[0].shape[0]

    def named(tensor: Tensor, text: str) -> Tensor:
        return replace(tensor, name=text, data=None)

    if count == 1:
        rows = [
            build.node(
                f"{name}:row",
                "reshape",
                [each],
                build.between(each, f"{each.name}:row", each.shape[1:]),
                shape=each.shape[1:],
            )
            for each in sequences
        ]
        y, made = step(build, rows, list(states))
        shape = (1, *y.shape)
        whole = build.node(f"{name}:all", "reshape", [y], build.between(y, f"{name}:all", shape), shape=shape)
        return whole, made
    inner = GraphBuilder(name)
    inner.graph.add_input(Tensor("iteration", (), "int64"))
    held = [inner.graph.add_input(named(each, f"state{i}")) for i, each in enumerate(states)]
    rows = [
        inner.graph.add_input(Tensor(f"row{i}", each.shape[1:], each.dtype, each.quantization))
        for i, each in enumerate(sequences)
    ]
    y, made = step(inner, rows, held)
    again = inner.constant("again", np.array(True))
    inner.graph.finish([tensor.name for tensor in (again, *made, y)])
    first = build.constant(f"{name}:first", np.array(True))
    trips = build.constant(f"{name}:steps", np.array(count, np.int64))
    outputs = [named(each, build.fresh(f"{name}:state{i}")) for i, each in enumerate(states)]
    stacked = Tensor(build.fresh(f"{name}:all"), (count, *y.shape), y.dtype, y.quantization)
    sign = -1 if backward else 1
    build.nodes(
        name,
        "loop",
        [first, trips, *states, *sequences],
        [*outputs, stacked],
        (inner.graph,),
        states=len(states),
        scanned=(sign,) * len(sequences),
        stacked=(sign,),
    )
    return stacked, outputs


def _result(c: TfliteConversion, y: Tensor, output: Tensor, *, time_major: bool) -> None:
    """Add the nodes that give the outputs of all steps (time, batch, size) the shape of the operator's output."""
    steps, batch, size = y.shape
    if len(output.shape) == 2 or time_major or batch == 1:
        c.make_shaped(y, output)
        return
    c.expect((batch, steps, size), output)
    c.make("transpose", [y], output, perm=(1, 0, 2))


@dataclass(frozen=True)
class _LstmWeights:
    """Operands of an LSTM, by gate; None for those that are omitted.

    `x`, `h` are the weights (cells, size) of the input and of the hidden state, `cell` the peepholes, `norm` the
    coefficients of the layer normalization.
    """

    gates: tuple[str, ...]
    x: dict[str, Tensor]
    h: dict[str, Tensor]
    cell: dict[str, Tensor]
    bias: dict[str, Tensor]
    norm: dict[str, Tensor]
    projection: Tensor | None
    projection_bias: Tensor | None

    @property
    def peephole(self) -> bool:
        """True if the gates read the cell state."""
        return bool(self.cell)

    @property
    def normalized(self) -> bool:
        """True if the gates are normalized."""
        return bool(self.norm)


def _lstm_weights(c: TfliteConversion, size: int, first: int = 1, norms: int = 20) -> _LstmWeights:
    """Return the operands of an LSTM after checking their shapes.

    Parameters
    ----------
    c : TfliteConversion
        The operator.
    size : int
        Number of values of the input in a step.
    first : int
        Index of the operand with the input gate's weights.
    norms : int
        Index of the operand with the input gate's normalization.
    """
    given = [*c.inputs, *[None] * (first + 23 - len(c.inputs))]
    at = first

    def part(start: int, names: Sequence[str]) -> dict[str, Tensor]:
        found = {name: given[start + i] for i, name in enumerate(names)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    x, h = part(at, _GATES), part(at + 4, _GATES)
    cell, bias = part(at + 8, ("input", "forget", "output")), part(at + 11, _GATES)
    norm = part(norms, _GATES) if len(c.inputs) > norms else {}
    gates = _GATES if "input" in x else _GATES[1:]
    projection, projection_bias = given[at + 15], given[at + 16]
    if cell and gates != _GATES:
        cell.pop("input", None)
    peepholes = {gate for gate in gates if gate != "cell"}
    groups = (("weights", x, set(gates)), ("recurrent weights", h, set(gates)), ("biases", bias, set(gates)))
    for what, group, wanted in groups:
        if set(group) != wanted:
            raise c.error(f"its {what} must be those of the gates {', '.join(gates)}, not {', '.join(group)}")
    if (cell and set(cell) != peepholes) or (norm and set(norm) != set(gates)):
        raise c.error("its peepholes or normalizations are not complete")
    cells = x["forget"].shape[0] if x["forget"].shape else 0
    made = projection.shape[0] if projection is not None and projection.shape else cells
    shapes = [(each, (cells, size)) for each in x.values()] + [(each, (cells, made)) for each in h.values()]
    shapes += [(each, (cells,)) for group in (cell, bias, norm) for each in group.values()]
    if projection is not None:
        shapes.append((projection, (made, cells)))
    if projection_bias is not None:
        shapes.append((projection_bias, (made,)))
    for tensor, shape in shapes:
        if tensor.data is None or tensor.shape != shape:
            raise c.error(f"{tensor.name!r} must be constants of shape {list(shape)}, not {list(tensor.shape)}")
    return _LstmWeights(gates, x, h, cell, bias, norm, projection, projection_bias)


def _scale(c: TfliteConversion, tensor: Tensor) -> np.float32:
    """Return the only scale of a tensor."""
    if tensor.quantization is None or not tensor.quantization.whole:
        raise c.error(f"{tensor.name!r} must have one scale")
    return np.float32(tensor.quantization.scale[0])


def _typed(c: TfliteConversion, tensor: Tensor, dtype: str, *, zero: bool = False) -> None:
    """Raise InputError unless a tensor has a type and one scale, with a zero point of 0 unless `zero` is set."""
    _scale(c, tensor)
    q = tensor.quantization
    if tensor.dtype != dtype or (q is not None and q.zero_point[0] and not zero):
        without = "" if zero else " without a zero point"
        raise c.error(f"{tensor.name!r} must be {dtype}{without}, not {tensor.dtype}")


def _data(tensor: Tensor) -> NDArray:
    assert tensor.data is not None
    return tensor.data


def _sums(
    build: GraphBuilder, name: str, x: Tensor, weights: Sequence[Tensor], bias: NDArray | None
) -> Tensor:
    """Add the products of x and of the weights of several gates, as int32 sums.

    The nodes that read the sums scale them; the scale of the weights is 1 here, so that the sums have the scale of x.
    """
    assert x.quantization is not None
    meaning = Quantization.per_tensor(x.quantization.scale[0])
    data = np.concatenate([_data(each) for each in weights])
    held = build.constant(f"{name}:weights", data, Quantization.per_tensor(1.0))
    more = [] if bias is None else [build.constant(f"{name}:bias", bias.astype(np.int32), meaning)]
    out = Tensor(build.fresh(name), (*x.shape[:-1], len(data)), "int32", meaning)
    return build.node(name, "dense", [x, held, *more], out)


def _integer_step(
    c: TfliteConversion,
    weights: _LstmWeights,
    x: Tensor,
    h: Tensor,
    cell: Tensor,
    limits: tuple[float, float],
    *,
    flat: bool,
) -> tuple[Tensor, Step]:
    """Return the sums of products of the whole input, and the step of LiteRT's integer LSTM.

    Parameters
    ----------
    c : TfliteConversion
        The operator.
    weights : _LstmWeights
        Weights of the gates.
    x, h, cell : Tensor
        Input (time, batch, size), hidden state and cell state.
    limits : (float, float)
        Magnitudes at which the cell state and the projection are clipped; 0 for none.
    flat : bool
        True if LiteRT processes the samples of a batch together, False if it processes one after the other.
    """
    for tensor in (x, h):
        _typed(c, tensor, "int8", zero=True)
    for tensor in (*weights.x.values(), *weights.h.values()):
        _typed(c, tensor, "int8")
    _typed(c, cell, "int16")
    for tensor in (*weights.cell.values(), *weights.norm.values()):
        _typed(c, tensor, "int16")
    for tensor in weights.bias.values():
        if tensor.dtype != "int32":
            raise c.error(f"{tensor.name!r} must be int32, not {tensor.dtype}")
    power = np.log2(_scale(c, cell))
    if power != round(float(power)) or not -15 <= power <= -9:
        raise c.error(f"the scale of its cell state must be a power of two in 2**-15..2**-9, not {2.0**power:.6g}")
    between = c.operator.intermediates
    if len(between) != _INTERMEDIATES or any(q is not None and not q.whole for q in between):
        raise c.error(f"an int8 LSTM must declare {_INTERMEDIATES} intermediate results")
    hidden = between[-1]
    if hidden is None or (weights.normalized and None in between):
        raise c.error("its intermediate results must have scales")
    if weights.projection is not None:
        # LiteRT subtracts the zero point of the hidden state where it should add it, and vice versa.
        if hidden.zero_point[0] == -128:
            raise c.error("the zero point of its hidden state must not be -128")
        hidden = Quantization.per_tensor(hidden.scale[0], -hidden.zero_point[0])
        if weights.peephole and h.shape[1] > cell.shape[1]:
            raise c.error("its peepholes need as many cells as outputs; LiteRT reads beyond the end of the weights")
    scales: list[float] = []
    for gate in weights.gates:
        q = between[_GATES.index(gate)]
        made = np.float32(q.scale[0]) if weights.normalized and q is not None else _GATE_SCALE
        peephole = weights.cell.get(gate)
        norm = weights.norm.get(gate)
        scales += [
            float(_scale(c, weights.x[gate]) * _scale(c, x) / made),
            float(_scale(c, weights.h[gate]) * _scale(c, h) / made),
            0.0
            if peephole is None
            else float(np.float32(2.0 ** float(power) * float(_scale(c, peephole)) / float(made))),
            0.0 if norm is None else float(_scale(c, norm)),
        ]
    attributes: dict[str, Any] = {
        "cifg": weights.gates != _GATES,
        "peephole": weights.peephole,
        "norm": weights.normalized,
        "scales": tuple(scales),
        "outputs": h.shape[1],
        "flat": flat,
    }
    cell_limit, projection_limit = limits
    clip = int(np.clip(np.float32(cell_limit) / _scale(c, cell), 0, _INT16_MAX)) if cell_limit > 0 else 0
    bias = np.concatenate([_data(weights.bias[gate]) for gate in weights.gates])
    name = c.operator.name
    driven = _sums(
        c.build,
        f"{name}:products",
        x,
        [weights.x[gate] for gate in weights.gates],
        None if weights.normalized else bias,
    )

    def step(build: GraphBuilder, rows: list[Tensor], states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        old_h, old_cell = states
        recurrent = _sums(
            build, f"{name}:recurrent", old_h, [weights.h[gate] for gate in weights.gates], None
        )
        more: list[Tensor] = []
        if weights.peephole:
            peepholes = np.stack([_data(weights.cell[gate]) for gate in weights.gates if gate != "cell"])
            more.append(build.constant(f"{name}:peepholes", peepholes))
        if weights.normalized:
            norms = np.stack([_data(weights.norm[gate]) for gate in weights.gates])
            more += [
                build.constant(f"{name}:norms", norms),
                build.constant(f"{name}:biases", bias.reshape(norms.shape)),
            ]
        new_cell = build.between(old_cell, f"{name}:cell")
        build.node(f"{name}:cell", "lstm_cell", [rows[0], recurrent, old_cell, *more], new_cell, **attributes, clip=clip)
        shape = old_cell.shape
        made = Tensor(build.fresh(f"{name}:hidden"), shape, "int8", hidden)
        build.node(f"{name}:hidden", "lstm_hidden", [rows[0], recurrent, new_cell, *more], made, **attributes)
        if weights.projection is not None:
            made = projected(build, made, build.between(old_h, f"{name}:projected"))
        return made, [made, new_cell]

    def projected(build: GraphBuilder, made: Tensor, output: Tensor) -> Tensor:
        projection, extra = weights.projection, weights.projection_bias
        assert projection is not None
        _typed(c, projection, "int8")
        given = None if extra is None else _data(extra)
        sums = _sums(build, f"{name}:projection", made, [projection], given)
        ratio = _scale(c, projection) * np.float32(hidden.scale[0]) / _scale(c, h)
        limit = int(np.clip(np.float32(projection_limit) / _scale(c, h), 0, 127)) if projection_limit > 0 else 0
        low, high = (-limit, limit) if limit else (-128, 127)
        return build.node(
            f"{name}:projected", "rescale", [sums], output, scale=float(ratio), low=low, high=high
        )

    return driven, step


@converts("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _sequence_lstm(c: TfliteConversion) -> None:
    options = c.options(tflite.UnidirectionalSequenceLSTMOptions)
    if options.DiagonalRecurrentTensors():
        raise c.error("diagonal recurrent weights are not supported")
    _lstm(c, options, time_major=options.TimeMajor())


def _lstm(c: TfliteConversion, options: Any, *, time_major: bool) -> None:
    x = _sequence(c, c.given(1)[0], time_major=time_major)
    weights = _lstm_weights(c, x.shape[-1])
    if options.FusedActivationFunction() != tflite.ActivationFunctionType.TANH:
        raise c.error("its activation must be tanh")
    h, cell = read_state(c, 18), read_state(c, 19)
    made = weights.h["forget"].shape[1]
    shapes = ((x.shape[1], made), (x.shape[1], weights.x["forget"].shape[0]))
    if (h.shape, cell.shape) != shapes:
        raise c.error(f"its states must have shapes {list(shapes)}, not {[h.shape, cell.shape]}")
    limits = (options.CellClip(), options.ProjClip())
    flat = time_major or len(c.given(1)[0].shape) == 2
    rows, step = _integer_step(c, weights, x, h, cell, limits, flat=flat)
    y, (h, cell) = _in_steps(c, "loop", [rows], [h, cell], step)
    write_state(c, 18, h)
    write_state(c, 19, cell)
    _result(c, y, c.output, time_major=time_major)
