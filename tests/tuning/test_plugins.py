"""Tests of user-defined search methods and generators: classes, instances, and error messages."""

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compiler.profile.measurement import Rejected
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.generators.generator import Candidate
from compiler.tuning.generators.included import PeepholeGenerator
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import RandomSearch, SearchMethod
from compiler.tuning.search.tuner import tune
from hw.errors import InputError
from tests.support import plugins


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module of plug-ins into the current folder and return its name."""
    return plugins.write_module(tmp_path, monkeypatch)


@pytest.fixture
def made(module: str) -> Any:
    """Return the module, imported from the current folder."""
    from compiler.util.plugin_registry import load_reference

    load_reference(f"{module}:Good", "classes")
    return importlib.import_module(module)


def texts(found: Any) -> list[str]:
    return [trial.schedule.to_json() for trial in found.trials]


def test_method_as_name_class_and_instance(measurer: Measurer, made: Any) -> None:
    instance = RandomSearch(measurer, Objective.LATENCY, measurer.baseline(), 4, UNCONSTRAINED)
    ways: list[str | type[SearchMethod] | SearchMethod] = [
        "random",
        RandomSearch,
        "compiler.tuning.search.method:RandomSearch",
        instance,
    ]
    found = [tune(measurer, way, 3, seed=4) for way in ways]
    assert all(texts(each) == texts(found[0]) for each in found)
    assert instance.best is found[-1].best
    own = tune(measurer, made.Good, 2, seed=4)
    assert texts(own) == texts(tune(measurer, f"{made.__name__}:Good", 2, seed=4))


def test_instances_of_another_search_are_rejected(measurer: Measurer, graph: Any, made: Any) -> None:
    method = made.Good(measurer, Objective.LATENCY, measurer.baseline(), 4)
    with pytest.raises(InputError, match="was created for the goal"):
        tune(measurer, method, 1, Objective.ENERGY)
    with pytest.raises(InputError, match="was created for the constraints"):
        tune(measurer, method, 1, constraints=Constraints(frozenset({"tag"})))
    with pytest.raises(InputError, match="generators must be passed to the constructor of a method"):
        tune(measurer, method, 1, generator="peephole")
    with Measurer(graph, measurer.conditions, measurer.prepared.options, devices=1) as other:
        method = made.Good(other, Objective.LATENCY, measurer.baseline(), 4)
        with pytest.raises(InputError, match="was created for another measurer"):
            tune(measurer, method, 1)


def test_generators_as_names_classes_and_instances(measurer: Measurer, made: Any) -> None:
    name = f"{made.__name__}:Sub"
    specs = (name, made.Sub, made.Sub(), [name], (made.Quiet(), made.Sub))
    found = [tune(measurer, "generators", 2, generator=spec) for spec in specs]
    assert all(texts(each) == texts(found[0]) for each in found)
    first, proposed = measurer.first.schedule.layers, found[0].trials[0].schedule.layers
    (changed,) = (layer for layer in first if proposed[layer] != first[layer])
    assert proposed[changed] == replace(first[changed], rows=first[changed].rows // 2)
    assert tune(measurer, GeneratorSearch, 1, generator=PeepholeGenerator).trials


def test_generators_need_a_method_that_uses_them(measurer: Measurer) -> None:
    for method in ("random", RandomSearch):
        with pytest.raises(
            InputError, match="generators need a method that uses them, such as generators, not"
        ):
            tune(measurer, method, 1, generator="peephole")
    assert GENERATORS.resolve("polish") is GENERATORS["peephole"]  # former name of the method
    with pytest.raises(
        InputError,
        match="a generator must be one of fusion, nearest, tiling, peephole or module:Class, not 'x'",
    ):
        tune(measurer, "generators", 1, generator="x")
    with pytest.raises(
        InputError, match=r"a search method must be one of portfolio, random, .* or module:Class, not 'x'"
    ):
        tune(measurer, "x", 1)


def test_generator_observes_each_candidate(measurer: Measurer, made: Any) -> None:
    """A generator observes each of its candidates; a task ends after 200 candidates if the generator repeats itself."""
    results: list[Any] = []

    class Endless(made.Endless):
        def observe(self, candidate: Any, result: Any) -> None:
            results.append(result)

    found = tune(measurer, "generators", 1, generator=Endless)
    assert len(found.trials) == 1 and found.best.cost == found.baseline.cycles
    layers = len(found.baseline.layers)
    assert len(results) == 200 * (1 + layers)
    assert all(isinstance(each, Rejected) and each.stage == "search" for each in results)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("value", "must be a subclass of compiler.SearchMethod, not 3"),
        ("Quiet", "must be a subclass of compiler.SearchMethod, not <class"),
        ("Lacks", "must define learn"),
        ("Goood", "has no Goood; its classes: Base, Good, "),
        ("NoBase", "search method {module}:NoBase: __init__ must call that of SearchMethod"),
        ("BadInit", "{module}:BadInit: __init__ failed: RuntimeError: no licence ({module}.py, line "),
        (
            "Raises",
            "{module}:Raises: propose failed: ZeroDivisionError: division by zero ({module}.py, line ",
        ),
        ("Nothing", "{module}:Nothing: propose must return a Schedule, not None"),
        (
            "Nonsense",
            "{module}:Nonsense: propose must return a Schedule of the types that Schedule documents: ",
        ),
        ("Lists", "{module}:Lists: propose must return a Schedule of the types that Schedule documents: "),
        ("Deaf", "{module}:Deaf: learn failed: KeyError: 'trial'"),
        ("Predicts", "{module}:Predicts: predictor must be PredictionErrors or None, not 'good'"),
        ("Exits", "{module}:Exits: propose failed: SystemExit: 7"),
        ("Refuses", "{module}:Refuses: propose "),
    ],
)
def test_bad_methods(measurer: Measurer, module: str, name: str, text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text.format(module=module))) as raised:
        tune(measurer, f"{module}:{name}", 1)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "value",
            "generator {module}:value must be a subclass of compiler.Generator, not 3",
        ),
        ("Needs", "{module}:Needs: __init__ failed: TypeError: "),
    ],
)
def test_bad_generators(measurer: Measurer, module: str, name: str, text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text.format(module=module))):
        tune(measurer, "generators", 1, generator=f"{module}:{name}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NotIterable", "{module}:NotIterable: propose failed: TypeError: 'NoneType' object is not iterable"),
        ("YieldsText", "{module}:YieldsText: propose must yield Candidates, not 'halt'"),
        (
            "YieldsNoSchedule",
            "{module}:YieldsNoSchedule: the schedule of a Candidate must be a Schedule, not None",
        ),
        (
            "PredictsText",
            "{module}:PredictsText: predicted must be a number of cycles or None, not '3 cycles'",
        ),
        ("Fails", "{module}:Fails: propose failed: ValueError: oh ({module}.py, line "),
        ("FailsToObserve", "{module}:FailsToObserve: observe failed: ValueError: oh"),
    ],
)
def test_failing_generator_is_left_out(measurer: Measurer, module: str, name: str, text: str) -> None:
    """The failure is reported once, and the search continues with the other generators."""
    found = tune(measurer, "generators", 4, generator=[f"{module}:{name}", f"{module}:Sub"])
    (failure,) = found.left_out
    assert failure.generator == "quiet" and text.format(module=module) in failure.reason
    assert "\n" not in str(failure) and len(found.trials) == 4
    others = tune(measurer, "generators", 2, generator=f"{module}:Sub")
    assert texts(found)[:2] == texts(others) and not others.left_out


def test_failures_of_instances_and_of_later_calls(measurer: Measurer, made: Any) -> None:
    """A generator may fail in any call and in any way; random changes follow if no generator is left."""

    class Stops(made.Sub):
        def propose(self, task: Any) -> Any:
            yield next(super().propose(task))
            next(iter(()))

    class Deaf(made.Sub):
        def observe(self, candidate: Any, result: Any) -> None:
            raise KeyError(candidate.description)

    class Partial(made.Quiet):
        name = "partial"

        def propose(self, task: Any) -> Any:
            yield Candidate(Schedule(task.schedule.fusions, {}), self.name, "a schedule without layers")

    log: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurer, "log", log.append)
        found = tune(measurer, "generators", 6, generator=[Deaf(), Stops(), Partial()])
    assert len(found.trials) == 6 and found.best.cost is not None
    reasons = {each.reason.partition(" (")[0] for each in found.left_out}
    assert reasons == {"observe failed: KeyError: 'rows'", "propose failed: StopIteration"}
    assert [text for text in log if "left out" in text] == [str(each) for each in found.left_out]
