"""A stage of a compiled network on a machine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.codegen.code import Code
from compiler.stages import Stage
from cosim.golden.checks import Window

READ, READ_WRITE = 1, 3


@dataclass
class Loaded:
    """A stage on the accelerator: where its memory is, for each sample its inputs and outputs; how often it ran.

    `taken` counts which candidate of its last program that was, as the machine says.
    """

    stage: Stage
    code: Code
    base: int
    samples: list[dict[str, int]] = field(default_factory=list)
    runs: int = 0
    taken: Counter[int] = field(default_factory=Counter)

    def operands(self, sample: int) -> list[int]:
        """Addresses, the first operands of its macro-instructions."""
        tensors = (*self.stage.inputs, *self.stage.outputs)
        return [self.base, *(self.samples[sample][tensor.name] for tensor in tensors)]

    def windows(self, samples: Sequence[int], most: int) -> list[Window]:
        """The DRAM that the stage's programs may touch, at most `most` windows in the order of their addresses.

        Weights and inputs are read-only, the rest of the stage's memory and the outputs are writable. Where that takes
        more windows than the machine has, the last ones are joined.

        Parameters
        ----------
        samples : sequence of int
            Samples that run one right behind the other; of all from the first to the last of them the buffers are open.
        most : int
            Windows of the machine.
        """
        weights = self.base + self.code.image.size
        found = [(self.base, weights - 1, READ), (weights, self.base + self.code.memory - 1, READ_WRITE)]
        for sample in range(min(samples), max(samples) + 1):
            for tensors, permission in ((self.stage.inputs, READ), (self.stage.outputs, READ_WRITE)):
                spans = [(self.samples[sample][tensor.name], tensor.bytes) for tensor in tensors]
                if spans:
                    found.append((min(spans)[0], max(start + size for start, size in spans) - 1, permission))
        found = [window for window in found if window[0] <= window[1]]
        while len(found) > most:
            (first, _, a), (_, last, b) = found[-2:]
            found[-2:] = [(first, last, a | b)]
        return found

    def address(self, name: str, sample: int) -> int:
        """Where an input or output of a sample lies."""
        return self.operands(sample)[self.code.places[name]]
