"""Candidate generator that uses the built-in language model."""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Generator as Iteration
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf

import numpy as np

from compiler.cost.learned_model import find_model
from compiler.llm.endpoint.model import EndpointModel, LanguageModelGenerator
from compiler.llm.endpoint.settings import Endpoint
from compiler.llm.generate.candidate_pool import (
    Answers,
    BanditTally,
    CandidateBandit,
    CandidateKind,
    CandidatePool,
    CostReranker,
    copies,
)
from compiler.llm.generate.policy import weigher
from compiler.llm.generate.program_request import ProgramRequest
from compiler.llm.generate.requests import NAME, Edits, LmRequest, Schedules, fusion_requests
from compiler.llm.generate.sampler import SampledAnswer, draw
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.layer_prompt import (
    REJECTIONS,
    Programs,
    PromptSubject,
    refused,
    rejected,
    subjects_of,
)
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.tuning.generators.generator import Candidate, GeneratorTask
from compiler.tuning.network_cost_model import NetworkCostModel
from compiler.tuning_db.policy_versions import Weights
from hw.errors import InputError

#: Maximum number of sampling rounds per layer or program, and number of replacements sampled per program.
_MAX_ROUNDS, _REWRITES_PER_PROGRAM = 4, 4
#: Number of schedules sampled at a time, pool size below which more are sampled, and number of schedules that are
#: proposed for a layer before the next layer is considered.
_SCHEDULES_PER_DRAW, _MIN_POOL, _SCHEDULES_PER_TURN = 48, 24, 4
#: Number of fusions that are proposed for a pair of layers before the next pair is considered.
_FUSIONS_PER_TURN = 2
#: Number of copied schedules of similar layers that are added to the pool.
_COPIES = 48
#: Minimum predicted saving, as a fraction of the network's cycles, of schedules that are proposed before all other
#: candidates, and number of consecutive failures of such schedules after which this precedence ends.
_MIN_PROMISING_GAIN, _MAX_DISAPPOINTMENTS = 0.01, 2
#: Number of schedules per request for which edits are sampled, and number of edits for each.
_SCHEDULES_WITH_EDITS, _EDITS_PER_SCHEDULE = 4, 2
#: Maximum number of further answers that are requested after a rejected one.
_MAX_RETRIES = 2
#: Name of program text in constraints.
_PROGRAM_TEXT = "micro-program"

Candidates = Iterator[Candidate]


