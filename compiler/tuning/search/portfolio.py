"""Portfolio of search methods: a bandit chooses the member that proposes the next schedule."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import TYPE_CHECKING, TypeVar

from compiler.cost.learned_model import PredictionErrors
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.edits.edit import EditError
from compiler.tuning.edits.editable_programs import with_templates
from compiler.tuning.generators.generator import Generator, GeneratorFailure
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS, GENERATORS_METHOD, LLM, RETRIEVAL
from compiler.tuning.search.coordinate import CoordinateSearch
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.model_guided import ModelGuidedSearch
from compiler.tuning.search.program_edit_search import ProgramEditSearch
from compiler.util.plugin_registry import guarded
from hw.errors import InputError, MlaError

if TYPE_CHECKING:
    from compiler.tuning_db.known_schedules import KnownSchedule
    from compiler.tuning_db.session import DatabaseSession

#: Maximum number of schedules of this network under other conditions that are measured.
_MAX_TRANSFERRED = 4
#: Expected reward of a member's trials before any of them is measured, in networks of one layer and in larger ones.
#: They set the order of the first trials, and the shares while no member finds an improvement. They follow the gain per
#: trial of each member alone, which `python -m scripts.study_methods` prints (docs/tuning.md, "Portfolio").
PRIORS = {
    RETRIEVAL: (1.25, 1.05),
    "hpm": (0.9, 1.0),
    "coordinate": (0.3, 0.4),
    "fusion": (0.1, 0.3),
    GENERATORS_METHOD: (1.2, 0.5),
    LLM: (0.8, 0.9),
    "edits": (0.15, 0.15),
}
_OTHER_PRIOR = 0.1
#: Number of trials for which a prior counts; factor by which a reward loses weight with every trial of the search.
_PRIOR_TRIALS, _DISCOUNT = 2.0, 0.8
#: Maximum number of earlier trials that are passed to a member when it proposes for the first time.
_MAX_HISTORY = 256
#: Members whose proposals compete by the gain that the cost model of the first one predicts.
_COMPETING = ("hpm", RETRIEVAL, GENERATORS_METHOD, LLM, "fusion")
#: What is added to the predicted relative gain of known schedules: they were measured under similar conditions, while
#: all others were chosen because of a large prediction, which is therefore too large more often than too small.
_MEASURED_BONUS = 0.02
#: Smallest predicted relative gain that counts, and number of successive trials without the predicted gain after which
#: the predictions are not used until another member finds an improvement.
_MIN_PREDICTED_GAIN, _MAX_DISAPPOINTMENTS = 0.001, 3
#: Maximum number of successive proposals of a member that another member proposed before.
_MAX_REPEATED = 20

#: Function that creates a member of a portfolio.
MemberMaker = Callable[[], SearchMethod]
_Value = TypeVar("_Value")


class RetrievalSearch(SearchMethod):
    """Search method that measures the best known schedules of a database, which may help under the given conditions.

    First comes the best known schedule of the same network under the same conditions, then those that were best under
    other conditions or in the trials of others, then macro-instructions that were learned in other networks; in both
    cases, those of the nearest machines first.

    Parameters
    ----------
    session : DatabaseSession or None
        Database session; None: there is nothing to propose.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
        session: "DatabaseSession | None" = None,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._waiting: deque[KnownSchedule | Schedule] = deque()
        if session is not None:
            best = session.best()
            if best is not None and isinstance(best.schedule, Schedule) and best.schedule != self.first:
                self._waiting.append(best.schedule)
            self._waiting.extend(session.transfer_candidates(self.first, _MAX_TRANSFERRED))
            self._waiting.extend(session.learned(measurer.first))
        self._exhausted = False

    @property
    def exhausted(self) -> bool:
        """True if all known schedules were proposed."""
        return self._exhausted

    def propose(self) -> Schedule:
        """Return the next known schedule that can be compiled."""
        while self._waiting:
            schedule = self._schedule(self._waiting.popleft())
            if schedule is not None and self.register(schedule) and self._compiles(schedule):
                return schedule
        self._exhausted = True
        return self.first

    def _schedule(self, known: "KnownSchedule | Schedule") -> Schedule | None:
        """Return a known schedule with its templates as texts of programs; None if they do not fit the programs.

        Schedules of layers that do not compile together with the others are left out.
        """
        if isinstance(known, Schedule):
            return known
        known = known.fitting(self.first, self._compiles) or known
        if not known.templates:
            return known.schedule
        try:
            return with_templates(self.prepared, known.schedule, known.templates)[0]
        except (EditError, InputError):
            return None

    def _compiles(self, schedule: Schedule) -> bool:
        try:
            self.prepared.network(schedule)
        except InputError:
            return False
        return True

    def accepts(self, schedule: Schedule) -> bool:
        """Return True: the method learns nothing from trials."""
        return True

    def learn(self, trial: Trial) -> None:
        """Do nothing, since the schedules are known in advance."""


