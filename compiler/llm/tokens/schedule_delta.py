"""Tokens of schedule deltas: fields of a layer schedule that differ from the current one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.ir.identity import identity_of
from compiler.llm.tokens.integer_tokens import decode_number, encode_number, following
from compiler.schedule.schedule import LayerSchedule

END = "end"
#: Token of a size that exceeds all layer dimensions.
ALL = "all"
_ALL = 1 << 16
_ORDERS = ("rows", "channels")


@dataclass(frozen=True)
class FieldSpan:
    """Range of a schedule field; `all_too` is True if the token `all` (the whole extent) is also allowed."""

    low: int
    high: int
    all_too: bool = False


_SIZE, _FLAG = FieldSpan(1, _ALL - 1, all_too=True), FieldSpan(0, 1)
#: Ranges by stable field name (`compiler.ir.identity`) in token order; trained models depend on both.
_SPANS = {
    "rows": _SIZE,
    "band": _SIZE,
    "width": _SIZE,
    "columns": _SIZE,
    "depth": _SIZE,
    "slots": _SIZE,
    "slot_buffers": FieldSpan(1, 4),
    "order": _FLAG,
    "x_buffers": FieldSpan(1, 16),
    "w_buffers": FieldSpan(1, 64),
    "y_buffers": FieldSpan(1, 8),
    "acc_buffers": FieldSpan(1, 8),
    "fold": _FLAG,
    "strips": _FLAG,
    "together": FieldSpan(1, 64),
    "prefetch": FieldSpan(0, 256),
    "on_chip": _FLAG,
    "overlap": _FLAG,
    "common_scale": _FLAG,
    "ramp": _FLAG,
    "taper": _FLAG,
    "planes": FieldSpan(0, _ALL - 1),
    "joined": _FLAG,
    "counted": _FLAG,
}
_FIELD = {stable: name for name, stable in identity_of(LayerSchedule).parts.items()}
#: Fields without tokens, because the vocabulary is part of the trained models.
_WITHOUT_TOKENS = ("strip_width",)
assert _FIELD.keys() == {*_SPANS, *_WITHOUT_TOKENS}
#: Ranges by field name.
SPANS = {_FIELD[stable]: span for stable, span in _SPANS.items()}
#: Token that precedes the value of a field, by field name.
NAMES = {_FIELD[stable]: f"set {stable}" for stable in _SPANS}
TOKENS = (*NAMES.values(), ALL, END)
_FIELDS = {token: name for name, token in NAMES.items()}


def encode_schedule_delta(schedule: LayerSchedule, base: LayerSchedule) -> list[str]:
    """Encode the fields that differ from `base` as tokens, in field order and followed by the end token.

    Fields without tokens are omitted: a decoded schedule has the values of its base.

    Raises
    ------
    ValueError
        A value cannot be expressed as tokens.
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
    span = SPANS[name]
    if span.all_too and value >= _ALL:
        return [ALL]
    if not span.low <= value <= span.high:
        raise ValueError(f"{name} must be in {span.low}..{span.high} to be encoded as tokens, not {value}")
    return encode_number(int(value))


def _value(name: str, rest: Iterator[str]) -> int | str | bool:
    first = next(rest, "")
    if first == ALL and SPANS[name].all_too:
        return _ALL
    value, span = decode_number(_prepend(first, rest)), SPANS[name]
    if not span.low <= value <= span.high:
        raise ValueError(f"{name} must be in {span.low}..{span.high}, not {value}")
    if name == "order":
        return _ORDERS[value]
    return bool(value) if isinstance(getattr(_DEFAULT, name), bool) else value


def _prepend(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


_DEFAULT = LayerSchedule()


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
