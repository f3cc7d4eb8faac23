"""Machines for the tests of the kernel library."""

import pytest

from compiler.kernel_library.run import Operators
from cosim.driver import Driver
from cosim.golden.device import GoldenDevice
from hw.config import load_target

DRAM_BYTES = 1 << 21


@pytest.fixture(scope="module", params=["n4", "n8", "n16", "n32"])
def ops(request):
    """Return the kernel library on the golden model of each size."""
    return Operators(Driver(GoldenDevice(load_target(request.param), DRAM_BYTES)))
