"""A whole program in place of another one, asked of the language model."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from compiler.listing import program_text, tags_of
from compiler.llm.asking import Ask
from compiler.llm.assembly.ending import FENCE
from compiler.llm.assembly.grammar import Grammar
from compiler.llm.assembly.lexicon import HEAD_OF, STOP
from compiler.llm.assembly.place import limits_in_place
from compiler.llm.assembly.state import State
from compiler.llm.assembly.words import program_of, words_of
from compiler.llm.describe import BEST
from compiler.llm.language import LANGUAGE
from compiler.llm.request import NAME, Request
from compiler.llm.subjects import Programs
from compiler.network import Network
from compiler.specialize.edits.workshop import Piece
from compiler.specialize.task import Candidate
from compiler.validate.errors import ValidationError
from compiler.validate.network import stage_calls
from hw.isa.micro import MicroOp
from hw.isa.program import Program

#: Words of a program that the model is asked to write another one for, at most; words that one may have more.
_LONGEST, _MORE = 256, 64
#: First word of the instruction that says what cycles count for from there on; one word follows.
_TAG = HEAD_OF[MicroOp.TAG, 0].word


class Whole(Request):
    """A program in place of another one: any that the validator's sequencer can follow to a proper end.

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

    def __init__(self, programs: Programs, piece: Piece):
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
    """The grammar of programs, for one answer at a time.

    Parameters
    ----------
    grammar : Grammar
        Of assembly, over the model's language.
    tags : sequence of int
        The tags that the program must run under, in order: what its cycles count for.
    alone : bool
        Whether the program must begin by waiting for all units: it may come behind itself, in another request.
    tried : set
        Instructions of programs that are of no use any more; looked at anew for each answer.
    """

    def __init__(self, grammar: Grammar, tags: Sequence[int], tried: set[Hashable], *, alone: bool):
        self.grammar, self.tags, self.tried, self.alone = grammar, tags, tried, alone
        self._words: tuple[str, ...] = ()
        self._state = grammar.start()

    def after(self, words: Sequence[str]) -> tuple[str, ...]:
        """Words that may follow; none: the program is complete."""
        if words and words[-1] == STOP:
            return ()
        if not words and self.alone:
            return (FENCE,)
        mask = self._at(tuple(words)).mask
        if words and words[-1] == _TAG:
            return self._tags(words)
        return tuple(LANGUAGE.words[number] for number in mask.nonzero()[0])

    def ends(self, words: Sequence[str]) -> bool:
        """Whether a complete program is new, and counts for all that it must."""
        program = program_of(words, "")
        return program.words not in self.tried and [tag for _, _, tag in tags_of(program)] == [*self.tags]

    def _tags(self, words: Sequence[str]) -> tuple[str, ...]:
        """Words for the tag that there is, and for the next one."""
        said = [int(word) for head, word in pairwise(words) if head == _TAG]
        at = self.tags.index(said[-1]) if said else 0
        return tuple(str(tag) for tag in self.tags[at : at + 2])

    def _at(self, words: tuple[str, ...]) -> State:
        """The state behind some words: one step from the last one, as long as one answer is written."""
        if words[: len(self._words)] != self._words:
            self._words, self._state = (), self.grammar.start()
        for word in words[len(self._words) :]:
            self._state.advance(LANGUAGE.number(word))
        self._words = words
        return self._state


def program_grammar(network: Network, name: str, tried: set[Hashable]) -> ProgramGrammar | None:
    """The grammar of programs in place of one of a network; it itself counts as tried. None: as in `Whole.grammar`."""
    for stage in network.walk():
        parts = stage.code.parts if stage.code else ()
        for index, part in enumerate(parts):
            if part.program.name == name and stage.code:
                words = words_of(part.program)
                count = len(words)
                if count > _LONGEST:
                    return None
                work = stage_calls(network, stage, stage.code)
                try:
                    limits = limits_in_place(
                        network.config, work.calls, work.windows, index, tokens=count + _MORE
                    )
                    grammar = Grammar(LANGUAGE, limits)
                except ValidationError:
                    return None
                tried.add(part.program.words)
                tags = [tag for _, _, tag in tags_of(part.program)]
                return ProgramGrammar(grammar, tags, tried, alone=words[0] == FENCE)
    return None
