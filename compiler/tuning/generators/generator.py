"""Base class of generators, with their tasks and the candidates that they propose."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.pipeline import ModelCompiler
from compiler.profile.counters import bound
from compiler.profile.measurement import HardwareProfile, Measurement, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from hw.isa.counters import CAUSES
from hw.isa.program import Program


@dataclass(frozen=True)
class Candidate:
    """Proposed schedule of a network.

    Parameters
    ----------
    schedule : Schedule
        Complete schedule of the network, including program texts.
    generator : str
        Name of the generator.
    description : str
        Short description of the change.
    predicted : float or None
        Predicted cycles of the network; None if not predicted.
    """

    schedule: Schedule
    generator: str
    description: str
    predicted: float | None = None


@dataclass(frozen=True, eq=False)
class GeneratorTask:
    """Optimization task: a layer, a pair, a chain, or all layers of a network.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model; raises InputError for schedules that cannot be compiled.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    schedule : Schedule
        Current schedule of the network.
    layers : tuple of str
        Names of the layers to optimize.
    measured : Measurement
        Measurement of the current schedule.
    goal : Objective
        Metric to minimize.
    seed : int
        Seed of the generator's random choices.
    constraints : Constraints
        Transformations that no candidate may use.
    """

    prepared: ModelCompiler
    conditions: HardwareProfile
    schedule: Schedule
    layers: tuple[str, ...]
    measured: Measurement
    goal: Objective = Objective.LATENCY
    seed: int = 0
    constraints: Constraints = UNCONSTRAINED

    @property
    def where(self) -> dict[str, int]:
        """Cycles of the layers by cause, including layers that share a counter tag with one of them."""
        entries = [entry for entry in self.measured.layers if set(entry.names) & set(self.layers)]
        return {cause: sum(entry.where.get(cause, 0) for entry in entries) for cause in CAUSES}

    @property
    def bound(self) -> str:
        """Bottleneck of the layers, as in reports: compute, bus, bank, weight_shift, fuse or dispatch."""
        return bound(self.where)

    @cached_property
    def network(self) -> CompiledNetwork:
        """Network compiled under the current schedule."""
        return self.prepared.network(self.schedule)

    @cached_property
    def _generated(self) -> dict[str, Program]:
        """Programs by name, as the code generator produces them, before program texts replace any."""
        network = self.prepared.network(replace(self.schedule, programs={}))
        return {program.name: program for code in network.codes for program in code.programs}

    @cached_property
    def layers_of(self) -> dict[str, tuple[str, ...]]:
        """Names of the layers that each program executes, for all programs that execute a layer of the task."""
        found = self.network.layers_of
        return {program: layers for program, layers in found.items() if set(layers) & set(self.layers)}

    @cached_property
    def programs(self) -> dict[str, str]:
        """Assembly texts of the programs in `layers_of`, by name."""
        return {
            program.name: program_text(program)
            for code in self.network.codes
            for program in code.programs
            if program.name in self.layers_of
        }

    def with_layers(
        self,
        layers: Mapping[str, LayerSchedule],
        generator: str,
        description: str,
        fusions: tuple[tuple[str, ...], ...] | None = None,
    ) -> Candidate:
        """Return a candidate with new schedules of some layers.

        The candidate contains no program texts, since the existing ones were written for the old schedule.

        Parameters
        ----------
        layers : mapping of str to LayerSchedule
            New schedules by layer name; if `fusions` is given, the schedules of all layers of the network.
        generator : str
            Name of the generator.
        description : str
            Short description of the change.
        fusions : tuple of tuple of str, optional
            New fusions of nodes into layers; None: the fusions remain unchanged.
        """
        unchanged = self.schedule.layers if fusions is None else {}
        fusions = self.schedule.fusions if fusions is None else fusions
        return Candidate(Schedule(fusions, {**unchanged, **layers}), generator, description)

    def with_texts(self, texts: Mapping[str, str], generator: str, description: str) -> Candidate:
        """Return a candidate with new assembly texts for some programs, given by program name.

        As for any other candidate, the programs are proved safe and their results are compared with the expected ones.
        """
        replaced = {name: ProgramText(digest_of(self._generated[name]), text) for name, text in texts.items()}
        schedule = replace(self.schedule, programs=self.schedule.programs | replaced)
        return Candidate(schedule, generator, description)


@dataclass(frozen=True)
class GeneratorFailure:
    """Failure of a generator, which a search no longer queries.

    Parameters
    ----------
    generator : str
        Name of the generator.
    reason : str
        Message of the error that the generator raised.
    """

    generator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.generator} is left out: {self.reason}"


class Generator(ABC):
    """Base class of generators, which propose schedules or micro-programs (as assembly text) for a task.

    A subclass defines `name` and `propose`. Pass it to `compiler.tune(generator=...)` or `mla tune --generator
    module:Class`. A search no longer queries a generator that raises an exception.

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

    #: Name of the generator on the command line and in reports.
    name: str

    @abstractmethod
    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield candidates, the most promising first; `observe` is called between successive candidates.

        Candidates need not be valid or correct: an invalid one costs at most one measurement.
        """

    def observe(self, candidate: Candidate, result: Result) -> None:  # noqa: B027  optional
        """Receive the result of a candidate: a Measurement, or a Rejected with the stage and the reason."""
