"""Networks with states are adapted while they are served: states stay with their streams, and wrong ones are found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from compiler.frontends.tflite import read_tflite
from compiler.online_tuning.canary import CANARY_REQUESTS, wrong_outputs
from compiler.online_tuning.observers import ServingEvents
from compiler.online_tuning.online_tuner import OnlineTuner
from compiler.options import DramTiming
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import RequestResult
from compiler.serving.server import Server, serving_bytes
from cosim.golden import GoldenDevice
from hw.config import load_target
from tests.online_tuning.small_servers import ScriptedProposer, damaged, with_changed_networks
from tests.support.small_network import OPTIONS
from tests.support.tflite_recurrent import steps_in_litert, streaming_filter

_SEED, _REQUESTS = 29, 20
_STREAMS = ("a", "b")


def served(
    folder: Path, change: Callable[[CompiledNetwork], CompiledNetwork]
) -> tuple[list[RequestResult], ServingEvents, CompiledNetwork]:
    """Serve two streams, propose a candidate after a while, and compare all outputs with LiteRT's."""
    rng = np.random.default_rng(_SEED)
    data, path = streaming_filter(rng), folder / "model.tflite"
    path.write_bytes(data)
    prepared = ModelCompiler(read_tflite(path), load_target("n4"), OPTIONS)
    network, events, results = prepared.network(), ServingEvents(), list[RequestResult]()
    (x,), (y,) = network.inputs, network.outputs
    samples = {
        stream: [rng.integers(-128, 128, x.shape).astype(np.int8) for _ in range(_REQUESTS)]
        for stream in _STREAMS
    }
    layers = {name: replace(each, prefetch=0) for name, each in network.schedule.layers.items()}
    candidate, proposer = replace(network.schedule, layers=layers), ScriptedProposer(network, 1000)
    with GoldenDevice(network.config, serving_bytes(network, 4, 8)) as device:
        server = Server(device, network)
        changed = with_changed_networks(prepared, change)
        tuner = OnlineTuner(
            server, lambda _dram, schedule: changed.network(schedule), network, proposer, events, DramTiming()
        )
        for number in range(_REQUESTS):
            for stream in _STREAMS:
                server.submit({x.name: samples[stream][number]}, stream=stream)
                tuner.tick()
                results += server.results()
            if number == CANARY_REQUESTS:
                proposer.ready.append(proposer.finding(candidate, 900))
        results += server.results(wait=True)
    for stream in _STREAMS:
        wanted = steps_in_litert(data, samples[stream], "reference")
        found = [result.outputs[y.name] for result in results if result.stream == stream]
        assert all(np.array_equal(one, other[0]) for one, other in zip(found, wanted, strict=True))
    return results, events, network


def test_better_version_is_kept_and_continues_the_streams(tmp_path: Path) -> None:
    results, events, network = served(tmp_path, lambda made: made)
    assert len(events.events_named("reload")) == len(events.events_named("kept")) == 1
    assert {result.version.number for result in results} == {0, 1}
    last = results[-1]
    assert wrong_outputs(last, network) is None
    for fields, what in (({"next_states": last.states}, "states"), ({"states": last.next_states}, "outputs")):
        found = wrong_outputs(replace(last, **fields), network)  # type: ignore[arg-type]
        assert found == f"the {what} of request {last.index} are wrong"


def test_wrong_version_changes_no_state(tmp_path: Path) -> None:
    results, events, _ = served(tmp_path, damaged)
    (rollback,) = events.events_named("rollback")
    assert "are wrong" in rollback["reason"]
    assert {result.version.number for result in results} == {0}
