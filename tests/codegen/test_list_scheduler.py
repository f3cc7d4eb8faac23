"""Interleaving the tile steps of several layers saves cycles and gives the same result.

The first network has a softmax and a dense layer that are independent of each other; the second network has a pool
after a convolution.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from tests.support.graphs import Draft

#: Cycles after a reset in which the machine clears its counters.
_AFTER_RESET = 20_000
#: Maximum cycles of the graphs below with interleaving: the measured cycles plus a small margin.
_CEILING, _POOL_CEILING = 209_000, 131_000


def attention(rows: int, width: int) -> tuple[CompiledNetwork, dict[str, np.ndarray]]:
    """Return a network that multiplies the softmax of a product by the result of a dense layer, and its inputs."""
    draft = Draft(np.random.default_rng(3))
    x = draft.input((rows, width))
    weights = draft.constant((width, width), quantization=Quantization.per_tensor(0.02, 0))
    assert x.quantization is not None
    bias = draft.constant((width,), "int32", Quantization.per_tensor(x.quantization.scale[0] * 0.02, 0))
    value = draft.node("dense", [x, weights, bias], (rows, width), scale=0.5)
    other = draft.input((width, rows))
    scores = draft.node("matmul", [x, other], (rows, rows), scale=0.5)
    share = Tensor("share", (rows, rows), "int8", Quantization.per_tensor(1 / 256, -128))
    draft.into("softmax", [scores], share, axis=1, beta=1.0)
    y = draft.node("matmul", [share, value], (rows, width), scale=0.1)
    graph = draft.graph.finish([y.name])
    return compile(graph, "n16"), draft.random_inputs()


def convolution_and_pool(size: int, channels: int) -> tuple[CompiledNetwork, dict[str, np.ndarray]]:
    """Return a network of a convolution and a pool whose rows need all channel blocks, and the network's inputs."""
    draft, half = Draft(np.random.default_rng(4)), size // 2
    x = draft.input((1, size, size, 3))
    y = draft.node(
        "conv2d",
        [x, draft.constant((channels, 7, 7, 3))],
        (1, half, half, channels),
        scale=40.0,
        strides=(2, 2),
        dilations=(1, 1),
        pads=(3, 3, 3, 3),
        groups=1,
    )
    z = replace(y, name="pooled", shape=(1, half // 2, half // 2, channels))
    draft.into("max_pool2d", [y], z, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    return compile(draft.graph.finish([z.name]), "n16"), draft.random_inputs()


@pytest.mark.parametrize(
    ("made", "ceiling"), [((attention, 128, 512), _CEILING), ((convolution_and_pool, 112, 64), _POOL_CEILING)]
)
def test_interleaving_saves_cycles(made: tuple[Callable[..., Any], int, int], ceiling: int) -> None:
    maker, *sizes = made
    network, inputs = maker(*sizes)
    apart = replace(
        network.schedule,
        layers={name: replace(layer, interleave=False) for name, layer in network.schedule.layers.items()},
    )
    assert network.schedule != apart
    assert network.graph is not None
    alone = compile(network.graph, "n16", schedule=apart)
    results, cycles = [], []
    for each in (network, alone):
        with GoldenDevice(each.config, dram_bytes(each)) as device:
            results.append(Session(device, each).run(inputs))
        with RtlDevice(each.config, dram_bytes(each)) as device:
            device.run_cycles(_AFTER_RESET)
            found, taken = Session(device, each).measure(inputs)
            results.append(found)
            cycles.append(taken)
    for found in results[1:]:
        assert all(np.array_equal(found[name], results[0][name]) for name in found)
    assert cycles[0] < cycles[1], cycles
    assert cycles[0] < ceiling, cycles


def test_steps_of_independent_layers_remain_in_order() -> None:
    """FUSE copies the operand of a convolution before MATRIX reads it, also beside a layer that needs no result."""
    draft = Draft(np.random.default_rng(0))
    even = Quantization.per_tensor(0.01, 0)
    point: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    x = draft.input((1, 8, 8, 8))
    t = draft.node("conv2d", [x, draft.constant((3, 1, 1, 8), quantization=even)], (1, 8, 8, 3), **point)
    y = draft.node("conv2d", [t, draft.constant((24, 1, 1, 3), quantization=even)], (1, 8, 8, 24), **point)
    padded: dict[str, Any] = point | {"pads": (2,) * 4}
    weights = draft.constant((8, 5, 5, 3), quantization=even)
    z = draft.node("conv2d", [t, weights], (1, 8, 8, 8), **padded)
    graph, inputs = draft.graph.finish([y.name, z.name]), draft.random_inputs()
    schedule = compile(graph, "n8").schedule
    layers = {
        name: replace(layer, interleave=number > 0)
        for number, (name, layer) in enumerate(schedule.layers.items())
    }
    network = compile(graph, "n8", schedule=replace(schedule, layers=layers))
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run(inputs)
    np.testing.assert_equal(found, evaluate(graph, inputs, rounding="reference"))
