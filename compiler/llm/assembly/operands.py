"""Grammars of operands: registers, selectors, bounded numbers, fields and sums, and the rules that select them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from compiler.llm.tokens.assembly_tokens import (
    ANY_REGISTER,
    ANY_SELECTOR,
    GROUPS,
    NAMELESS,
    OPENERS,
    PAIRS,
    REGISTER_TOKENS,
    SELECTORS,
    SEMAPHORES,
    TO,
    ZERO,
    Head,
    TokenChoice,
    pair_group,
    semaphore_group,
)
from compiler.llm.tokens.assembly_tokens import SELECTOR as NAMELESS_SELECTOR
from compiler.llm.tokens.integer_tokens import BYTES, LONG, MINUS
from hw.isa.fields import Packed
from hw.isa.micro_instruction import LOOP_IMM, WORD, MicroOp

#: Values of an instruction by name: a, b, d, imm, wait, signal, ...
Values = dict[str, int]
_ZERO = TokenChoice(ZERO)


class Operand(ABC):
    """Partially written operand.

    Parameters
    ----------
    values : dict
        Values of the instruction, to which the operand adds its own values.
    """

    #: Minimum number of tokens of the whole operand.
    need = 1

    def __init__(self, values: Values):
        self.values = values

    @property
    @abstractmethod
    def ends(self) -> bool:
        """True if the operand may end here."""

    @abstractmethod
    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""

    @abstractmethod
    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""


class Register(Operand):
    """Destination register of an instruction."""

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        return "d" in self.values

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        if not self.ends:
            yield TokenChoice(ANY_REGISTER)

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        if self.ends or token not in REGISTER_TOKENS:
            return False
        self.values["d"] = SELECTORS[token]
        return True


class Selector(Operand):
    """Selector: a register, an operand of the macro-instruction, or a statistic.

    Parameters
    ----------
    slot : str
        Name of the value, "a" or "b".
    zero : TokenChoice or None
        Choice for register 0; None if register 0 is not allowed.
    nameless : bool
        True if selectors without a name may be used.
    """

    def __init__(self, values: Values, slot: str, zero: TokenChoice | None = _ZERO, nameless: bool = True):
        super().__init__(values)
        self._slot, self._zero, self._nameless = slot, zero, nameless
        self._number: Number | None = None

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        return self._slot in self.values

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        if self._number:
            yield from self._number.choices()
        elif not self.ends:
            yield TokenChoice(ANY_SELECTOR)
            if self._zero:
                yield self._zero
            if self._nameless:
                yield TokenChoice(NAMELESS_SELECTOR, 1)

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        if self._number:
            if not self._number.accept(token):
                return False
            if self._number.value is not None:
                self.values[self._slot] = self._number.value
            return True
        if self.ends:
            return False
        if token == NAMELESS_SELECTOR and self._nameless:
            self._number = Number(_NAMELESS)
            return True
        if token not in SELECTORS or (token == ZERO and not self._zero):
            return False
        self.values[self._slot] = SELECTORS[token]
        return True


class Semaphores(Operand):
    """Semaphores that a command waits for or signals, in ascending order.

    Parameters
    ----------
    kind : str
        Operand kind, "wait" or "signal".
    """

    need = 0

    def __init__(self, values: Values, kind: str):
        super().__init__(values)
        self.kind = kind
        self.next = 0

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        return True

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        if self.next < len(SEMAPHORES[self.kind]):
            yield TokenChoice(semaphore_group(self.kind, self.next))

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        tokens = SEMAPHORES[self.kind]
        if token not in tokens[self.next :]:
            return False
        number = tokens.index(token)
        self.values[self.kind] = self.values.get(self.kind, 0) | 1 << number
        self.next = number + 1
        return True


#: Closed intervals of integers.
Spans = tuple[tuple[int, int], ...]


class Sources(Operand):
    """Sum of selectors and a number, such as `r1, op2, 300`.

    Parameters
    ----------
    slots : sequence of str
        Names of the selector values.
    slot : str
        Name of the number value.
    alone, following, hidden : Spans
        Legal numbers if there is no selector, if there are selectors, and if the only selector is register 0.
    nameless : bool
        True if selectors without a name may be used.
    """

    def __init__(
        self,
        values: Values,
        slots: Sequence[str],
        slot: str,
        *,
        alone: Spans,
        following: Spans,
        hidden: Spans = (),
        nameless: bool = True,
    ):
        super().__init__(values)
        self._slots, self._slot = tuple(slots), slot
        self._spans = {"alone": alone, "following": without(following, 0), "hidden": hidden}
        self._nameless = nameless
        self._selector: Selector | None = None
        self._number: Number | None = None
        self.need = shortest(alone) or 1

    @property
    def _taken(self) -> list[int]:
        return [self.values[slot] for slot in self._slots if slot in self.values]

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        if self._number:
            return self._number.value is not None
        if self._selector and not self._selector.ends:
            return False
        taken = self._taken
        return bool(taken) and taken[-1] > 0

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        if self._number:
            yield from self._number.choices()
        elif self._selector and not self._selector.ends:
            yield from self._selector.choices()
        else:
            yield from self._choices_after(len(self._taken))

    def _choices_after(self, taken: int) -> Iterator[TokenChoice]:
        """Yield the choices after the given number of selectors."""
        if selector := self._next(taken):
            yield from selector.choices()
        yield from Number(self._spans[self._case()]).choices()

    def _next(self, taken: int) -> Selector | None:
        """Return the selector operand that may follow `taken` selectors; None if no further selector is allowed."""
        if taken == len(self._slots):
            return None
        # Register 0 is allowed only if another token follows.
        again = taken == 0 and len(self._slots) > 1
        zero = TokenChoice(ZERO, 1) if again else None
        return Selector(self.values, self._slots[taken], zero, self._nameless)

    def _case(self) -> str:
        taken = self._taken
        return "hidden" if taken == [0] else "following" if taken else "alone"

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        if self._number is None and self._accept_selector(token):
            return True
        if self._selector and not self._selector.ends:
            return False
        number = self._number or Number(self._spans[self._case()])
        if not number.accept(token):
            return False
        self._number = number
        if number.value is not None:
            self.values[self._slot] = number.value
        return True

    def _accept_selector(self, token: str) -> bool:
        if self._selector and not self._selector.ends:
            return self._selector.accept(token)
        selector = self._next(len(self._taken))
        if selector is None or not selector.accept(token):
            return False
        self._selector = selector
        return True


class PackedSources(Sources):
    """Sum of selectors and a number, or the non-default parts of a packed field in order.

    Parameters
    ----------
    packed : Packed
        Layout of the field's parts.
    parts : dict
        Legal values of each part by name.
    """

    def __init__(
        self, values: Values, slots: Sequence[str], packed: Packed, parts: dict[str, Spans], **options: Any
    ):
        super().__init__(values, slots, "imm", alone=(), **options)
        self.need = 0
        self._packed, self._parts = packed, parts
        self._packed_values: dict[str, int] = {}
        self._from = 0
        self._name, self._value = "", None
        self._set()

    def _set(self) -> None:
        self.values["imm"] = self._packed.pack(**self._packed_values)

    @property
    def _plain(self) -> bool:
        return bool(self._number or self._selector)

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        return super().ends if self._plain else self._value is None

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        if self._value:
            yield from self._value.choices()
            return
        if not self._plain:
            yield TokenChoice(pair_group(self._packed.name, self._from))
            for token, index in OPENERS[self._packed.name]:
                if index >= self._from and (spans := self._spans_of(index)):
                    yield TokenChoice(token, shortest(spans) or 1)
        if self._plain or not self._from:
            yield from super().choices()

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        if self._value:
            return self._accept_value(token)
        pair = None if self._plain else PAIRS[self._packed.name].get(token)
        if pair is None:
            if self._from or not super().accept(token):
                return False
            if self._number is None:
                self.values["imm"] = 0
            return True
        index, value = pair
        if index < self._from:
            return False
        part = self._packed.fields[index]
        self._from = index + 1
        if value is None:
            self._name, self._value = part.name, Number(self._spans_of(index))
        else:
            self._packed_values[part.name] = value
            self._set()
        return True

    def _spans_of(self, index: int) -> Spans:
        """Return the legal values of a part, without its default."""
        part = self._packed.fields[index]
        return without(self._parts[part.name], part.default)

    def _accept_value(self, token: str) -> bool:
        number = self._value
        if number is None or not number.accept(token):
            return False
        if number.value is not None:
            self._packed_values[self._name], self._value = number.value, None
            self._set()
        return True


class Constant(Operand):
    """Operand that consists of one number.

    Parameters
    ----------
    slot : str
        Name of the value.
    spans : Spans
        Intervals of legal values.
    base : int
        Offset that is added to the parsed number.
    """

    def __init__(self, values: Values, slot: str, spans: Spans, base: int = 0):
        super().__init__(values)
        self._slot, self._base = slot, base
        self._number = Number(spans)
        self.need = shortest(spans) or 1

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        return self._slot in self.values

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        return self._number.choices()

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        if not self._number.accept(token):
            return False
        if self._number.value is not None:
            self.values[self._slot] = self._number.value + self._base
        return True


class LoopEnd(Operand):
    """Distance to the end of a loop without a body; empty for a loop with a body."""

    need = 0

    def __init__(self, values: Values, spans: Spans, base: int):
        super().__init__(values)
        self._spans = spans
        self._target = Constant(values, "end", spans, base)
        self._open = False

    @property
    def ends(self) -> bool:
        """True if the operand may end here."""
        return not self._open or self._target.ends

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token of the operand."""
        if self._open:
            yield from self._target.choices()
        elif self._spans:
            yield TokenChoice(TO, self._target.need)

    def accept(self, token: str) -> bool:
        """Append a token; return whether it belongs to this operand."""
        if self._open:
            return self._target.accept(token)
        self._open = token == TO and bool(self._spans)
        return self._open


