"""Programs drawn from a grammar, and programs that there are."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from compiler.api import compile
from compiler.kernel_library.run import LIBRARY, resident_program
from compiler.llm.assembly.grammar import AssemblyGrammar, GrammarState
from compiler.llm.tokens.assembly_tokens import TOKENS
from compiler.llm.tokens.integer_tokens import TOKENS as NUMBERS
from compiler.llm.tokens.vocabulary import Vocabulary
from compiler.runtime.compiled import CompiledNetwork
from hw.isa.program import Program

#: Words of other kinds may stand among them.
VOCABULARY = Vocabulary(("before", *TOKENS, *NUMBERS, "behind"))
#: How much a word is wanted.
Weight = Callable[[str], float]


def equally(word: str) -> float:
    return 1.0


def drawn(
    grammar: AssemblyGrammar, rng: np.random.Generator, weight: Weight = equally
) -> tuple[GrammarState, list[str]]:
    """A program drawn word by word from all that may come next."""
    state, words = grammar.start(), []
    weights = np.array([weight(word) for word in VOCABULARY.tokens])
    while not state.done:
        shares = weights * state.mask
        assert shares.sum() > 0, words
        number = int(rng.choice(len(VOCABULARY), p=shares / shares.sum()))
        words.append(VOCABULARY.tokens[number])
        state.advance(number)
    assert not state.mask.any()
    return state, words


def accepts(grammar: AssemblyGrammar, words: list[str]) -> GrammarState:
    """The state behind words, all of which the grammar must allow."""
    state = grammar.start()
    for place, word in enumerate(words):
        number = VOCABULARY.number(word)
        assert state.mask[number], (word, words[max(0, place - 12) : place])
        state.advance(number)
    return state


@cache
def compiled(path: Path) -> CompiledNetwork:
    """A compiled network."""
    return compile(path, "n16")


def programs(path: Path) -> list[Program]:
    """Those of a compiled network."""
    return [program for code in compiled(path).codes for program in code.all_programs]


def library() -> list[Program]:
    """The resident programs."""
    return [resident_program(path.stem) for path in sorted(LIBRARY.glob("*.s"))]
