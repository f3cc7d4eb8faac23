"""Search by generators: each is asked for ways to carry out what takes most cycles, and hears what came of them."""

from collections.abc import Iterator, Sequence

from compiler.cost.learned.model import PredictionErrors
from compiler.profile.measurement import Measurement, Rejected
from compiler.schedule.schedule import Schedule
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.generators.library import GENERATORS
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.method import SearchMethod, Trial
from hw.errors import InputError

#: So many candidates of a generator in a row may be of no use before the next one has its turn.
_PATIENCE = 12
#: Random changes until one is new, once all generators have nothing more to log.
_CHANGES = 100


class GeneratorSearch(SearchMethod):
    """Asks one generator after the other about the whole network, then about its layers, the slowest first, and again.

    What is best so far is what the next task is about, at once if it was the present generator that found it. Once
    nobody says anything new, the best schedule is changed at random.

    Parameters
    ----------
    generators : sequence of Generator or None
        Who is asked; None: all of the library.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
        generators: Sequence[Generator] | None = None,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self.generators = [each() for each in GENERATORS.values()] if generators is None else list(generators)
        self._turn, self._vain, self._barren, self._seed = 0, 0, 0, seed
        self._open: Iterator[Candidate] | None = None
        self._asked: dict[str, tuple[Generator, Candidate]] = {}
        self._known = {self.prepared.network(self.first).digest}
        self._pairs: list[tuple[float, float]] = []

    @property
    def predictor(self) -> PredictionErrors:
        """How good the predictions of those candidates were that had one."""
        return PredictionErrors.of([a for a, _ in self._pairs], [b for _, b in self._pairs])

    def propose(self) -> Schedule:
        """The next candidate of the generator whose turn it is."""
        while (task := self._task()) is not None:
            generator = self.generators[self._turn % len(self.generators)]
            if self._open is None:
                self._open = generator.propose(task)
            candidate = next(self._open, None) if self._vain < _PATIENCE else None
            if candidate is None:
                self._barren = 0 if self._vain else self._barren + 1
                self._turn, self._vain, self._open = self._turn + 1, 0, None
            elif self._new(generator, candidate):
                self._vain += 1
                self._asked[candidate.schedule.to_json()] = generator, candidate
                return candidate.schedule
        return self._changed()

    def learn(self, trial: Trial) -> None:
        """The generator hears of it; what got better is what it is asked about next."""
        asked = self._asked.pop(trial.schedule.to_json(), None)
        if asked is None:
            return
        generator, candidate = asked
        generator.observe(candidate, trial.result)
        if candidate.predicted is not None and isinstance(trial.result, Measurement):
            self._pairs.append((candidate.predicted, float(trial.result.cycles)))
        better = trial.cost is not None and self.best.cost is not None and trial.cost < self.best.cost
        if better:
            self._vain, self._open = 0, None

    def _new(self, generator: Generator, candidate: Candidate) -> bool:
        """Whether a candidate can be compiled to programs that were not measured yet; else it costs no trial."""
        refused = self._refused(candidate.schedule)
        if refused is not None:
            generator.observe(candidate, refused)
        return refused is None

    def _refused(self, schedule: Schedule) -> Rejected | None:
        """Why a schedule is not measured; None if it is."""
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
            return Rejected("search", "what is made of it was measured before")
        self._known.add(programs)
        return None

    def _task(self) -> GeneratorTask | None:
        """What the present turn is about; None: there was nothing new about anything."""
        measured = self.best.result
        assert isinstance(measured, Measurement)
        entries = sorted(measured.layers, key=lambda entry: -entry.cycles)
        everything = [each for entry in measured.layers for each in entry.names]
        about = [tuple(everything), *(entry.names for entry in entries)]
        if self._barren >= len(about) * len(self.generators) or not self.generators:
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
        """A random change of the best schedule."""
        for _ in range(_CHANGES):
            layer = self.rng.choice(list(self.spaces))
            layers = self.best.schedule.layers
            if layer in layers:
                changed = self.spaces[layer].change(self.rng, layers[layer])
                schedule = Schedule(self.best.schedule.fusions, layers | {layer: changed})
                if self.register(schedule):
                    return schedule
        return self.first
