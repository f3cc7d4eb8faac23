"""A stream of images: the ring is kept full, results are taken as they come."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cosim.device import DeviceTimeoutError
from cosim.driver import Driver
from cosim.reports import TrapError
from scripts.sim_library import Macro

_TIMEOUT_CYCLES = 2_000_000
_IRQ_TRAP = 2


@dataclass(frozen=True)
class Done:
    """An image that has come out: when its first macro-instruction started and when each retired."""

    number: int
    image: int
    started: int
    retired: tuple[int, ...]

    @property
    def cycles(self) -> int:
        """Cycles from start to end; images may overlap."""
        return self.retired[-1] - self.started & 0xFFFFFFFF

    @property
    def steps(self) -> list[int]:
        """Cycles of each macro-instruction, from the end of the one before."""
        before = (self.started, *self.retired)
        return [end - start & 0xFFFFFFFF for start, end in zip(before, self.retired, strict=False)]


@dataclass(frozen=True)
class _Flight:
    number: int
    image: int
    macros: range


class Stream:
    """Images on their way through the machine.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    """

    def __init__(self, driver: Driver):
        self._driver = driver
        self._flights: deque[_Flight] = deque()
        self._slots = driver.ring_slots
        #: Number of the next image; the first is 1, so that operands left out are less.
        self.next_number = 1

    def room(self, macros: int) -> bool:
        """Whether the ring has room for an image of so many macro-instructions."""
        return sum(len(flight.macros) for flight in self._flights) + macros <= self._slots

    @property
    def flights(self) -> int:
        """Images on their way."""
        return len(self._flights)

    def submit(self, image: int, macros: Sequence[Macro]) -> None:
        """Let an image follow those before it."""
        *others, last = macros
        for macro in others:
            self._driver.enqueue(macro.opcode, macro.operands)
        end = self._driver.enqueue(last.opcode, last.operands, irq=True)
        self._driver.doorbell()
        self._flights.append(_Flight(self.next_number, image, range(end - len(others), end + 1)))
        self.next_number += 1

    def results(self) -> list[Done]:
        """Images that have come out since the last call; waits for one if there are any on their way.

        Raises
        ------
        TrapError
            A program trapped.
        DeviceTimeoutError
            Nothing came out in time.
        """
        done = self._finished()
        while not done and self._flights:
            if not self._driver.device.wait_irq(_TIMEOUT_CYCLES):
                raise DeviceTimeoutError(
                    f"image {self._flights[0].image} has not come out within {_TIMEOUT_CYCLES} cycles"
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
            flight = self._flights[0]
            found = [self._driver.completion(number) for number in flight.macros]
            records = [record for record in found if record is not None]
            if len(records) < len(found):
                break
            retired = tuple(record.retired for record in records)
            done.append(Done(flight.number, flight.image, records[0].started, retired))
            self._flights.popleft()
        return done
