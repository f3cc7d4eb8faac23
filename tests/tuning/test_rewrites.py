"""After rewrites of micro-programs, every unit gets the same commands in the same order."""

import random
from collections.abc import Sequence

import pytest

from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.tuning.calibration.calibration_networks import chains, singles
from compiler.tuning.edits.rewrites import encode_items, parse_items
from compiler.tuning.generators.included import REWRITES
from hw.config import load_target
from hw.errors import InputError
from hw.isa.commands import UNIT_FIELDS, field_of
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, LOOP_IMM, OPERAND_BASE, MicroOp, decode, encode

N4 = load_target("n4")


def commands(words: Sequence[int]) -> dict[Unit, list[tuple]]:
    """Return each unit's commands as fields and semaphore masks, computed by a separate model of the sequencer."""
    registers = [0] * 32
    operands = [1_000_000 * (1 + number) for number in range(48)]
    fields = {
        unit: {item.name: item.default & ((1 << item.width) - 1) for item in UNIT_FIELDS[unit]}
        for unit in Unit
    }
    out: dict[Unit, list[tuple]] = {unit: [] for unit in Unit}

    def value(selector: int) -> int:
        return registers[selector] if selector < 32 else operands[selector - OPERAND_BASE]

    def run(start: int, stop: int) -> None:
        at = start
        while at < stop:
            each = decode(words[at])
            op = MicroOp(each["opcode"])
            total = value(each["a"]) + value(each["b"]) + each["imm"] if op is not MicroOp.LOOP else 0
            if op is MicroOp.SET:
                unit, item = field_of(each["d"])  # type: ignore[misc]
                fields[unit][item.name] = total & ((1 << item.width) - 1)
            elif op is MicroOp.ADD:
                registers[each["d"]] = total
            elif op is MicroOp.ISSUE:
                packed = ISSUE_D.unpack(each["d"])
                unit = Unit(packed["unit"])
                out[unit].append((tuple(fields[unit].items()), packed["signal_seq"], each["imm"]))
            elif op is MicroOp.LOOP:
                turns = LOOP_IMM.unpack(each["imm"] & 0xFFFFFFFF)
                for _ in range(turns["count"]):
                    run(at + 1, turns["end"])
                at = turns["end"]
                continue
            at += 1

    run(0, len(words))
    return out


@pytest.fixture(scope="module")
def programs() -> list[tuple[int, ...]]:
    """Return programs of random small networks: straight programs, loops, nested loops."""
    seed = 41
    print(f"seed {seed}")
    rng, out = random.Random(seed), []
    for drawn in (singles(4, rng), chains(4, rng)):
        for _ in range(20):
            try:
                network = ModelCompiler(
                    next(drawn).graph(), N4, CompileOptions(rounding="reference")
                ).network()
            except InputError:
                continue
            out += [program.words for code in network.codes for program in code.programs]
    assert sum(decode(word)["opcode"] == MicroOp.LOOP for words in out for word in words) > 20
    return out


def test_parsed_programs_encode_identically(programs: list[tuple[int, ...]]) -> None:
    for words in programs:
        items = parse_items(words)
        assert items is not None and encode_items(items) == words


@pytest.mark.parametrize("way", REWRITES)
def test_every_unit_gets_the_same_commands(programs: list[tuple[int, ...]], way: str) -> None:
    changed = 0
    for words in programs:
        items = parse_items(words)
        assert items is not None
        found = encode_items(REWRITES[way](items))
        changed += found != words
        assert commands(found) == commands(words)
    print(f"{changed} of {len(programs)} programs are other than before")


def test_unsupported_instructions_are_not_parsed() -> None:
    assert parse_items([encode(MicroOp.BEQ, imm=0), encode(MicroOp.HALT)]) is None
    assert parse_items([encode(MicroOp.LOOP, a=3, imm=LOOP_IMM.pack(end=2, count=1)), 0]) is None
    assert (
        parse_items([encode(MicroOp.LOOP, imm=LOOP_IMM.pack(end=9, count=2)), encode(MicroOp.HALT)]) is None
    )
