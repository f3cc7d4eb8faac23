"""Tests of the ONNX backend: model files, bytes, protocol buffers, single nodes, devices, and rejected models."""

import unittest
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest

from compiler import onnx_backend
from hw.errors import InputError
from scripts.networks.digits import MODEL
from tests.support.onnx_models import node, reference, small

IMAGE = np.random.default_rng(1).integers(-128, 128, (1, 1, 8, 8), np.int8)


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    """Return onnxruntime's scores for the image."""
    (scores,) = reference(onnx.load(MODEL), {"image": IMAGE}).values()
    return scores


@pytest.mark.parametrize("form", [Path, str, lambda path: path.read_bytes(), onnx.load])
def test_model_may_be_file_bytes_or_protocol_buffer(form, wanted: np.ndarray) -> None:
    with onnx_backend.prepare(form(MODEL)) as ready:
        assert isinstance(ready, BackendRep) and not ready.network.host
        for inputs in (IMAGE, [IMAGE], {"image": IMAGE}):
            np.testing.assert_array_equal(ready.run(inputs)[0], wanted)


def test_outputs_are_named(wanted: np.ndarray) -> None:
    made = onnx_backend.run_model(onnx.load(MODEL), [IMAGE], "MLA:n4")
    assert made._fields == ("scores",)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(made["scores"], wanted)  # type: ignore[call-overload]


def test_model_on_the_rtl(wanted: np.ndarray) -> None:
    with onnx_backend.prepare(MODEL, "MLA:n8:rtl") as ready:
        np.testing.assert_array_equal(ready.run(IMAGE)[0], wanted)
        ready.close()
        np.testing.assert_array_equal(ready.run(IMAGE)[0], wanted)


def test_supported_device_names() -> None:
    assert issubclass(onnx_backend.MlaBackend, Backend)
    for device in ("CPU", "MLA", "MLA:n4", "MLA:n32", "MLA:n16:rtl", "MLA:rtl", "MLA:n8:golden"):
        assert onnx_backend.supports_device(device), device
    for device in ("CUDA", "MLA:n5", "mla", "", "MLA:n16:fpga"):
        assert not onnx_backend.supports_device(device), device
    with pytest.raises(InputError, match="device must be MLA, MLA:TARGET, MLA:TARGET:rtl or CPU, not 'CUDA'"):
        onnx_backend.prepare(MODEL, "CUDA")


def test_single_node() -> None:
    """An operator on float values is quantized with its given input as calibration data; a host operator is exact."""
    x = np.linspace(-3, 3, 40, dtype=np.float32).reshape(2, 20)
    (y,) = onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_allclose(y, np.maximum(x, 0), atol=3 / 255)
    top = helper.make_node("TopK", ["x", "k"], ["values", "places"])
    values, places = onnx_backend.run_node(top, [x, np.array([3])])
    np.testing.assert_array_equal(values, x[:, :-4:-1])
    np.testing.assert_array_equal(places, [[19, 18, 17]] * 2)


def test_single_node_of_an_old_operator_set() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    clip = helper.make_node("Clip", ["x"], ["y"], min=1.0, max=4.0)
    (y,) = onnx_backend.run_node(clip, [x], opset_version=7, outputs_info=[(np.float32, (2, 3))])
    np.testing.assert_allclose(y, x.clip(1, 4), atol=5 / 255)


def test_sizes_and_options(caplog: pytest.LogCaptureFixture) -> None:
    made = small(node("Relu", "x", "y"), shape=("n", "width"))
    x = np.ones((1, 5), np.float32)
    with onnx_backend.prepare(made, sizes={"width": 5}) as ready:
        np.testing.assert_allclose(ready.run(x)[0], x, atol=0.1)
    assert "accuracy is meaningless" in caplog.text
    with pytest.raises(InputError, match="rounding must be"):
        onnx_backend.prepare(MODEL, rounding="up")


def test_incompatible_models_and_inputs_are_rejected() -> None:
    assert not onnx_backend.is_compatible(small(node("NonZero", "x", "y")))
    assert onnx_backend.is_compatible(onnx.load(MODEL))
    assert onnx_backend.MlaBackend.is_opset_supported(onnx.load(MODEL)) == (True, "")
    newer = helper.make_model(onnx.load(MODEL).graph, opset_imports=[helper.make_opsetid("", 99)])
    assert not onnx_backend.MlaBackend.is_opset_supported(newer)[0]
    with pytest.raises(InputError, match=r"the model has 1 inputs \(image\), not 2"):
        onnx_backend.run_model(MODEL, [IMAGE, IMAGE])
    with pytest.raises(InputError, match=r"input 'image' must be int8\[1, 1, 8, 8\], not float32"):
        onnx_backend.run_model(MODEL, IMAGE.astype(np.float32))
    with pytest.raises(InputError, match="is not an ONNX file, or is damaged"):
        onnx_backend.prepare(b"no model at all")
    outside = onnx.load(MODEL)
    outside.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(InputError, match="external data needs a model that is a file"):
        onnx_backend.prepare(outside)


def test_invalid_single_nodes_are_rejected() -> None:
    for domain, text in (
        ("", "^node 'Foo': ONNX's operator set 17 has no operator 'Foo'$"),
        (
            "com.microsoft",
            "^node 'Foo': its output types cannot be inferred: give outputs_info$",
        ),
    ):
        foo = helper.make_node("Foo", ["x"], ["y"], domain=domain)
        with pytest.raises(InputError, match=text):
            onnx_backend.run_node(foo, [IMAGE], opset_version=17)
    with pytest.raises(InputError, match=r"^node 'Add' has 2 inputs, not 1$"):
        onnx_backend.run_node(helper.make_node("Add", ["a", "b"], ["y"]), [IMAGE])


def test_suite_of_onnx_passes() -> None:
    """The backend passes ONNX's own test suite for operators on integers, which requires exact results."""
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns while onnx computes the expected results
        suite = BackendTest(onnx_backend.MlaBackend, __name__)
        for pattern in (
            "test_qlinear.*(conv|float32)_cpu",
            "test_.*integer.*_cpu",
            "test_dynamicquantizelinear_cpu",
            "test_and.*_cpu",
        ):
            suite.include(pattern)
        suite.test_suite.run(result)
    assert not result.errors and not result.failures, [*result.errors, *result.failures]
    assert result.testsRun - len(result.skipped) > 15
