"""Base class of generators that use a language model; the generator of a remote one, and its chat history."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from compiler.llm.endpoint.answers import read_answer, request_fields
from compiler.llm.endpoint.client import EndpointClient, LimitError, Message, estimated_tokens
from compiler.llm.endpoint.http import ChatCompletion
from compiler.llm.endpoint.prompt import MeasuredExample, Prompt, best_and_worst, prompt_for, verdict
from compiler.llm.endpoint.settings import Endpoint
from compiler.profile.measurement import Rejected, Result
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from hw.errors import MlaError

#: Maximum number of tokens that a server adds per message.
_TOKENS_PER_MESSAGE = 8


class LanguageModelGenerator(Generator):
    """Generator whose candidates come from a language model, local or remote.

    Attributes
    ----------
    endpoint : Endpoint or None
        Endpoint of a remote model; None if the model runs in this process.
    """

    name = "llm"

    def __init__(self, endpoint: Endpoint | None = None):
        self.endpoint = endpoint

    def check(self) -> None:
        """Check that the model can be used; called before any other work.

        Raises
        ------
        InputError
            The endpoint is not a language model server, rejects the key, or does not exist.
        WorkError
            The endpoint cannot be reached or fails.
        """

    def document(self) -> dict[str, Any] | None:
        """Return usage and cost as a JSON document; None for a model without cost."""
        return None


class Chat:
    """History of a chat, limited in length.

    Parameters
    ----------
    initial : list of Message
        Initial messages, which are never dropped.
    max_tokens : int
        Maximum number of tokens of all messages.
    """

    def __init__(self, initial: list[Message], max_tokens: int):
        self.initial, self.max_tokens = initial, max_tokens
        self._turns: list[list[Message]] = []

    @property
    def messages(self) -> list[Message]:
        """Messages within the limit: the initial messages and the latest turns."""
        max_tokens = self.max_tokens - _size(self.initial)
        recent: list[Message] = []
        for turn in reversed(self._turns):
            max_tokens -= _size(turn)
            if max_tokens < 0:
                break
            recent = turn + recent
        return self.initial + recent

    def add(self, answer: str, reply: str) -> None:
        """Add a turn, which consists of the model's answer and the reply to it; long strings are truncated."""
        limit = max(self.max_tokens - _size(self.initial), 0)
        shortened = answer[: max(limit - estimated_tokens(reply), 0)]
        self._turns.append(
            [
                {"role": "assistant", "content": shortened or "..."},
                {"role": "user", "content": reply[:limit]},
            ]
        )


def _size(messages: list[Message]) -> int:
    return sum(estimated_tokens(message["content"]) + _TOKENS_PER_MESSAGE for message in messages)


#: Maximum number of consecutive failed requests.
_MAX_FAILURES = 3
_PENDING_TEXT = "measurement pending"
_TRUNCATED_TEXT = "the answer was too long and was truncated: write a shorter one"
_NEXT_TEXT = "Propose other changes with a lower cost."


@dataclass
class EndpointTally:
    """Counts of answers, proposed candidates, rejections, and improvements."""

    answers: int = 0
    candidates: int = 0
    refused: int = 0
    better: int = 0


class EndpointModel(LanguageModelGenerator):
    """Generator that prompts a remote model for candidates and replies with the results.

    Requests for a task end after several consecutive answers without improvement, or when a spending limit is reached.

    Parameters
    ----------
    endpoint : Endpoint
        Endpoint of the model.
    say : callable
        Called once with the reason why no further requests are sent.

    Attributes
    ----------
    ended : str or None
        Reason why no further requests are sent; None while requests continue.

    Raises
    ------
    InputError
        The API key is malformed.
    """

    endpoint: Endpoint

    def __init__(self, endpoint: Endpoint, say: Callable[[str], None] = lambda _text: None):
        super().__init__(endpoint)
        self.tally = EndpointTally()
        self.ended: str | None = None
        self._client, self._say = EndpointClient(endpoint), say
        self._pending: dict[str, GeneratorTask] = {}
        self._verdicts: dict[str, str] = {}
        self._examples: dict[tuple[str, ...], list[MeasuredExample]] = {}
        self._failures = 0
        self._error: str | None = None

    def check(self) -> None:
        """Check that the endpoint exists and has the model; raise the errors of `EndpointClient.check`."""
        self._client.check()

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield candidates from the model until several consecutive answers do not improve the cost."""
        max_tokens = self.endpoint.context - self.endpoint.answer
        prompt = None if self.ended else prompt_for(task, self._examples.get(task.layers, []), max_tokens)
        if prompt is None:
            return
        chat = Chat(prompt.messages, max_tokens)
        for _ in range(self.endpoint.retries):
            completion = self._answer(chat, prompt, task.seed)
            if completion is None:
                return
            answer = read_answer(task, prompt.answers, completion.text, self.name)
            if completion.cut:
                answer.complaints.append(_TRUNCATED_TEXT)
            self.tally.refused += len(answer.complaints)
            for candidate in answer.candidates:
                self.tally.candidates += 1
                self._pending[candidate.schedule.to_json()] = task
                yield candidate
            chat.add(
                completion.text,
                "\n".join([*map(self._verdict, answer.candidates), *answer.complaints, _NEXT_TEXT]),
            )

    def observe(self, candidate: Candidate, result: Result) -> None:
        """Store the result of a candidate for the next message; measured schedules become examples."""
        text = candidate.schedule.to_json()
        task = self._pending.pop(text, None)
        if task is None:
            return
        self._verdicts[text] = verdict(task, candidate, result)
        if isinstance(result, Rejected) or not result.valid:
            self.tally.refused += 1
            return
        cost = task.goal.cost(result)
        self.tally.better += cost < task.goal.cost(task.measured)
        examples = [*self._examples.get(task.layers, []), MeasuredExample(candidate.schedule, cost)]
        self._examples[task.layers] = best_and_worst(examples)

    def _verdict(self, candidate: Candidate) -> str:
        """Return the result of a candidate, which may still be pending, as text."""
        return self._verdicts.pop(candidate.schedule.to_json(), f"{candidate.description}: {_PENDING_TEXT}")

    def document(self) -> dict[str, Any]:
        """Return usage, results and cost as a JSON object."""
        return {
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            **vars(self.tally),
            **self._client.usage.document(self.endpoint.limits),
            "ended": self.ended,
            "last_error": self._error,
        }

    def _answer(self, chat: Chat, prompt: Prompt, seed: int) -> ChatCompletion | None:
        """Return the next message of the model; None if the request fails or a limit is reached."""
        fields = {"seed": seed} | request_fields(self.endpoint.grammar, prompt.answers)
        try:
            completion = self._client.chat(chat.messages, **fields)
        except LimitError as error:
            self._end(str(error))
            return None
        except MlaError as error:
            self._failures, self._error = self._failures + 1, str(error)
            if self._failures >= _MAX_FAILURES:
                self._end(str(error))
            return None
        self._failures = 0
        self.tally.answers += 1
        return completion

    def _end(self, reason: str) -> None:
        self.ended = reason
        self._say(f"the language model is no longer queried: {reason}")
