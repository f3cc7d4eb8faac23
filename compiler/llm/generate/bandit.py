"""Thompson-sampling bandit that chooses the kind of the next candidate."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np


class CandidateKind(StrEnum):
    """Kinds of candidates that the language model can write."""

    SCHEDULES = "schedules"
    EDITS = "edits"
    BOTH = "schedules with edits"
    PROGRAMS = "programs"


#: Prior counts of successes and failures for each kind.
_PRIOR = {
    CandidateKind.SCHEDULES: (2.0, 2.0),
    CandidateKind.EDITS: (2.0, 2.0),
    CandidateKind.BOTH: (1.0, 2.0),
    CandidateKind.PROGRAMS: (1.0, 6.0),
}
#: Decay factor per trial of the observed counts, since success rates change during a search.
_FADES = 0.9


class CandidateBandit:
    """Thompson sampling over candidate kinds with decaying success counts.

    Parameters
    ----------
    rng : numpy.random.Generator
        Random generator for the samples.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng, self._known = rng, dict(_PRIOR)

    def choose(self, kinds: Collection[CandidateKind]) -> CandidateKind:
        """Sample one of the given kinds."""
        drawn = {kind: self._rng.beta(*self._known[kind]) for kind in CandidateKind if kind in kinds}
        return max(drawn, key=lambda kind: drawn[kind])

    def learn(self, kind: CandidateKind, *, helped: bool) -> None:
        """Update the counts of a kind with the outcome of a trial."""
        pair = zip(self._known[kind], _PRIOR[kind], strict=True)
        better, worse = (_FADES * now + (1 - _FADES) * first for now, first in pair)
        self._known[kind] = (better + helped, worse + (not helped))


@dataclass
class BanditTally:
    """Statistics of the candidates of one kind.

    Parameters
    ----------
    made : int
        Number of complete answers.
    valid : int
        Number of candidates that compiled, passed the proof, ran and gave correct outputs.
    better : int
        Number of candidates that were faster than their starting point.
    known : int
        Number of candidates that duplicated an earlier measurement and were not measured again.
    """

    made: int = 0
    valid: int = 0
    better: int = 0
    known: int = 0

    def add(self, other: "BanditTally") -> None:
        """Add the counts of another tally."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
