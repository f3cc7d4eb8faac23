"""Simulated devices, and networks measured with the schedule of the static compiler."""

import pytest

from compiler.llm.data.collect import Devices, MeasureHarness
from compiler.llm.data.trajectories import Trajectory, non_default
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork


@pytest.fixture(scope="module")
def devices():
    found = Devices()
    yield found
    found.close()


@pytest.fixture(scope="module")
def trajectory(devices: Devices, request: pytest.FixtureRequest) -> Trajectory:
    """Return the trajectory of the module's POINT that consists only of the static compiler's schedule."""
    point: CalibrationNetwork = request.module.POINT
    harness = MeasureHarness(devices, "usual", point)
    measured = harness.measure(harness.first)
    assert measured is not None
    layers = [non_default(harness.first.schedule.layers[name]) for name in harness.names]
    return Trajectory("usual", 1, point, layers, [harness.step(-1, -1, {}, measured)])
