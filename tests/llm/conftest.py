"""Simulated machines, and networks measured under the static compiler's schedule."""

import pytest

from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import Trajectory, unusual
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork


@pytest.fixture(scope="module")
def devices():
    found = Devices()
    yield found
    found.close()


@pytest.fixture(scope="module")
def walk(devices: Devices, request: pytest.FixtureRequest) -> Trajectory:
    """The module's POINT under the static compiler's schedule alone."""
    point: CalibrationNetwork = request.module.POINT
    rig = MeasureHarness(devices, "usual", point)
    measured = rig.measured(rig.first)
    assert measured is not None
    layers = [unusual(rig.first.schedule.layers[name]) for name in rig.names]
    return Trajectory("usual", 1, point, layers, [rig.step(-1, -1, {}, measured)])
