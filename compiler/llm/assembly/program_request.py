"""A whole program in place of another one, asked of the language model."""

from collections.abc import Hashable, Sequence

from compiler.llm.assembly.completion import FENCE
from compiler.llm.assembly.decoder_state import AssemblyGrammar
from compiler.llm.assembly.equivalence_automaton import EquivalenceAutomaton
from compiler.llm.assembly.equivalence_decoder import EquivalenceDecoder, given
from compiler.llm.assembly.lexicon import STOP
from compiler.llm.assembly.replacement_limits import limits_in_place
from compiler.llm.assembly.tokenizer import program_of, straight
from compiler.llm.generate.requests import NAME, LmRequest
from compiler.llm.tokens.layer_prompt import BEST, Programs
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.runtime.stages import Stage
from compiler.runtime.validation import stage_calls
from compiler.tuning.edits.editable_programs import EditableProgram
from compiler.tuning.edits.unroll import Unrolled, unrolled
from compiler.tuning.generators.task import Candidate
from compiler.validate.errors import ValidationError
from hw.isa.program import Program

#: Words of a program that the model writes, at most: they fit into the context behind any question.
ROOM = 300
#: More of them than ever come: that there are no more than `ROOM` is seen to here.
_WORDS = 1 << 14


class ProgramRequest(LmRequest):
    """A program in place of another one: any that does its commands, in an order and in parts that they allow.

    Parameters
    ----------
    programs : Programs
        Those of a task.
    piece : Piece
        The program that it is to stand for.
    """

    ask = Ask.PROGRAM
    #: The state of the sequencer is followed for each answer.
    together = 1

    def __init__(self, programs: Programs, piece: EditableProgram):
        super().__init__(piece.name)
        self.programs, self.piece = programs, piece

    def _grammar(self) -> "ProgramGrammar | None":
        """Programs for its place; None: it is too long, or nothing can be said of what comes before it."""
        return program_grammar(self.programs.task.network, self.about, self.tried)

    def question(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """About the program."""
        programs, piece = self.programs, self.piece
        return programs.subject(piece).words(
            BEST,
            profile=profile and programs.measured,
            ask=self.ask,
            outline=programs.outline(piece),
            rejected=rejected,
        )

    def meaning(self, words: Sequence[str]) -> Hashable:
        """Its instructions."""
        return self._program(words).words

    def candidate(self, words: Sequence[str]) -> Candidate:
        """The network with it."""
        text = program_text(self._program(words))
        return self.programs.task.with_texts({self.about: text}, NAME, f"{self.about}: written anew")

    def _program(self, words: Sequence[str]) -> Program:
        return program_of(words, self.about)


class ProgramGrammar:
    """The grammar of programs that do what another one does, for one answer at a time.

    Parameters
    ----------
    grammar : Grammar
        Of assembly, over the model's language: of programs that do no harm.
    stands_for : Unrolled
        The program whose work is to be done.
    tried : set
        Instructions of programs that are of no use any more; looked at anew for each answer.
    """

    def __init__(self, grammar: AssemblyGrammar, stands_for: Unrolled, tried: set[Hashable]):
        assert grammar.endings and grammar.limits.config
        self.grammar, self.tried = grammar, tried
        self._work = EquivalenceAutomaton.of(grammar.limits.config, stands_for.commands)
        self._goal, self._alone = grammar.endings.goal, stands_for.alone
        self._own = [min(pair) for pair in zip(self._goal, given(stands_for.commands), strict=True)]
        self._begin()

    def after(self, words: Sequence[str]) -> tuple[str, ...]:
        """Words that may follow; none: the program is complete."""
        if words and words[-1] == STOP:
            return ()
        self._go_to(tuple(words))
        useful, harmless = self._following.words(self._state), self._state.mask
        found = tuple(word for word in useful if harmless[LANGUAGE.number(word)])
        return tuple(sorted(found, key=LANGUAGE.number)) or (FENCE,)

    def ends(self, words: Sequence[str]) -> bool:
        """Whether a complete program is new."""
        return program_of(words, "").words not in self.tried

    @property
    def any(self) -> bool:
        """Whether there is a program."""
        return self._following.may_begin(self._state.before.counts)

    def _begin(self) -> None:
        self._words: tuple[str, ...] = ()
        self._state = self.grammar.start()
        self._following = EquivalenceDecoder(self._work, self._goal, self._own, ROOM, alone=self._alone)

    def _go_to(self, words: tuple[str, ...]) -> None:
        """The state behind some words: one step from the last one, as long as one answer is written."""
        if words[: len(self._words)] != self._words:
            self._begin()
        for word in words[len(self._words) :]:
            self._following.take(word, self._state.before.counts)
            self._state.advance(LANGUAGE.number(word))
        self._words = words


def program_grammar(network: CompiledNetwork, name: str, tried: set[Hashable]) -> ProgramGrammar | None:
    """The grammar of programs in place of one of a network; it itself counts as tried. None: as in `Whole.grammar`."""
    for stage in network.walk():
        parts = stage.code.parts if stage.code else ()
        for index, part in enumerate(parts):
            if part.program.name == name and stage.code:
                return _in_place(network, stage, index, tried)
    return None


def _in_place(
    network: CompiledNetwork, stage: Stage, index: int, tried: set[Hashable]
) -> ProgramGrammar | None:
    """The grammar of programs in place of one of a stage."""
    assert stage.code
    program = stage.code.parts[index].program
    found, plain = unrolled(program), straight(program)
    if found is None:
        return None
    calls = stage_calls(network, stage, stage.code)
    try:
        limits = limits_in_place(network.config, calls.calls, calls.windows, index, tokens=_WORDS)
        grammar = AssemblyGrammar(LANGUAGE, limits)
    except ValidationError:
        return None
    made = ProgramGrammar(grammar, found, tried)
    if not made.any:
        return None
    tried |= {each.words for each in (program, plain) if each is not None}
    return made
