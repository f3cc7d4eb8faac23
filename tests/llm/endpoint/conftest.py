"""A small network whose schedule and program can both be improved."""

from collections.abc import Iterator

import pytest

from compiler.llm.endpoint.settings import KEY_VARIABLE, Patience, SpendingLimits
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target

#: Short timeouts, since everything is fast unless a test delays it deliberately.
SOON = Patience(connect=5, read=5, check=5, attempts=3, pause=0.01)
BRIEF = Patience(connect=0.3, read=0.3, check=0.3, attempts=2, pause=0.01)
AMPLE = SpendingLimits(seconds=60)


@pytest.fixture(scope="session")
def measurer() -> Iterator[Measurer]:
    """Yield a measurer of two convolutions on n16."""
    graph = CalibrationNetwork((8, 8, 16), (CalibrationOp("conv", 16, 3), CalibrationOp("conv", 16))).graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


@pytest.fixture(scope="session")
def baseline(measurer: Measurer) -> Measurement:
    """Return the measurement of the static compiler's schedule."""
    return measurer.baseline()


@pytest.fixture
def task(measurer: Measurer, baseline: Measurement) -> GeneratorTask:
    """Return a task that comprises all layers of the network."""
    layers = tuple(layer.name for layer in measurer.first.layers)
    return GeneratorTask(measurer.prepared, measurer.conditions, measurer.first.schedule, layers, baseline)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the API key from the environment."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
