"""Operators on float32 tensors run on the accelerator and agree with onnxruntime."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.support.onnx_models import model, reference

Arrays = list[NDArray]


def compiled_and_expected(
    path: Path, target: str, x: NDArray, nodes: list, outputs: list[str], **known: NDArray
) -> tuple[CompiledNetwork, Arrays]:
    """Compile a model of one input; return the network and onnxruntime's outputs."""
    made = model(nodes, {"x": x}, outputs, known, opset=21)
    onnx.save(made, path / "floats.onnx")
    wanted = reference(made, {"x": x})
    return compile(path / "floats.onnx", target), [wanted[name] for name in outputs]


def shape_of(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, (9, 12, 40)[: rng.integers(1, 4)]))


def floats(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-5, 6) + rng.integers(-1, 2)).astype(np.float32)


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_quantize(target: str, rng: np.random.Generator, tmp_path: Path) -> None:
    for dtype in ("int8", "uint8", "int16"):
        x, limits = floats(rng, shape_of(rng)), np.iinfo(dtype)
        scale = np.float32(np.abs(x).max() / rng.integers(20, 400) + 1e-9)
        zero = np.array(rng.integers(limits.min, limits.max + 1), dtype)
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
        network, (want,) = compiled_and_expected(
            tmp_path, target, x, [node], ["y"], s=np.array(scale), z=zero
        )
        got = network(x)["y"]
        assert network.host == () and got.dtype == want.dtype
        off = np.abs(got.astype(int) - want.astype(int))
        assert off.max() <= 1 and np.count_nonzero(off) <= 1 + off.size // 1000


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_dequantize(dtype: str, target: str, rng: np.random.Generator, tmp_path: Path) -> None:
    bound = min(np.iinfo(dtype).max, 1 << 23)
    x = rng.integers(max(np.iinfo(dtype).min, -bound), bound + 1, shape_of(rng)).astype(dtype)
    zero = np.array(0 if dtype == "int32" else rng.integers(0, 100), dtype)
    scale = np.array(10.0 ** rng.uniform(-8, 8), np.float32)
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])
    network, (want,) = compiled_and_expected(tmp_path, target, x, [node], ["y"], s=scale, z=zero)
    assert network.host == ()
    np.testing.assert_array_equal(network(x)["y"], want)


def test_scales_along_an_axis(rng: np.random.Generator, tmp_path: Path) -> None:
    for axis in range(3):
        shape = (3, 5, 18)
        count = shape[axis]
        scale = rng.uniform(0.01, 1, count).astype(np.float32)
        x = rng.integers(-128, 128, shape).astype(np.int8)
        zeros = rng.integers(-20, 20, count).astype(np.int8)
        node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis)
        network, (want,) = compiled_and_expected(tmp_path, "n8", x, [node], ["y"], s=scale, z=zeros)
        assert network.host == ()
        np.testing.assert_array_equal(network(x)["y"], want)
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=axis)
        real, same = want + floats(rng, (1,)), np.full(count, zeros[0])
        network, (want,) = compiled_and_expected(tmp_path, "n8", real, [node], ["y"], s=scale, z=same)
        assert network.host == ()
        assert np.abs(network(real)["y"].astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_dynamic_quantize(target: str, rng: np.random.Generator, tmp_path: Path) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    made = ["y", "s", "z"]
    for kind in ("both", "zero", "positive", "negative", "many"):
        x = floats(rng, (70, 1000) if kind == "many" else shape_of(rng))
        x = {"zero": 0 * x, "positive": np.abs(x) + 1, "negative": -np.abs(x) - 1}.get(kind, x)
        network, (y, scale, zero) = compiled_and_expected(tmp_path, target, x, [node], made)
        got = network(x)
        assert network.host == ()
        assert got["s"].view(np.int32) == pytest.approx(scale.view(np.int32), abs=1)
        assert abs(int(got["z"]) - int(zero)) <= 1
        off = np.abs(got["y"].astype(int) - y.astype(int))
        assert off.max() <= 1 and np.count_nonzero(off) <= 1 + off.size // 1000


def test_conversions_between_layers(rng: np.random.Generator) -> None:
    """A host operator between two layers reads and writes float32 tensors of the accelerator."""
    graph, shape = Graph("between"), (1, 6, 6, 12)
    graph.add_input(Tensor("x", shape, "int8", Quantization.per_tensor(0.05)))
    last = "x"
    for op, dtype, q in (
        ("tanh", "int8", Quantization.per_tensor(1 / 128)),
        ("dequantize", "float32", None),
        ("exp", "float32", None),
        ("quantize", "int8", Quantization.per_tensor(0.02, -7)),
        ("sigmoid", "int8", Quantization.per_tensor(1 / 256, -128)),
    ):
        made = graph.add_tensor(Tensor(f"{op} made", shape, dtype, q))
        graph.add_node(Node(op, op, (last,), (made.name,), {}))
        last = made.name
    graph.finish([last])
    network = compile(graph, "n8", rounding="onnxruntime")
    assert [each.node for each in network.host] == ["exp"]
    x = rng.integers(-128, 128, shape).astype(np.int8)
    wanted = evaluate(graph, {"x": x}, rounding="onnxruntime")[last]
    np.testing.assert_allclose(network(x)[last].astype(int), wanted, atol=1)


def test_conversions_on_the_rtl(rng: np.random.Generator, tmp_path: Path) -> None:
    """The RTL gives the same float32 results as the golden model."""
    x = floats(rng, (7, 33))
    known = {"s": np.array(np.abs(x).max() / 100), "z": np.array(3, np.int8)}
    convert = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    dynamic = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("DynamicQuantizeLinear", ["t"], ["q", "scale", "zero"]),
    ]
    for nodes, made in ((convert, ["q", "y"]), (dynamic, ["q", "scale", "zero"])):
        network, _ = compiled_and_expected(tmp_path, "n4", x, nodes, made, **known)
        assert not {"quantize", "dequantize", "DynamicQuantizeLinear"} & {each.op for each in network.host}
        golden = network(x)
        with RtlDevice(load_target("n4"), dram_bytes(network), latency=100) as device:
            got = Session(device, network).run({"x": x})
        for name, want in golden.items():
            np.testing.assert_array_equal(got[name], want, err_msg=name)
