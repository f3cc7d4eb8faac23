"""Random graphs that are built node by node; the host's operators give the expected outputs."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import run_node
from tests.support.graphs import Draft

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]
Shape = tuple[int, ...]

#: Maximum number of elements of a tensor, which the golden model computes in a few milliseconds.
MOST = 6000
#: Default fraction of the elements that may differ, for operators with inexact results.
SHARE = 0.02
#: Quantization of softmax outputs in all frameworks.
PROBABILITY = Quantization.per_tensor(1 / 256, -128)


class GraphBuilder(Draft):
    """A random graph of quantized tensors under construction.

    Parameters
    ----------
    draw : callable
        Hypothesis' source of choices.
    rounding : str
        Rounding mode of the values.
    batch : int
        First dimension of the images.

    Attributes
    ----------
    values : dict
        The host's value of each tensor, including constants and inputs.
    bounds : dict
        Permitted difference and permitted fraction of differing elements, for tensors that may be inexact.
    """

    def __init__(self, draw: Draw[Any], rounding: str, batch: int = 1):
        super().__init__(np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
        self.draw, self.rounding, self.batch = draw, rounding, batch
        self.values: dict[str, np.ndarray] = {}
        self.bounds: dict[str, tuple[int, float]] = {}
        self.live: list[Tensor] = []

    def choose(self, options: Sequence[T]) -> T:
        """Choose one of several options; shrinking prefers the first."""
        return self.draw(st.sampled_from(options))

    def whole(self, least: int, most: int) -> int:
        """Choose an integer; shrinking prefers the smallest."""
        return self.draw(st.integers(least, most))

    def chance(self) -> bool:
        """Choose a bool; shrinking prefers False."""
        return self.draw(st.booleans())

    def size(self, most: int) -> int:
        """Choose a size from 1 to `most`, often one that fills the lanes exactly or exceeds them by one."""
        return min(self.choose((self.whole(1, most), 8, 16, 17)), most)

    def dtype(self) -> str:
        """Choose int8 (mostly) or uint8."""
        return self.choose(("int8", "int8", "int8", "uint8"))

    def scale(self) -> float:
        """Choose an arbitrary scale or a power of two, which produces ties."""
        return self.choose((0.0371, 0.0625, float(self.rng.uniform(0.004, 0.2))))

    def given(self, shape: Shape) -> Tensor:
        """Add an input with random values."""
        x = self.input(shape, self.dtype())
        limits = np.iinfo(x.dtype)
        self.values[x.name] = self.rng.integers(limits.min, limits.max + 1, shape).astype(x.dtype)
        self.live.append(x)
        return x

    def any(self, fits: Callable[[Tensor], bool], shape: Callable[[], Shape]) -> Tensor:
        """Choose a tensor for which `fits` is True, preferably a recent one, or add an input of the given shape."""
        fitting = [tensor for tensor in reversed(self.live) if fits(tensor)]
        if not fitting or self.draw(st.integers(0, 7)) == 7:
            return self.given(shape())
        return fitting[min(self.choose((0, 0, 0, 1, 2)), len(fitting) - 1)]

    def image(self) -> Tensor:
        """Choose an image (or batch of images), reshape another tensor to one, or add an input."""
        return self._of_rank(4, lambda: (self.batch, self.size(9), self.size(9), self.size(20)))

    def line(self) -> Tensor:
        """Choose a multi-channel signal (or batch), reshape another tensor to one, or add an input."""
        return self._of_rank(3, lambda: (self.batch, self.size(30), self.size(20)))

    def _of_rank(self, rank: int, shape: Callable[[], Shape]) -> Tensor:
        def fits(t: Tensor) -> bool:
            return len(t.shape) == rank and t.shape[0] == self.batch

        others = [t for t in reversed(self.live) if t.elements % self.batch == 0 and t.elements > 1]
        if others and (not any(map(fits, self.live)) or self.chance()):
            x = others[0]
            inner, left = [], x.elements // self.batch
            for _ in range(rank - 2):
                inner.append(self.choose([k for k in (4, 7, 8, 16, 3, 2, 1) if left % k == 0]))
                left //= inner[-1]
            made = (self.batch, *inner, left)
            return self.made("reshape", [x], made, like=x, shape=made)
        return self.any(fits, shape)

    def rows(self) -> Tensor:
        """Choose a tensor of any shape except a scalar."""
        return self.any(lambda t: len(t.shape) > 0, self.any_shape)

    def any_shape(self) -> Shape:
        """Choose a shape of one to four dimensions."""
        rank = self.whole(1, 4)
        return tuple(self.size(most) for most in ((60,), (9, 40), (3, 9, 20), (2, 7, 7, 12))[rank - 1])

    def made(
        self,
        op: str,
        inputs: list[Tensor],
        shape: Shape,
        /,
        *,
        like: Tensor | None = None,
        q: Quantization | None = None,
        within: int = 0,
        share: float = SHARE,
        **attributes: object,
    ) -> Tensor:
        """Add a node and compute the value of its output.

        The output has the quantization of `like`, the quantization `q`, or one that suits its floating-point values.
        On the accelerator at most a `share` of the elements may differ, by at most `within`.
        """
        self.count += 1
        name, dtype = f"t{self.count}", like.dtype if like else "int8" if q else self.dtype()
        meaning = like.quantization if like else q or self._suiting(op, inputs, shape, dtype, attributes)
        out = self.into(op, inputs, Tensor(name, shape, dtype, meaning), **attributes)
        self.values[name] = self._value(self.graph, f"make {name}", inputs)
        if within:
            self.bounds[name] = within, share
        self.live.append(out)
        return out

    def held(self, data: np.ndarray, meaning: Quantization | None) -> Tensor:
        """Add a constant."""
        self.count += 1
        tensor = Tensor(f"c{self.count}", data.shape, data.dtype.name, meaning, data)
        return self.graph.add_tensor(tensor)

    def _value(self, graph: Graph, node: str, inputs: Sequence[Tensor]) -> np.ndarray:
        operands = [self.values[t.name] if t.data is None else t.data for t in inputs]
        (result,) = run_node(graph, graph.nodes[node], operands, rounding=self.rounding)  # type: ignore[arg-type]
        return result

    def _suiting(
        self, op: str, inputs: list[Tensor], shape: Shape, dtype: str, attributes: dict[str, Any]
    ) -> Quantization:
        """Return a quantization that covers most of the floating-point values, or a slightly larger range."""
        small = Graph("real")
        for tensor in {t.name: t for t in inputs}.values():
            small.add_tensor(tensor)
            if tensor.data is None:
                small.inputs.append(tensor.name)
        small.add_tensor(Tensor("y", shape, "float32"))
        op = "dequantize" if op == "requantize" else op
        small.add_node(Node("y", op, tuple(t.name for t in inputs), ("y",), attributes))
        real = self._value(small, "y", inputs)
        known = real[~np.isnan(real)]  # NaN: logarithms and roots of negative values
        ends = [known.min(initial=0.0), known.max(initial=0.0)]
        low, high = (float(v) for v in np.clip(ends, [-1e4, 1e-3], [0.0, 1e4]))
        step = (high - low) / 255 * float(self.rng.uniform(0.6, 1.4))
        if self.chance():
            step = 2.0 ** round(math.log2(step))
        if op == "hard_swish":  # LiteRT's kernel accepts no smaller step
            step = max(step, small.tensors[inputs[0].name].quantization.scale[0] / 100)  # type: ignore[union-attr]
        limits = np.iinfo(dtype)
        zero = limits.min - low / step + self.rng.integers(-20, 21)
        return Quantization.per_tensor(step, int(np.clip(round(zero), limits.min, limits.max)))
