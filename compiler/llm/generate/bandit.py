"""Which kind of candidate the model is asked for next: rather those that have helped."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np


class CandidateKind(StrEnum):
    """Kinds of candidates."""

    SCHEDULES = "schedules"
    EDITS = "edits"
    BOTH = "schedules with edits"
    PROGRAMS = "programs"


#: How often each has helped, and has not, before anything is known.
_PRIOR = {
    CandidateKind.SCHEDULES: (2.0, 2.0),
    CandidateKind.EDITS: (2.0, 2.0),
    CandidateKind.BOTH: (1.0, 2.0),
    CandidateKind.PROGRAMS: (1.0, 6.0),
}
#: What helped once need not help for ever: the weight of what is known after another trial.
_FADES = 0.9


class CandidateBandit:
    """Draws a kind by how likely it is the one that helps most (Thompson sampling), as far as trials say.

    Parameters
    ----------
    rng : numpy.random.Generator
        Chance.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng, self._known = rng, dict(_PRIOR)

    def choose(self, kinds: Collection[CandidateKind]) -> CandidateKind:
        """One of some kinds."""
        drawn = {kind: self._rng.beta(*self._known[kind]) for kind in CandidateKind if kind in kinds}
        return max(drawn, key=lambda kind: drawn[kind])

    def learn(self, kind: CandidateKind, *, helped: bool) -> None:
        """What came of a candidate."""
        pair = zip(self._known[kind], _PRIOR[kind], strict=True)
        better, worse = (_FADES * now + (1 - _FADES) * first for now, first in pair)
        self._known[kind] = (better + helped, worse + (not helped))


@dataclass
class BanditTally:
    """What came of the candidates of a kind.

    Parameters
    ----------
    made : int
        Complete answers.
    valid : int
        Those that compiled, were proved, ran on the machine and gave the right outputs.
    better : int
        Those that took less than what they were made from.
    known : int
        Those that came to what was measured before, and were not measured again.
    """

    made: int = 0
    valid: int = 0
    better: int = 0
    known: int = 0

    def add(self, other: "BanditTally") -> None:
        """Count another one in."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
