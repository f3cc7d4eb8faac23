"""ONNX models whose inputs and outputs are float16: they are converted at the edges, and computed as float32."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from compiler.api import compile
from compiler.runtime.package.writer import read_package, to_bytes
from tests.support.onnx_models import evaluated, model, node, read, reference


def half(seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """A product and a ReLU of float16 numbers, and a sample."""
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    x, w = (rng.normal(size=shape).astype(np.float16) for shape in ((4, 8), (8, 6)))
    return model([node("MatMul", "x w", "m"), node("Relu", "m", "y")], {"x": x}, ["y"], {"w": w}), x


@pytest.mark.parametrize("seed", range(3))
def test_as_onnxruntime(seed: int, tmp_path: Path) -> None:
    made, x = half(seed)
    graph = read(tmp_path, made)
    assert (graph.tensors["x"].dtype, graph.tensors["y"].dtype) == ("float16", "float16")
    assert made.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    found = evaluated(graph, {"x": x})["y"]
    want = reference(made, {"x": x})["y"]
    assert found.dtype == want.dtype == np.float16
    np.testing.assert_allclose(found.astype(float), want.astype(float), rtol=2e-3, atol=2e-3)


def test_quantized_and_packed(tmp_path: Path) -> None:
    """Nothing but the conversions is the host's, which `strict` allows; a package keeps the types."""
    made, x = half(3)
    onnx.save(made, tmp_path / "half.onnx")
    network = compile(tmp_path / "half.onnx", "n8", calibration={"x": x[None]}, strict=True)
    want = reference(made, {"x": x})["y"].astype(float)
    (tmp_path / "half.mla").write_bytes(to_bytes(network))
    for each in (network, read_package(tmp_path / "half.mla")):
        found = each(x)["y"]
        assert found.dtype == np.float16 and np.abs(found - want).max() < 0.05 * np.abs(want).max()
