"""The static validator accepts compiled networks on every target."""

from dataclasses import replace

import pytest

from compiler.api import compile
from compiler.runtime.validation import validate_network
from compiler.validate import ValidationError
from hw.isa.micro_instruction import WORD, MicroOp
from hw.isa.program import Program
from tests.support.trained_networks import NETWORKS, model


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32", "ulx3s-85f"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_safe(name: str, target: str) -> None:
    network = compile(model(name), target)
    reports = validate_network(network, samples=2, require_written=True)
    assert len(reports) == len(network.codes) > 0
    for report in reports.values():
        assert report.paths == 1
        assert report.commands["matrix"] > 0


def test_network_without_one_wait_is_rejected() -> None:
    network = compile(model("ad01_int8"), "n16")
    (stage,) = [stage for stage in network.stages if stage.code]
    assert stage.code
    part = stage.code.parts[0]
    words = list(part.program.words)
    opcode = WORD.offset("opcode")
    index = next(i for i, word in enumerate(words) if word >> opcode == MicroOp.ISSUE and word & 0xFFFF)
    words[index] &= ~0xFFFF
    worse = replace(part, program=Program(part.program.name, tuple(words)))
    code = replace(stage.code, parts=(worse, *stage.code.parts[1:]))
    stages = tuple(replace(each, code=code) if each is stage else each for each in network.stages)
    with pytest.raises(ValidationError) as caught:
        validate_network(replace(network, stages=stages))
    assert caught.value.program == part.program.name
