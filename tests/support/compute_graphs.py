"""Random graphs of single operators: matrix products, reductions, norms, transposed convolutions, softmax, resizing."""

import math

import numpy as np

from compiler.ir.tensor import Quantization, Tensor
from tests.support.graphs import Draft

Shape = tuple[int, ...]


class RandomDraft(Draft):
    """A graph that is built from random choices.

    Parameters
    ----------
    seed : int
        Seed of all choices.
    """

    def __init__(self, seed: int):
        super().__init__(np.random.default_rng(seed))

    def size(self, most: int) -> int:
        """Return a random size from 1 to `most`; powers of two are more likely than other sizes."""
        if self.rng.random() < 0.3:
            return int(min(self.rng.choice((1, 2, 4, 8, 16, 32)), most))
        return int(self.rng.integers(1, most + 1))

    def dtype(self) -> str:
        """Return int8 or uint8."""
        return str(self.rng.choice(("int8", "uint8")))

    def same(self, x: Tensor) -> Tensor:
        """Return a copy of x, computed by a maximum over no axes, which keeps the tensor on the accelerator."""
        return self.node("reduce_max", [x], x.shape, like=x, dtype=x.dtype, axes=(), keep=True)

    def given(self, shape: Shape, dtype: str = "int8") -> Tensor:
        """Return an input of the graph or, at random, a copy of an input."""
        x = self.input(shape, dtype)
        return self.same(x) if self.rng.random() < 0.5 else x

    def last(self, y: Tensor) -> Tensor:
        """Return y or, at random, a copy of it."""
        return self.same(y) if self.rng.random() < 0.5 else y

    def floats(self, values: np.ndarray) -> Tensor:
        """Add a float32 constant."""
        self.count += 1
        return self.graph.add_tensor(
            Tensor(f"c{self.count}", values.shape, "float32", None, values.astype(np.float32))
        )


def scale_of(tensor: Tensor) -> float:
    """Return the scale of a tensor that has a single scale."""
    assert tensor.quantization is not None
    return tensor.quantization.scale[0]


def product(chance: RandomDraft) -> Tensor:
    """Add a batched matrix product with random transposes and broadcast leading dimensions."""
    rng = chance.rng
    m, k, n = (chance.size(40) for _ in range(3))
    lead = tuple(chance.size(3) for _ in range(rng.integers(0, 3)))
    shapes = [(*_some(rng, lead), m, k), (*_some(rng, lead), k, n)]
    a, b = (_turned(chance, shape, both=second) for shape, second in zip(shapes, (False, True), strict=True))
    shape, dtype = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n), chance.dtype()
    spread = scale_of(a) * scale_of(b) * 70 * 70 * math.sqrt(k)
    y = chance.node("matmul", [a, b], shape, scale=spread / rng.uniform(20, 90), dtype=dtype)
    if len(shape) > 2 and rng.random() < 0.5:
        perm = (*rng.permutation(len(shape) - 1).tolist(), len(shape) - 1)
        turned = tuple(shape[i] for i in perm)
        y = chance.node("transpose", [y], turned, like=y, dtype=dtype, perm=perm)
    return chance.last(y)


def _some(rng: np.random.Generator, lead: Shape) -> Shape:
    """Return leading dimensions that broadcast to `lead`."""
    return tuple(1 if rng.random() < 0.3 else size for size in lead)


def _turned(chance: RandomDraft, shape: Shape, *, both: bool) -> Tensor:
    """Return an operand of a matrix product, at random with a transpose that can be fused into the product."""
    rng, last, dtype = chance.rng, len(shape) - 1, chance.dtype()
    if rng.random() < 0.4:
        return chance.given(shape, dtype)
    perm = rng.permutation(last).tolist()
    # The innermost axis holds rows of the matrix; for the right operand it may also hold columns.
    perm.insert(int(rng.integers(last - 1, last + 1)) if both else last, last)
    source = [0] * len(shape)
    for index, axis in enumerate(perm):
        source[axis] = shape[index]
    x = chance.given(tuple(source), dtype)
    return chance.node("transpose", [x], shape, like=x, dtype=dtype, perm=tuple(perm))


