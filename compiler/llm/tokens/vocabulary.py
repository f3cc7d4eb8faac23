"""Complete vocabulary of the language model; token ids are indices, and new tokens are appended at the end."""

from collections.abc import Iterable, Sequence

from compiler.llm.tokens import (
    assembly_tokens,
    integer_tokens,
    layer_prompt,
    program_tokens,
    schedule_delta,
)
from compiler.llm.tokens.layer_prompt import Ask

#: Padding token.
PAD = "pad"


class Vocabulary:
    """Tokens and their ids, in a fixed order.

    Parameters
    ----------
    tokens : iterable of str
        Distinct tokens; the index of a token is its id.
    """

    def __init__(self, tokens: Iterable[str]):
        self.tokens = tuple(tokens)
        self._number = {token: number for number, token in enumerate(self.tokens)}
        if len(self._number) != len(self.tokens):
            raise ValueError("a vocabulary must contain each token once")

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: str) -> bool:
        return token in self._number

    def number(self, token: str) -> int:
        """Return the id of a token; raise KeyError if it is unknown."""
        return self._number[token]

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens; raise KeyError if one is unknown."""
        return [self._number[token] for token in tokens]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """Return the tokens of ids; raise IndexError if one is out of range."""
        return [self.tokens[number] for number in numbers]


#: Words added later, each with the word whose weights it has before it is trained.
RELATED = {
    Ask.FUSION.value: Ask.SCHEDULE.value,
    **assembly_tokens.ADDED_TOKENS,
    **assembly_tokens.NAMED_TOKENS,
}

#: Vocabulary of the model; schedules and programs share the `end` token.
LANGUAGE = Vocabulary(
    dict.fromkeys(
        [
            PAD,
            *integer_tokens.TOKENS,
            *layer_prompt.TOKENS,
            *schedule_delta.TOKENS,
            *layer_prompt.PROMPT_TOKENS,
            *program_tokens.SUMMARY_TOKENS,
            *program_tokens.EDIT_TOKENS,
            *assembly_tokens.TOKENS,
            *schedule_delta.ADDED_TOKENS,
            *assembly_tokens.GUARDS.values(),
            *layer_prompt.ADDED_TOKENS,
            *layer_prompt.FUSION_TOKENS,
            *assembly_tokens.ADDED_TOKENS,
            *assembly_tokens.UNUSED_TOKENS,
        ]
    )
)
