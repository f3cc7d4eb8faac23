"""Random single layers with one dimension from 1 to 100,000, and their comparison with the host's operators."""

import math
from collections.abc import Callable

import numpy as np

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from tests.support.graphs import Draft, run_on

Shape = tuple[int, ...]
#: Largest value of the long dimension.
LONGEST = 100_000
#: Limits on the elements of a tensor and on the multiply-accumulates of a layer, for the time of the reference.
_ELEMENTS, _MACS = 2_000_000, 150_000_000
#: Standard deviation of uniform bytes.
_SPREAD = 74.0


class SizedDraft(Draft):
    """A graph with one layer, built from random choices.

    Parameters
    ----------
    seed : tuple of int
        Seed of all choices.
    """

    def __init__(self, seed: tuple[int, ...]):
        super().__init__(np.random.default_rng(seed))
        #: Multiply-accumulates of the layer.
        self.macs = 0

    def long(self, most: int = LONGEST) -> int:
        """Return the size of the long dimension: log-uniform, up to `most`, or one of its ends."""
        if self.rng.random() < 0.15:
            return int(self.rng.choice((1, most)))
        return max(1, int(most ** self.rng.uniform(0.2, 1)))

    def some(self, *sizes: int) -> int:
        """Return one of some sizes."""
        return int(self.rng.choice(sizes))

    def fitting(self, sizes: tuple[int, ...], others: int, most: int) -> int:
        """Return one of some sizes whose product with `others` is at most `most`; the smallest if there is none."""
        return self.some(*([size for size in sizes if size * others <= most] or [min(sizes)]))

    def weighted(self, shape: Shape, axis: int, terms: int) -> tuple[Tensor, Tensor, float]:
        """Add weights with a scale per output channel, and a bias; return also the scale of a result."""
        channels = shape[axis]
        scales = self.rng.uniform(0.5, 1.5, channels).astype(np.float32) / 1000
        meaning = Quantization(tuple(scales.tolist()), (0,) * channels, axis)
        weights = self.constant(shape, quantization=meaning)
        assert weights.data is not None
        np.maximum(weights.data, -127, out=weights.data)
        bias = self.rng.integers(-1000, 1000, channels).astype(np.int32)
        self.count += 1
        added = self.graph.add_tensor(Tensor(f"c{self.count}", bias.shape, "int32", None, bias))
        return weights, added, _SPREAD**2 * math.sqrt(terms) / 1000 / 40


