"""Random graphs of operators that move elements."""

import numpy as np

from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor

Arrays = dict[str, np.ndarray]
OPERATORS = (
    "transpose",
    "transpose",
    "concat",
    "concat",
    "slice",
    "slice",
    "pad",
    "gather",
    "resize_nearest",
    "requantize",
    "reshape",
    "max_pool2d",
    "conv2d",
)


class Maker:
    """Generator of a random graph.

    Parameters
    ----------
    rng : Generator
        Source of all random choices.
    dtype : str
        Element type of all tensors.
    """

    def __init__(self, rng: np.random.Generator, dtype: str = "int8"):
        self.rng, self.dtype, self.build = rng, dtype, GraphBuilder("moves")
        self.q = self.quantization()

    def quantization(self) -> Quantization:
        limits = np.iinfo(self.dtype)
        zero = 0 if self.dtype != "int8" and self.dtype != "uint8" else self.rng.integers(*_near(limits))
        return Quantization.per_tensor(float(self.rng.choice([0.0103, 0.0217, 0.0371, 0.25])), int(zero))

    def size(self, most: int = 20) -> int:
        return int(self.rng.integers(1, most + 1))

    def shape(self) -> tuple[int, ...]:
        rank = int(self.rng.integers(1, 6))
        if rank >= 4 and self.rng.random() < 0.8:
            return (1, self.size(9), self.size(9), self.size(40))
        return tuple(self.size((200, 60, 20, 8, 5)[rank - 1]) for _ in range(rank))

    def make(self, nodes: int) -> Graph:
        """Return a graph with the given number of nodes; results that no node reads are outputs."""
        build, rng = self.build, self.rng
        for number in range(int(rng.integers(1, 3))):
            build.graph.add_input(Tensor(f"in{number}", self.shape(), self.dtype, self.q))
        for _ in range(nodes):
            self.node(str(rng.choice(OPERATORS)))
        graph = build.graph
        made = [name for node in graph for name in node.outputs]
        ends = [name for name in made if not graph.consumers(name) or rng.random() < 0.1]
        return graph.finish(ends)

    def any_tensor(self) -> Tensor:
        """Return a random variable tensor, preferably a recent one."""
        tensors = [t for t in self.build.graph.tensors.values() if not t.constant]
        return tensors[-1 - int(min(self.rng.geometric(0.5) - 1, len(tensors) - 1))]

    def out(self, op: str, inputs: list[Tensor], wanted: tuple[int, ...], **attributes) -> Tensor:
        """Add a node and return its output, in some cases with another quantization."""
        q = inputs[0].quantization
        free = op not in ("max_pool2d", "reshape") and self.dtype in ("int8", "uint8")
        if op in ("requantize", "conv2d") or (free and self.rng.random() < 0.2):
            q = self.quantization()
        output = Tensor(self.build.fresh("t"), tuple(int(size) for size in wanted), self.dtype, q)
        return self.build.node(self.build.fresh(op), op, inputs, output, **attributes)

    def node(self, op: str) -> None:
        """Add a random node of an operator, if the operator is applicable."""
        getattr(self, f"_{op}")(self.any_tensor())

    def _transpose(self, x: Tensor) -> None:
        perm = tuple(int(i) for i in self.rng.permutation(len(x.shape)))
        self.out("transpose", [x], tuple(x.shape[i] for i in perm), perm=perm)

    def _reshape(self, x: Tensor) -> None:
        first = int(self.rng.choice([i for i in range(1, x.elements + 1) if x.elements % i == 0]))
        shape = (first, x.elements // first)
        self.out("reshape", [x], shape, shape=shape)

    def _requantize(self, x: Tensor) -> None:
        self.out("requantize", [x], x.shape)

    def _concat(self, x: Tensor) -> None:
        axis = int(self.rng.integers(len(x.shape)))
        inputs = [x]
        for _ in range(int(self.rng.integers(1, 4))):
            shape = list(x.shape)
            shape[axis] = self.size(6)
            kind = self.rng.integers(5)
            if kind == 0:
                inputs.append(self.build.constant("c", self.values(tuple(shape)), x.quantization))
            elif kind == 1 and len(x.shape) == 4 and x.shape[0] == 1:
                inputs.append(self.made_by_pool(x))
            elif kind == 2 and len(x.shape) == 4 and x.shape[0] == 1 and axis == 3:
                inputs.append(self.made_by_conv(x))
            else:
                starts = [
                    int(self.rng.integers(0, max(t - 2, 1))) if i == axis else 0
                    for i, t in enumerate(x.shape)
                ]
                shape[axis] = int(self.rng.integers(1, x.shape[axis] - starts[axis] + 1))
                inputs.append(
                    self.out(
                        "slice",
                        [x],
                        tuple(shape),
                        starts=tuple(starts),
                        sizes=tuple(shape),
                        steps=(1,) * len(shape),
                    )
                )
        self.rng.shuffle(inputs)  # type: ignore[arg-type]
        shape = list(x.shape)
        shape[axis] = sum(t.shape[axis] for t in inputs)
        if np.prod(shape) < 40_000:
            self.out("concat", inputs, tuple(shape), axis=axis - len(shape) * int(self.rng.integers(2)))

    def _slice(self, x: Tensor) -> None:
        starts, sizes, steps = [], [], []
        for total in x.shape:
            step = int(self.rng.choice([1, 1, 1, 2, 3, -1]))
            size = int(self.rng.integers(1, (total - 1) // abs(step) + 2))
            room = total - 1 - (size - 1) * abs(step)
            start = int(self.rng.integers(0, room + 1))
            starts.append(start if step > 0 else start + (size - 1) * abs(step))
            sizes.append(size)
            steps.append(step)
        self.out("slice", [x], tuple(sizes), starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))

    def _pad(self, x: Tensor) -> None:
        pads = tuple((int(a), int(b)) for a, b in self.rng.integers(0, 3, (len(x.shape), 2)))
        shape = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
        value = float(self.rng.choice([0.0, 0.5, -1e9])) if self.dtype in ("int8", "uint8") else 0.0
        if np.prod(shape) < 40_000:
            self.out("pad", [x], shape, pads=pads, value=value)

    def _gather(self, x: Tensor) -> None:
        axis = int(self.rng.integers(len(x.shape)))
        shape = (self.size(5),) if self.rng.random() < 0.7 else (self.size(3), self.size(3))
        total = x.shape[axis]
        indices = self.build.constant("indices", self.rng.integers(-total, total, shape).astype(np.int32))
        wanted = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
        if np.prod(wanted) < 40_000:
            self.out("gather", [x, indices], wanted, axis=axis)

    def _resize_nearest(self, x: Tensor) -> None:
        if len(x.shape) != 4:
            return
        size = tuple(
            int(self.rng.choice([total * 2, total * 3, max(total // 2, 1), self.size(12)]))
            for total in x.shape[1:3]
        )
        if size[0] * size[1] * x.shape[0] * x.shape[3] < 40_000:
            self.out(
                "resize_nearest",
                [x],
                (x.shape[0], *size, x.shape[3]),
                size=size,
                centers=bool(self.rng.integers(2)),
            )

    def _max_pool2d(self, x: Tensor) -> None:
        if len(x.shape) == 4 and x.shape[0] == 1 and self.dtype in ("int8", "uint8"):
            self.made_by_pool(x)

    def _conv2d(self, x: Tensor) -> None:
        if len(x.shape) == 4 and x.shape[0] == 1 and self.dtype == "int8":
            self.made_by_conv(x)

    def made_by_pool(self, x: Tensor) -> Tensor:
        """Add a 3x3 max pool and return its output."""
        if self.dtype not in ("int8", "uint8"):
            return x
        return self.out("max_pool2d", [x], x.shape, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))

    def made_by_conv(self, x: Tensor) -> Tensor:
        """Add a 1x1 convolution to a random number of channels and return its output."""
        if self.dtype != "int8":
            return x
        count = self.size(30)
        data = self.rng.integers(-127, 128, (count, 1, 1, x.shape[3])).astype(np.int8)
        weights = self.build.constant("w", data, Quantization.per_tensor(0.01))
        return self.out(
            "conv2d",
            [x, weights],
            (*x.shape[:3], count),
            strides=(1, 1),
            pads=(0, 0, 0, 0),
            dilations=(1, 1),
            groups=1,
        )

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return random integers over the whole range of the type."""
        limits = np.iinfo(self.dtype)
        return self.rng.integers(limits.min, limits.max, shape, endpoint=True).astype(self.dtype)

    def inputs(self, graph: Graph) -> Arrays:
        """Return random values for the inputs."""
        return {name: self.values(graph.tensors[name].shape) for name in graph.inputs}


def _near(limits: np.iinfo) -> tuple[int, int]:
    middle = (int(limits.min) + int(limits.max) + 1) // 2
    return middle - 20, middle + 20
