"""The digits: plain program, then the compiler's bound while images are on their way."""

import numpy as np
import pytest

from compiler.validate import Call, validate
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from scripts.networks.digits import MODEL, load_digits_split
from scripts.sim import DRAM_BYTES, LATENCY
from scripts.sim_check import check_layers
from scripts.sim_memory import ImageMemory
from scripts.sim_programs import Programs, compile_digits
from scripts.sim_run import run_digits

LAYERS = ["conv1", "conv2", "pool1", "conv3", "add", "pool2", "scores"]


#: Cycles of an image under the compiler's program: what was measured, and a little.
CEILING = 3230


def golden() -> GoldenDevice:
    return GoldenDevice(load_target("n16"), DRAM_BYTES)


@pytest.fixture
def programs() -> Programs:
    return compile_digits(MODEL)


def test_golden_model_classifies_and_is_reprogrammed(programs):
    said: list[str] = []
    outcome = run_digits(golden(), programs, 12, said.append)
    text = "\n".join(said)
    assert outcome.passed and outcome.accuracy > 0.9
    assert [check.name for check in outcome.checks] == LAYERS
    assert [check.allowed for check in outcome.checks] == [1, 1, 0, 1, 1, 0, 1]
    assert [(phase.name, phase.images) for phase in outcome.phases] == [("plain", 12), ("compiled", 14)]
    assert "every output unchanged" in text and "while 4 images were on their way" in text
    assert "all 16 images came out, 1 of them still of the plain program, 0 wrong" in text


def test_rtl_takes_few_cycles_and_the_layers_add_up(programs):
    with RtlDevice(load_target("n16"), DRAM_BYTES, latency=LATENCY) as device:
        outcome = run_digits(device, programs, 4, lambda text: None)
    plain, fused = outcome.phases
    assert outcome.passed and plain.cycles and fused.cycles and plain.per_image and fused.per_image
    assert fused.per_image <= CEILING and plain.per_image >= 2 * fused.per_image
    for phase in (plain, fused):
        assert phase.where and phase.cycles and phase.cycles == sum(phase.where.values())
        assert sum(phase.layers) == phase.cycles - phase.where["idle"]
    assert max(fused.layers) == fused.layers[1] and not any(fused.layers[6:])


def test_another_weight_is_noticed(programs):
    """A constant of the compiler's program alone: the images that it does come out wrong."""
    programs.fused.code.image[programs.plain.code.memory + 500] ^= 0x7F
    outcome = run_digits(golden(), programs, 12, lambda text: None)
    assert outcome.wrong > 0 and not outcome.unchanged and not outcome.passed
    assert all(check.passed for check in outcome.checks)


def test_layers_that_are_off_are_noticed(programs):
    """Two units are too many everywhere, one where nothing is rounded."""
    _, held_out = load_digits_split()
    driver = Driver(golden())
    memory = ImageMemory(driver, programs, held_out.images[:3])
    driver.load(programs.plain.program, opcode=0)
    for image in range(3):
        driver.enqueue(0, memory.operands(image))
    driver.run()
    graph = programs.graph
    tensors = {name: memory.fetch(name) for name in (*graph.inputs, *graph.outputs)}
    assert all(check.passed for check in check_layers(MODEL, tensors))
    for name, amount in (("pool2_max", 1), ("scores", 2), ("conv1_relu", 2)):
        spoilt = {key: array.copy() for key, array in tensors.items()}
        place = tuple(index // 2 for index in spoilt[name].shape)
        spoilt[name][place] += amount if spoilt[name][place] < 100 else -amount
        failed = [check.name for check in check_layers(MODEL, spoilt) if not check.passed]
        assert name.split("_")[0] in failed


@pytest.mark.parametrize("require_written", [False, True])
def test_programs_are_safe_in_any_order(programs, require_written):
    memory = ImageMemory(Driver(golden()), programs, load_digits_split()[1].images[:8])
    plain, fused = programs.plain, programs.fused
    order = [plain.program, fused.program, fused.program, plain.program, plain.program, fused.program]
    calls = [Call(program, tuple(memory.operands(i % 8))) for i, program in enumerate(order)]
    report = validate(load_target("n16"), calls, [memory.window], require_written=require_written)
    assert report.calls == len(order)


def test_constants_of_the_variants_lie_apart(programs):
    plain, fused = programs.plain.code, programs.fused.code
    assert not fused.image[: plain.memory].any() and len(plain.image) <= plain.memory
    assert np.array_equal(programs.constants[: len(plain.image)], plain.image)
    assert np.array_equal(programs.constants[plain.memory :], fused.image[plain.memory :])
    assert plain.places["image"] == fused.places["image"] and plain.places["scores"] == fused.places["scores"]
