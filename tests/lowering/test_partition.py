"""Tests of models that run partly on the host."""

import json
import zipfile

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization, Tensor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import read_package, to_bytes
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from hw.errors import InputError
from tests.support.graphs import Draft, check

WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def mixed(seed: int = 0) -> tuple[Draft, list[Tensor]]:
    """Build two convolutions with a host operator between them and their sum; return the draft and its outputs."""
    draft = Draft(np.random.default_rng(seed))
    x = draft.input((1, 5, 5, 6))
    y = draft.node("conv2d", [x, draft.constant((8, 3, 3, 6))], (1, 5, 5, 8), scale=30.0, groups=1, **WINDOW)
    h = draft.node("max_pool2d", [y], y.shape, scale=20.0, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
    z = draft.node("conv2d", [h, draft.constant((8, 3, 3, 8))], y.shape, scale=30.0, groups=1, **WINDOW)
    return draft, [draft.node("add", [y, z], y.shape, scale=50.0), h]


def compiled(seed: int) -> tuple[Draft, CompiledNetwork]:
    draft, outputs = mixed(seed)
    return draft, compile(draft.graph.finish([tensor.name for tensor in outputs]), "n8")


def test_stages_alternate_between_accelerator_and_host() -> None:
    network = check(*mixed())
    assert [stage.code is not None for stage in network.stages] == [True, False, True]
    assert [(each.op, each.reason) for each in network.host] == [
        ("max_pool2d", "input and output of pooling must have the same quantization")
    ]


def test_strict_rejects_host_operators_with_all_reasons() -> None:
    draft, outputs = mixed()
    graph = draft.graph.finish([tensor.name for tensor in outputs])
    with pytest.raises(
        InputError, match=r"\(max_pool2d\): input and output of pooling must have the same quantization"
    ):
        compile(graph, "n8", strict=True)


def test_model_of_host_operators_only() -> None:
    draft = Draft(np.random.default_rng(1))
    x = draft.input((1, 5, 5, 6))
    pool = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    network = check(draft, [draft.node("max_pool2d", [x], (1, 4, 4, 6), **pool)])
    assert [stage.code for stage in network.stages] == [None]


def test_constants_are_folded_and_unused_nodes_removed() -> None:
    draft = Draft(np.random.default_rng(2))
    x = draft.input((1, 2, 2, 6))
    doubled = draft.node("add", [draft.constant((6,)), draft.constant((6,))], (6,))
    draft.node("tanh", [x], x.shape)
    network = check(draft, [draft.node("mul", [x, doubled], x.shape)])
    assert network.graph is not None and [node.op for node in network.graph] == ["mul"]


@pytest.mark.parametrize("view", [(1, 4, 4, 6), (4, 24)])
def test_outputs_that_are_views(view: tuple[int, ...]) -> None:
    draft = Draft(np.random.default_rng(3))
    x = draft.input((1, 4, 4, 6))
    y = draft.node("tanh", [x], x.shape)
    check(draft, [draft.node("reshape", [y], view, like=y, shape=view), y])


@pytest.mark.parametrize("op", ["conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d"])
def test_batches_of_images_run_on_the_accelerator(op: str) -> None:
    draft = Draft(np.random.default_rng(7))
    x = draft.input((2, 6, 6, 4))
    pool = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    if op == "max_pool2d":
        y = draft.node(op, [x], x.shape, like=x, **pool)
    elif op == "avg_pool2d":
        y = draft.node(op, [x], x.shape, like=x, count_pads=False, **pool)
    elif op == "conv2d":
        y = draft.node(op, [x, draft.constant((4, 3, 3, 4))], x.shape, groups=1, **WINDOW)
    else:
        y = draft.node(
            op, [x, draft.constant((3, 3, 4), quantization=Quantization.per_tensor(0.1))], x.shape, **WINDOW
        )
    assert not check(draft, [y]).host


def test_reshapes_between_host_operators_run_on_the_host() -> None:
    draft = Draft(np.random.default_rng(8))
    x = draft.input((1, 4, 4, 6))
    shaped = draft.node("reshape", [x], (2, 48), like=x, shape=(2, 48))
    again = draft.node("reshape", [shaped], (4, 24), like=x, shape=(4, 24))  # joined with the first
    host = draft.node("tanh", [draft.node("prelu", [again, draft.input((24,))], (4, 24))], (4, 24))
    network = check(draft, [host])
    assert [stage.code is not None for stage in network.stages] == [False, True]
    reasons = {each.op: each.reason for each in network.host}
    assert reasons["reshape"] == "its stage would consist of reshapes only" and len(network.host) == 2


def test_compiled_file_runs_like_its_network(tmp_path) -> None:
    draft, network = compiled(4)
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(network))
    again = read_package(path)
    assert to_bytes(again) == path.read_bytes()
    inputs = draft.random_inputs()
    results = []
    for each in (network, again):
        with GoldenDevice(each.config, dram_bytes(each)) as device:
            results.append(Session(device, each).run(inputs))
    assert results[0].keys() == results[1].keys()
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


def test_damaged_files_give_a_message(tmp_path) -> None:
    _, network = compiled(5)
    whole, path, rng = to_bytes(network), tmp_path / "network.mla", np.random.default_rng(6)
    refused = 0
    for trial in range(300):
        data = bytearray(whole)
        if trial % 3 == 0:
            data = data[: rng.integers(len(data))]
        else:
            at = int(rng.integers(len(data)))
            data[at : at + int(rng.integers(1, 8))] = rng.bytes(int(rng.integers(0, 8)))
        path.write_bytes(data)
        try:
            read_package(path)
        except InputError as error:
            assert str(error).startswith(f"{path}: ")
            refused += 1
    assert refused > 250
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_package(tmp_path / "none.mla")


@pytest.mark.parametrize("where", [("inputs", 0), ("stages", 0, "inputs", 0), ("stages", -1, "outputs", 0)])
def test_inconsistent_shapes_in_a_file_give_a_message(tmp_path, where) -> None:
    """Inconsistent shapes of a network, of a stage, or of a stage that computes an output are rejected with a
    message.
    """
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(compiled(3)[1]))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    place = manifest
    for key in where:
        place = place[key]
    place["shape"] = [7, 9]
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(InputError, match=rf"^{path}: damaged .*{place['name']}.*\[7, 9\]"):
        read_package(path)


def test_repeated_inputs_are_rejected() -> None:
    draft, network = compiled(3)
    inputs = draft.random_inputs()
    first = network.inputs[0].name
    for places, names in (([*inputs.values(), inputs[first]], {}), (inputs.values(), {first: inputs[first]})):
        with pytest.raises(
            InputError, match=rf"inputs must be {first}.*, each given once, not \d+ by position"
        ):
            network(*places, **names)
    by_place, by_name = network(*(inputs[each.name] for each in network.inputs)), network(**inputs)
    assert all(np.array_equal(by_place[name], by_name[name]) for name in by_name)


def test_encrypted_file_gives_a_message(tmp_path) -> None:
    _, network = compiled(7)
    path = tmp_path / "network.mla"
    data = bytearray(to_bytes(network))
    at = data.rindex(b"PK\x01\x02")  # the manifest's directory entry is the last one; set bit 0 of its flags
    data[at + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"damaged compiled network: .*encrypted"):
        read_package(path)