_BYTE = {token: value for value, token in enumerate(BYTES)}
_LENGTH = {token: int(token[1:]) for token in LONG}


def without(spans: Spans, value: int) -> Spans:
    """Return the intervals without one number."""
    out = []
    for low, high in spans:
        out += [(low, high)] if not low <= value <= high else [(low, value - 1), (value + 1, high)]
    return tuple((low, high) for low, high in out if low <= high)


def spans_of(values: tuple[int, ...]) -> Spans:
    """Return the intervals that consist of the given ascending integers."""
    out: list[tuple[int, int]] = []
    for value in values:
        if out and out[-1][1] == value - 1:
            out[-1] = out[-1][0], value
        else:
            out.append((value, value))
    return tuple(out)


_NAMELESS = spans_of(NAMELESS)


@lru_cache(maxsize=1 << 12)
def shortest(spans: Spans) -> int | None:
    """Return the minimum number of tokens of a number in the intervals; None if there are no intervals."""
    return min((1 + choice.cost for choice in _first(spans, False)), default=None)


@lru_cache(maxsize=1 << 12)
def _first(spans: Spans, negative: bool) -> tuple[TokenChoice, ...]:
    """Return the choices for the first token of a number, or for the token after its minus sign."""
    out = [TokenChoice((max(low, 0), min(high, 255)), 0) for low, high in spans if low <= 255 and high >= 0]
    for token, length in _LENGTH.items():
        minimum, maximum = 1 << 8 * (length - 1), (1 << 8 * length) - 1
        if any(low <= maximum and high >= minimum for low, high in spans):
            out.append(TokenChoice(token, length))
    if not negative and (magnitudes := _magnitudes(spans)):
        out.append(TokenChoice(MINUS, min(1 + choice.cost for choice in _first(magnitudes, True))))
    return tuple(out)


