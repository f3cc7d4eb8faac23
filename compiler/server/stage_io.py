"""Stages of requests as macro-instructions: inputs into the buffers, outputs out of them."""

import numpy as np
from numpy.typing import NDArray

from compiler.runtime.stages import Stage
from compiler.server.issue_queue import IssueQueue, QueuedMacro
from compiler.server.request import Arrays, InFlightRequest
from compiler.server.versions import Buffers, coded
from cosim.driver import Driver

_MASK = 0xFFFFFFFF


class StageIO:
    """Has the machine carry out stages of requests.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    line : Line
        Where macro-instructions go.
    buffers : Buffers
        Of the requests.
    """

    def __init__(self, driver: Driver, line: IssueQueue, buffers: Buffers):
        self.driver, self.line, self.buffers = driver, line, buffers

    def make(self, flight: InFlightRequest, stage: Stage, inputs: Arrays) -> None:
        """Put the inputs of a request's stage where its version's programs look, and append these to the line."""
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
        """Outputs of a stage whose last macro-instruction has completed."""
        stage, places = macro.flight.stage, macro.operands
        assert stage is not None and stage.code is not None
        macro.flight.runs[macro.stage] += 1
        return {
            tensor.name: self.driver.fetch(
                places[stage.code.places[tensor.name]], tensor.shape, np.dtype(tensor.dtype)
            )
            for tensor in stage.outputs
        }
