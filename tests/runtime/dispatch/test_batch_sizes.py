"""With several batch sizes under one opcode, the machine selects the smallest sufficient size; outputs are correct."""

import io
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.compiled import CompiledNetwork, split_batch, stack_batch
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.run_report import back_to_back, document, run_samples
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.size_variants import check_sizes
from compiler.runtime.validation import validate_network
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from tests.lowering.test_partition import compiled
from tests.runtime.test_batching import _attention, _dense, _image, _moves
from tests.support.graphs import Draft
from tests.support.trained_networks import Reference, model

#: Maximum cycles of ad01 on n16 for 1..8 waiting samples: the measured cycles plus a small margin.
AD01_CEILINGS = (18_100, 18_900, 19_000, 19_000, 19_300, 19_300, 19_300, 19_300)


def _ignore(_text: str) -> None:
    """Ignore a progress message."""


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
@pytest.mark.parametrize("maker", [_dense, _attention, _moves, _image])
def test_random_sample_counts(rng: np.random.Generator, maker: object, rtl: bool) -> None:
    draft = Draft(rng)
    graph = draft.graph.finish([maker(draft).name])  # type: ignore[operator]
    sizes = tuple(int(size) for size in np.sort(rng.choice(np.arange(1, 7), 3, replace=False)))
    network, one = compile(graph, "n4", batches=sizes), compile(graph, "n4")
    assert (network.batches, network.batch) == (sizes, sizes[-1])
    counts = [int(count) for count in rng.integers(1, sizes[-1] + 1, 4 if rtl else 8)]
    expected: Counter[int] = Counter()
    with (RtlDevice if rtl else GoldenDevice)(network.config, dram_bytes(network)) as device:
        session, samples = Session(device, network), [draft.random_inputs()]
        for count in counts:
            samples = [draft.random_inputs() for _ in range(count)]
            found = split_batch(network, session.run(stack_batch(network, samples), count), count)
            for sample, outputs in zip(samples, found, strict=True):
                (wanted,) = one(**sample).values()
                np.testing.assert_array_equal(next(iter(outputs.values())), wanted)
            expected[next(number for number, size in enumerate(sizes) if count <= size)] += 1
        assert all(counts == expected for counts in session.taken)
        for count in (0, -1, sizes[-1] + 1):
            with pytest.raises(InputError, match=rf"takes 1\.\.{sizes[-1]} samples at a time, not {count}"):
                session.run(stack_batch(network, samples), count)


def test_unused_samples_do_not_affect_others(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    graph = draft.graph.finish([_attention(draft).name])
    network, sample = compile(graph, "n4", batches=(1, 4)), draft.random_inputs()
    outputs = []
    for _ in range(2):
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            session = Session(device, network)
            rest = [draft.random_inputs() for _ in range(3)]
            outputs.append(split_batch(network, session.run(stack_batch(network, [sample, *rest]), 2), 2)[0])
            assert all(counts == Counter({1: 1}) for counts in session.taken)
    np.testing.assert_equal(*outputs)


def test_ad01_equals_litert_within_the_cycle_limit() -> None:
    path = model("ad01_int8")
    network, reference, rng = (
        compile(path, "n16", batches=(1, 2, 4, 8)),
        Reference(path),
        np.random.default_rng(3),
    )
    (tensor,) = network.sample
    samples = [{tensor.name: rng.integers(-128, 128, tensor.shape).astype(np.int8)} for _ in range(8)]
    wanted = np.concatenate([reference(sample)[0] for sample in samples])
    for count in (1, 2, 3, 8):
        with RtlDevice(network.config, dram_bytes(network)) as device:
            run = run_samples(device, network, samples[:count], _ignore, steadily=False)
        np.testing.assert_array_equal(next(iter(run.outputs.values())), wanted[:count])
        report = document(network, run)
        assert report["floor_cycles"] < report["cycles"] <= AD01_CEILINGS[count - 1]
        assert report["macs"] == count * 264_192 and report["batches"] == (1, 2, 4, 8)
        assert sum(layer["cycles"] for layer in report["layers"]) == report["cycles"]
        taken = next(i for i, size in enumerate(network.batches) if count <= size)
        assert [each["runs"] for each in report["variants"]] == [int(i == taken) for i in range(4)]
        assert [each["guard"] for each in report["variants"]] == ["op3 <u 2", "op3 <u 3", "op3 <u 5", None]


def test_node_that_runs_on_the_host_for_some_sizes() -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 5, 4, 6))
    y = draft.node(
        "conv_transpose2d",
        [x, draft.constant((7, 3, 3, 6))],
        (1, 11, 9, 7),
        scale=40.0,
        strides=(2, 2),
        dilations=(1, 1),
        pads=(0,) * 4,
        groups=1,
        output_pads=(),
    )
    with pytest.raises(
        InputError, match=f"batches of 1 and 3: node 'make {y.name}' runs on the host in only one"
    ):
        compile(draft.graph.finish([y.name]), "n4", batches=(1, 3))


