"""Training examples of program edits and of replacement programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from compiler.codegen.semaphores import Issued
from compiler.llm.assembly.program_request import ROOM
from compiler.llm.assembly.tokenizer import straight, words_of
from compiler.llm.data.example import Example
from compiler.llm.data.prompts import TrajectoryPrompts, costing
from compiler.llm.data.trajectories import EditWalk
from compiler.llm.tokens.layer_prompt import PromptSubject
from compiler.llm.tokens.program_edits import MOST, edits_words, plain
from compiler.llm.tokens.program_summary import outline_words
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.tuning.edits.edit import Edit, applied
from compiler.tuning.edits.editable_programs import EditablePrograms
from hw.errors import InputError


def edit_examples(edited: EditWalk, subjects: TrajectoryPrompts) -> Iterator[Example]:
    """Yield examples from each variant to those reached by at most `MOST` edits, and of whole programs."""
    try:
        workshop = EditablePrograms(subjects.network(edited.step))
        piece = next((each for each in workshop.pieces if each.name == edited.program), None)
        subject = None if piece is None else subjects.of_program(edited.step, piece)
        if piece is None or subject is None:
            return
        variants = _Variants(edited, workshop, piece.unrolled.commands)
        for number in range(len(edited.variants)):
            yield from _from(edited, variants, subject, number)
    except (InputError, ValueError):  # of another version of the compiler, which edited other programs
        return


def _from(edited: EditWalk, variants: "_Variants", subject: PromptSubject, number: int) -> Iterator[Example]:
    now = edited.variants[number]
    subject, outline = costing(subject, now.where), tuple(variants.outline(number))
    paths = {other: variants.path(number, other) for other in range(number + 1, len(edited.variants))}
    costs = [variant.cycles for variant in edited.variants]
    least = min((costs[other] for other, path in paths.items() if path), default=0)
    for other, path in paths.items():
        if path:
            best = costs[other] == least <= costs[number]
            edits = Example(
                subject, tuple(edits_words(path)), costs[other] / now.cycles, best, Ask.EDITS, outline
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
    workshop: EditablePrograms
    compiled: Sequence[Issued]
    _programs: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def commands(self) -> list[list[Issued]]:
        """Commands of each variant."""
        out: list[list[Issued]] = []
        for each in self.edited.variants:
            before = out[each.base] if each.edit else list(self.compiled)
            out.append(applied(self.workshop.config, before, [each.edit] if each.edit else []))
        return out

    @cached_property
    def edits(self) -> list[tuple[Edit, ...]]:
        """Edits that lead from the compiled program to each variant, in canonical form."""
        out: list[tuple[Edit, ...]] = []
        for each in self.edited.variants:
            if each.edit is None:
                out.append(())
            else:
                edit = plain(each.edit, self.commands[each.base], self.workshop.config.n)
                out.append((*out[each.base], edit))
        return out

    def program(self, number: int) -> tuple[str, ...]:
        """Return the tokens of a variant without loops; empty if they or those of the compiled program are too many."""
        if number and not self.program(0):
            return ()
        if number not in self._programs:
            program = straight(self.workshop.program(self.edited.program, self.edits[number]))
            words = [] if program is None else words_of(program)
            self._programs[number] = tuple(words) if len(words) <= ROOM else ()
        return self._programs[number]

    def outline(self, number: int) -> list[str]:
        """Return the summary tokens of a variant."""
        return outline_words(self.commands[number], self.workshop.config.n)

    def path(self, number: int, other: int) -> tuple[Edit, ...]:
        """Return the edits from one variant to another; empty if there is no path or it is too long."""
        at = other
        while at > number:
            at = self.edited.variants[at].base
        first = len(self.edits[number])
        return self.edits[other][first:] if at == number and len(self.edits[other]) <= first + MOST else ()