@lru_cache(maxsize=1 << 12)
def _magnitudes(spans: Spans) -> Spans:
    return tuple((max(-high, 1), -low) for low, high in spans if low < 0)


class Number:
    """Partially written number.

    Parameters
    ----------
    spans : Spans
        Intervals of legal values.
    """

    def __init__(self, spans: Spans):
        self._spans = spans
        self._negative = False
        self._left: int | None = None  # number of missing bytes
        self._value = 0

    @property
    def value(self) -> int | None:
        """Value of the number; None while incomplete."""
        if self._left != 0:
            return None
        return -self._value if self._negative else self._value

    def choices(self) -> Iterator[TokenChoice]:
        """Yield the choices for the next token; yield nothing if the number is complete."""
        if self._left is None:
            yield from _first(self._spans, self._negative)
        elif self._left:
            shift, base = 8 * (self._left - 1), self._value << 8
            for low, high in self._spans:
                first, last = max((low >> shift) - base, 0 if base else 1), min((high >> shift) - base, 255)
                if first <= last:
                    yield TokenChoice((first, last), self._left - 1)

    def accept(self, token: str) -> bool:
        """Append a token; return whether the token is valid here."""
        byte = _BYTE.get(token)
        for choice in self.choices():
            if choice.option == token or (byte is not None and choice.has_byte(byte)):
                break
        else:
            return False
        if token == MINUS:
            self._negative, self._spans = True, _magnitudes(self._spans)
        elif byte is None:
            self._left = _LENGTH[token]
        else:
            self._value = self._value << 8 | byte
            self._left = self._left - 1 if self._left else 0
        return True