def test_best_batch_size() -> None:
    """The best batch size exceeds the number of waiting samples only if unused slots are cheap, as with shared
    weights.
    """
    weights = compile(model("ad01_int8"), "n16", batches=(1, 2, 4, 8))
    assert [weights.best_batch(waiting) for waiting in (1, 2, 3, 5, 8, 30)] == [1, 2, 3, 5, 8, 8]
    array = compile(model("kws_ref_model"), "n16", batches=(1, 2, 4))
    assert [array.best_batch(waiting) for waiting in (1, 2, 3, 4, 5)] == [1, 2, 2, 4, 4]
    assert [compile(model("ad01_int8"), "n16", batch=3).best_batch(waiting) for waiting in (1, 2, 7)] == [
        1,
        2,
        3,
    ]


def test_memory_for_consecutive_batches() -> None:
    """Three samples run as batches of two and one, although a batch of four would have room for them."""
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 40, 40, 8))
    graph = draft.graph.finish([draft.node("mul", [x, draft.constant((8,))], x.shape, scale=30.0).name])
    network, samples = compile(graph, "n4", batches=(1, 2, 4)), [draft.random_inputs() for _ in range(3)]
    assert (network.best_batch(3), back_to_back(network, 3), back_to_back(network, 99)) == (2, 2, 4)
    with RtlDevice(network.config, dram_bytes(network, 2)) as device:
        run = run_samples(device, network, samples, _ignore)
    assert run.groups == [2, 1] and run.steady


def test_host_stage_between_accelerator_stages(rng: np.random.Generator) -> None:
    """Nodes on the host process whole batches."""
    graph = compiled(3)[0].graph
    network, one = compile(graph, "n4", batches=(1, 3)), compile(graph, "n4")
    assert len(network.stages) > 1
    samples = [
        {t.name: rng.integers(-128, 128, t.shape).astype(t.dtype) for t in one.inputs} for _ in range(4)
    ]
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run = run_samples(device, network, samples, _ignore)
    for name, found in run.outputs.items():
        wanted = [one(**sample)[name] for sample in samples]
        np.testing.assert_array_equal(found.reshape(4, -1), np.stack(wanted).reshape(4, -1))
    assert all(counts == Counter({0: 1, 1: 1}) for counts in run.taken)


def test_every_size_is_validated(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    graph = draft.graph.finish([_dense(draft).name])
    network = compile(graph, "n4", batches=(1, 2, 4))
    assert next(iter(validate_network(network, samples=2).values())).paths > 3


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ((2, 1), "batches must ascend, not be 2, 1"),
        ((2, 2), "batches must ascend, not be 2, 2"),
        ((1, 2, 3, 4, 5), r"batches must be at most 4 sizes \(an opcode has 4 candidate programs\), not 5"),
    ],
)
def test_invalid_sizes_are_rejected(batches: tuple[int, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        check_sizes(load_target("n4"), batches)


def test_sizes_that_exceed_the_instruction_store() -> None:
    with pytest.raises(
        InputError, match=r"instruction store, which holds 16 of 2,048 words|must be one program"
    ):
        compile(model("vww_96_int8"), "n4", batches=(1, 2), cache=False)


def _small() -> CompiledNetwork:
    draft = Draft(np.random.default_rng(1))
    return compile(draft.graph.finish([_dense(draft).name]), "n4", batches=(1, 2, 4))


def test_files_hold_all_sizes() -> None:
    network = _small()
    data = to_bytes(network)
    read = from_bytes(io.BytesIO(data))
    assert read.batches == (1, 2, 4) and to_bytes(read) == data
    assert [part.instead for part in read.codes[0].parts] == [part.instead for part in network.codes[0].parts]


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (("smaller", 0, "batch"), 2, "sizes of batches must ascend"),
        (("smaller", 0, "batch"), "1", "batch must be int"),
        (("smaller",), None, "TypeError"),
        (("stages", 0, "code", "guards"), [], "ValueError"),
        (("stages", 0, "code", "guards", 0, 0, "compare"), 0, "a guard must compare"),
        (("stages", 0, "code", "guards", 0, 0, "selector"), 1, "an operand or a statistic"),
        (("stages", 0, "code", "guards", 0, 0, "value"), -1, "a word of 32 bits"),
        (("stages", 0, "code", "guards", 0), [{}] * 4, "KeyError|at most 4"),
    ],
)
def test_damaged_files_are_rejected(tmp_path: Path, place: tuple, value: object, text: str) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(to_bytes(_small()))) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "manifest.json":
                manifest = json.loads(data)
                inner = manifest
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = value
                data = json.dumps(manifest).encode()
            new.writestr(info.filename, data)
    with pytest.raises(InputError, match=f"damaged compiled network: .*({text})"):
        from_bytes(made)


def test_working_memory_of_programs() -> None:
    """All batch sizes of ResNet-8 place tensors that do not fit on the chip in one region after the constants."""
    path = model("pretrainedResnet_quant")
    network, reference, rng = compile(path, "n16", batches=(1, 4)), Reference(path), np.random.default_rng(4)
    (code,) = network.codes
    assert code.memory - code.image.size >= 65_536
    validate_network(network, samples=2)
    (tensor,) = network.sample
    samples = [{tensor.name: rng.integers(-128, 128, tensor.shape).astype(np.int8)} for _ in range(5)]
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run = run_samples(device, network, samples, _ignore)
    assert run.taken == [Counter({0: 1, 1: 1})]
    wanted = np.concatenate([reference(sample)[0] for sample in samples])
    assert np.abs(next(iter(run.outputs.values())).astype(int) - wanted).max() <= 1  # the output is a softmax
