"""Results are reused if the inputs repeat; outputs and the cost of comparisons."""

import io
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.known_results import with_reuse
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
from hw.errors import InputError
from tests.support.graphs import Draft

Arrays = dict[str, np.ndarray]
#: Bound of the mean cost of comparing inputs that never repeat, as a fraction of the cycles.
MAX_COST = 0.01


def layers_of_two_inputs(rng: np.random.Generator) -> Graph:
    """Return a graph with two inputs, of int8 and int16, whose sizes are not multiples of N, and two outputs."""
    draft = Draft(rng)
    x, other = draft.input((1, 5, 3, 7)), draft.input((1, 13), dtype="int16")
    y = draft.node("conv2d", [x, draft.constant((9, 1, 1, 7))], (1, 5, 3, 9), scale=9.0, **POINTWISE)
    z = draft.node("requantize", [other], (1, 13), dtype="int16", scale=0.3)
    return draft.graph.finish([y.name, z.name])


POINTWISE = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


def dense_layers(rng: np.random.Generator, count: int = 3) -> Graph:
    """Return dense layers of 64 channels."""
    draft = Draft(rng)
    x = draft.input((1, 64))
    for _ in range(count):
        x = draft.node("dense", [x, draft.constant((64, 64))], (1, 64), scale=20.0)
    return draft.graph.finish([x.name])


def drawn(graph: Graph, rng: np.random.Generator) -> Arrays:
    """Return random inputs of a graph."""
    out = {}
    for name in graph.inputs:
        tensor, limits = graph.tensors[name], np.iinfo(graph.tensors[name].dtype)
        out[name] = rng.integers(limits.min, limits.max + 1, tensor.shape).astype(tensor.dtype)
    return out


def one_bit_away(inputs: Arrays, rng: np.random.Generator) -> Arrays:
    """Return a copy of the inputs in which one bit of one byte differs."""
    out = {name: array.copy() for name, array in inputs.items()}
    changed = out[sorted(out)[rng.integers(len(out))]].reshape(-1).view(np.uint8)
    changed[rng.integers(changed.size)] ^= 1 << rng.integers(8)
    return out


def stream(graph: Graph, rng: np.random.Generator, count: int) -> list[Arrays]:
    """Return inputs that repeat, differ in a single bit, return to earlier ones, or are new."""
    out = [{name: np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype) for name in graph.inputs}]
    while len(out) < count:
        last = out[-1]
        draw = rng.integers(5)
        following = (
            last if draw < 2 else one_bit_away(last, rng) if draw == 2 else out[rng.integers(len(out))]
        )
        out.append(drawn(graph, rng) if draw == 4 else following)
    return out


