"""Random graphs of one operator each: products of activations, reductions, norms, transposed convolutions, softmax."""

import math

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor

Attributes = dict[str, object]


class Maker:
    """A graph under construction, and a source of randomness.

    Parameters
    ----------
    seed : int
        Of the source.
    """

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"seed {seed}")

    def size(self, most: int) -> int:
        """1..most, small ones and multiples of lanes more often than by chance."""
        if self.rng.random() < 0.3:
            return int(min(self.rng.choice((1, 2, 4, 8, 16, 32)), most))
        return int(self.rng.integers(1, most + 1))

    def tensor(
        self, name: str, shape: tuple[int, ...], scale: float | None = None, *, dtype: str = "int8",
        zero: int | None = None, given: bool = False,
    ) -> str:  # fmt: skip
        """A tensor of random quantization unless it is given; with `given` one that the user supplies."""
        limits = np.iinfo(dtype)
        if scale is None:
            scale = float(np.exp(self.rng.uniform(np.log(0.005), np.log(0.2))))
        if zero is None:
            zero = int(self.rng.integers(limits.min, limits.max + 1))
        made = Tensor(name, shape, dtype, Quantization.of(scale, zero))
        (self.graph.add_input if given else self.graph.add_tensor)(made)
        return name

    def constant(self, name: str, data: np.ndarray, quantization: Quantization | None = None) -> str:
        """A tensor with contents."""
        self.graph.add_tensor(Tensor(name, data.shape, data.dtype.name, quantization, data))
        return name

    def node(self, op: str, inputs: tuple[str, ...], output: str, **attributes: object) -> str:
        """A node named after its output."""
        self.graph.add_node(Node(f"make {output}", op, inputs, (output,), attributes))
        return output

    def same(self, name: str, source: str) -> str:
        """A copy of a tensor, made by a maximum over no axes: what it makes may stay on the machine."""
        before = self.graph.tensors[source]
        self.graph.add_tensor(Tensor(name, before.shape, before.dtype, before.quantization))
        return self.node("reduce_max", (source,), name, axes=(), keep=True)

    def given(self, name: str, shape: tuple[int, ...], dtype: str = "int8") -> str:
        """An input, or a copy of one."""
        if self.rng.random() < 0.5:
            return self.tensor(name, shape, dtype=dtype, given=True)
        return self.same(name, self.tensor(f"{name} given", shape, dtype=dtype, given=True))

    def finish(self, name: str) -> Graph:
        """The graph, whose output is a tensor or a copy of it."""
        if self.rng.random() < 0.5:
            name = self.same("last", name)
        return self.graph.finish([name])


def product(maker: Maker) -> Graph:
    """A product of two stacks, with transposes and repeated leading dimensions."""
    rng = maker.rng
    m, k, n = (maker.size(40) for _ in range(3))
    lead = tuple(maker.size(3) for _ in range(rng.integers(0, 3)))
    shapes = [(*_some(rng, lead), m, k), (*_some(rng, lead), k, n)]
    dtypes = [str(rng.choice(("int8", "uint8"))) for _ in range(3)]
    names = []
    for name, shape, dtype in zip("ab", shapes, dtypes, strict=False):
        names.append(_turned(maker, name, shape, dtype, both=name == "b"))
    scales = [_scale(maker, name) for name in names]
    spread = scales[0] * scales[1] * 70 * 70 * math.sqrt(k)
    shape = (*np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2]), m, n)
    y = maker.tensor("y", shape, spread / rng.uniform(20, 90), dtype=dtypes[2])
    maker.node("matmul", tuple(names), y)
    if len(shape) > 2 and rng.random() < 0.5:
        perm = (*rng.permutation(len(shape) - 1).tolist(), len(shape) - 1)
        z = maker.tensor(
            "z", tuple(shape[i] for i in perm), _scale(maker, y), dtype=dtypes[2], zero=_zero(maker, y)
        )
        y = maker.node("transpose", (y,), z, perm=perm)
    return maker.finish(y)


