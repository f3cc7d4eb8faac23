"""Sampling of programs from a grammar, and access to existing programs."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from compiler.api import compile
from compiler.kernel_library.run import LIBRARY, resident_program
from compiler.llm.assembly.grammar import AssemblyGrammar, GrammarState
from compiler.llm.tokens.assembly_tokens import ADDED_TOKENS, TOKENS, UNUSED_TOKENS
from compiler.llm.tokens.integer_tokens import TOKENS as NUMBERS
from compiler.llm.tokens.vocabulary import Vocabulary
from compiler.runtime.compiled import CompiledNetwork
from hw.isa.program import Program

#: Vocabulary that includes words that the grammar does not contain.
VOCABULARY = Vocabulary(("before", *TOKENS, *ADDED_TOKENS, *UNUSED_TOKENS, *NUMBERS, "behind"))
#: Function from a word to its sampling weight.
Weight = Callable[[str], float]


def equally(word: str) -> float:
    return 1.0


def draw_program(
    grammar: AssemblyGrammar, rng: np.random.Generator, weight: Weight = equally
) -> tuple[GrammarState, list[str]]:
    """Return the final state and the words of a program sampled word by word."""
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
    """Return the state after the given words, all of which the grammar must permit."""
    state = grammar.start()
    for place, word in enumerate(words):
        number = VOCABULARY.number(word)
        assert state.mask[number], (word, words[max(0, place - 12) : place])
        state.advance(number)
    return state


@cache
def compiled(path: Path) -> CompiledNetwork:
    """Return the network in a model file, compiled for n16."""
    return compile(path, "n16")


def programs(path: Path) -> list[Program]:
    """Return the programs of the network in a model file, compiled for n16."""
    return [program for code in compiled(path).codes for program in code.all_programs]


def library() -> list[Program]:
    """Return the resident programs of the kernel library."""
    return [resident_program(path.stem) for path in sorted(LIBRARY.glob("*.s"))]
