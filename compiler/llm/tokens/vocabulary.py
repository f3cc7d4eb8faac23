"""The vocabulary: words in the order of their numbers; new ones come last."""

from collections.abc import Iterable, Sequence

from compiler.llm.assembly import lexicon
from compiler.llm.tokens import (
    integer_tokens,
    layer_prompt,
    program_edits,
    program_summary,
    prompt_tokens,
    schedule_delta,
)

#: Stands where there is nothing.
PAD = "pad"


class Vocabulary:
    """Words and their numbers, in a fixed order.

    Parameters
    ----------
    words : iterable of str
        All of them, each once; the place of a word is its number.
    """

    def __init__(self, words: Iterable[str]):
        self.words = tuple(words)
        self._number = {word: number for number, word in enumerate(self.words)}
        if len(self._number) != len(self.words):
            raise ValueError("a vocabulary has each word once")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._number

    def number(self, word: str) -> int:
        """Of a word; KeyError: it has none."""
        return self._number[word]

    def encode(self, words: Iterable[str]) -> list[int]:
        """Numbers of words; KeyError: one has none."""
        return [self._number[word] for word in words]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """Words of numbers; IndexError: there is no such word."""
        return [self.words[number] for number in numbers]


#: Schedules and programs have `end` in common.
LANGUAGE = Vocabulary(
    dict.fromkeys(
        [
            PAD,
            *integer_tokens.WORDS,
            *layer_prompt.WORDS,
            *schedule_delta.WORDS,
            *prompt_tokens.WORDS,
            *program_summary.WORDS,
            *program_edits.WORDS,
            *lexicon.WORDS,
        ]
    )
)
