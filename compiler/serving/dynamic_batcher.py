"""Dynamic batching: waiting single-sample requests are combined into batches."""

from collections import deque
from dataclasses import replace

from compiler.runtime.compiled import split_batch, stack_batch
from compiler.serving.request import Arrays, RequestResult
from compiler.serving.server import Server


class DynamicBatcher:
    """Combines single-sample requests for a server whose network has a batch dimension.

    A request is submitted immediately if the server has a free slot. Requests that arrive while no slot is free are
    batched if that reduces the work per request. The hardware selects the smallest sufficient program by the number of
    samples, which is an operand of the macro-instruction.

    Parameters
    ----------
    server : Server
        Server that receives requests from this batcher only.
    """

    def __init__(self, server: Server):
        self.server = server
        self._waiting: list[Arrays] = []
        self._sent: deque[list[Arrays]] = deque()
        self.submitted = 0

    def submit(self, inputs: Arrays) -> None:
        """Queue a request; block while the server has no free slot and the batch is full.

        Raises
        ------
        InputError
            An input is missing or unknown, or its shape or type differs from the model's.
        """
        network, server = self.server.current.network, self.server
        self._waiting.append(network.check_sample(inputs))
        self.submitted += 1
        if server.busy < server.max_in_flight or len(self._waiting) == network.batch:
            self._send()

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, block until all requests are complete."""
        while wait and self._waiting:
            self._send()
        out = [each for result in self.server.results(wait=wait) for each in self._each(result)]
        if self._waiting and self.server.busy < self.server.max_in_flight:
            self._send()
        return out

    def _send(self) -> None:
        count = self.server.current.network.best_batch(len(self._waiting))
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self._sent.append(group)
        self.server.submit(stack_batch(self.server.current.network, group), len(group))

    def _each(self, result: RequestResult) -> list[RequestResult]:
        """Split the result of a batch into the results of its requests."""
        group = self._sent.popleft()
        first = self.submitted - len(self._waiting) - sum(map(len, self._sent)) - len(group)
        parts = split_batch(result.version.network, result.outputs, len(group))
        return [
            replace(result, index=first + number, inputs=inputs, outputs=outputs, batch_size=len(group))
            for number, (inputs, outputs) in enumerate(zip(group, parts, strict=True))
        ]
