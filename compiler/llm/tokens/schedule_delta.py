"""Tokens of schedule deltas: fields that differ from the current schedule, of a layer or of two layers to be fused."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.ir.identity import identity_of
from compiler.llm.tokens.integer_tokens import LONG, decode_number, encode_number, following
from compiler.schedule.schedule import ALL_COLUMNS, LayerSchedule, field_limits

END = "end"
#: Token between the deltas of two layers; in prompts, it precedes the description of each layer.
NEXT_LAYER = "layer"
#: First token of an answer that makes two layers one, which is computed in one pass; the delta of that layer follows.
ONE_PASS = "one pass"
#: Token of a size that selects the whole extent of a layer.
ALL = "all"
_ORDERS = ("rows", "channels")
_DEFAULT = LayerSchedule()


@dataclass(frozen=True)
class FieldSpan:
    """Range of a schedule field; `all_too` is True if the token `all` (the whole extent) is also allowed."""

    low: int
    high: int
    all_too: bool = False


#: Fields without words in the vocabulary, because they concern several layers or the contents of the weights; answers
#: keep their values.
WITHOUT_WORDS = frozenset({"stream_row_blocks", "kept_weights", "packed_weights"})
_FIELD = {
    stable: name for name, stable in identity_of(LayerSchedule).parts.items() if name not in WITHOUT_WORDS
}
_LIMITS = {name: FieldSpan(int(least), int(most)) for name, _, least, most in field_limits()}
#: Ranges by field name, in the order of the fields in answers: all values that a schedule may have.
SPANS = {
    name: replace(_LIMITS.get(name, FieldSpan(0, 1)), all_too=getattr(_DEFAULT, name) == ALL_COLUMNS)
    for name in _FIELD.values()
}
#: Token that precedes the value of a field, by field name; stable names (`compiler.ir.identity`) are part of the
#: trained models.
NAMES = {name: f"set {stable}" for stable, name in _FIELD.items()}
#: Fields whose tokens were added to the vocabulary later.
_ADDED = ("strip_width",)
TOKENS = (*(token for name, token in NAMES.items() if name not in _ADDED), ALL, END)
ADDED_TOKENS = tuple(NAMES[name] for name in _ADDED)
_FIELDS = {token: name for name, token in NAMES.items()}


def encode_schedule_delta(schedule: LayerSchedule, base: LayerSchedule) -> list[str]:
    """Encode the fields that differ from `base` as tokens, in field order and followed by the end token.

    Every schedule has an encoding, in which the fields of `WITHOUT_WORDS` are omitted.
    """
    out = []
    for name in SPANS:
        if (value := getattr(schedule, name)) != getattr(base, name):
            out += [NAMES[name], *_encode_value(name, value)]
    return [*out, END]


def decode_schedule_delta(tokens: Iterable[str], base: LayerSchedule) -> LayerSchedule:
    """Decode a schedule delta; inverse of `encode_schedule_delta`.

    Raises
    ------
    ValueError
        The tokens are not a valid schedule delta.
    """
    rest, changed = iter(tokens), {}
    while (token := next(rest, None)) != END:
        if token not in _FIELDS:
            raise ValueError(f"{token!r} is not a field")
        changed[_FIELDS[token]] = _value(_FIELDS[token], rest)
    if (more := next(rest, None)) is not None:
        raise ValueError(f"{more!r} follows the end token")
    return replace(base, **changed)


def _encode_value(name: str, value: int | str) -> list[str]:
    if isinstance(value, str):
        return encode_number(_ORDERS.index(value))
    return [ALL] if SPANS[name].all_too and value == ALL_COLUMNS else encode_number(int(value))


def _value(name: str, rest: Iterator[str]) -> int | str | bool:
    first = next(rest, "")
    if first == ALL and SPANS[name].all_too:
        return ALL_COLUMNS
    value, span = decode_number(_prepend(first, rest)), SPANS[name]
    if not span.low <= value <= span.high:
        raise ValueError(f"{name} must be in {span.low}..{span.high}, not {value}")
    if name == "order":
        return _ORDERS[value]
    return bool(value) if isinstance(getattr(_DEFAULT, name), bool) else value


def _prepend(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def position_of(tokens: Sequence[str]) -> str:
    """Return the position of the next token in a schedule delta: the tokens of an incomplete field; else empty."""
    at = max((index for index, token in enumerate(tokens) if token in _FIELDS), default=None)
    if at is None:
        return ""
    value = tokens[at + 1 :]
    complete = bool(value) and (value[0] not in LONG or len(value) > int(value[0][1:]))
    return "" if complete else " ".join(tokens[at:])


class ScheduleDeltaGrammar:
    """Token grammar of schedule deltas.

    Parameters
    ----------
    names : sequence of str
        Names of the fields that may be changed.
    """

    def __init__(self, names: Sequence[str] = tuple(SPANS)):
        self._names = [name for name in SPANS if name in names]

    def after(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow a prefix; empty if the delta is complete."""
        if tokens and tokens[-1] == END:
            return ()
        at = max((index for index, token in enumerate(tokens) if token in _FIELDS), default=None)
        left = self._names
        if at is not None:
            name, value = _FIELDS[tokens[at]], tokens[at + 1 :]
            span = SPANS[name]
            if not value:
                return (*following((), span.low, span.high), *([ALL] if span.all_too else []))
            if value[0] != ALL and (more := following(value, span.low, span.high)):
                return more
            left = self._names[self._names.index(name) + 1 :]
        return (*(NAMES[name] for name in left), END)


