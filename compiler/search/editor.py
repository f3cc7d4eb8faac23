"""Edits of all programs of a schedule, each judged by the cycles of its program's own layers."""

import random
from collections.abc import Mapping

from compiler.measure.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.search.units import lost_beside
from compiler.specialize.edits.draw import drawn
from compiler.specialize.edits.edit import Edit, EditError, applied
from compiler.specialize.edits.workshop import Piece, Workshop
from hw.errors import InputError

#: Edits more in one trial, at most; edits of a program that others are made from.
_MORE, _KEPT = 2, 3

Edits = tuple[Edit, ...]


class Editor:
    """Keeps for each program the edits that helped, and tries more of them.

    Parameters
    ----------
    workshop : Workshop
        The programs.
    measured : Measurement
        Of them without edits.
    """

    def __init__(self, workshop: Workshop, measured: Measurement):
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
                cost = now[number] + round(lost_beside(more, number))
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

    def _more(self, piece: Piece, rng: random.Random) -> Edits:
        """Edits of a program that did well, and some more."""
        _, edits = rng.choice(self._known[piece.name])
        commands = applied(self.config, piece.unrolled.commands, edits)
        for _ in range(rng.randint(1, _MORE)):
            if (found := drawn(self.config, commands, rng)) is not None:
                edits, commands = (*edits, found[0]), found[1]
        return edits
