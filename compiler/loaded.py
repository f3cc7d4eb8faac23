"""A stage of a compiled network on a machine."""

from collections import Counter
from dataclasses import dataclass, field

from compiler.codegen.code import Code
from compiler.stages import Stage


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

    def address(self, name: str, sample: int) -> int:
        """Where an input or output of a sample lies."""
        return self.operands(sample)[self.code.places[name]]
