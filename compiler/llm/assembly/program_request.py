"""Request to the language model for a whole program that replaces another one."""

from collections.abc import Hashable, Sequence

from compiler.llm.assembly.completion import FENCE
from compiler.llm.assembly.decoder_state import AssemblyGrammar
from compiler.llm.assembly.equivalence import EquivalenceAutomaton, EquivalenceDecoder, given
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
from compiler.tuning.edits.unroll import UnrolledProgram, unroll
from compiler.tuning.generators.generator import Candidate
from compiler.validate.errors import ValidationError
from hw.isa.program import Program

#: Maximum program length in tokens, which fits the context after any prompt.
ROOM = 300
#: Effectively unlimited; the limit `ROOM` is enforced here.
_WORDS = 1 << 14


class ProgramRequest(LmRequest):
    """Request for a program with the same commands as another one, in any legal order and division.

    Parameters
    ----------
    programs : Programs
        Editable programs of a task.
    piece : EditableProgram
        Program to replace.
    """

    ask = Ask.PROGRAM
    #: The sequencer state is tracked separately for each answer.
    together = 1

    def __init__(self, programs: Programs, piece: EditableProgram):
        super().__init__(piece.name)
        self.programs, self.piece = programs, piece

    def _grammar(self) -> "ProgramGrammar | None":
        """Return the grammar of replacements; None if the program is too long or its preceding state is unknown."""
        return program_grammar(self.programs.task.network, self.about, self.tried)

    def question(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Return the prompt about the program."""
        programs, piece = self.programs, self.piece
        return programs.subject(piece).words(
            BEST,
            profile=profile and programs.measured,
            ask=self.ask,
            outline=programs.outline(piece),
            rejected=rejected,
        )

    def meaning(self, words: Sequence[str]) -> Hashable:
        """Return the instructions of an answer."""
        return self._program(words).words

    def candidate(self, words: Sequence[str]) -> Candidate:
        """Return the network with the program of an answer."""
        text = program_text(self._program(words))
        return self.programs.task.with_texts({self.about: text}, NAME, f"{self.about}: written anew")

    def _program(self, words: Sequence[str]) -> Program:
        return program_of(words, self.about)


class ProgramGrammar:
    """Grammar of programs equivalent to another one; tracks one answer at a time.

    Parameters
    ----------
    grammar : AssemblyGrammar
        Grammar of safe programs over the model's vocabulary.
    stands_for : UnrolledProgram
        UnrolledProgram program whose work must be done.
    tried : set
        Instruction sequences to exclude; may be extended between answers.
    """

    def __init__(self, grammar: AssemblyGrammar, stands_for: UnrolledProgram, tried: set[Hashable]):
        assert grammar.endings and grammar.limits.config
        self.grammar, self.tried = grammar, tried
        self._work = EquivalenceAutomaton.of(grammar.limits.config, stands_for.commands)
        self._goal, self._alone = grammar.endings.goal, stands_for.alone
        self._own = [min(pair) for pair in zip(self._goal, given(stands_for.commands), strict=True)]
        self._begin()

    def after(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow; empty if the program is complete."""
        if words and words[-1] == STOP:
            return ()
        self._go_to(tuple(words))
        useful, harmless = self._following.words(self._state), self._state.mask
        found = tuple(word for word in useful if harmless[LANGUAGE.number(word)])
        return tuple(sorted(found, key=LANGUAGE.number)) or (FENCE,)

    def ends(self, words: Sequence[str]) -> bool:
        """Return whether a complete program is new."""
        return program_of(words, "").words not in self.tried

    @property
    def any(self) -> bool:
        """True if there is any program."""
        return self._following.may_begin(self._state.before.counts)

    def _begin(self) -> None:
        self._words: tuple[str, ...] = ()
        self._state = self.grammar.start()
        self._following = EquivalenceDecoder(self._work, self._goal, self._own, ROOM, alone=self._alone)

    def _go_to(self, words: tuple[str, ...]) -> None:
        """Update the state to a prefix; incremental while one answer is written."""
        if words[: len(self._words)] != self._words:
            self._begin()
        for word in words[len(self._words) :]:
            self._following.take(word, self._state.before.counts)
            self._state.advance(LANGUAGE.number(word))
        self._words = words


def program_grammar(network: CompiledNetwork, name: str, tried: set[Hashable]) -> ProgramGrammar | None:
    """Return the grammar of replacements of a program, excluding itself; None as in `ProgramRequest.grammar`."""
    for stage in network.walk():
        parts = stage.code.parts if stage.code else ()
        for index, part in enumerate(parts):
            if part.program.name == name and stage.code:
                return _in_place(network, stage, index, tried)
    return None


def _in_place(
    network: CompiledNetwork, stage: Stage, index: int, tried: set[Hashable]
) -> ProgramGrammar | None:
    """Return the grammar of replacements of a program of a stage."""
    assert stage.code
    program = stage.code.parts[index].program
    found, plain = unroll(program), straight(program)
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
