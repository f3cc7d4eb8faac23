"""Random graphs of all operators of the accelerator, and their checks."""

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
from tests.support.strategies.graph_builder import Draw, GraphBuilder
from tests.support.strategies.move_operators import MOVES
from tests.support.strategies.vector_operators import FUNCTIONS

OPERATORS = SUMS | FUNCTIONS | MOVES
ROUNDINGS = ("reference", "xnnpack", "onnxruntime")
TARGETS = ("n8", "n16", "n4")
#: Permitted reasons for a node on the host; any other reason is a failure.
KNOWN = (
    "the .* rows of an image must be a multiple of the stride in a batch",
    "no multiplier reproduces LiteRT's float32 rounding of .*",
    "no multiplier reproduces the float32 rounding of some sums",  # docs/numerics.md, MEAN
)


@dataclass
class RandomGraph:
    """A random graph, its inputs, and the permitted differences of its outputs."""

    graph: Graph
    inputs: dict[str, np.ndarray]
    bounds: dict[str, tuple[int, float]]
    rounding: str
    target: str


@dataclass
class Tally:
    """Counts of nodes by operator, on the accelerator and on the host."""

    device: Counter[str] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)
    graphs: int = 0

    def add(self, network: CompiledNetwork) -> None:
        """Count the nodes of a network."""
        assert network.graph is not None
        left = {each.node for each in network.host}
        self.graphs += 1
        for node in network.graph:
            (self.host if node.name in left else self.device)[node.op] += 1

    @property
    def share(self) -> float:
        """Fraction of the nodes that ran on the accelerator."""
        return self.device.total() / (self.device.total() + self.host.total())

    def check(self, operators: int, share: float) -> None:
        """Assert that the accelerator ran at least a fraction of the nodes and at least a number of operators."""
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
def graphs(draw: Draw, most: int = 8) -> RandomGraph:
    """Return a strategy for graphs of up to `most` operators, with branches and several inputs and outputs."""
    rounding = draw(st.sampled_from(ROUNDINGS))
    g = GraphBuilder(draw, rounding, batch=draw(st.sampled_from((1,) * 11 + (2,))))
    for _ in range(draw(st.integers(most // 2, most))):
        OPERATORS[draw(st.sampled_from(tuple(OPERATORS)))](g)
    made = [tensor for tensor in g.live if tensor.name not in g.graph.inputs]
    if not made:
        made = [OPERATORS["unary"](g)]
    names = [t.name for t in made if _is_output(g, t)]
    inputs = {name: g.values[name] for name in g.graph.inputs}
    return RandomGraph(g.graph.finish(names), inputs, g.bounds, rounding, draw(st.sampled_from(TARGETS)))


def _is_output(g: GraphBuilder, tensor: Tensor) -> bool:
    """Return True for tensors that no node reads, for tensors that may be inexact, and at random.

    Inexact tensors are outputs so that the nodes that read them can be checked exactly.
    """
    return tensor.name in g.bounds or not g.graph.consumers(tensor.name) or g.whole(0, 9) == 9


def check(grown: RandomGraph, tally: Tally, *, rtl: bool = False) -> None:
    """Compile and run a graph and check that every output agrees with the host's operators."""
    network = compile(grown.graph, grown.target, rounding=grown.rounding)
    tally.add(network)
    for each in network.host:
        known = any(re.fullmatch(text, each.reason) for text in KNOWN)
        alone = each.op == "reshape"  # a reshape between host nodes
        assert known or alone, f"{each.node} ({each.op}) is on the host: {each.reason}"
    size = dram_bytes(network)
    with RtlDevice(network.config, size) if rtl else GoldenDevice(network.config, size) as device:
        found = Session(device, network).run(grown.inputs)
    compare(grown, found)


def compare(grown: RandomGraph, found: dict[str, np.ndarray]) -> None:
    """Compare outputs with the host's outputs, node by node.

    An output within its bound replaces the host's value for later nodes.
    """
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
