"""Random programs of the grammar of equivalent programs end, pass the validator and give correct results."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from compiler.llm.assembly.tokenizer import decode_program, encode_program
from compiler.llm.generate.program_request import MAX_PROGRAM_TOKENS, ProgramGrammar, program_grammar
from compiler.llm.tokens.assembly_tokens import STOP
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.rewrites import unroll
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.program import Program

#: Layers, and chains of layers whose programs pass tokens to one another.
POINTS = {
    "max_pool": CalibrationNetwork((8, 8, 16), (CalibrationOp("max_pool", 0, 2, 2),)),
    "add": CalibrationNetwork((4, 4, 24), (CalibrationOp("add"),)),
    "softmax": CalibrationNetwork((4, 2, 20), (CalibrationOp("softmax"),)),
    "dense": CalibrationNetwork((2, 3, 32), (CalibrationOp("conv", 24, 1, 1),)),
    "chain": CalibrationNetwork((6, 6, 16), (CalibrationOp("max_pool", 0, 2, 2), CalibrationOp("tanh"))),
    "convs": CalibrationNetwork(
        (4, 4, 16), (CalibrationOp("conv", 16, 1, 1), CalibrationOp("conv", 8, 1, 1))
    ),
    "softmax between": CalibrationNetwork(
        (4, 4, 24), (CalibrationOp("add"), CalibrationOp("softmax"), CalibrationOp("mul"))
    ),
}
Selector = Callable[[tuple[str, ...]], str]


@pytest.fixture(scope="module", params=list(POINTS))
def measurer(request: pytest.FixtureRequest) -> Iterator[Measurer]:
    graph = POINTS[request.param].graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


def schedule_of(measurer: Measurer) -> Schedule:
    """Return a schedule with one program per layer."""
    first = measurer.first.schedule
    return replace(
        first,
        layers={name: replace(each, same_program_as_previous=False) for name, each in first.layers.items()},
    )


def grammars(network: CompiledNetwork) -> list[tuple[Program, ProgramGrammar]]:
    """Return the programs of a network for which a grammar exists, with their grammars."""
    programs = [program for code in network.codes for program in code.programs]
    found = [(program, program_grammar(network, program.name, set())) for program in programs]
    return [(program, grammar) for program, grammar in found if grammar is not None]


def write_program(grammar: ProgramGrammar, choose: Selector) -> list[str]:
    """Return the words of a program, each selected by `choose` among the permitted words."""
    words: list[str] = []
    while may := grammar.after(words):
        words.append(choose(may))
        assert len(words) <= MAX_PROGRAM_TOKENS
    assert words[-1] == STOP
    return words


def steps(program: Program) -> dict[Unit, int]:
    """Return the total number of loop steps of all commands by unit."""
    found = unroll(program)
    assert found
    total = dict.fromkeys(Unit, 0)
    for command in found.commands:
        fields = zip(UNIT_FIELDS[command.unit], command.values, strict=True)
        counts = [value for item, value in fields if item.name.endswith("_count") or item.name == "len"]
        total[command.unit] += int(np.prod([count for count in counts if count]))
    return total


def test_random_equivalent_programs_are_safe_and_correct(
    measurer: Measurer, rng: np.random.Generator
) -> None:
    found = grammars(measurer.prepared.network(schedule_of(measurer)))
    assert found
    chance = random.Random(int(rng.integers(1 << 30)))
    for program, grammar in found:
        for _ in range(3):
            made = decode_program(write_program(grammar, chance.choice), program.name)
            assert steps(made) == steps(program)
            text = ProgramText(digest_of(program), program_text(made))
            (result,) = measurer.measure([replace(schedule_of(measurer), programs={program.name: text})])
            assert isinstance(result, Measurement) and result.exact, (program.name, result)


def test_grammar_includes_the_original_program(measurer: Measurer) -> None:
    """The grammar permits the words of the original program, but not its end, since it counts as already tried.

    Programs with loops are not checked. Neither are programs that leave tokens, since an equivalent program may signal
    these tokens earlier.
    """
    network = measurer.prepared.network(schedule_of(measurer))
    for program, grammar in grammars(network):
        leaves = grammar.grammar.limits.leaves
        for wanted in () if leaves else grammar.tried:
            assert isinstance(wanted, tuple)
            words = encode_program(Program(program.name, wanted))
            if not any(word.startswith("loop") for word in words):
                for place, word in enumerate(words):
                    assert word in grammar.after(words[:place]), (place, words[: place + 1])
                assert not grammar.ends(words)


def test_first_permitted_words_give_an_equivalent_program(measurer: Measurer) -> None:
    network = measurer.prepared.network(schedule_of(measurer))
    for program, grammar in grammars(network):
        words = write_program(grammar, lambda may: may[0])
        assert steps(decode_program(words, program.name)) == steps(program)
