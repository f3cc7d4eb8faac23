"""Operands of an instruction, read word by word."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from compiler.llm.assembly.choice import Choice
from compiler.llm.assembly.groups import REGISTER, SELECTOR, SEMAPHORES, ZERO, semaphore_group
from compiler.llm.assembly.lexicon import NAMELESS, REGISTER_WORDS, SELECTORS, TO
from compiler.llm.assembly.lexicon import SELECTOR as OTHER
from compiler.llm.assembly.spans import Number, Spans, shortest, spans_of

#: What the parts of an instruction say: a, b, d, imm and so on.
Values = dict[str, int]

_NAMELESS = spans_of(NAMELESS)
_ZERO = Choice(ZERO)


class Operand(ABC):
    """One operand on its way.

    Parameters
    ----------
    values : dict
        Where it puts what it says.
    """

    #: Words that it needs at least, before the first is taken.
    need = 1

    def __init__(self, values: Values):
        self.values = values

    @property
    @abstractmethod
    def ends(self) -> bool:
        """Whether it may end here."""

    @abstractmethod
    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""

    @abstractmethod
    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""


class Register(Operand):
    """The register that an instruction writes."""

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        return "d" in self.values

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        if not self.ends:
            yield Choice(REGISTER)

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        if self.ends or word not in REGISTER_WORDS:
            return False
        self.values["d"] = SELECTORS[word]
        return True


class Selector(Operand):
    """A register, an operand of the macro-instruction or a statistic.

    Parameters
    ----------
    slot : str
        "a" or "b".
    zero : Choice or None
        Register 0, if it may be named.
    nameless : bool
        Whether selectors without a name may be used.
    """

    def __init__(self, values: Values, slot: str, zero: Choice | None = _ZERO, nameless: bool = True):
        super().__init__(values)
        self._slot, self._zero, self._nameless = slot, zero, nameless
        self._number: Number | None = None

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        return self._slot in self.values

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        if self._number:
            yield from self._number.choices()
        elif not self.ends:
            yield Choice(SELECTOR)
            if self._zero:
                yield self._zero
            if self._nameless:
                yield Choice(OTHER, 1)

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        if self._number:
            if not self._number.take(word):
                return False
            if self._number.value is not None:
                self.values[self._slot] = self._number.value
            return True
        if self.ends:
            return False
        if word == OTHER and self._nameless:
            self._number = Number(_NAMELESS)
            return True
        if word not in SELECTORS or (word == ZERO and not self._zero):
            return False
        self.values[self._slot] = SELECTORS[word]
        return True


class Constant(Operand):
    """A number.

    Parameters
    ----------
    slot : str
        What it is called among the values.
    spans : Spans
        Where it must lie.
    base : int
        Added to it.
    """

    def __init__(self, values: Values, slot: str, spans: Spans, base: int = 0):
        super().__init__(values)
        self._slot, self._base = slot, base
        self._number = Number(spans)
        self.need = shortest(spans) or 1

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        return self._slot in self.values

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        return self._number.choices()

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        if not self._number.take(word):
            return False
        if self._number.value is not None:
            self.values[self._slot] = self._number.value + self._base
        return True


class LoopEnd(Operand):
    """The distance to the end of a loop that has no body of its own; nothing if it has."""

    need = 0

    def __init__(self, values: Values, spans: Spans, base: int):
        super().__init__(values)
        self._spans = spans
        self._target = Constant(values, "end", spans, base)
        self._open = False

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        return not self._open or self._target.ends

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        if self._open:
            yield from self._target.choices()
        elif self._spans:
            yield Choice(TO, self._target.need)

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        if self._open:
            return self._target.take(word)
        self._open = word == TO and bool(self._spans)
        return self._open


class Semaphores(Operand):
    """Semaphores that a command waits for, or signals, in ascending order.

    Parameters
    ----------
    kind : str
        "wait" or "signal".
    """

    need = 0

    def __init__(self, values: Values, kind: str):
        super().__init__(values)
        self.kind = kind
        self.next = 0

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        return True

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        if self.next < len(SEMAPHORES[self.kind]):
            yield Choice(semaphore_group(self.kind, self.next))

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        words = SEMAPHORES[self.kind]
        if word not in words[self.next :]:
            return False
        number = words.index(word)
        self.values[self.kind] = self.values.get(self.kind, 0) | 1 << number
        self.next = number + 1
        return True
