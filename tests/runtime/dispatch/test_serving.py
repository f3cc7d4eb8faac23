"""Waiting requests are combined into batches, and skipping applies to each request of a batch."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import Request, RequestResult
from compiler.serving.server import DynamicBatcher, Server, serving_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.runtime.dispatch.test_skip import bright_image, dark_image, gated
from tests.runtime.test_batching import _attention, _dense
from tests.support.graphs import Draft

FLIGHTS = 2


def open_device(network: CompiledNetwork, *, rtl: bool = False) -> Device:
    """Return a device with enough DRAM to serve a network."""
    return (RtlDevice if rtl else GoldenDevice)(network.config, serving_bytes(network, FLIGHTS, 1))


def serve_all(together: DynamicBatcher, requests: Iterator[dict[str, np.ndarray]]) -> list[RequestResult]:
    """Return the results of requests submitted without a pause."""
    results = []
    for inputs in requests:
        together.submit(Request(inputs))
        results += together.results()
    return results + together.results(wait=True)


@pytest.mark.parametrize("maker", [_dense, _attention])
def test_requests_receive_their_own_outputs(rng: np.random.Generator, maker: object) -> None:
    draft = Draft(rng)
    graph = draft.graph.finish([maker(draft).name])  # type: ignore[operator]
    network, one = compile(graph, "n4", batches=(1, 2, 5)), compile(graph, "n4")
    requests = [draft.random_inputs() for _ in range(23)]
    with open_device(network) as device:
        together = DynamicBatcher(Server(device, network, FLIGHTS))
        results = serve_all(together, iter(requests[:20]))
        results += serve_all(together, iter(requests[20:]))
    assert [result.index for result in results] == list(range(23)) and together.submitted == 23
    for request, result in zip(requests, results, strict=True):
        (found,), (wanted,) = result.outputs.values(), one(**request).values()
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_equal(dict(result.inputs), request)
    assert max(result.batch_size for result in results) == 5


def test_cycles_per_request_decrease_with_waiting_requests(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    x = draft.input((1, 64))
    for _ in range(3):
        x = draft.node("dense", [x, draft.constant((64, 64))], (1, 64), scale=20.0)
    graph = draft.graph.finish([x.name])
    network = compile(graph, "n4", batches=(1, 8))
    requests, cycles, programs = [draft.random_inputs() for _ in range(26)], {}, Counter[str]()
    with open_device(network, rtl=True) as device:
        for result in serve_all(DynamicBatcher(Server(device, network, FLIGHTS)), iter(requests)):
            cycles[result.batch_size] = result.cycles / result.batch_size
            programs.update(macro.program for macro in result.macros)
    assert set(cycles) == {1, 8} and cycles[8] < cycles[1] / 4
    assert set(programs) == {program.name for program in network.codes[0].all_programs}


def test_serving_with_one_batch_size(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    graph = draft.graph.finish([_dense(draft).name])
    network, one = compile(graph, "n4", batch=3), compile(graph, "n4")
    requests = [draft.random_inputs() for _ in range(7)]
    with open_device(network) as device:
        for request, result in zip(
            requests, serve_all(DynamicBatcher(Server(device, network, FLIGHTS)), iter(requests)), strict=True
        ):
            np.testing.assert_equal(dict(result.outputs), one(**request))


def test_wrong_inputs_and_counts() -> None:
    draft = Draft(np.random.default_rng(0))
    network = compile(draft.graph.finish([_dense(draft).name]), "n4", batches=(1, 2))
    with open_device(network) as device:
        server = Server(device, network, FLIGHTS)
        with pytest.raises(InputError, match=r"input 'x1' must be int8\[3, 8\], not int8\[6, 8\]"):
            DynamicBatcher(server).submit(Request({"x1": np.zeros((6, 8), np.int8)}))
        for count in (0, 3):
            with pytest.raises(InputError, match=rf"takes 1\.\.2 samples at a time, not {count}"):
                server.submit({"x1": np.zeros((6, 8), np.int8)}, count)
        assert server.busy == 0


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
@pytest.mark.parametrize("tensor", ["x", "gate"])
def test_skipping_among_requests(rng: np.random.Generator, tensor: str, rtl: bool) -> None:
    """With several requests in the ring, each guard reads the statistics of its own request."""
    graph = gated(rng)
    network, one = compile(graph, "n4", skip=tensor), compile(graph, "n4")
    images = [dark_image(graph) if rng.integers(2) else bright_image(graph, rng) for _ in range(10)]
    with open_device(network, rtl=rtl) as device:
        results = list(Server(device, network, FLIGHTS).serve({"x": image} for image in images))
    for image, result in zip(images, results, strict=True):
        np.testing.assert_equal(result.outputs, one(image))
        assert (" of zeros" in result.macros[-1].program) == bool((image == image.min()).all())