class LmGenerator(LanguageModelGenerator):
    """Generator of schedules, program edits, both combined, whole programs and fusions by the language model.

    Layers and programs are requested in order of decreasing cycles. Schedules are proposed in the order of the cost
    model's predictions, other candidates in the order of likelihood. A bandit that learns from the results chooses the
    kind of the next candidate; schedules with a large predicted gain are proposed first. After a rejection, the model
    is prompted again with the reason, at most twice. If all answers are rejected, the fallback of the request is
    proposed, if there is one.

    Parameters
    ----------
    model : Gpt or None
        Language model to use; None for the model included in the compiler.
    temperature : float
        Sampling temperature, as in `draw`.
    kinds : sequence of CandidateKind
        Candidate kinds to generate.
    ranked : bool
        True to rank schedules by the cost model, False to propose them by likelihood.
    copied : int
        Number of best schedules of similar layers that are candidates beside the answers of the model.
    say : callable
        Called once for each layer or program that the model cannot be asked about, with the reason.
    weights : callable
        Function that returns the current policy (`compiler.llm.generate.policy`), which weighs the words of schedules;
        None: the model alone.

    Attributes
    ----------
    tallies : dict
        Statistics by candidate kind.

    Raises
    ------
    InputError
        The model file is damaged.
    """

    def __init__(
        self,
        model: Gpt | None = None,
        temperature: float = 1.0,
        kinds: Sequence[CandidateKind] = tuple(CandidateKind),
        *,
        ranked: bool = True,
        copied: int = _COPIES,
        say: Callable[[str], None] = lambda _text: None,
        weights: Callable[[], Weights | None] = lambda: None,
    ):
        super().__init__()
        self._weights = weights
        self.model = load(SHIPPED)[0] if model is None else model
        self.temperature, self.kinds = temperature, tuple(kinds)
        self.tallies = {kind: BanditTally() for kind in self.kinds}
        self._ranking = CostReranker() if ranked else None
        self._rng: np.random.Generator | None = None
        self._bandit: CandidateBandit | None = None
        self._copied, self._say, self._unanswered = copied, say, set[str]()
        self._consecutive_failures = 0
        self._proposed_networks: set[str] = set()
        # By JSON of the schedule: kind and task of each pending candidate, and the token for the reason of its
        # rejection.
        self._pending: dict[str, tuple[CandidateKind, GeneratorTask]] = {}
        self._rejections: dict[str, str] = {}

    def propose(self, task: GeneratorTask) -> Candidates:
        """Yield distinct candidates for a task."""
        if self._rng is None:
            self._rng = np.random.default_rng(task.seed)
        if self._bandit is None:
            self._bandit = CandidateBandit(self._rng)
        pools = self._pools(task)
        if CandidateKind.SCHEDULES in self.kinds:
            for candidate in self._promising(pools):
                yield self._record(CandidateKind.SCHEDULES, task, candidate)
        remaining = {
            kind: made for kind, made in self._candidates_by_kind(task, pools).items() if kind in self.kinds
        }
        while remaining:
            kind = self._bandit.choose(remaining)
            candidate = next(remaining[kind], None)
            if candidate is None:
                del remaining[kind]
            else:
                yield self._record(kind, task, candidate)

    def observe(self, candidate: Candidate, result: Result) -> None:
        """Update the bandit; after a rejection, store the reason for the next request."""
        text = candidate.schedule.to_json()
        kind, task = self._pending.pop(text, (None, None))
        if kind is None or task is None or self._bandit is None:
            return
        tally = self.tallies[kind]
        if isinstance(result, Rejected) and result.stage == "search":
            tally.known += 1
            return
        helped = False
        if isinstance(result, Rejected):
            self._rejections[text] = rejected(result)
        elif not result.valid:
            self._rejections[text] = REJECTIONS["same"]
        else:
            tally.valid += 1
            self._measured(task, candidate, result)
            helped = task.goal.cost(result) < task.goal.cost(task.measured)
        if kind is CandidateKind.SCHEDULES:
            self._consecutive_failures = 0 if helped else self._consecutive_failures + 1
        tally.better += helped
        self._bandit.learn(kind, helped=helped)

    def _record(self, kind: CandidateKind, task: GeneratorTask, candidate: Candidate) -> Candidate:
        self._pending[candidate.schedule.to_json()] = kind, task
        return candidate

    def _measured(self, task: GeneratorTask, candidate: Candidate, measured: Measurement) -> None:
        """Update the cost model if the schedule differs in exactly one layer."""
        before, after = task.schedule.layers, candidate.schedule.layers
        changed = [name for name in after if after[name] != before.get(name)]
        if self._ranking is not None and len(changed) == 1 and not candidate.schedule.programs:
            self._ranking.learn(task, changed[0], after[changed[0]], measured.cycles)

    # Candidates by kind.

    def _candidates_by_kind(
        self, task: GeneratorTask, pools: Sequence[CandidatePool]
    ) -> dict[CandidateKind, Candidates]:
        found = {
            CandidateKind.SCHEDULES: self._schedules(pools),
            CandidateKind.FUSIONS: self._fusions(task),
        }
        if _PROGRAM_TEXT not in task.constraints.forbidden:
            programs = Programs(task)
            found |= {
                CandidateKind.EDITS: self._edits(programs),
                CandidateKind.BOTH: self._both(pools),
                CandidateKind.PROGRAMS: self._programs(programs),
            }
        return found

    def _promising(self, pools: Sequence[CandidatePool]) -> Candidates:
        """Yield schedules with a large predicted gain for the slowest layers."""
        for number in range(_MAX_DISAPPOINTMENTS if self._ranking is not None and pools else 0):
            if self._consecutive_failures < _MAX_DISAPPOINTMENTS:
                pool = pools[number % len(pools)]
                pool.fill(1)
                yield from self._propose_answers(
                    CandidateKind.SCHEDULES, pool.request, pool.best(1, _MIN_PROMISING_GAIN)
                )

    def _schedules(self, pools: Sequence[CandidatePool]) -> Candidates:
        for _ in range(_MAX_ROUNDS):
            for pool in pools:
                pool.fill(_MIN_POOL)
                count = None if self._ranking is None else _SCHEDULES_PER_TURN
                yield from self._propose_answers(CandidateKind.SCHEDULES, pool.request, pool.best(count))

    def _fusions(self, task: GeneratorTask) -> Candidates:
        """Yield fusions of two layers, those with the fewest predicted cycles first."""
        if len(task.layers) < 2:
            return
        engine = NetworkCostModel(task.prepared, task.conditions, find_model(task.conditions))
        requests = fusion_requests(task)
        for _ in range(_MAX_ROUNDS):
            for request in requests:
                answers = list(self._answers(request, request.answers_per_draw))
                if self._ranking is not None:
                    answers = _ranked(engine, request, answers)[:_FUSIONS_PER_TURN]
                yield from self._propose_answers(CandidateKind.FUSIONS, request, iter(answers))

    def _edits(self, programs: Programs) -> Candidates:
        requests = [Edits(programs, piece) for piece in programs.programs]
        for _ in range(_MAX_ROUNDS):
            for request in requests:
                yield from self._propose_answers(
                    CandidateKind.EDITS, request, self._answers(request, request.answers_per_draw)
                )

    def _both(self, pools: Sequence[CandidatePool]) -> Candidates:
        """Yield schedules combined with edits of the programs compiled from them."""
        for pool in pools:
            pool.fill(_SCHEDULES_WITH_EDITS)
            request = pool.request
            for tokens in pool.best(_SCHEDULES_WITH_EDITS):
                found = request.candidate(tokens)
                task = replace(request.task, schedule=found.schedule, layers=(request.about,))
                programs = Programs(task, measured=False)
                for piece in programs.programs:
                    edits = Edits(programs, piece, fallback=found)
                    yield from self._propose_answers(
                        CandidateKind.BOTH, edits, self._answers(edits, _EDITS_PER_SCHEDULE)
                    )

    def _programs(self, programs: Programs) -> Candidates:
        for piece in programs.programs:
            request = ProgramRequest(programs, piece)
            for _ in range(_REWRITES_PER_PROGRAM):
                yield from self._propose_answers(
                    CandidateKind.PROGRAMS, request, self._answers(request, request.answers_per_draw)
                )

    # Requests and answers.

    def _propose_answers(self, kind: CandidateKind, request: LmRequest, answers: Answers) -> Candidates:
        """Yield the candidates of answers; after a rejection, request another answer with the reason."""
        for answer in answers:
            tokens: Sequence[str] | None = answer
            reasons: tuple[str, ...] = ()
            while tokens is not None:
                self.tallies[kind].made += 1
                cause = yield from self._propose_answer(request, tokens)
                if cause is None:
                    break
                reasons = (*reasons, cause)
                tokens = (
                    next(self._answers(request, 1, reasons), None) if len(reasons) <= _MAX_RETRIES else None
                )
            else:
                if request.fallback is not None:
                    self.tallies[kind].made += 1
                    yield request.fallback
                    request.fallback = None

    def _propose_answer(
        self, request: LmRequest, tokens: Sequence[str]
    ) -> Iteration[Candidate, None, str | None]:
        """Yield the candidate of an answer; return the rejection token, or None if the candidate was not rejected."""
        try:
            candidate = request.candidate(tokens)
        except (InputError, ValueError) as error:
            return refused(error)
        yield candidate
        return self._rejections.pop(candidate.schedule.to_json(), None)

    def _pools(self, task: GeneratorTask) -> list[CandidatePool]:
        """Return a pool for each layer, slowest first."""
        self._proposed_networks.add(task.network.digest)
        return [self._pool(task, name, subject) for name, subject in subjects_of(task).items()]

    def _pool(self, task: GeneratorTask, name: str, subject: PromptSubject) -> CandidatePool:
        request = Schedules(task, name, subject, fitting=False, known=self.model.known)
        return CandidatePool(
            request,
            lambda: chain(self._answers(request, _SCHEDULES_PER_DRAW), copies(request, self._copied)),
            self._ranking,
            self._proposed_networks,
        )

    def _answers(self, request: LmRequest, count: int, reasons: Sequence[str] = ()) -> Answers:
        """Yield new answers, most likely first."""
        for answer in sorted(self.sample(request, count, reasons), key=lambda each: -each.likelihood):
            if answer.complete and (meaning := request.meaning(answer.tokens)) not in request.tried:
                request.tried.add(meaning)
                yield answer.tokens

    def sample(self, request: LmRequest, count: int, reasons: Sequence[str] = ()) -> list[SampledAnswer]:
        """Sample answers to a request; return an empty list if the request has no prompt or no valid answer."""
        assert self._rng is not None
        grammar = request.grammar
        if grammar is None:
            return []
        try:
            prompt = request.prompt(reasons, profile=self.model.profile)
            schedules = isinstance(request, Schedules)
            weigh = weigher(self._weights(), request.subject.word) if schedules else None
            return draw(self.model, LANGUAGE, prompt, grammar, count, self._rng, self.temperature, weigh)
        except ValueError as error:  # a size has no token, or the prompt exceeds the context
            if request.about not in self._unanswered:
                self._unanswered.add(request.about)
                self._say(f"the language model cannot be asked about {request.about}: {error}")
            return []


