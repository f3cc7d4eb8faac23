"""Tiles of weights that are zero are skipped: exact results, fewer cycles, fewer bytes, and no change without them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.ir.graph import Graph, rebuild
from compiler.ir.tensor import Quantization, Tensor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.run_report import document, run_samples
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import MlaConfig, load_target
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of
from tests.support.graphs import Draft, run_on

WEIGHTS = Quantization.per_tensor(2.0**-7)


def sparse(draft: Draft, shape: tuple[int, ...], n: int, share: float, dtype: str = "int8") -> Tensor:
    """Add a constant of random integers in which about a share of the n x n tiles is not zero."""
    weights = draft.constant(shape, dtype, WEIGHTS)
    data = weights.data
    assert data is not None
    out_c, *kernel, in_c = shape
    kept = draft.rng.random((-(-out_c // n), *kernel, -(-in_c // n))) < share
    data[...] *= np.repeat(np.repeat(kept, n, 0), n, -1)[:out_c, ..., :in_c].astype(dtype)
    return weights


def product(draft: Draft, rows: int, depth: int, columns: int, n: int, share: float) -> Graph:
    """Return a matrix product whose sums are divided by 1024."""
    x = draft.graph.add_input(Tensor("x", (rows, depth), "int8", Quantization.per_tensor(0.5, 3)))
    weights = sparse(draft, (columns, depth), n, share)
    y = draft.node("dense", [x, weights], (rows, columns), scale=4.0)
    return draft.graph.finish([y.name])


def convolution(draft: Draft, n: int, share: float) -> Graph:
    """Return a convolution of a random size, with padding whose value is not zero."""
    rng = draft.rng
    h, w, size = int(rng.integers(3, 14)), int(rng.integers(3, 14)), int(rng.choice((1, 3, 5)))
    channels, made = (int(rng.integers(1, 5 * n)) for _ in range(2))
    if rng.random() < 0.5:
        channels, made = -(-channels // n) * n, -(-made // n) * n
    stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, size // 2 + 1))
    x = draft.graph.add_input(Tensor("x", (1, h, w, channels), "int8", Quantization.per_tensor(0.5, -5)))
    weights = sparse(draft, (made, size, size, channels), n, share)
    out = [(each + 2 * pad - size) // stride + 1 for each in (h, w)]
    if min(out) < 1:
        return convolution(Draft(rng), n, share)
    attributes = {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (1, 1), "groups": 1}
    y = draft.node("conv2d", [x, weights], (1, *out, made), scale=4.0, **attributes)
    return draft.graph.finish([y.name])


def expected(graph: Graph, x: NDArray) -> NDArray:
    """Return the result of a graph of one node, computed with numpy alone.

    The multiplier is 2**-10, and the result is not rounded.
    """
    (node,) = graph.nodes.values()
    inputs, made = [graph.tensors[name] for name in node.inputs], graph.tensors[node.outputs[0]]
    weights = inputs[1].data
    assert weights is not None and inputs[0].quantization is not None and made.quantization is not None
    real = x.astype(np.int64) - inputs[0].quantization.zero_point[0]
    if node.op == "dense":
        sums = real @ weights.astype(np.int64).T
    else:
        (top, left, bottom, right), (down, across) = node.attributes["pads"], node.attributes["strides"]
        padded = np.pad(real, ((0, 0), (top, bottom), (left, right), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[1:3], (1, 2))
        sums = np.einsum("bhwcij,oijc->bhwo", windows[:, ::down, ::across], weights.astype(np.int64))
    return np.clip(sums / 1024 + made.quantization.zero_point[0], -128, 127)


def check(graph: Graph, config: MlaConfig, rng: np.random.Generator, *, rtl: bool = False) -> CompiledNetwork:
    """Run a graph and compare its output with the sums of numpy; return the network."""
    network = compile(graph, config)
    x = rng.integers(-128, 128, graph.tensors["x"].shape).astype(np.int8)
    if rtl:
        with RtlDevice(network.config, dram_bytes(network)) as device:
            found = Session(device, network).run({"x": x})
    else:
        found = run_on(GoldenDevice(network.config, dram_bytes(network)), network, {"x": x})
    (array,) = found.values()
    assert np.abs(array - expected(graph, x)).max() <= 0.5 + 2.0**-10  # rounded once or twice
    return network


def products(graph: Graph, target: str, schedule: Schedule | None = None) -> int:
    """Return the number of MATRIX commands."""
    return sum(command.unit == Unit.MATRIX for command in commands_of(graph, target, schedule))


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_random_layers_are_exact(target: str, rng: np.random.Generator) -> None:
    config = load_target(target)
    for _ in range(10):
        share = float(rng.choice((0.05, 0.2, 0.5, 0.8)))
        draft = Draft(rng)
        if rng.random() < 0.5:
            rows, depth, columns = (
                int(rng.integers(1, 80)),
                *(int(rng.integers(1, 12 * config.n)) for _ in "kn"),
            )
            check(product(draft, rows, depth, columns, config.n, share), config, rng)
        else:
            check(convolution(draft, config.n, share), config, rng)


@pytest.mark.parametrize("target", ["n8", "n16"])
def test_random_layers_are_exact_on_the_rtl(target: str, rng: np.random.Generator) -> None:
    config = load_target(target)
    for share in (0.1, 0.4):
        check(product(Draft(rng), 40, 12 * config.n, 6 * config.n, config.n, share), config, rng, rtl=True)
        check(convolution(Draft(rng), config.n, share), config, rng, rtl=True)


@pytest.mark.parametrize("change", [{"packed_loads": 0}, {"wide": 0, "sparse": 0}, {"weight_rows": 1}])
def test_machines_without_options(change: dict[str, int], rng: np.random.Generator) -> None:
    config = replace(load_target("n8"), **change)
    check(product(Draft(rng), 3, 256, 128, 8, 0.2), config, rng)
    check(product(Draft(rng), 50, 128, 128, 8, 0.4), config, rng)


def test_weights_that_are_all_zero(rng: np.random.Generator) -> None:
    check(product(Draft(rng), 20, 256, 64, 16, 0.0), load_target("n16"), rng)


def test_int4_weights_are_skipped_in_wide_mode(rng: np.random.Generator) -> None:
    graph = product(Draft(rng), 40, 256, 128, 16, 0.3)
    for tensor in graph.tensors.values():
        if tensor.data is not None:
            tensor.data[...] >>= 4
    check(graph, load_target("n16"), rng)


def test_dense_weights_and_weights_with_a_zero_point_are_not_changed() -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, 40, 256, 128, 16, 1.0)
    assert products(graph, "n16") == products(_without(graph), "n16")
    draft = Draft(np.random.default_rng(0))
    x = draft.input((40, 256), "uint8")
    weights = draft.constant((128, 256), "uint8", Quantization.per_tensor(0.01, 7))
    assert weights.data is not None
    weights.data[:64] = 0
    y = draft.node("dense", [x, weights], (40, 128), scale=4.0, dtype="uint8")
    graph = draft.graph.finish([y.name])
    schedule = compile(graph, "n16").schedule
    assert products(graph, "n16", schedule) == products(_without(graph), "n16", schedule)


def _without(graph: Graph) -> Graph:
    """Return the graph with weights that are never zero."""
    changed = {
        name: replace(tensor, data=np.maximum(tensor.data, 1))
        for name, tensor in graph.tensors.items()
        if tensor.data is not None
    }
    return rebuild(graph, graph.nodes.values(), changed=changed)


def test_a_schedule_can_keep_tiles_that_are_zero(rng: np.random.Generator) -> None:
    graph = product(Draft(rng), 40, 512, 256, 16, 0.5)
    network = compile(graph, "n16")
    other = compile(graph, "n16", schedule=network.schedule.unpacked())
    assert all(isinstance(each, LayerSchedule) for each in other.schedule.layers.values())
    sizes = [sum(code.image.size for code in each.codes) for each in (network, other)]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_cycles_fall_with_the_share_of_tiles(share: float, rng: np.random.Generator) -> None:
    """On n16, 128 x 512 x 256 takes at least 65,536 cycles with dense weights.

    Reports count the multiply-accumulates of the model's definition.
    """
    graph = product(Draft(rng), 128, 512, 256, 16, share)
    (weights,) = (tensor.data for tensor in graph.tensors.values() if tensor.data is not None)
    kept = float((weights.reshape(16, 16, 32, 16) != 0).any((1, 3)).mean())
    network = compile(graph, "n16")
    x = rng.integers(-128, 128, (128, 512)).astype(np.int8)
    with RtlDevice(network.config, dram_bytes(network)) as device:
        run = run_samples(device, network, [{"x": x}], lambda _: None)
    report = document(network, run, network.config.n)
    print(
        f"{kept:.3f} of the tiles: {report['cycles']:,} cycles, {report['cycles'] / 65536:.3f} of the dense product"
    )
    assert report["floor_cycles"] <= report["cycles"] <= (kept + 0.06) * 65_536
    assert report["macs"] == 128 * 512 * 256
    # A few tiles are multiplied although they are zero, where a command more would take longer.
    assert 0.95 * (1 - kept) * report["macs"] <= report["skipped_macs"] <= (1 - kept) * report["macs"]
    assert report["utilization"] == pytest.approx(65_536 / report["cycles"])


def test_one_program_that_does_not_fit_does_without_skipped_tiles(rng: np.random.Generator) -> None:
    graph = product(Draft(rng), 40, 512, 512, 8, 0.5)
    config = replace(load_target("n8"), wis_words=2048)
    network = compile(graph, config)
    assert sum(len(code.parts) for code in network.codes) > 1
    network = compile(graph, config, batches=(1,))
    assert sum(len(code.parts) for code in network.codes) == 1
    assert not any(layer.packed_weights for layer in network.schedule.layers.values())
