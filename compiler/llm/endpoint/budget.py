"""Usage of an endpoint and the remaining budget."""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from compiler.llm.endpoint.settings import SpendingLimits

#: Bytes of text per token, for endpoints that do not report usage; a low estimate.
_BYTES = 3
#: Minimum useful answer length in tokens.
LEAST_ANSWER = 64


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    return ceil(len(text.encode(errors="replace")) / _BYTES)


@dataclass(frozen=True)
class Budget:
    """Usage so far.

    Parameters
    ----------
    requests, failed : int
        Requests sent, and those without a usable answer.
    input_tokens, output_tokens : int
        Tokens reported by the endpoint, or estimated.
    estimated_requests : int
        Number of requests whose tokens were estimated.
    seconds : float
        Time spent waiting for answers.
    """

    requests: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_requests: int = 0
    seconds: float = 0.0

    def plus(self, **more: float) -> "Budget":
        """Return the usage with some fields increased."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})

    def cost(self, limits: SpendingLimits) -> float | None:
        """Return the cost in the currency of the prices; None without prices."""
        prices = limits.prices
        if prices is None:
            return None
        return (self.input_tokens * prices.input + self.output_tokens * prices.output) / 1e6

    def used_up(self, limits: SpendingLimits) -> str | None:
        """Return a message about the limit that is reached, or None."""
        for name, value in (
            ("seconds", self.seconds),
            ("requests", self.requests),
            ("tokens", self.input_tokens + self.output_tokens),
            ("cost", self.cost(limits)),
        ):
            limit = getattr(limits, name)
            if limit is not None and value is not None and value >= limit:
                return f"its limit of {name} is used up ({value:,.6g} of {limit:,.6g})"
        return None

    def answer_tokens(self, limits: SpendingLimits, prompt: int, wanted: int) -> int:
        """Return the maximum answer length within all limits; negative if the prompt alone exceeds one."""
        left = limits.tokens - self.input_tokens - self.output_tokens - prompt
        prices, cost = limits.prices, self.cost(limits)
        if limits.cost is not None and prices is not None and cost is not None:
            money = (limits.cost - cost) * 1e6 - prompt * prices.input
            left = min(left, int(money / prices.output) if prices.output else left if money >= 0 else -1)
        return min(left, wanted)

    def document(self, limits: SpendingLimits) -> dict[str, Any]:
        """Return the usage as a JSON object."""
        cost = self.cost(limits)
        return asdict(replace(self, seconds=round(self.seconds, 3))) | {
            "cost": None if cost is None else round(cost, 6)
        }
