"""A reset during traffic leaves no state in the chip or in the memory model."""

from collections.abc import Iterator

import numpy as np
import pytest

from cosim.driver import Driver
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.assembler import assemble

SIZE = 4096
COPY = f"""
    set load.dram, op0
    set load.len, {SIZE}
    issue load, signal(store:0)
    set store.dram, op1
    set store.len, {SIZE}
    issue store, wait(load:0)
    halt
"""


@pytest.fixture(scope="module")
def device() -> Iterator[RtlDevice]:
    with RtlDevice(load_target("n4"), 1 << 20) as device:
        yield device


def copied(device: RtlDevice, seed: int, cycles: int | None = None) -> bool:
    """Copy random bytes and return True if the copy is correct; with `cycles`, stop after this number of cycles."""
    driver = Driver(device)
    data = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)
    source, target = driver.put(data), driver.put(np.zeros(SIZE, np.uint8))
    driver.load(assemble(COPY, "copy"), opcode=1, dma=True)
    driver.enqueue(1, [source, target], doorbell=cycles is not None)
    if cycles is not None:
        device.run_cycles(cycles)
        return False
    assert driver.run() == []
    return bool(np.array_equal(driver.fetch(target, (SIZE,), np.uint8), data))


@pytest.mark.parametrize("latency", [1, 100])
def test_copy_after_reset_at_any_time(device: RtlDevice, latency: int) -> None:
    for number, cycles in enumerate([*range(40, 400, 13), *range(900, 2400, 171)]):
        device.reset()
        device.set_dram_timing(latency)
        copied(device, number, cycles)
        device.reset()
        assert copied(device, number + 1), cycles
