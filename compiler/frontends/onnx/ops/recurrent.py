"""Conversion of ONNX's recurrent operators RNN, GRU and LSTM, unrolled over their time steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxSource
from compiler.frontends.onnx.ops.elementwise import binary, finite
from compiler.frontends.onnx.ops.indexing import part_of, picked
from compiler.frontends.onnx.ops.matmul import dense
from compiler.frontends.onnx.ops.shape import with_ones
from compiler.frontends.onnx.registry import CONVERSIONS, choice, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    check_size,
    plain,
)
from compiler.reference.onnx_ops.recurrent import DIRECTIONS, GATES, Activation, activations_of
from hw.errors import InputError, shown

#: Maximum number of time steps; each is converted to about ten nodes.
_MAX_STEPS = 1024
#: Number of steps whose hidden states are concatenated at a time.
_CHUNK = 32


@dataclass(frozen=True)
class _Operands:
    """Checked operands of a recurrent node.

    Parameters
    ----------
    x : DynamicValue
        Input of shape (steps, batch, inputs).
    w, r, bias, peepholes : arrays or None
        Weights (directions, gates * hidden, inputs) and (directions, gates * hidden, hidden), the biases (directions,
        2 * gates * hidden), and the LSTM's peephole weights (directions, 3 * hidden).
    lengths : list of int
        Number of steps of each sequence of the batch.
    states : list of Value or None
        Initial hidden state and, for an LSTM, cell state, (directions, batch, hidden); None for zeros.
    """

    x: DynamicValue
    w: ConstantValue
    r: ConstantValue
    bias: ConstantValue | None
    lengths: list[int]
    states: list[Value | None]
    peepholes: ConstantValue | None

    @property
    def hidden(self) -> int:
        """Number of elements of the hidden state."""
        return self.r.shape[-1]


def _operands(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any], directions: int) -> _Operands:
    """Check the operands of a node, and return them with the time steps first."""
    first, w, r, bias, lengths, h, *rest = inputs
    c, peepholes = rest or (None, None)
    x, states = emitter.flow(first), [h, c] if node.op == "LSTM" else [h]
    batch_first = node.int("layout", 0)
    if batch_first not in (0, 1):
        raise InputError(f"attribute layout must be 0 or 1, not {batch_first}")
    if batch_first and x.rank == 3:
        x = x.transposed((1, 0, 2), x.name)
        states = [v.transposed((1, 0, 2), v.name) if v and len(v.shape) == 3 else v for v in states]
    if x.rank != 3:
        raise InputError(f"a sequence must have three dimensions, not shape {list(x.shape)}")
    steps, batch, size = x.shape
    if steps > _MAX_STEPS:
        raise UnsupportedNodeError(
            f"a sequence of {steps:,} steps; at most {_MAX_STEPS:,} are unrolled on the accelerator, so split the "
            "sequence and pass the state on"
        )
    w, r = (ConstantValue(v.name, v.real()) for v in (known(w, "a weight"), known(r, "a weight")))
    hidden, gates = r.shape[-1] if r.shape else 0, len(GATES[node.op])
    if node.int("hidden_size", hidden) != hidden:
        raise InputError(f"hidden_size must be {hidden}, not {node.int('hidden_size', 0)}")
    _expect("its weights", w, (directions, gates * hidden, size))
    _expect("its recurrence weights", r, (directions, gates * hidden, hidden))
    if bias is not None:
        bias = ConstantValue(bias.name, known(bias, "a bias").real())
        _expect("its bias", bias, (directions, 2 * gates * hidden))
    if peepholes is not None:
        peepholes = ConstantValue(peepholes.name, known(peepholes, "peephole weights").real())
        _expect("its peephole weights", peepholes, (directions, 3 * hidden))
    for state in states:
        if state is not None:
            _expect("an initial state", state, (directions, batch, hidden))
    return _Operands(x, w, r, bias, _lengths(lengths, steps, batch), states, peepholes)


def _expect(what: str, value: Value, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise InputError(f"{what} must have shape {list(shape)}, not {list(value.shape)}")


def _lengths(lengths: Value | None, steps: int, batch: int) -> list[int]:
    """Return the number of steps of each sequence."""
    if lengths is None:
        return [steps] * batch
    counts = known(lengths, "sequence_lens").integers()
    if len(counts) != batch or not all(0 <= count <= steps for count in counts):
        raise InputError(f"sequence_lens must be {batch} numbers within 0..{steps}, not {shown(counts)}")
    return counts


class _Emitter:
    """Builder of the nodes of one time step or of one direction, all in float32.

    Parameters
    ----------
    emitter : OnnxGraphBuilder
        Builder of the graph.
    node : FileNode
        The recurrent node.
    part : str
        Prefix of the names of new nodes.
    """

    def __init__(self, emitter: OnnxGraphBuilder, node: FileNode, part: str):
        self.emitter, self.node, self.part = emitter, node, part

    def at(self, part: object) -> "_Emitter":
        """Return a builder whose prefix is longer by `part`."""
        return _Emitter(self.emitter, self.node, f"{self.part}:{part}" if self.part else f"{part}")

    def binary(self, op: str, a: Value, b: Value, name: str) -> DynamicValue:
        """Add a sum, difference or product."""
        return binary(self.emitter, self.node, op, [a, b], f"{self.part}:{name}", FLOAT)

    def dense(self, x: DynamicValue, w: ConstantValue, bias: ConstantValue | None, name: str) -> DynamicValue:
        """Add a product with transposed weights."""
        return dense(self.emitter, self.node, x, w, bias, f"{self.part}:{name}", floats=True)

    def clipped(self, x: DynamicValue, limit: float | None) -> DynamicValue:
        """Clip x to -limit..limit, unless the limit is None."""
        if limit is None:
            return x
        tensor = self.emitter.operand(x, x.order, FLOAT)
        return self.emitter.emit(
            self.node, "clip", [tensor], x.shape, x.order, FLOAT, f"{self.part}:clip", low=-limit, high=limit
        )

    def activated(self, function: Activation, x: DynamicValue, name: str) -> DynamicValue:
        """Apply an activation function."""
        a, b = (function.coefficients.get(key) for key in ("alpha", "beta"))
        if function.name == "Affine":
            return self._moved(self._scaled(x, a, f"{name}_scaled"), b, name)
        if function.name == "ScaledTanh":
            inner = self._applied("Tanh", {}, self._scaled(x, b, f"{name}_scaled"), f"{name}_tanh")
            return self._scaled(inner, a, name)
        return self._applied(function.name, function.coefficients, x, name)

    def _scaled(self, x: DynamicValue, factor: float | None, name: str) -> DynamicValue:
        return self.binary("mul", x, self.number(factor), name)

    def _moved(self, x: DynamicValue, summand: float | None, name: str) -> DynamicValue:
        return self.binary("add", x, self.number(summand), name)

    def number(self, value: float | None) -> ConstantValue:
        """Return a scalar constant."""
        return ConstantValue(f"{self.node.name}:number", np.array(value, np.float32))

    def _applied(self, op: str, attributes: dict[str, Any], x: DynamicValue, name: str) -> DynamicValue:
        """Apply an elementwise ONNX operator."""
        output = f"{self.node.outputs[0] or self.node.name}:{self.part}:{name}"
        proto = onnx.helper.make_node(
            op, ["x"], [output], f"{self.node.name}:{self.part}:{name}", **attributes
        )
        source = self.node.source and OnnxSource(proto, self.node.source.versions)
        node = FileNode(proto.name, op, ("x",), (output,), dict(attributes), self.node.opset, source)
        (made,) = CONVERSIONS[op](self.emitter, node, [x])
        assert isinstance(made, DynamicValue)
        return made

    def cut(self, x: DynamicValue, axis: int, start: int, size: int, name: str) -> DynamicValue:
        """Return `size` elements of dimension `axis`, from `start` on."""
        starts, sizes = [0] * x.rank, list(x.shape)
        starts[axis], sizes[axis] = start, size
        return part_of(self.emitter, self.node, x, starts, sizes, [1] * x.rank, f"{self.part}:{name}")

    def joined(self, parts: list[DynamicValue], axis: int, name: str) -> DynamicValue:
        """Concatenate values along dimension `axis`."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.emitter.emit(
            self.node,
            "concat",
            [self.emitter.operand(p, plain(p.rank), FLOAT) for p in parts],
            tuple(shape),
            plain(len(shape)),
            FLOAT,
            f"{self.part}:{name}" if self.part else name,
            axis=axis,
        )

    def chosen(self, x: DynamicValue, rows: list[int]) -> DynamicValue:
        """Return rows of x along dimension 1, the batch."""
        if rows == list(range(x.shape[1])):
            return x
        return picked(self.emitter, self.node, x, rows, 1, f"{self.part}:rows")

    def zeros(self, shape: tuple[int, ...]) -> DynamicValue:
        """Return a constant of zeros."""
        check_size(shape)
        zeros = ConstantValue(f"{self.node.name}:zeros", np.zeros(shape, np.float32))
        return DynamicValue(zeros.name, self.emitter.constant(zeros.name, zeros), plain(len(shape)))


