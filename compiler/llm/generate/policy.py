"""On-line policy of the language model: weights of words, learned from measured trials, with a gate for new ones.

The language model's scores of the words of a schedule are increased or decreased by weights that depend on the kind of
the layer and on the position of the word. A challenger is trained on the trials of some layers; it replaces the current
policy, the champion, only if the measured answers that it prefers are better on other layers, which it was not trained
on. Both are compared on the same recorded answers, so that nothing needs to be measured.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from compiler.cache.digest import shape_of
from compiler.initial_schedule.initial import tiling_contexts
from compiler.llm.generate.requests import fields_of
from compiler.llm.generate.sampler import WordWeigher, log_softmax
from compiler.llm.model.numpy_transformer import Floats, Gpt
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.layer_prompt import BEST, PromptSubject
from compiler.llm.tokens.schedule_delta import (
    ScheduleDeltaGrammar,
    encode_schedule_delta,
    position_of,
)
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.policy_versions import (
    MAX_ANSWER_TOKENS,
    MAX_ANSWERS,
    MAX_LAYERS,
    MAX_WEIGHT,
    MAX_WEIGHTS,
    LayerTrials,
    PolicyVersion,
    Weights,
    current,
)
from compiler.tuning_db.session import DatabaseSession
from hw.errors import InputError

#: Minimum number of measured answers about a layer, and of different layers, of which each third is held out.
_MIN_ANSWERS, _MIN_LAYERS, _HELD_OUT = 6, 3, 3
#: Minimum decrease of the expected cost on held-out layers with which a challenger becomes current.
_MIN_GAIN = 0.001
#: Steps and rate of the gradient ascent (Adam, Kingma and Ba 2015), and weight of the penalty for large weights.
_STEPS, _RATE, _PENALTY = 60, 0.05, 7e-3
#: Maximum magnitude of an advantage, in standard deviations.
_MAX_ADVANTAGE = 2.0


def weigher(weights: Weights | None, word: str) -> WordWeigher | None:
    """Return the function that weighs the words of schedules for a kind of layer; None if it has no weights."""
    known = (weights or {}).get(word)
    if not known:
        return None

    def weigh(tokens: Sequence[str], allowed: Sequence[str]) -> Floats:
        found = known.get(position_of(tokens), {})
        return np.array([found.get(token, 0.0) for token in allowed], np.float32)

    return weigh


@cache
def shipped_digest() -> str:
    """Return the digest of the included language model's file."""
    return hashlib.sha256(SHIPPED.read_bytes()).hexdigest()


def current_weights(session: DatabaseSession | None) -> Weights | None:
    """Return the current policy of the included language model in the database of a session; None if it has none."""
    return None if session is None else current(session.database.policies(shipped_digest()))


def retrain_policy(session: DatabaseSession, seed: int = 0) -> PolicyVersion | None:
    """Train a challenger on the trials of a session's network and on earlier trials; store it with the gate's decision.

    Returns
    -------
    PolicyVersion or None
        The stored version, accepted or refused; None if too few layers were measured, if nothing was measured since
        the last training, or if there is no language model.
    """
    if not SHIPPED.exists():
        return None
    found = session.database.policies(shipped_digest())
    earlier = found[-1].trials if found else ()
    model, _ = load(SHIPPED)
    trials = merged(earlier, layer_trials(session, model))
    trained, held_out = parts(trials)
    if not held_out or trials == earlier:
        return None
    champion = current(found)
    challenger = learned(model, trained, seed)
    before, after = (compared(model, weights, held_out) for weights in (champion, challenger))
    if not before:
        return None
    version = PolicyVersion(
        model=shipped_digest(),
        when=time.time(),
        before=fmean(before),
        after=fmean(after),
        trained=len(trained),
        held_out=len(held_out),
        accepted=is_better(before, after),
        weights=challenger,
        trials=trials,
    )
    session.database.put_policy(version)
    return version