_IMM, _D = WORD.fields[0], WORD.fields[3]
_END, _COUNT = LOOP_IMM.fields
#: Ranges of signed and of unsigned 32-bit numbers.
SIGNED = ((_IMM.low, _IMM.high),)
UNSIGNED = ((0, (1 << _IMM.width) - 1),)


class Rules:
    """Rules of assembly text: operands of each instruction and their legal values."""

    #: True if selectors without a name may be used.
    nameless = True

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Usable tokens by group name."""
        return GROUPS

    def constants(self, head: Head) -> Spans:
        """Return the legal values of a field."""
        assert head.field
        return ((head.field.low, head.field.high),)

    def hidden(self, head: Head) -> Spans:
        """Return the values outside a field's range, which are written as register 0 plus a number."""
        assert head.field
        field = head.field
        if head.packed or not field.signed:
            return ((field.high + 1, UNSIGNED[0][1]),) if field.high < UNSIGNED[0][1] else ()
        return tuple(
            (low, high)
            for low, high in ((_IMM.low, field.low - 1), (field.high + 1, _IMM.high))
            if low <= high
        )

    def parts(self, packed: Packed) -> dict[str, Spans]:
        """Return the legal values of each part of a packed field."""
        return {part.name: ((part.low, part.high),) for part in packed.fields}

    def numbers(self, head: Head, iterations: int) -> Spans:
        """Return the legal values of a single-number operand, inside loops with `iterations` iterations in total."""
        return ((_COUNT.low, _COUNT.high),) if head.op is MicroOp.LOOP else SIGNED

    def max_iterations(self, iterations: int) -> int:
        """Return the maximum iteration count of a loop inside loops with `iterations` iterations in total."""
        return _COUNT.high

    def distances(self, pc: int) -> Spans:
        """Return the legal jump distances from an instruction."""
        return ((_IMM.low - pc, _IMM.high - pc),)

    def loop_ends(self, pc: int) -> Spans:
        """Return the legal distances to the end of a loop without a body."""
        return ((_END.low - pc, _END.high - pc),)

    def operands(self, head: Head, values: Values, pc: int, iterations: int) -> list[Operand]:
        """Return the operands of an instruction, in order.

        Parameters
        ----------
        head : Head
            First token of the instruction.
        values : dict
            Values of the instruction, to which the operands add their own values.
        pc : int
            Index of the instruction.
        iterations : int
            Product of the iteration counts of the enclosing loops.
        """
        kinds = [kind for kind in head.kinds if not (kind in ("a", "b") and "imm" in head.kinds)]
        return [self._operand(head, values, kind, pc, iterations) for kind in kinds]

    def _operand(self, head: Head, values: Values, kind: str, pc: int, iterations: int) -> Operand:
        if kind == "d":
            return Register(values)
        if kind in ("a", "b"):
            return Selector(values, kind, nameless=self.nameless)
        if kind == "imm":
            return self._sources(head, values, iterations)
        if kind == "segment":
            return Constant(values, "d", ((_D.low, _D.high),))
        if kind == "target" and head.op is MicroOp.LOOP:
            return LoopEnd(values, self.loop_ends(pc), pc)
        if kind == "target":
            return Constant(values, "imm", self.distances(pc), pc)
        return Semaphores(values, kind)

    def _sources(self, head: Head, values: Values, iterations: int) -> Operand:
        """Return the operand for a sum of selectors and a number, or for a number alone."""
        slots = [kind for kind in head.kinds if kind in ("a", "b")]
        if not slots:
            return Constant(values, "imm", self.numbers(head, iterations))
        if head.op is MicroOp.LOOP:
            return Sources(
                values,
                slots,
                "count",
                alone=self.numbers(head, iterations),
                following=self.numbers(head, 2 * iterations),
                nameless=self.nameless,
            )
        if head.packed:
            return PackedSources(
                values,
                slots,
                head.packed,
                self.parts(head.packed),
                following=SIGNED,
                hidden=self.hidden(head),
                nameless=self.nameless,
            )
        if head.field:
            return Sources(
                values,
                slots,
                "imm",
                alone=self.constants(head),
                following=SIGNED,
                hidden=self.hidden(head),
                nameless=self.nameless,
            )
        numbers = self.numbers(head, iterations)
        return Sources(values, slots, "imm", alone=numbers, following=SIGNED, nameless=self.nameless)
