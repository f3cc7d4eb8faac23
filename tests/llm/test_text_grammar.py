"""The grammar of assembly text that models of others are given."""

import random

import pytest

from compiler.listing import program_text
from compiler.llm.assembly.decimal import between
from compiler.llm.assembly.limits import Limits
from compiler.llm.assembly.text import text_grammar
from hw.config import load_target
from hw.isa.assembler import assemble
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro import FORMS
from scripts.networks.digits import MODEL
from tests.compiler.networks import model
from tests.llm.gbnf import Gbnf
from tests.llm.sampling import programs

#: All labels that the grammar knows.
_LABELS = "\n".join(f"l{number:0{digits}}:" for digits in (1, 2) for number in range(10**digits))
LIMITS = {
    "any": Limits(),
    "n16": Limits(config=load_target("n16")),
    "jumps": Limits(config=load_target("n4"), jumps=True),
}


@pytest.mark.parametrize("name", LIMITS)
def test_every_sentence_assembles(name: str) -> None:
    grammar = Gbnf(text_grammar(LIMITS[name]))
    pattern = grammar.pattern("line")
    for seed in range(400):
        line = grammar.sentence("instruction", random.Random(seed))
        assert len(assemble(f"{_LABELS}\n{line}").words) == 1, seed
        assert pattern.fullmatch(f"{line}\n"), seed


@pytest.mark.parametrize("name", ["any", "n16"])
def test_texts_of_compiled_programs_conform(name: str) -> None:
    pattern = Gbnf(text_grammar(LIMITS[name])).pattern("line")
    lines = [
        line
        for path in (MODEL, model("ad01_int8"))
        for each in programs(path)
        for line in program_text(each).splitlines()
    ]
    assert len(lines) > 1500
    for line in lines:
        assert pattern.fullmatch(f"{line}\n"), line


@pytest.mark.parametrize("line", [
    "bogus r1", "add r32, 1", "add r1", "set load.len, 1048576", "set load.word, fill=2", "set load.bogus, 1",
    "issue load, wait(load:4)", "issue load, wait(seq:0)", "beq r1, 5, l1", "add r1, 5, r2", "halt 3", ".word 5",
])  # fmt: skip
def test_what_does_not_assemble_does_not_conform(line: str) -> None:
    assert not Gbnf(text_grammar(Limits())).pattern("line").fullmatch(f"{line}\n")


def test_all_instructions_and_fields_are_in_it() -> None:
    text = text_grammar(Limits())
    assert all(f"\n{op.name.lower()} ::= " in text for op in FORMS)
    assert all(f"{unit.name.lower()}.{field.name}" in text for unit in Unit for field in UNIT_FIELDS[unit])
    assert "\ntrap ::=" not in text_grammar(LIMITS["n16"])


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (0, 9), (3, 17), (1, 1000), (99, 1234), (-5, 5), (-128, 255), (-2048, 2047)]
)
def test_decimal_numbers(low: int, high: int) -> None:
    pattern = Gbnf(f"number ::= {between(low, high)}").pattern("number")
    for value in range(low - 300, high + 300):
        assert bool(pattern.fullmatch(str(value))) == (low <= value <= high), value
    assert not pattern.fullmatch("00") and not pattern.fullmatch("-0")
