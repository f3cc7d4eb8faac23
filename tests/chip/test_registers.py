"""Host registers have the same values on all devices, retain the same bits, and ignore addresses between registers."""

import numpy as np
import pytest

from cosim.device import Device, RegisterError
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS, ID, REGISTERS
from hw.isa.counters import MAXIMA
from tests.chip.conftest import LATENCY, Machine

#: Registers that can be written without side effects while the machine is idle, each with its mask of retained bits.
RETAINED = {
    "RING_LOG2": 0xF,
    "STEP_LIMIT": 0xFFFFFFFF,
    "SEG_SELECT": 0x3,
    "SEG_BASE": 0x7F,
    "SEG_LENGTH": 0x3F,
    "SEG_CRC": 0xFFFFFFFF,
    "WIS_ADDRESS": 0xFFFFFFFF,
    "LOADER_SOURCE": 0xFFFFFFC0,
    "DISPATCH_INDEX": 0x3F,
} | {
    f"WINDOW{index}_{part}": mask
    for index in range(8)
    for part, mask in (
        ("BASE", 0xFFFFFFFF),
        ("LAST", 0xFFFFFFFF),
        ("PERM", 3),
    )
}


def test_every_register_can_be_read(device: Device) -> None:
    values = {register.name: device.read_reg(register.address) for register in REGISTERS}
    assert values["ID"] == ID and values["ISA_VERSION"] == 1
    for name, value in values.items():
        if name.startswith("CONFIG_"):
            assert value == getattr(device.config, name.removeprefix("CONFIG_").lower()), name
    assert all(values[r.name] == 0 for r in REGISTERS if r.access == "wo")


@pytest.mark.parametrize("value", [0x5A5A5A5A, 0xA5A5A5A5])
def test_registers_retain_written_values(device: Device, value: int) -> None:
    for name, mask in RETAINED.items():
        device.write_reg(ADDRESS[name], value & mask)
    for name, mask in RETAINED.items():
        there = not name.startswith("WINDOW") or int(name[len("WINDOW")]) < device.config.windows
        assert device.read_reg(ADDRESS[name]) == (value & mask if there else 0), name


def test_addresses_without_register_are_rejected(device: Device) -> None:
    address = max(ADDRESS.values()) + 4
    with pytest.raises(RegisterError):
        device.read_reg(address)
    with pytest.raises(RegisterError):
        device.write_reg(address, 1)


def test_maximum_registers(rtl: RtlDevice) -> None:
    """The maxima of LOAD are zero before its first read and then equal that read's values; unused selectors read 0."""
    machine = Machine(rtl)
    driver = machine.driver
    machine.assert_alive()
    assert set(driver.counters.maxima().values()) == {0}, "fill reads nothing"
    machine.load("set load.dram, op0\nset load.len, 8\nissue load\nhalt")
    driver.enqueue(1, [driver.put(np.zeros(8, np.uint8))])
    assert driver.run() == []
    maxima = driver.counters.maxima()
    assert maxima["load_in_flight_max"] == 1
    assert LATENCY <= maxima["load_latency_max"] <= 2 * LATENCY
    driver.set("MAXIMUM_SELECT", len(MAXIMA))
    assert driver.get("MAXIMUM") == 0