#: Hidden or cell state of a direction, of shape (1, batch, hidden); None for zeros.
_State = DynamicValue | None


@dataclass(frozen=True)
class _Block:
    """Gates with a common activation, whose weights are multiplied together.

    Parameters
    ----------
    gates : str
        Names of the gates, in order.
    w, r : ConstantValue
        Weights (gates * hidden, inputs) and (gates * hidden, hidden).
    bias, recurrent_bias : ConstantValue or None
        Bias of the product with the input, and of the product with the hidden state.
    """

    gates: str
    w: ConstantValue
    r: ConstantValue
    bias: ConstantValue | None
    recurrent_bias: ConstantValue | None = None


class _Direction:
    """One direction of a recurrent node.

    Parameters
    ----------
    node : FileNode
        The recurrent node.
    given : _Operands
        Operands of the node.
    index : int
        Index of the direction among those of the weights.
    functions : tuple of Activation
        Activations of the direction.
    backward : bool
        True to process the steps from the last to the first.
    """

    def __init__(
        self,
        node: FileNode,
        given: _Operands,
        index: int,
        functions: tuple[Activation, ...],
        *,
        backward: bool,
    ):
        self.node, self.given, self.index = node, given, index
        self.functions, self.backward, self.hidden = functions, backward, given.hidden
        self.clip = abs(finite(node.float("clip", 0.0))) if "clip" in node.attributes else None
        self.coupled = node.op == "LSTM" and bool(node.int("input_forget", 0))
        self.linear = node.op == "GRU" and bool(node.int("linear_before_reset", 0))
        self.peepholes = {} if given.peepholes is None else self._peepholes(given.peepholes)
        self.blocks = [self._block(gates) for gates in self._gates()]

    def _peepholes(self, value: ConstantValue) -> dict[str, ConstantValue]:
        rows = np.split(value.data[self.index], 3)
        return {
            gate: ConstantValue(f"{value.name}:{self.index}:{gate}", row)
            for gate, row in zip("iof", rows, strict=True)
        }

    def _gates(self) -> tuple[str, ...]:
        """Return the gates of each block; gates of a block have one activation and depend on the same states."""
        if self.node.op == "LSTM":
            opened = "io" if self.coupled else "iof"
            return (*opened, "c") if self.peepholes else (opened, "c")
        return ("zr", "h") if self.node.op == "GRU" else ("h",)

    def _block(self, gates: str) -> _Block:
        given, size, order = self.given, self.hidden, GATES[self.node.op]
        rows = np.concatenate([np.arange(size) + order.index(gate) * size for gate in gates])
        tag = f"{self.index}:{gates}"
        w, r = (
            ConstantValue(f"{v.name}:{tag}", np.ascontiguousarray(v.data[self.index][rows]))
            for v in (given.w, given.r)
        )
        if given.bias is None:
            return _Block(gates, w, r, None)
        both = np.split(given.bias.data[self.index], 2)
        driven, recurrent = (each[rows] for each in both)
        if self.linear and gates == "h":
            return _Block(
                gates,
                w,
                r,
                ConstantValue(f"{given.bias.name}:{tag}", driven),
                ConstantValue(f"{given.bias.name}:{tag}:recurrent", recurrent),
            )
        return _Block(gates, w, r, ConstantValue(f"{given.bias.name}:{tag}", driven + recurrent))

    def run(
        self, emit: _Emitter, x: DynamicValue, states: list[_State]
    ) -> tuple[DynamicValue, list[DynamicValue]]:
        """Process sequences of equal length.

        Parameters
        ----------
        emit : _Emitter
            Builder of the new nodes.
        x : DynamicValue
            Input of shape (steps, batch, inputs).
        states : list of DynamicValue or None
            Initial hidden state and, for an LSTM, cell state.

        Returns
        -------
        y, last
            The hidden states of all steps in the order of x, (steps, batch, hidden), and the final states, each of
            shape (1, batch, hidden).
        """
        step = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.node.op]
        driven = [emit.dense(x, each.w, each.bias, f"driven_{each.gates}") for each in self.blocks]
        order = range(x.shape[0])[::-1] if self.backward else range(x.shape[0])
        ys, chunks, last = list[DynamicValue](), list[DynamicValue](), list[DynamicValue]()
        for t in order:
            at = emit.at(t)
            emit.emitter.repetition = f":{at.part}:"
            rows = [
                at.cut(value, 0, t, 1, f"x_{each.gates}")
                for value, each in zip(driven, self.blocks, strict=True)
            ]
            last = step(at, rows, *states)
            states, ys = [*last], [*ys, last[0]]
            emit.emitter.repetition = ""
            if len(ys) == _CHUNK or t == order[-1]:
                chunks.append(emit.joined(ys[::-1] if self.backward else ys, 0, f"until{t}"))
                ys = []
        return emit.joined(chunks[::-1] if self.backward else chunks, 0, "all"), last

    def _total(self, emit: _Emitter, block: _Block, row: DynamicValue, h: _State) -> DynamicValue:
        """Return the sum of the products of a block with input and hidden state."""
        if h is None:
            return row
        recurrent = emit.dense(h, block.r, block.recurrent_bias, f"h_{block.gates}")
        return emit.binary("add", recurrent, row, f"sum_{block.gates}")

    def _opened(self, emit: _Emitter, total: DynamicValue, function: Activation, name: str) -> DynamicValue:
        """Return the activated gates of a block."""
        return emit.activated(function, emit.at(name).clipped(total, self.clip), name)

    def _gate(self, emit: _Emitter, block: _Block, opened: DynamicValue, gate: str) -> DynamicValue:
        """Return one gate of a block."""
        start = block.gates.index(gate) * self.hidden
        return emit.cut(opened, 2, start, self.hidden, f"gate_{gate}")

    def _rnn(self, emit: _Emitter, rows: list[DynamicValue], h: _State) -> list[DynamicValue]:
        """Return the hidden state f(W x + R h + b)."""
        total = self._total(emit, self.blocks[0], rows[0], h)
        return [self._opened(emit, total, self.functions[0], "hidden")]

    def _gru(self, emit: _Emitter, rows: list[DynamicValue], h: _State) -> list[DynamicValue]:
        """Return the hidden state (1 - z) * n + z * h, where n is the candidate."""
        gates, candidate = self.blocks
        opened = self._opened(emit, self._total(emit, gates, rows[0], h), self.functions[0], "gates")
        update, reset = (self._gate(emit, gates, opened, gate) for gate in "zr")
        total = rows[1]
        if self.linear:
            recurrent: Value | None = candidate.recurrent_bias
            if h is not None:
                recurrent = emit.dense(h, candidate.r, candidate.recurrent_bias, "h_h")
            if recurrent is not None:
                total = emit.binary("add", emit.binary("mul", reset, recurrent, "reset"), total, "sum_h")
        elif h is not None:
            total = self._total(emit, candidate, rows[1], emit.binary("mul", reset, h, "reset"))
        new = self._opened(emit, total, self.functions[1], "candidate")
        rest = emit.binary("sub", emit.number(1.0), update, "rest")
        new = emit.binary("mul", rest, new, "new")
        if h is None:
            return [new]
        return [emit.binary("add", new, emit.binary("mul", update, h, "kept"), "hidden")]

    def _lstm(self, emit: _Emitter, rows: list[DynamicValue], h: _State, c: _State) -> list[DynamicValue]:
        """Return the hidden state o * h(c) and the cell state c = f * c + i * g(...)."""
        f, g, last = self.functions
        opened: dict[str, DynamicValue] = {}

        def open_gates(block: _Block, row: DynamicValue, cell: _State) -> None:
            total = self._total(emit, block, row, h)
            if cell is not None and block.gates in self.peepholes:
                seen = emit.binary("mul", cell, self.peepholes[block.gates], f"peephole_{block.gates}")
                total = emit.binary("add", total, seen, f"total_{block.gates}")
            made = self._opened(emit, total, f, f"gates_{block.gates}")
            opened.update({gate: self._gate(emit, block, made, gate) for gate in block.gates})

        *gates, candidate = self.blocks
        for block, row in zip(gates, rows[:-1], strict=True):
            if block.gates != "o":
                open_gates(block, row, c)
        new = self._opened(emit, self._total(emit, candidate, rows[-1], h), g, "candidate")
        cell = emit.binary("mul", opened["i"], new, "new")
        if c is not None:
            forget = (
                emit.binary("sub", emit.number(1.0), opened["i"], "forget") if self.coupled else opened["f"]
            )
            cell = emit.binary("add", cell, emit.binary("mul", forget, c, "kept"), "cell")
        for block, row in zip(gates, rows[:-1], strict=True):
            if block.gates == "o":
                open_gates(block, row, cell)
        return [emit.binary("mul", opened["o"], emit.activated(last, cell, "bent"), "hidden"), cell]


