"""ONNX models with float16 inputs and outputs convert them at the edges and compute in float32."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from compiler.api import compile
from compiler.runtime.package_writer import read_package, to_bytes
from tests.support.onnx_models import evaluated, model, node, read, reference


def float16_model(seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return a model of a MatMul and a ReLU on float16 values, and a sample."""
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    x, w = (rng.normal(size=shape).astype(np.float16) for shape in ((4, 8), (8, 6)))
    return model([node("MatMul", "x w", "m"), node("Relu", "m", "y")], {"x": x}, ["y"], {"w": w}), x


@pytest.mark.parametrize("seed", range(3))
def test_float16_model_equals_onnxruntime(seed: int, tmp_path: Path) -> None:
    made, x = float16_model(seed)
    graph = read(tmp_path, made)
    assert (graph.tensors["x"].dtype, graph.tensors["y"].dtype) == ("float16", "float16")
    assert made.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    found = evaluated(graph, {"x": x})["y"]
    want = reference(made, {"x": x})["y"]
    assert found.dtype == want.dtype == np.float16
    np.testing.assert_allclose(found.astype(float), want.astype(float), rtol=2e-3, atol=2e-3)


def test_float16_model_quantized_and_packaged(tmp_path: Path) -> None:
    """Only the conversions run on the host, which `strict` permits; a package preserves the types."""
    made, x = float16_model(3)
    onnx.save(made, tmp_path / "float16_model.onnx")
    network = compile(tmp_path / "float16_model.onnx", "n8", calibration={"x": x[None]}, strict=True)
    want = reference(made, {"x": x})["y"].astype(float)
    (tmp_path / "float16_model.mla").write_bytes(to_bytes(network))
    for each in (network, read_package(tmp_path / "float16_model.mla")):
        found = each(x)["y"]
        assert found.dtype == np.float16 and np.abs(found - want).max() < 0.05 * np.abs(want).max()
