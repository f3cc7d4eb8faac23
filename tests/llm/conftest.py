"""Random numbers whose seed is printed; simulated machines, and networks as they are compiled."""

import os

import numpy as np
import pytest

from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import Trajectory, unusual
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("MLA_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"MLA_SEED={seed}")
    return np.random.default_rng(seed)


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
