"""Issues stages of requests as macro-instructions and transfers their inputs and outputs."""

import numpy as np
from numpy.typing import NDArray

from compiler.runtime.stages import Stage
from compiler.server.issue_queue import IssueQueue, QueuedMacro
from compiler.server.request import Arrays, InFlightRequest
from compiler.server.versions import Buffers, coded
from cosim.driver import Driver

_MASK = 0xFFFFFFFF


class StageIO:
    """Runs stages of requests on the machine.

    Parameters
    ----------
    driver : Driver
        Driver of the serving machine.
    line : IssueQueue
        Queue for the macro-instructions.
    buffers : Buffers
        Input and output buffers of the requests.
    """

    def __init__(self, driver: Driver, line: IssueQueue, buffers: Buffers):
        self.driver, self.line, self.buffers = driver, line, buffers

    def make(self, flight: InFlightRequest, stage: Stage, inputs: Arrays) -> None:
        """Write the inputs of a stage to its buffers and queue its macro-instructions."""
        number = next(i for i, each in enumerate(coded(flight.version.network)) if each is stage)
        flight.stage, code = stage, stage.code
        flight.asked = self.driver.device.cycle & _MASK
        assert code is not None
        operands = (
            *self.buffers.operands(flight.version, number, flight.slot),
            *flight.version.network.count(flight.count),
        )
        for tensor in stage.inputs:
            self.driver.put(inputs[tensor.name], operands[code.places[tensor.name]])
        for part in code.parts:
            self.line.append(QueuedMacro(flight, number, part, operands, part is code.parts[-1]))

    def answer(self, macro: QueuedMacro) -> dict[str, NDArray]:
        """Read the outputs of a stage whose last macro-instruction has completed."""
        stage, places = macro.flight.stage, macro.operands
        assert stage is not None and stage.code is not None
        macro.flight.runs[macro.stage] += 1
        return {
            tensor.name: self.driver.fetch(
                places[stage.code.places[tensor.name]], tensor.shape, np.dtype(tensor.dtype)
            )
            for tensor in stage.outputs
        }
