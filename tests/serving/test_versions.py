"""Replacing versions of a network while requests are in flight keeps outputs correct and hardly delays requests."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from compiler.ir.graph import Graph
from compiler.serving.request import RequestResult
from compiler.serving.server import Server, serving_bytes
from compiler.validate import ValidationError
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError, WorkError
from hw.isa.assembler import assemble
from tests.online_tuning.small_servers import Model, longest
from tests.support.graphs import Draft

SEED = 20
REQUESTS, RELOADS = 250, 50


@pytest.fixture(scope="module")
def model(graph: Graph) -> Model:
    """Return the small network on n4."""
    return Model(graph, load_target("n4"))


@pytest.fixture
def server(model: Model) -> Iterator[Server]:
    """Yield a server on the RTL with room for several versions."""
    with RtlDevice(model.first.config, serving_bytes(model.first, versions=8)) as device:
        yield Server(device, model.first)


def stream(
    server: Server, model: Model, requests: int, reloads: int, rng: random.Random
) -> list[RequestResult]:
    """Return the results of requests during which random versions are loaded and old versions removed."""
    moments = set(rng.sample(range(1, requests), reloads))
    others, old = model.versions(), []
    out: list[RequestResult] = []
    for request in range(requests):
        if request in moments:
            network = rng.choice([each for each in others if each is not server.current.network])
            version = server.versions.add(network, server.current)
            if rng.random() < 0.8:
                server.prefetch(version)
            old.append(server.current)
            server.switch(version)
        server.submit(model.inputs(request))
        out += server.results()
        for version in [each for each in old if not server.uses(each)]:
            old.remove(version)
            server.drop(version)
    return out + server.results(wait=True)


def check(results: list[RequestResult], model: Model, requests: int, reloads: int) -> None:
    """Check that all results are in order, are correct, come from one version each, and have no long delays."""
    assert [result.index for result in results] == list(range(requests))
    assert all(model.is_correct(result) for result in results)
    assert len({result.version.number for result in results}) == reloads + 1
    usual: dict[object, list[int]] = defaultdict(list)
    for result in results:
        usual[result.version.network].append(result.cycles)
        assert len(result.macros) == len(result.version.parts)
    most = longest(results)
    for before, result in itertools.pairwise(results):
        late = result.delay + result.cycles - median(usual[result.version.network])
        assert late <= most, (result.index, late, most)
        gap = result.macros[0].started - before.macros[-1].retired
        assert gap <= most


def fill(server: Server, left: int) -> None:
    """Occupy the instruction store except for the given number of words."""
    server.queue.resident_programs.unload(server.current.parts, [])
    words = server.driver.config.wis_words - left
    server.driver.programs.load(assemble("add r1, r1, 1\n" * (words - 1) + "halt", "filler"))


def test_fifty_reloads_at_random_moments(server: Server, model: Model) -> None:
    print(f"seed {SEED}")
    results = stream(server, model, REQUESTS, RELOADS, random.Random(SEED))
    check(results, model, REQUESTS, RELOADS)
    assert sum(result.delay for result in results) < 0.01 * sum(result.cycles for result in results)
    assert server.driver.get("TRAP_COUNT") == 0


def test_programs_are_loaded_one_by_one_if_both_versions_do_not_fit(server: Server, model: Model) -> None:
    print(f"seed {SEED}")
    fill(server, max(len(program.words) for each in model.versions() for program in each.codes[0].programs))
    results = stream(server, model, 60, 12, random.Random(SEED))
    check(results, model, 60, 12)
    assert server.queue.resident_programs.evictions > 0


def test_program_that_does_not_fit(server: Server, model: Model) -> None:
    fill(server, 20)
    with pytest.raises(WorkError, match=r"program .* words: no room for it"):
        server.submit(model.inputs(0))


def test_old_versions_are_removed_from_memory_and_store(server: Server, model: Model) -> None:
    left = server.versions.arena.left
    list(server.serve(model.inputs(number) for number in range(3)))
    first = server.current
    version = server.versions.add(model.plain, first)
    assert server.prefetch(version) and all(part in server.queue.resident_programs for part in version.parts)
    server.switch(version)
    server.submit(model.inputs(0))
    assert not server.uses(first) and server.uses(version)
    server.results(wait=True)
    server.drop(first)
    assert not any(part in server.queue.resident_programs for part in first.parts)
    back = server.versions.add(model.first, version)
    server.switch(back)
    (result,) = server.serve([model.inputs(1)])
    assert model.questions[1].matches(result.outputs)
    server.drop(version)
    assert server.versions.arena.left == left


def test_cycles_do_not_depend_on_the_memory_address(server: Server, model: Model) -> None:
    taken = []
    for number in range(3):
        version = server.versions.add(model.plain)
        server.prefetch(version)
        server.switch(version)
        results = list(server.serve(model.inputs(0) for _ in range(4)))
        taken.append([macro.cycles for macro in results[2].macros])
        server.versions.arena.alloc(64 * (number + 1), "something between")
    assert taken[0] == taken[1] == taken[2]


def test_programs_of_an_added_version_are_resident(server: Server, model: Model) -> None:
    loads = server.queue.resident_programs.loads
    version, resident = server.add(model.plain)
    assert resident and server.queue.resident_programs.loads > loads
    server.switch(version)
    assert all(model.is_correct(result) for result in server.serve([model.inputs(0), model.inputs(1)]))


def test_programs_of_an_unsafe_version_are_not_loaded(server: Server, model: Model) -> None:
    (code,) = model.plain.codes
    first, *rest = code.parts
    endless = replace(first, program=assemble("spin: beq r0, r0, spin\nhalt", "endless"))
    unsafe = replace(code, parts=(endless, *rest))
    (stage,) = model.plain.stages
    network = replace(model.plain, stages=(replace(stage, code=unsafe),))
    left, there = server.versions.arena.left, dict(server.driver.programs.programs)
    loads = server.queue.resident_programs.loads
    with pytest.raises(ValidationError):
        server.add(network)
    assert server.versions.arena.left == left and server.driver.programs.programs == there
    assert server.queue.resident_programs.loads == loads
    assert all(model.is_correct(result) for result in server.serve([model.inputs(0)]))


def test_versions_of_another_model_are_rejected(server: Server) -> None:
    draft = Draft(np.random.default_rng(3))
    x = draft.input((1, 4, 4, 8))
    y = draft.node("clip", [x], (1, 4, 4, 8), low=0, high=9)
    other = Model(draft.graph.finish([y.name]), load_target("n4"), questions=0)
    with pytest.raises(InputError, match="it belongs to another model"):
        server.versions.add(other.first)
    wide = Model(draft.graph, load_target("n8"), questions=0)
    with pytest.raises(InputError, match="compiled for another machine configuration"):
        server.versions.add(wide.first)


def test_version_that_does_not_fit(server: Server, model: Model) -> None:
    left = server.versions.arena.left
    with pytest.raises(InputError, match=r"no room for .* bytes of the memory of a version"):
        while True:
            server.versions.add(model.plain)
    assert server.versions.arena.left < left


def test_bad_inputs_are_rejected_without_side_effects(server: Server, model: Model) -> None:
    with pytest.raises(InputError, match="inputs must be"):
        server.submit({})
    (result,) = server.serve([model.inputs(0)])
    assert result.index == 0 and model.is_correct(result)