def _window(draft: SizedDraft, size: int, kernels: tuple[int, ...], *, dilated: bool = True):
    """Return kernel, stride, dilation, padding on both sides, and the outputs along one dimension."""
    rng = draft.rng
    kernel = draft.some(*[each for each in kernels if each <= size] or [1])
    stride = draft.some(1, 1, 2, 3) if kernel > 1 else draft.some(1, 1, 1, 2)
    dilation = 1
    if dilated and stride == 1 and kernel > 1 and rng.random() < 0.3:
        dilation = draft.some(2, 4, 8)
    reach = (kernel - 1) * dilation + 1
    if reach > size or rng.random() < 0.7:
        pads = ((reach - 1) // 2, reach // 2)
    else:
        pads = (0, 0)
    return kernel, stride, dilation, pads, (size + sum(pads) - reach) // stride + 1


def _image(draft: SizedDraft) -> tuple[int, int, int]:
    """Return height, width and channels of an image: one-dimensional, wide, high, or deep."""
    kind = draft.some(0, 0, 0, 1, 1, 2, 3)
    if kind == 3:
        c = draft.long()
        h, w = draft.fitting((1, 4, 14), c, _ELEMENTS), draft.fitting((1, 7, 14), c * 4, _ELEMENTS)
    else:
        w = draft.long() if kind < 2 else draft.some(1, 8, 64)
        h = (
            1
            if kind == 0
            else draft.fitting((2, 8, 64, 720), w, _ELEMENTS // 3)
            if kind == 1
            else draft.long()
        )
        c = draft.fitting((1, 2, 3, 8, 16, 32, 64, 80, 128), h * w, _ELEMENTS)
    return h, w, c


def convolution(draft: SizedDraft, *, depthwise: bool = False) -> Tensor:
    """Add an ordinary or a depthwise convolution."""
    h, w, c = _image(draft)
    kh, sh, dh, (top, bottom), oh = _window(draft, h, (1, 3, 3, 5))
    kw, sw, dw, (left, right), ow = _window(draft, w, (1, 3, 3, 5, 9, 15))
    x = draft.input((1, h, w, c))
    attributes = {"strides": (sh, sw), "dilations": (dh, dw), "pads": (top, left, bottom, right)}
    if depthwise:
        draft.macs = oh * ow * c * kh * kw
        weights, bias, scale = draft.weighted((kh, kw, c), 2, kh * kw)
        return draft.node(
            "depthwise_conv2d", [x, weights, bias], (1, oh, ow, c), scale=scale * _scale(x), **attributes
        )
    o = draft.fitting((1, 2, 8, 16, 32, 64, 128), oh * ow * kh * kw * c, _MACS)
    o = min(o, draft.fitting((1, 2, 8, 16, 32, 64, 128), oh * ow, _ELEMENTS))
    draft.macs = oh * ow * o * c * kh * kw
    weights, bias, scale = draft.weighted((o, kh, kw, c), 0, kh * kw * c)
    scale *= _scale(x)
    return draft.node("conv2d", [x, weights, bias], (1, oh, ow, o), scale=scale, **attributes, groups=1)


def depthwise(draft: SizedDraft) -> Tensor:
    """Add a depthwise convolution."""
    return convolution(draft, depthwise=True)


def transposed(draft: SizedDraft) -> Tensor:
    """Add a transposed convolution."""
    w, h = draft.long(LONGEST // 2), draft.some(1, 1, 4)
    c = draft.fitting((1, 3, 8, 32, 64), h * w * 2, _ELEMENTS)
    stride, kernel = draft.some(1, 2, 2, 4), draft.some(2, 3, 4, 8)
    high = 1 if h == 1 else 3
    cut = draft.some(0, 1) * max(kernel - stride, 0) // 2
    ow = max((w - 1) * stride + kernel - 2 * cut, 1)
    o = draft.fitting((1, 8, 16, 32), max(w * h * high * kernel * c, ow * h * 75), _MACS)
    draft.macs = w * h * high * kernel * c * o
    weights, bias, scale = draft.weighted((o, high, kernel, c), 0, high * kernel * c)
    x = draft.input((1, h, w, c))
    return draft.node(
        "conv_transpose2d",
        [x, weights, bias],
        (1, h, ow, o),
        scale=scale * _scale(x),
        strides=(1, stride),
        dilations=(1, 1),
        output_pads=(0, 0),
        pads=((high - 1) // 2, cut, (high - 1) // 2, cut),
        groups=1,
    )


def dense(draft: SizedDraft) -> Tensor:
    """Add a dense layer with many rows, inputs or outputs."""
    sizes = [draft.long(), draft.some(1, 16, 60, 256), draft.some(1, 10, 64, 200)]
    sizes = [int(size) for size in draft.rng.permutation(sizes)]
    while math.prod(sizes) > _MACS:
        sizes[int(np.argsort(sizes)[1])] //= 2
    m, k, n = sizes
    draft.macs = m * k * n
    weights, bias, scale = draft.weighted((n, k), 0, k)
    x = draft.input((m, k))
    return draft.node("dense", [x, weights, bias], (m, n), scale=scale * _scale(x))


def product(draft: SizedDraft) -> Tensor:
    """Add a product of two matrices that are not constant."""
    sizes = [draft.long(), draft.some(1, 16, 60, 256), draft.some(1, 10, 64, 200)]
    m, k, n = (int(size) for size in draft.rng.permutation(sizes))
    draft.macs = m * k * n
    a, b = draft.input((1, m, k)), draft.input((1, k, n))
    scale = _scale(a) * _scale(b) * _SPREAD**2 * math.sqrt(k) / 40
    return draft.node("matmul", [a, b], (1, m, n), scale=scale)


def pool(draft: SizedDraft) -> Tensor:
    """Add a maximum or average over windows, which may be large."""
    h, w, c = _image(draft)
    kh, sh, _, (top, bottom), oh = _window(draft, h, (1, 2, 3), dilated=False)
    kw, sw, _, (left, right), ow = _window(draft, w, (2, 3, 8, 40), dilated=False)
    x = draft.input((1, h, w, c))
    op = str(draft.rng.choice(("max_pool2d", "avg_pool2d")))
    window: dict[str, object] = {"kernel": (kh, kw), "strides": (sh, sw), "pads": (top, left, bottom, right)}
    if op == "avg_pool2d":
        window["count_pads"] = False
    return draft.into(op, [x], Tensor("y", (1, oh, ow, c), "int8", x.quantization), **window)


def reduction(draft: SizedDraft) -> Tensor:
    """Add a reduction over an axis; either the reduced axis or a remaining axis is long."""
    size = draft.long()
    others = [draft.fitting((1, 3, 16, 40), size * 4, _ELEMENTS), draft.some(1, 2, 4)]
    shape = tuple(int(each) for each in draft.rng.permutation([size, *others]))
    axis = int(np.argmax(shape)) if draft.rng.random() < 0.7 else int(draft.rng.integers(3))
    out = tuple(each for i, each in enumerate(shape) if i != axis)
    op = str(draft.rng.choice(("sum", "mean", "max")))
    x = draft.input(shape)
    scale = _scale(x) * (math.sqrt(shape[axis]) if op == "sum" else 1)
    like = x if op == "max" else None
    return draft.node(f"reduce_{op}", [x], out, like=like, scale=scale, axes=(axis,), keep=False)


def softmax(draft: SizedDraft) -> Tensor:
    """Add a softmax over the last axis."""
    shape = _rows(draft)
    x = draft.input(shape)
    return draft.into(
        "softmax",
        [x],
        Tensor("y", shape, "int8", Quantization.per_tensor(1 / 256, -128)),
        axis=len(shape) - 1,
        beta=1.0,
    )


def normalization(draft: SizedDraft) -> Tensor:
    """Add a layer or root-mean-square normalization over the last axis."""
    shape = _rows(draft)
    op = str(draft.rng.choice(("layer_norm", "layer_norm", "rms_norm")))
    gamma = draft.rng.normal(1, 0.4, shape[-1])
    rows = []
    for row in (gamma, draft.rng.normal(0, 0.4, shape[-1]))[: 1 + (op == "layer_norm")]:
        draft.count += 1
        tensor = Tensor(f"c{draft.count}", row.shape, "float32", None, row.astype(np.float32))
        rows.append(draft.graph.add_tensor(tensor))
    x, scale = draft.input(shape), float(np.abs(gamma).max() * 3 / 127)
    return draft.node(op, [x, *rows], shape, scale=scale, axis=len(shape) - 1, epsilon=1e-5)


def _rows(draft: SizedDraft) -> Shape:
    size = draft.long()
    other = draft.fitting((1, 1, 4, 77), size, _ELEMENTS)
    return (other, size) if draft.rng.random() < 0.8 else (size, draft.some(2, 10, 40))


def elementwise(draft: SizedDraft) -> Tensor:
    """Add a sum, a product, a function of single elements, or a slope per channel."""
    shape = _image(draft)
    op = str(draft.rng.choice(("add", "mul", "sub", "sigmoid", "tanh", "requantize")))
    x = draft.input((1, *shape))
    inputs = [x, draft.input((1, *shape))] if op in ("add", "mul", "sub") else [x]
    if len(inputs) == 2 and draft.rng.random() < 0.3:
        inputs[1] = draft.constant((shape[2],))
    scale = {"mul": 3.0, "sigmoid": 1 / 256, "tanh": 1 / 128}.get(op, 0.2)
    return draft.node(op, inputs, (1, *shape), scale=scale)


def move(draft: SizedDraft) -> Tensor:
    """Add a transpose, concatenation, padding, enlargement or gather."""
    op = str(draft.rng.choice(("transpose", "concat", "pad", "resize_nearest", "gather", "slice")))
    h, w, c = _image(draft)
    while h * w * c > _ELEMENTS // 4:
        h, w, c = (-(-size // 2) if size == max(h, w, c) and size < 1000 else size for size in (h, w, c))
        if max(h, w, c) >= 1000:
            h, w, c = (size if size == max(h, w, c) else -(-size // 2) for size in (h, w, c))
        if h * w * c == max(h, w, c):
            break
    shape = (1, h, w, c)
    x = draft.input(shape)
    if op == "transpose":
        perm = tuple(int(i) for i in draft.rng.permutation(4))
        return draft.node(op, [x], tuple(shape[i] for i in perm), like=x, perm=perm)
    if op == "concat":
        axis = draft.some(1, 2, 3)
        x = draft.node("requantize", [x], shape, scale=0.1)
        other = draft.node("requantize", [draft.input(shape)], shape, like=x)
        made = tuple(2 * size if i == axis else size for i, size in enumerate(shape))
        return draft.node(op, [x, other], made, like=x, axis=axis)
    if op == "pad":
        pads = tuple(
            (int(draft.rng.integers(3)), int(draft.rng.integers(3))) if i else (0, 0) for i in range(4)
        )
        made = tuple(size + sum(pad) for size, pad in zip(shape, pads, strict=True))
        return draft.node(op, [x], made, like=x, pads=pads, value=0.0)
    if op == "resize_nearest":
        rows, columns = draft.some(1, 2), draft.some(1, 2, 3)
        made = h * rows, w * columns
        return draft.node(op, [x], (1, *made, c), like=x, size=made, centers=True)
    if op == "slice":
        starts = tuple(int(draft.rng.integers(size)) for size in shape)
        sizes = tuple(
            int(draft.rng.integers(1, size - first + 1)) for size, first in zip(shape, starts, strict=True)
        )
        steps = (1, 1, 1, 1)
        return draft.node(op, [x], sizes, like=x, starts=starts, sizes=sizes, steps=steps)
    axis = draft.some(1, 2, 3)
    count = min(shape[axis], 200)
    data = draft.rng.integers(shape[axis], size=count).astype(np.int64)
    indices = draft.graph.add_tensor(Tensor("indices", (count,), "int64", None, data))
    made = tuple(count if i == axis else size for i, size in enumerate(shape))
    return draft.node(op, [x, indices], made, like=x, axis=axis)


#: Layers by name, and the largest difference from the host's operator.
KINDS: dict[str, tuple[Callable[[SizedDraft], Tensor], int]] = {
    "convolution": (convolution, 0),
    "depthwise": (depthwise, 0),
    "transposed": (transposed, 0),
    "dense": (dense, 0),
    "product": (product, 0),
    "pool": (pool, 0),
    "reduction": (reduction, 0),
    "softmax": (softmax, 1),
    "normalization": (normalization, 1),
    "elementwise": (elementwise, 0),
    "move": (move, 0),
}
#: Kinds whose cycles are compared with their limit.
FAST = ("convolution", "depthwise", "transposed", "dense", "product")


def _scale(tensor: Tensor) -> float:
    assert tensor.quantization is not None
    return tensor.quantization.scale[0]


def sized_layer(kind: str, seed: int) -> tuple[SizedDraft, Graph]:
    """Return a random graph with one layer of a kind."""
    draft = SizedDraft((list(KINDS).index(kind), seed))
    y = KINDS[kind][0](draft)
    return draft, draft.graph.finish([y.name])


def described(graph: Graph) -> str:
    """Return operator, shapes and attributes of a graph's last node."""
    node = list(graph)[-1]
    shapes = " ".join("x".join(map(str, tensor.shape)) for tensor in graph.ins(node))
    attributes = {name: value for name, value in node.attributes.items() if len(str(value)) < 40}
    return f"{node.op} {shapes} -> {'x'.join(map(str, graph.out(node).shape))} {attributes}"


def limit_cycles(draft: SizedDraft, n: int = 16) -> float:
    """Return the larger of MACs divided by the array's rate and bytes moved once divided by the bus width."""
    sizes = {"int8": 1, "int32": 4, "float32": 4, "int64": 8}
    graph = draft.graph
    outside = {*graph.inputs, *graph.outputs} | {t.name for t in graph.tensors.values() if t.constant}
    moved = sum(graph.tensors[name].elements * sizes[graph.tensors[name].dtype] for name in outside)
    return max(draft.macs / n**2, moved / n)


def check_exact(kind: str, draft: SizedDraft, network: CompiledNetwork) -> None:
    """Run a network on the golden model and compare its outputs with those of the host's operators."""
    graph, inputs = draft.graph, draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    wanted = evaluate(graph, inputs, rounding=network.rounding)  # type: ignore[arg-type]
    for name, array in wanted.items():
        off = np.abs(found[name].astype(int) - array.astype(int))
        assert off.max() <= KINDS[kind][1], f"{off.max()} off in {np.count_nonzero(off)}: {described(graph)}"


def compiled(graph: Graph, target: str = "n16") -> CompiledNetwork:
    """Compile a graph without the cache."""
    return compile(graph, target, cache=False)
