"""Search among edits of micro-programs, once schedules get no better."""

from compiler.measure.measurement import Measurement
from compiler.measure.measurer import Measurer
from compiler.schedule.schedule import Schedule
from compiler.search.constraints import FREE, Constraints
from compiler.search.coordinate import Coordinate
from compiler.search.editor import Editor, Edits
from compiler.search.goals import Goal
from compiler.search.method import Method, Trial
from compiler.specialize.edits.workshop import Workshop

#: Schedules have their turn until so many trials in a row have not helped by this part.
_PATIENCE, _HELP = 24, 0.001
#: Each so many trials all programs' best edits are tried together.
_TOGETHER = 4
_ATTEMPTS = 20


class Edited(Method):
    """Coordinate search over schedules, then edits of the programs that the best one has.

    Every other program tries something in each trial, and has the credit by the cycles of its own layers.

    Parameters
    ----------
    patience : int or None
        Trials in a row without help until schedules have had their turn; None: the usual. 0: edits of `best` at once.

    Attributes
    ----------
    edits : dict
        For each schedule that has any, as JSON, the edits of each program.
    """

    def __init__(
        self, measurer: Measurer, goal: Goal, baseline: Measurement, seed: int,
        constraints: Constraints = FREE, patience: int | None = None,
    ):  # fmt: skip
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._schedules = Coordinate(measurer, goal, baseline, seed, constraints)
        self._editor: Editor | None = None
        self._tried: dict[str, dict[str, Edits]] = {}
        self._vain = self._count = 0
        self._patience = _PATIENCE if patience is None else patience
        self.edits: dict[str, dict[str, Edits]] = {}

    def propose(self) -> Schedule:
        """A schedule, as long as they get better; then edits."""
        if self._editor is None and self._vain >= self._patience:
            self._editor = self._begin()
        found = None if self._editor is None else self._edited(self._editor)
        return self._schedules.propose() if found is None else found

    def _edited(self, editor: Editor) -> Schedule | None:
        """The best schedule with edits that were not tried; None: no more are found."""
        for _ in range(_ATTEMPTS):
            self._count += 1
            tried = {} if self._count % _TOGETHER == 0 else editor.drawn(self.rng)
            schedule = editor.schedule(tried)
            if schedule is not None and self.fresh(schedule):
                text = schedule.to_json()
                self._tried[text], self.edits[text] = tried, editor.with_best(tried)
                return schedule
        return None

    def learn(self, trial: Trial) -> None:
        """Whoever proposed it hears of it."""
        best = self.best.cost or 0.0
        self._vain = 0 if trial.cost is not None and trial.cost < best * (1 - _HELP) else self._vain + 1
        tried = self._tried.pop(trial.schedule.to_json(), None)
        if tried is None or self._editor is None:
            self._schedules.tell(trial.schedule, trial.result)
        elif trial.cost is not None and isinstance(trial.result, Measurement):
            self._editor.learn(tried, trial.result, better=trial.cost <= best)

    def _begin(self) -> Editor | None:
        """For the best schedule so far; None: its programs are not to be edited, or cannot be."""
        self._vain = 0
        measured = self.best.result
        if "micro-program" in self.constraints.forbidden or not isinstance(measured, Measurement):
            return None
        workshop = Workshop(self.prepared.network(self.best.schedule))
        return Editor(workshop, measured) if workshop.pieces else None
