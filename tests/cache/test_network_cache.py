"""Networks and validation proofs from the cache equal newly compiled networks and new proofs."""

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.cache import digest
from compiler.cache.content_store import ContentStore
from compiler.pipeline import CompilationTrace
from compiler.runtime import validation
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import to_bytes
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.stages import Origin
from compiler.runtime.validation import prove
from compiler.validate import MacroCall, ValidationError
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.isa.assembler import assemble
from tests.support.control_models import early_exit
from tests.support.graphs import Draft
from tests.support.trained_networks import model

KWS = model("kws_ref_model")


def entry(folder: Path) -> Path:
    (path,) = (each for each in folder.iterdir() if each.name.startswith("network-"))
    return path


def run(network: CompiledNetwork, proofs: ContentStore | None = None) -> dict[str, np.ndarray]:
    inputs = {
        tensor.name: np.random.default_rng(5).integers(-128, 128, tensor.shape).astype(tensor.dtype)
        for tensor in network.inputs
    }
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return Session(device, network, proofs=proofs).run(inputs)


def test_second_compilation_is_from_the_cache():
    first, again, without = compile(KWS), compile(KWS), compile(KWS, cache=False)
    assert [each.origin for each in (first, again, without)] == [
        Origin.COMPILED,
        Origin.CACHE,
        Origin.COMPILED,
    ]
    assert to_bytes(first) == to_bytes(again) == to_bytes(without)
    assert again.graph is not None and str(again.graph) == str(first.graph)
    for name, array in run(first).items():
        np.testing.assert_array_equal(run(again)[name], array)


def test_every_relevant_change_gives_another_entry(monkeypatch):
    def draft(seed: int) -> Draft:
        made = Draft(np.random.default_rng(seed))
        x = made.input((1, 8))
        made.graph.finish([made.node("dense", [x, made.constant((4, 8))], (1, 4)).name])
        return made

    def origin(seed: int = 0, target: str = "n8", **options: object) -> Origin:
        return compile(draft(seed).graph, target, cache=True, **options).origin  # type: ignore[arg-type]

    assert origin() == Origin.COMPILED and origin() == Origin.CACHE
    assert origin(seed=1) == Origin.COMPILED  # other weights
    assert origin(target="n4") == Origin.COMPILED
    assert origin(rounding="xnnpack") == Origin.COMPILED
    assert origin(offset=4096) == Origin.COMPILED
    assert origin(strict=True) == Origin.COMPILED
    schedule = compile(draft(0).graph, "n8").schedule
    assert origin(schedule=schedule) == Origin.COMPILED and origin(schedule=schedule) == Origin.CACHE
    monkeypatch.setattr("compiler.runtime.package_writer.version", lambda: "another compiler")
    assert origin() == Origin.COMPILED


def test_graphs_in_memory_are_cached_only_on_request(folder):
    draft = Draft(np.random.default_rng(0))
    draft.graph.finish([draft.node("dense", [draft.input((1, 8)), draft.constant((4, 8))], (1, 4)).name])
    compile(draft.graph, "n8")
    assert not folder.exists()


@pytest.mark.parametrize("how", ["damaged", "of another", "no archive"])
def test_invalid_entry_is_compiled_again(folder, caplog, how):
    wanted = to_bytes(compile(KWS))
    path = entry(folder)
    if how == "damaged":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4  # damage that the archive would not detect
        path.write_bytes(data)
    elif how == "of another":
        other = Draft(np.random.default_rng(0))
        other.graph.finish([other.node("dense", [other.input((1, 8)), other.constant((4, 8))], (1, 4)).name])
        before = path.read_bytes()
        compile(other.graph, cache=True)
        (mine,) = (each for each in folder.glob("network-*") if each != path)
        assert mine.read_bytes() != before
        path.write_bytes(mine.read_bytes())
    else:
        ContentStore().put("network", path.name.removeprefix("network-"), b"sealed, and no archive")
    with caplog.at_level(logging.WARNING):
        again = compile(KWS)
    assert again.origin == Origin.COMPILED and to_bytes(again) == wanted
    assert caplog.text.count("\n") == 1
    assert compile(KWS).origin == Origin.CACHE