def _runs(emit: _Emitter, direction: _Direction, given: _Operands) -> tuple[DynamicValue, list[DynamicValue]]:
    """Return the hidden states of all steps, (steps, batch, hidden), and the final states, each (1, batch, hidden).

    Sequences of equal length are processed together. Hidden states beyond the end of a sequence are zero, and so are
    the final states of a sequence without steps.
    """
    steps, batch, _ = given.x.shape
    states = [_start(emit, given.states[i], direction.index) for i in range(len(given.states))]
    if given.lengths == [steps] * batch:
        return direction.run(emit, given.x, states)
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(given.lengths):
        groups.setdefault(length, []).append(row)
    made = [
        _group(emit.at(f"length{length}"), direction, given.x, states, length, rows)
        for length, rows in groups.items()
    ]
    order = np.argsort(np.concatenate(list(groups.values()))).tolist()
    y, *last = (
        emit.chosen(emit.joined([each[i] for each in made], 1, f"batch{i}"), order)
        for i in range(1 + len(states))
    )
    return y, last


def _group(
    emit: _Emitter, direction: _Direction, x: DynamicValue, states: list[_State], length: int, rows: list[int]
) -> list[DynamicValue]:
    """Process the sequences `rows` of the batch, which have the same length; return all hidden and the final states."""
    steps, hidden = x.shape[0], direction.hidden
    if not length:
        return [emit.zeros((each, len(rows), hidden)) for each in (steps, *(1 for _ in states))]
    x = emit.cut(emit.chosen(x, rows), 0, 0, length, "steps")
    y, last = direction.run(emit, x, [state and emit.chosen(state, rows) for state in states])
    if length < steps:
        y = emit.joined([y, emit.zeros((steps - length, len(rows), hidden))], 0, "padded")
    return [y, *last]


