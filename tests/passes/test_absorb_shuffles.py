"""Networks without channel shuffles give the same results as with them, and take fewer cycles."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph, rebuild
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.channel_orders import absorb_shuffles
from compiler.reference import Kernels, evaluate
from compiler.runtime.device import open_device
from compiler.runtime.run_report import run_samples
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from tests.support.graphs import Draft

POINT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
#: All activations have one quantization, so that slices, shuffles and concatenations only move them.
SCALE, ZERO = 0.05, -3
SEEDS = range(40)


class Network:
    """Random network of convolutions, slices, concatenations and shuffles of channels."""

    def __init__(self, seed: int, size: int = 4):
        self.rng, self.size = np.random.default_rng(seed), size
        self.draft = Draft(self.rng)
        self.meaning = Quantization.per_tensor(SCALE, ZERO)
        self.count = 0

    def tensor(self, channels: int) -> Tensor:
        self.count += 1
        return Tensor(f"a{self.count}", (1, self.size, self.size, channels), "int8", self.meaning)

    def input(self, channels: int) -> Tensor:
        return self.draft.graph.add_input(self.tensor(channels))

    def conv(self, x: Tensor, outputs: int) -> Tensor:
        inputs = x.shape[3]
        scales = tuple(float(each) for each in self.rng.uniform(0.5, 1.5, outputs) / (40 * inputs**0.5))
        weights = self.draft.constant(
            (outputs, 1, 1, inputs), "int8", Quantization(scales, (0,) * outputs, 0)
        )
        operands = [x, weights, self.bias(scales)]
        return self.draft.into("conv2d", operands, self.tensor(outputs), **POINT, groups=1)

    def bias(self, scales: tuple[float, ...]) -> Tensor:
        meaning = Quantization(tuple(SCALE * each for each in scales), (0,) * len(scales), 0)
        return self.draft.constant((len(scales),), "int32", meaning)

    def depthwise(self, x: Tensor) -> Tensor:
        count = x.shape[3]
        scales = tuple(float(each) for each in self.rng.uniform(0.5, 1.5, count) / 120)
        weights = self.draft.constant((3, 3, count), "int8", Quantization(scales, (0,) * count, 2))
        operands = [x, weights, self.bias(scales)]
        return self.draft.into("depthwise_conv2d", operands, self.tensor(count), **WINDOW)

    def relu(self, x: Tensor) -> Tensor:
        return self.draft.into("clip", [x], self.tensor(x.shape[3]), low=0.0, high=float("inf"))

    def scaled(self, x: Tensor) -> Tensor:
        factors = self.draft.constant((x.shape[3],), "int8", Quantization.per_tensor(0.01, 0))
        return self.draft.into("mul", [x, factors], self.tensor(x.shape[3]))

    def part(self, x: Tensor, start: int, count: int) -> Tensor:
        sizes = (1, self.size, self.size, count)
        where = {"starts": (0, 0, 0, start), "sizes": sizes, "steps": (1, 1, 1, 1)}
        return self.draft.into("slice", [x], self.tensor(count), **where)

    def joined(self, *parts: Tensor) -> Tensor:
        return self.draft.into("concat", list(parts), self.tensor(sum(x.shape[3] for x in parts)), axis=3)

    def shuffled(self, x: Tensor, groups: int) -> Tensor:
        (_, h, w, count), meaning, draft = x.shape, self.meaning, self.draft
        folded, turned = (1, h, w, groups, count // groups), (1, h, w, count // groups, groups)
        self.count += 1
        apart = Tensor(f"r{self.count}", folded, "int8", meaning)
        apart = draft.into("reshape", [x], apart, shape=folded)
        moved = Tensor(f"p{self.count}", turned, "int8", meaning)
        moved = draft.into("transpose", [apart], moved, perm=(0, 1, 2, 4, 3))
        return draft.into("reshape", [moved], self.tensor(count), shape=x.shape)

    def finish(self, *outputs: Tensor) -> Graph:
        return self.draft.graph.finish([each.name for each in outputs])


def unit(net: Network, x: Tensor) -> Tensor:
    """Add a unit of ShuffleNetV2: half of the channels pass, a branch computes the others, and all are shuffled."""
    half = x.shape[3] // 2
    y = net.relu(net.conv(net.part(x, half, half), half))
    y = net.relu(net.conv(net.depthwise(y), half))
    return net.shuffled(net.joined(net.part(x, 0, half), y), 2)


def shufflenet(seed: int, width: int, units: int, size: int = 4) -> Graph:
    """Return units of ShuffleNetV2 between two convolutions."""
    net = Network(seed, size)
    x = net.relu(net.conv(net.input(8), width))
    for _ in range(units):
        x = unit(net, x)
    return net.finish(net.conv(x, 8))


def random_network(seed: int) -> Graph:
    """Return a random network of any of the operators; some tensors have several readers or are outputs."""
    net = Network(seed)
    rng, known, outputs = net.rng, [net.input(12)], []
    known.append(net.conv(known[0], int(rng.choice([12, 24]))))
    for _ in range(int(rng.integers(6, 16))):
        x = known[-1] if rng.random() < 0.6 else known[int(rng.integers(len(known)))]
        count, kind = x.shape[3], int(rng.integers(8))
        if kind == 0:
            y = net.conv(x, int(rng.choice([6, 12, 24])))
        elif kind == 1:
            y = net.depthwise(x)
        elif kind == 2:
            y = net.relu(x)
        elif kind == 3:
            y = net.scaled(x)
        elif kind == 4 and count > 2:
            start = int(rng.integers(count - 1))
            y = net.part(x, start, int(rng.integers(1, count - start)))
        elif kind == 5:
            y = net.joined(
                x, *(known[int(i)] for i in rng.integers(len(known), size=int(rng.integers(1, 3))))
            )
        else:
            groups = [each for each in (2, 3, 4) if count % each == 0 and count > each]
            y = net.shuffled(x, int(rng.choice(groups))) if groups else net.conv(x, 12)
        known.append(y)
        if rng.random() < 0.1:
            outputs.append(y)
    last = known[-1] if rng.random() < 0.3 else net.conv(known[-1], 6)
    return net.finish(*{each.name: each for each in (*outputs, last)}.values())


def inputs_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-128, 128, graph.tensors[name].shape).astype(np.int8) for name in graph.inputs}


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
def test_results_of_random_networks_are_equal(rounding: Kernels) -> None:
    absorbed = 0
    for seed in SEEDS:
        graph = random_network(seed)
        made, changes = absorb_shuffles(graph)
        absorbed += len(changes)
        assert (made is graph) == (not changes)
        inputs = inputs_of(graph, seed)
        wanted, got = (evaluate(each, inputs, rounding=rounding) for each in (graph, made))
        for name in graph.outputs:
            np.testing.assert_array_equal(got[name], wanted[name], f"seed {seed}")
    assert absorbed >= len(SEEDS) // 2


def renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """Return a graph some of whose tensors have other names."""

    def of(each: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in each)

    nodes = [replace(node, inputs=of(node.inputs), outputs=of(node.outputs)) for node in graph]
    changed = {new: replace(graph.tensors[old], name=new) for old, new in names.items()}
    return rebuild(graph, nodes, inputs=of(graph.inputs), outputs=of(graph.outputs), changed=changed)


def test_tensors_of_the_model_may_have_the_names_of_new_tensors() -> None:
    count = 0
    for seed in SEEDS:
        graph = random_network(seed)
        names = absorb_shuffles(graph)[0].tensors.keys() - graph.tensors.keys()
        own = [name for name in reversed(graph.tensors) if name not in graph.inputs]
        other = renamed(graph, dict(zip(own, sorted(names), strict=False)))
        made, _ = absorb_shuffles(other)
        count += len(names)
        inputs = inputs_of(other, seed)
        wanted, got = (evaluate(each, inputs) for each in (other, made))
        for name in other.outputs:
            np.testing.assert_array_equal(got[name], wanted[name], f"seed {seed}")
    assert count > 10


@pytest.mark.parametrize("seed", range(4))
def test_networks_on_the_accelerator_equal_the_reference(seed: int) -> None:
    graph = random_network(seed) if seed % 2 else shufflenet(seed, 20 + 4 * seed, 3)
    inputs = inputs_of(graph, seed)
    wanted = evaluate(graph, inputs)
    for target in ("n4", "n16"):
        network = compile(graph, target)
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            got = Session(device, network).run(inputs)
        for name in graph.outputs:
            np.testing.assert_array_equal(got[name].reshape(wanted[name].shape), wanted[name], f"seed {seed}")


@pytest.mark.parametrize(("width", "units"), [(116, 3), (232, 7), (464, 3), (48, 5)])
def test_no_shuffle_remains_between_units(width: int, units: int) -> None:
    """Products read and write in place; each concatenation copies only the channels that pass."""
    made, changes = absorb_shuffles(shufflenet(0, width, units))
    ops = [node.op for node in made]
    assert len(changes) == units and not {"transpose", "reshape"} & set(ops)
    for node in made:
        if node.op == "conv2d" and (before := made.producer(node.inputs[0])) is not None:
            assert before.op != "concat" or len(made.consumers(node.inputs[0])) == 1


def test_pinned_tensors_and_outputs_keep_their_order() -> None:
    net = Network(1)
    y = net.shuffled(net.conv(net.input(8), 12), 2)
    graph = net.finish(net.conv(y, 4))
    assert absorb_shuffles(graph)[1] and not absorb_shuffles(graph, [y.name])[1]
    net = Network(1)
    graph = net.finish(net.shuffled(net.conv(net.input(8), 12), 2))
    assert absorb_shuffles(graph) == (graph, ())


def test_shuffles_cost_no_cycles() -> None:
    """Units take the cycles of their products, which fill 8 x 8 of 7.25 x 7.25 blocks, and of the depthwise layers."""
    graph = shufflenet(0, 232, 2, 14)
    network = compile(graph, "n16")
    inputs = inputs_of(graph, 0)
    with open_device(network, "rtl", 1, 100, 16, lambda _text: None) as device:
        run = run_samples(device, network, [inputs], lambda _text: None, steadily=False)
    assert run.cycles is not None
    (name,) = graph.outputs
    np.testing.assert_array_equal(run.outputs[name], evaluate(graph, inputs)[name])
    print(f"{run.cycles[0]:,} cycles")
    assert run.cycles[0] <= 61_500


@pytest.mark.parametrize("swapped", [False, True])
def test_concatenations_of_one_tensor_convert_to_their_quantization(swapped: bool) -> None:
    net = Network(3)
    x = net.shuffled(net.conv(net.input(8), 16), 2)
    halves = [net.part(x, 0, 8), net.part(x, 8, 8)]
    whole = replace(net.tensor(16), quantization=Quantization.per_tensor(2 * SCALE, 20))
    y = net.draft.into("concat", halves[::-1] if swapped else halves, whole, axis=3)
    graph = net.finish(net.conv(y, 4))
    made, changes = absorb_shuffles(graph)
    assert changes
    inputs = inputs_of(graph, 0)
    network = compile(graph, "n8")
    for rounding in ("reference", "xnnpack", "onnxruntime"):
        wanted, got = (evaluate(each, inputs, rounding=rounding) for each in (graph, made))
        np.testing.assert_equal(got, wanted)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        np.testing.assert_equal(Session(device, network).run(inputs), evaluate(graph, inputs))
