"""One small test chip, reset before each test, for all device tests."""

from collections.abc import Iterator

import pytest

from cosim.rtl.rtl_device import RtlDevice
from tests.support.sim_device import open_sim


@pytest.fixture(scope="session")
def shared_device() -> Iterator[RtlDevice]:
    with open_sim() as device:
        yield device


@pytest.fixture
def device(shared_device: RtlDevice) -> RtlDevice:
    shared_device.set_dram_timing(100)
    shared_device.set_throttle(0)
    shared_device.set_dram_faults([])
    shared_device.reset()
    shared_device.dram[:] = 0
    return shared_device
