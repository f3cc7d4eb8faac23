"""Tests of the equivalence check of program texts, in networks of several stages and with loops."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.frontends.onnx import read_onnx
from compiler.options import CompileOptions
from compiler.passes.control_flow import MAX_UNROLLED_ITERATIONS
from compiler.pipeline import ModelCompiler
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.tuning.measure.equivalence import EquivalenceChecker
from hw.config import load_target
from tests.support.control_models import early_exit, recurrent

MADE = {
    "early exit": lambda: early_exit(np.random.default_rng(3)),
    "loop": lambda: recurrent(np.random.default_rng(3), MAX_UNROLLED_ITERATIONS + 8, "Loop"),
}


@pytest.fixture(params=MADE)
def prepared(request, tmp_path) -> ModelCompiler:
    path = tmp_path / "model.onnx"
    path.write_bytes(MADE[request.param]().SerializeToString())
    return ModelCompiler(read_onnx(path), load_target("n4"), CompileOptions(rounding="onnxruntime"))


def test_every_stage_is_checked(prepared: ModelCompiler) -> None:
    first = prepared.network()
    own = [program for code in first.codes for program in code.programs]
    assert len(list(first.walk())) > 1

    def difference(changed: dict[str, str]) -> str | None:
        texts = {p.name: ProgramText(digest_of(p), changed.get(p.name, program_text(p))) for p in own}
        network = prepared.network(replace(first.schedule, programs=texts))
        return EquivalenceChecker(prepared).check(network, 1).difference

    assert difference({}) is None
    clipped = [program for program in own if "set fuse.clip_hi, 127 " in program_text(program)]
    assert clipped
    for program in clipped:
        text = program_text(program).replace("set fuse.clip_hi, 127 ", "set fuse.clip_hi, -100 ")
        assert "writes wrong values to tensor" in (difference({program.name: text}) or "")
