"""Search among edits of micro-programs, once schedules get no better."""

import random
from collections.abc import Mapping

from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.edits.edit import Edit, EditError, apply_edits, draw_edits
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.coordinate import CoordinateSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.search_units import neighbour_loss
from hw.errors import InputError

#: Schedules have their turn until so many trials in a row have not helped by this part.
_PATIENCE, _HELP = 24, 0.001
#: Each so many trials all programs' best edits are tried together.
_TOGETHER = 4
_ATTEMPTS = 20

#: Edits more in one trial, at most; edits of a program that others are made from.
_MORE, _KEPT = 2, 3

Edits = tuple[Edit, ...]


class ProgramEditor:
    """Keeps for each program the edits that helped, and tries more of them.

    Parameters
    ----------
    workshop : Workshop
        The programs.
    measured : Measurement
        Of them without edits.
    """

    def __init__(self, workshop: EditablePrograms, measured: Measurement):
        self.workshop, self.config = workshop, workshop.config
        pieces = workshop.pieces
        #: For each program edits and its cycles with them, the best first.
        self._known: dict[str, list[tuple[int, Edits]]] = {
            piece.name: [(piece.cycles(measured), ())] for piece in pieces
        }
        self._together: dict[str, Edits] = {}

    def drawn(self, rng: random.Random) -> dict[str, Edits]:
        """New edits of every other program."""
        pieces = self.workshop.pieces
        odd = rng.randrange(min(len(pieces), 2))
        found = {piece.name: self._more(piece, rng) for piece in pieces[odd::2]}
        return {name: edits for name, edits in found.items() if edits}

    def schedule(self, tried: Mapping[str, Edits]) -> Schedule | None:
        """With some edits, and what is best of the other programs; None: they do not fit."""
        try:
            return self.workshop.with_edits(self.with_best(tried))
        except (EditError, InputError):
            return None

    def with_best(self, tried: Mapping[str, Edits]) -> dict[str, Edits]:
        """Some edits, and the best ones of the other programs."""
        return {name: known[0][1] for name, known in self._known.items()} | dict(tried)

    def learn(self, tried: Mapping[str, Edits], measured: Measurement, *, better: bool) -> None:
        """What came of a trial: `better` than any before, or not."""
        pieces = self.workshop.pieces
        now = [piece.cycles(measured) for piece in pieces]
        if not tried:
            self._all_together(now, better=better)
            return
        more = [cycles - self._known[piece.name][0][0] for piece, cycles in zip(pieces, now, strict=True)]
        for number, piece in enumerate(pieces):
            if piece.name in tried:
                cost = now[number] + round(neighbour_loss(more, number))
                known = [*self._known[piece.name], (cost, tried[piece.name])]
                self._known[piece.name] = sorted(known, key=lambda each: each[0])[:_KEPT]

    def _all_together(self, now: list[int], *, better: bool) -> None:
        """What helped one by one need not do so together."""
        for piece, cycles in zip(self.workshop.pieces, now, strict=True):
            known = self._known[piece.name]
            edits = known[0][1] if better else self._together.get(piece.name, ())
            if better:
                self._together[piece.name] = edits
                known[0] = (cycles, edits)
            else:
                self._known[piece.name] = [(cycles, edits)]

    def _more(self, piece: EditableProgram, rng: random.Random) -> Edits:
        """Edits of a program that did well, and some more."""
        _, edits = rng.choice(self._known[piece.name])
        commands = apply_edits(self.config, piece.unrolled.commands, edits)
        for _ in range(rng.randint(1, _MORE)):
            if (found := draw_edits(self.config, commands, rng)) is not None:
                edits, commands = (*edits, found[0]), found[1]
        return edits


class ProgramEditSearch(SearchMethod):
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
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
        patience: int | None = None,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._schedules = CoordinateSearch(measurer, goal, baseline, seed, constraints)
        self._editor: ProgramEditor | None = None
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

    def _edited(self, editor: ProgramEditor) -> Schedule | None:
        """The best schedule with edits that were not tried; None: no more are found."""
        for _ in range(_ATTEMPTS):
            self._count += 1
            tried = {} if self._count % _TOGETHER == 0 else editor.drawn(self.rng)
            schedule = editor.schedule(tried)
            if schedule is not None and self.register(schedule):
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
            self._schedules.record(trial.schedule, trial.result)
        elif trial.cost is not None and isinstance(trial.result, Measurement):
            self._editor.learn(tried, trial.result, better=trial.cost <= best)

    def _begin(self) -> ProgramEditor | None:
        """For the best schedule so far; None: its programs are not to be edited, or cannot be."""
        self._vain = 0
        measured = self.best.result
        if "micro-program" in self.constraints.forbidden or not isinstance(measured, Measurement):
            return None
        workshop = EditablePrograms(self.prepared.network(self.best.schedule))
        return ProgramEditor(workshop, measured) if workshop.pieces else None
