"""A stream of images: the ring is kept full, results are taken as they come."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cosim.device import DeviceTimeoutError
from cosim.driver import Driver
from cosim.reports import TrapError
from scripts.sim_memory import ImageMemory

_TIMEOUT_CYCLES = 2_000_000
_IRQ_TRAP = 2
#: Images on their way at most.
_AHEAD = 4


@dataclass(frozen=True)
class Done:
    """An image that has come out: which segment's program did it, from which cycle to which."""

    image: int
    segment: int
    started: int
    retired: int

    @property
    def cycles(self) -> int:
        """Cycles from start to end."""
        return self.retired - self.started & 0xFFFFFFFF


class Stream:
    """Images on their way through the machine, a macro-instruction each.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    memory : ImageMemory
        Where the images are.
    """

    def __init__(self, driver: Driver, memory: ImageMemory):
        self._driver, self._memory = driver, memory
        #: Image and number of its macro-instruction.
        self._flights: deque[tuple[int, int]] = deque()

    @property
    def flights(self) -> int:
        """Images on their way."""
        return len(self._flights)

    @property
    def room(self) -> int:
        """How many images may still be sent."""
        return _AHEAD - self.flights

    def submit(self, opcode: int, image: int) -> None:
        """Let an image follow those before it."""
        macro = self._driver.enqueue(opcode, self._memory.operands(image), irq=True, doorbell=True)
        self._flights.append((image, macro))

    def flow(self, opcode: int, images: Iterable[int], each: Callable[[Done], None]) -> None:
        """Send images through the machine; `each` gets those that come out, others on their way included."""
        for image in images:
            while not self.room:
                self._take(each)
            self.submit(opcode, image)
        while self._flights:
            self._take(each)

    def _take(self, each: Callable[[Done], None]) -> None:
        for done in self._results():
            each(done)

    def _results(self) -> list[Done]:
        """Images that have come out since the last call; waits for one.

        Raises
        ------
        TrapError
            A program trapped.
        DeviceTimeoutError
            Nothing came out in time.
        """
        done = self._finished()
        while not done:
            if not self._driver.device.wait_irq(_TIMEOUT_CYCLES):
                raise DeviceTimeoutError(
                    f"image {self._flights[0][0]} has not come out within {_TIMEOUT_CYCLES} cycles"
                )
            events = self._driver.get("IRQ_STATUS")
            self._driver.set("IRQ_STATUS", events)
            if events & _IRQ_TRAP:
                raise TrapError(self._driver.trap())
            done = self._finished()
        return done

    def _finished(self) -> list[Done]:
        done = []
        while self._flights:
            image, macro = self._flights[0]
            record = self._driver.completion(macro)
            if record is None:
                break
            done.append(Done(image, record.program, record.started, record.retired))
            self._flights.popleft()
        return done