def is_better(champion: Sequence[float], challenger: Sequence[float]) -> bool:
    """Return True if a challenger's expected costs on held-out layers are lower, in the mean and on most layers."""
    wins = sum(new < old for old, new in zip(champion, challenger, strict=True))
    losses = sum(new > old for old, new in zip(champion, challenger, strict=True))
    return fmean(challenger) < fmean(champion) - _MIN_GAIN and wins > losses


def parts(trials: Sequence[LayerTrials]) -> tuple[list[LayerTrials], list[LayerTrials]]:
    """Return the layers to train on and those to hold out; equal layers of several networks are in the same part.

    Nothing is held out if there are fewer than three different layers.
    """
    digests = sorted({each.layer for each in trials})
    if len(digests) < _MIN_LAYERS:
        return list(trials), []
    held = set(digests[1::_HELD_OUT])
    return [each for each in trials if each.layer not in held], [
        each for each in trials if each.layer in held
    ]


def merged(earlier: Iterable[LayerTrials], new: Iterable[LayerTrials]) -> tuple[LayerTrials, ...]:
    """Return all layers with the union of their answers; of more than the limit, the last ones."""
    found: dict[LayerTrials, dict[tuple[str, ...], float]] = {}
    for each in (*earlier, *new):
        key = replace(each, answers=())
        found[key] = found.pop(key, {}) | dict(each.answers)
    return tuple(
        replace(key, answers=tuple(answers.items())[-MAX_ANSWERS:])
        for key, answers in list(found.items())[-MAX_LAYERS:]
    )


def layer_trials(session: DatabaseSession, model: Gpt) -> list[LayerTrials]:
    """Return the measured answers for the layers of a session's network.

    Each schedule of a layer that this user has measured, by whichever method, is an answer to the prompt about the
    layer's schedule in the first trial, provided that the layer has a counter of its own.
    """
    prepared, conditions = session.prepared, session.conditions
    measured = [
        (trial.schedule, trial.result)
        for trial, trusted in session.database.trials(session.key)
        if trusted
        and isinstance(trial.schedule, Schedule)
        and not trial.schedule.programs
        and isinstance(trial.result, Measurement)
        and trial.result.valid
    ]
    if not measured:
        return []
    base, first = measured[0]
    try:
        stages = prepared.lowered(base.fusions)
    except InputError:  # the trial is of an earlier version of the compiler
        return []
    cycles = _layer_cycles([each for each in measured if each[0].fusions == base.fusions])
    out = []
    for stage in stages:
        spots = tiling_contexts(prepared.config, stage, conditions.dram)
        for layer, spot in zip(stage.layers, spots, strict=True):
            schedule, known = base.layers.get(layer.name), cycles.get(layer.name, {})
            if schedule is None or schedule not in known:
                continue
            subject = PromptSubject(layer, spot, schedule, first.layer_entry(layer.name).where)
            fields = fields_of(layer)
            answers = tuple(_answers(schedule, known, fields))
            if len(answers) >= _MIN_ANSWERS:
                try:
                    prompt = tuple(subject.tokens(BEST, profile=model.profile))
                except ValueError:  # a size cannot be expressed as tokens
                    continue
                digest = shape_of([layer])
                out.append(LayerTrials(digest, conditions.key, subject.word, fields, prompt, answers))
    return out


def _layer_cycles(
    measured: Sequence[tuple[Schedule, Measurement]],
) -> dict[str, dict[LayerSchedule, list[int]]]:
    """Return the cycles of layers with a counter of their own, by name and schedule."""
    out: dict[str, dict[LayerSchedule, list[int]]] = {}
    for schedule, result in measured:
        for entry in result.layers:
            if len(entry.names) == 1 and entry.cycles > 0 and entry.names[0] in schedule.layers:
                own = schedule.layers[entry.names[0]]
                out.setdefault(entry.names[0], {}).setdefault(own, []).append(entry.cycles)
    return out


