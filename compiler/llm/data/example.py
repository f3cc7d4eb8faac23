"""Training example: a prompt with a measured answer."""

from dataclasses import dataclass

from compiler.llm.tokens.layer_prompt import BEST, PromptSubject, want_of
from compiler.llm.tokens.prompt_tokens import Ask


@dataclass(frozen=True)
class Example:
    """Prompt and measured answer.

    Parameters
    ----------
    subject : PromptSubject
        Layer with its current schedule.
    answer : tuple of str
        Answer tokens: changes, or a program.
    ratio : float
        Cycles with the answer, divided by the current cycles.
    best : bool
        True if no measured answer takes fewer cycles.
    ask : Ask
        Type of the answer.
    outline : tuple of str
        Summary tokens of the program in question, if any.
    known : bool
        True if the current cost is known and included in the prompt.
    """

    subject: PromptSubject
    answer: tuple[str, ...]
    ratio: float
    best: bool
    ask: Ask = Ask.SCHEDULE
    outline: tuple[str, ...] = ()
    known: bool = True

    def question(self, *, profile: bool = True, want: bool = True, best: bool = False) -> list[str]:
        """Return the prompt tokens; without `want` the target is always the best."""
        wanted = BEST if best or not want else want_of(self.ratio)
        profile = profile and self.known
        return self.subject.words(wanted, profile=profile, ask=self.ask, outline=self.outline)
