"""Cascades: programs, choice of bits and threshold, and rejected models."""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.api import compile
from compiler.ir.graph import Graph, rebuild
from compiler.options import AccuracyBudget, CompileOptions
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.quantize import WeightNarrower
from compiler.quantize.cascade import MIN_SAMPLES, confidence_of
from compiler.quantize.report import CascadeReport
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.known_results import with_cascade
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.run_report import document, run_samples
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from scripts.networks.digits import MODEL
from tests.support.classifiers import classifier, samples_of_classes
from tests.support.float_graphs import CONV, IMAGE, graph_of, numbers
from tests.support.onnx_models import node

BUDGET = AccuracyBudget(share=0.02)


def report_of(network: CompiledNetwork) -> CascadeReport:
    """Return the report on the choice of a cascade."""
    assert network.quantization is not None and network.quantization.cascade is not None
    return network.quantization.cascade


def narrowed(graph: Graph, bits: int) -> Graph:
    """Return a graph in which all weights have few bits."""
    narrower = WeightNarrower(graph, samples_of_classes(graph, 16, 1), "reference")
    return narrower.narrowed(dict.fromkeys(narrower.layers, bits))


def cascade_of(graph: Graph, few: Graph, threshold: int, target: str = "n4") -> CompiledNetwork:
    """Return the cascade of two graphs with a threshold."""
    options = CompileOptions(
        rounding="reference", single=True, calibration=[{}], accuracy_budget=AccuracyBudget(share=0.5)
    )
    config, record = load_target(target), CompilationTrace()
    exact = ModelCompiler(graph, config, options).network()
    plain = replace(options, calibration=None, accuracy_budget=None)
    narrow = ModelCompiler(few, config, plain).network(None, record)
    return with_cascade(exact, narrow, record.streams, threshold)


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_outputs_are_those_of_the_network_that_is_certain(dtype: str, rtl: bool) -> None:
    """The reference is the evaluation of both graphs on the host, with the comparison in Python."""
    graph = classifier(np.random.default_rng(3), dtype)
    few = narrowed(graph, 3)
    samples = samples_of_classes(graph, 12, 5)
    answers = [(evaluate(few, each)["share"], evaluate(graph, each)["share"]) for each in samples]
    confidence = sorted({int(narrow.max()) for narrow, _ in answers})
    for threshold in (confidence[len(confidence) // 2], confidence[0], confidence[-1] + 1):
        network = cascade_of(graph, few, threshold)
        with (RtlDevice if rtl else GoldenDevice)(network.config, dram_bytes(network)) as device:
            session, accepted = Session(device, network), 0
            for sample, (narrow, exact) in zip(samples, answers, strict=True):
                certain = int(narrow.max()) >= threshold
                accepted += certain
                np.testing.assert_array_equal(session.run(sample)["share"], narrow if certain else exact)
            wanted = {0: accepted, 1: len(samples) - accepted}
            assert session.taken == [Counter({number: each for number, each in wanted.items() if each})]


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return a classifier."""
    return classifier(np.random.default_rng(3))


@pytest.fixture(scope="module")
def cascade(graph: Graph) -> CompiledNetwork:
    """Return the cascade of the classifier."""
    return compile(graph, "n4", calibration=samples_of_classes(graph, 100, 1), accuracy_budget=BUDGET)


def test_chosen_cascade_keeps_the_budget_and_saves_cycles(graph: Graph, cascade: CompiledNetwork) -> None:
    report = report_of(cascade)
    assert report.threshold is not None and report.cycles < report.exact_cycles
    assert report.changed / report.samples <= report.expected <= report.limit <= BUDGET.share / 2  # type: ignore[operator]
    assert min(each.bits for each in report.layers) < 8
    samples, usual = samples_of_classes(graph, 60, 2), compile(graph, "n4")
    with RtlDevice(cascade.config, dram_bytes(cascade, len(samples))) as device:
        run = run_samples(device, cascade, samples, lambda _text: None)
    with RtlDevice(usual.config, dram_bytes(usual)) as device:
        session = Session(device, usual)
        exact = [session.measure(each) for each in samples]
    labels = [outputs["share"].argmax() for outputs, _ in exact]
    changed = int((run.outputs["share"].argmax(1) != labels).sum())
    assert run.cycles is not None and sum(run.cycles) < 0.9 * sum(cycles for _, cycles in exact)
    assert changed <= BUDGET.share * len(samples)  # type: ignore[operator]
    written = document(cascade, run)
    (accepted, fallbacks) = (each["runs"] for each in written["variants"][-2:])
    assert accepted > fallbacks > 0 and accepted + fallbacks == len(samples)
    macs = sum(info.floor.macs for info in usual.infos)
    assert written["macs"] == macs * (len(samples) + fallbacks)
    assert [each["guard"] for each in written["variants"]] == [f"%fuse_max >= {report.threshold}", None]
    for each in written["layers"]:
        assert each["utilization"] is None or each["utilization"] <= 2


def test_programs_are_validated_and_stored(graph: Graph, cascade: CompiledNetwork) -> None:
    assert [report.paths for report in validate_network(cascade, samples=2).values()] == [3]
    again = from_bytes(io.BytesIO(to_bytes(cascade)))
    assert to_bytes(again) == to_bytes(cascade) and again.quantization == cascade.quantization
    sample = samples_of_classes(graph, 1, 3)[0]
    np.testing.assert_equal(again(**sample), cascade(**sample))


def with_manifest(package: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a package with a changed manifest."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                change(manifest)
                data = json.dumps(manifest).encode()
            new.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    "changed",
    [
        {"threshold": "many"},
        {"fallbacks": -1},
        {"cycles": float("inf")},
        {"layers": [{"node": "a"}]},
        {"layers": None},
        {"samples": None},
    ],
)
def test_hostile_reports_are_rejected(cascade: CompiledNetwork, changed: dict[str, Any]) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["quantization"]["cascade"] |= changed

    with pytest.raises(InputError, match="damaged"):
        from_bytes(io.BytesIO(with_manifest(to_bytes(cascade), change)))


def test_hostile_guards_are_proved_or_rejected(cascade: CompiledNetwork) -> None:
    """A threshold only decides which proved program runs; a guard on another statistic is safe or rejected."""

    def guard_of(manifest: dict[str, Any]) -> dict[str, Any]:
        (code,) = (stage["code"] for stage in manifest["stages"] if "code" in stage)
        return code["guards"][-1][0]

    package = to_bytes(cascade)
    for value in (0, 1 << 31, (1 << 32) - 1):
        made = from_bytes(
            io.BytesIO(with_manifest(package, lambda m, value=value: guard_of(m).update(value=value)))
        )
        assert all(report.paths == 2 for report in validate_network(made).values())
    for selector in (-1, 255, 1 << 40):
        with pytest.raises(InputError):
            from_bytes(
                io.BytesIO(with_manifest(package, lambda m, each=selector: guard_of(m).update(selector=each)))
            )


def test_all_requests_are_exact_if_nothing_is_saved(graph: Graph) -> None:
    samples = samples_of_classes(graph, MIN_SAMPLES, 1)
    few = compile(graph, "n4", calibration=samples, accuracy_budget=AccuracyBudget(share=1e-9))
    report = report_of(few)
    if report.threshold is None:
        assert report.fallbacks == 1 and "all requests are computed exactly" in str(few.quantization)
        assert not any(part.instead for code in few.codes for part in code.parts)
    for sample in samples[:4]:
        wanted = evaluate(graph, sample)["share"]
        assert few(**sample)["share"].argmax() == wanted.argmax()


def test_models_without_a_softmax_are_rejected(graph: Graph) -> None:
    samples = samples_of_classes(graph, MIN_SAMPLES, 1)
    assert confidence_of(graph) == "share"
    without = rebuild(graph, [node for node in graph if node.op != "softmax"], outputs=["scores"])
    with pytest.raises(
        InputError, match="softmax of one row; output 'scores' of 'draft' is computed by dense"
    ):
        compile(without, "n4", calibration=samples, accuracy_budget=BUDGET)
    both = rebuild(graph, graph, outputs=["share", "scores"])
    with pytest.raises(InputError, match="softmax of one row; 'draft' has 2 outputs"):
        compile(both, "n4", calibration=samples, accuracy_budget=BUDGET)
    floats = np.random.default_rng(0).normal(size=(MIN_SAMPLES, 1, 8, 8, 1)).astype(np.float32)
    (name,) = (tensor.name for tensor in compile(MODEL).inputs)
    images = [{name: each.reshape(compile(MODEL).inputs[0].shape)} for each in floats]
    with pytest.raises(InputError, match="a share of requests needs one output"):
        compile(MODEL, calibration=images, accuracy_budget=BUDGET)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"skip": "scores"}, "a share of requests cannot be combined with skip"),
        ({"reuse": True}, "a share of requests cannot be combined with reuse"),
        ({"batches": (1, 2)}, "a share of requests cannot be combined with batches"),
        ({"batch": 2}, "a share of requests cannot be combined with batch 2"),
    ],
)
def test_other_options_of_dispatch_are_rejected(graph: Graph, options: dict[str, Any], text: str) -> None:
    samples = samples_of_classes(graph, MIN_SAMPLES, 1)
    with pytest.raises(InputError, match=text):
        compile(graph, "n4", calibration=samples, accuracy_budget=BUDGET, **options)


def test_few_samples_and_searches_are_rejected(graph: Graph) -> None:
    samples = samples_of_classes(graph, MIN_SAMPLES - 1, 1)
    with pytest.raises(
        InputError, match=f"at least {MIN_SAMPLES} calibration samples, not {MIN_SAMPLES - 1}"
    ):
        compile(graph, "n4", calibration=samples, accuracy_budget=BUDGET)
    with pytest.raises(InputError, match="needs calibration samples"):
        compile(graph, "n4", accuracy_budget=BUDGET)
    options = CompileOptions(rounding="reference", calibration=samples, accuracy_budget=BUDGET)
    with pytest.raises(InputError, match="for which no programs can be searched"):
        compiler.tune(graph, "n4", trials=1, options=options)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), True])
def test_shares_out_of_range_are_rejected(share: float) -> None:
    with pytest.raises(InputError, match="share must be between 0 and 1"):
        AccuracyBudget(share=share)


def test_cascade_of_a_float_model(tmp_path: Path) -> None:
    """Inputs and outputs are real; the host converts them. Outputs are those of the quantized graphs."""
    constants = {
        "a": numbers(16, 3, 3, 3, scale=0.3),
        "b": numbers(16, 16, 3, 3, scale=0.2),
        "w": numbers(16, 5, scale=3.0),
    }
    nodes = [
        node("Conv", "x a", "c", **CONV),
        node("Relu", "c", "r"),
        node("Conv", "r b", "e", **CONV),
        node("Relu", "e", "s"),
        node("GlobalAveragePool", "s", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f w", "m"),
        node("Softmax", "m", "y", axis=1),
    ]
    graph = graph_of(tmp_path, nodes, constants)
    seeds = np.random.default_rng(0).permutation(60)
    inputs = [{"x": numbers(*IMAGE, seed=int(seed), scale=float(0.3 + seed / 20))} for seed in seeds]
    calibration, held = inputs[:48], inputs[48:]
    cascade = compile(graph, "n4", calibration=calibration, accuracy_budget=AccuracyBudget(share=0.5))
    usual = compile(graph, "n4", calibration=calibration)
    assert report_of(cascade).threshold is not None and cascade.quantization.outputs  # type: ignore[union-attr]
    with GoldenDevice(cascade.config, dram_bytes(cascade)) as device:
        session, exact = Session(device, cascade), 0
        for sample in held:
            (found,), (wanted,) = session.run(sample).values(), usual(**sample).values()
            assert found.dtype == wanted.dtype == np.float32
            if session.taken[0][1] > exact:
                np.testing.assert_array_equal(found, wanted)
            exact = session.taken[0][1]
