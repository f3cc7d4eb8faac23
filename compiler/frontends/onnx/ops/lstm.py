"""Conversion of ONNX's LSTM, unrolled over its time steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.elementwise import binary
from compiler.frontends.onnx.ops.indexing import part_of
from compiler.frontends.onnx.ops.matmul import dense
from compiler.frontends.onnx.ops.shape import with_ones
from compiler.frontends.onnx.registry import choice, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    plain,
)
from hw.errors import InputError

#: Maximum number of time steps; each is converted to about twelve nodes.
_MAX_STEPS = 1024


@dataclass(frozen=True)
class _Direction:
    """One direction of an LSTM; weights are (4 * hidden, ...), in gate order input, output, forget, cell."""

    name: str
    w: ConstantValue
    r: ConstantValue
    bias: ConstantValue | None
    start: tuple[DynamicValue | None, DynamicValue | None]
    backward: bool


@converts("LSTM", inputs=(3, 8))
def _lstm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, w, r, bias, lengths, h, c, peepholes = inputs
    names = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}
    directions = names[choice(node, "direction", "forward", *names)]
    x = emitter.flow(x)
    _check(node, x, lengths, peepholes, len(directions))
    w, r = (ConstantValue(v.name, v.real()) for v in (known(w, "a weight"), known(r, "a weight")))
    hidden = r.shape[-1] if r.shape else 0
    _, batch, size = x.shape
    if (w.shape, r.shape) != ((len(directions), 4 * hidden, size), (len(directions), 4 * hidden, hidden)):
        raise InputError(f"weights {list(w.shape)} and {list(r.shape)} do not fit x {list(x.shape)}")
    if node.int("hidden_size", hidden) != hidden:
        raise InputError(f"hidden_size must be {hidden}, not {node.int('hidden_size', 0)}")
    runs = []
    for i, name in enumerate(directions):
        starts = tuple(_start(emitter, node, v, i, (len(directions), batch, hidden)) for v in (h, c))
        runs.append(
            _run(
                emitter,
                node,
                x,
                _Direction(
                    name,
                    ConstantValue(f"{w.name}:{name}", w.data[i]),
                    ConstantValue(f"{r.name}:{name}", r.data[i]),
                    _bias(bias, i, len(directions), hidden),
                    (starts[0], starts[1]),
                    name == "reverse",
                ),
            )
        )
    every = [_joined(emitter, node, hs, 0, f"{n}:all") for n, (hs, _) in zip(directions, runs, strict=True)]
    shaped = [emitter.flow(with_ones(emitter, v.name, v, {1})) for v in every]
    last_h = [hs[0 if n == "reverse" else -1] for n, (hs, _) in zip(directions, runs, strict=True)]
    made = [_joined(emitter, node, shaped, 1, "y")]
    made += [
        _joined(emitter, node, v, 0, part) for v, part in ((last_h, "h"), ([last for _, last in runs], "c"))
    ]
    return [
        DynamicValue(name, value.tensor, value.order)
        for name, value in zip((*node.outputs, "", "")[:3], made, strict=True)
    ]


def _check(
    node: FileNode, x: DynamicValue, lengths: Value | None, peepholes: Value | None, directions: int
) -> None:
    if x.rank != 3 or x.shape[0] > _MAX_STEPS:
        raise UnsupportedNodeError(
            f"a sequence must have three dimensions and at most {_MAX_STEPS} steps, not shape {list(x.shape)}"
        )
    if lengths is not None and (known(lengths, "a length").data != x.shape[0]).any():
        raise UnsupportedNodeError("sequences of different lengths")
    default = [b"Sigmoid", b"Tanh", b"Tanh"] * directions
    if list(node.attributes.get("activations") or default) != default:
        raise UnsupportedNodeError("activations other than the default ones")
    if (
        peepholes is not None
        or node.int("input_forget", 0)
        or node.int("layout", 0)
        or "clip" in node.attributes
    ):
        raise UnsupportedNodeError("peepholes, coupled gates, batches first or clipping")


def _bias(bias: Value | None, index: int, directions: int, hidden: int) -> ConstantValue | None:
    """Return the sum of the input and recurrence biases of a direction."""
    if bias is None:
        return None
    data = known(bias, "a bias").real()
    if data.shape != (directions, 8 * hidden):
        raise InputError(f"its bias must have shape {[directions, 8 * hidden]}, not {list(data.shape)}")
    return ConstantValue(f"{bias.name}:{index}", data[index, : 4 * hidden] + data[index, 4 * hidden :])


def _start(
    emitter: OnnxGraphBuilder, node: FileNode, value: Value | None, index: int, shape: tuple[int, int, int]
) -> DynamicValue | None:
    """Return an initial state of shape (1, batch, hidden); None for zeros."""
    if value is None or (isinstance(value, ConstantValue) and not value.data.any() and value.shape == shape):
        return None
    if value.shape != shape:
        raise InputError(f"a first state must have shape {list(shape)}, not {list(value.shape)}")
    return part_of(
        emitter, node, emitter.flow(value), [index, 0, 0], [1, *shape[1:]], [1, 1, 1], f"{value.name}:{index}"
    )


def _run(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, run: _Direction
) -> tuple[list[DynamicValue], DynamicValue]:
    """Return the hidden states of all steps in the order of x, each (1, batch, hidden), and the last cell state."""
    steps, batch, _ = x.shape
    hidden = run.r.shape[1]
    projected = dense(emitter, node, x, run.w, run.bias, f"{run.name}:driven", floats=True)
    h, c = run.start
    states: dict[int, DynamicValue] = {}
    for t in range(steps - 1, -1, -1) if run.backward else range(steps):
        part = f"{run.name}:{t}"

        def gates(op: str, source: DynamicValue, first: int, count: int, part: str = part) -> DynamicValue:
            cut = part_of(
                emitter,
                node,
                source,
                [0, 0, first * hidden],
                [1, batch, count * hidden],
                [1, 1, 1],
                f"{part}:{op}_in",
            )
            return emitter.emit(node, op, [cut.tensor], cut.shape, cut.order, FLOAT, f"{part}:{op}")

        def pick(source: DynamicValue, index: int, name: str, part: str = part) -> DynamicValue:
            return part_of(
                emitter, node, source, [0, 0, index * hidden], [1, batch, hidden], [1, 1, 1], f"{part}:{name}"
            )

        total = part_of(emitter, node, projected, [t, 0, 0], [1, batch, 4 * hidden], [1, 1, 1], f"{part}:x")
        if h is not None:
            recurrent = dense(emitter, node, h, run.r, None, f"{part}:h", floats=True)
            total = binary(emitter, node, "add", [total, recurrent], f"{part}:sum", FLOAT)
        opened, cell = gates("sigmoid", total, 0, 3), gates("tanh", total, 3, 1)
        new = binary(emitter, node, "mul", [pick(opened, 0, "input"), cell], f"{part}:new", FLOAT)
        if c is not None:
            old = binary(emitter, node, "mul", [pick(opened, 2, "forget"), c], f"{part}:old", FLOAT)
            new = binary(emitter, node, "add", [new, old], f"{part}:cell", FLOAT)
        c = new
        squashed = emitter.emit(node, "tanh", [c.tensor], c.shape, c.order, FLOAT, f"{part}:bent")
        output = pick(opened, 1, "output")
        h = states[t] = binary(emitter, node, "mul", [output, squashed], f"{part}:hidden", FLOAT)
    assert c is not None
    return [states[t] for t in range(steps)], c


def _joined(
    emitter: OnnxGraphBuilder, node: FileNode, parts: list[DynamicValue], axis: int, name: str
) -> DynamicValue:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return emitter.emit(
        node,
        "concat",
        [emitter.operand(p, plain(p.rank), FLOAT) for p in parts],
        tuple(shape),
        plain(len(shape)),
        FLOAT,
        name,
        axis=axis,
    )
