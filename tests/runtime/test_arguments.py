"""Arguments of wrong types give a one-sentence message in the Python API and the ONNX backend."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from compiler import onnx_backend
from compiler.api import compile
from compiler.options import DramTiming
from hw.errors import InputError
from scripts.networks.digits import MODEL
from tests.support.float_graphs import numbers
from tests.support.onnx_models import model, node

IMAGE = np.zeros((1, 1, 8, 8), np.int8)
RELU = model([node("Relu", "x", "y")], {"x": numbers(2, 3)}, ["y"])
CALIBRATION = "calibration must be a dict of arrays by the names of the inputs, or a list of samples, not"
INPUTS = "inputs must be a list, a dict by name, or one array, not"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("seed", -1, "seed must be at least 0, not -1"),
        ("seed", "0", "seed must be an integer of at least 0, not '0'"),
        ("seed", None, "seed must be an integer of at least 0, not None"),
        ("offset", 0.5, "offset must be an integer of at least 0, not 0.5"),
        ("batch", "2", "batch must be an integer of at least 1, not '2'"),
        ("batch", True, "batch must be an integer of at least 1, not True"),
        ("batch", 0, "batch must be at least 1, not 0"),
        ("batches", "12", "batches must be a list of integers, not '12'"),
        ("batches", (1, "2"), "batches must be an integer of at least 1, not '2'"),
        ("batches", (2, 1), "batches must ascend, not be 2, 1"),
        ("keep_float", "conv1", "keep_float must be a list of names, not 'conv1'"),
        ("keep_float", ["conv1", 3], "each of keep_float must be a name, not 3"),
        ("int16", "conv1", "int16 must be a list of names, not 'conv1'"),
        ("skip", 3, "skip must be the name of a tensor, or None, not 3"),
        ("schedule", "x", "schedule must be a Schedule, a dict of them by batch size, or None, not 'x'"),
        ("dram", None, "dram must be a DramTiming, not None"),
        ("dram", DramTiming(latency=0), "latency of dram must be at least 1, not 0"),
        ("dram", DramTiming(bytes_per_cycle=0), "bytes_per_cycle of dram must be more than 0, not 0"),
        ("strict", "no", "strict must be True or False, not 'no'"),
        ("calibration", (each for each in [IMAGE]), f"{CALIBRATION} <generator"),
        ("calibration", "samples.npy", f"{CALIBRATION} 'samples.npy'"),
        ("calibration", 3, f"{CALIBRATION} 3"),
        ("calibration", {"x": [[1, 2], [3]]}, "calibration 'x' must be an array of numbers: "),
        ("calibration", [{"x": "image"}], "calibration 'x' must be an array of numbers, not 'image'"),
        (
            "calibration",
            {"x": np.ones((2, 3), ml_dtypes.bfloat16)},
            "calibration 'x' must be an array of numbers, not of bfloat16; bfloat16 and similar types",
        ),
        ("calibration", [{3: IMAGE}], "a key of calibration must be the name of an input, not 3"),
        ("calibration", [None], "a sample of calibration must be an array of numbers, not None"),
        ("sizes", 3, "sizes must be a dict of sizes by the names of dimensions, not 3"),
        ("sizes", {"N": "2"}, "size of 'N' must be an integer of at least 1, not '2'"),
    ],
)
def test_options_of_compile(name: str, value: Any, text: str) -> None:
    for call in (
        lambda: compile(MODEL, **{name: value}),
        lambda: onnx_backend.prepare(RELU, **{name: value}),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(text)}"):
            call()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("record", 3, "record must be a CompilationTrace or None, not 3"),
        ("cache", "yes", "cache must be True, False or None, not 'yes'"),
        ("target", 16, "target must be the name of a target, a TOML file, or an MlaConfig, not 16"),
        ("rounding", 3, "rounding must be reference or xnnpack or onnxruntime, not 3"),
    ],
)
def test_more_options_of_compile(name: str, value: Any, text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        compile(MODEL, **{name: value})


@pytest.mark.parametrize("wrong", [None, 3, 3.0, [RELU], object()])
def test_invalid_models(wrong: Any) -> None:
    with pytest.raises(
        InputError, match=r"^a model must be a file, module:function, a graph or a PyTorch module, not "
    ):
        compile(wrong)
    with pytest.raises(InputError, match=r"^model must be a ModelProto, its bytes, or a path, not "):
        onnx_backend.prepare(wrong)
    with pytest.raises(InputError, match=r"^model must be a ModelProto, its bytes, or a path, not "):
        onnx_backend.run_model(wrong, [IMAGE])
    with pytest.raises(InputError, match=r"^model must be a ModelProto, not "):
        onnx_backend.MlaBackend.is_opset_supported(wrong)
    with pytest.raises(InputError, match=r"^node must be a NodeProto, not "):
        onnx_backend.run_node(wrong, [IMAGE])
    assert not onnx_backend.is_compatible(wrong)


def test_invalid_devices() -> None:
    with pytest.raises(InputError, match=r"^device must be MLA, MLA:TARGET, MLA:TARGET:rtl or CPU, not 3$"):
        onnx_backend.prepare(RELU, 3)  # pyright: ignore[reportArgumentType]
    assert not onnx_backend.supports_device(None)  # pyright: ignore[reportArgumentType]


def test_calibration_may_be_any_container() -> None:
    x = numbers(2, 3)
    for given in ([{"x": x}], [x], x[None], {"x": x[None]}, ({"x": x},), {"x": [x, x]}):
        assert onnx_backend.run_model(RELU, x, calibration=given)[0].shape == (2, 3)


def test_invalid_inputs() -> None:
    wrong: Any
    with onnx_backend.prepare(MODEL) as ready:
        for wrong in (None, 3.0, "image", iter([IMAGE])):
            with pytest.raises(InputError, match=f"^{INPUTS} "):
                ready.run(wrong)
            with pytest.raises(InputError, match=f"^{INPUTS} "):
                onnx_backend.run_node(onnx.helper.make_node("Relu", ["x"], ["y"]), wrong)
        for wrong in ([[1], [1, 2]], "image", None):
            with pytest.raises(InputError, match=r"^input 'image' must be an array of numbers"):
                ready.run([wrong])
            with pytest.raises(InputError, match=r"^input 'image' must be an array of numbers"):
                ready.network(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match=r"^a key of input must be the name of an input, not 3$"):
            ready.run({3: IMAGE})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"^prepare has no argument foo; arguments are rounding, .*$"):
        onnx_backend.prepare(MODEL, foo=1)
    with pytest.raises(InputError, match=r"^opset_version must be an integer of at least 1, not '17'$"):
        onnx_backend.run_node(onnx.helper.make_node("Relu", ["x"], ["y"]), [IMAGE], opset_version="17")
