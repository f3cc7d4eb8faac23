"""Search over edits of micro-programs, after a search over schedules."""

import random
from collections.abc import Mapping
from dataclasses import replace

from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.edits.edit import Edit, EditError, apply_edits, draw_edits
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.coordinate import CoordinateSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.search_units import neighbour_loss
from hw.errors import InputError

#: Successive trials without a relative improvement above `_MIN_IMPROVEMENT` after which the schedule search ends.
_DEFAULT_PATIENCE, _MIN_IMPROVEMENT = 24, 0.001
#: Interval, in trials, at which the best edits of all programs are tried together.
_COMBINED_INTERVAL = 4
#: Maximum number of attempts to find new edits per proposal.
_MAX_ATTEMPTS = 20

#: Maximum number of edits added in one trial; number of best edit sequences per program that are extended.
_MAX_NEW_EDITS, _BEAM_WIDTH = 2, 3

Edits = tuple[Edit, ...]


class ProgramEditor:
    """Editor that keeps the best edits of each program and extends them.

    Parameters
    ----------
    editable : EditablePrograms
        Programs to edit.
    measured : Measurement
        Measurement of the programs without edits.
    """

    def __init__(self, editable: EditablePrograms, measured: Measurement):
        self.editable, self.config = editable, editable.config
        programs = editable.programs
        #: Edit sequences of each program with the program's cycles under each, best first.
        self._known: dict[str, list[tuple[int, Edits]]] = {
            program.name: [(program.cycles(measured), ())] for program in programs
        }
        self._best_combined: dict[str, Edits] = {}

    def draw(self, rng: random.Random) -> dict[str, Edits]:
        """Return new edit sequences, by program name, for every second program."""
        programs = self.editable.programs
        odd = rng.randrange(min(len(programs), 2))
        found = {program.name: self._extend(program, rng) for program in programs[odd::2]}
        return {name: edits for name, edits in found.items() if edits}

    def schedule(self, tried: Mapping[str, Edits]) -> Schedule | None:
        """Return a schedule with the given edits and the best edits of other programs; None if it is impossible."""
        try:
            return self.editable.with_edits(self.with_best(tried))
        except (EditError, InputError):
            return None

    def with_best(self, tried: Mapping[str, Edits]) -> dict[str, Edits]:
        """Return the given edits together with the best edits of all other programs."""
        return {name: known[0][1] for name, known in self._known.items()} | dict(tried)

    def learn(self, tried: Mapping[str, Edits], measured: Measurement, *, better: bool) -> None:
        """Learn from the result of a trial; `better` is True if it is at least as good as the best earlier trial."""
        programs = self.editable.programs
        now = [program.cycles(measured) for program in programs]
        if not tried:
            self._update_combined(now, better=better)
            return
        increases = [
            cycles - self._known[program.name][0][0] for program, cycles in zip(programs, now, strict=True)
        ]
        for number, program in enumerate(programs):
            if program.name in tried:
                cost = now[number] + round(neighbour_loss(increases, number))
                known = [*self._known[program.name], (cost, tried[program.name])]
                self._known[program.name] = sorted(known, key=lambda each: each[0])[:_BEAM_WIDTH]

    def _update_combined(self, now: list[int], *, better: bool) -> None:
        """Keep the combination of best edits if it helped, else restore the last combination that helped."""
        for program, cycles in zip(self.editable.programs, now, strict=True):
            known = self._known[program.name]
            edits = known[0][1] if better else self._best_combined.get(program.name, ())
            if better:
                self._best_combined[program.name] = edits
                known[0] = (cycles, edits)
            else:
                self._known[program.name] = [(cycles, edits)]

    def _extend(self, program: EditableProgram, rng: random.Random) -> Edits:
        """Return one of the best edit sequences of a program with new edits appended."""
        _, edits = rng.choice(self._known[program.name])
        commands = apply_edits(self.config, program.unrolled.commands, edits)
        for _ in range(rng.randint(1, _MAX_NEW_EDITS)):
            if (found := draw_edits(self.config, commands, rng)) is not None:
                edits, commands = (*edits, found[0]), found[1]
        return edits


