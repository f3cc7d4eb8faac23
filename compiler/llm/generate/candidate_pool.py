"""Pool of schedules of a layer, ranked by the cost model; bandit that chooses kinds of candidates; copied schedules."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import inf

import numpy as np

from compiler.cost.learned_model import find_model
from compiler.cost.online_model import OnlineCostModel
from compiler.llm.generate.known_layers import read_known_layers
from compiler.llm.generate.requests import Schedules
from compiler.llm.tokens.layer_prompt import PromptSubject, subjects_of
from compiler.llm.tokens.schedule_delta import encode_schedule_delta
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask


class CandidateKind(StrEnum):
    """Kind of candidate that the language model can write."""

    SCHEDULES = "schedules"
    EDITS = "edits"
    BOTH = "schedules with edits"
    PROGRAMS = "programs"
    FUSIONS = "fusions"


#: Prior counts of successes and failures for each kind.
_PRIOR = {
    CandidateKind.SCHEDULES: (2.0, 2.0),
    CandidateKind.EDITS: (2.0, 2.0),
    CandidateKind.BOTH: (1.0, 2.0),
    CandidateKind.PROGRAMS: (1.0, 6.0),
    CandidateKind.FUSIONS: (1.0, 3.0),
}
#: Decay factor per trial of the observed counts, since success rates change during a search.
_DECAY = 0.9


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
        """Choose one of the given kinds by Thompson sampling."""
        drawn = {kind: self._rng.beta(*self._known[kind]) for kind in CandidateKind if kind in kinds}
        return max(drawn, key=lambda kind: drawn[kind])

    def learn(self, kind: CandidateKind, *, helped: bool) -> None:
        """Update the counts of a kind with the outcome of a trial."""
        pair = zip(self._known[kind], _PRIOR[kind], strict=True)
        better, worse = (_DECAY * now + (1 - _DECAY) * first for now, first in pair)
        self._known[kind] = (better + helped, worse + (not helped))


@dataclass
class BanditTally:
    """Statistics of the candidates of one kind.

    Parameters
    ----------
    made : int
        Number of complete answers.
    valid : int
        Number of candidates that compiled, were validated, and ran with correct outputs.
    better : int
        Number of candidates that were better than their starting point.
    known : int
        Number of candidates that were not measured because an equal candidate had been measured.
    """

    made: int = 0
    valid: int = 0
    better: int = 0
    known: int = 0

    def add(self, other: "BanditTally") -> None:
        """Add the counts of another tally."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


Answers = Iterator[Sequence[str]]

#: Optimism of predictions in units of the expected prediction error, as in the model-guided search.
_OPTIMISM = 1.0

Fusions = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PredictedCost:
    """Predicted effect of a layer schedule.

    Parameters
    ----------
    gain : float
        Optimistic prediction of the saved cycles, as a fraction of the network's cycles.
    cycles : float
        Predicted cycles of the layer.
    """

    gain: float
    cycles: float


class CostReranker:
    """Cost predictor of layer schedules that learns from measurements during a search."""

    def __init__(self) -> None:
        self._known: dict[Fusions, OnlineCostModel] = {}

    def predict(
        self, task: GeneratorTask, name: str, schedules: Sequence[LayerSchedule]
    ) -> list[PredictedCost]:
        """Predict the effect of schedules of a layer, with all other layers unchanged.

        Parameters
        ----------
        task : GeneratorTask
            Network, current schedule and measurement.
        name : str
            Name of the layer.
        schedules : sequence of LayerSchedule
            Alternative schedules of the layer, at least one.
        """
        model, layers = self._model(task), task.schedule.layers
        now = _cycles(model, task.measured, name, layers)
        guess = model.predict(name, schedules, layers)
        optimistic = guess.cost * (1 - _OPTIMISM * guess.spread)
        whole = task.measured.cycles
        pairs = zip(optimistic, guess.cost, strict=True)
        return [PredictedCost((now - float(minimum)) / whole, float(cycles)) for minimum, cycles in pairs]

    def learn(self, task: GeneratorTask, name: str, schedule: LayerSchedule, cycles: float) -> None:
        """Learn from the measured cycles of a network in which one layer has another schedule."""
        model, layers = self._model(task), task.schedule.layers
        (prediction,) = self.predict(task, name, [schedule])
        now, before = _cycles(model, task.measured, name, layers), task.measured.cycles
        model.learn(name, schedule, layers, now + cycles - before)
        model.trial(max(before - now + prediction.cycles, 1.0), float(cycles))

    def _model(self, task: GeneratorTask) -> OnlineCostModel:
        """Return the online cost model of the network's layers; create it from the current measurement on first use."""
        fusions = task.schedule.fusions
        if fusions not in self._known:
            stages = task.prepared.lowered(fusions)
            model = OnlineCostModel(task.conditions, stages, find_model(task.conditions), task.seed)
            layers = task.schedule.layers
            if not task.schedule.programs:
                for name in layers:
                    model.learn(name, layers[name], layers, _cycles(model, task.measured, name, layers))
            self._known[fusions] = model
        return self._known[fusions]


