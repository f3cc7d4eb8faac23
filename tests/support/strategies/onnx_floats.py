"""Random float ONNX models with arithmetic operators and operators that move, merge or split dimensions."""

import math
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.support.onnx_models import model, node
from tests.support.strategies.graph_builder import Draw


class RandomModel:
    """A float model that is built node by node from existing values.

    Parameters
    ----------
    draw : callable
        Hypothesis' source of choices.
    batch : int
        First dimension of the input.
    """

    def __init__(self, draw: Draw[Any], batch: int = 2):
        self.draw, self.rng = draw, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, np.ndarray] = {}
        self.inputs = {"x": self.numbers(batch, 4, 4, 6)}
        self.shapes: dict[str, tuple[int, ...]] = {"x": (batch, 4, 4, 6)}

    def numbers(self, *shape: int) -> np.ndarray:
        """Return random float32 values."""
        return self.rng.normal(size=shape).astype(np.float32)

    def constant(self, array: np.ndarray) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.held)}"
        self.held[name] = array
        return name

    def add(self, op: str, inputs: str, shape: tuple[int, ...], **attributes: object) -> None:
        """Add a node and record the shape of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        self.shapes[name] = tuple(int(n) for n in shape)

    def axis(self, rank: int) -> int:
        """Choose a dimension."""
        return self.draw(st.integers(0, rank - 1))

    def chance(self) -> bool:
        """Choose a bool."""
        return self.draw(st.booleans())

    def grow(self) -> None:
        """Add a random node that reads one of the last values."""
        name = list(self.shapes)[-1 - self.axis(min(3, len(self.shapes)))]
        kinds = [
            self.conv,
            self.conv,
            self.transpose,
            self.reshape,
            self.unary,
            self.binary,
            self.binary,
            self.concat,
            self.reduce,
            self.slice,
            self.pad,
            self.matmul,
            self.pool,
            self.softmax,
            self.ones,
        ]
        kinds[self.axis(len(kinds))](name, self.shapes[name])

    def conv(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a convolution that keeps the spatial size."""
        if len(shape) not in (3, 4):
            return
        outputs = 1 + self.axis(4)
        kernel = [3] * (len(shape) - 2)
        w = self.constant(self.numbers(outputs, shape[1], *kernel) / np.float32(math.sqrt(9 * shape[1])))
        self.add("Conv", f"{x} {w}", (shape[0], outputs, *shape[2:]), pads=[1] * (2 * len(kernel)))

    def pool(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a pooling operator that keeps the spatial size."""
        if len(shape) in (3, 4):
            kernel = [3] * (len(shape) - 2)
            op = ["MaxPool", "AveragePool"][self.axis(2)]
            self.add(op, x, shape, kernel_shape=kernel, pads=[1] * (2 * len(kernel)))

    def transpose(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a transpose with a random permutation."""
        perm = self.draw(st.permutations(range(len(shape))))
        self.add("Transpose", x, tuple(shape[i] for i in perm), perm=perm)

    def reshape(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a reshape that merges neighbouring dimensions or splits one."""
        made, i = list(shape), self.axis(len(shape))
        if i + 1 < len(made) and self.chance():
            made[i : i + 2] = [made[i] * made[i + 1]]
        elif len(made) < 5:
            divisor = math.gcd(made[i], 2)
            made[i : i + 1] = [divisor, made[i] // divisor]
        self.add("Reshape", f"{x} {self.constant(np.array(made))}", tuple(made))

    def ones(self, x: str, shape: tuple[int, ...]) -> None:
        """Remove all dimensions of size one or, if there are none, add one."""
        axis = self.axis(len(shape) + 1)
        if 1 in shape:
            self.add("Squeeze", x, tuple(n for n in shape if n > 1))
        elif len(shape) < 5:
            self.add("Unsqueeze", f"{x} {self.constant(np.array([axis]))}", (*shape[:axis], 1, *shape[axis:]))

    def unary(self, x: str, shape: tuple[int, ...]) -> None:
        """Add an activation."""
        self.add(["Relu", "Sigmoid", "Tanh", "LeakyRelu"][self.axis(4)], x, shape)

    def binary(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a binary operator of x and another value or a constant, whose shapes broadcast."""
        fitting = [name for name, other in self.shapes.items() if self.broadcasts(shape, other)]
        other = fitting[self.axis(len(fitting))]
        if self.chance():
            cut = shape[self.axis(len(shape) + 1) :]
            other = self.constant(self.numbers(*(1 if self.chance() else n for n in cut)))
        made = np.broadcast_shapes(shape, self.shapes.get(other, ()))
        names = [other, x] if self.chance() else [x, other]
        self.add(["Add", "Mul", "Sub"][self.axis(3)], " ".join(names), made)

    @staticmethod
    def broadcasts(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Return True if two shapes broadcast."""
        pairs = zip(shape[::-1], other[::-1], strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    def concat(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a concatenation with a value whose shape differs in one dimension only."""
        axis = self.axis(len(shape))
        rest = (shape[:axis], shape[axis + 1 :])
        fitting = [
            n for n, s in self.shapes.items() if (s[:axis], s[axis + 1 :]) == rest and len(s) == len(shape)
        ]
        other = fitting[self.axis(len(fitting))]
        size = shape[axis] + self.shapes[other][axis]
        self.add("Concat", f"{x} {other}", (*shape[:axis], size, *shape[axis + 1 :]), axis=axis)

    def reduce(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a reduction over one dimension."""
        axis, keep = self.axis(len(shape)), self.axis(2)
        if len(shape) > 2:
            made = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
            self.add(["ReduceMean", "ReduceMax"][self.axis(2)], x, made, axes=[axis], keepdims=keep)

    def slice(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a slice that drops the first element of a dimension or reverses it."""
        axis = self.axis(len(shape))
        if shape[axis] > 1:
            back = self.chance()
            spans = (-1, -100, axis, -1) if back else (1, 100, axis, 1)
            names = " ".join(self.constant(np.array([value])) for value in spans)
            self.add("Slice", f"{x} {names}", (*shape[:axis], shape[axis] - (not back), *shape[axis + 1 :]))

    def pad(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a padding of a few elements."""
        widths = np.array([self.axis(2) for _ in range(2 * len(shape))])
        made = tuple(
            n + a + b for n, a, b in zip(shape, widths[: len(shape)], widths[len(shape) :], strict=True)
        )
        self.add("Pad", f"{x} {self.constant(widths)}", made)

    def matmul(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a product with constants."""
        weights = self.constant(self.numbers(shape[-1], 4) / np.float32(math.sqrt(shape[-1])))
        self.add("MatMul", f"{x} {weights}", (*shape[:-1], 4))

    def softmax(self, x: str, shape: tuple[int, ...]) -> None:
        """Add a softmax along a random dimension."""
        self.add("Softmax", x, shape, axis=self.axis(len(shape)))


@st.composite
def models(draw: Draw[Any], most: int = 14, batch: int = 2) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a strategy for models of a few nodes with two outputs, each with its input."""
    source = RandomModel(draw, batch)
    for _ in range(draw(st.integers(1, most))):
        source.grow()
    if not source.nodes:
        source.unary("x", source.shapes["x"])
    names = list(source.shapes)
    outputs = dict.fromkeys((names[-1], names[(len(names) + 1) // 2]))
    return model(source.nodes, source.inputs, list(outputs), source.held), source.inputs
