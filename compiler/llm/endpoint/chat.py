"""A chat with a model, which forgets its middle when it gets too long."""

from compiler.llm.endpoint.budget import estimated_tokens
from compiler.llm.endpoint.client import Message

#: Tokens that a server may put around a message.
_AROUND = 8


class Chat:
    """What was said so far.

    Parameters
    ----------
    beginning : list of Message
        What is never forgotten.
    room : int
        Tokens of all messages at most.
    """

    def __init__(self, beginning: list[Message], room: int):
        self.beginning, self.room = beginning, room
        self._turns: list[list[Message]] = []

    @property
    def messages(self) -> list[Message]:
        """Those that there is room for: the beginning, and the last turns."""
        room = self.room - _size(self.beginning)
        kept: list[Message] = []
        for turn in reversed(self._turns):
            room -= _size(turn)
            if room < 0:
                break
            kept = turn + kept
        return self.beginning + kept

    def add(self, answer: str, reply: str) -> None:
        """A turn: what the model wrote, and what it is told about that; of long ones the ends are left out."""
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
