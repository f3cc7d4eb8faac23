"""The units' command queues and the semaphores between them."""

from collections import deque

from cosim.golden.command import Command
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit


class CommandQueues:
    """Commands that have not started, in order, and all semaphores.

    Commands start, run and retire at once, so no signal is ever owed.

    Parameters
    ----------
    depth : int
        Commands a queue holds.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self.commands: tuple[deque[Command], ...] = tuple(deque() for _ in Unit)
        self.clear()

    def clear(self) -> None:
        """Forget commands and tokens."""
        for queue in self.commands:
            queue.clear()
        # First index: consumer; second: producer and number, as in a wait mask.
        self.counts = [[0] * (SEMAPHORES_PER_PAIR * len(Unit)) for _ in range(SEQUENCER + 1)]

    def full(self, unit: int) -> bool:
        """Whether the sequencer must wait to issue."""
        return len(self.commands[unit]) >= self.depth

    def startable(self, unit: int) -> bool:
        """Whether the unit's oldest command can start."""
        if not self.commands[unit]:
            return False
        head = self.commands[unit][0]
        own = self.counts[unit]
        return all(own[i] for i in head.waits) and all(
            self.counts[i >> 2][unit << 2 | i & 3] < SEMAPHORE_MAX for i in head.signals
        )

    def start(self, unit: int) -> Command:
        """Take the unit's oldest command and its tokens."""
        command = self.commands[unit].popleft()
        for i in command.waits:
            self.counts[unit][i] -= 1
        return command

    def retire(self, command: Command) -> None:
        """Give the command's signals."""
        for i in command.signals:
            self.counts[i >> 2][command.unit << 2 | i & 3] += 1

    def take(self, semaphore: int) -> bool:
        """Take a token of the sequencer, if there is one."""
        if not self.counts[SEQUENCER][semaphore]:
            return False
        self.counts[SEQUENCER][semaphore] -= 1
        return True