def reduction(chance: RandomDraft) -> Tensor:
    """Add a reduction over random axes."""
    rng, dtype = chance.rng, chance.dtype()
    shape = (*(chance.size(12) for _ in range(rng.integers(0, 4))), chance.size(40))
    if len(shape) > 3:
        shape = (1 if rng.random() < 0.7 else shape[0], *shape[1:])
    count = int(rng.integers(1, len(shape) + 1))
    axes = tuple(sorted(rng.permutation(len(shape))[:count].tolist()))
    keep = bool(rng.random() < 0.5)
    out = tuple(1 if i in axes else size for i, size in enumerate(shape) if keep or i not in axes)
    op = str(rng.choice(("sum", "mean", "max", "min")))
    x = chance.given(shape, dtype)
    scale, like = scale_of(x) * rng.uniform(0.3, 3), None
    if op == "sum":
        scale *= math.sqrt(math.prod(shape[i] for i in axes))
    elif rng.random() < 0.5:
        like = x
    return chance.last(
        chance.node(f"reduce_{op}", [x], out, like=like, scale=scale, dtype=dtype, axes=axes, keep=keep)
    )


def norm(chance: RandomDraft) -> Tensor:
    """Add a layer or RMS normalization of rows."""
    rng = chance.rng
    shape = (*(chance.size(6) for _ in range(rng.integers(1, 3))), chance.size(200) + 1)
    op = str(rng.choice(("layer_norm", "rms_norm")))
    x = chance.given(shape, chance.dtype())
    gamma = rng.normal(1, 0.4, shape[-1]) * 10 ** rng.uniform(-1, 1)
    rows = [gamma, rng.normal(0, gamma.std(), shape[-1])][: 1 + (op == "layer_norm")]
    rows = [chance.floats(row) for row in rows[: rng.integers(0, len(rows) + 1)]]
    widest = (np.abs(gamma).max() if rows else 1) * rng.uniform(1, 4)
    epsilon = float(10 ** rng.uniform(-12, -2))
    return chance.last(
        chance.node(op, [x, *rows], shape, scale=widest / 127, axis=len(shape) - 1, epsilon=epsilon)
    )


def average(chance: RandomDraft) -> Tensor:
    """Add an average over an entire image of at least 256 pixels."""
    h, w = (int(chance.rng.integers(16, 33)) for _ in range(2))
    x = chance.given((1, h, w, chance.size(40)))
    return chance.last(
        chance.node(
            "avg_pool2d",
            [x],
            (1, 1, 1, x.shape[3]),
            like=x,
            kernel=(h, w),
            strides=(1, 1),
            pads=(0, 0, 0, 0),
            count_pads=False,
        )
    )


