"""Search by generators, which propose candidates for the slowest layers and observe the results."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from compiler.cost.learned_model import PredictionErrors
from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorFailure, GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.util.plugin_registry import guarded
from hw.errors import InputError, MlaError

_Result = TypeVar("_Result")

#: Maximum number of successive candidates of a generator without improvement, before the next generator's turn.
_MAX_FAILURES = 12
#: Maximum number of random changes tried per proposal, once all generators are exhausted.
_MAX_CHANGES = 100


class GeneratorSearch(SearchMethod):
    """Search method that queries generators for candidates.

    All generators are queried, one after another, about the whole network, and then about each layer, the slowest
    first; this repeats. Each task starts from the best schedule so far. After an improvement, the same generator is
    queried again immediately. When no generator proposes anything new, the best schedule is changed at random, or the
    search is exhausted. A generator that raises an exception is reported and left out, and the search continues with
    the others.

    Parameters
    ----------
    generators : sequence of Generator or None
        Generators to query, in this order; None: all registered ones.
    random_changes : bool
        True to change the best schedule at random when no generator proposes anything new.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
        generators: Sequence[Generator] | None = None,
        *,
        random_changes: bool = True,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self.generators = [each() for each in GENERATORS.values()] if generators is None else list(generators)
        #: Index of the current turn; number of candidates in this turn without improvement; number of successive turns
        #: without candidates.
        self._turn, self._failures, self._empty_turns = 0, 0, 0
        self._seed, self._log = seed, measurer.log
        self._random_changes, self._exhausted = random_changes, False
        self._left_out: list[GeneratorFailure] = []
        self._open: Iterator[Candidate] | None = None
        self._pending: dict[str, tuple[Generator, Candidate]] = {}
        self._known = {self.prepared.network(self.first).digest}
        self._pairs: list[tuple[float, float]] = []

    @property
    def predictor(self) -> PredictionErrors:
        """Prediction errors of the candidates whose cycles were predicted."""
        return PredictionErrors.from_pairs([a for a, _ in self._pairs], [b for _, b in self._pairs])

    @property
    def left_out(self) -> tuple[GeneratorFailure, ...]:
        """Failures of generators, which are no longer queried."""
        return tuple(self._left_out)

    def propose(self) -> Schedule:
        """Return the next candidate of the generator whose turn it is."""
        while (task := self._task()) is not None:
            generator = self.generators[self._turn % len(self.generators)]
            found = self._guarded(generator, "propose", lambda of=generator, at=task: self._next(of, at))
            if found is not None:
                return found
        if self._random_changes:
            return self._changed()
        self._exhausted = True
        return self.first

    @property
    def exhausted(self) -> bool:
        """True if no generator proposes anything new and random changes are not made."""
        return self._exhausted

    def _next(self, generator: Generator, task: GeneratorTask) -> Schedule | None:
        """Return the generator's next candidate that is to be measured; None if its turn has ended."""
        if self._open is None:
            self._open = iter(generator.propose(task))
        while self._failures < _MAX_FAILURES and (candidate := next(self._open, None)) is not None:
            if self._accept(generator, candidate):
                self._failures += 1
                self._pending[candidate.schedule.to_json()] = generator, candidate
                return candidate.schedule
        self._empty_turns = 0 if self._failures else self._empty_turns + 1
        self._turn, self._failures, self._open = self._turn + 1, 0, None
        return None

    def _guarded(self, generator: Generator, doing: str, work: Callable[[], _Result]) -> _Result | None:
        """Return the result of a call of a generator; leave the generator out and return None if the call fails."""
        try:
            return guarded(work, f"{doing} failed")
        except MlaError as error:
            self._leave_out(generator, str(error))
            return None

    def _leave_out(self, generator: Generator, reason: str) -> None:
        """Query a generator no more; the turn passes to the one after it, if it was the generator's."""
        name = str(getattr(generator, "name", type(generator).__qualname__))
        self._left_out.append(GeneratorFailure(name, reason))
        self._log(str(self._left_out[-1]))
        number, count = self.generators.index(generator), len(self.generators)
        rounds, place = divmod(self._turn, count)
        if place == number:
            self._failures, self._open = 0, None
        del self.generators[number]
        self._turn = rounds * (count - 1) + place - (number < place)

    def accepts(self, schedule: Schedule) -> bool:
        """Return True: the method handles all fusions."""
        return True

    def learn(self, trial: Trial) -> None:
        """Pass the result to the candidate's generator; after an improvement, query it about the new schedule next."""
        pending = self._pending.pop(trial.schedule.to_json(), None)
        if pending is not None:
            generator, candidate = pending
            self._observe(generator, candidate, trial.result)
            if candidate.predicted is not None and isinstance(trial.result, Measurement):
                self._pairs.append((candidate.predicted, float(trial.result.cycles)))
        better = trial.cost is not None and self.best.cost is not None and trial.cost < self.best.cost
        if better:
            self._failures, self._open = 0, None
            self._empty_turns, self._exhausted = 0, False

    def _accept(self, generator: Generator, candidate: Candidate) -> bool:
        """Return True if a candidate is to be measured; otherwise notify the generator, without using up a trial."""
        rejection = self._rejection(candidate.schedule)
        if rejection is not None:
            generator.observe(candidate, rejection)
        return rejection is None

    def _observe(self, generator: Generator, candidate: Candidate, result: Result) -> None:
        """Pass the result of a trial to its generator, unless that has been left out."""
        if generator in self.generators:
            self._guarded(generator, "observe", lambda: generator.observe(candidate, result))

    def _rejection(self, schedule: Schedule) -> Rejected | None:
        """Return the reason why a schedule is not to be measured; None if it is to be measured."""
        if not self.register(schedule):
            violation = self.constraints.violation(schedule, self.first)
            return Rejected(
                "search", "it was proposed before" if violation is None else f"{violation} is forbidden"
            )
        try:
            programs = self.prepared.network(schedule).digest
        except InputError as error:
            return Rejected("compile", str(error))
        if programs in self._known:
            return Rejected("search", "the same programs were measured before")
        self._known.add(programs)
        return None

    def _task(self) -> GeneratorTask | None:
        """Return the task of the current turn; None if no generator had a candidate for any task."""
        measured = self.best.result
        assert isinstance(measured, Measurement)
        entries = sorted(measured.layers, key=lambda entry: -entry.cycles)
        everything = [each for entry in measured.layers for each in entry.names]
        about = [tuple(everything), *(entry.names for entry in entries)]
        if self._empty_turns >= len(about) * len(self.generators) or not self.generators:
            return None
        number, schedule = self._turn // len(self.generators), self.best.schedule
        return GeneratorTask(
            self.prepared,
            self.conditions,
            schedule,
            about[number % len(about)],
            measured,
            self.goal,
            self._seed,
            self.constraints,
        )

    def _changed(self) -> Schedule:
        """Return the best schedule with a random change."""
        for _ in range(_MAX_CHANGES):
            layer = self.rng.choice(list(self.spaces))
            layers = self.best.schedule.layers
            if layer in layers:
                changed = self.spaces[layer].change(self.rng, layers[layer])
                schedule = Schedule(self.best.schedule.fusions, layers | {layer: changed})
                if self.register(schedule):
                    return schedule
        return self.first
