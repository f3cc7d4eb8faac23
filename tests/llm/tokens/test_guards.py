"""Tests of guards of the dispatch table in the words of the language model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.codegen.dispatch_guard import Guard
from compiler.llm.tokens.assembly_tokens import GUARDS, decode_guard, encode_guard
from compiler.llm.tokens.vocabulary import LANGUAGE
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, STATISTIC_BASE, Statistic

SELECTORS = [OPERAND_BASE + each for each in range(MAX_OPERANDS)] + [
    STATISTIC_BASE + each for each in Statistic
]
WORDS = st.integers(0, (1 << 32) - 1)


@given(st.sampled_from(list(GUARDS)), st.sampled_from(SELECTORS), WORDS | st.integers(0, 300))
def test_every_guard_has_words(compare, selector: int, value: int) -> None:
    guard = Guard(compare, selector, value)
    tokens = encode_guard(guard)
    assert decode_guard(tokens) == guard
    assert all(token in LANGUAGE for token in tokens)


@pytest.mark.parametrize(
    "tokens", [[], ["guard eq"], ["guard eq", "op1"], ["op1", "op1", "3"], ["guard eq", "r1", "3"]]
)
def test_other_words_are_rejected(tokens: list[str]) -> None:
    with pytest.raises(ValueError, match=r"guard|byte"):
        decode_guard(tokens)
