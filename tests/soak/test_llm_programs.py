"""Many programs drawn from the grammar under random limits are valid (`make soak`); seeds are printed."""

import numpy as np
import pytest

from compiler.llm.assembly.grammar import AssemblyGrammar
from compiler.llm.assembly.tokenizer import decode_program, encode_program
from compiler.validate import MacroCall, validate
from hw.config import load_target
from tests.llm.assembly.test_abstract_machine import OPERANDS, WINDOWS, limits, prefer_commands
from tests.llm.program_sampling import VOCABULARY, draw_program, equally
from tests.support.seeds import random_seed

GRAMMARS, PROGRAMS = 60, 4


def generator() -> np.random.Generator:
    """Return a generator seeded by MLA_SEED, or by a new seed."""
    return np.random.default_rng(random_seed())


@pytest.mark.parametrize("jumps", [False, True])
@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32", "ulx3s-85f"])
def test_programs(target: str, jumps: bool) -> None:
    rng, config = generator(), load_target(target)
    for number in range(GRAMMARS):
        tokens, instructions = (
            int(rng.choice([2, 3, 4, 5, 7, 9, 12, 20, 40, 90, 300])),
            int(rng.integers(1, 60)),
        )
        own = limits(
            config=config, tokens=tokens, instructions=instructions, jumps=jumps, written=number % 3 == 0
        )
        grammar = AssemblyGrammar(VOCABULARY, own)
        for _ in range(PROGRAMS):
            state, words = draw_program(grammar, rng, prefer_commands if number % 2 else equally)
            program = state.program("drawn")
            assert len(words) <= tokens and len(program.words) <= instructions
            assert decode_program(words, "drawn") == program and encode_program(program) == words
            if not jumps:
                validate(config, [MacroCall(program, OPERANDS)], WINDOWS)
