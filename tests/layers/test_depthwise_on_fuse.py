"""Depthwise convolutions that FUSE computes beside an independent convolution equal the reference."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.pool import PoolLayer
from compiler.reference import Kernels, evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from tests.support.graphs import Draft, check

POINT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


def branches(rng: np.random.Generator, *, wide: bool, unsigned: bool = False) -> Graph:
    """Return a depthwise convolution beside a convolution of the same input, with many channels if `wide`."""
    draft, dtype = Draft(rng), "uint8" if unsigned else "int8"
    channels, kernel, stride = int(rng.integers(3, 40)), int(rng.choice([2, 3, 5])), int(rng.integers(1, 4))
    h, w = (int(each) for each in rng.integers(8, 20, 2))
    pads = tuple(int(each) for each in rng.integers(0, kernel, 4))
    x = draft.input((1, h, w, channels), dtype)
    scales = tuple(float(each) for each in rng.uniform(0.5, 1.5, channels) / 200)
    meaning = Quantization.per_tensor(0.004, 119) if unsigned else Quantization(scales, (0,) * channels, 2)
    weights = draft.constant((kernel, kernel, channels), dtype, meaning)
    bias = draft.constant((channels,), "int32", Quantization.per_tensor(0.001, 0))
    sizes = [(n + a + b - kernel) // stride + 1 for n, a, b in ((h, pads[0], pads[2]), (w, pads[1], pads[3]))]
    y = Tensor("depthwise", (1, *sizes, channels), dtype, draft.quantization(dtype=dtype))
    draft.into("depthwise_conv2d", [x, weights, bias], y, strides=(stride,) * 2, pads=pads, dilations=(1, 1))
    outputs = 256 if wide else 4
    filters = draft.constant((outputs, 1, 1, channels), dtype, Quantization.per_tensor(0.004, 119 * unsigned))
    z = Tensor("product", (1, h, w, outputs), dtype, draft.quantization(dtype=dtype))
    draft.into("conv2d", [x, filters], z, **POINT)
    return draft.graph.finish([y.name, z.name])


def on_fuse(graph: Graph, target: str, rounding: Kernels, rng: np.random.Generator) -> bool:
    """Compare a graph on the golden model with the reference; return True if FUSE computed the depthwise layer."""
    network = compile(graph, target, rounding=rounding)
    x = graph.tensors[graph.inputs[0]]
    limits = np.iinfo(x.dtype)
    inputs = {x.name: rng.integers(limits.min, limits.max + 1, x.shape).astype(x.dtype)}
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run(inputs)
    wanted = evaluate(graph, inputs, rounding=rounding)
    for name in graph.outputs:
        np.testing.assert_array_equal(found[name], wanted[name], f"{target} {rounding} {name}\n{graph}")
    (layer,) = (each for each in network.layers if each.ops[0] == "depthwise_conv2d")
    return isinstance(layer, PoolLayer)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("target", ["n4", "n16"])
def test_results_equal_the_reference(target: str, rounding: Kernels) -> None:
    chosen = 0
    for seed in range(4):
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        chosen += on_fuse(branches(rng, wide=True, unsigned=seed % 3 == 2), target, rounding, rng)
    assert chosen >= 1


def test_matrix_computes_it_beside_a_small_product() -> None:
    rng = np.random.default_rng(0)
    assert not on_fuse(branches(rng, wide=False), "n16", "reference", rng)


def test_each_of_several_depthwise_convolutions_is_beside_a_product() -> None:
    """Products move before depthwise convolutions that follow; every layer remains."""
    draft = Draft(np.random.default_rng(0))
    x, outputs = draft.input((1, 8, 8, 16)), []
    window = {key: value for key, value in POINT.items() if key != "groups"}
    for _ in range(2):
        weights = draft.constant((3, 3, 16), "int8", Quantization((0.005,) * 16, (0,) * 16, 2))
        outputs.append(draft.node("depthwise_conv2d", [x, weights], (1, 6, 6, 16), **window))
    for _ in range(2):
        filters = draft.constant((256, 1, 1, 16), "int8", Quantization.per_tensor(0.005, 0))
        outputs.append(draft.node("conv2d", [x, filters], (1, 8, 8, 256), **POINT))
    network = check(draft, outputs, "n4")
    kinds = [type(layer).__name__ for layer in network.layers]
    assert kinds == ["PoolLayer", "ConvLayer", "PoolLayer", "ConvLayer"]
