"""An RTL chip and a golden model (n4) and the board's RTL chip for all tests of whole machines, reset before each."""

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
#: Cycles from a read address to its first beat.
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
    """The chip of the FPGA board: what others do in a cycle has registers in between."""
    return _fresh(shared_board)


@pytest.fixture(params=["golden", "rtl", "board"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "golden":
        return GoldenDevice(load_target("n4"), DRAM_BYTES)
    return request.getfixturevalue(request.param)


#: Stores operand 1 (one byte pattern by FILL) at DRAM address operand 0: proof that the machine still works.
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
    """A driver with a program that proves the machine alive, for tests that break things."""

    ALIVE_OPCODE = 30

    def __init__(self, device: Device):
        self.driver = Driver(device)
        self.driver.load(assemble(ALIVE, "alive"), opcode=self.ALIVE_OPCODE)

    def load(self, text: str, opcode: int = 1) -> int:
        """Assemble and bind a program; returns its segment."""
        return self.driver.load(assemble(text, "test"), opcode=opcode)

    def assert_alive(self) -> None:
        """The next macro-instruction does its work."""
        address = self.driver.put(np.zeros(8, np.uint8))
        self.driver.enqueue(self.ALIVE_OPCODE, [address])
        self.driver.run()
        assert (self.driver.fetch(address, (8,), np.uint8) == 0x5A).all()


@pytest.fixture
def machine(device: Device) -> Machine:
    return Machine(device)