def transposed(chance: RandomDraft) -> Tensor:
    """Add a transposed convolution, at random followed by a clip."""
    rng = chance.rng
    groups = int(rng.choice((1, 1, 1, 2, 3)))
    in_c, out_c = chance.size(20), groups * chance.size(12)
    x = chance.given((1, chance.size(8), chance.size(8), in_c * groups), chance.dtype())
    kernel, strides, dilations = (tuple(rng.integers(1, most, 2).tolist()) for most in (5, 4, 3))
    extra = tuple(int(rng.integers(0, stride)) for stride in strides)
    whole = [
        (size - 1) * stride + (k - 1) * dilation + 1 + more
        for size, stride, k, dilation, more in zip(
            x.shape[1:3], strides, kernel, dilations, extra, strict=True
        )
    ]
    pads = tuple(int(rng.integers(0, min(3, (size + 1) // 2))) for size in (*whole, *whole))
    operands = [x, _weights(chance, (out_c, *kernel, in_c))]
    if rng.random() < 0.7:
        operands.append(chance.constant((out_c,), "int32", Quantization.per_tensor(1)))
    taps = math.prod(kernel) / math.prod(strides) * in_c
    step = scale_of(x) * 0.01 * 70 * 80 * math.sqrt(max(taps, 1)) / rng.uniform(20, 90)
    shape = (1, whole[0] - pads[0] - pads[2], whole[1] - pads[1] - pads[3], out_c)
    y = chance.node(
        "conv_transpose2d",
        operands,
        shape,
        scale=step,
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=groups,
        output_pads=extra,
    )
    if rng.random() < 0.3:
        y = chance.node("clip", [y], shape, like=y, low=0.0, high=6.0)
    return chance.last(y)


def _weights(chance: RandomDraft, shape: Shape) -> Tensor:
    """Return weights with a scale for each output channel and no zero point."""
    scales = tuple(float(np.float32(s)) for s in chance.rng.uniform(0.001, 0.02, shape[0]))
    return chance.constant(shape, quantization=Quantization(scales, (0,) * shape[0], 0))


def grouped(chance: RandomDraft) -> Tensor:
    """Add a convolution with two or three groups of many channels."""
    groups, in_c, out_c = int(chance.rng.integers(2, 4)), chance.size(40), chance.size(12)
    x = chance.given((1, 5, 6, groups * in_c))
    weights = _weights(chance, (groups * out_c, 3, 2, in_c))
    step = scale_of(x) * 0.01 * 70 * 80 * math.sqrt(6 * in_c) / 60
    return chance.last(
        chance.node(
            "conv2d",
            [x, weights],
            (1, 5, 5, groups * out_c),
            scale=step,
            strides=(1, 1),
            pads=(1, 0, 1, 0),
            dilations=(1, 1),
            groups=groups,
        )
    )


def softmax(chance: RandomDraft) -> Tensor:
    """Add a softmax along a random dimension."""
    rng = chance.rng
    shape = tuple(chance.size(20) for _ in range(rng.integers(1, 4)))
    if rng.random() < 0.5:
        shape = (*(1,) * (4 - len(shape)), *shape)
    x = chance.given(shape, chance.dtype())
    chance.count += 1
    y = Tensor(f"t{chance.count}", shape, "int8", Quantization.per_tensor(1 / 256, -128))
    return chance.into(
        "softmax", [x], y, axis=int(rng.integers(0, len(shape))), beta=float(rng.uniform(0.5, 2))
    )


def cumulated(chance: RandomDraft) -> Tensor:
    """Add a cumulative sum along a random dimension."""
    rng = chance.rng
    shape = tuple(chance.size(40) for _ in range(int(rng.integers(1, 4))))
    x, axis = chance.given(shape, chance.dtype()), int(rng.integers(len(shape)))
    step = scale_of(x) * 70 * math.sqrt(shape[axis]) / 60
    exclusive, reverse = (bool(rng.integers(2)) for _ in range(2))
    sums = chance.node(
        "cumsum", [x], shape, scale=step, dtype=x.dtype, axis=axis, exclusive=exclusive, reverse=reverse
    )
    return chance.last(sums)


def sloped(chance: RandomDraft) -> Tensor:
    """Add a PReLU with a single slope, or slopes per channel, per row and channel, or per element."""
    rng = chance.rng
    shape = (1, chance.size(9), chance.size(9), chance.size(80))
    x = chance.given(shape, chance.dtype())
    slopes = chance.constant(
        [(shape[3],), (1,), shape, (shape[1], 1, shape[3])][rng.integers(4)], chance.dtype()
    )
    scale = float(scale_of(x) * rng.uniform(0.3, 3))
    return chance.last(chance.node("prelu", [x, slopes], shape, scale=scale, dtype=chance.dtype()))


def bilinear(chance: RandomDraft) -> Tensor:
    """Add a bilinear resizing: of int8 to any size, of uint8 by powers of two."""
    rng, dtype = chance.rng, chance.dtype()
    shape = (chance.size(2), chance.size(12), chance.size(12), chance.size(40))
    corners, centers = ((True, False), (False, True), (False, False))[rng.integers(3)]
    size = []
    for total in shape[1:3]:
        factor = int(rng.choice((1, 2, 4, 8)))
        larger = (total - 1) * factor + 1 if corners else total * factor
        others = (larger, max(total // 2, 1), chance.size(20)) if dtype == "int8" else (larger,)
        size.append(int(rng.choice(others)))
    x = chance.given(shape, dtype)
    how = {"size": tuple(size), "corners": corners, "centers": centers}
    made = (shape[0], *size, shape[3])
    return chance.last(chance.node("resize_bilinear", [x], made, like=x, dtype=dtype, **how))


#: Function that adds a layer, and largest permitted difference of the result, for each kind of layer.
KINDS = {
    "product": (product, 0),
    "reduction": (reduction, 0),
    "average": (average, 0),
    "norm": (norm, 1),
    "transposed": (transposed, 0),
    "grouped": (grouped, 0),
    "softmax": (softmax, 1),
    "cumulated": (cumulated, 0),
    "sloped": (sloped, 0),
    "bilinear": (bilinear, 0),
}
