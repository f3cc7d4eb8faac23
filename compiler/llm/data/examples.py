"""Training examples: prompts with measured answers, derived from trajectories of schedules and edits."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from compiler.codegen.semaphores import Issued
from compiler.initial_schedule.initial import tiling_contexts
from compiler.layers.base import Layer
from compiler.llm.assembly.tokenizer import encode_program, straight_line
from compiler.llm.data.held_out import MACHINES
from compiler.llm.data.trajectories import EditTrajectory, Trajectory, non_default, read
from compiler.llm.generate.known_layers import KnownLayer, features_of, read_known_layers
from compiler.llm.generate.program_request import MAX_PROGRAM_TOKENS
from compiler.llm.tokens.layer_prompt import BEST, Ask, PromptSubject, chief, want_of
from compiler.llm.tokens.program_tokens import MAX_EDITS, canonical, encode_edits, summary_tokens
from compiler.llm.tokens.schedule_delta import encode_schedule_delta
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.edits.edit import Edit, apply_edits
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from hw.errors import InputError
from hw.isa.counters import CAUSES


class TrajectoryPrompts:
    """Builder of prompts for layers under the schedules of a trajectory.

    Parameters
    ----------
    trajectory : Trajectory
        Trajectory of the network.
    """

    def __init__(self, trajectory: Trajectory):
        machine = MACHINES[trajectory.machine]
        self._prepared = ModelCompiler(trajectory.point.graph(), machine.conditions.config, machine.options)
        (stage,) = self._prepared.lowered(self._prepared.fusions)
        self.trajectory, self.layers = trajectory, stage.layers
        self._spots = tiling_contexts(self._prepared.config, stage, machine.conditions.dram)
        self._schedules: dict[int, list[LayerSchedule]] = {}

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Return the schedules of all layers in a step.

        Parameters
        ----------
        number : int
            Index of the step.
        """
        if number not in self._schedules:
            self._schedules[number] = self.trajectory.schedules(number)
        return self._schedules[number]

    def network(self, number: int) -> CompiledNetwork:
        """Return the network compiled with the schedule of a step.

        Raises
        ------
        InputError
            The schedule is not legal for this compiler version.
        """
        named = {layer.name: each for layer, each in zip(self.layers, self.schedules(number), strict=True)}
        return self._prepared.network(Schedule(self._prepared.fusions, named))

    def layer_prompt(self, number: int, layer: int) -> PromptSubject | None:
        """Return the prompt of a layer in a step; None if its cycles are not known separately or it has no prompt."""
        step = self.trajectory.steps[number]
        if not step.layers.get(layer):
            return None
        return self.subject(number, layer, dict(zip(CAUSES, step.where[layer], strict=True)))

    def program_prompt(self, number: int, piece: EditableProgram) -> PromptSubject | None:
        """Return the prompt of a program in a step, without its cost; None if it has no prompt."""
        named: Mapping[str, Layer] = {layer.name: layer for layer in self.layers}
        layer = chief([named[name] for name in piece.layers])
        return self.subject(number, self.layers.index(layer), {})

    def subject(self, number: int, layer: int, where: dict[str, int]) -> PromptSubject | None:
        """Return the prompt of a layer in a step, with the given cycles by cause; None if it has no prompt."""
        subject = PromptSubject(self.layers[layer], self._spots[layer], self.schedules(number)[layer], where)
        try:
            subject.tokens(BEST)
        except ValueError:
            return None
        return subject


def with_cost(subject: PromptSubject, where: list[int]) -> PromptSubject:
    """Return a prompt subject with the given cycles by cause."""
    return replace(subject, where=dict(zip(CAUSES, where, strict=True)))


