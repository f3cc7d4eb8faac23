"""Whole programs with loops: sampled under the grammar, converted without loss, and exact on the RTL."""

import numpy as np
import pytest

from compiler.llm.assembly.tokenizer import decode_program, encode_program, straight_line
from compiler.llm.generate.program_request import MAX_PROGRAM_TOKENS, ProgramRequest, program_grammar
from compiler.llm.generate.sampler import draw
from compiler.llm.tokens.layer_prompt import Programs
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.program_text import program_text
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.rewrites import unroll
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from hw.isa.assembler import assemble
from tests.llm.lm_fixtures import random_model

#: Networks with one program, by name: the program is too long without loops (True), or not (False).
CASES = {
    "tanh": ("n4", CalibrationNetwork((14, 14, 16), (CalibrationOp("tanh"),)), True),
    "mul": ("n16", CalibrationNetwork((10, 9, 64), (CalibrationOp("mul"),)), True),
    "max_pool": ("n4", CalibrationNetwork((8, 8, 32), (CalibrationOp("max_pool", 0, 2, 2),)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_with_loops_are_complete_and_exact(name: str) -> None:
    target, point, long = CASES[name]
    with Measurer(
        point.graph(5), HardwareProfile(load_target(target)), CompileOptions(rounding="reference"), devices=1
    ) as measurer:
        schedule = measurer.first.schedule
        task = GeneratorTask(
            measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measurer.baseline()
        )
        (code,) = measurer.first.codes
        (program,) = code.programs
        assert "loop" in encode_program(program)
        straight = straight_line(program)
        assert straight is not None and (len(encode_program(straight)) > 1.05 * MAX_PROGRAM_TOKENS) >= long
        programs = Programs(task)
        request = ProgramRequest(programs, programs.programs[0])
        grammar = request.grammar
        assert grammar is not None
        answers, rng = [], np.random.default_rng(3)
        for _ in range(6):
            answers += draw(random_model(), LANGUAGE, request.prompt(), grammar, 1, rng)
        assert all(answer.complete for answer in answers)
        looped = [answer for answer in answers if "loop" in answer.tokens]
        assert looped and (not long or looped == answers)
        work = unroll(program)
        assert work is not None
        for answer in looped[:2]:
            made = decode_program(answer.tokens, program.name)
            assert encode_program(made) == list(answer.tokens)
            assert assemble(program_text(made)).words == made.words
            issued = unroll(made)
            assert issued is not None and len(issued.commands) >= len(work.commands)
        (first, *_) = looped
        (result,) = measurer.measure([request.candidate(first.tokens).schedule])
        assert isinstance(result, Measurement) and result.exact, result


def test_straight_programs_have_no_loops() -> None:
    point = CalibrationNetwork((5, 6, 12), (CalibrationOp("softmax"),))
    with Measurer(
        point.graph(5), HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as measurer:
        (code,) = measurer.first.codes
        grammar = program_grammar(measurer.first, code.programs[0].name, set())
        assert grammar is not None
        (answer,) = draw(
            random_model(), LANGUAGE, ["machine", "answer"], grammar, 1, np.random.default_rng(1)
        )
        assert answer.complete and "loop" not in answer.tokens
