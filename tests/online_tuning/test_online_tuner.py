"""Candidates are tried while serving: better ones are kept, others are rolled back, and outputs are always correct."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from compiler.ir.graph import Graph
from compiler.online_tuning.canary import CANARY_REQUESTS
from compiler.online_tuning.observers import ServingEvents
from compiler.online_tuning.online_tuner import OnlineTuner
from compiler.online_tuning.search_process import SearchClient, SearchProcess
from compiler.online_tuning.search_worker import Changed, SearchJob, Withdrawn
from compiler.options import DramTiming
from compiler.profile.measurement import Rejected
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.serving.request import RequestResult
from compiler.serving.server import Server, serving_bytes
from compiler.tuning.constraints import NO_TARGETS, Targets
from compiler.tuning.generators.generator import GeneratorFailure
from cosim.dram import DramFault
from cosim.rtl.rtl_device import RtlDevice
from cosim.status import TrapError
from hw.config import load_target
from tests.online_tuning.small_servers import Model, ScriptedProposer, damaged, with_changed_networks
from tests.support.small_network import OPTIONS

CYCLES = 5500


@pytest.fixture(scope="module")
def model(graph: Graph) -> Model:
    """Return the small network on n4."""
    return Model(graph, load_target("n4"))


@pytest.fixture
def server(model: Model) -> Iterator[Server]:
    """Yield a server of the small network on the RTL."""
    with RtlDevice(model.first.config, serving_bytes(model.first, versions=8)) as device:
        yield Server(device, model.first)


class Loop:
    """A server with online tuning, and the requests that it serves."""

    def __init__(
        self,
        server: Server,
        model: Model,
        search: SearchClient,
        change: Callable[[CompiledNetwork], CompiledNetwork] = lambda network: network,
        trials_per_request: int | None = None,
        targets: Targets = NO_TARGETS,
    ):
        self.server, self.model, self.events = server, model, ServingEvents()
        prepared = with_changed_networks(model.prepared, change)
        self.adapter = OnlineTuner(
            server,
            lambda _dram, schedule: prepared.network(schedule),
            model.first,
            search,
            self.events,
            DramTiming(),
            trials_per_request,
            targets,
        )
        self.results: list[RequestResult] = []

    def serve(self, requests: int, *, rest: bool = True) -> list[RequestResult]:
        """Serve the given number of requests and check their outputs; with `rest`, wait for all results."""
        came = []
        for _ in range(requests):
            self.server.submit(self.model.inputs(self.server.submitted))
            self.adapter.tick()
            came += self.server.results()
        came += self.server.results(wait=rest)
        self.results += came
        assert [result.index for result in self.results] == list(range(self.server.completed))
        assert all(self.model.is_correct(result) for result in came)
        return came

    def reasons(self, event: str) -> list[str]:
        """Return the reasons for all decisions of a kind."""
        return [each["reason"] for each in self.events.events_named(event)]


def test_better_version_is_kept(server: Server, model: Model) -> None:
    slow = model.plain
    proposer = ScriptedProposer(slow, 7000)
    # The server starts with the slow version; the static compiler's version is proposed.
    version = server.versions.add(slow)
    server.switch(version)
    loop = Loop(server, model, proposer)
    before = loop.serve(4)[-1].cycles
    proposer.ready.append(proposer.finding(model.first.schedule, CYCLES))
    after = loop.serve(CANARY_REQUESTS + 4)[-1].cycles
    assert after < before
    (reload,), (kept,) = loop.events.events_named("reload"), loop.events.events_named("kept")
    assert reload["version"] == kept["version"] == loop.results[-1].version.number
    assert reload["load_cycles"] >= 0 and reload["measured_cycles"] == CYCLES
    assert version not in [each.version for each in loop.results[-1:]]
    assert loop.adapter.served.typical == kept["cycles"] == after


def test_served_version_is_measured_before_it_is_replaced(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    proposer.ready.append(proposer.finding(model.with_layers(on_chip=False).schedule, 100))
    loop.serve(CANARY_REQUESTS + 6)
    assert loop.events.events_named("reload")[0]["request"] > CANARY_REQUESTS
    assert [result.version.number for result in loop.results[:CANARY_REQUESTS]] == [0] * CANARY_REQUESTS


def test_wrong_outputs_are_never_returned(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer, damaged)
    loop.serve(4)
    proposer.ready.append(proposer.finding(model.with_layers(on_chip=False).schedule, 100))
    results = loop.serve(10)
    assert {result.version.number for result in results} == {0}
    (reason,) = loop.reasons("rollback")
    assert "the outputs of request" in reason and "are wrong" in reason
    proposer.ready.append(proposer.finding(model.with_layers(on_chip=False).schedule, 100))
    loop.serve(4)
    assert loop.reasons("rejected") == ["rolled back before under the same DRAM timing"]


def test_trap_restores_the_previous_version(
    server: Server, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(4)
    switch = server.switch

    def fail_there(version) -> None:
        faults = [DramFault(version.window[0], version.window[1] + 1)] if version.number else []
        server.device.set_dram_faults(faults)
        switch(version)

    monkeypatch.setattr(server, "switch", fail_there)
    proposer.ready.append(proposer.finding(model.with_layers(on_chip=False).schedule, 100))
    assert {result.version.number for result in loop.serve(10)} == {0}
    (reason,) = loop.reasons("rollback")
    assert reason.startswith("trap: BUS_READ in macro-instruction")
    assert server.driver.get("TRAP_COUNT") > 0


def test_trap_of_an_established_version_is_an_error(server: Server, model: Model) -> None:
    loop = Loop(server, model, ScriptedProposer(model.first, CYCLES))
    loop.serve(4)
    first, last = server.current.window
    server.device.set_dram_faults([DramFault(first, last + 1)])
    with pytest.raises(TrapError, match="BUS_READ"):
        loop.serve(4)


def test_version_slower_than_measured_is_rolled_back(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(4)
    proposer.ready.append(proposer.finding(model.plain.schedule, CYCLES * 9 // 10))
    loop.serve(12)
    (reason,) = loop.reasons("rollback")
    assert "cycles per request, measured " in reason
    assert loop.results[-1].version.number == 0
    loop.serve(
        8
    )  # the search drops the schedule, once the restored version shows no change of the conditions
    assert [each for each in proposer.orders if isinstance(each, Withdrawn)] == [
        Withdrawn(model.plain.schedule)
    ]


@pytest.mark.parametrize(("target", "met"), [(1e9, True), (1.0, False)])
def test_served_cycles_that_meet_the_target_end_the_search(
    server: Server, model: Model, target: float, met: bool
) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer, trials_per_request=1, targets=Targets(cycles=target))
    loop.serve(8)
    assert loop.adapter.target_met is met and len(loop.events.events_named("target met")) == met
    trials = proposer.orders.count(None)
    loop.serve(4)
    assert proposer.orders.count(None) == trials + (0 if met else 4)
    proposer.ready.append(proposer.finding(model.plain.schedule, 100))
    loop.serve(1)
    assert len(loop.events.events_named("reload")) == (not met)


def test_much_slower_version_is_rolled_back_after_one_request(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(4)
    proposer.ready.append(proposer.finding(model.plain.schedule, CYCLES // 4))
    loop.serve(12)
    (reason,) = loop.reasons("rollback")
    assert reason.startswith("request ") and "cycles, measured " in reason
    assert len({result.index for result in loop.results if result.version.number}) <= CANARY_REQUESTS + 1


def test_fewer_cycles_than_the_lower_bound_are_rejected(
    server: Server, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)

    def lazy(network: CompiledNetwork) -> CompiledNetwork:
        return replace(network, floor=replace(network.floor, macs=network.floor.macs * 1000))

    loop = Loop(server, model, proposer, lazy)
    loop.serve(4)
    proposer.ready.append(proposer.finding(model.with_layers(on_chip=False).schedule, 5000))
    assert {result.version.number for result in loop.serve(8)} == {0}
    (reason,) = loop.reasons("rollback")
    assert "cycles is below the lower bound of" in reason


def test_reasons_for_rejection(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(CANARY_REQUESTS)
    other = model.plain.schedule
    proposer.ready += [
        proposer.finding(other, CYCLES),
        proposer.finding(other, 100, exact=False),
        proposer.finding(other, 100, floor=200),
        replace(proposer.finding(other, 0), result=Rejected("trap", "it fell over")),
        proposer.finding(Schedule((("nobody", "else"),), other.layers), 100),
        proposer.finding(other, 100, DramTiming(latency=7)),
    ]
    loop.serve(3)
    reasons = loop.reasons("rejected")
    assert reasons[0] == f"{CYCLES:,} cycles, no improvement on {CYCLES:,}"
    assert reasons[1:4] == [
        "its outputs are wrong",
        "100 cycles is below the lower bound of 200 cycles",
        "trap: it fell over",
    ]
    assert "there is no such node" in reasons[4] and len(reasons) == 5
    assert not loop.events.events_named("reload")


def test_search_may_end_at_any_moment(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(3)
    proposer.ready.append(proposer.finding(model.plain.schedule, CYCLES * 9 // 10))
    loop.serve(1)
    proposer.lost = True
    loop.serve(10)
    assert loop.reasons("search lost") == ["somebody has ended it"]
    assert loop.results[-1].version.number == 0 and loop.reasons("rollback")


@pytest.mark.parametrize("when", ["at once", "later"])
def test_killed_search_does_not_stop_serving(server: Server, model: Model, graph: Graph, when: str) -> None:
    with SearchProcess(SearchJob(graph, model.first.config, OPTIONS, "random", seed=3)) as proposer:
        loop = Loop(server, model, proposer)
        if when == "later":
            for _ in itertools.takewhile(lambda _: not loop.events.seen, itertools.count()):
                loop.serve(1)
        assert proposer.process.pid is not None
        os.kill(proposer.process.pid, signal.SIGKILL)
        proposer.process.join()
        loop.serve(5)
    assert loop.reasons("search lost") == ["the search process has ended unexpectedly"]


def test_drift_is_detected_and_ends(server: Server, model: Model, graph: Graph) -> None:
    config = model.first.config
    with SearchProcess(SearchJob(graph, config, OPTIONS, "random")) as proposer:
        loop = Loop(server, model, proposer, trials_per_request=0)  # no trials, so the served version remains
        loop.serve(15, rest=False)
        assert not loop.events.events_named("drift")
        for latency, rate in ((100, 1.0), (100, 4.0)):
            changed = server.completed
            server.device.set_dram_timing(latency, rate)
            loop.serve(30, rest=False)
            drift, conditions = (
                loop.events.events_named("drift")[-1],
                loop.events.events_named("conditions")[-1],
            )
            assert changed <= drift["request"] < changed + 9
            assert conditions["latency"] == pytest.approx(latency, rel=0.15)
            assert conditions["bytes_per_cycle"] == pytest.approx(rate, rel=0.05)
        loop.serve(0)
    assert len(loop.events.events_named("drift")) == 2


def test_change_during_trials_is_detected(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(15, rest=False)
    changed = server.completed
    server.device.set_dram_timing(100, 1.0)
    for network in model.versions()[1:]:
        proposer.ready.append(proposer.finding(network.schedule, CYCLES // 2))
        loop.serve(6, rest=False)
    loop.serve(0)
    (drift,) = loop.events.events_named("drift")
    assert changed <= drift["request"] < changed + 9


def test_previous_best_version_is_restored_at_once(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(15)
    slow = DramTiming(bytes_per_cycle=1.0)
    server.device.set_dram_timing(100, 1.0)
    loop.serve(16)
    (order,) = [each for each in proposer.orders if isinstance(each, Changed)]
    assert order.schedule == model.first.schedule and order.known == DramTiming() and order.loads
    separate = model.with_layers(same_program_as_previous=False, prefetch=0).schedule
    usual = loop.results[-1].cycles
    proposer.ready += [
        proposer.finding(model.first.schedule, usual, slow, kind="served"),
        proposer.finding(separate, usual - 300, slow),
    ]
    loop.serve(20)
    assert [each["why"] for each in loop.events.events_named("reload")] == ["trial"]


def test_change_is_detected_during_continuous_trials(server: Server, model: Model) -> None:
    """A change is detected even if candidates arrive continuously and are rolled back because of slower memory."""
    proposer = ScriptedProposer(model.first, CYCLES)
    loop = Loop(server, model, proposer)
    loop.serve(15, rest=False)
    for number in range(8):
        other = model.with_layers(on_chip=False, prefetch=number).schedule
        proposer.ready.append(proposer.finding(other, CYCLES * 9 // 10))
        loop.serve(1, rest=False)
        if not number:
            server.device.set_dram_timing(100, 1.0)
        loop.serve(4, rest=False)
    loop.serve(0)
    assert loop.events.events_named("rollback") and len(loop.events.events_named("drift")) == 1


def test_failing_generator_is_reported_once(server: Server, model: Model) -> None:
    proposer, failure = (
        ScriptedProposer(model.first, CYCLES),
        GeneratorFailure("own", "propose failed: KeyError"),
    )
    loop = Loop(server, model, proposer)
    for _ in range(2):
        finding = proposer.finding(model.with_layers(on_chip=False).schedule, CYCLES * 2)
        proposer.ready.append(replace(finding, left_out=(failure,)))
        loop.serve(1)
    (event,) = loop.events.events_named("left out")
    assert (event["generator"], event["reason"]) == ("own", "propose failed: KeyError")