@dataclass
class _Member:
    """Member of a portfolio.

    Parameters
    ----------
    name : str
        Name of the member in reports.
    make : callable
        Function that creates the search method when the member proposes for the first time.
    prior : float
        Expected reward of a trial before any is measured.
    """

    name: str
    make: MemberMaker
    prior: float
    method: SearchMethod | None = None
    #: Proposal that has not been measured yet, with the best schedule at the time.
    offer: tuple[Schedule, Schedule] | None = None
    trials: int = 0
    reward: float = 0.0
    resting: bool = False
    left_out: tuple[GeneratorFailure, ...] = field(default=(), repr=False)

    @property
    def score(self) -> float:
        """Mean reward of a trial, to which the prior contributes like two trials."""
        return (_PRIOR_TRIALS * self.prior + self.reward) / (_PRIOR_TRIALS + self.trials)


class PortfolioSearch(SearchMethod):
    """Search method that chooses each proposal among those of its members; members share all measurements.

    While the cost model predicts a gain for the proposals of the members that choose by cost (`_COMPETING`), the one
    with the largest predicted gain is next. If three such trials in a row bring nothing, or if no gain is predicted,
    the member with the highest score proposes, until an improvement is found.

    The reward of a trial is g / (g + m), where g is its relative gain over the best cost so far and m the mean gain per
    trial of the whole search; it loses a fifth of its weight with every further trial. The score of a member is the sum
    of its rewards divided by the number of its trials, with a prior that counts like two trials. Members that recently
    brought more than the average are therefore preferred, and while nobody finds an improvement, the numbers of trials
    become proportional to the priors. The choice is deterministic; it depends on the seed only through the members.

    A member that fails is reported and left out. A member without new proposals rests until another one has found an
    improvement.

    Parameters
    ----------
    session : DatabaseSession or None
        Database session of the member "retrieval"; None: there is no such member.
    language_model : callable or None
        Function that returns the generator of the member "llm" when it is first needed; None: no such member.
    generators : sequence of Generator or None
        Generators of the member "generators"; None: all registered ones, and the member "fusion" for fusion.
    members : mapping of str to callable, optional
        Functions that create the members by name, instead of those above.
    priors : mapping of str to float, optional
        Expected reward of a trial of each member before any is measured, instead of those in PRIORS.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
        *,
        session: "DatabaseSession | None" = None,
        language_model: Callable[[], Generator] | None = None,
        generators: Sequence[Generator] | None = None,
        members: Mapping[str, MemberMaker] | None = None,
        priors: Mapping[str, float] | None = None,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._log = measurer.log
        given = (measurer, goal, baseline, seed, constraints)
        if priors is None:
            priors = {name: values[len(self.spaces) > 1] for name, values in PRIORS.items()}
        if members is None:
            members = _members(given, session, language_model, generators)
        self._members = [
            _Member(name, make, priors.get(name, _OTHER_PRIOR)) for name, make in members.items()
        ]
        #: Members that proposed schedules, and their names, by the JSON text of the schedule.
        self._proposed: dict[str, _Member] = {}
        self._names: dict[str, str] = {}
        self._history: deque[tuple[Schedule, Result]] = deque(maxlen=_MAX_HISTORY)
        self._trials, self._gain = 0, 0.0
        #: Schedule whose gain was predicted, and number of successive trials without their predicted gain.
        self._predicted, self._disappointments = set[str](), 0
        self._failed: list[GeneratorFailure] = []

    @property
    def exhausted(self) -> bool:
        """True if no member has anything new to propose."""
        return all(member.resting for member in self._members)

    @property
    def predictor(self) -> PredictionErrors | None:
        """Errors of the predictions of the first member that makes any."""
        made = (member.method.predictor for member in self._members if member.method is not None)
        return next((each for each in made if each is not None), None)

    @property
    def left_out(self) -> tuple[GeneratorFailure, ...]:
        """Failures of members, and of generators of members."""
        inner = (member.method.left_out for member in self._members if member.method is not None)
        return (*self._failed, *(failure for failures in inner for failure in failures))

    def proposer_of(self, schedule: Schedule) -> str:
        """Return the name of the member that proposed a schedule."""
        return self._names.get(schedule.to_json(), self.name)

    def accepts(self, schedule: Schedule) -> bool:
        """Return True: each member decides for itself."""
        return True

    def propose(self) -> Schedule:
        """Return the proposal with the largest predicted gain, or the next one of the member with the highest score."""
        while awake := [member for member in self._members if not member.resting]:
            promising = self._promising(awake)
            awake = [member for member in awake if member in self._members]
            if not awake:
                break
            member = promising or max(awake, key=lambda each: each.score)
            schedule = self._guarded(member, "propose", lambda of=member: self._taken(of))
            if schedule is not None:
                text = schedule.to_json()
                self._proposed[text], self._names[text] = member, member.name
                if promising is not None:
                    self._predicted.add(text)
                member.trials += 1
                return schedule
        return self.first

    def _promising(self, awake: Sequence[_Member]) -> _Member | None:
        """Return the member whose proposal has the largest predicted gain; None if predictions are not used now."""
        competing = [member for member in awake if member.name in _COMPETING]
        guide = next((each for each in self._members if each.name == _COMPETING[0]), None)
        if len(competing) < 2 or guide is None or self._disappointments >= _MAX_DISAPPOINTMENTS:
            return None
        offers = [
            (member, self._guarded(member, "propose", lambda of=member: self._offer(of)))
            for member in competing
        ]
        if not isinstance(guide.method, ModelGuidedSearch):
            return None
        gains = [
            (
                guide.method.predicted_gain(offer, self.best) + _MEASURED_BONUS * (member.name == RETRIEVAL),
                member,
            )
            for member, offer in offers
            if offer is not None
        ]
        gain, member = max(gains, key=lambda each: each[0], default=(0.0, None))
        return member if gain >= _MIN_PREDICTED_GAIN else None

    def _taken(self, member: _Member) -> Schedule | None:
        """Return the proposal of a member, which is then no longer on offer."""
        offer, member.offer = self._offer(member), None
        return offer

    def _offer(self, member: _Member) -> Schedule | None:
        """Return the proposal of a member that has not been measured yet; None if it has none.

        If another member has found a better schedule since it was made, its changes are applied to that one.
        """
        if member.offer is None:
            schedule = self._next(member)
            member.offer = None if schedule is None else (schedule, self.best.schedule)
        elif member.offer[1] != (best := self.best.schedule):
            schedule, before = member.offer
            changes = {
                name: each for name, each in schedule.layers.items() if each != before.layers.get(name)
            }
            moved = replace(best, layers=best.layers | changes)
            simple = (
                not (schedule.programs or best.programs)
                and schedule.fusions == before.fusions == best.fusions
            )
            member.offer = (moved if simple and self._new(member, moved) else schedule), best
        return None if member.offer is None else member.offer[0]

    def _new(self, member: _Member, schedule: Schedule) -> bool:
        """Register a schedule with all members; return False if it was proposed before or does not compile."""
        if not self.register(schedule):
            return False
        for other in self._members:
            if other.method is not None and other is not member:
                other.method.register(schedule)
        try:
            self.prepared.network(schedule)
        except InputError:
            return False
        return True

    def _next(self, member: _Member) -> Schedule | None:
        """Return the next new proposal of a member; None if there is none, in which case the member rests."""
        method = self._method(member)
        for _ in range(_MAX_REPEATED):
            schedule = method.propose()
            if method.exhausted or schedule == self.first:
                break
            if self.register(schedule):
                for other in self._members:
                    if other.method is not None and other is not member:
                        other.method.register(schedule)
                return schedule
        member.resting = True
        return None

    def _method(self, member: _Member) -> SearchMethod:
        """Return the search method of a member; a new one learns from the earlier trials."""
        if member.method is None:
            method = member.make()
            for schedule, result in self._history:
                method.register(schedule)
                if method.accepts(schedule):
                    method.record(schedule, result)
            for text in self._proposed:  # trials without a result
                method.register(Schedule.from_json(text))
            for other in self._members:
                if other.offer is not None:
                    method.register(other.offer[0])
            member.method = method
        return member.method

    def learn(self, trial: Trial) -> None:
        """Pass a trial to all members, and its gain to the member that proposed it."""
        self._reward(trial)
        self._history.append((trial.schedule, trial.result))
        for member in list(self._members):
            if member.method is not None and member.method.accepts(trial.schedule):
                record = member.method.record
                self._guarded(member, "learn", lambda call=record: call(trial.schedule, trial.result))

    def withdraw(self, schedule: Schedule) -> None:
        """Restore the best trial before a schedule in all members, and cancel the rewards of its proposer."""
        super().withdraw(schedule)
        name = self.proposer_of(schedule)
        for member in self._members:
            if member.method is not None:
                member.method.withdraw(schedule)
            if member.name == name:
                member.reward = 0.0

    def _reward(self, trial: Trial) -> None:
        """Credit the gain of a trial to its proposer; after a gain, no member rests."""
        gain = 0.0
        if trial.cost and self.best.cost and trial.cost < self.best.cost:
            gain = log(self.best.cost / trial.cost)
            self._disappointments = 0
            for member in self._members:
                member.resting = False
        for member in self._members:
            member.reward *= _DISCOUNT
        mean = self._gain / self._trials if self._trials else 0.0
        text = trial.schedule.to_json()
        self._disappointments += text in self._predicted and not gain
        proposer = self._proposed.pop(text, None)
        if proposer is not None:
            proposer.reward += gain / (gain + mean) if gain else 0.0
            self._trials += 1
            self._gain += gain

    def _guarded(self, member: _Member, doing: str, work: Callable[[], _Value]) -> _Value | None:
        """Return the result of a call of a member; leave the member out and return None if the call fails."""
        try:
            return guarded(work, f"{doing} failed")
        except MlaError as error:
            self._failed.append(GeneratorFailure(member.name, str(error)))
            self._log(str(self._failed[-1]))
            self._members.remove(member)
            return None


def _members(
    given: tuple[Measurer, Objective, Measurement, int, Constraints],
    session: "DatabaseSession | None",
    language_model: Callable[[], Generator] | None,
    generators: Sequence[Generator] | None,
) -> dict[str, MemberMaker]:
    """Return functions that create the members of the default portfolio, by name."""
    *_, constraints = given

    def by(*each: Generator) -> SearchMethod:
        return GeneratorSearch(*given, generators=each, random_changes=False)

    out: dict[str, MemberMaker] = {}
    if session is not None:
        out[RETRIEVAL] = lambda: RetrievalSearch(*given, session=session)
    out["hpm"] = lambda: ModelGuidedSearch(*given)
    out["coordinate"] = lambda: CoordinateSearch(*given)
    if generators is None:
        out["fusion"] = lambda: by(GENERATORS["fusion"]())
        out[GENERATORS_METHOD] = lambda: by(*(GENERATORS[name]() for name in GENERATORS if name != "fusion"))
    else:
        out[GENERATORS_METHOD] = lambda: by(*generators)
    if "micro-program" not in constraints.forbidden:
        out["edits"] = lambda: ProgramEditSearch(*given, patience=0)
    if language_model is not None:
        out[LLM] = lambda: by(language_model())
    return out