def _start(emit: _Emitter, value: Value | None, index: int) -> _State:
    """Return an initial state of one direction, of shape (1, batch, hidden); None for zeros."""
    if isinstance(value, ConstantValue):
        numbers = value.real()[index : index + 1]
        value = ConstantValue(f"{value.name}:{index}", numbers)
        return emit.emitter.flow(value) if numbers.any() else None
    return None if value is None else emit.cut(value, 0, index, 1, f"{value.name}_{index}")


@converts("RNN", "GRU", inputs=(3, 6))
@converts("LSTM", inputs=(3, 8))
def _recurrent(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert a recurrent node, separately for each direction and each length of the sequences of the batch."""
    if emitter.targets:
        raise UnsupportedNodeError(
            "its values are float32, but the model is quantized: quantize this operator, too"
        )
    names = DIRECTIONS[choice(node, "direction", "forward", *DIRECTIONS)]
    functions = activations_of(node.op, node.attributes, len(names))
    given = _operands(emitter, node, inputs, len(names))
    ys, lasts = list[DynamicValue](), list[list[DynamicValue]]()
    for index, name in enumerate(names):
        direction = _Direction(node, given, index, functions[index], backward=name == "reverse")
        y, last = _runs(_Emitter(emitter, node, name), direction, given)
        ys.append(emitter.flow(with_ones(emitter, y.name, y, {1})))
        lasts.append(last)
    emit = _Emitter(emitter, node, "")
    made = [emit.joined(ys, 1, "y")]
    made += [emit.joined(list(parts), 0, f"last{i}") for i, parts in enumerate(zip(*lasts, strict=True))]
    if node.int("layout", 0):
        perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        made = [value.transposed(perm, value.name) for value, perm in zip(made, perms, strict=False)]
    return [replace(value, name=name) for value, name in zip(made, (*node.outputs, "", "", ""), strict=False)]


@converts("DynamicQuantizeLSTM", inputs=(3, 12))
def _dynamic_lstm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert onnxruntime's LSTM with quantized weights to an LSTM with the weights that the integers represent.

    onnxruntime quantizes x and the hidden state by their range at run time; the compiler, by calibration.
    """
    *operands, w_scale, w_zero, r_scale, r_zero = inputs
    for index, scale, zero in ((1, w_scale, w_zero), (2, r_scale, r_zero)):
        operands[index] = _real_weights(operands[index], scale, zero)
    return _recurrent(emitter, replace(node, op="LSTM"), operands)


def _real_weights(value: Value, scale: Value | None, zero: Value | None) -> ConstantValue:
    """Return the weights (directions, outputs, inputs) for integers (directions, inputs, outputs).

    Scale and zero point have the shape (directions,) or (directions, outputs).
    """
    integers, factor = known(value, "a weight"), known(scale, "a scale").real()
    centre = np.zeros_like(factor) if zero is None else known(zero, "a zero point").real()
    if len(integers.shape) != 3 or {factor.shape, centre.shape} - {integers.shape[:1], integers.shape[::2]}:
        raise InputError(
            f"scale {list(factor.shape)} and zero point {list(centre.shape)} do not fit weights {list(integers.shape)}"
        )
    factor, centre = (each.reshape(len(each), 1, -1) for each in (factor, centre))
    return ConstantValue(integers.name, ((integers.real() - centre) * factor).transpose(0, 2, 1))
