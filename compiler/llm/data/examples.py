"""Training examples: prompts with measured answers, derived from trajectories and edits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from compiler.codegen.semaphores import Issued
from compiler.initial_schedule.initial import tiling_contexts
from compiler.layers.base import Layer
from compiler.llm.assembly.program_request import MAX_PROGRAM_TOKENS
from compiler.llm.assembly.tokenizer import straight_line, words_of
from compiler.llm.data.example import Example
from compiler.llm.data.held_out import MACHINES
from compiler.llm.data.journal import read
from compiler.llm.data.trajectories import EditWalk, Trajectory
from compiler.llm.tokens.layer_prompt import BEST, PromptSubject
from compiler.llm.tokens.program_edits import MAX_EDITS, canonical, encode_edits
from compiler.llm.tokens.program_summary import outline_words
from compiler.llm.tokens.prompt_tokens import Ask, chief
from compiler.llm.tokens.schedule_delta import changes_words
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.edits.edit import Edit, apply_edits
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from hw.errors import InputError
from hw.isa.counters import CAUSES


class TrajectoryPrompts:
    """Builds prompts for layers under the schedules of a trajectory.

    Parameters
    ----------
    walk : Trajectory
        Trajectory with the network.
    """

    def __init__(self, walk: Trajectory):
        machine = MACHINES[walk.machine]
        self._prepared = ModelCompiler(walk.point.graph(), machine.conditions.config, machine.options)
        (stage,) = self._prepared.lowered(self._prepared.fusions)
        self.walk, self.layers = walk, stage.layers
        self._spots = tiling_contexts(self._prepared.config, stage, machine.conditions.dram)
        self._schedules: dict[int, list[LayerSchedule]] = {}

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Return the schedules of all layers in a step."""
        if number not in self._schedules:
            self._schedules[number] = self.walk.schedules(number)
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
        """Return the prompt of a layer in a step; None if it has no own counter there or a size without tokens."""
        step = self.walk.steps[number]
        if not step.layers.get(layer):
            return None
        return self._subject(number, layer, dict(zip(CAUSES, step.where[layer], strict=True)))

    def program_prompt(self, number: int, piece: EditableProgram) -> PromptSubject | None:
        """Return the prompt of a program of a step, without its cost; None as in `of`."""
        named: Mapping[str, Layer] = {layer.name: layer for layer in self.layers}
        layer = chief([named[name] for name in piece.layers])
        return self._subject(number, self.layers.index(layer), {})

    def _subject(self, number: int, layer: int, where: dict[str, int]) -> PromptSubject | None:
        subject = PromptSubject(self.layers[layer], self._spots[layer], self.schedules(number)[layer], where)
        try:
            subject.words(BEST)
        except ValueError:
            return None
        return subject


def with_cost(subject: PromptSubject, where: list[int]) -> PromptSubject:
    """Return a prompt subject with the given cycles by cause."""
    return replace(subject, where=dict(zip(CAUSES, where, strict=True)))


