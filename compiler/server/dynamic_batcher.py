"""Requests of one sample each that go through the machine together, as many as wait and a batch takes."""

from collections import deque
from dataclasses import replace

from compiler.runtime.batching import split_batch, stack_batch
from compiler.server.request import Arrays, RequestResult
from compiler.server.server import Server


class DynamicBatcher:
    """Requests for a server of a network that takes several samples at a time.

    A request goes at once if the server has room for one more; those that come while it has none go together, if that
    is less work for each. How many they are is an operand: the machine takes the program for as few as will do.

    Parameters
    ----------
    server : Server
        Nobody else makes requests of it.
    """

    def __init__(self, server: Server):
        self.server = server
        self._waiting: list[Arrays] = []
        self._sent: deque[list[Arrays]] = deque()
        self.submitted = 0

    def submit(self, inputs: Arrays) -> None:
        """A request behind the others; waits until there is room for it.

        Raises
        ------
        InputError
            An input is missing, one too many, or not of the model's shape and type.
        """
        network, server = self.server.current.network, self.server
        self._waiting.append(network.check_sample(inputs))
        self.submitted += 1
        if server.busy < server.flights or len(self._waiting) == network.batch:
            self._send()

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Requests that have come out since the last call, in order; if asked, waits for all."""
        while wait and self._waiting:
            self._send()
        out = [each for result in self.server.results(wait=wait) for each in self._each(result)]
        if self._waiting and self.server.busy < self.server.flights:
            self._send()
        return out

    def _send(self) -> None:
        count = self.server.current.network.together(len(self._waiting))
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self._sent.append(group)
        self.server.submit(stack_batch(self.server.current.network, group), len(group))

    def _each(self, result: RequestResult) -> list[RequestResult]:
        """The requests that went together."""
        group = self._sent.popleft()
        first = self.submitted - len(self._waiting) - sum(map(len, self._sent)) - len(group)
        parts = split_batch(result.version.network, result.outputs, len(group))
        return [
            replace(result, index=first + number, inputs=inputs, outputs=outputs, together=len(group))
            for number, (inputs, outputs) in enumerate(zip(group, parts, strict=True))
        ]