class CandidatePool:
    """Pool of sampled schedules of one layer that have not been proposed yet.

    Parameters
    ----------
    request : Schedules
        Request to which the samples are answers.
    draw : callable
        Function that samples new answers to the request, most likely first.
    ranking : CostReranker or None
        Cost model that orders the proposals; None orders them by likelihood.
    proposed : set of str
        Digests of proposed networks; the digests of yielded answers are added.
    """

    def __init__(
        self,
        request: Schedules,
        draw: Callable[[], Answers],
        ranking: CostReranker | None,
        proposed: set[str],
    ):
        self.request, self._draw, self._ranking, self._proposed = request, draw, ranking, proposed
        self._waiting: dict[LayerSchedule, Sequence[str]] = {}

    def fill(self, minimum: int) -> None:
        """Sample more answers if the pool has fewer than `minimum` answers."""
        if len(self._waiting) < minimum:
            for tokens in self._draw():
                self._waiting.setdefault(self.request.meaning(tokens), tokens)

    def best(self, count: int | None = None, minimum: float = -inf) -> Answers:
        """Yield the answers that compile to new programs, most promising first.

        Parameters
        ----------
        count : int or None
            Maximum number of answers; None for all.
        minimum : float
            Minimum predicted saving, as a fraction of the cycles of the network.
        """
        yielded = 0
        while self._waiting and (count is None or yielded < count):
            schedule, gain = self._first()
            if gain < minimum:
                return
            tokens = self._waiting.pop(schedule)
            digest = self.request.digest(schedule)
            if digest is not None and digest not in self._proposed:
                yielded += 1
                self._proposed.add(digest)
                yield tokens

    def _first(self) -> tuple[LayerSchedule, float]:
        """Return the most promising schedule and its predicted saving."""
        schedules, request = list(self._waiting), self.request
        if self._ranking is None:
            return schedules[0], inf
        predictions = self._ranking.predict(request.task, request.about, schedules)
        best = max(range(len(schedules)), key=lambda number: predictions[number].gain)
        return schedules[best], predictions[best].gain


def copies(request: Schedules, count: int) -> Answers:
    """Yield the best schedules of the most similar measured layers as answers to a request, nearest layers first.

    Parameters
    ----------
    request : Schedules
        Request about the layer.
    count : int
        Number of schedules to consider; those that were tried before are left out.
    """
    for schedule in read_known_layers().nearest(request.subject, count):
        if schedule not in request.tried:
            request.tried.add(schedule)
            yield encode_schedule_delta(schedule, request.subject.schedule)


#: Number of copied schedules per layer among which the cost model chooses, and number of them that are proposed before
#: the next layer is considered.
_COPIES, _COPIES_PER_TURN = 64, 4


class NearestGenerator(Generator):
    """Generator that copies the best schedules of the most similar layers of the language model's training data.

    Of the schedules of each layer, those with the fewest cycles predicted by the cost model come first; the cost model
    learns from each measurement.
    """

    name = "nearest"

    def __init__(self) -> None:
        self._ranking = CostReranker()
        self._proposed: set[str] = set()
        self._pending: dict[str, tuple[GeneratorTask, str]] = {}

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield the most promising copies for the slowest layer, then for the others, until all are proposed."""
        self._proposed.add(task.network.digest)
        pools = [self._pool(task, name, subject) for name, subject in subjects_of(task).items()]
        while pools:
            for pool in list(pools):
                answers = list(pool.best(_COPIES_PER_TURN))
                if not answers:
                    pools.remove(pool)
                for tokens in answers:
                    candidate = replace(pool.request.candidate(tokens), generator=self.name)
                    self._pending[candidate.schedule.to_json()] = task, pool.request.about
                    yield candidate

    def observe(self, candidate: Candidate, result: Result) -> None:
        """Update the cost model with a measurement."""
        task, name = self._pending.pop(candidate.schedule.to_json(), (None, ""))
        if task is not None and isinstance(result, Measurement) and result.valid:
            self._ranking.learn(task, name, candidate.schedule.layers[name], result.cycles)

    def _pool(self, task: GeneratorTask, name: str, subject: PromptSubject) -> "CandidatePool":
        request = Schedules(task, name, subject, fitting=False)
        pool = CandidatePool(request, lambda: copies(request, _COPIES), self._ranking, self._proposed)
        pool.fill(1)
        return pool


def _cycles(
    model: OnlineCostModel, measured: Measurement, name: str, layers: dict[str, LayerSchedule]
) -> float:
    """Return the cycles of a layer; cycles measured for several layers together are divided as predicted."""
    entry = measured.layer_entry(name)
    guesses = {each: float(model.predict(each, [layers[each]], layers).cost[0]) for each in entry.names}
    return entry.cycles * guesses[name] / sum(guesses.values())
