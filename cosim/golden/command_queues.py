"""Command queues of the units and the semaphores between them."""

from collections import deque

from cosim.golden.command import Command
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit


class CommandQueues:
    """Queues of commands that have not started, and all semaphores.

    A command starts, executes and retires in a single action, so that unlike in the RTL, signals need no reservations.

    Parameters
    ----------
    depth : int
        Capacity of each queue in commands.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self.commands: tuple[deque[Command], ...] = tuple(deque() for _ in Unit)
        self.clear()

    def clear(self) -> None:
        """Remove all commands and set all semaphores to 0."""
        for queue in self.commands:
            queue.clear()
        # The first index is the consumer; the second index is the semaphore's bit position in a wait mask, producer <<
        # 2 | index.
        self.counts = [[0] * (SEMAPHORES_PER_PAIR * len(Unit)) for _ in range(SEQUENCER + 1)]

    def full(self, unit: int) -> bool:
        """Return True if the queue of a unit is full, so that the sequencer must wait before it issues a command."""
        return len(self.commands[unit]) >= self.depth

    def startable(self, unit: int) -> bool:
        """Return True if the oldest command of a unit can start: its tokens are available and its signals have room."""
        if not self.commands[unit]:
            return False
        head = self.commands[unit][0]
        own = self.counts[unit]
        return all(own[i] for i in head.waits) and all(
            self.counts[i >> 2][unit << 2 | i & 3] < SEMAPHORE_MAX for i in head.signals
        )

    def start(self, unit: int) -> Command:
        """Remove the oldest command of a unit from its queue, take the tokens for which it waits, and return it."""
        command = self.commands[unit].popleft()
        for i in command.waits:
            self.counts[unit][i] -= 1
        return command

    def retire(self, command: Command) -> None:
        """Increment the semaphores that a command signals."""
        for i in command.signals:
            self.counts[i >> 2][command.unit << 2 | i & 3] += 1

    def try_take(self, semaphore: int) -> bool:
        """Take a token from a semaphore of the sequencer; return False if none is available."""
        if not self.counts[SEQUENCER][semaphore]:
            return False
        self.counts[SEQUENCER][semaphore] -= 1
        return True
