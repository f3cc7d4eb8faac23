"""Request to the language model for the replacement of a program, with grammar and limits of the replacement."""

from collections.abc import Hashable, Sequence

from compiler.llm.assembly.abstract_machine import SEMAPHORES_PER_CONSUMER, AbstractMachine
from compiler.llm.assembly.equivalence import (
    EquivalenceAutomaton,
    EquivalenceDecoder,
    LoopRegion,
    loop_regions,
    signal_counts,
)
from compiler.llm.assembly.grammar import AssemblyGrammar
from compiler.llm.assembly.limits import ProgramLimits, Semaphore
from compiler.llm.assembly.program_completer import FENCE
from compiler.llm.assembly.tokenizer import decode_program, straight_line
from compiler.llm.generate.requests import NAME, LmRequest
from compiler.llm.tokens.assembly_tokens import STOP
from compiler.llm.tokens.layer_prompt import BEST, Ask, Programs
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.runtime.stages import Stage
from compiler.runtime.validation import stage_calls
from compiler.tuning.edits.editable_programs import EditableProgram
from compiler.tuning.edits.rewrites import UnrolledProgram, unroll
from compiler.tuning.generators.generator import Candidate
from compiler.validate.errors import ValidationError
from compiler.validate.macro_call import MacroCall
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORES_PER_PAIR
from hw.isa.program import Program

#: Maximum program length in tokens, which fits the context after any prompt.
MAX_PROGRAM_TOKENS = 300
#: Effectively unlimited token budget; the decoder enforces `MAX_PROGRAM_TOKENS`.
_UNLIMITED_TOKENS = 1 << 14


class ProgramRequest(LmRequest):
    """Request for the replacement of a program, with the same commands legally reordered and split.

    Parameters
    ----------
    programs : Programs
        Editable programs of a task.
    piece : EditableProgram
        Program to replace.
    """

    ask = Ask.PROGRAM
    #: Answers are sampled one at a time, since the grammar tracks only one sequencer state.
    answers_per_draw = 1

    def __init__(self, programs: Programs, piece: EditableProgram):
        super().__init__(piece.name)
        self.programs, self.piece = programs, piece

    def _grammar(self) -> "ProgramGrammar | None":
        """Return the grammar of replacements; None if the program is too long or its initial state is unknown."""
        return program_grammar(self.programs.task.network, self.about, self.tried)

    def prompt(self, rejected: Sequence[str] = (), *, profile: bool = True) -> list[str]:
        """Return the prompt about the program."""
        programs, piece = self.programs, self.piece
        return programs.subject(piece).tokens(
            BEST,
            profile=profile and programs.measured,
            ask=self.ask,
            summary=programs.summary(piece),
            rejected=rejected,
        )

    def meaning(self, tokens: Sequence[str]) -> Hashable:
        """Return the instructions of an answer."""
        return self._program(tokens).words

    def candidate(self, tokens: Sequence[str]) -> Candidate:
        """Return the candidate with the program of an answer."""
        text = program_text(self._program(tokens))
        return self.programs.task.with_texts({self.about: text}, NAME, f"{self.about}: rewritten")

    def _program(self, tokens: Sequence[str]) -> Program:
        return decode_program(tokens, self.about)