def test_changed_file_is_read_again(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(KWS.read_bytes())
    assert [compile(path).origin for _ in range(2)] == [Origin.COMPILED, Origin.CACHE]
    path.write_bytes(model("ad01_int8").read_bytes())
    assert compile(path).origin == Origin.COMPILED


def test_proofs_are_stored(store, monkeypatch):
    network = compile(KWS)
    wanted = run(network, store)
    validated: list[object] = []
    monkeypatch.setattr(validation, "validate", lambda *stream: validated.append(stream))
    for name, array in run(compile(KWS), store).items():
        np.testing.assert_array_equal(array, wanted[name])
    assert not validated
    run(network)
    assert validated  # without the store, everything is validated


def test_proof_does_not_apply_to_other_streams(store, monkeypatch):
    config = load_target("n4")
    good, bad = (
        assemble(f"set load.dram, op0\nset load.len, {size}\nissue load\nfence load\nhalt") for size in (4, 8)
    )
    window = [(0x1000, 0x1003, 3)]
    prove(config, [MacroCall(good, (0x1000,))], window, store)
    refused = [
        ([MacroCall(bad, (0x1000,))], window),
        ([MacroCall(good, (0x1004,))], window),
        ([MacroCall(good, (0x1000,)), MacroCall(bad, (0x1000,))], window),
        ([MacroCall(good, (0x1000,))], [(0x1000, 0x1002, 3)]),
        ([MacroCall(good, (0x1000,))], [(0x1000, 0x1003, 2)]),
    ]
    for calls, windows in refused:
        for _ in range(2):  # rejections are not stored either
            with pytest.raises(ValidationError):
                prove(config, calls, windows, store)
    monkeypatch.setattr(validation, "version", lambda: "another validator")
    validated: list[object] = []
    monkeypatch.setattr(validation, "validate", lambda *stream: validated.append(stream))
    prove(config, [MacroCall(good, (0x1000,))], window, store)
    assert validated


def test_digest_of_a_program_does_not_include_its_name():
    assert digest.name(assemble("halt", "a").image) == digest.name(assemble("halt", "b").image)


def test_control_flow_is_restored_from_the_cache(tmp_path):
    path = tmp_path / "exit.onnx"
    onnx.save(early_exit(np.random.default_rng(0)), path)
    first, again = compile(path, "n4"), compile(path, "n4")
    assert (first.origin, again.origin) == (Origin.COMPILED, Origin.CACHE)
    assert to_bytes(first) == to_bytes(again) and str(first.graph) == str(again.graph)
    rng = np.random.default_rng(1)
    for _ in range(4):
        sample = rng.standard_normal(first.inputs[0].shape).astype(np.float32)
        for name, array in first(sample).items():
            np.testing.assert_array_equal(again(sample)[name], array)


def test_recording_compiles_again():
    record = CompilationTrace()
    compile(KWS)
    assert compile(KWS, record=record).origin == Origin.COMPILED and record.parts


def product(weights: np.ndarray, op: str = "Relu") -> onnx.ModelProto:
    """Return a model of a quantized product with the given weights, followed by an operator."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    constants = {"w": weights, "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
        node("DequantizeLinear", ["w", "s", "z"], ["wr"]),
        node("MatMul", ["xr", "wr"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["mq"]),
        node("DequantizeLinear", ["mq", "s", "z"], ["mr"]),
        node(op, ["mr"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "product",
        [info("x", 1, [1, 64])],
        [info("y", 1, [1, 64])],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def test_changed_external_constants_give_another_entry(tmp_path):
    path, x = tmp_path / "model.onnx", np.ones((1, 64), np.float32)
    outputs = []
    for value in (1, 1, 2):
        model_proto = product(np.full((64, 64), value, np.int8))
        onnx.save(model_proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        network = compile(path, "n4")
        outputs.append((network.origin, network(x)["y"][0, 0]))
    assert [origin for origin, _ in outputs] == [Origin.COMPILED, Origin.CACHE, Origin.COMPILED]
    assert outputs[0][1] == outputs[1][1] != outputs[2][1]


def test_host_operators_are_restored_from_the_cache(tmp_path):
    path, x = tmp_path / "model.onnx", np.linspace(-1, 1, 64, dtype=np.float32)[None]
    onnx.save(product(np.eye(64, dtype=np.int8), "Sign"), path)
    first, again = compile(path, "n4"), compile(path, "n4")
    assert again.origin == Origin.CACHE and first.host == again.host
    np.testing.assert_array_equal(first(x)["y"], again(x)["y"])
