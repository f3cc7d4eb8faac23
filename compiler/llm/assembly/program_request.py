"""Request to the language model for a whole program that replaces another one, and its grammar."""

from collections.abc import Hashable, Sequence

from compiler.llm.assembly.completion import FENCE
from compiler.llm.assembly.decoder_state import AssemblyGrammar
from compiler.llm.assembly.equivalence import EquivalenceAutomaton, EquivalenceDecoder, signal_counts
from compiler.llm.assembly.lexicon import STOP
from compiler.llm.assembly.replacement_limits import limits_in_place
from compiler.llm.assembly.tokenizer import program_of, straight_line
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

#: Maximum program length in tokens; fits the context after any prompt.
MAX_PROGRAM_TOKENS = 300
#: Effectively unlimited; `MAX_PROGRAM_TOKENS` is enforced by the decoder.
_UNLIMITED_TOKENS = 1 << 14


class ProgramRequest(LmRequest):
    """Request for a program with the same commands as another one, in any legal order and splitting.

    Parameters
    ----------
    programs : Programs
        Editable programs of a task.
    piece : EditableProgram
        Program to replace.
    """

    ask = Ask.PROGRAM
    #: The sequencer state is tracked separately for each answer.
    answers_per_draw = 1

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
        return self.programs.task.with_texts({self.about: text}, NAME, f"{self.about}: rewritten")

    def _program(self, words: Sequence[str]) -> Program:
        return program_of(words, self.about)


class ProgramGrammar:
    """Grammar of programs equivalent to another one; tracks one answer at a time.

    Parameters
    ----------
    grammar : AssemblyGrammar
        Grammar of safe programs over the model's vocabulary.
    original : Unrolled
        Unrolled program to replace.
    tried : set
        Instruction sequences to exclude; may be extended between answers.
    """

    def __init__(self, grammar: AssemblyGrammar, original: UnrolledProgram, tried: set[Hashable]):
        assert grammar.endings and grammar.limits.config
        self.grammar, self.tried = grammar, tried
        self._work = EquivalenceAutomaton.initial(grammar.limits.config, original.commands)
        self._goal, self._alone = grammar.endings.goal, original.alone
        self._own = [min(pair) for pair in zip(self._goal, signal_counts(original.commands), strict=True)]
        self._begin()

    def after(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow; empty if the program is complete."""
        if words and words[-1] == STOP:
            return ()
        self._advance_to(tuple(words))
        useful, safe = self._decoder.words(self._state), self._state.mask
        valid = tuple(word for word in useful if safe[LANGUAGE.number(word)])
        return tuple(sorted(valid, key=LANGUAGE.number)) or (FENCE,)

    def ends(self, words: Sequence[str]) -> bool:
        """Return whether a complete program is new."""
        return program_of(words, "").words not in self.tried

    @property
    def satisfiable(self) -> bool:
        """True if any program exists within the token budget."""
        return self._decoder.feasible(self._state.before.counts)

    def _begin(self) -> None:
        self._words: tuple[str, ...] = ()
        self._state = self.grammar.start()
        self._decoder = EquivalenceDecoder(
            self._work, self._goal, self._own, MAX_PROGRAM_TOKENS, alone=self._alone
        )

    def _advance_to(self, words: tuple[str, ...]) -> None:
        """Advance the state to a prefix; restart if it does not extend the previous one."""
        if words[: len(self._words)] != self._words:
            self._begin()
        for word in words[len(self._words) :]:
            self._decoder.advance(word, self._state.before.counts)
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
    original, plain = unroll(program), straight_line(program)
    if original is None:
        return None
    calls = stage_calls(network, stage, stage.code)
    try:
        limits = limits_in_place(network.config, calls.calls, calls.windows, index, tokens=_UNLIMITED_TOKENS)
        grammar = AssemblyGrammar(LANGUAGE, limits)
    except ValidationError:
        return None
    found = ProgramGrammar(grammar, original, tried)
    if not found.satisfiable:
        return None
    tried |= {each.words for each in (program, plain) if each is not None}
    return found
