"""What a generator is asked: some layers of a network, how they are carried out now, and what that costs."""

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
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from hw.isa.counters import CAUSES
from hw.isa.program import Program


@dataclass(frozen=True)
class Candidate:
    """Another way to carry out a network.

    Parameters
    ----------
    schedule : Schedule
        All of it, texts of programs included.
    generator : str
        Who proposes it.
    description : str
        What is other than before, in a few words.
    predicted : float or None
        Cycles of the network, if they were predicted.
    """

    schedule: Schedule
    generator: str
    description: str
    predicted: float | None = None


@dataclass(frozen=True, eq=False)
class GeneratorTask:
    """A layer, a pair, a chain, or all of a network, to be carried out at less cost.

    Parameters
    ----------
    prepared : Prepared
        The model: compiles any schedule of it, or says why it cannot be.
    conditions : Conditions
        The machine and its memory.
    schedule : Schedule
        How the network is carried out now.
    layers : tuple of str
        The layers that are asked about.
    measured : Measurement
        Of that schedule.
    goal : Goal
        What is to be small.
    seed : int
        Of what a generator draws.
    constraints : Constraints
        What must not be changed.
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
        """Cycles of the layers by cause; those that share a tag with one of them count too."""
        entries = [entry for entry in self.measured.layers if set(entry.names) & set(self.layers)]
        return {cause: sum(entry.where.get(cause, 0) for entry in entries) for cause in CAUSES}

    @property
    def bound(self) -> str:
        """What holds the layers up most, in the words of reports."""
        return bound(self.where)

    @cached_property
    def network(self) -> CompiledNetwork:
        """The network as it is now."""
        return self.prepared.network(self.schedule)

    @cached_property
    def _made(self) -> dict[str, Program]:
        """The programs that the code generator makes, which texts are to stand in place of."""
        network = self.prepared.network(replace(self.schedule, programs={}))
        return {program.name: program for code in network.codes for program in code.programs}

    @cached_property
    def layers_of(self) -> dict[str, tuple[str, ...]]:
        """Layers that each program has a part in, of those programs that have one in the layers asked about."""
        found = self.network.layers_of
        return {program: layers for program, layers in found.items() if set(layers) & set(self.layers)}

    @cached_property
    def programs(self) -> dict[str, str]:
        """Their texts."""
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
        """Other schedules of some layers; with other fusions, those of all layers that there are then.

        Texts of programs are left out: what they were written for is made anew.
        """
        kept = self.schedule.layers if fusions is None else {}
        fusions = self.schedule.fusions if fusions is None else fusions
        return Candidate(Schedule(fusions, {**kept, **layers}), generator, description)

    def with_texts(self, texts: Mapping[str, str], generator: str, description: str) -> Candidate:
        """Other texts of some programs, by name; what comes of them is proved and compared like anything else."""
        given = {name: ProgramText(digest_of(self._made[name]), text) for name, text in texts.items()}
        schedule = replace(self.schedule, programs=self.schedule.programs | given)
        return Candidate(schedule, generator, description)


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

    def observe(self, candidate: Candidate, result: Result) -> None:  # noqa: B027  most have no use for it
        """What came of a candidate: its cycles by layer and cause, or where and why it was refused."""