def texts(count: int) -> list[list[str]]:
    """Return the tokens of `count` prompts with answers, from networks spread over the corpus."""
    walks = read(CORPUS)
    out: list[list[str]] = []
    for walk in walks[:: max(len(walks) // (2 * count), 1)]:
        found = next(examples(walk), None)
        if found is not None:
            out.append([*found.question(best=True), *found.answer])
        if len(out) == count:
            break
    return out


CORPUS = Path(__file__).with_name("schedules.xz")


def examples(walk: Trajectory) -> Iterator[Example]:
    """Yield the examples of schedules, and of edits and whole programs if a program was edited."""
    prompts = TrajectoryPrompts(walk)
    yield from _schedule_examples(walk, prompts)
    if walk.edited is not None:
        yield from edit_examples(walk.edited, prompts)


def _schedule_examples(walk: Trajectory, prompts: TrajectoryPrompts) -> Iterator[Example]:
    """Yield one example per pair of steps that differ in one layer with its own cycle counter in the first step."""
    family: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(walk.steps):
        if step.base >= 0:
            family.setdefault((step.base, step.layer), [step.base]).append(number)
    for (_, layer), members in family.items():
        minimum = min(walk.steps[member].cycles for member in members)
        for now in members:
            subject = prompts.layer_prompt(now, layer)
            if subject is not None:
                for other in members:
                    example = _example(walk, prompts, subject, (now, other), layer, minimum)
                    if example is not None:
                        yield example


def _example(
    walk: Trajectory,
    prompts: TrajectoryPrompts,
    subject: PromptSubject,
    pair: tuple[int, int],
    layer: int,
    minimum: int,
) -> Example | None:
    now, other = (walk.steps[each] for each in pair)
    try:
        answer = changes_words(prompts.schedules(pair[1])[layer], subject.schedule)
    except ValueError:  # a value that the words do not reach
        return None
    ratio = 1 + (other.cycles - now.cycles) / now.layers[layer]
    return Example(subject, tuple(answer), ratio, other.cycles == minimum) if ratio > 0 else None


def edit_examples(edited: EditWalk, prompts: TrajectoryPrompts) -> Iterator[Example]:
    """Yield examples from each variant to those reached by at most `MAX_EDITS` edits, and of whole programs."""
    try:
        editable = EditablePrograms(prompts.network(edited.step))
        piece = next((each for each in editable.programs if each.name == edited.program), None)
        subject = None if piece is None else prompts.program_prompt(edited.step, piece)
        if piece is None or subject is None:
            return
        variants = _Variants(edited, editable, piece.unrolled.commands)
        for number in range(len(edited.variants)):
            yield from _variant_examples(edited, variants, subject, number)
    except (InputError, ValueError):  # of another version of the compiler, which edited other programs
        return


def _variant_examples(
    edited: EditWalk, variants: "_Variants", subject: PromptSubject, number: int
) -> Iterator[Example]:
    now = edited.variants[number]
    subject, outline = with_cost(subject, now.where), tuple(variants.outline(number))
    paths = {other: variants.path(number, other) for other in range(number + 1, len(edited.variants))}
    costs = [variant.cycles for variant in edited.variants]
    minimum = min((costs[other] for other, path in paths.items() if path), default=0)
    for other, path in paths.items():
        if path:
            best = costs[other] == minimum <= costs[number]
            edits = Example(
                subject, tuple(encode_edits(path)), costs[other] / now.cycles, best, Ask.EDITS, outline
            )
            yield edits
            if not number:  # a program that was only just compiled is asked about before it is measured
                yield replace(edits, known=False)
    # A whole program may be anything: the same, a variant after one more edit, or the best one.
    wholes = [number, *(other for other, path in paths.items() if len(path) == 1), costs.index(min(costs))]
    for other in dict.fromkeys(wholes):
        if program := variants.program(other):
            best = costs[other] == min(costs)
            yield Example(subject, program, costs[other] / now.cycles, best, Ask.PROGRAM, outline)


@dataclass(eq=False)
class _Variants:
    """Variants of a program after edits."""

    edited: EditWalk
    editable: EditablePrograms
    compiled: Sequence[Issued]
    _programs: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def commands(self) -> list[list[Issued]]:
        """Commands of each variant."""
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
        """Return the tokens of a variant without loops; empty if they or those of the compiled program are too many."""
        if number and not self.program(0):
            return ()
        if number not in self._programs:
            program = straight_line(self.editable.program(self.edited.program, self.edits[number]))
            words = [] if program is None else words_of(program)
            self._programs[number] = tuple(words) if len(words) <= MAX_PROGRAM_TOKENS else ()
        return self._programs[number]

    def outline(self, number: int) -> list[str]:
        """Return the summary tokens of a variant."""
        return outline_words(self.commands[number], self.editable.config.n)

    def path(self, number: int, other: int) -> tuple[Edit, ...]:
        """Return the edits from one variant to another; empty if there is no path or it is too long."""
        at = other
        while at > number:
            at = self.edited.variants[at].base
        first = len(self.edits[number])
        return (
            self.edits[other][first:] if at == number and len(self.edits[other]) <= first + MAX_EDITS else ()
        )
