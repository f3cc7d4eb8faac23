"""Random graphs of all operators of the accelerator, and what must hold of them."""

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.reference import run_node
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from tests.support.strategies.array_operators import SUMS
from tests.support.strategies.graph_grower import Draw, Grower
from tests.support.strategies.move_operators import MOVES
from tests.support.strategies.vector_operators import FUNCTIONS

OPERATORS = SUMS | FUNCTIONS | MOVES
ROUNDINGS = ("reference", "xnnpack", "onnxruntime")
TARGETS = ("n8", "n16", "n4")
#: Why a node may run on the host; every other reason is a failure.
KNOWN = (
    "images of a batch whose .* rows are not a multiple of the stride",
    "no multiplier reproduces LiteRT's float32 rounding of .*",
    "no multiplier reproduces the float32 rounding of some sums",  # docs/numerics.md, MEAN
)


@dataclass
class Grown:
    """A graph, its inputs, and what is known of it."""

    graph: Graph
    inputs: dict[str, np.ndarray]
    bounds: dict[str, tuple[int, float]]
    rounding: str
    target: str


@dataclass
class Tally:
    """Nodes by operator and by where they ran."""

    device: Counter[str] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)
    graphs: int = 0

    def add(self, network: CompiledNetwork) -> None:
        """Count a network's nodes."""
        assert network.graph is not None
        left = {each.node for each in network.host}
        self.graphs += 1
        for node in network.graph:
            (self.host if node.name in left else self.device)[node.op] += 1

    @property
    def share(self) -> float:
        """Of the nodes that ran on the accelerator."""
        return self.device.total() / (self.device.total() + self.host.total())

    def check(self, operators: int, share: float) -> None:
        """At least a share of the nodes ran on the accelerator, and there were at least so many kinds of them."""
        assert self.share >= share, f"too much on the host: {self}"
        assert len(self.device) >= operators, f"{len(self.device)} operators, not {operators}: {self}"

    def __str__(self) -> str:
        left = ", ".join(f"{op} {count}" for op, count in sorted(self.host.items()))
        done = ", ".join(f"{op} {count}" for op, count in sorted(self.device.items()))
        return (
            f"{self.graphs} graphs, {100 * self.share:.1f}% of their nodes on the accelerator: {done}; "
            f"on the host: {left or 'none'}"
        )


@st.composite
def graphs(draw: Draw, most: int = 8) -> Grown:
    """Graphs of up to so many operators, with branches, several inputs and outputs."""
    rounding = draw(st.sampled_from(ROUNDINGS))
    g = Grower(draw, rounding, batch=draw(st.sampled_from((1,) * 11 + (2,))))
    for _ in range(draw(st.integers(most // 2, most))):
        OPERATORS[draw(st.sampled_from(tuple(OPERATORS)))](g)
    made = [tensor for tensor in g.live if tensor.name not in g.graph.inputs]
    if not made:
        made = [OPERATORS["unary"](g)]
    names = [t.name for t in made if _is_output(g, t)]
    inputs = {name: g.values[name] for name in g.graph.inputs}
    return Grown(g.graph.finish(names), inputs, g.bounds, rounding, draw(st.sampled_from(TARGETS)))


def _is_output(g: Grower, tensor: Tensor) -> bool:
    """What nothing reads is one, and what may be off, so that what follows is exact again; others now and then."""
    return tensor.name in g.bounds or not g.graph.consumers(tensor.name) or g.whole(0, 9) == 9


def check(grown: Grown, tally: Tally, *, rtl: bool = False) -> None:
    """Compile and run a graph; every output is what the host makes of the same inputs."""
    network = compile(grown.graph, grown.target, rounding=grown.rounding)
    tally.add(network)
    for each in network.host:
        known = any(re.fullmatch(text, each.reason) for text in KNOWN)
        alone = each.op == "reshape"  # between nodes on the host
        assert known or alone, f"{each.node} ({each.op}) is on the host: {each.reason}"
    size = dram_bytes(network)
    with RtlDevice(network.config, size) if rtl else GoldenDevice(network.config, size) as device:
        found = Session(device, network).run(grown.inputs)
    compare(grown, found)


def compare(grown: Grown, found: dict[str, np.ndarray]) -> None:
    """Node by node: an output takes the place of the host's result once it is seen to be within its bound."""
    values = dict(grown.inputs)
    for node in grown.graph:
        operands = [values[t.name] if t.data is None else t.data for t in grown.graph.ins(node)]
        (wanted,) = run_node(grown.graph, node, operands, rounding=grown.rounding)  # type: ignore[arg-type]
        (name,) = node.outputs
        values[name] = found.get(name, wanted)
        off = np.abs(values[name].astype(int) - wanted)
        bound, share = grown.bounds.get(name, (0, 0.0))
        text = f"{node.name}: {off.max()} off in {np.count_nonzero(off)} of {off.size}"
        assert off.max() <= bound and np.count_nonzero(off) <= 2 + share * off.size, text