def _answers(
    base: LayerSchedule, known: Mapping[LayerSchedule, Sequence[int]], fields: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the tokens and the relative cost of each schedule that can be an answer."""
    unit = median(known[base])
    for schedule, cycles in list(known.items())[-MAX_ANSWERS - 1 :]:
        changed = [name for name in vars(base) if getattr(schedule, name) != getattr(base, name)]
        tokens = tuple(encode_schedule_delta(schedule, base))
        if changed and set(changed) <= set(fields) and len(tokens) <= MAX_ANSWER_TOKENS:
            yield tokens, median(cycles) / unit


# Training and comparison on recorded answers.


class _Recorded:
    """Scores of the model for the recorded answers to one prompt.

    Parameters
    ----------
    model : Gpt
        Language model that is asked.
    trials : LayerTrials
        Prompt and answers.
    """

    def __init__(self, model: Gpt, trials: LayerTrials):
        self.trials, self.costs = trials, np.array([cost for _, cost in trials.answers])
        #: Steps: index of the answer, position, allowed tokens, index of the chosen one, and the model's logits.
        self.steps: list[tuple[int, str, tuple[str, ...], int, Floats]] = []
        grammar = ScheduleDeltaGrammar(trials.fields)
        state = model.read(LANGUAGE.encode(trials.prompt)).fork(len(trials.answers))
        alive = list(range(len(trials.answers)))
        length = 0
        while alive:
            for row, number in enumerate(alive):
                tokens = trials.answers[number][0]
                allowed = tuple(grammar.after(tokens[:length]))
                scores = state.scores[row][np.array(LANGUAGE.encode(allowed))].astype(np.float64)
                position = position_of(tokens[:length])
                self.steps.append((number, position, allowed, allowed.index(tokens[length]), scores))
            length += 1
            rows = [row for row, number in enumerate(alive) if len(trials.answers[number][0]) > length]
            alive = [alive[row] for row in rows]
            if alive:
                if len(rows) < len(state.scores):
                    state.select(rows)
                last = [trials.answers[number][0][length - 1] for number in alive]
                state.push(np.array(LANGUAGE.encode(last))[:, None])

    def cost(self, weights: Weights | None) -> float:
        """Return the expected cost of an answer, given that it is one of the recorded ones."""
        known = (weights or {}).get(self.trials.word, {})
        logs = np.zeros(len(self.costs))
        for number, position, allowed, chosen, scores in self.steps:
            found = known.get(position)
            added = 0.0 if not found else np.array([found.get(token, 0.0) for token in allowed])
            logs[number] += log_softmax(scores + added)[chosen]
        return float(_share(logs) @ self.costs)


def _share(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(log_softmax(logs))


def compared(model: Gpt, weights: Weights | None, trials: Sequence[LayerTrials]) -> list[float]:
    """Return the expected cost of an answer for each layer, given that it is one of the recorded answers.

    Parameters
    ----------
    model : Gpt
        Language model that is asked.
    weights : Weights or None
        Policy to evaluate; None: the model alone.
    trials : sequence of LayerTrials
        Recorded answers with their costs.
    """
    return [each.cost(weights) for each in _recorded(model, trials)]


def _recorded(model: Gpt, trials: Sequence[LayerTrials]) -> Iterator[_Recorded]:
    """Yield the recorded answers of each layer that the model can be asked about and whose answers are valid."""
    for each in trials:
        try:
            yield _Recorded(model, each)
        except (ValueError, KeyError):  # tokens or a prompt of another version of the compiler
            continue


@dataclass(frozen=True)
class _Gradient:
    """Steps of the recorded answers of a layer as arrays, for gradients with respect to the weights.

    Parameters
    ----------
    recorded : _Recorded
        Recorded answers to one prompt.
    scores, index : (steps, words) arrays
        Logits of the allowed words, -inf for padding; index of the weight of each word, 0 for words without a weight.
    chosen, answer : (steps,) arrays
        Index of the chosen word, and of the answer.
    """

    recorded: _Recorded
    scores: NDArray[np.float64]
    index: NDArray[np.intp]
    chosen: NDArray[np.intp]
    answer: NDArray[np.intp]

    def add(self, weights: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Add the gradient of the mean of advantage times log likelihood with respect to the weights.

        The advantage of an answer is its reward, minus the logarithm of its cost, relative to the mean and the standard
        deviation of all answers to the prompt, as in group-relative policy optimization (Shao et al. 2024).
        """
        shifted = self.scores + weights[self.index]
        shifted -= shifted.max(axis=1, keepdims=True)
        shares = np.exp(shifted)
        shares /= shares.sum(axis=1, keepdims=True)
        reward = -np.log(self.recorded.costs)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        bounded = np.clip(advantage, -_MAX_ADVANTAGE, _MAX_ADVANTAGE) / len(reward)
        factor = bounded[self.answer]
        rows = np.arange(len(self.chosen))
        parts: list[tuple[NDArray[np.intp], NDArray[np.float64]]] = [
            (self.index[rows, self.chosen], factor),
            (self.index.ravel(), (-factor[:, None] * shares).ravel()),
        ]
        for index, values in parts:
            out += np.bincount(index, values, len(out))


@dataclass(frozen=True)
class _Names:
    """Weights that are trained: those of the words that occur in recorded answers."""

    recorded: Sequence[_Recorded]

    @cached_property
    def index(self) -> dict[tuple[str, str, str], int]:
        """Index of each weight by kind, position and word; 0 is the constant 0."""
        found = dict.fromkeys(
            (each.trials.word, position, allowed[chosen])
            for each in self.recorded
            for _, position, allowed, chosen, _ in each.steps
        )
        return {key: number for number, key in enumerate(list(found)[:MAX_WEIGHTS], 1)}

    def arrays(self, one: _Recorded) -> _Gradient:
        """Return the arrays of one layer."""
        width = max(len(allowed) for _, _, allowed, _, _ in one.steps)
        scores = np.full((len(one.steps), width), -np.inf)
        index = np.zeros((len(one.steps), width), np.intp)
        for row, (_, position, allowed, _, logits) in enumerate(one.steps):
            scores[row, : len(allowed)] = logits
            index[row, : len(allowed)] = [
                self.index.get((one.trials.word, position, token), 0) for token in allowed
            ]
        return _Gradient(
            one,
            scores,
            index,
            np.array([chosen for _, _, _, chosen, _ in one.steps]),
            np.array([number for number, _, _, _, _ in one.steps]),
        )


def learned(model: Gpt, trials: Sequence[LayerTrials], seed: int = 0) -> Weights:
    """Train weights of words so that better answers become more likely than worse ones to the same prompt.

    The mean of advantage times log likelihood over the recorded answers is maximized with a penalty for large weights.

    Parameters
    ----------
    model : Gpt
        Language model whose scores the weights are added to.
    trials : sequence of LayerTrials
        Answers with their costs.
    seed : int
        Random seed of the order of the layers.
    """
    recorded = list(_recorded(model, trials))
    names = _Names(recorded)
    layers = [names.arrays(each) for each in recorded]
    weights = np.zeros(len(names.index) + 1)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    rng = np.random.default_rng(seed)
    for step in range(1, _STEPS + 1):
        gradient = np.zeros_like(weights)
        for number in rng.permutation(len(layers)):
            layers[number].add(weights, gradient)
        gradient = gradient / max(len(layers), 1) - _PENALTY * weights
        gradient[0] = 0.0
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        rate = _RATE * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
        weights = np.clip(weights + rate * first / (np.sqrt(second) + 1e-8), -MAX_WEIGHT, MAX_WEIGHT)
    out: dict[str, dict[str, dict[str, float]]] = {}
    for (word, position, token), number in names.index.items():
        out.setdefault(word, {}).setdefault(position, {})[token] = round(float(weights[number]), 4)
    return out