def same(a: Arrays, b: Arrays) -> bool:
    """Return True if all bytes are equal."""
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
@pytest.mark.parametrize("target", ["n4", "n16"])
def test_outputs_do_not_depend_on_reuse(rng: np.random.Generator, target: str, rtl: bool) -> None:
    graph = layers_of_two_inputs(rng)
    network = compile(graph, target, reuse=True)
    samples = stream(graph, rng, 24)
    zeros = {name: np.zeros_like(array) for name, array in samples[0].items()}
    reused = sum(same(a, b) for a, b in zip([zeros, *samples], samples, strict=False))
    with (RtlDevice if rtl else GoldenDevice)(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for inputs in samples:
            np.testing.assert_equal(session.run(inputs), evaluate(graph, inputs))
        # A request is compared with the last one that was computed, which equals the last one.
        assert session.taken == [Counter({0: reused, 1: len(samples) - reused})] and 4 < reused < 20


def test_reusing_takes_a_fraction_of_the_cycles(rng: np.random.Generator) -> None:
    graph = dense_layers(rng)
    network, usual = compile(graph, "n4", reuse=True), compile(graph, "n4")
    first, second = drawn(graph, rng), drawn(graph, rng)
    samples = [first, first, second, second, first]
    with RtlDevice(network.config, dram_bytes(network, len(samples))) as device:
        run = run_samples(device, network, samples, lambda _text: None)
    with RtlDevice(usual.config, dram_bytes(usual)) as device:
        _, cycles = Session(device, usual).measure(first)
    assert run.cycles is not None and cycles is not None
    # Comparing 64 bytes takes two latencies of the memory, copying inputs and outputs another two.
    assert [each < 0.2 * cycles for each in run.cycles] == [False, True, False, True, False]
    assert max(run.cycles) < cycles + 4 * 100 + 200
    report = document(network, run)
    assert [each["runs"] for each in report["variants"]] == [2, 3]
    assert [floor.macs for floor in run.floors] == [3 * 64 * 64 * times for times in (1, 0, 1, 0, 1)]


def test_all_programs_are_validated_and_stored(rng: np.random.Generator) -> None:
    network = compile(layers_of_two_inputs(rng), "n4", reuse=True)
    assert [report.paths for report in validate_network(network, samples=2).values()] == [3]
    again = from_bytes(io.BytesIO(to_bytes(network)))
    assert to_bytes(again) == to_bytes(network)
    inputs = drawn(layers_of_two_inputs(rng), rng)
    np.testing.assert_equal(again(**inputs), network(**inputs))
    assert [code.mutable for code in again.codes] == [code.mutable for code in network.codes] != [0]


def served(server: ReusingServer, requests: Sequence[Arrays]) -> list[RequestResult]:
    """Return the results of requests submitted without a pause."""
    out = []
    for inputs in requests:
        server.submit(Request(inputs))
        out += server.results()
    return out + server.results(wait=True)


def open_server(usual: CompiledNetwork, network: CompiledNetwork, *, rtl: bool) -> Device:
    """Return a device with memory for both versions of a network."""
    size = serving_bytes(usual, versions=1) + version_bytes(network)
    return (RtlDevice if rtl else GoldenDevice)(network.config, size)


def test_constant_stretches_of_a_stream_are_reused(rng: np.random.Generator) -> None:
    """Each stretch is noticed; the other requests run without comparisons."""
    graph = dense_layers(rng)
    network, usual = compile(graph, "n4", reuse=True), compile(graph, "n4")
    requests = [drawn(graph, rng) for _ in range(20)]
    requests += [requests[-1]] * 20 + [drawn(graph, rng) for _ in range(10)] + [drawn(graph, rng)] * 40
    with open_server(usual, network, rtl=True) as device:
        server = Server(device, usual)
        results = served(ReusingServer(server, server.add(network)[0]), requests)
    for inputs, result in zip(requests, results, strict=True):
        np.testing.assert_equal(dict(result.outputs), evaluate(graph, inputs))
    assert [result.variant for result in results[36:40] + results[86:]] == 8 * ["reused"]
    assert all(result.why for result in results)
    usual_cycles = [result.cycles for result in results if result.variant == "usual"]
    reused_cycles = [result.cycles for result in results if result.variant == "reused"]
    assert max(reused_cycles) < 0.2 * min(usual_cycles)


@pytest.mark.parametrize("period", [1, 2])
def test_comparisons_of_inputs_that_never_repeat_cost_little(rng: np.random.Generator, period: int) -> None:
    """Also if inputs alternate, so that each equals an earlier one, but never the last one."""
    graph = dense_layers(rng)
    network, usual = compile(graph, "n4", reuse=True), compile(graph, "n4")
    repeated = [drawn(graph, rng) for _ in range(period)]
    requests = [drawn(graph, rng) if period == 1 else repeated[i % period] for i in range(300)]
    with open_server(usual, network, rtl=True) as device:
        server = Server(device, usual)
        results = served(ReusingServer(server, server.add(network)[0]), requests)
    cycles = np.median([result.cycles for result in results if result.variant == "usual"])
    assert sum(result.cycles for result in results) <= (1 + MAX_COST) * cycles * len(requests)
    for number in random.Random(0).sample(range(len(requests)), 40):
        np.testing.assert_equal(dict(results[number].outputs), evaluate(graph, requests[number]))


def test_repeated_request_does_not_stop_the_choice_of_gaps(rng: np.random.Generator) -> None:
    """The request whose result decides about the gap is rejected, and runs again on the usual version."""
    graph = dense_layers(rng)
    network, usual = compile(graph, "n4", reuse=True), compile(graph, "n4")
    requests = [drawn(graph, rng) for _ in range(60)]
    rejected = []

    def rejects(result: RequestResult) -> bool:
        once = result.index == 1 and not rejected
        rejected.extend([result.index] if once else [])
        return once

    with open_server(usual, network, rtl=False) as device:
        server = Server(device, usual)
        server.rejects = rejects
        results = served(ReusingServer(server, server.add(network)[0]), requests)
    assert rejected == [1] and results[1].variant == "usual"
    assert 4 < sum(result.variant == "computed" for result in results) < 30
    for inputs, result in zip(requests, results, strict=True):
        np.testing.assert_equal(dict(result.outputs), evaluate(graph, inputs))


def test_each_stage_reuses_its_own_results(rng: np.random.Generator) -> None:
    """A node on the host separates two stages; only the second one reads the input that changes."""
    draft = Draft(rng)
    x, other = draft.input((1, 64)), draft.input((1, 64))
    y = draft.node("dense", [x, draft.constant((64, 64))], (1, 64), scale=20.0)
    z = draft.node("clip", [y], (1, 64), like=y, low=-100.0, high=100.0)
    out = draft.node("add", [z, other], (1, 64), scale=20.0)
    graph = draft.graph.finish([out.name])
    network, usual = (compile(graph, "n4", reuse=reuse, host=(f"make {z.name}",)) for reuse in (True, False))
    first, second = drawn(graph, rng), drawn(graph, rng)
    requests = [first, first, {**first, other.name: second[other.name]}]
    with open_server(usual, network, rtl=False) as device:
        server = Server(device, usual)
        results = served(ReusingServer(server, server.add(network)[0]), requests)
    assert [result.variant for result in results] == ["computed", "reused", "partly reused"]
    assert results[-1].why == "the inputs of 1 of 2 stages equal those of an earlier request"
    for inputs, result in zip(requests, results, strict=True):
        np.testing.assert_equal(dict(result.outputs), evaluate(graph, inputs))


def test_copies_are_restored_after_an_interruption(rng: np.random.Generator) -> None:
    """A program may be interrupted after it has replaced the copy of the inputs, but not that of the outputs."""
    while True:
        graph = dense_layers(rng, 1)
        first, second = drawn(graph, rng), drawn(graph, rng)
        if not same(
            evaluate(graph, first), evaluate(graph, second)
        ):  # all results may be at the limit of int8
            break
    network, usual = compile(graph, "n4", reuse=True), compile(graph, "n4")
    with open_server(usual, network, rtl=False) as device:
        server = Server(device, usual)
        reusing = server.add(network)[0]
        (code,) = network.codes
        copies = [evaluate(graph, first)[graph.outputs[0]], second[graph.inputs[0]]]
        server.driver.put(np.concatenate(copies, axis=None), reusing.bases[0] + code.constants)
        found = []
        for _ in range(2):
            server.submit(second, version=reusing)
            found += server.results(wait=True)
            server.versions.restore()
    assert not same(dict(found[0].outputs), evaluate(graph, second))
    assert same(dict(found[1].outputs), evaluate(graph, second))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reuse": True, "skip": "x1"}, "reuse cannot be combined with skip"),
        ({"reuse": True, "batches": (1, 2)}, "reuse cannot be combined with batches"),
        ({"reuse": 1}, "reuse must be True, False or 'regions', not 1"),
    ],
)
def test_invalid_combinations_are_rejected(rng: np.random.Generator, options: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        compile(dense_layers(rng), "n4", **options)


def test_inputs_that_do_not_fit_are_rejected(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    x = draft.input((1, 200, 200, 1))
    y = draft.node("max_pool2d", [x], (1, 100, 100, 1), like=x, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4)
    graph = draft.graph.finish([y.name])
    with pytest.raises(
        InputError, match=r"two copies of 'x1' of 40,000 bytes do not fit the scratchpad of 65,536"
    ):
        compile(graph, "n4", reuse=True)


def test_network_without_a_layer_on_the_accelerator_is_rejected(rng: np.random.Generator) -> None:
    graph = dense_layers(rng, 1)
    network = compile(graph, "n4", host=("dense",), enable=())
    with pytest.raises(InputError, match="has no layer on the accelerator"):
        with_reuse(network)
