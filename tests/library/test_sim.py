"""The digits network on the golden model: library, then the fused program bound while images are on their way."""

from cosim.golden import GoldenDevice
from hw.config import load_target
from scripts.sim import DRAM_BYTES
from scripts.sim_run import run_digits


def test_digits():
    said: list[str] = []
    outcome = run_digits(GoldenDevice(load_target("n16"), DRAM_BYTES), 12, said.append)
    text = "\n".join(said)
    assert outcome.passed and outcome.accuracy > 0.9 and len(outcome.checks) == 7
    assert [phase.macros for phase in outcome.phases] == [7, 1]
    assert "every output unchanged" in text and "9 images were on their way" in text
