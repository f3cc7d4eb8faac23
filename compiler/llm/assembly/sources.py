"""Operands that are added up: up to two selectors and then a number, or the parts of a packed field.

There is one way only to say them, that of the disassembler: no selector is register 0 unless another one follows, and
no number behind a selector is 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from compiler.llm.assembly.choice import Choice
from compiler.llm.assembly.groups import ZERO, pair_group
from compiler.llm.assembly.lexicon import OPENERS, PAIRS
from compiler.llm.assembly.operand import Operand, Selector, Values
from compiler.llm.assembly.spans import Number, Spans, shortest, without
from hw.isa.fields import Packed


class Sources(Operand):
    """Selectors and a number.

    Parameters
    ----------
    slots : sequence of str
        Names of the selectors.
    slot : str
        Name of the number.
    alone, behind, hidden : Spans
        What the number may be without a selector, behind selectors, and behind register 0 alone.
    nameless : bool
        Whether selectors without a name may be used.
    """

    def __init__(
        self,
        values: Values,
        slots: Sequence[str],
        slot: str,
        *,
        alone: Spans,
        behind: Spans,
        hidden: Spans = (),
        nameless: bool = True,
    ):
        super().__init__(values)
        self._slots, self._slot = tuple(slots), slot
        self._spans = {"alone": alone, "behind": without(behind, 0), "hidden": hidden}
        self._nameless = nameless
        self._selector: Selector | None = None
        self._number: Number | None = None
        self.need = shortest(alone) or 1

    @property
    def _taken(self) -> list[int]:
        return [self.values[slot] for slot in self._slots if slot in self.values]

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        if self._number:
            return self._number.value is not None
        if self._selector and not self._selector.ends:
            return False
        taken = self._taken
        return bool(taken) and taken[-1] > 0

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        if self._number:
            yield from self._number.choices()
        elif self._selector and not self._selector.ends:
            yield from self._selector.choices()
        else:
            yield from self._fresh(len(self._taken))

    def _fresh(self, taken: int) -> Iterator[Choice]:
        """What may follow so many selectors."""
        if selector := self._next(taken):
            yield from selector.choices()
        yield from Number(self._spans[self._case()]).choices()

    def _next(self, taken: int) -> Selector | None:
        """The selector that may follow so many."""
        if taken == len(self._slots):
            return None
        # One word more must follow register 0.
        again = taken == 0 and len(self._slots) > 1
        zero = Choice(ZERO, 1) if again else None
        return Selector(self.values, self._slots[taken], zero, self._nameless)

    def _case(self) -> str:
        taken = self._taken
        return "hidden" if taken == [0] else "behind" if taken else "alone"

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        if self._number is None and self._take_selector(word):
            return True
        if self._selector and not self._selector.ends:
            return False
        number = self._number or Number(self._spans[self._case()])
        if not number.take(word):
            return False
        self._number = number
        if number.value is not None:
            self.values[self._slot] = number.value
        return True

    def _take_selector(self, word: str) -> bool:
        if self._selector and not self._selector.ends:
            return self._selector.take(word)
        selector = self._next(len(self._taken))
        if selector is None or not selector.take(word):
            return False
        self._selector = selector
        return True


class PackedSources(Sources):
    """Selectors and a number, or the parts of a packed field that differ from their defaults, in their order.

    Parameters
    ----------
    packed : Packed
        The field's parts.
    parts : dict
        What the number of each part may be, by name.
    """

    def __init__(
        self, values: Values, slots: Sequence[str], packed: Packed, parts: dict[str, Spans], **options: Any
    ):
        super().__init__(values, slots, "imm", alone=(), **options)
        self.need = 0
        self._packed, self._parts = packed, parts
        self._word: dict[str, int] = {}
        self._from = 0
        self._name, self._value = "", None
        self._set()

    def _set(self) -> None:
        self.values["imm"] = self._packed.pack(**self._word)

    @property
    def _plain(self) -> bool:
        return bool(self._number or self._selector)

    @property
    def ends(self) -> bool:
        """Whether it may end here."""
        return super().ends if self._plain else self._value is None

    def choices(self) -> Iterator[Choice]:
        """What may come next as part of it."""
        if self._value:
            yield from self._value.choices()
            return
        if not self._plain:
            yield Choice(pair_group(self._packed.name, self._from))
            for word, index in OPENERS[self._packed.name]:
                if index >= self._from and (spans := self._spans_of(index)):
                    yield Choice(word, shortest(spans) or 1)
        if self._plain or not self._from:
            yield from super().choices()

    def take(self, word: str) -> bool:
        """Take a word; whether it is part of this operand."""
        if self._value:
            return self._take_value(word)
        pair = None if self._plain else PAIRS[self._packed.name].get(word)
        if pair is None:
            if self._from or not super().take(word):
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
            self._word[part.name] = value
            self._set()
        return True

    def _spans_of(self, index: int) -> Spans:
        """What the number of a part may be."""
        part = self._packed.fields[index]
        return without(self._parts[part.name], part.default)

    def _take_value(self, word: str) -> bool:
        number = self._value
        if number is None or not number.take(word):
            return False
        if number.value is not None:
            self._word[self._name], self._value = number.value, None
            self._set()
        return True
