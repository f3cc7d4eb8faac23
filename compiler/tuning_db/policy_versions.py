"""Versions of the language model's policy in the database: weights of words that were learned from measured trials.

A version is data, not code: numbers by layer kind, position and word, and the trials that they were learned from. Each
list belongs to one file of the language model; the last accepted version is current.
"""

import base64
import binascii
import gzip
import json
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from sqlalchemy import Connection

from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import POLICIES, SealedRows, as_bytes, many, remove
from compiler.tuning_db.entries import is_digest
from compiler.util.checks import Fields, parsed
from hw.errors import InputError

#: Maximum number of versions per language model; of weights, and of a weight's magnitude, in a version.
MAX_VERSIONS, MAX_WEIGHTS, MAX_WEIGHT = 8, 4096, 4.0
#: Maximum number of layers whose trials a version contains, of answers per layer, and of tokens of an answer.
MAX_LAYERS, MAX_ANSWERS, MAX_ANSWER_TOKENS = 96, 64, 96
_MAX_PROMPT_TOKENS, _MAX_CHARACTERS, _MAX_UNPACKED_BYTES = 512, 64, 1 << 24

#: Weights by layer kind, position (`compiler.llm.tokens.schedule_delta.position_of`) and word.
Weights = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class LayerTrials:
    """Measured answers to a prompt about a layer.

    Parameters
    ----------
    layer : str
        Digest of the layer (`compiler.cache.digest.shape_of`).
    profile : str
        Digest of the hardware profile of the measurements.
    word : str
        Word of the layer's kind.
    fields : tuple of str
        Names of the schedule fields that may be changed.
    prompt : tuple of str
        Tokens of the prompt.
    answers : tuple of (tuple of str, float)
        Tokens of each answer, and the layer's cycles under its schedule relative to those under the prompt's schedule.
    """

    layer: str
    profile: str
    word: str
    fields: tuple[str, ...]
    prompt: tuple[str, ...]
    answers: tuple[tuple[tuple[str, ...], float], ...]


@dataclass(frozen=True, kw_only=True)
class PolicyVersion:
    """Result of a training of the policy: an accepted challenger, a refused one, or the original policy.

    Parameters
    ----------
    model : str
        Digest of the language model's file.
    when : float
        Time of the training, in seconds since 1970 (UTC).
    before, after : float
        Mean expected cost of an answer for held-out layers, relative to that of their current schedule: of the policy
        that was current before, and of the challenger.
    trained, held_out : int
        Number of layers that the challenger was trained on, and of layers that only compared it with the champion.
    accepted : bool
        True if the challenger was better and became current.
    weights : Weights or None
        Weights of words, which are added to the model's scores; None: the model alone.
    trials : tuple of LayerTrials
        Measured answers of all layers, the training data of the next challenger.
    number : int
        Number of the version in the database; 0 if it is not stored.
    """

    model: str
    when: float
    before: float
    after: float
    trained: int
    held_out: int
    accepted: bool
    weights: Weights | None = None
    trials: tuple[LayerTrials, ...] = field(default=(), repr=False)
    number: int = 0

    @property
    def answers(self) -> int:
        """Number of measured answers."""
        return sum(len(each.answers) for each in self.trials)

    def document(self) -> dict[str, Any]:
        """Return the version as JSON fields."""
        return {
            "version": self.number,
            "kind": "policy",
            "model": self.model,
            "when": self.when,
            "layers": self.trained,
            "held_out_layers": self.held_out,
            "answers": self.answers,
            "cost_before": round(self.before, 5),
            "cost": round(self.after, 5),
            "accepted": self.accepted,
            "trained": self.weights is not None,
        }


def versions(rows: SealedRows, model: str | None = None) -> list[PolicyVersion]:
    """Return this user's versions, of one or of all language models, in the order in which they were stored."""
    if not rows.has(POLICIES):
        return []
    query = many(POLICIES).order_by(POLICIES.c.id)
    if model is not None:
        query = query.where(POLICIES.c.model == model)

    def work(connection: Connection) -> list[PolicyVersion]:
        return [
            version
            for version, trusted in rows.read(connection, POLICIES, query, _read)
            if trusted and model in (None, version.model)
        ]

    return [replace(version, number=number) for number, version in enumerate(rows.work(work), 1)]


def current(found: Sequence[PolicyVersion]) -> Weights | None:
    """Return the weights of the last accepted version of one language model; None: the model alone."""
    return next((each.weights for each in reversed(found) if each.accepted), None)


def add(rows: SealedRows, version: PolicyVersion) -> None:
    """Store a version as the last one of its model.

    Challengers that were refused before are replaced, since the new version contains their trials, too. Above the
    limit, the oldest versions are removed.
    """
    data = as_bytes(_values(version), _from_values)

    def work(connection: Connection) -> None:
        rows.add(connection, POLICIES, data, {"model": version.model, "accepted": version.accepted})
        query = POLICIES.select().where(POLICIES.c.model == version.model).order_by(POLICIES.c.id.desc())
        last, *others = connection.execute(query)
        refused = [row.id for row in others if not row.accepted]
        kept = [row.id for row in (last, *others) if row.id not in refused]
        remove(connection, POLICIES, [*refused, *kept[MAX_VERSIONS:]])

    rows.write(work)


