"""Fixtures of whole machines (golden model, RTL of n4, RTL of the FPGA board), which are reset before each test."""

from collections.abc import Iterator

import numpy as np
import pytest

from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.assembler import assemble

DRAM_BYTES = 1 << 22
#: Number of cycles from a read address to its first beat.
LATENCY = 100


@pytest.fixture(scope="session")
def shared_rtl() -> Iterator[RtlDevice]:
    with RtlDevice(load_target("n4"), DRAM_BYTES) as device:
        yield device


@pytest.fixture
def rtl(shared_rtl: RtlDevice) -> RtlDevice:
    return _fresh(shared_rtl)


def _fresh(device: RtlDevice) -> RtlDevice:
    device.set_dram_timing(LATENCY)
    device.set_dram_faults([])
    device.reset()
    device.dram[:] = 0
    return device


@pytest.fixture(scope="session")
def shared_board() -> Iterator[RtlDevice]:
    with RtlDevice(load_target("ulx3s-85f"), DRAM_BYTES) as device:
        yield device


@pytest.fixture
def board(shared_board: RtlDevice) -> RtlDevice:
    """Return the RTL of the FPGA board's chip, which has additional pipeline registers."""
    return _fresh(shared_board)


@pytest.fixture(params=["golden", "rtl", "board"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "golden":
        return GoldenDevice(load_target("n4"), DRAM_BYTES)
    return request.getfixturevalue(request.param)


#: Program that stores the byte 0x5a at the DRAM address in operand 0, to check that the machine still works.
ALIVE = """
    set load.word, fill=1 fill_value=0x5a
    set load.len, 8
    issue load, signal(store:0)
    set store.dram, op0
    set store.len, 8
    issue store, wait(load:0)
    halt
"""


class Machine:
    """A driver with a program that shows whether the machine still works after a provoked error."""

    ALIVE_OPCODE = 30

    def __init__(self, device: Device):
        self.driver = Driver(device)
        self.driver.load(assemble(ALIVE, "alive"), opcode=self.ALIVE_OPCODE)

    def load(self, text: str, opcode: int = 1) -> int:
        """Assemble and bind a program; return its segment."""
        return self.driver.load(assemble(text, "test"), opcode=opcode)

    def assert_alive(self) -> None:
        """Assert that the next macro-instruction completes with the correct result."""
        address = self.driver.put(np.zeros(8, np.uint8))
        self.driver.enqueue(self.ALIVE_OPCODE, [address])
        self.driver.run()
        assert (self.driver.fetch(address, (8,), np.uint8) == 0x5A).all()


@pytest.fixture
def machine(device: Device) -> Machine:
    return Machine(device)
