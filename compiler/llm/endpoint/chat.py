"""Chat history that drops its middle when it exceeds the context."""

from compiler.llm.endpoint.budget import estimated_tokens
from compiler.llm.endpoint.client import Message

#: Tokens that a server may add per message.
_AROUND = 8


class Chat:
    """Chat history.

    Parameters
    ----------
    beginning : list of Message
        Initial messages, which are never dropped.
    room : int
        Maximum number of tokens of all messages.
    """

    def __init__(self, beginning: list[Message], room: int):
        self.beginning, self.room = beginning, room
        self._turns: list[list[Message]] = []

    @property
    def messages(self) -> list[Message]:
        """Return the messages that fit: the beginning and the latest turns."""
        room = self.room - _size(self.beginning)
        kept: list[Message] = []
        for turn in reversed(self._turns):
            room -= _size(turn)
            if room < 0:
                break
            kept = turn + kept
        return self.beginning + kept

    def add(self, answer: str, reply: str) -> None:
        """Add a turn: the answer of the model and the reply to it; long texts are truncated."""
        most = max(self.room - _size(self.beginning), 0)
        shortened = answer[: max(most - estimated_tokens(reply), 0)]
        self._turns.append(
            [
                {"role": "assistant", "content": shortened or "..."},
                {"role": "user", "content": reply[:most]},
            ]
        )


def _size(messages: list[Message]) -> int:
    return sum(estimated_tokens(message["content"]) + _AROUND for message in messages)