def texts(count: int) -> list[list[str]]:
    """Return the tokens of at most `count` prompts with answers, from networks spread over the corpus."""
    trajectories = read(CORPUS)
    out: list[list[str]] = []
    for trajectory in trajectories[:: max(len(trajectories) // (2 * count), 1)]:
        found = next(examples(trajectory), None)
        if found is not None:
            out.append([*found.prompt(best=True), *found.answer])
        if len(out) == count:
            break
    return out


#: Maximum number of answers for each schedule of a layer, in addition to the best.
_MAX_ANSWERS = 4
CORPUS = Path(__file__).with_name("schedules.xz")


@dataclass(eq=False)
class _Variants:
    """Edited variants of a program, with the commands, edits and tokens of each variant."""

    edited: EditTrajectory
    editable: EditablePrograms
    compiled: Sequence[Issued]
    _programs: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def commands(self) -> list[list[Issued]]:
        """Commands of each variant, indexed by variant number."""
        out: list[list[Issued]] = []
        for each in self.edited.variants:
            before = out[each.base] if each.edit else list(self.compiled)
            out.append(apply_edits(self.editable.config, before, [each.edit] if each.edit else []))
        return out

    @cached_property
    def edits(self) -> list[tuple[Edit, ...]]:
        """Edits that lead from the compiled program to each variant, in canonical form."""
        out: list[tuple[Edit, ...]] = []
        for each in self.edited.variants:
            if each.edit is None:
                out.append(())
            else:
                edit = canonical(each.edit, self.commands[each.base], self.editable.config.n)
                out.append((*out[each.base], edit))
        return out

    def program(self, number: int) -> tuple[str, ...]:
        """Return the tokens of a variant without loops; empty if it or the compiled program has too many tokens."""
        if number and not self.program(0):
            return ()
        if number not in self._programs:
            program = straight_line(self.editable.program(self.edited.program, self.edits[number]))
            tokens = [] if program is None else encode_program(program)
            self._programs[number] = tuple(tokens) if len(tokens) <= MAX_PROGRAM_TOKENS else ()
        return self._programs[number]

    def summary(self, number: int) -> list[str]:
        """Return the summary tokens of a variant."""
        return summary_tokens(self.commands[number], self.editable.config.n)

    def path(self, number: int, other: int) -> tuple[Edit, ...]:
        """Return the edits from one variant to another; empty if no such edits exist or there are too many."""
        at = other
        while at > number:
            at = self.edited.variants[at].base
        first = len(self.edits[number])
        return (
            self.edits[other][first:] if at == number and len(self.edits[other]) <= first + MAX_EDITS else ()
        )


@dataclass(frozen=True)
class Example:
    """Training example: prompt and measured answer.

    Parameters
    ----------
    subject : PromptSubject
        Layer with its current schedule.
    answer : tuple of str
        Answer tokens: changes, or a program.
    ratio : float
        Cycles with the answer, divided by the current cycles.
    best : bool
        True if no measured answer takes fewer cycles.
    ask : Ask
        Type of the answer.
    summary : tuple of str
        Summary tokens of the program that the prompt describes, if any.
    known : bool
        True if the current cost is known and included in the prompt.
    """

    subject: PromptSubject
    answer: tuple[str, ...]
    ratio: float
    best: bool
    ask: Ask = Ask.SCHEDULE
    summary: tuple[str, ...] = ()
    known: bool = True

    def prompt(self, *, profile: bool = True, want: bool = True, best: bool = False) -> list[str]:
        """Return the prompt tokens.

        Parameters
        ----------
        profile : bool
            True to include the current cost, if it is known.
        want : bool
            True to request an answer with the measured ratio, False to request the best answer.
        best : bool
            True to request the best answer, whatever the value of `want`.
        """
        wanted = BEST if best or not want else want_of(self.ratio)
        profile = profile and self.known
        return self.subject.tokens(wanted, profile=profile, ask=self.ask, summary=self.summary)


def examples(trajectory: Trajectory, known: int = 0) -> Iterator[Example]:
    """Yield the examples of schedules and, if a program was edited, the examples of edits and whole programs.

    Parameters
    ----------
    trajectory : Trajectory
        Measurements of one network.
    known : int
        Maximum number of known schedules of similar layers in a prompt about a schedule.
    """
    prompts = TrajectoryPrompts(trajectory)
    yield from _schedule_examples(trajectory, prompts, known)
    if trajectory.edited is not None:
        yield from edit_examples(trajectory.edited, prompts)


def _schedule_examples(trajectory: Trajectory, prompts: TrajectoryPrompts, known: int) -> Iterator[Example]:
    """Yield pairs of steps that differ in one layer, if the layer's cycles are known separately.

    The best schedule of the layer is the answer to every other one; of the others, a sample are answers.
    """
    rng = random.Random(network_name(trajectory))
    for layer, members in comparable_steps(trajectory):
        minimum = min(trajectory.steps[member].cycles for member in members)
        best = [member for member in members if trajectory.steps[member].cycles == minimum]
        for now in members:
            subject = prompts.layer_prompt(now, layer)
            if subject is not None:
                others = rng.sample(members, min(len(members), _MAX_ANSWERS))
                for other in dict.fromkeys([*best, *others]):
                    count = rng.randint(0, known)
                    shown = subject if not count else _with_known(subject, count, trajectory)
                    example = _example(trajectory, prompts, shown, (now, other), layer, minimum)
                    if example is not None:
                        yield example


def comparable_steps(trajectory: Trajectory) -> Iterator[tuple[int, list[int]]]:
    """Yield each layer with the steps in which all other layers have the same schedules, if there are several."""
    found: dict[tuple[int, tuple[LayerSchedule, ...]], list[int]] = {}
    for number in range(len(trajectory.steps)):
        schedules = trajectory.schedules(number)
        for layer in range(len(schedules)):
            others = (*schedules[:layer], *schedules[layer + 1 :])
            found.setdefault((layer, others), []).append(number)
    yield from ((layer, members) for (layer, _), members in found.items() if len(members) > 1)


def _with_known(subject: PromptSubject, count: int, trajectory: Trajectory) -> PromptSubject:
    return read_known_layers().with_known(subject, count, without=network_name(trajectory))


#: Maximum number of known schedules per layer.
_KNOWN_PER_LAYER = 3


def known_layers(trajectories: Iterable[Trajectory]) -> Iterator[KnownLayer]:
    """Yield every layer of the networks with its best schedules, of those that are not worse than the first."""
    for trajectory in trajectories:
        prompts, steps = TrajectoryPrompts(trajectory), trajectory.steps
        order = sorted(range(len(steps)), key=lambda number: steps[number].cycles)
        better = [number for number in order if steps[number].cycles <= steps[0].cycles]
        for layer in range(len(prompts.layers)):
            subject = prompts.subject(0, layer, {})
            if subject is not None:
                schedules = dict.fromkeys(prompts.schedules(number)[layer] for number in better)
                yield KnownLayer(
                    network_name(trajectory),
                    layer,
                    subject.word,
                    subject.spot.config.n,
                    features_of(subject),
                    [non_default(each) for each in list(schedules)[:_KNOWN_PER_LAYER]],
                )


def network_name(trajectory: Trajectory) -> str:
    """Return the name of a measured network in `KnownLayer`."""
    return f"{trajectory.machine} {trajectory.index}"


def _example(
    trajectory: Trajectory,
    prompts: TrajectoryPrompts,
    subject: PromptSubject,
    pair: tuple[int, int],
    layer: int,
    minimum: int,
) -> Example | None:
    now, other = (trajectory.steps[each] for each in pair)
    if not now.layers[layer]:  # runs within another layer's unit, whose counter tag has all cycles
        return None
    answer = encode_schedule_delta(prompts.schedules(pair[1])[layer], subject.schedule)
    ratio = 1 + (other.cycles - now.cycles) / now.layers[layer]
    return Example(subject, tuple(answer), ratio, other.cycles == minimum) if ratio > 0 else None


def edit_examples(edited: EditTrajectory, prompts: TrajectoryPrompts) -> Iterator[Example]:
    """Yield examples of at most `MAX_EDITS` edits from one variant to another, and examples of whole programs.

    A program that runs within another program's unit, whose counter tag has all cycles, gives none.
    """
    if not all(variant.cycles for variant in edited.variants):
        return
    try:
        editable = EditablePrograms(prompts.network(edited.step))
        piece = next((each for each in editable.programs if each.name == edited.program), None)
        subject = None if piece is None else prompts.program_prompt(edited.step, piece)
        if piece is None or subject is None:
            return
        variants = _Variants(edited, editable, piece.unrolled.commands)
        for number in range(len(edited.variants)):
            yield from _variant_examples(edited, variants, subject, number)
    except (InputError, ValueError):  # the edits were measured with another compiler version
        return


def _variant_examples(
    edited: EditTrajectory, variants: "_Variants", subject: PromptSubject, number: int
) -> Iterator[Example]:
    now = edited.variants[number]
    subject, summary = with_cost(subject, now.where), tuple(variants.summary(number))
    paths = {other: variants.path(number, other) for other in range(number + 1, len(edited.variants))}
    costs = [variant.cycles for variant in edited.variants]
    minimum = min((costs[other] for other, path in paths.items() if path), default=0)
    for other, path in paths.items():
        if path:
            best = costs[other] == minimum <= costs[number]
            edits = Example(
                subject, tuple(encode_edits(path)), costs[other] / now.cycles, best, Ask.EDITS, summary
            )
            yield edits
            if not number:  # prompts about a newly compiled program do not contain its cost
                yield replace(edits, known=False)
    # Whole programs as answers: the unchanged program, variants after one more edit, and the best variant.
    candidates = [
        number,
        *(other for other, path in paths.items() if len(path) == 1),
        costs.index(min(costs)),
    ]
    for other in dict.fromkeys(candidates):
        if program := variants.program(other):
            best = costs[other] == min(costs)
            yield Example(subject, program, costs[other] / now.cycles, best, Ask.PROGRAM, summary)