class ProgramGrammar:
    """Grammar of the programs that are equivalent to a given program; it tracks one answer at a time.

    Parameters
    ----------
    grammar : AssemblyGrammar
        Grammar of safe programs over the model's vocabulary.
    original : UnrolledProgram
        Unrolled program to replace.
    tried : set
        Instruction sequences to exclude; may be extended between answers.
    regions : sequence of LoopRegion
        Repetitions that answers write as loops or, if there is room, unroll.
    """

    def __init__(
        self,
        grammar: AssemblyGrammar,
        original: UnrolledProgram,
        tried: set[Hashable],
        regions: Sequence[LoopRegion] = (),
    ):
        assert grammar.completer and grammar.limits.config
        self.grammar, self.tried = grammar, tried
        self._work = EquivalenceAutomaton.initial(grammar.limits.config, original.commands, regions)
        self._goal, self._alone = grammar.completer.goal, original.alone
        self._own = [min(pair) for pair in zip(self._goal, signal_counts(original.commands), strict=True)]
        self._begin()

    def after(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow; empty if the program is complete."""
        if tokens and tokens[-1] == STOP:
            return ()
        self._advance_to(tuple(tokens))
        useful, safe = self._decoder.tokens(self._state), self._state.mask
        valid = tuple(token for token in useful if safe[LANGUAGE.number(token)])
        return tuple(sorted(valid, key=LANGUAGE.number)) or (FENCE,)

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return whether a complete program is new."""
        return decode_program(tokens, "").words not in self.tried

    @property
    def satisfiable(self) -> bool:
        """True if an equivalent program exists within the token budget."""
        return self._decoder.feasible(self._state.before.counts)

    def _begin(self) -> None:
        self._tokens: tuple[str, ...] = ()
        self._state = self.grammar.start()
        self._decoder = EquivalenceDecoder(
            self._work, self._goal, self._own, MAX_PROGRAM_TOKENS, alone=self._alone
        )

    def _advance_to(self, tokens: tuple[str, ...]) -> None:
        """Advance the state to a prefix of an answer; restart if it does not extend the previous prefix."""
        if tokens[: len(self._tokens)] != self._tokens:
            self._begin()
        for token in tokens[len(self._tokens) :]:
            self._decoder.advance(token, self._state.before.counts)
            self._state.advance(LANGUAGE.number(token))
        self._tokens = tokens


def program_grammar(network: CompiledNetwork, name: str, tried: set[Hashable]) -> ProgramGrammar | None:
    """Return the grammar of replacements for a program, excluding the program itself; None if none exist."""
    for stage in network.walk():
        parts = stage.code.parts if stage.code else ()
        for index, part in enumerate(parts):
            if part.program.name == name and stage.code:
                return _in_place(network, stage, index, tried)
    return None


def _in_place(
    network: CompiledNetwork, stage: Stage, index: int, tried: set[Hashable]
) -> ProgramGrammar | None:
    """Return the grammar of replacements for the program of one part of a stage; None if none exist."""
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
    loops = [
        each for each in loop_regions(network.config, original.commands) if _accepts(grammar, each.tokens)
    ]
    found = ProgramGrammar(grammar, original, tried, loops)
    if loops and not found.satisfiable:
        found = ProgramGrammar(grammar, original, tried)
    if not found.satisfiable:
        return None
    tried |= {each.words for each in (program, plain) if each is not None}
    return found


def _accepts(grammar: AssemblyGrammar, tokens: Sequence[str]) -> bool:
    """Return whether a program may begin with some tokens."""
    state = grammar.start()
    for token in tokens:
        number = LANGUAGE.number(token)
        if not state.mask[number]:
            return False
        state.advance(number)
    return True


def limits_in_place(
    config: MlaConfig, calls: Sequence[MacroCall], windows: Sequence[DramWindow], index: int, *, tokens: int
) -> ProgramLimits:
    """Return the limits of a replacement, which has the initial state and the final semaphore counts of the original.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the programs.
    calls : sequence of MacroCall
        Sequence of calls from `compiler.runtime.validation.stage_calls`.
    windows : sequence of (first byte, last byte, permissions)
        DRAM windows of the programs.
    index : int
        Index of the call whose program is replaced.
    tokens : int
        Maximum number of tokens of the program.

    Raises
    ------
    ValidationError
        The preceding calls are not safe, or their control flow depends on data.
    """
    call = calls[index]
    after = AbstractMachine.at_start(ProgramLimits(config=config, windows=windows, before=calls[: index + 1]))
    counts = enumerate(after.path.order.counts)
    leaves = {_semaphore(index): count for index, count in counts if count}
    return ProgramLimits(
        tokens=tokens,
        instructions=config.wis_words,
        config=config,
        operands=call.operands,
        tag=call.tag,
        windows=windows,
        before=calls[:index],
        leaves=leaves,
    )


def _semaphore(index: int) -> Semaphore:
    """Return the semaphore whose count has the given index in the list of all counts."""
    consumer, number = divmod(index, SEMAPHORES_PER_CONSUMER)
    return number // SEMAPHORES_PER_PAIR, consumer, number % SEMAPHORES_PER_PAIR
