"""Chains of unary functions between a dequantization and a quantization become one table on the accelerator."""

from typing import Any

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.runtime.package_writer import read_package, to_bytes
from tests.support.onnx_models import model, node, reference

X = {"x": np.random.default_rng(3).integers(0, 256, (2, 3, 6, 5)).astype(np.uint8)}
#: Nodes from d to h, and their constants.
CHAINS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "hard_sigmoid": ([node("HardSigmoid", "d", "h", alpha=1 / 6)], {}),
    "scaled_and_moved": ([node("Mul", "d a", "e"), node("Add", "e b", "h")], {"a": 1.7, "b": -0.3}),
    "of_one_element": ([node("Mul", "d a", "e"), node("Sub", "b e", "h")], {"a": [[[0.7]]], "b": [0.2]}),
    "sine_of_squares": ([node("Mul", "d a", "e"), node("Sin", "e", "f"), node("Abs", "f", "h")], {"a": 0.5}),
    "clipped": (
        [node("Sigmoid", "d", "e"), node("Clip", "e a b", "f"), node("Exp", "f", "h")],
        {"a": 0.1, "b": 0.8},
    ),
}


def _model(chain: str) -> onnx.ModelProto:
    nodes, numbers = CHAINS[chain]
    held: dict[str, np.ndarray] = {name: np.array(value, np.float32) for name, value in numbers.items()}
    held |= {name: np.array(v, np.float32) for name, v in (("s", 0.04), ("t", 1 / 60))}
    held |= {name: np.array(v, np.uint8) for name, v in (("z", 100), ("u", 128))}
    ends = node("DequantizeLinear", "x s z", "d"), node("QuantizeLinear", "h t u", "y")
    return model([ends[0], *nodes, ends[1]], X, ["y"], held)


@pytest.mark.parametrize("chain", CHAINS)
def test_chain_becomes_one_table(tmp_path: Any, chain: str) -> None:
    made = _model(chain)
    network = compile(read_onnx(made), "n4", rounding="onnxruntime", strict=True)
    assert [layer.ops for layer in network.infos] == [("table",)] and not network.host
    wanted = reference(made, X)["y"]
    np.testing.assert_array_equal(network(**X)["y"], wanted)
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(network))
    np.testing.assert_array_equal(read_package(path)(**X)["y"], wanted)


def test_intermediate_value_that_is_an_output() -> None:
    """An intermediate value that is also a model output is computed in floating point."""
    made = _model("scaled_and_moved")
    made.graph.output.append(onnx.helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, (2, 3, 6, 5)))
    network = compile(read_onnx(made), "n4", rounding="onnxruntime")
    wanted = reference(made, X)
    found = network(**X)
    np.testing.assert_allclose(found["e"], wanted["e"], rtol=1e-6)
    np.testing.assert_array_equal(found["y"], wanted["y"])


@pytest.mark.parametrize("shape", [(2, 3, 6, 5), (2, 3, 9)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    """A batch normalization differs from onnxruntime by at most 1, since its sums are rounded to 1/127 of a step."""
    random = np.random.default_rng(4)
    x = {"x": random.integers(0, 256, shape).astype(np.uint8)}
    names = ("factor", "shift", "mean", "variance")
    held = {name: random.standard_normal(3).astype(np.float32) for name in names}
    held["variance"] = np.abs(held["variance"])
    held["factor"][0] = 0
    held |= {name: np.array(v, np.float32) for name, v in (("s", 0.04), ("t", 1 / 30))}
    held |= {name: np.array(v, np.uint8) for name, v in (("z", 100), ("u", 128))}
    nodes = [
        node("DequantizeLinear", "x s z", "d"),
        node("BatchNormalization", "d factor shift mean variance", "h"),
        node("QuantizeLinear", "h t u", "y"),
    ]
    made = model(nodes, x, ["y"], held)
    network = compile(read_onnx(made), "n4", rounding="onnxruntime", strict=True)
    far = np.abs(network(**x)["y"].astype(int) - reference(made, x)["y"].astype(int))
    assert far.max() <= 1 and (far > 0).mean() < 0.1