def _some(rng: np.random.Generator, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Leading dimensions that broadcast to `lead`."""
    return tuple(1 if rng.random() < 0.3 else size for size in lead)


def _turned(maker: Maker, name: str, shape: tuple[int, ...], dtype: str, *, both: bool) -> str:
    """An input of that shape, perhaps by way of a transpose that the product can read through."""
    rng, last = maker.rng, len(shape) - 1
    if rng.random() < 0.4:
        return maker.given(name, shape, dtype)
    perm = rng.permutation(last).tolist()
    if both:  # what lies last in memory is a row or a column of the matrix
        place = int(rng.integers(last - 1, last + 1))
        perm.insert(place, last)
    else:
        perm.append(last)
    source = [0] * len(shape)
    for index, axis in enumerate(perm):
        source[axis] = shape[index]
    first = maker.given(f"{name} turned", tuple(source), dtype)
    maker.tensor(name, shape, _scale(maker, first), dtype=dtype, zero=_zero(maker, first))
    return maker.node("transpose", (first,), name, perm=tuple(perm))


def _scale(maker: Maker, name: str) -> float:
    q = maker.graph.tensors[name].quantization
    assert q is not None
    return q.scale[0]


def _zero(maker: Maker, name: str) -> int:
    q = maker.graph.tensors[name].quantization
    assert q is not None
    return q.zero_point[0]


def reduction(maker: Maker) -> Graph:
    """A reduction over any axes."""
    rng = maker.rng
    shape = tuple(maker.size(12) for _ in range(rng.integers(1, 4))) + (maker.size(40),)
    if len(shape) > 3:
        shape = (1 if rng.random() < 0.7 else shape[0], *shape[1:])
    count = int(rng.integers(1, len(shape) + 1))
    axes = tuple(sorted(rng.permutation(len(shape))[:count].tolist()))
    keep = bool(rng.random() < 0.5)
    out = tuple(1 if i in axes else size for i, size in enumerate(shape) if keep or i not in axes)
    op = str(rng.choice(("sum", "mean", "max", "min")))
    dtype = str(rng.choice(("int8", "uint8")))
    x = maker.given("x", shape, dtype)
    scale, zero = _scale(maker, x), _zero(maker, x)
    if op == "sum":
        scale *= math.sqrt(math.prod(shape[i] for i in axes)) * rng.uniform(1, 3)
        zero = None
    elif rng.random() < 0.5:
        scale, zero = scale * rng.uniform(0.3, 3), None
    y = maker.tensor("y", out, scale, dtype=dtype, zero=zero)
    maker.node(f"reduce_{op}", (x,), y, axes=axes, keep=keep)
    return maker.finish(y)


def norm(maker: Maker) -> Graph:
    """A normalization of rows, some of which are nearly constant."""
    rng = maker.rng
    shape = (*(maker.size(6) for _ in range(rng.integers(1, 3))), maker.size(200) + 1)
    columns = shape[-1]
    op = str(rng.choice(("layer_norm", "rms_norm")))
    x = maker.given("x", shape, str(rng.choice(("int8", "uint8"))))
    gamma = rng.normal(1, 0.4, columns) * 10 ** rng.uniform(-1, 1)
    rows = [gamma, rng.normal(0, 1, columns) * gamma.std()][: 1 + (op == "layer_norm")]
    names = [
        maker.constant(name, row.astype(np.float32))
        for name, row in zip(("gamma", "beta"), rows[: rng.integers(0, len(rows) + 1)], strict=False)
    ]
    widest = (np.abs(gamma).max() if names else 1) * rng.uniform(1, 4)
    y = maker.tensor("y", shape, widest / 127, zero=int(rng.integers(-40, 40)))
    maker.node(op, (x, *names), y, axis=len(shape) - 1, epsilon=float(10 ** rng.uniform(-12, -2)))
    return maker.finish(y)


def average(maker: Maker) -> Graph:
    """An average over a whole image of many pixels."""
    h, w = (int(maker.rng.integers(16, 33)) for _ in range(2))
    x = maker.given("x", (1, h, w, maker.size(40)))
    before = maker.graph.tensors[x]
    y = maker.tensor("y", (1, 1, 1, before.shape[3]), _scale(maker, x), zero=_zero(maker, x))
    maker.node(
        "avg_pool2d", (x,), y, kernel=(h, w), strides=(1, 1), pads=(0, 0, 0, 0), count_pads=False
    )  # fmt: skip
    return maker.finish(y)


def transposed(maker: Maker) -> Graph:
    """A transposed convolution, with a clip behind it or not."""
    rng = maker.rng
    groups = int(rng.choice((1, 1, 1, 2, 3)))
    in_c, out_c = maker.size(20), groups * maker.size(12)
    x = maker.given("x", (1, maker.size(8), maker.size(8), in_c * groups), str(rng.choice(("int8", "uint8"))))
    sizes = maker.graph.tensors[x].shape[1:3]
    kernel, strides, dilations = (tuple(int(v) for v in rng.integers(1, most, 2)) for most in (5, 4, 3))
    extra = tuple(int(rng.integers(0, stride)) for stride in strides)
    whole = [
        (size - 1) * stride + (k - 1) * dilation + 1 + more
        for size, stride, k, dilation, more in zip(sizes, strides, kernel, dilations, extra, strict=True)
    ]
    pads = [int(rng.integers(0, min(3, (size + 1) // 2))) for size in (*whole, *whole)]
    weights = rng.integers(-127, 128, (out_c, *kernel, in_c)).astype(np.int8)
    scales = tuple(float(np.float32(s)) for s in rng.uniform(0.001, 0.02, out_c))
    names = [x, maker.constant("w", weights, Quantization(scales, (0,) * out_c, 0))]
    if rng.random() < 0.7:
        names.append(maker.constant("b", rng.integers(-9999, 9999, out_c).astype(np.int32)))
    taps = math.prod(kernel) / math.prod(strides) * in_c
    step = _scale(maker, x) * 0.01 * 70 * 80 * math.sqrt(max(taps, 1)) / rng.uniform(20, 90)
    shape = (1, whole[0] - pads[0] - pads[2], whole[1] - pads[1] - pads[3], out_c)
    y = maker.tensor("y", shape, step)
    maker.node(
        "conv_transpose2d", tuple(names), y, strides=strides, pads=tuple(pads), dilations=dilations,
        groups=groups, output_pads=extra,
    )  # fmt: skip
    if rng.random() < 0.3:
        maker.tensor("clipped", shape, step, zero=_zero(maker, y))
        y = maker.node("clip", (y,), "clipped", low=0.0, high=6.0)
    return maker.finish(y)
