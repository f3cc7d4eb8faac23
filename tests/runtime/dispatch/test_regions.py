"""Only what depends on changed pixels is computed; outputs equal those of the reference in streams made to mislead."""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.run_report import document, run_samples
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from compiler.serving.request import Request, RequestResult
from compiler.serving.reuse import ReusingServer
from compiler.serving.server import Server, serving_bytes, version_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from tests.support.graphs import Draft

Arrays = dict[str, np.ndarray]
#: Bound of the mean cost of comparing images in which everything changes, as a fraction of the cycles.
MAX_COST = 0.01


def conv(
    draft: Draft,
    x: Tensor,
    channels: int,
    size: int = 3,
    stride: int = 1,
    pads: tuple[int, ...] = (1, 1, 1, 1),
) -> Tensor:
    """Add a convolution."""
    _, h, w, c = x.shape
    out = [(n + pads[i] + pads[i + 2] - size) // stride + 1 for i, n in enumerate((h, w))]
    weights = draft.constant((channels, size, size, c))
    options = {"strides": (stride, stride), "pads": pads, "dilations": (1, 1), "groups": 1}
    return draft.node("conv2d", [x, weights], (1, *out, channels), scale=9.0, **options)


def depthwise(draft: Draft, x: Tensor, stride: int = 1) -> Tensor:
    """Add a depthwise convolution of 3x3 pixels."""
    _, h, w, c = x.shape
    shape = (1, (h + stride - 1) // stride, (w + stride - 1) // stride, c)
    options = {"strides": (stride, stride), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return draft.node("depthwise_conv2d", [x, draft.constant((3, 3, c))], shape, scale=9.0, **options)


def classes(draft: Draft, x: Tensor) -> Tensor:
    """Add an average over all pixels, and a dense layer."""
    _, h, w, c = x.shape
    window = {"kernel": (h, w), "strides": (1, 1), "pads": (0, 0, 0, 0), "count_pads": False}
    mean = draft.node("avg_pool2d", [x], (1, 1, 1, c), like=x, **window)
    flat = draft.node("reshape", [mean], (1, c), like=mean, shape=(1, c))
    return draft.node("dense", [flat, draft.constant((10, c))], (1, 10), scale=9.0)


def plain(draft: Draft) -> list[Tensor]:
    """Return the output of convolutions of a square image, with odd and even sizes and strides."""
    x = conv(draft, draft.input((1, 30, 30, 3)), 16)
    x = conv(draft, conv(draft, x, 16), 16, stride=2)
    return [classes(draft, conv(draft, x, 24, size=1, pads=(0, 0, 0, 0)))]


def mobile(draft: Draft) -> list[Tensor]:
    """Return the outputs of depthwise and pointwise convolutions; an image in the middle is also an output."""
    x = conv(draft, draft.input((1, 33, 41, 3)), 16, stride=2, pads=(0, 0, 1, 1))
    x = conv(draft, depthwise(draft, x), 16, size=1, pads=(0, 0, 0, 0))
    y = conv(draft, depthwise(draft, x, 2), 32, size=1, pads=(0, 0, 0, 0))
    return [y, classes(draft, conv(draft, depthwise(draft, y), 32, size=1, pads=(0, 0, 0, 0)))]


def residual(draft: Draft) -> list[Tensor]:
    """Return the output of residual blocks with pooling."""
    x = conv(draft, draft.input((1, 32, 32, 4)), 16)
    y = conv(draft, conv(draft, x, 16), 16)
    x = draft.node("add", [y, x], x.shape, scale=9.0)
    window = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
    x = draft.node("max_pool2d", [x], (1, 16, 16, 16), like=x, **window)
    y = conv(draft, conv(draft, x, 32), 32)
    x = draft.node("add", [y, conv(draft, x, 32, size=1, pads=(0, 0, 0, 0))], y.shape, scale=9.0)
    return [classes(draft, x)]


def two_inputs(draft: Draft) -> list[Tensor]:
    """Return the output of a network of an image and a vector, whose last layers depend on both."""
    x = conv(draft, conv(draft, draft.input((1, 28, 28, 1)), 16), 16, stride=2)
    x = classes(draft, conv(draft, x, 16))
    return [draft.node("add", [x, draft.input((1, 10))], (1, 10), scale=9.0)]


NETWORKS = {each.__name__: each for each in (plain, mobile, residual, two_inputs)}


def graph_of(name: str, rng: np.random.Generator) -> Graph:
    """Return one of the networks with random weights."""
    draft = Draft(rng)
    outputs = NETWORKS[name](draft)
    return draft.graph.finish([tensor.name for tensor in outputs])


def image_of(graph: Graph) -> str:
    """Return the name of the image among the inputs."""
    return next(name for name in graph.inputs if len(graph.tensors[name].shape) == 4)


def drawn(graph: Graph, rng: np.random.Generator) -> Arrays:
    """Return random inputs of a graph."""
    tensors = (graph.tensors[name] for name in graph.inputs)
    return {t.name: rng.integers(-128, 128, t.shape).astype(np.int8) for t in tensors}


def patched(
    inputs: Arrays, name: str, at: tuple[int, int], size: tuple[int, int], rng: np.random.Generator
) -> Arrays:
    """Return a copy of the inputs in which a rectangle of an image has new pixels."""
    image = inputs[name].copy()
    part = image[0, at[0] : at[0] + size[0], at[1] : at[1] + size[1]]
    part[...] = rng.integers(-128, 128, part.shape)
    return {**inputs, name: image}


def misleading(graph: Graph, rng: np.random.Generator) -> list[Arrays]:
    """Return a stream of inputs of which each differs from the one before in a way that is easy to overlook."""
    name = image_of(graph)
    _, h, w, c = graph.tensors[name].shape
    out = [{each: np.zeros(graph.tensors[each].shape, np.int8) for each in graph.inputs}, drawn(graph, rng)]

    def changed(change: object) -> None:
        image = out[-1][name].copy()
        change(image[0])  # type: ignore[operator]
        out.append({**out[-1], name: image})

    def one(at: tuple[int, int, int]) -> None:
        def flip(image: np.ndarray) -> None:
            image.view(np.uint8)[at] ^= 1 << rng.integers(8)

        changed(flip)

    for corner in [(0, 0, 0), (0, w - 1, c - 1), (h - 1, 0, c - 1), (h - 1, w - 1, c - 1)]:
        one(corner)
    for _ in range(8):  # one byte anywhere, often at the border of a block
        one((int(rng.integers(h)), int(rng.integers(w)), int(rng.integers(c))))
    out.append(out[-2])  # a change is undone
    out.append(out[-2])

    def cancelling(image: np.ndarray) -> None:
        image[h // 2, w // 2], image[h // 2, w // 2 + 1] = (
            image[h // 2, w // 2 + 1].copy(),
            image[h // 2, w // 2].copy(),
        )

    changed(cancelling)  # the sum of all bytes remains
    changed(lambda image: image.__setitem__(slice(None), image[::-1].copy()))
    changed(lambda image: image.__setitem__([3, h - 4], image[[h - 4, 3]]))
    changed(lambda image: image.__setitem__((slice(None), slice(None), c - 1), 5))
    for _ in range(6):
        size = int(rng.integers(1, h // 2)), int(rng.integers(1, w // 2))
        at = int(rng.integers(h - size[0])), int(rng.integers(w - size[1]))
        out.append(patched(out[-1], name, at, size, rng))
    two = patched(out[-1], name, (0, 0), (2, 2), rng)
    out += [patched(two, name, (h - 2, w - 2), (2, 2), rng)] * 2  # two changes far apart, then none
    for other in set(graph.inputs) - {name}:
        out.append({**out[-1], other: out[-1][other][..., ::-1].copy()})
    return [*out, drawn(graph, rng), out[0], out[0]]


@pytest.mark.parametrize(
    ("name", "rtl"), [*((name, False) for name in NETWORKS), ("mobile", True), ("two_inputs", True)]
)
def test_outputs_do_not_depend_on_what_was_reused(rng: np.random.Generator, name: str, rtl: bool) -> None:
    graph = graph_of(name, rng)
    network = compile(graph, "n16", reuse="regions")
    assert any(code.regions for code in network.codes)
    with (RtlDevice if rtl else GoldenDevice)(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for number, inputs in enumerate(misleading(graph, rng)):
            np.testing.assert_equal(session.run(inputs), evaluate(graph, inputs), err_msg=f"request {number}")


def test_small_machine(rng: np.random.Generator) -> None:
    graph = graph_of("plain", rng)
    network = compile(graph, replace(load_target("n8"), wis_words=8192), reuse="regions")
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for inputs in misleading(graph, rng):
            np.testing.assert_equal(session.run(inputs), evaluate(graph, inputs))


def test_programs_are_validated_and_stored(rng: np.random.Generator) -> None:
    graph = graph_of("plain", rng)
    network = compile(graph, "n16", reuse="regions")
    validate_network(network, samples=2)
    again = from_bytes(io.BytesIO(to_bytes(network)))
    assert to_bytes(again) == to_bytes(network)
    assert [code.regions for code in again.codes] == [code.regions for code in network.codes]
    inputs = drawn(graph, rng)
    np.testing.assert_equal(again(**inputs), evaluate(graph, inputs))


def test_cycles_follow_the_size_of_the_change(rng: np.random.Generator) -> None:
    graph = graph_of("plain", rng)
    network, usual = compile(graph, "n16", reuse="regions"), compile(graph, "n16")
    first, name = drawn(graph, rng), image_of(graph)
    samples = [first, first, patched(first, name, (9, 9), (5, 5), rng), drawn(graph, rng)]
    with RtlDevice(network.config, dram_bytes(network, len(samples))) as device:
        run = run_samples(device, network, samples, lambda _text: None)
    with RtlDevice(usual.config, dram_bytes(usual)) as device:
        _, cycles = Session(device, usual).measure(first)
    assert run.cycles is not None
    assert run.cycles[1] < run.cycles[2] < cycles < run.cycles[3]
    assert document(network, run)["samples"] == 4


def open_server(usual: CompiledNetwork, network: CompiledNetwork, *, rtl: bool) -> Device:
    """Return a device with memory for both versions of a network."""
    size = serving_bytes(usual, versions=1) + version_bytes(network)
    return (RtlDevice if rtl else GoldenDevice)(network.config, size)


def served(server: ReusingServer, requests: Sequence[Arrays]) -> list[RequestResult]:
    """Return the results of requests submitted without a pause."""
    out = []
    for inputs in requests:
        server.submit(Request(inputs))
        out += server.results()
    return out + server.results(wait=True)


def test_server_reports_what_it_computed(rng: np.random.Generator) -> None:
    graph = graph_of("plain", rng)
    network, usual = compile(graph, "n16", reuse="regions"), compile(graph, "n16")
    name, requests = image_of(graph), [drawn(graph, rng)] * 3
    for at in range(26):
        requests.append(patched(requests[2], name, (at, at), (4, 4), rng))
    requests += [requests[-1]] * 2
    with open_server(usual, network, rtl=True) as device:
        server = Server(device, usual)
        results = served(ReusingServer(server, server.add(network)[0]), requests)
    (code,) = network.codes
    assert code.regions is not None
    # The second request is compared with zeros, and another one after a gap; later ones are in flight by then.
    assert [results[0].variant, results[1].variant, results[6].variant] == ["usual", "computed", "regions"]
    assert [result.variant for result in results[12:]] == [*17 * ["regions"], *2 * ["reused"]]
    sizes = {f"computed what depends on {h} x {w} of 30 x 30 pixels" for h, w in code.regions.windows[:-1]}
    assert {result.why for result in results[12:29]} <= sizes
    for inputs, result in zip(requests, results, strict=True):
        np.testing.assert_equal(dict(result.outputs), evaluate(graph, inputs))


def test_comparisons_of_images_that_change_everywhere_cost_little(rng: np.random.Generator) -> None:
    graph = graph_of("plain", rng)
    network, usual = compile(graph, "n16", reuse="regions"), compile(graph, "n16")
    requests = [drawn(graph, rng) for _ in range(300)]
    with open_server(usual, network, rtl=True) as device:
        server = Server(device, usual)
        results = served(ReusingServer(server, server.add(network)[0]), requests)
    cycles = np.median([result.cycles for result in results if result.variant == "usual"])
    spent = sum(result.cycles + (result.delay if result.disturbed else 0) for result in results)
    assert spent <= (1 + MAX_COST) * cycles * len(requests)
    for number in rng.choice(len(requests), 30, replace=False):
        np.testing.assert_equal(dict(results[number].outputs), evaluate(graph, requests[number]))


def test_contents_are_restored_after_an_interruption(rng: np.random.Generator) -> None:
    """A program may be interrupted after it has replaced the copy of the image, but not the results."""
    graph = graph_of("plain", rng)
    network, usual = compile(graph, "n16", reuse="regions"), compile(graph, "n16")
    first, second = drawn(graph, rng), drawn(graph, rng)
    with open_server(usual, network, rtl=False) as device:
        server = Server(device, usual)
        reusing = server.add(network)[0]
        (code,) = network.codes
        server.submit(first, version=reusing)
        server.results(wait=True)
        start = reusing.bases[0] + code.constants
        damaged = rng.integers(0, 256, code.mutable).astype(np.uint8)
        server.driver.put(damaged, start)
        server.versions.restore()
        for inputs in (second, second, first):
            server.submit(inputs, version=reusing)
            (result,) = server.results(wait=True)
            np.testing.assert_equal(dict(result.outputs), evaluate(graph, inputs))


def test_networks_without_regions_are_rejected(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    x = draft.input((1, 64))
    y = draft.node("dense", [x, draft.constant((64, 64))], (1, 64), scale=20.0)
    with pytest.raises(
        InputError, match="has no regions that could be computed alone: its first layers must be"
    ):
        compile(draft.graph.finish([y.name]), "n4", reuse="regions")


def test_other_values_are_rejected(rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match="reuse must be True, False or 'regions', not 'region'"):
        compile(graph_of("plain", rng), "n16", reuse="region")