class ProgramEditSearch(SearchMethod):
    """Coordinate search over schedules, then over edits of the best schedule's programs.

    Each trial changes every second program; the cycles of a program's layers show whether its change helped.

    Parameters
    ----------
    patience : int or None
        Number of successive trials without improvement after which the schedule search ends; None: 24; 0: no schedule
        search, so that the method is exhausted if it finds no new edits.

    Attributes
    ----------
    edits : dict of str to dict
        Edits of each program, for each edited schedule, given as JSON text.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
        patience: int | None = None,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._schedules = (
            None if patience == 0 else CoordinateSearch(measurer, goal, baseline, seed, constraints)
        )
        self._editor: ProgramEditor | None = None
        self._tried: dict[str, dict[str, Edits]] = {}
        self._failures = self._count = 0
        self._exhausted = False
        self._patience = _DEFAULT_PATIENCE if patience is None else patience
        self.edits: dict[str, dict[str, Edits]] = {}

    def propose(self) -> Schedule:
        """Return a schedule from the schedule search while it makes progress, then schedules with edited programs."""
        if self._editor is None and self._failures >= self._patience:
            self._editor = self._begin()
        found = None if self._editor is None else self._edited(self._editor)
        if found is not None:
            return found
        if self._schedules is not None:
            return self._schedules.propose()
        self._exhausted = True
        return self.first

    @property
    def exhausted(self) -> bool:
        """True if there are no new edits of the best schedule and no schedule search."""
        return self._exhausted

    def _edited(self, editor: ProgramEditor) -> Schedule | None:
        """Return the best schedule with new edits; None if no new edits are found."""
        for _ in range(_MAX_ATTEMPTS):
            self._count += 1
            tried = {} if self._count % _COMBINED_INTERVAL == 0 else editor.draw(self.rng)
            schedule = editor.schedule(tried)
            if schedule is not None and self.register(schedule):
                text = schedule.to_json()
                self._tried[text], self.edits[text] = tried, editor.with_best(tried)
                return schedule
        return None

    def accepts(self, schedule: Schedule) -> bool:
        """Return True: the method handles all fusions."""
        return True

    def learn(self, trial: Trial) -> None:
        """Pass the result to the schedule search or to the editor, whichever proposed the trial."""
        best = self.best.cost or 0.0
        improved = trial.cost is not None and trial.cost < best * (1 - _MIN_IMPROVEMENT)
        self._failures = 0 if improved else self._failures + 1
        tried = self._tried.pop(trial.schedule.to_json(), None)
        if tried is None or self._editor is None:
            if self._schedules is not None:
                self._schedules.record(trial.schedule, trial.result)
            elif trial.cost is not None and trial.cost < best and not self._edits(trial.schedule):
                # by another method: the programs of its schedule are edited from now on
                self._editor, self._exhausted = None, False
                self._tried.clear()
        elif trial.cost is not None and isinstance(trial.result, Measurement):
            self._editor.learn(tried, trial.result, better=trial.cost <= best)

    def _edits(self, schedule: Schedule) -> bool:
        """Return True if the programs of a schedule, apart from its texts, are the programs that are edited."""
        return self._editor is not None and self._editor.editable.schedule == replace(schedule, programs={})

    def _begin(self) -> ProgramEditor | None:
        """Return an editor for the best schedule's programs; None if edits are forbidden or impossible."""
        self._failures = 0
        measured = self.best.result
        if "micro-program" in self.constraints.forbidden or not isinstance(measured, Measurement):
            return None
        editable = EditablePrograms(self.prepared.network(replace(self.best.schedule, programs={})))
        return ProgramEditor(editable, measured) if editable.programs else None