def encode_pair_delta(schedules: Sequence[LayerSchedule], bases: Sequence[LayerSchedule]) -> list[str]:
    """Encode schedules of two layers, or of the layer into which both are merged.

    Parameters
    ----------
    schedules : sequence of LayerSchedule
        Schedules of both layers, or of the merged layer alone.
    bases : sequence of LayerSchedule
        Schedules relative to which they are encoded, as many as `schedules`.
    """
    first, *second = (encode_schedule_delta(each, base) for each, base in zip(schedules, bases, strict=True))
    return [*first[:-1], NEXT_LAYER, *second[0]] if second else [ONE_PASS, *first]


def decode_pair_delta(
    tokens: Sequence[str], bases: Sequence[LayerSchedule], merged: LayerSchedule | None
) -> tuple[LayerSchedule, ...]:
    """Decode the schedules of two layers, or of the layer into which both are merged; inverse of `encode_pair_delta`.

    Parameters
    ----------
    tokens : sequence of str
        Tokens of the answer.
    bases : sequence of LayerSchedule
        Current schedules of both layers.
    merged : LayerSchedule or None
        Schedule of the merged layer to which the delta refers; None if the layers cannot be merged.

    Raises
    ------
    ValueError
        The tokens are not a valid answer.
    """
    tokens = list(tokens)
    if tokens[:1] == [ONE_PASS]:
        if merged is None:
            raise ValueError("the layers cannot be merged")
        return (decode_schedule_delta(tokens[1:], merged),)
    if NEXT_LAYER not in tokens:
        raise ValueError(f"{NEXT_LAYER!r} is missing")
    at = tokens.index(NEXT_LAYER)
    parts = ([*tokens[:at], END], tokens[at + 1 :])
    return tuple(decode_schedule_delta(part, base) for part, base in zip(parts, bases, strict=True))


class PairDeltaGrammar:
    """Token grammar of schedule deltas of two layers that may be merged.

    Parameters
    ----------
    first, second : sequence of str
        Names of the fields of both layers that may be changed.
    merged : sequence of str or None
        Names of the fields of the merged layer that may be changed; None if the layers cannot be merged.
    """

    def __init__(self, first: Sequence[str], second: Sequence[str], merged: Sequence[str] | None):
        self._first, self._second = ScheduleDeltaGrammar(first), ScheduleDeltaGrammar(second)
        self._merged = None if merged is None else ScheduleDeltaGrammar(merged)

    def after(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow a prefix; empty if the answer is complete."""
        if tokens and tokens[0] == ONE_PASS:
            return () if self._merged is None else self._merged.after(tokens[1:])
        if NEXT_LAYER in tokens:
            return self._second.after(tokens[list(tokens).index(NEXT_LAYER) + 1 :])
        found = tuple(NEXT_LAYER if token == END else token for token in self._first.after(tokens))
        return (*found, ONE_PASS) if not tokens and self._merged is not None else found
