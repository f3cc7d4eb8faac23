"""Trained networks on the host equal LiteRT, as a whole and layer by layer."""

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.reference import evaluate, run_node
from tests.support.one_operator import RESOLVERS
from tests.support.trained_networks import model as model_file

NETWORKS = ("pretrainedResnet_quant", "kws_ref_model", "vww_96_int8", "ad01_int8")
INPUTS = 20
#: The C library computes the softmax table of the default interpreter; the reference kernel is exact.
BOUNDS = {("softmax", "xnnpack"): 1}


class Litert:
    """A network in LiteRT's interpreter."""

    def __init__(self, path: Path, kernels: str, *, layers: bool = False):
        self.interpreter = Interpreter(
            model_path=str(path),
            experimental_op_resolver_type=RESOLVERS[kernels],
            num_threads=1,
            experimental_preserve_all_tensors=layers,
        )
        self.interpreter.allocate_tensors()
        (self.input,), (self.output,) = (
            self.interpreter.get_input_details(),
            self.interpreter.get_output_details(),
        )

    def run(self, x: np.ndarray) -> np.ndarray:
        """Run the network and return its output."""
        self.interpreter.set_tensor(self.input["index"], x)
        self.interpreter.invoke()
        return self.interpreter.get_tensor(self.output["index"])

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all tensors of the last run."""
        details = self.interpreter.get_tensor_details()
        return {d["name"]: self.interpreter.get_tensor(d["index"]) for d in details if d["shape"].size}


def network(name: str) -> tuple[Path, Graph]:
    """Return the file and the graph of a network."""
    path = model_file(name)
    return path, read_model(path)


def sample(rng: np.random.Generator, graph: Graph) -> np.ndarray:
    """Return a random input."""
    return rng.integers(-128, 128, graph.tensors[graph.inputs[0]].shape, np.int8)


@pytest.mark.parametrize("kernels", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_equals_litert(rng: np.random.Generator, name: str, kernels: str) -> None:
    path, graph = network(name)
    litert = Litert(path, kernels)
    bound = BOUNDS.get((graph.nodes[next(reversed(graph.nodes))].op, kernels), 0)
    for _ in range(INPUTS):
        x = sample(rng, graph)
        got = evaluate(graph, {graph.inputs[0]: x}, rounding=kernels)[graph.outputs[0]]  # type: ignore[arg-type]
        assert np.abs(got.astype(int) - litert.run(x)).max() <= bound


@pytest.mark.filterwarnings("ignore:Warning. Enabling `experimental_preserve_all_tensors`")
@pytest.mark.parametrize("kernels", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_layer_equals_litert(rng: np.random.Generator, name: str, kernels: str) -> None:
    """Each node is evaluated on LiteRT's inputs; for fused activations LiteRT has no separate inputs."""
    path, graph = network(name)
    litert = Litert(path, kernels, layers=True)
    compared = 0
    for _ in range(3):
        litert.run(sample(rng, graph))
        values = litert.tensors()
        for node in graph:
            data = {t.name: t.data for t in graph.ins(node) if t.data is not None}
            operands = [data.get(each, values.get(each)) for each in node.inputs]
            (got,) = run_node(graph, node, operands, rounding=kernels)  # type: ignore[arg-type]
            want = values.setdefault(node.outputs[0], got)
            bound = BOUNDS.get((node.op, kernels), 0)
            assert np.abs(got.astype(int) - want).max() <= bound, node
            compared += want is not got
    assert compared == 3 * sum(not node.outputs[0].endswith(":before") for node in graph)
