"""Programs given as text against those they stand for, in networks of several stages and with loops."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.frontends.onnx import read_onnx
from compiler.listing import program_text
from compiler.measure.same import Sameness
from compiler.options import Options
from compiler.passes.trips import MOST_UNROLLED
from compiler.pipeline import Prepared
from compiler.schedule.texts import ProgramText, digest_of
from hw.config import load_target
from tests.compiler.control_models import early_exit, recurrent

MADE = {
    "early exit": lambda: early_exit(np.random.default_rng(3)),
    "loop": lambda: recurrent(np.random.default_rng(3), MOST_UNROLLED + 8, "Loop"),
}


@pytest.fixture(params=MADE)
def prepared(request, tmp_path) -> Prepared:
    path = tmp_path / "model.onnx"
    path.write_bytes(MADE[request.param]().SerializeToString())
    return Prepared(read_onnx(path), load_target("n4"), Options(rounding="onnxruntime"))


def test_every_stage_is_looked_at(prepared: Prepared) -> None:
    first = prepared.network()
    own = [program for code in first.codes for program in code.programs]
    assert len(list(first.walk())) > 1

    def difference(changed: dict[str, str]) -> str | None:
        texts = {p.name: ProgramText(digest_of(p), changed.get(p.name, program_text(p))) for p in own}
        return Sameness(prepared).difference(prepared.network(replace(first.schedule, programs=texts)), 1)

    assert difference({}) is None
    clipped = [program for program in own if "set fuse.clip_hi, 127 " in program_text(program)]
    assert clipped
    for program in clipped:
        text = program_text(program).replace("set fuse.clip_hi, 127 ", "set fuse.clip_hi, -100 ")
        assert "leaves other bytes in tensor" in (difference({program.name: text}) or "")
