"""What is served as JSON lines: one for each request, one for each decision."""

import hashlib
import json
from typing import IO

import numpy as np
from numpy.typing import NDArray

from compiler.serve.events import Document
from compiler.serve.flight import Result
from compiler.serve.listener import Listener

SCHEMA_VERSION = 1


class Lines(Listener):
    """Writes lines.

    Parameters
    ----------
    stream : file
        Where they go.
    clocked : bool
        Whether the machine has a clock.
    """

    def __init__(self, stream: IO[str], *, clocked: bool):
        self.stream, self.clocked = stream, clocked

    def result(self, result: Result) -> None:
        """A request's line."""
        self.event(
            {
                "index": result.index,
                "cycles": result.cycles if self.clocked else None,
                "delay_cycles": result.delay if self.clocked else None,
                "together": result.together,
                "version": result.version.number,
                "programs": list(result.version.digests),
                "outputs": {name: _sha256(array) for name, array in result.outputs.items()},
            }
        )

    def event(self, document: Document) -> None:
        """A decision's line."""
        print(json.dumps({"schema_version": SCHEMA_VERSION, **document}), file=self.stream, flush=True)


def _sha256(array: NDArray) -> str:
    """Of the bytes in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()
