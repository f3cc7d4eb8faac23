"""Source text of a user's module with search methods and generators, valid and faulty ones."""

import re
import sys
from pathlib import Path

import pytest

SOURCE = """
from dataclasses import replace
from compiler.schedule.schedule import Schedule
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod, with_layer
from compiler.tuning.generators.generator import Generator
from compiler.tuning.generators.generator import Candidate

print("imported")

class Base(SearchMethod):
    def propose(self):
        return self.first
    def learn(self, trial):
        pass

class Good(Base):
    heard = []
    def propose(self):
        print("proposing")
        for layer, space in self.spaces.items():
            schedule = with_layer(self.first, layer, space.change(self.rng, self.first.layers[layer]))
            if self.register(schedule):
                return schedule
        return self.first
    def learn(self, trial):
        self.heard.append(trial)

class Lacks(SearchMethod):
    def propose(self):
        return self.first

class NoBase(Base):
    def __init__(self, *args, **named):
        pass

class BadInit(Base):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        raise RuntimeError("no licence\\nsecond line")

class Raises(Base):
    def propose(self):
        return 1 / 0

class Nothing(Base):
    def propose(self):
        return None

class Nonsense(Base):
    def propose(self):
        return replace(self.first, layers={"x": 3})

class Lists(Base):
    def propose(self):
        return replace(self.first, fusions=[["a", "b"]])

class Forbidden(Base):
    def propose(self):
        name, layer = next(iter(self.first.layers.items()))
        return with_layer(self.first, name, replace(layer, rows=layer.rows // 2 + 1))

class Deaf(Base):
    def learn(self, trial):
        raise KeyError("trial")

class Predicts(Base):
    @property
    def predictor(self):
        return "good"

class Exits(Base):
    def propose(self):
        raise SystemExit(7)

class Refuses(Base):
    def propose(self):
        return self.prepared.network(replace(self.first, layers={})) or replace(self.first, layers=5)

class Asks(GeneratorSearch):
    pass

class Quiet(Generator):
    name = "quiet"
    def propose(self, task):
        return iter(())

class Needs(Quiet):
    def __init__(self, model):
        pass

class NotIterable(Quiet):
    def propose(self, task):
        pass

class YieldsText(Quiet):
    def propose(self, task):
        yield "halt"

class YieldsNoSchedule(Quiet):
    def propose(self, task):
        yield Candidate(None, "mine", "")

class PredictsText(Quiet):
    def propose(self, task):
        yield Candidate(task.schedule, "mine", "", "3 cycles")

class Fails(Quiet):
    def propose(self, task):
        raise ValueError("oh")
        yield

class FailsToObserve(Quiet):
    def propose(self, task):
        yield Candidate(task.schedule, "mine", "the same")
    def observe(self, candidate, result):
        raise ValueError("oh")

class Endless(Quiet):
    def propose(self, task):
        while True:
            yield Candidate(task.schedule, "mine", "the same")

class Sub(Quiet):
    name = "sub"
    def propose(self, task):
        for layer in task.layers:
            now = task.schedule.layers[layer]
            yield task.with_layers({layer: replace(now, rows=max(1, now.rows // 2))}, self.name, "rows")

value = 3
"""


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the module into `folder`, make this the current folder, and return the module's name."""
    name = re.sub(r"\W", "_", f"plug_{folder.parent.name}_{folder.name}")
    (folder / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name
