"""Serving of a cascade: audits, the bound of the loss, and the return to exact results after a violation."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.online_tuning.observers import ServingHistory, ServingObserver
from compiler.online_tuning.serve import Audits, Serving, open_machine, serve
from compiler.options import DramTiming
from compiler.quantize.report import CascadeReport, QuantizationReport
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.audit import AuditedServer, LossBound, log_wealth
from compiler.serving.request import Arrays, Request, RequestResult, RequestSource
from compiler.serving.server import Server, serving_bytes, version_bytes
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import BudgetViolation
from cosim.rtl.rtl_device import RtlDevice
from tests.runtime.dispatch.test_cascade import cascade_of, narrowed
from tests.support.classifiers import classifier, samples_of_classes

BUDGET = 0.02
#: Probability that a bound is ever wrong.
ALPHA = 0.05


class Results(ServingObserver):
    """Keeps the results of the requests."""

    def __init__(self) -> None:
        self.results: list[RequestResult] = []

    def result(self, result: RequestResult) -> None:
        """Keep a result."""
        self.results.append(result)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return a classifier."""
    return classifier(np.random.default_rng(3))


@pytest.fixture(scope="module")
def usual(graph: Graph) -> CompiledNetwork:
    """Return the exact network."""
    return compile(graph, "n4")


@pytest.fixture(scope="module")
def few(graph: Graph) -> Graph:
    """Return the narrow network, which changes labels where they are uncertain."""
    return narrowed(graph, 2)


@pytest.fixture(scope="module")
def cascade(graph: Graph, few: Graph) -> CompiledNetwork:
    """Return a cascade that accepts nearly all labels."""
    network = cascade_of(graph, few, -100)
    report = CascadeReport(BUDGET, 100, -100, 0, 0.0, 0.0, 0.0, 1.0, 2.0)
    return compiled_with(network, report)


def compiled_with(network: CompiledNetwork, report: CascadeReport) -> CompiledNetwork:
    """Return a network with a report on its cascade."""
    return replace(network, quantization=QuantizationReport(100, 0, False, (), (), cascade=report))


@pytest.fixture(scope="module")
def stream(graph: Graph, few: Graph) -> list[Arrays]:
    """Return samples with certain labels, which the narrow network does not change, and then uncertain ones."""
    certain = [
        each for each in samples_of_classes(graph, 240, 5, mixing=0.02) if not changes(graph, few, each)
    ]
    uncertain = samples_of_classes(graph, 200, 6, mixing=1.0, noise=60.0)
    assert len(certain) > 100 and np.mean([changes(graph, few, each) for each in uncertain]) > 0.1
    return [*certain, *uncertain]


def changes(graph: Graph, few: Graph, sample: Arrays) -> bool:
    """Return True if the label of the narrow network is not that of the exact one."""
    return evaluate(few, sample)["share"].argmax() != evaluate(graph, sample)["share"].argmax()


def run(
    usual: CompiledNetwork, cascade: CompiledNetwork, stream: Sequence[Arrays], db: Path | None, seed: int = 0
) -> tuple[list[RequestResult], ServingHistory]:
    """Serve a stream on the golden model."""
    audits = Audits(cascade, seed, db)
    serving = Serving(usual, DramTiming(), audits=audits)
    results, history = Results(), ServingHistory(clocked=False)
    with open_machine(serving, "golden") as device:
        assert serve(serving, device, RequestSource(map(Request, stream)), [results, history]) == 0
    return results.results, history


def test_violation_of_the_budget_is_rolled_back_and_remembered(
    graph: Graph,
    few: Graph,
    usual: CompiledNetwork,
    cascade: CompiledNetwork,
    stream: list[Arrays],
    tmp_path: Path,
) -> None:
    """The stream drifts from certain to uncertain inputs; results before and after are compared with both graphs."""
    db = tmp_path / "own.db"
    drifting = [*stream[:40], *stream[-200:], *stream[-200:]]
    results, history = run(usual, cascade, drifting, db)
    assert [result.index for result in results] == list(range(len(drifting)))
    for inputs, result in zip(drifting, results, strict=True):
        np.testing.assert_array_equal(result.inputs["x1"], inputs["x1"])
        used = few if result.variant == "narrow" else graph
        np.testing.assert_array_equal(result.outputs["share"], evaluate(used, inputs)["share"])
        assert result.why
    (event,) = (each for each in history.events if each["event"] == "rollback")
    assert 40 < event["request"] < len(drifting) - 50 and event["lower"] >= BUDGET
    audited = [result for result in results[: event["request"] + 1] if result.variant == "audited"]
    different = [each for each in audited if changes(graph, few, each.inputs)]
    assert event["changed"] == len(different) and event["audited"] >= len(audited)
    assert {each.variant for each in results[event["request"] + 10 :]} == {"usual"}
    written = history.document()["audit"]
    assert written["rolled_back"] and written["changed"] >= len(different)

    again, history = run(usual, cascade, stream[:5], db)
    assert {result.variant for result in again} == {"usual"}
    (event,) = (each for each in history.events if each["event"] == "no cascade")
    assert "the budget of 2.000% was violated on 20" in event["reason"]
    assert history.document()["audit"]["exact_from_the_start"] == event["reason"] == again[0].why
    other = compiled_with(cascade, CascadeReport(0.5, 100, -100, 0, 0.0, 0.0, 0.0, 1.0, 2.0))
    assert {each.variant for each in run(usual, other, stream[:5], db)[0]} != {"usual"}
    assert {each.variant for each in run(usual, cascade, stream[:5], tmp_path / "other.db")[0]} != {"usual"}


