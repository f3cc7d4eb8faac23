"""Assembly text and words are restored exactly in a round trip, for random words and every form of instruction."""

import random

import pytest

from hw.isa.assembler import AssemblyError, assemble
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, field_number
from hw.isa.disassembler import disassemble, instruction
from hw.isa.enums import Unit
from hw.isa.micro_instruction import FORMS, WORD, MicroOp, decode, encode
from hw.isa.program import Program


@pytest.mark.parametrize("seed", range(4))
def test_random_words_round_trip(seed: int) -> None:
    rng = random.Random(seed)
    words = [rng.getrandbits(64) for _ in range(300)]
    for _ in range(1500):
        op = rng.choice(list(MicroOp))
        words.append(
            encode(
                op,
                d=rng.getrandbits(10),
                a=rng.choice([0, rng.getrandbits(8)]),
                b=rng.choice([0, rng.getrandbits(8)]),
                imm=rng.choice([0, rng.getrandbits(31) - (1 << 30)]),
            )
        )
    program = Program("random", tuple(words), "operands: a, b")
    assert assemble(disassemble(program)) == program, f"seed {seed}"


def test_every_form_prints_as_an_instruction() -> None:
    for op in FORMS:
        word = encode(op, d=1 if {"d", "field", "unit", "sem", "segment"} & set(FORMS[op].operands) else 0)
        assert not instruction(word).startswith(".word"), op


def test_every_field_can_be_set() -> None:
    for unit in Unit:
        for field in UNIT_FIELDS[unit]:
            name = f"{unit.name.lower()}.{field.name}"
            text = f"set {name}, default" if name in PACKED_FIELDS else f"set {name}, {field.high}"
            values = decode(assemble(text).words[0])
            assert values["d"] == field_number(unit, field.name)


def test_program_file_round_trip() -> None:
    program = assemble(".name p\n.signature operands a\nloop 3, end\nadd r1, r1, 2\nend: halt")
    assert Program.from_bytes(program.to_bytes()) == program


@pytest.mark.parametrize("cut", [0, 3, 10, 30, -1])
def test_truncated_program_file_is_rejected(cut: int) -> None:
    data = assemble("add r1, r2, 3\nhalt").to_bytes()
    with pytest.raises(ValueError, match="micro-program file"):
        Program.from_bytes(data[:cut])


def test_flipped_bit_is_rejected() -> None:
    data = bytearray(assemble("add r1, r2, 3\nhalt").to_bytes())
    data[-12] ^= 1
    with pytest.raises(ValueError, match="CRC"):
        Program.from_bytes(bytes(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bogus r1", "is not an instruction"),
        ("add r32, r1", "does not exist"),
        ("add 5, r1", "must be a register"),
        ("add r1", "an operand is missing"),
        ("add r1, r2, r3, r4", "at most two"),
        ("add r1, 5, r2", "must come before"),
        ("add r1, x", "'x' is not defined"),
        ("add r1, 2**3", "not allowed"),
        ("add r1, 1 << 99", "shift must be"),
        ("set load.bogus, 1", "no field"),
        ("set bogus.len, 1", "must be one of"),
        ("set load.len, 1048576", "load.len must be in"),
        ("set load.word, fill=2", "fill must be in"),
        ("set load.word, bogus=2", "has no field"),
        ("issue load, wait(load:4)", "INDEX below 4"),
        ("issue load, wait(seq:0)", "must be UNIT:INDEX"),
        ("issue load, bogus(load:0)", "must be wait"),
        ("loop 5", "takes a count"),
        ("beq r1, r2", "takes two"),
        ("wait load", "must be UNIT:INDEX"),
        ("add r1, $a", "not declared"),
        ("add r1, %bogus", "not a statistic"),
        ("a: nop\na: nop", "already defined"),
        (".bogus 1", "is not a directive"),
        (".operand x, 48", "operand index must be"),
        (".word 1 << 63 << 3", "2\\*\\*64"),
        ("fence bogus", "must be one of"),
        ("halt 3", "takes 0 operands"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(AssemblyError, match=message) as error:
        assemble("\n" + text, "file.s")
    assert str(error.value).startswith("file.s:")


def test_word_layout_is_64_bits() -> None:
    assert WORD.width == 64
