"""Issue queue of macro-instructions that wait for their programs or are in the ring; inputs and outputs of stages."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.split_programs import ProgramPart
from compiler.runtime.stages import Stage
from compiler.serving.request import Arrays, Clock, InFlightRequest
from compiler.serving.resident_programs import ResidentPrograms
from compiler.serving.versions import Buffers, coded
from cosim.device import DeviceTimeoutError
from cosim.driver import Driver
from cosim.status import TrapReport
from hw.errors import WorkError

_MASK = 0xFFFFFFFF

#: Cycles between polls while a program waits for room in the instruction store.
_POLL_CYCLES = 128
#: Timeout in cycles; it exceeds the time after which the machine's watchdog stops any macro-instruction.
_TIMEOUT_CYCLES = 1 << 27
#: Number of queued macro-instructions that are considered when choosing a program to evict.
_LOOKAHEAD = 256
#: Minimum number of cycles over which the share of stalled cycles is measured.
_STRETCH_CYCLES = 512


@dataclass(frozen=True)
class QueuedMacro:
    """Queued macro-instruction; `last` is True for the last macro-instruction of a stage."""

    flight: InFlightRequest
    stage: int
    part: ProgramPart
    operands: tuple[int, ...]
    last: bool


class IssueQueue:
    """Sends macro-instructions in order, each after its program has been loaded into the instruction store.

    Parameters
    ----------
    driver : Driver
        Driver of the serving machine.

    Attributes
    ----------
    timeout_cycles : int
        Timeout of a macro-instruction in cycles.
    """

    def __init__(self, driver: Driver):
        self.driver, self.resident_programs = driver, ResidentPrograms(driver)
        self.timeout_cycles = _TIMEOUT_CYCLES
        self._clock = Clock()
        self._seen = 0, 0, 1.0  # device.cycle and device.stalled_cycles when _stretch was last computed
        self._pending: deque[QueuedMacro] = deque()
        self._ring: deque[tuple[int, QueuedMacro]] = deque()

    @property
    def empty(self) -> bool:
        """True if no macro-instruction is queued or in the ring."""
        return not self._pending and not self._ring

    @property
    def needed(self) -> list[ProgramPart]:
        """Programs of the queued macro-instructions, in order."""
        return [macro.part for macro in self._pending]

    def append(self, macro: QueuedMacro) -> None:
        """Append a macro-instruction to the queue."""
        self._pending.append(macro)

    def send(self) -> None:
        """Move macro-instructions into the ring, loading their programs where there is room.

        Raises
        ------
        WorkError
            A program does not fit into the instruction store, although nothing is running.
        """
        sent = False
        while self._pending and len(self._ring) < self.driver.ring_slots:
            part = self._pending[0].part
            if part not in self.resident_programs:
                if sent:  # the machine has work while the next program is loaded
                    self.driver.doorbell()
                    sent = False
                soon = self.needed[:_LOOKAHEAD]
                if not self.resident_programs.load(part, soon=soon):
                    if not self._ring:
                        words = sum(len(program.words) for program in part.programs)
                        raise WorkError(f"program {part.program.name!r} of {words} words: no room for it")
                    break
            macro = self._pending.popleft()
            number = self.driver.enqueue(
                self.resident_programs.opcode(part),
                macro.operands,
                tag=part.tag,
                irq=macro.last or bool(self._ring),
            )
            self.resident_programs.expect(part)
            self._ring.append((number, macro))
            sent = True
        if sent:
            self.driver.doorbell()

    def completed(self) -> tuple[list[QueuedMacro], bool]:
        """Return the macro-instructions completed since the last call, and True if a macro-instruction has trapped."""
        done: list[QueuedMacro] = []
        while self._ring:
            number, macro = self._ring[0]
            record = self.driver.completion(number)
            if record is None:
                break
            if record.trap:
                return done, True
            self._ring.popleft()
            self.resident_programs.complete(macro.part)
            name = macro.part.programs[record.candidate].name
            times = record.started, record.retired
            self._clock.time(macro.flight, name, *times, self._stretch(), record.micros)
            done.append(macro)
        return done, False

    def _stretch(self) -> float:
        """Return the number of cycles per cycle of the chip's clock in the last interval of sufficient length."""
        device, (cycle, stalled, stretch) = self.driver.device, self._seen
        passed = device.cycle - cycle
        if passed >= _STRETCH_CYCLES:
            stretch = passed / max(passed - (device.stalled_cycles - stalled), 1)
            self._seen = device.cycle, device.stalled_cycles, stretch
        return stretch

    def wait(self) -> None:
        """Block until a macro-instruction may have completed.

        Raises
        ------
        DeviceTimeoutError
            No macro-instruction has completed within the timeout.
        """
        if self._pending:
            self.driver.device.wait_irq(_POLL_CYCLES)
        elif not self.driver.device.wait_irq(self.timeout_cycles):
            raise DeviceTimeoutError(
                f"no macro-instruction has completed within {self.timeout_cycles} cycles"
            )
        self.driver.set("IRQ_STATUS", self.driver.get("IRQ_STATUS"))

    def trap(self) -> tuple[TrapReport, InFlightRequest]:
        """Resume the machine after a trap; return the report and the affected request."""
        self.driver.set("IRQ_STATUS", self.driver.get("IRQ_STATUS"))
        report = self.driver.trap()
        macros = dict(self._ring)
        macro = macros.get(report.macro, self._ring[0][1])
        self.driver.resume()
        return report, macro.flight

    def clear(self) -> None:
        """Run all macro-instructions in the ring, ignoring traps; discard their results and empty the queue."""
        self.driver.run(resume=True)
        self._ring.clear()
        self._pending.clear()
        self.resident_programs.forget_expected()


class StageIO:
    """Runs stages of requests on the machine.

    Parameters
    ----------
    driver : Driver
        Driver of the serving machine.
    queue : IssueQueue
        Queue for the macro-instructions.
    buffers : Buffers
        Input and output buffers of the requests.
    """

    def __init__(self, driver: Driver, queue: IssueQueue, buffers: Buffers):
        self.driver, self.queue, self.buffers = driver, queue, buffers

    def issue(self, flight: InFlightRequest, stage: Stage, inputs: Arrays) -> None:
        """Write the inputs of a stage to its buffers and queue its macro-instructions."""
        number = next(i for i, each in enumerate(coded(flight.version.network)) if each.code is stage.code)
        flight.stage, code = stage, stage.code
        flight.issued_at = self.driver.device.cycle - self.driver.device.stalled_cycles & _MASK
        assert code is not None
        operands = (
            *self.buffers.operands(flight.version, number, flight.slot),
            *flight.network.count(flight.count),
        )
        for tensor in stage.inputs:
            self.driver.put(inputs[tensor.name], operands[code.operand_numbers[tensor.name]])
        for part in code.parts:
            self.queue.append(QueuedMacro(flight, number, part, operands, part is code.parts[-1]))

    def read_outputs(self, macro: QueuedMacro) -> dict[str, NDArray]:
        """Read the outputs of a stage whose last macro-instruction has completed."""
        stage, places = macro.flight.stage, macro.operands
        assert stage is not None and stage.code is not None
        macro.flight.runs[macro.stage] += 1
        return {
            tensor.name: self.driver.fetch(
                places[stage.code.operand_numbers[tensor.name]], tensor.shape, np.dtype(tensor.dtype)
            )
            for tensor in stage.outputs
        }
