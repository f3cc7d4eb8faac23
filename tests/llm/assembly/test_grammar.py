"""The grammar describes all valid assembly text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.llm.assembly.grammar import AssemblyGrammar
from compiler.llm.assembly.limits import ProgramLimits
from compiler.llm.assembly.operands import Number, shortest
from compiler.llm.assembly.tokenizer import decode_program, encode_program
from compiler.llm.tokens.assembly_tokens import ADDED_TOKENS, TOKENS
from compiler.llm.tokens.integer_tokens import TOKENS as NUMBERS
from compiler.llm.tokens.integer_tokens import encode_number
from compiler.llm.tokens.vocabulary import Vocabulary
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.disassembler import disassemble
from scripts.networks.digits import MODEL
from tests.llm.program_sampling import VOCABULARY, accepts, draw_program, library, programs

_ENDS = [
    0,
    1,
    2,
    254,
    255,
    256,
    257,
    511,
    512,
    65535,
    65536,
    70000,
    (1 << 24) - 1,
    1 << 24,
    (1 << 31) - 1,
    (1 << 32) - 1,
]
_VALUES = st.one_of(
    st.sampled_from([*_ENDS, *(-value for value in _ENDS)]), st.integers(-(2**32) + 1, 2**32 - 1)
)


def fits(value: int, spans: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= value <= high for low, high in spans)


@given(st.lists(st.tuples(_VALUES, _VALUES), min_size=1, max_size=3), _VALUES)
def test_integers_outside_their_spans_are_rejected(pairs: list[tuple[int, int]], value: int) -> None:
    spans = tuple((min(pair), max(pair)) for pair in pairs)
    number = Number(spans)
    taken = all(number.accept(word) for word in encode_number(value))
    assert taken == fits(value, spans)
    assert number.value == (value if taken else number.value)


@given(st.tuples(_VALUES, _VALUES), st.randoms(use_true_random=False))
def test_every_prefix_of_a_number_can_be_completed(pair: tuple[int, int], random) -> None:
    spans, words = ((min(pair), max(pair)),), []
    number = Number(spans)
    least = shortest(spans)
    while number.value is None:
        choice = random.choice(list(number.choices()))
        words.append(choice.option if isinstance(choice.option, str) else str(random.randint(*choice.option)))
        assert number.accept(words[-1])
    assert fits(number.value, spans) and words == encode_number(number.value)
    assert least is not None and least <= len(words)


def test_existing_programs_conform() -> None:
    grammar = AssemblyGrammar(VOCABULARY, ProgramLimits())
    for program in [*library(), *programs(MODEL)]:
        assert accepts(grammar, encode_program(program)).program("again").words == program.words


@pytest.mark.parametrize("tokens", [2, 3, 5, 12, 40, 300])
def test_random_words_are_programs(tokens: int, rng: np.random.Generator) -> None:
    grammar = AssemblyGrammar(VOCABULARY, ProgramLimits(tokens=tokens, instructions=30))
    for _ in range(300 // tokens + 3):
        state, words = draw_program(grammar, rng)
        program = decode_program(words, "drawn")
        assert len(words) <= tokens and 1 <= len(program.words) <= 30
        assert state.program("drawn") == program
        assert assemble(disassemble(program)).words == program.words
        # Each program has one spelling, except that a loop may be written without a body.
        assert encode_program(program) == words or "to" in words


def test_limits_and_vocabulary_are_checked() -> None:
    with pytest.raises(InputError, match="tokens must be at least 2, not 1"):
        ProgramLimits(tokens=1)
    with pytest.raises(InputError, match="must contain the token 'x4'"):
        AssemblyGrammar(
            Vocabulary(word for word in (*TOKENS, *ADDED_TOKENS, *NUMBERS) if word != "x4"), ProgramLimits()
        )


def test_unexpected_word_is_rejected() -> None:
    state = AssemblyGrammar(VOCABULARY, ProgramLimits()).start()
    with pytest.raises(ValueError, match="'5' is not a valid next token"):
        state.advance(VOCABULARY.number("5"))
    with pytest.raises(ValueError, match="does not end with 'stop' yet"):
        state.program("program")
    assert not state.mask[VOCABULARY.number("before")] and not state.mask[VOCABULARY.number("behind")]
