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

from compiler.frontends.builder import ACTIVATIONS, GraphBuilder
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
#: Index of the operand with the coefficients of the input gate's normalization.
_NORMS = 20
#: Epsilon of the layer normalization of LiteRT's float LSTM.
_EPSILON = 1e-8

#: Function that adds the nodes of one step to a builder: from the inputs of the step and the states to the output of
#: the step and the new states.
Step = Callable[[GraphBuilder, list[Tensor], list[Tensor]], tuple[Tensor, list[Tensor]]]


def _sequence(c: TfliteConversion, x: Tensor, *, time_major: bool) -> Tensor:
    """Return a sequence with the time as its first dimension; x has no time dimension if it has two dimensions."""
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


def _lstm_weights(c: TfliteConversion, size: int, first: int) -> _LstmWeights:
    """Return the operands of an LSTM after checking their shapes.

    Parameters
    ----------
    c : TfliteConversion
        The operator that is converted.
    size : int
        Number of values of the input in a step.
    first : int
        Index of the operand with the input gate's weights.
    """
    given, at = [*c.inputs, *[None] * (first + 23 - len(c.inputs))], first

    def part(start: int, names: Sequence[str]) -> dict[str, Tensor]:
        found = {name: given[start + i] for i, name in enumerate(names)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    x, h = part(at, _GATES), part(at + 4, _GATES)
    cell, bias = part(at + 8, ("input", "forget", "output")), part(at + 11, _GATES)
    # Operands of a bidirectional LSTM have no normalization.
    norm = {} if c.kind == "BIDIRECTIONAL_SEQUENCE_LSTM" else part(_NORMS, _GATES)
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
            raise c.error(
                f"{tensor.name!r} must be constants of shape {list(shape)}, not {list(tensor.shape)}"
            )
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
    """Return the sums of products of the input of all steps, and the step of LiteRT's integer LSTM.

    Parameters
    ----------
    c : TfliteConversion
        The operator that is converted.
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
        raise c.error(
            f"the scale of its cell state must be a power of two in 2**-15..2**-9, not {2.0**power:.6g}"
        )
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
            raise c.error(
                "its peepholes need as many cells as outputs; LiteRT reads beyond the end of the weights"
            )
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
        build.node(
            f"{name}:cell",
            "lstm_cell",
            [rows[0], recurrent, old_cell, *more],
            new_cell,
            **attributes,
            clip=clip,
        )
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
        limit = (
            int(np.clip(np.float32(projection_limit) / _scale(c, h), 0, 127)) if projection_limit > 0 else 0
        )
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


@converts("LSTM")
def _single_lstm(c: TfliteConversion) -> None:
    options = c.options(tflite.LSTMOptions)
    if options.KernelType() != tflite.LSTMKernelType.FULL:
        raise c.error("only the full kernel is supported, not the basic one")
    if len(c.given(1)[0].shape) != 2:
        raise c.error("its input must have two dimensions")
    _lstm(c, options, time_major=False)


def _lstm(c: TfliteConversion, options: Any, *, time_major: bool) -> None:
    x = _sequence(c, c.given(1)[0], time_major=time_major)
    flat = time_major or len(c.given(1)[0].shape) == 2
    y = _lstm_direction(c, options, x, (1, 18), flat=flat)
    _result(c, y, c.output, time_major=time_major)


def _lstm_direction(
    c: TfliteConversion,
    options: Any,
    x: Tensor,
    places: tuple[int, int],
    *,
    flat: bool = False,
    backward: bool = False,
) -> Tensor:
    """Add one direction of an LSTM, and return the outputs of all steps (time, batch, outputs).

    Parameters
    ----------
    c : TfliteConversion
        The operator that is converted.
    options : object
        Options of the operator.
    x : Tensor
        Input (time, batch, size).
    places : (int, int)
        Indices of the first operand with weights and of the hidden state, which the cell state follows.
    flat, backward : bool
        As in `_integer_step` and `_in_steps`.
    """
    first, at = places
    weights = _lstm_weights(c, x.shape[-1], first)
    h, cell = read_state(c, at), read_state(c, at + 1)
    made = weights.h["forget"].shape[1]
    shapes = ((x.shape[1], made), (x.shape[1], weights.x["forget"].shape[0]))
    if (h.shape, cell.shape) != shapes:
        raise c.error(f"its states must have shapes {list(shapes)}, not {[h.shape, cell.shape]}")
    limits = (options.CellClip(), options.ProjClip())
    if x.dtype == "int8":
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.TANH:
            raise c.error("the activation of an int8 LSTM must be tanh")
        rows, step = _integer_step(c, weights, x, h, cell, limits, flat=flat)
    else:
        rows, step = _float_step(c, weights, x, options)
    part = "backward" if backward else "loop"
    y, states = _in_steps(c, part, [rows], [h, cell], step, backward=backward)
    for index, state in enumerate(states):
        write_state(c, at + index, state)
    return y


def _emit(
    build: GraphBuilder, name: str, op: str, inputs: list[Tensor], shape: Sequence[int], **attributes: Any
) -> Tensor:
    """Add a float node, and return its result."""
    return build.node(name, op, inputs, Tensor(build.fresh(name), tuple(shape), "float32"), **attributes)


def _real(build: GraphBuilder, name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Add a float32 constant with the concatenated contents of constants, whose integers are dequantized."""
    parts = [
        _data(each) if each.quantization is None else each.quantization.dequantized(_data(each))
        for each in tensors
    ]
    return build.constant(name, np.concatenate(parts).astype(np.float32))


def _floats(c: TfliteConversion, *tensors: Tensor) -> None:
    """Raise InputError unless activations are float32."""
    for tensor in tensors:
        if tensor.dtype != "float32":
            raise c.error(
                f"{tensor.name!r} must be int8 or float32 like the other activations, not {tensor.dtype}"
            )


def _activated(c: TfliteConversion, build: GraphBuilder, name: str, x: Tensor, activation: int) -> Tensor:
    """Add an activation by its number in the format, and return its result."""
    kinds = tflite.ActivationFunctionType
    if activation == kinds.NONE:
        return x
    if activation == kinds.TANH:
        return _emit(build, name, "tanh", [x], x.shape)
    limits = {kinds.RELU: "relu", kinds.RELU6: "relu6", kinds.RELU_N1_TO_1: "relu_n1_to_1"}.get(activation)
    if limits is None:
        raise c.error(f"activation {activation} is not supported")
    low, high = ACTIVATIONS[limits] or (0.0, 0.0)
    return _emit(build, name, "clip", [x], x.shape, low=low, high=high)


def _float_step(c: TfliteConversion, weights: _LstmWeights, x: Tensor, options: Any) -> tuple[Tensor, Step]:
    """Return the products of the input of all steps, and the step of an LSTM with float activations."""
    _floats(c, x)
    name, gates, activation = c.operator.name, weights.gates, options.FusedActivationFunction()
    held = _real(c.build, f"{name}:weights", [weights.x[gate] for gate in gates])
    bias = (
        [] if weights.normalized else [_real(c.build, f"{name}:bias", [weights.bias[gate] for gate in gates])]
    )
    driven = _emit(c.build, f"{name}:products", "dense", [x, held, *bias], (*x.shape[:2], held.shape[0]))

    def step(build: GraphBuilder, rows: list[Tensor], states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, cell = states

        def emit(
            part: str, op: str, inputs: list[Tensor], shape: Sequence[int] = cell.shape, **more: Any
        ) -> Tensor:
            return _emit(build, f"{name}:{part}", op, inputs, shape, **more)

        def clipped(part: str, value: Tensor, limit: float) -> Tensor:
            return emit(part, "clip", [value], value.shape, low=-limit, high=limit) if limit > 0 else value

        recurrent = _real(build, f"{name}:recurrent_weights", [weights.h[gate] for gate in gates])
        total = emit("recurrent", "dense", [h, recurrent], rows[0].shape)
        total = emit("sum", "add", [rows[0], total], rows[0].shape)

        def gate(kind: str, state: Tensor) -> Tensor:
            spans = {"starts": (0, gates.index(kind) * cell.shape[1]), "sizes": cell.shape, "steps": (1, 1)}
            value = emit(f"{kind}_sum", "slice", [total], **spans)
            if kind in weights.cell:
                peephole = _real(build, f"{name}:{kind}_peephole", [weights.cell[kind]])
                seen = emit(f"{kind}_cell", "mul", [state, peephole])
                value = emit(f"{kind}_seen", "add", [value, seen])
            if kind in weights.norm:
                factors = _real(build, f"{name}:{kind}_norm", [weights.norm[kind]])
                offsets = _real(build, f"{name}:{kind}_bias", [weights.bias[kind]])
                value = emit(
                    f"{kind}_normal", "layer_norm", [value, factors, offsets], axis=1, epsilon=_EPSILON
                )
            if kind == "cell":
                return _activated(c, build, f"{name}:{kind}", value, activation)
            return emit(kind, "sigmoid", [value])

        forget, new = gate("forget", cell), gate("cell", cell)
        if "input" in gates:
            opened = gate("input", cell)
        else:
            opened = emit("input", "sub", [build.constant(f"{name}:one", np.ones((1,), np.float32)), forget])
        kept = emit("kept", "mul", [forget, cell])
        added = emit("added", "mul", [opened, new])
        cell = clipped("cell_clip", emit("cell_state", "add", [kept, added]), options.CellClip())
        bent = _activated(c, build, f"{name}:bent", cell, activation)
        y = emit("hidden", "mul", [gate("output", cell), bent])
        if weights.projection is not None:
            extra = [] if weights.projection_bias is None else [weights.projection_bias]
            operands = [
                _real(build, f"{name}:projection_{i}", [each])
                for i, each in enumerate((weights.projection, *extra))
            ]
            y = clipped(
                "projection_clip", emit("projection", "dense", [y, *operands], h.shape), options.ProjClip()
            )
        return y, [y, cell]

    return driven, step


@converts("BIDIRECTIONAL_SEQUENCE_LSTM")
def _bidirectional_lstm(c: TfliteConversion) -> None:
    options = c.options(tflite.BidirectionalSequenceLSTMOptions)
    _no_auxiliary(c, 39)
    x = _sequence(c, c.given(1)[0], time_major=options.TimeMajor())
    _floats(c, x)
    runs = [
        _lstm_direction(c, options, x, (1, 35)),
        _lstm_direction(c, options, x, (18, 37), backward=True),
    ]
    _merged(c, runs, options)


def _no_auxiliary(c: TfliteConversion, first: int) -> None:
    if any(tensor is not None for tensor in c.inputs[first:]):
        raise c.error("auxiliary inputs are not supported")


def _merged(c: TfliteConversion, runs: list[Tensor], options: Any) -> None:
    """Add the nodes of the outputs of two directions, which are joined if the operator merges them."""
    major = options.TimeMajor()
    if not options.MergeOutputs():
        if len(c.outputs) != len(runs):
            raise c.error("must have two outputs")
        for run, output in zip(runs, c.outputs, strict=True):
            _result(c, run, output, time_major=major)
        return
    shape = (*runs[0].shape[:2], sum(run.shape[2] for run in runs))
    _result(
        c,
        _emit(c.build, f"{c.operator.name}:both", "concat", runs, shape, axis=2),
        c.output,
        time_major=major,
    )


def _rnn(
    c: TfliteConversion, x: Tensor, places: tuple[int, int], activation: int, *, backward: bool = False
) -> Tensor:
    """Add one direction of an RNN, and return the outputs of all steps (time, batch, units).

    `places` are the indices of the input weights, which recurrent weights and bias follow, and of the hidden state.
    """
    _floats(c, x)
    first, at = places
    held, recurrent, bias = (c.inputs[first + i] if first + i < len(c.inputs) else None for i in range(3))
    h = read_state(c, at)
    if len(h.shape) != 2 or h.shape[0] != x.shape[1]:
        raise c.error(f"its state {list(h.shape)} does not fit its input")
    units = h.shape[1]
    for tensor, shape in ((held, (units, x.shape[2])), (recurrent, (units, units)), (bias, (units,))):
        if tensor is None or tensor.data is None or tensor.shape != shape:
            raise c.error(f"its weights and its bias must be constants, the next of shape {list(shape)}")
    assert held is not None and recurrent is not None and bias is not None
    part = "backward" if backward else "loop"
    name, weights = f"{c.operator.name}:{part}", recurrent
    operands = [x, *(_real(c.build, f"{name}:{i}", [each]) for i, each in enumerate((held, bias)))]
    driven = _emit(c.build, f"{name}:products", "dense", operands, (*x.shape[:2], units))

    def step(build: GraphBuilder, rows: list[Tensor], states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        again = _emit(
            build,
            f"{name}:recurrent",
            "dense",
            [states[0], _real(build, f"{name}:weights", [weights])],
            h.shape,
        )
        y = _activated(
            c,
            build,
            f"{name}:hidden",
            _emit(build, f"{name}:sum", "add", [rows[0], again], h.shape),
            activation,
        )
        return y, [y]

    y, (state,) = _in_steps(c, part, [driven], [h], step, backward=backward)
    write_state(c, at, state)
    return y


@converts("RNN")
def _single_rnn(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    if len(x.shape) != 2:
        raise c.error("its input must have two dimensions")
    activation = c.options(tflite.RNNOptions).FusedActivationFunction()
    _result(c, _rnn(c, _sequence(c, x, time_major=True), (1, 4), activation), c.output, time_major=True)


@converts("UNIDIRECTIONAL_SEQUENCE_RNN")
def _sequence_rnn(c: TfliteConversion) -> None:
    options = c.options(tflite.SequenceRNNOptions)
    x = _sequence(c, c.given(1)[0], time_major=options.TimeMajor())
    y = _rnn(c, x, (1, 4), options.FusedActivationFunction())
    _result(c, y, c.output, time_major=options.TimeMajor())


@converts("BIDIRECTIONAL_SEQUENCE_RNN")
def _bidirectional_rnn(c: TfliteConversion) -> None:
    options = c.options(tflite.BidirectionalSequenceRNNOptions)
    _no_auxiliary(c, 9)
    x = _sequence(c, c.given(1)[0], time_major=options.TimeMajor())
    activation = options.FusedActivationFunction()
    runs = [_rnn(c, x, (1, 4), activation), _rnn(c, x, (5, 8), activation, backward=True)]
    _merged(c, runs, options)


@converts("SVDF")
def _svdf(c: TfliteConversion) -> None:
    """Convert a filter bank whose state holds the features of the last steps, (batch, filters * memory)."""
    options = c.options(tflite.SVDFOptions)
    x, feature, time, *_ = c.given(4)
    bias, rank = c.inputs[3] if len(c.inputs) > 3 else None, options.Rank()
    if len(x.shape) != 2 or len(feature.shape) != 2 or len(time.shape) != 2 or rank < 1:
        raise c.error("its input and weights must have two dimensions, and its rank must be positive")
    (batch, size), (filters, memory) = x.shape, time.shape
    if feature.shape != (filters, size) or filters % rank:
        raise c.error(f"weights {list(feature.shape)} and {list(time.shape)} do not fit {list(x.shape)}")
    units = filters // rank
    for tensor, shape in ((feature, feature.shape), (time, time.shape), (bias, (units,))):
        if tensor is not None and (tensor.data is None or tensor.shape != shape):
            raise c.error(f"{tensor.name!r} must be constants of shape {list(shape)}")
    c.expect((batch, units))
    state = read_state(c, 4)
    if state.shape != (batch, filters * memory):
        raise c.error(f"its state must have shape {[batch, filters * memory]}, not {list(state.shape)}")
    convert = _integer_svdf if x.dtype == "int8" else _float_svdf
    write_state(c, 4, convert(c, x, feature, time, bias, state))


def _integer_svdf(
    c: TfliteConversion, x: Tensor, feature: Tensor, time: Tensor, bias: Tensor | None, state: Tensor
) -> Tensor:
    """Add the nodes of LiteRT's integer SVDF, and return the new state."""
    _typed(c, x, "int8", zero=True)
    _typed(c, feature, "int8")
    _typed(c, time, "int16")
    _typed(c, state, "int16")
    _typed(c, c.output, "int8", zero=True)
    if bias is not None and bias.dtype != "int32":
        raise c.error(f"{bias.name!r} must be int32, not {bias.dtype}")
    options, name = c.options(tflite.SVDFOptions), c.operator.name
    if options.FusedActivationFunction() != tflite.ActivationFunctionType.RELU:
        raise c.error("the activation of an int8 SVDF must be relu, which LiteRT requires and then ignores")
    rank = options.Rank()
    sums = _sums(c.build, f"{name}:features", x, [feature], None)
    first = _scale(c, x) * _scale(c, feature) / _scale(c, state)
    second = _scale(c, state) * _scale(c, time) / _scale(c, c.output)
    new = c.build.between(state, f"{state.name}:next")
    c.build.node(f"{name}:state", "svdf_state", [sums, state], new, scale=float(first))
    c.make("svdf", [new, time, *([] if bias is None else [bias])], rank=rank, scale=float(second))
    return new


def _float_svdf(
    c: TfliteConversion, x: Tensor, feature: Tensor, time: Tensor, bias: Tensor | None, state: Tensor
) -> Tensor:
    """Add the nodes of an SVDF with float activations, and return the new state."""
    _floats(c, x, state)
    build, name, options = c.build, c.operator.name, c.options(tflite.SVDFOptions)
    (batch, _), (filters, memory) = x.shape, time.shape

    def emit(part: str, op: str, inputs: list[Tensor], shape: Sequence[int], **more: Any) -> Tensor:
        return _emit(build, f"{name}:{part}", op, inputs, shape, **more)

    def shaped(part: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
        out = Tensor(build.fresh(f"{name}:{part}"), shape, "float32")
        return build.node(out.name, "reshape", [value], out, shape=shape)

    made = emit("features", "dense", [x, _real(build, f"{name}:weights", [feature])], (batch, filters))
    parts = [shaped("column", made, (batch, filters, 1))]
    if memory > 1:
        spans = {"starts": (0, 0, 1), "sizes": (batch, filters, memory - 1), "steps": (1, 1, 1)}
        old = shaped("memory", state, (batch, filters, memory))
        parts.insert(0, emit("moved", "slice", [old], spans["sizes"], **spans))
    whole = emit("next", "concat", parts, (batch, filters, memory), axis=2)
    products = emit("products", "mul", [whole, _real(build, f"{name}:time", [time])], whole.shape)
    filtered = emit("filtered", "reduce_sum", [products], (batch, filters), axes=(2,), keep=False)
    ranks = shaped("ranks", filtered, (batch, filters // options.Rank(), options.Rank()))
    y = emit("sums", "reduce_sum", [ranks], ranks.shape[:2], axes=(2,), keep=False)
    if bias is not None:
        y = emit("biased", "add", [y, _real(build, f"{name}:bias", [bias])], y.shape)
    c.make_shaped(_activated(c, build, f"{name}:activated", y, options.FusedActivationFunction()))
    return shaped("state", whole, state.shape)