def roll_back(rows: SealedRows, version: PolicyVersion) -> None:
    """Make a stored version current again.

    Raises
    ------
    InputError
        The version was refused, so that it never was current.
    """
    if not version.accepted:
        raise InputError(f"version {version.number} was refused: it was no better than the one before it")
    add(rows, replace(version, when=time.time(), number=0))


def reset(rows: SealedRows) -> None:
    """Make the language model alone current again, for all files of the language model."""
    last = {version.model: version for version in versions(rows)}
    for model, version in last.items():
        if current(versions(rows, model)) is not None:
            add(rows, replace(version, accepted=True, weights=None, when=time.time(), number=0))


def _values(version: PolicyVersion) -> json_codec.Values:
    trials = [
        [each.layer, each.profile, each.word, each.fields, each.prompt, each.answers]
        for each in version.trials
    ]
    return {
        "model": version.model,
        "when": version.when,
        "before": version.before,
        "after": version.after,
        "trained": version.trained,
        "held_out": version.held_out,
        "accepted": version.accepted,
        "weights": None if version.weights is None else {k: dict(v) for k, v in version.weights.items()},
        "trials": base64.b64encode(gzip.compress(json.dumps(trials).encode(), mtime=0)).decode(),
    }


def _read(data: bytes) -> PolicyVersion:
    return _from_values(parsed(data))


def _from_values(values: Any) -> PolicyVersion:
    """Decode a version; raises ValueError if it is damaged."""
    fields = Fields(values)
    if not is_digest(model := fields.text("model")):
        raise ValueError("the language model is not a digest")
    weights = fields.get("weights")
    return PolicyVersion(
        model=model,
        when=fields.number("when"),
        before=fields.number("before"),
        after=fields.number("after"),
        trained=fields.count("trained"),
        held_out=fields.count("held_out"),
        accepted=fields.flag("accepted"),
        weights=None if weights is None else checked_weights(weights),
        trials=_trials(fields.get("trials")),
    )


def checked_weights(values: Any) -> Weights:
    """Return weights of words from an untrusted source.

    Raises
    ------
    ValueError
        The values are not nested objects of numbers, too many, too large, or not finite.
    """
    count = 0
    for positions in _objects(values):
        for words in _objects(positions):
            count += len(words)
            for weight in _objects(words, of=(int, float)):
                if not math.isfinite(weight) or abs(weight) > MAX_WEIGHT:
                    raise ValueError(f"a weight must be within {MAX_WEIGHT}")
    if count > MAX_WEIGHTS:
        raise ValueError(f"there are more than {MAX_WEIGHTS} weights")
    return values


def _objects(values: Any, of: type | tuple[type, ...] = dict) -> list[Any]:
    """Return the values of a JSON object with short names, which must have a type."""
    if not isinstance(values, dict) or len(values) > MAX_WEIGHTS:
        raise ValueError("weights must be an object")
    if any(len(name) > _MAX_CHARACTERS for name in values):
        raise ValueError("a name of a weight is too long")
    if not all(isinstance(each, of) and not isinstance(each, bool) for each in values.values()):
        raise ValueError("weights have a wrong type")
    return list(values.values())


def _trials(text: object) -> tuple[LayerTrials, ...]:
    if not isinstance(text, str):
        raise ValueError("trials must be a text")
    try:
        with gzip.open(BytesIO(base64.b64decode(text, validate=True))) as file:
            found = json.loads(file.read(_MAX_UNPACKED_BYTES))
        if not isinstance(found, list) or len(found) > MAX_LAYERS:
            raise ValueError(f"trials must be a list of at most {MAX_LAYERS} layers")
        return tuple(_layer(*each) for each in found)
    except (OSError, EOFError, zlib.error, TypeError, RecursionError, binascii.Error, UnicodeError) as error:
        raise ValueError(f"damaged trials: {error}") from None


def _layer(layer: Any, profile: Any, word: Any, fields: Any, prompt: Any, answers: Any) -> LayerTrials:
    if not (is_digest(layer) and is_digest(profile)):
        raise ValueError("layers and hardware profiles must be digests")
    if not isinstance(answers, list) or len(answers) > MAX_ANSWERS:
        raise ValueError(f"a layer has at most {MAX_ANSWERS} answers")
    made = []
    for tokens, cost in answers:
        if not isinstance(cost, (int, float)) or not math.isfinite(cost) or cost <= 0:
            raise ValueError("costs must be positive")
        made.append((_words(tokens, MAX_ANSWER_TOKENS), float(cost)))
    (word,) = _words([word], 1)
    return LayerTrials(
        layer, profile, word, _words(fields, _MAX_CHARACTERS), _words(prompt, _MAX_PROMPT_TOKENS), tuple(made)
    )


def _words(values: Any, most: int) -> tuple[str, ...]:
    if not isinstance(values, list) or not 0 < len(values) <= most:
        raise ValueError(f"texts must be a list of 1 to {most} words")
    if not all(isinstance(each, str) and len(each) <= _MAX_CHARACTERS for each in values):
        raise ValueError("texts must consist of short words")
    return tuple(values)
