"""Single ONNX operators on each integer type are exact on the golden model, run on the host, or fail with a reason."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from compiler.api import compile
from compiler.ir.ops import LOGIC_OPS, OPS, ORDERING
from compiler.layers.registry import LAYER_KINDS, LOWERINGS
from compiler.lowering.fusion_groups import IN_PLACE
from hw.errors import InputError
from tests.support.onnx_models import model, node, reference

SHAPE = (2, 3, 6, 5)
TYPES = ("int8", "uint8", "int16", "int32")
#: Operators on unquantized integers: node, further constants, numpy function of x and y.
PLAIN: dict[str, tuple[onnx.NodeProto, dict[str, NDArray], Callable[[NDArray, NDArray], NDArray]]] = {
    "add": (node("Add", "x y", "z"), {}, np.add),
    "sub": (node("Sub", "x y", "z"), {}, np.subtract),
    "mul": (node("Mul", "x y", "z"), {}, np.multiply),
    "max": (node("Max", "x y", "z"), {}, np.maximum),
    "min": (node("Min", "x y", "z"), {}, np.minimum),
    "concat": (node("Concat", "x y", "z", axis=1), {}, lambda x, y: np.concatenate([x, y], 1)),
    "transpose": (node("Transpose", "x", "z", perm=[2, 0, 3, 1]), {}, lambda x, y: x.transpose(2, 0, 3, 1)),
    "slice": (
        node("Slice", "x a b", "z"),
        {"a": np.array([0, 1, 2, 1]), "b": np.array([2, 3, 6, 4])},
        lambda x, y: x[:, 1:3, 2:, 1:4],
    ),
    "pad": (
        node("Pad", "x p", "z"),
        {"p": np.array([0, 1, 0, 0, 0, 0, 2, 1])},
        lambda x, y: np.pad(x, ((0, 0), (1, 0), (0, 2), (0, 1))),
    ),
    "gather": (
        node("Gather", "x i", "z", axis=2),
        {"i": np.array([4, 0, 4])},
        lambda x, y: x[:, :, [4, 0, 4]],
    ),
    "reduce_max": (node("ReduceMax", "x", "z", axes=[1, 2], keepdims=0), {}, lambda x, y: x.max((1, 2))),
    "reduce_min": (
        node("ReduceMin", "x", "z", axes=[3], keepdims=1),
        {},
        lambda x, y: x.min(3, keepdims=True),
    ),
    "reduce_sum": (
        node("ReduceSum", "x r", "z", keepdims=0),
        {"r": np.array([1])},
        lambda x, y: x.sum(1, dtype=x.dtype),
    ),
    "max_pool": (
        node("MaxPool", "x", "z", kernel_shape=[2, 1]),
        {},
        lambda x, y: np.maximum(x[:, :, :-1], x[:, :, 1:]),
    ),
    "abs": (node("Abs", "x", "z"), {}, lambda x, y: np.abs(x)),
}
#: Operators between dequantized inputs and a quantized result.
QUANTIZED: dict[str, tuple[onnx.NodeProto, dict[str, NDArray]]] = {
    "add": (node("Add", "x y", "z"), {}),
    "sub": (node("Sub", "x y", "z"), {}),
    "mul": (node("Mul", "x y", "z"), {}),
    "concat": (node("Concat", "x y", "z", axis=1), {}),
    "relu": (node("Relu", "x", "z"), {}),
    "sigmoid": (node("Sigmoid", "x", "z"), {}),
    "tanh": (node("Tanh", "x", "z"), {}),
    "softmax": (node("Softmax", "x", "z"), {}),
    "transpose": (node("Transpose", "x", "z", perm=[2, 0, 3, 1]), {}),
    "reduce_mean": (node("ReduceMean", "x r", "z", keepdims=1), {"r": np.array([2])}),
    "max_pool": (node("MaxPool", "x", "z", kernel_shape=[2, 2]), {}),
    "average_pool": (node("AveragePool", "x", "z", kernel_shape=[2, 2]), {}),
    "global_average": (node("GlobalAveragePool", "x", "z"), {}),
}


def _compiled(folder: Path, made: onnx.ModelProto) -> Any:
    """Return the network, or None if the model is rejected with a reason."""
    onnx.save(made, folder / "model.onnx")
    try:
        network = compile(folder / "model.onnx", "n8", cache=False)
    except InputError as error:
        assert str(error)
        return None
    assert all(each.reason for each in network.host)
    return network


def _random(name: str, dtype: str) -> tuple[np.random.Generator, NDArray, NDArray]:
    seed = zlib.crc32(f"{name} {dtype}".encode())
    print(f"seed {seed}")
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    x, y = (rng.integers(limits.min, limits.max, SHAPE, dtype, endpoint=True) for _ in range(2))
    return rng, x, y


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_unquantized_integers(name: str, dtype: str, tmp_path: Path) -> None:
    """Integer arithmetic wraps in its type as in ONNX; the reference is numpy, since onnxruntime lacks many types."""
    _, x, y = _random(name, dtype)
    operator, constants, function = PLAIN[name]
    named = {key: value for key, value in (("x", x), ("y", y)) if key in operator.input}
    with np.errstate(over="ignore"):
        want = function(x, y)
    graph = helper.make_graph(
        [operator],
        name,
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in named.items()
        ],
        [helper.make_tensor_value_info("z", helper.np_dtype_to_tensor_dtype(want.dtype), want.shape)],
        [onnx.numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = _compiled(tmp_path, made)
    if network is not None:
        np.testing.assert_array_equal(network(**named)["z"], want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_integers(name: str, dtype: str, tmp_path: Path) -> None:
    rng, x, y = _random(name, dtype)
    operator, constants = QUANTIZED[name]
    zero = np.array(0 if dtype == "int16" else rng.integers(1, 100), dtype)
    step, ours = (np.float32(each) / (256 if dtype == "int16" else 1) for each in rng.uniform(0.02, 0.05, 2))
    scales = {
        "s": np.array(step),
        "t": np.array(step if name in ("transpose", "max_pool") else ours),
        "o": zero,
    }
    nodes = [node("DequantizeLinear", f"{key}q s o", key) for key in ("x", "y") if key in operator.input]
    nodes += [operator, node("QuantizeLinear", "z t o", "zq")]
    named = {f"{key}q": value for key, value in (("x", x), ("y", y)) if key in operator.input}
    made = model(nodes, named, ["zq"], constants | scales, opset=21)
    network = _compiled(tmp_path, made)
    assert network is not None
    # onnxruntime rounds a float32 result, which may be close to a tie.
    off = np.abs(network(**named)["zq"].astype(int) - reference(made, named)["zq"].astype(int))
    assert off.max() <= 1


def test_every_lowering_is_of_an_operator() -> None:
    assert LOWERINGS.keys() <= OPS.keys()
    assert IN_PLACE.keys() <= LOWERINGS.keys()
    # Each operator has exactly one lowering.
    own = [op for kind in LAYER_KINDS for op in kind.lowerings]
    assert len(set(own)) == len(own)
    others = {"cumsum", "quantize", "dequantize", "high_byte", "low_byte", "requantize_sum"}
    others |= LOGIC_OPS | ORDERING | {"where", "index_key", "key_index"}
    assert LOWERINGS.keys() - set(own) == others
