"""Vocabulary of the language model; token ids are indices, new tokens are appended."""

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

#: Padding token.
PAD = "pad"


class Vocabulary:
    """Tokens and their ids, in a fixed order.

    Parameters
    ----------
    words : iterable of str
        Distinct tokens; the index of a token is its id.
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
        """Return the id of a token; KeyError if it is unknown."""
        return self._number[word]

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of tokens; KeyError if one is unknown."""
        return [self._number[word] for word in words]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """Return the tokens of ids; IndexError if one is out of range."""
        return [self.words[number] for number in numbers]


#: Schedules and programs share the `end` token.
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
