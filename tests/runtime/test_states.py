"""States of networks: carried from sample to sample by sessions, packages and servers, and refused in batches."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.frontends.tflite import read_tflite
from compiler.ir.graph import Graph, GraphError, GraphState
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_reader import MANIFEST
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.serving.server import Server, serving_bytes
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError
from tests.support import tflite_recurrent as files
from tests.support.tflite_recurrent import LstmKind, steps_in_litert

#: Number of samples of a sequence; tests/soak/test_recurrent.py runs 1,000.
_SAMPLES = 20


@pytest.fixture(scope="module", params=("lstm", "svdf", "filter"))
def data(request: pytest.FixtureRequest) -> bytes:
    """A streaming model: an LSTM with one step per sample, two SVDF layers, or dense layers with variables."""
    rng = np.random.default_rng(4)
    if request.param == "lstm":
        return files.lstm(rng, LstmKind(projection=True), steps=1)
    return (
        files.streaming_filter(rng) if request.param == "filter" else files.svdf(rng, activation=1, layers=2)
    )


@pytest.fixture(scope="module")
def network(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> CompiledNetwork:
    """The compiled model."""
    return compiled(data, tmp_path_factory.mktemp("model"))


def compiled(data: bytes, folder: Path, **options: Any) -> CompiledNetwork:
    """Write a file and compile it."""
    path = folder / "model.tflite"
    path.write_bytes(data)
    return compiler.compile(path, "n8", cache=False, **options)


def samples_of(network: CompiledNetwork, count: int) -> list[np.ndarray]:
    """Return random samples of the only input."""
    (x,), rng = network.inputs, np.random.default_rng(0)
    return [rng.integers(-128, 128, x.shape).astype(np.int8) for _ in range(count)]


def test_session_carries_states_as_litert_does(network: CompiledNetwork, data: bytes) -> None:
    samples = samples_of(network, _SAMPLES)
    wanted, (y,) = steps_in_litert(data, samples, "reference"), network.outputs
    with compiler.open_device(network, "golden") as device:
        session = compiler.Session(device, network)
        for sample, expected in zip(samples, wanted, strict=True):
            assert np.array_equal(session.run({"x": sample})[y.name], expected[0])
        session.reset()
        assert np.array_equal(session.run({"x": samples[0]})[y.name], wanted[0][0])
    assert not {state.name for state in network.states} & {tensor.name for tensor in network.inputs}


def test_products_run_on_the_accelerator(network: CompiledNetwork) -> None:
    assert all(
        node.op in ("lstm_cell", "lstm_hidden", "rescale", "svdf_state", "svdf") for node in network.host
    )
    assert any("dense" in info.ops for info in network.infos)


def test_states_can_be_stored_and_assigned(network: CompiledNetwork) -> None:
    samples = samples_of(network, 3)
    with compiler.open_device(network, "golden") as device:
        session = compiler.Session(device, network)
        session.run({"x": samples[0]})
        held = session.states
        once = session.run({"x": samples[1]})
        session.run({"x": samples[2]})
        session.states = held
        again = session.run({"x": samples[1]})
        assert all(np.array_equal(once[name], again[name]) for name in once)
        session.states = {}
        with pytest.raises(InputError, match="inputs must be"):
            session.run({"x": samples[0]})


def test_loop_of_many_steps_equals_litert(tmp_path: Path) -> None:
    data = files.lstm(np.random.default_rng(2), LstmKind(), steps=40)
    network = compiled(data, tmp_path)
    assert any(stage.control for stage in network.stages)
    samples = samples_of(network, 2)
    with compiler.open_device(network, "golden") as device:
        session = compiler.Session(device, network)
        found = [session.run({"x": sample})["y"] for sample in samples]
    wanted = steps_in_litert(data, samples, "reference")
    assert all(np.array_equal(one, other[0]) for one, other in zip(found, wanted, strict=True))


def test_compiled_file_keeps_the_states(network: CompiledNetwork) -> None:
    read = from_bytes(io.BytesIO(to_bytes(network, whole=True)))
    assert [state.name for state in read.states] == [state.name for state in network.states]
    assert read.graph is not None and len(read.graph.states) == len(network.states)
    results = []
    for each in (network, read):
        with compiler.open_device(each, "golden") as device:
            session = compiler.Session(device, each)
            results.append([session.run({"x": sample}) for sample in samples_of(network, 3)])
    for one, other in zip(*results, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_server_keeps_the_states_of_each_stream(network: CompiledNetwork, data: bytes) -> None:
    first, second = samples_of(network, 4), samples_of(network, 8)[4:]
    wanted = {name: steps_in_litert(data, each, "reference") for name, each in (("a", first), ("b", second))}
    (y,), device = network.outputs, GoldenDevice(network.config, serving_bytes(network, 4, 1))
    server, found = Server(device, network), {"a": [], "b": []}
    for one, other in zip(first, second, strict=True):
        server.submit({"x": one}, stream="a")
        server.submit({"x": other}, stream="b")
    server.submit({"x": first[0]}, stream="a", reset=True)
    for result in server.results(wait=True):
        found[result.stream].append(result.outputs[y.name])
    wanted["a"].append(wanted["a"][0])
    for name, outputs in found.items():
        assert all(np.array_equal(a, b[0]) for a, b in zip(outputs, wanted[name], strict=True))


def test_batches_and_skips_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a batch of 2: 'model' keeps state"):
        compiled(data, tmp_path, batch=2)
    with pytest.raises(InputError, match="skip: 'model' keeps state"):
        compiled(data, tmp_path, skip="x")


def test_float_model_is_quantized_with_its_states(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    data = files.svdf(rng, "float32", layers=2)
    shape = compiled(data, tmp_path).inputs[0].shape
    samples = [rng.normal(0, 1, shape).astype(np.float32) for _ in range(24)]
    network = compiled(data, tmp_path, calibration=[{"x": sample} for sample in samples])
    wanted, (y,) = steps_in_litert(data, samples, "reference"), network.outputs
    with compiler.open_device(network, "golden") as device:
        session = compiler.Session(device, network)
        found = [session.run({"x": sample})[y.name] for sample in samples]
    signal = np.array([each[0] for each in wanted])
    assert 10 * np.log10((signal**2).sum() / ((signal - np.array(found)) ** 2).sum()) > 25


def test_state_must_be_an_input_and_an_output() -> None:
    with pytest.raises(GraphError, match="state 's' must be an input and an output"):
        Graph("g").keep([GraphState("s", "t", np.zeros(1, np.int8))])


def test_tuning_sees_states_as_inputs_and_outputs(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    graph = read_tflite(path)
    compiled = ModelCompiler(graph, load_target("n8"), CompileOptions(rounding="reference"))
    compiled.open_states()
    network = compiled.network()
    assert graph.states and not network.states
    assert {state.input for state in graph.states} < {tensor.name for tensor in network.inputs}
    assert {state.output for state in graph.states} < {tensor.name for tensor in network.outputs}


def test_damaged_states_of_a_compiled_file_are_refused(network: CompiledNetwork) -> None:
    def tampered(change: Callable[[dict], object]) -> None:
        source, target = zipfile.ZipFile(io.BytesIO(to_bytes(network))), io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            for name in source.namelist():
                content = source.read(name)
                if name == MANIFEST:
                    manifest = json.loads(content)
                    change(manifest)
                    content = json.dumps(manifest).encode()
                archive.writestr(name, content)
        with pytest.raises(InputError, match="damaged compiled network"):
            from_bytes(io.BytesIO(target.getvalue()))

    tampered(lambda manifest: manifest.pop("states"))
    tampered(lambda manifest: manifest["states"].clear())
    tampered(lambda manifest: manifest["states"][0]["input"].update(shape=[7]))
    tampered(lambda manifest: manifest["states"][0]["input"].update(name="x"))
    tampered(lambda manifest: manifest["states"][0]["output"].update(name="nothing"))
