"""Where candidates come from: the one interface of everything that proposes ways to carry out a network.

A generator proposes schedules, or micro-programs as text; it never decides what is used. What it proposes is compiled,
proved harmless by the validator, run on the RTL on fresh inputs, compared bit by bit with the golden model, counted and
remembered like any other candidate (`compiler.measure`), and it hears what came of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from compiler.profile.measurement import Result
from compiler.tuning.generators.task import Candidate, GeneratorTask


class Generator(ABC):
    """Proposes candidates for a task: schedules, or micro-programs as assembly text.

    A subclass defines `name` and `propose`; `compiler.tune(generator=...)` and `mla tune --generator
    module:Class` use it.

    Examples
    --------
    >>> class HalfRows(compiler.Generator):
    ...     "Halves the rows of each layer."
    ...     name = "half-rows"
    ...     def propose(self, task):
    ...         for layer in task.layers:
    ...             now = task.schedule.layers[layer]
    ...             half = dataclasses.replace(now, rows=max(1, now.rows // 2))
    ...             yield task.with_layers({layer: half}, self.name, "half the rows")
    >>> result = compiler.tune("network.tflite", "n4", generator=HalfRows, trials=10)
    """

    #: Its name on the command line and in reports.
    name: str

    @abstractmethod
    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Candidates, the most promising first; `tell` is called between one and the next.

        A candidate may be wrong in any way: it costs no more than a measurement.
        """

    def tell(self, candidate: Candidate, result: Result) -> None:  # noqa: B027  most have no use for it
        """What came of a candidate: its cycles by layer and cause, or where and why it was refused."""