def _ranked(
    model: NetworkCostModel, request: LmRequest, answers: Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """Return the answers to a request in the order of the cycles predicted for the network."""
    schedules = [request.candidate(tokens).schedule for tokens in answers]
    costs = [
        inf if isinstance(each, InputError) else sum(layer.cycles for layer in each.values())
        for each in model.predict_many(schedules)
    ]
    return [tokens for _, tokens in sorted(zip(costs, answers, strict=True), key=lambda each: each[0])]


assert LmGenerator.name == NAME


def language_model(
    endpoint: Endpoint | None,
    say: Callable[[str], None] = lambda _text: None,
    weights: Callable[[], Weights | None] = lambda: None,
) -> LanguageModelGenerator:
    """Return the generator for the search method `llm`.

    Parameters
    ----------
    endpoint : Endpoint or None
        Endpoint of a remote model; None for the built-in model.
    say : callable
        Called with what the model cannot be asked about, and with the reason why no further requests are sent.
    weights : callable
        Function that returns the current policy of the built-in model, as in `LmGenerator`.

    Raises
    ------
    InputError
        The endpoint key is malformed, or the file of the built-in model is damaged.
    """
    return LmGenerator(say=say, weights=weights) if endpoint is None else EndpointModel(endpoint, say)


def built_in_model(
    say: Callable[[str], None] = lambda _text: None,
    weights: Callable[[], Weights | None] = lambda: None,
) -> Callable[[], LanguageModelGenerator] | None:
    """Return a function that loads the built-in language model, for a portfolio; None if its file is missing.

    Parameters
    ----------
    say : callable
        Function that is called with messages for the user, such as about layers that the model cannot be asked about.
    weights : callable
        Function that returns the current policy, as in `LmGenerator`.
    """
    return partial(LmGenerator, say=say, weights=weights) if SHIPPED.exists() else None
