"""Small graphs for tests, and comparison of their outputs with those of the host's operators."""

import numpy as np

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice


class Draft:
    """A graph of quantized tensors under construction.

    Parameters
    ----------
    rng : Generator
        Source of constants and quantizations.
    """

    def __init__(self, rng: np.random.Generator):
        self.rng, self.graph, self.count = rng, Graph("draft"), 0

    def quantization(self, scale: float | None = None, dtype: str = "int8") -> Quantization:
        """Return a random quantization."""
        zero = int(self.rng.integers(0, 256)) - (128 if dtype == "int8" else 0)
        return Quantization.per_tensor(self.rng.uniform(0.02, 0.2) if scale is None else scale, zero)

    def input(self, shape: tuple[int, ...], dtype: str = "int8") -> Tensor:
        """Add an input of the graph."""
        self.count += 1
        return self.graph.add_input(Tensor(f"x{self.count}", shape, dtype, self.quantization(dtype=dtype)))

    def constant(
        self, shape: tuple[int, ...], dtype: str = "int8", quantization: Quantization | None = None
    ) -> Tensor:
        """Add a constant of random integers."""
        self.count += 1
        limits = np.iinfo(dtype if dtype != "int32" else "int16")
        data = self.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        meaning = quantization or self.quantization(dtype=dtype)
        return self.graph.add_tensor(Tensor(f"c{self.count}", shape, dtype, meaning, data))

    def node(
        self,
        op: str,
        inputs: list[Tensor],
        made: tuple[int, ...],
        *,
        like: Tensor | None = None,
        scale: float | None = None,
        dtype: str = "int8",
        **attributes: object,
    ) -> Tensor:
        """Add a node whose new output has the shape `made` and the quantization of `like` or a random one."""
        self.count += 1
        meaning = like.quantization if like is not None else self.quantization(scale, dtype)
        return self.into(op, inputs, Tensor(f"t{self.count}", made, dtype, meaning), **attributes)

    def into(self, op: str, inputs: list[Tensor], out: Tensor, **attributes: object) -> Tensor:
        """Add a node that writes a given tensor."""
        self.graph.add_tensor(out)
        names = tuple(tensor.name for tensor in inputs)
        self.graph.add_node(Node(f"make {out.name}", op, names, (out.name,), dict(attributes)))
        return out

    def random_inputs(self) -> dict[str, np.ndarray]:
        """Return random values for all inputs."""
        out = {}
        for name in self.graph.inputs:
            tensor = self.graph.tensors[name]
            limits = np.iinfo(tensor.dtype)
            out[name] = self.rng.integers(limits.min, limits.max + 1, tensor.shape).astype(tensor.dtype)
        return out


def attention(
    draft: Draft,
    heads: int,
    rows: int,
    columns: int,
    depth: int,
    *,
    tokens: bool = False,
    transpose: bool = True,
    batch: int = 1,
    mask: tuple[int, ...] = (),
    constant: bool = False,
) -> Tensor:
    """Add softmax(q x k^T) x v with random q of `rows` rows and k and v of `columns` rows per head; return the result.

    The heads are the second of four axes or, with `tokens`, the third one. Without `transpose`, k is transposed in
    memory. If there is a `mask` of the given shape, which may be `constant`, it is added to the scaled scores.
    """
    apart = {
        "q": (batch, heads, rows, depth),
        "k": (batch, heads, columns, depth) if transpose or tokens else (batch, heads, depth, columns),
        "v": (batch, heads, columns, depth),
    }
    q, k, v = (
        draft.input((batch, shape[2], heads, shape[3]) if tokens else shape) for shape in apart.values()
    )
    if tokens:
        q, v = (
            draft.node("transpose", [each], apart[name], like=each, perm=(0, 2, 1, 3))
            for each, name in ((q, "q"), (v, "v"))
        )
    if tokens or transpose:
        perm = (0, 2, 3, 1) if tokens else (0, 1, 3, 2)
        k = draft.node("transpose", [k], (batch, heads, depth, columns), like=k, perm=perm)
    spread = 0.1 * 0.1 * 74**2 * depth**0.5 / 30
    scores = draft.node("matmul", [q, k], (batch, heads, rows, columns), scale=spread)
    if mask:
        scores = draft.node("mul", [scores, draft.constant(())], scores.shape, scale=spread)
        added = draft.constant(mask) if constant else draft.input(mask)
        scores = draft.node("add", [scores, added], scores.shape, scale=spread)
    share = Tensor("share", scores.shape, "int8", Quantization.per_tensor(1 / 256, -128))
    draft.into("softmax", [scores], share, axis=3, beta=depth**-0.5)
    mixed = draft.node("matmul", [share, v], apart["q"], scale=0.1 * 74 / 90)
    if not tokens:
        return mixed
    return draft.node("transpose", [mixed], (batch, rows, heads, depth), like=mixed, perm=(0, 2, 1, 3))


def run_on(device: Device, network: CompiledNetwork, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a network on a device and return its outputs."""
    return Session(device, network).run(inputs)


def check(
    draft: Draft, outputs: list[Tensor], target: str = "n8", rounding: str = "reference", within: int = 0
) -> CompiledNetwork:
    """Compile a graph, run it on the golden model, and compare the outputs with those of the host's operators."""
    graph = draft.graph.finish([tensor.name for tensor in outputs])
    network = compile(graph, target, rounding=rounding)
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    wanted = evaluate(graph, inputs, rounding=rounding)  # type: ignore[arg-type]
    for name, array in found.items():
        off = np.abs(array.astype(int) - wanted[name].astype(int))
        assert off.max() <= within, (
            f"{target} {rounding}: {name} is {off.max()} off in {np.count_nonzero(off)}\n{graph}"
        )
    return network