def test_certain_inputs_keep_the_budget(
    usual: CompiledNetwork, cascade: CompiledNetwork, stream: list[Arrays]
) -> None:
    results, history = run(usual, cascade, stream[:100], None, seed=1)
    assert history.count("rollback") == 0
    audit = history.document()["audit"]
    assert audit["changed"] == 0 and audit["lower"] == 0 and BUDGET < audit["upper"] < 1
    assert audit["accepted"] + audit["fallbacks"] == 100
    assert variants_of(results) == variants_of(run(usual, cascade, stream[:100], None, seed=1)[0])


def variants_of(results: Sequence[RequestResult]) -> list[str]:
    """Return the variants in order."""
    return [result.variant for result in results]


def test_cascade_without_a_threshold_is_exact(usual: CompiledNetwork, stream: list[Arrays]) -> None:
    exact = compiled_with(usual, CascadeReport(BUDGET, 100, None, 0, 0.0, 0.0, 1.0, 2.0, 2.0))
    results, history = run(usual, exact, stream[:3], None)
    assert {result.variant for result in results} == {"usual"}
    assert [each["event"] for each in history.events] == ["no cascade", "audit"]


def test_audits_cost_little(usual: CompiledNetwork, cascade: CompiledNetwork, stream: list[Arrays]) -> None:
    """The mean cost of 400 requests on the RTL: 2%, and the audits of the first requests."""
    requests = [stream[i % 100] for i in range(400)]
    with RtlDevice(cascade.config, serving_bytes(usual, versions=1) + version_bytes(cascade)) as device:
        server = Server(device, usual)
        audited = AuditedServer(server, server.add(cascade)[0], BUDGET)
        results = []
        for inputs in requests:
            audited.submit(Request(inputs))
            results += audited.results()
        results += audited.results(wait=True)
    narrow = np.median([each.cycles for each in results if each.variant == "narrow"])
    exact = np.median([each.cycles for each in results if each.variant == "audited"]) - narrow
    count = sum(each.variant == "audited" for each in results)
    most = 0.02 * narrow / exact * len(requests) + 2 * (1 + math.log(len(requests)))
    assert 0 < count <= most + 3 * math.sqrt(most)
    assert audited.bound.audited >= count and "narrow" in {each.variant for each in results[100:]}


def wealth_by_products(outcomes: Sequence[bool], share: float, ratios: Sequence[float]) -> float:
    """Return the mean of the products of likelihood ratios, one request after the other."""
    total = 0.0
    for ratio in ratios:
        other, product = min(ratio * share, 1.0), 1.0
        for changed in outcomes:
            product *= other / share if changed else (1 - other) / (1 - share)
        total += product / len(ratios)
    return total


def test_wealth_is_a_mean_of_products(rng: np.random.Generator) -> None:
    for ratios in ((1.5, 4.0, 300.0), (0.0, 0.5)):
        for share in (0.004, 0.3):
            outcomes = (rng.random(40) < 0.2).tolist()
            for used in (outcomes, [False] * 5, [True] * 3):
                found = log_wealth(sum(used), len(used), share, ratios)
                assert math.exp(found) == pytest.approx(wealth_by_products(used, share, ratios))


def test_bounds_hold_at_all_times_with_their_confidence(rng: np.random.Generator) -> None:
    """Each bound of 400 sequences of audits is ever wrong in at most 5% of them, up to three standard deviations."""
    sequences, most = 400, 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    for share in (0.005, 0.05):
        ever_above = ever_below = 0
        for _ in range(sequences):
            outcomes = np.cumsum(rng.random(1000) < share)
            times = np.unique(np.concatenate([np.arange(1, 60), np.geomspace(60, 1000, 40).astype(int)]))
            above = below = False
            for time in times:
                bound = LossBound(int(time), int(outcomes[time - 1]))
                above |= bound.exceeds(share)
                below |= log_wealth(
                    bound.changed, bound.audited, share, (0.0, 0.125, 0.25, 0.5, 0.75)
                ) >= -math.log(ALPHA)
            ever_above, ever_below = ever_above + above, ever_below + below
        assert ever_above / sequences <= most and ever_below / sequences <= most


def test_bounds_are_the_limits_of_the_test() -> None:
    bound = LossBound()
    assert (bound.lower, bound.upper) == (0, 1)
    for number in range(300):
        bound.add(changed=number % 10 == 0)
    assert 0.03 < bound.lower < 0.1 < bound.upper < 0.25
    assert bound.exceeds(bound.lower * 0.999) and not bound.exceeds(bound.lower * 1.001)
    clean = LossBound(1000, 0)
    assert clean.lower == 0 and -math.log(ALPHA) / 1000 < clean.upper < math.log(5 / ALPHA) / 1000


def test_violations_are_trusted_if_this_user_stored_them(tmp_path: Path) -> None:
    path, made = tmp_path / "own.db", violation_of("a" * 64)
    with TuningDatabase(path, secret=b"own") as database:
        assert database.violation(made.cascade) is None
        database.put_violation(made)
        database.put_violation(newer := violation_of("a" * 64, changed=5))
        assert database.violation(made.cascade) == newer and database.violation("b" * 64) is None
    with TuningDatabase(path, secret=b"other") as database:
        assert database.violation(made.cascade) is None


def violation_of(cascade: str, **fields: Any) -> BudgetViolation:
    """Return a violation."""
    values = {"budget": 0.005, "audited": 10, "changed": 3, "lower": 0.02, "when": 1.0} | fields
    return BudgetViolation(cascade=cascade, **values)
