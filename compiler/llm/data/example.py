"""A question with an answer that was measured."""

from dataclasses import dataclass

from compiler.llm.tokens.layer_prompt import BEST, PromptSubject, want_of
from compiler.llm.tokens.prompt_tokens import Ask


@dataclass(frozen=True)
class Example:
    """A question and an answer.

    Parameters
    ----------
    subject : Subject
        The layer as it is.
    answer : tuple of str
        What to change, or a program, in words.
    ratio : float
        Cycles with it over those there are.
    best : bool
        Nothing that was measured gives fewer.
    ask : Ask
        Which kind of answer it is.
    outline : tuple of str
        The program that is asked about, if it is one.
    known : bool
        Whether what it costs is known; if not, it is not told.
    """

    subject: PromptSubject
    answer: tuple[str, ...]
    ratio: float
    best: bool
    ask: Ask = Ask.SCHEDULE
    outline: tuple[str, ...] = ()
    known: bool = True

    def question(self, *, profile: bool = True, want: bool = True, best: bool = False) -> list[str]:
        """Words in front of the answer; without `want`, the best is asked for whatever the answer gives."""
        wanted = BEST if best or not want else want_of(self.ratio)
        profile = profile and self.known
        return self.subject.words(wanted, profile=profile, ask=self.ask, outline=self.outline)
