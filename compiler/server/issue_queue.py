"""Macro-instructions that wait for their programs, and those in the ring."""

from collections import deque
from dataclasses import dataclass

from compiler.codegen.split_programs import ProgramPart
from compiler.server.program_cache import ResidentPrograms
from compiler.server.request import Clock, InFlightRequest
from cosim.device import DeviceTimeoutError
from cosim.driver import Driver
from cosim.status import TrapReport
from hw.errors import WorkError

#: Cycles between two looks while a program waits for room in the instruction store.
_POLL_CYCLES = 128
#: Nothing takes longer: the machine's watchdog stops it before.
_TIMEOUT_CYCLES = 1 << 27
#: Programs that are looked ahead for when one has to leave.
_AHEAD = 256


@dataclass(frozen=True)
class QueuedMacro:
    """A macro-instruction: `last` of its stage or not."""

    flight: InFlightRequest
    stage: int
    part: ProgramPart
    operands: tuple[int, ...]
    last: bool


class IssueQueue:
    """Sends macro-instructions in order, each once its program is in the instruction store.

    Parameters
    ----------
    driver : Driver
        The machine's driver.

    Attributes
    ----------
    patience : int
        Cycles after which a macro-instruction is waited for no longer.
    """

    def __init__(self, driver: Driver):
        self.driver, self.residency = driver, ResidentPrograms(driver)
        self.patience = _TIMEOUT_CYCLES
        self._clock = Clock()
        self._pending: deque[QueuedMacro] = deque()
        self._ring: deque[tuple[int, QueuedMacro]] = deque()

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self._pending and not self._ring

    @property
    def needed(self) -> list[ProgramPart]:
        """Programs of what waits, in order."""
        return [macro.part for macro in self._pending]

    def append(self, macro: QueuedMacro) -> None:
        """Let a macro-instruction follow the others."""
        self._pending.append(macro)

    def send(self) -> None:
        """Put into the ring what has its program; brings programs in where there is room.

        Raises
        ------
        WorkError
            A program does not fit, although nothing is on its way.
        """
        sent = False
        while self._pending and len(self._ring) < self.driver.ring_slots:
            part = self._pending[0].part
            if part not in self.residency:
                if sent:  # the machine has work while the next program comes
                    self.driver.doorbell()
                    sent = False
                soon = self.needed[:_AHEAD]
                if not self.residency.bring(part, soon=soon):
                    if not self._ring:
                        words = sum(len(program.words) for program in part.programs)
                        raise WorkError(f"program {part.program.name!r} of {words} words: no room for it")
                    break
            macro = self._pending.popleft()
            number = self.driver.enqueue(
                self.residency.opcode(part),
                macro.operands,
                tag=part.tag,
                irq=macro.last or bool(self._ring),
            )
            self.residency.expect(part)
            self._ring.append((number, macro))
            sent = True
        if sent:
            self.driver.doorbell()

    def completed(self) -> tuple[list[QueuedMacro], bool]:
        """What has completed since the last call, up to what a trap hit; whether there was one."""
        done: list[QueuedMacro] = []
        while self._ring:
            number, macro = self._ring[0]
            record = self.driver.completion(number)
            if record is None:
                break
            if record.trap:
                return done, True
            self._ring.popleft()
            self.residency.done(macro.part)
            name = macro.part.programs[record.candidate].name
            self._clock.time(macro.flight, name, record.started, record.retired)
            done.append(macro)
        return done, False

    def wait(self) -> None:
        """Let time pass until something may have completed.

        Raises
        ------
        DeviceTimeoutError
            Nothing did.
        """
        if self._pending:
            self.driver.device.wait_irq(_POLL_CYCLES)
        elif not self.driver.device.wait_irq(self.patience):
            raise DeviceTimeoutError(f"no macro-instruction has completed within {self.patience} cycles")
        self.driver.set("IRQ_STATUS", self.driver.get("IRQ_STATUS"))

    def trap(self) -> tuple[TrapReport, InFlightRequest]:
        """What the machine has stopped for, and the request it happened in; the machine goes on."""
        self.driver.set("IRQ_STATUS", self.driver.get("IRQ_STATUS"))
        report = self.driver.trap()
        macros = dict(self._ring)
        macro = macros.get(report.macro, self._ring[0][1])
        self.driver.resume()
        return report, macro.flight

    def clear(self) -> None:
        """Let everything in the ring come to its end, whatever that is, and forget it and what waits."""
        self.driver.run(resume=True)
        self._ring.clear()
        self._pending.clear()
        self.residency.forget_expected()
