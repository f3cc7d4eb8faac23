"""Damaged programs that the static validator accepts have the same outcome on RTL and golden model."""

from random import Random

import pytest

from compiler.validate import ValidationError
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.support.program_gen.generator import DRAM_BYTES, generate
from tests.support.program_gen.run import difference, execute
from tests.validate.mutate import mutants
from tests.validate.test_random_programs import Damaged, check, traps

FIRST_SEED, CASES, DAMAGES = 7000, 60, 5


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_rtl_equals_golden_model(target: str) -> None:
    config, ran = load_target(target), 0
    model = GoldenDevice(config, DRAM_BYTES)
    with RtlDevice(config, DRAM_BYTES, latency=20) as device:
        for seed in range(FIRST_SEED, FIRST_SEED + CASES):
            case, rng = generate(config, seed), Random(seed)
            if traps(case) or len(case.programs) < 2:
                continue
            library, programs = case.render()
            number = rng.randrange(1, len(programs))  # the first program fills slots and tables
            for index, (way, program) in enumerate(mutants(rng, programs[number], DAMAGES)):
                some = [*programs[:number], program, *programs[number + 1 :]]
                try:
                    check(case, library, some)
                except ValidationError:
                    continue
                ran += 1
                device.set_dram_timing(latency=(1, 20, 100, 400)[index % 4])
                damaged = Damaged(**vars(case), rendered=(library, some))
                found = difference(execute(model, damaged), execute(device, damaged))
                assert not found, f"target={target} seed={seed} damage={index} ({way}): {found}"
    assert ran > 10
